"""Landings in every format: a reader gets the rows that the service had."""

from __future__ import annotations

import random
import re
from typing import Any, ClassVar

import pytest

from airflow_provider_webcollect.landing.errors import FormatChanged
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.checked_runs import Runs
from tests.landing.conftest import OTHER_RUN, Folder, Landed, crashing_at, listed
from tests.landing.formats.parts import ALL_FORMATS, as_texts, filled, named
from tests.landing.pages import rows_of, serving, widening
from tests.simulation.steps import Crash

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.mark.parametrize("options", ALL_FORMATS, ids=named)
class TestEveryFormat:
    def test_every_row_lands_once_and_in_order(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, options: dict[str, Any]
    ) -> None:
        task = sandbox.control.add_task(rows=300, lots=2)["task_id"]
        manifest = landing(task, file_format=make_format(**options), max_part_bytes=10_000)
        rows = sandbox.control.true_rows(task)
        assert folder.rows() == (rows if manifest.format == "jsonl" else [as_texts(row) for row in rows])
        assert manifest.format == options["file_format"]
        suffix = make_format(**options).suffix
        assert all(part.name.endswith(suffix) for part in manifest.parts)
        assert folder.names() == folder.needed()
        assert len(sandbox.control.requests("/data/all")) == 6

    def test_a_part_ends_at_its_size(self, landing: Landed, options: dict[str, Any]) -> None:
        rows = [{"url": random.Random(number).randbytes(100).hex()} for number in range(6_000)]
        most, page_bytes = 300_000, 100 * 220
        fetch = serving(rows)
        manifest = landing("t", fetch=fetch, file_format=make_format(**options), max_part_bytes=most)
        sizes = [part.bytes for part in manifest.parts]
        assert len(sizes) > 1
        # a compressor holds back some 128 KiB
        assert all(most <= size < most + page_bytes + 2**17 for size in sizes[:-1])
        assert [part.name for part in manifest.parts] == sorted(part.name for part in manifest.parts)
        cursors = [*(part.start_offset for part in manifest.parts), manifest.next_offset]
        assert cursors == [0, *(part.next_offset for part in manifest.parts)]

    @pytest.mark.by_day(4)
    @pytest.mark.parametrize("crash_at", range(2, 7))
    def test_a_crash_while_columns_are_added_loses_nothing(
        self, landing: Landed, folder: Folder, options: dict[str, Any], crash_at: int
    ) -> None:
        chosen: dict[str, Any] = {"file_format": make_format(**options), "max_part_bytes": 1}
        chosen["fetch"] = listed(widening())
        with pytest.raises(Crash):
            landing("t", read=crashing_at(crash_at), **chosen)
        assert folder.commits() == []
        landing("t", **chosen)
        columns = folder.manifest()["columns"] or ()
        assert folder.rows() == [filled(row, columns) for row in rows_of(widening())]


class TestNamesInAnotherLetterCase:
    ROWS: ClassVar = [{"url": "a", "price": "1.50"}, {"url": "b", "price": "2.00"}]

    @pytest.mark.parametrize(
        ("options", "argument"),
        [
            *(
                ({"file_format": name, "columns": ["price", "URL"]}, "columns")
                for name in ("jsonl", "csv", "parquet")
            ),
            ({"file_format": "parquet", "column_types": {"URL": "int64"}}, "column_types"),
        ],
    )
    def test_a_column_in_another_letter_case_is_refused(
        self, landing: Landed, folder: Folder, options: dict[str, Any], argument: str
    ) -> None:
        said = f"`{argument}` is 'URL'; no row has this column, but rows have 'url': letter case counts"
        with pytest.raises(InvalidArgument, match=re.escape(said)):
            landing("t", fetch=serving(self.ROWS), file_format=make_format(**options))
        assert folder.names() == set()

    @pytest.mark.parametrize("columns", [["url", "URL"], ["url", "never"]])
    def test_columns_may_come_later(self, landing: Landed, folder: Folder, columns: list[str]) -> None:
        landing("t", fetch=serving(self.ROWS), file_format=make_format(columns=columns))
        assert folder.rows() == [{"url": row["url"]} for row in self.ROWS]

    def test_a_landing_that_had_the_column_goes_on_without_it(self, folder: Folder) -> None:
        runs = Runs(folder, file_format=make_format(columns=["URL"]))
        runs.land([{"URL": "a"}])
        runs.land([{"url": "b"}])
        assert folder.rows() == [{"URL": "a"}, {}]


def test_a_growing_landing_keeps_its_format(landing: Landed, folder: Folder) -> None:
    pages = widening()
    landing("t", fetch=listed(pages), mode="incremental")
    with pytest.raises(FormatChanged, match="`file_format` is csv and was jsonl"):
        landing("t", fetch=listed(pages), mode="incremental", run=OTHER_RUN, file_format=make_format("csv"))
