"""Landings in folders that hold files already: they are kept, skipped, overwritten or refused."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import CastFailed, DestinationTaken, LandingDamaged
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.log.commits import Run
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.conftest import (
    OTHER_RUN,
    RUN,
    SERVERS,
    Folder,
    Landed,
    Landing,
    Task,
    crashing_at,
    listed,
)
from tests.landing.pages import page, rows_of, widening
from tests.simulation.steps import Crash
from tests.storages import Storage

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


class TestWhatIsThereAlready:
    @pytest.mark.parametrize(
        "options",
        [{}, {"mode": "incremental"}, {"run": OTHER_RUN, "if_exists": "skip"}],
        ids=["full", "incremental", "another run that skips"],
    )
    def test_the_same_run_again_asks_for_no_data(self, task: Task, options: dict[str, Any]) -> None:
        first = task.land(mode=options.get("mode", "full"))
        task.control.clear_requests()
        task.grow(10)
        assert task.land(**options) == first
        assert task.control.requests() == []

    def test_another_run_is_refused_unless_told_otherwise(self, task: Task, folder: Folder) -> None:
        task.land()
        task.control.clear_requests()
        before = folder.manifest()
        with pytest.raises(DestinationTaken, match=r"run r1 of .* landed.*mode='incremental'") as refusal:
            task.land(run=OTHER_RUN)
        assert refusal.value.permanent
        assert folder.manifest() == before
        assert task.control.requests() == []

    @pytest.mark.parametrize("if_exists", ["fail", "overwrite", "skip"])
    def test_another_source_is_refused(self, task: Task, landing: Landed, if_exists: str) -> None:
        task.land()
        for lotno, other in (("000001", task.id), (None, task.control.add_task()["task_id"])):
            with pytest.raises(DestinationTaken, match=f"holds task {task.id}, not task"):
                landing(other, lotno, if_exists=if_exists)
        assert task.folder.rows() == task.rows()

    @pytest.mark.usefixtures("each_part_is_staged")
    @pytest.mark.parametrize("run", [RUN, OTHER_RUN], ids=["a retry", "another run"])
    def test_foreign_staging_is_not_used(self, task: Task, landing: Landed, folder: Folder, run: Run) -> None:
        with pytest.raises(Crash):
            landing("other", fetch=listed(widening(3)), read=crashing_at(3), max_part_bytes=1)
        assert folder.staged()
        task.land(run=run)
        assert folder.rows() == folder.committed_rows() == task.rows()

    @pytest.mark.parametrize("if_exists", ["fail", "overwrite"])
    def test_a_refused_landing_leaves_nothing(self, task: Task, landing: Landed, if_exists: str) -> None:
        for typo in (("typo", None), (task.id, "999999")):
            with pytest.raises(WebCollectError):
                landing(*typo, if_exists=if_exists)
        task.control.fail("/data/all", status=401, times=None)
        with pytest.raises(WebCollectError):
            task.land()
        assert task.folder.names() == set()
        task.control.clear_faults()
        task.land(run=OTHER_RUN, if_exists=if_exists)
        assert task.folder.rows() == task.rows()

    @pytest.mark.parametrize("remedy", [{"on_cast_error": "null"}, {"column_types": None}])
    def test_other_format_options_let_a_failed_cast_land(
        self, landing: Landed, folder: Folder, remedy: dict[str, Any]
    ) -> None:
        fetch = listed([page([{"a": value}], before, 3) for before, value in enumerate("12x")])
        typed: dict[str, Any] = {"file_format": "parquet", "column_types": {"a": "int64"}}
        with pytest.raises(CastFailed):
            landing("t", fetch=fetch, file_format=make_format(**typed), max_part_bytes=1)
        left = folder.parts()
        assert len(left) == 2
        manifest = landing("t", fetch=fetch, file_format=make_format(**typed | remedy))
        assert manifest.rows == 3
        assert left.isdisjoint(part.name for part in manifest.parts)

    @pytest.mark.parametrize(
        "name", ["data.csv", "part-1.jsonl", "part-00001-xyz.jsonl", "landing", "_SUCCESS.csv", "sub/file"]
    )
    def test_foreign_files_are_refused_and_left_alone(self, task: Task, landing: Landed, name: str) -> None:
        task.folder.write(name, b"mine")
        with pytest.raises(DestinationTaken, match="no landing wrote"):
            task.land()
        assert task.folder.read(name) == b"mine"
        assert task.control.requests() == []

    @pytest.mark.parametrize(
        ("name", "table_format"),
        [("_delta_log/00000000000000000000.json", "delta"), ("metadata/00000-a.metadata.json", "iceberg")],
    )
    def test_files_of_a_table_are_named_as_such(self, task: Task, name: str, table_format: str) -> None:
        task.folder.write(name, b"{}")
        with pytest.raises(DestinationTaken, match=f"is a table .*table_format='{table_format}'"):
            task.land()

    @pytest.mark.parametrize(
        "name",
        [
            *(".nfs000000000002b4c100000001", "_SUCCESS", "dt=2026-11-25/_SUCCESS", "prices_$folder$"),
            *(".part-00001-0badcafe.jsonl.crc", ".DS_Store"),
        ],
    )
    def test_markers_that_other_tools_leave_are_no_foreign_files(self, task: Task, name: str) -> None:
        task.folder.write(name, b"mark")
        assert task.land().rows == 1000
        assert task.folder.read(name) == b"mark"

    @pytest.mark.parametrize("partition", ["dt=2026-11-25", "dt=2026-11-25/hour=07"])
    @pytest.mark.usefixtures("each_part_is_staged")
    @pytest.mark.parametrize("left", ["all", "commits", "staged"])
    def test_a_landing_inside_a_partition_of_another_is_refused(
        self, task: Task, land_job: Landing, partition: str, left: str
    ) -> None:
        if left == "staged":
            with pytest.raises(Crash):
                land_job("t", fetch=listed(widening(3)), read=crashing_at(3), max_part_bytes=1)
        else:
            land_job(task.id, mode="incremental")
        if left == "commits":
            task.folder.fs.rm_file(f"{task.folder.root}/_manifest.json")
        inner = Folder(task.folder.fs, f"{task.folder.root}/{partition}")
        with pytest.raises(DestinationTaken, match=r"is inside the landing at .*/landing"):
            land_job(task.id, folder=inner.destination)
        assert inner.names() == set()


@pytest.mark.parametrize("storage", ["disk", *SERVERS], indirect=True)
class TestRealStorages:
    """A disk, and S3, Azure Blob Storage and Google Cloud Storage, served by stand-ins."""

    @pytest.fixture
    def folder(self, storage: Storage) -> Folder:
        """A folder that does not exist yet."""
        return Folder.new(storage)

    @pytest.mark.by_day(4)
    @pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
    def test_an_overwrite_is_readable_throughout_and_cleaned(
        self, landing: Landed, folder: Folder, file_format: FormatName
    ) -> None:
        chosen = {"file_format": make_format(file_format), "max_part_bytes": 1, "partition": "dt=2026-01-01"}
        landing("t", fetch=listed(widening(3)), **chosen)
        old, replaced = folder.rows(), folder.parts()
        assert len(old) == 6

        def observed(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for data_page in pages:
                assert folder.rows() == old
                yield data_page

        rows = rows_of(widening())
        fetch = listed(widening())
        landing("t", fetch=fetch, run=OTHER_RUN, if_exists="overwrite", read=observed, **chosen)
        whole = dict.fromkeys(rows[-1])
        assert folder.landed().to_arrow().to_pylist() == [{**whole, **row} for row in rows]
        assert len(folder.rows()) == len(rows)
        assert folder.names() == folder.needed() | replaced
        leftover = "dt=2026-01-01/part-00001-0badcafe.jsonl"
        folder.write(leftover, b"x")
        assert clean(folder.location, older_than=3600) == ()
        with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)):
            removed = {file.name: file.bytes for file in clean(folder.location, older_than=3600)}
        assert {*removed} == replaced | {leftover}
        assert removed[leftover] == 1
        landed = folder.landed()
        landed.verify()
        folder.damage(landed.manifest.parts[0].name, None)
        with pytest.raises(LandingDamaged, match=f"{landed.manifest.parts[0].name} is missing"):
            landed.verify()
