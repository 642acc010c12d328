"""Random histories of the runs that land one source in one folder or table, and of what they report.

Their attempts are stopped before any operation of the storage, go on while others run, or are killed there;
answers get lost; marks and reports fail after the commit; the source grows and is emptied. Whatever happens,
a reader finds the source's rows, each once and in order, every part is reported by one run, and a consumer
who remembers the commit that it has come to gets each once.

What a table's own readers find is what the commits say. After a kill the table may lack the rows of the last
commits, until the next landing.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import NoColumns
from airflow_provider_webcollect.landing.formats import make_format
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.conftest import Folder
from tests.landing.histories import History, does_harm, histories
from tests.landing.interleaving import Land
from tests.landing.tables import Table, same, tables_in
from tests.storages import local

pytestmark = pytest.mark.usefixtures("long_reads", "each_part_is_staged")

Tables = Callable[[], Table]
EVERY, TABLES = range(5000), range(2000)
#: Histories that do harm where the condition is left out: harm is rare, so they come first.
HARMFUL, HARMFUL_TABLES = [103, 123], [162, 18]
#: The number of histories that are tried if these do none any more, as a landing's operations are others.
HARMED, HARMED_TABLES = range(2000), range(400)


class TableHistory(History):
    """What happens to a table; others compact it meanwhile."""

    ENDS = (*History.ENDS, NoColumns)

    folder: Table

    def options(self) -> dict[str, Any]:
        return {**super().options(), "file_format": make_format("parquet", columns=["g", "n"])}

    def things(self) -> list[Callable[[], None]]:
        return [*super().things(), self.optimize]

    def hold(self, work: Land, most: int = 60) -> None:
        # it comes to more operations than in a folder
        super().hold(work, most)

    def optimize(self) -> None:
        """Let others compact the table, after which its rows have no order."""
        if self.rows():
            self.folder.compact()

    def rows(self) -> list[tuple[int, int]]:
        return sorted((int(row["g"]), int(row["n"])) for row in self.folder.rows())

    def check_all_is_there(self) -> None:
        super().check_all_is_there()
        expected = self.folder.committed_rows()
        for name, read in self.folder.readers().items():
            assert same(read(), expected), name

    def check_nothing_is_left(self) -> None:
        """What was replaced stays for the table's older versions; what no version has goes."""
        clean(self.folder.location, older_than=0)
        assert same(self.folder.rows(), self.folder.committed_rows())


def sample(seeds: range, count: int) -> list[int]:
    """Return all seeds, or some of them by day."""
    return [*seeds] if ALL_HISTORIES else random.Random(SEED).sample(seeds, count)


def of_tables(seeds: list[int]) -> list[str]:
    return [f"table {seed}" for seed in seeds]


def test_every_row_is_landed_once_and_every_part_is_of_one_run(tmp_path: Path) -> None:
    places = functools.partial(Folder.new, local(tmp_path))
    for history in histories(History, places, sample(EVERY, 12)):
        history.happen()


def test_harm_is_found_where_a_commit_is_created_though_it_is_there(tmp_path: Path) -> None:
    places = functools.partial(Folder.new, local(tmp_path))
    assert does_harm(histories(History, places, [*HARMFUL, *HARMED], unconditional=True))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
class TestTables:
    def test_every_row_is_there_once_and_every_part_is_of_one_run(self, tmp_path: Path, kind: str) -> None:
        for history in histories(TableHistory, tables_in(tmp_path, kind), of_tables(sample(TABLES, 2))):
            history.happen()

    def test_harm_is_found_where_files_are_created_again(self, tmp_path: Path, kind: str) -> None:
        seeds = of_tables([*HARMFUL_TABLES, *HARMED_TABLES])
        assert does_harm(histories(TableHistory, tables_in(tmp_path, kind), seeds, unconditional=True))
