"""Landings that are Delta Lake tables: what others find in them, and what others do to them."""

from __future__ import annotations

import contextlib
import gc
import json
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.schema import Field, PrimitiveType

from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    DestinationUnreadable,
    FormatChanged,
    LandingReplaced,
    NoColumns,
    PartsMissing,
    RowsRewritten,
    StorageError,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.location import folder_at
from airflow_provider_webcollect.landing.write.job import Landed
from airflow_provider_webcollect.landing.write.run import run_job
from tests.landing.checked_runs import FILLED, Runs, goods
from tests.landing.conftest import SERVERS
from tests.landing.pages import Rows, job
from tests.landing.tables import PARQUET, Table, held_at, land, land_runs, landing, numbers
from tests.storages import Storage


@pytest.fixture
def disk(storage_of: Callable[[str], Storage]) -> Table:
    """A table on disk that does not exist yet."""
    return Table.new(storage_of("disk"))


TEXT = PrimitiveType("string")
GENERATED = Field("g", TEXT, metadata={"delta.generationExpression": "n"})
APPEND_ONLY = {"delta.appendOnly": "true"}


def make(table: Table, *fields: Field, properties: dict[str, str] | None = None) -> None:
    """Make a table before anything lands."""
    DeltaTable.create(table.root, Schema([*fields]), configuration=properties)


def write_beside(table: Table, others: str) -> None:
    """Let others compact a table, or add a row to it."""
    if others == "compact":
        table.compact()
    else:
        table.append([{"n": "99"}])


def remove_parts(table: Table, kept: int) -> None:
    """Let others remove parts.

    :param kept: number of parts that stay: the first ones.
    """
    names = sorted(name for name in table.names() if name.startswith("part-"))
    for name in names[kept:]:
        table.fs.rm(f"{table.root}/{name}")


class TestRows:
    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("storage", SERVERS, indirect=True)
    def test_every_row_is_there_once_on_each_storage(self, storage: Storage) -> None:
        table = Table.new(storage)
        for run, count in enumerate([12, 12, 30]):
            land(table, count, f"r{run}")
        table.landed().verify()
        assert [int(row["n"]) for row in table.landed().iter_rows()] == list(range(30))

    def test_the_log_says_whose_rows_a_commit_has_added(self, disk: Table) -> None:
        land(disk, 12)
        land(disk, 15, "r2")
        facts = {"collection_task_id": "t", "run": "d.t r2", "rows": "3", "next_offset": "15"}
        (entry,) = disk.table().history(1)
        assert entry.items() >= {f"webcollect.{name}": value for name, value in facts.items()}.items()

    def test_partitions_are_columns_of_the_table(self, disk: Table) -> None:
        land(disk, 12, partition="dt=2026-01-01/shop=a")
        land(disk, 17, "r2", partition="dt=2026-01-02/shop=a")
        table = disk.table()
        assert table.metadata().partition_columns == ["dt", "shop"]
        second = table.to_pyarrow_dataset().to_table(filter=ds.field("dt") == "2026-01-02")
        assert sorted(second["n"].to_pylist()) == ["12", "13", "14", "15", "16"]
        assert disk.landed().to_arrow(new_only="r2")["n"].to_pylist() == ["12", "13", "14", "15", "16"]
        assert disk.landed().to_duckdb().columns == ["n", "dt", "shop"]

    def test_an_overwrite_may_change_types(self, disk: Table) -> None:
        land(disk, 3, mode="full")
        typed = make_format("parquet", column_types={"n": "int64"})
        land(disk, 4, "r2", mode="full", if_exists="overwrite", file_format=typed)
        assert disk.table().to_pyarrow_dataset().to_table()["n"].to_pylist() == [0, 1, 2, 3]


class TestCommits:
    def test_a_table_whose_commits_are_gone_is_not_landed_in(self, disk: Table) -> None:
        land(disk, 5)
        disk.fs.rm(f"{disk.root}/_commits", recursive=True)
        disk.fs.rm(f"{disk.root}/_manifest.json")
        with pytest.raises(DestinationUnreadable, match=r"has the rows of commits up to 1.*00000001.json"):
            land(disk, 10, "r2")
        assert numbers(disk) == list(range(5))

    def test_a_table_that_is_gone_is_made_again_of_the_parts(self, disk: Table) -> None:
        land_runs(disk, 3)
        disk.fs.rm(f"{disk.root}/_delta_log", recursive=True)
        land(disk, 20, "r3")
        assert numbers(disk) == list(range(20))


class TestLog:
    """The table's log is written by everyone who writes to the table, each entry once."""

    def test_a_checkpoint_comes_every_eighth_entry(self, disk: Table) -> None:
        for run in range(1, 25):
            land(disk, run, f"r{run}")
        log = {name for name in disk.destination.files("_delta_log") if "checkpoint." in name}
        assert log == {f"_delta_log/{number:020}.checkpoint.parquet" for number in (7, 15, 23)}
        assert json.loads(disk.read("_delta_log/_last_checkpoint"))["version"] == 23
        # entries before a checkpoint expire
        for number in range(23):
            disk.fs.rm(f"{disk.root}/_delta_log/{number:020}.json")
        land(disk, 30, "r30")
        assert numbers(disk) == list(range(30))

    @pytest.mark.parametrize(
        "hint",
        [None, b'{"version":13,"size":14,"parts":1}', b'{"version":3,"size":3}', b'{"vers', b"\xff", b"{}"],
    )
    def test_a_checkpoint_is_found_though_named_otherwise(self, disk: Table, hint: bytes | None) -> None:
        log = f"{disk.root}/_delta_log"
        for run in range(1, 15):
            land(disk, run, f"r{run}")
        disk.table().create_checkpoint()
        disk.fs.mv(f"{log}/{13:020}.checkpoint.parquet", f"{log}/{13:020}.checkpoint.{1:010}.{1:010}.parquet")
        if hint is None:
            disk.fs.rm(f"{log}/_last_checkpoint")
        else:
            disk.write("_delta_log/_last_checkpoint", hint)
        for number in range(13):
            disk.fs.rm(f"{log}/{number:020}.json")
        disk.fs.rm(f"{log}/{7:020}.checkpoint.parquet")
        land(disk, 20, "r20")
        assert numbers(disk) == list(range(20))

    def test_a_hint_at_a_checkpoint_that_is_gone_stops_no_landing(self, disk: Table) -> None:
        land(disk, 5)
        disk.write("_delta_log/_last_checkpoint", b'{"version":99,"size":1}')
        land(disk, 9, "r2")
        assert disk.landed().manifest.rows == 9

    @pytest.mark.parametrize("storage", ["s3"], indirect=True)
    @pytest.mark.parametrize("because", ["denied", "torn"])
    def test_an_error_of_writing_names_no_secrets(
        self, storage: Storage, because: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        access = {"key": "AKIAOFNOBODYELSE", "secret": "of/nobody+else"}
        options = {**storage.options, **access}
        table = Table(replace(storage, options=options).fs, storage.new_folder())
        land(table, 5)
        entry = f"_delta_log/{1:020}.json"
        with contextlib.ExitStack() as stack:
            if because == "denied":
                stack.enter_context(storage.denied(f"{table.root}/{entry}", "s3:PutObject"))
            else:
                table.write(entry, b"{")
            said = {"denied": f"Access to .*{entry} is denied", "torn": "The table .* cannot be read"}
            error = stack.enter_context(pytest.raises(StorageError, match=said[because]))
            land(table, 10, "r2")
        told = caplog.text + "".join(traceback.format_exception(error.value))
        assert not [name for name, secret in access.items() if secret in told]


class TestPartsThatAreGone:
    """VACUUM with a short retention removes parts that the table does not have yet."""

    def test_parts_lost_before_the_commit_are_not_landed(self, disk: Table) -> None:
        land(disk, 5)
        table = Table(disk.fs, disk.root)
        job = landing(table.destination, count=12, run="r2", on_progress=lambda *_: remove_parts(disk, 1))
        with pytest.raises(PartsMissing, match=r"part-00002-.*Nothing was committed"):
            run_job(job)
        assert land(disk, 12, "r2").manifest.rows == 12
        assert numbers(disk) == list(range(12))

    def test_lost_parts_are_reported_until_all_is_landed_again(self, disk: Table) -> None:
        land(disk, 5)
        with pytest.raises(PartsMissing, match=r"part-00002-.* has landed.*if_exists='overwrite'"):
            land(disk, 12, "r2", on_commit=lambda landed: remove_parts(disk, 1))
        for run in ("r2", "r3"):
            with pytest.raises(PartsMissing, match=r"part-00002-"):
                land(disk, 15, run)
        assert numbers(disk) == list(range(5))
        land(disk, 15, "r4", mode="full", if_exists="overwrite")
        land(disk, 17, "r5")
        assert numbers(disk) == list(range(17))


class TestWhatIsThereAlready:
    def test_a_table_that_was_made_for_the_landing_is_filled(self, disk: Table) -> None:
        make(disk, Field("n", TEXT), Field("note", TEXT), properties=APPEND_ONLY)
        land(disk, 5)
        assert numbers(disk) == list(range(5))
        assert disk.table().metadata().configuration == APPEND_ONLY

    def test_rows_of_another_type_are_refused_before_the_commit(self, disk: Table) -> None:
        make(disk, Field("n", PrimitiveType("long")))
        with pytest.raises(FormatChanged, match=r"column `n` of the table .* is of the type .*long.*string"):
            land(disk, 5)
        assert disk.table().version() == 0

    @pytest.mark.parametrize(
        ("field", "properties", "said"),
        [
            (Field("n", TEXT, nullable=False), {}, "the column n, which is NOT NULL"),
            (GENERATED, {}, r"the column g with delta\.generationExpression"),
            (Field("n", TEXT), {"delta.columnMapping.mode": "name"}, "column mapping"),
        ],
        ids=["not null", "generated", "mapped"],
    )
    def test_what_nobody_would_check_is_refused_before_reading(
        self, disk: Table, field: Field, properties: dict[str, str], said: str
    ) -> None:
        make(disk, field, properties=properties)
        with pytest.raises(FormatChanged, match=rf"has {said}.*`checks` of the landing"):
            land(disk, 5)
        assert disk.table().version() == 0

    def test_a_constraint_of_others_is_refused(self, disk: Table) -> None:
        land(disk, 5)
        disk.table().alter.add_constraint({"small": "n < '5'"})
        with pytest.raises(FormatChanged, match="has the constraint small, n < '5'"):
            land(disk, 9, "r2")
        assert numbers(disk) == list(range(5))
        disk.table().alter.drop_constraint("small")
        land(disk, 9, "r2")
        assert numbers(disk) == list(range(9))

    def test_properties_that_others_set_let_it_go_on(self, disk: Table) -> None:
        """The library then adds features to the table that nothing uses."""
        typed = make_format("parquet", column_types={"n": "int64", "at": "timestamp"})
        runs = Runs(disk, file_format=typed)
        runs.land([{"n": 1, "at": "2026-01-01T00:00:00"}])
        disk.table().alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        runs.land([{"n": 2, "at": "2026-01-02T00:00:00"}])
        assert numbers(disk) == [1, 2]

    def test_a_table_whose_rows_must_stay_takes_none_in_their_place(self, disk: Table) -> None:
        make(disk, Field("n", TEXT), properties=APPEND_ONLY)
        land(disk, 5)
        with pytest.raises(FormatChanged, match=r"has delta\.appendOnly"):
            land(disk, 3, "r2", mode="full", if_exists="overwrite")
        assert numbers(disk) == list(range(5))
        land(disk, 9, "r3")
        assert numbers(disk) == list(range(9))

    def test_a_landing_in_a_folder_is_no_table_and_a_table_no_folder(self, disk: Table) -> None:
        folder = folder_at(disk.fs, disk.root)
        run_job(job(Rows(5), folder, "r1", file_format=PARQUET))
        with pytest.raises(DestinationTaken, match="holds a landing that is no table"):
            land(disk, 5, "r2")
        other = Table(disk.fs, f"{disk.root}-2")
        land(other, 5)
        with pytest.raises(DestinationTaken, match="holds a landing that is a table of delta"):
            run_job(job(Rows(5), folder_at(disk.fs, other.root), "r2", file_format=PARQUET))

    @pytest.mark.parametrize("partitions", [("dt=1", None), (None, "dt=1"), ("dt=1", "day=1")])
    def test_another_partition_is_refused_before_anything_is_read(self, disk: Table, partitions: Any) -> None:
        land(disk, 5, partition=partitions[0])
        with pytest.raises(FormatChanged, match=r"is partitioned by (dt|nothing), and `partition` says"):
            land(disk, 10, "r2", partition=partitions[1])
        assert numbers(disk) == list(range(5))

    @pytest.mark.parametrize("partition", [None, "dt=2026-01-01"])
    def test_named_columns_make_a_table_without_rows(self, disk: Table, partition: str | None) -> None:
        with pytest.raises(NoColumns, match="name them with `columns`"):
            land(disk, 0, partition=partition)
        named = make_format("parquet", columns=["n"])
        land(disk, 0, "r2", file_format=named, partition=partition)
        assert numbers(disk) == []
        land(disk, 5, "r3", file_format=named, partition=partition)
        assert numbers(disk) == list(range(5))


def test_two_first_landings_at_once_both_land(disk: Table) -> None:
    """One has found an empty folder, and then meets the files of the other."""
    held = held_at(disk, ("files", disk.root.rpartition("/")[2]), count=12, run="r1")
    assert held.met
    land(disk, 5, "r2")
    assert isinstance(held.end(), Landed)
    assert numbers(disk) == list(range(12))


class TestOthersAtWork:
    """Others compact the table, remove old files, delete rows, or write while a landing does."""

    def test_an_earlier_reader_is_told_to_read_again(self, disk: Table) -> None:
        land_runs(disk, 2)
        before = disk.landed()
        disk.compact()
        disk.vacuum()
        with pytest.raises(LandingReplaced, match="read it again"):
            before.to_arrow()
        assert disk.landed().to_arrow().num_rows == 10

    @pytest.mark.parametrize("others", ["compact", "append"])
    @pytest.mark.parametrize("replaces", [False, True], ids=["adds rows", "replaces all"])
    def test_writes_of_others_stay_or_are_replaced(self, disk: Table, others: str, replaces: bool) -> None:
        land_runs(disk, 3)
        options = {"count": 4, "mode": "full", "if_exists": "overwrite"} if replaces else {"count": 20}
        held = held_at(disk, ("commit", "table"), run="r3", **options)
        assert held.met
        write_beside(disk, others)
        assert isinstance(held.end(), Landed)
        added = [99] if others == "append" else []
        assert numbers(disk) == (list(range(4)) if replaces else [*range(20), *added])

    def test_a_landing_goes_on_from_a_restored_version(self, disk: Table) -> None:
        land_runs(disk, 3)
        disk.table().restore(1)
        land(disk, 20, "r3")
        assert numbers(disk) == [*range(10), *range(15, 20)]

    def test_an_empty_run_id_has_no_rows(self, disk: Table) -> None:
        land(disk, 5)
        write_beside(disk, "append")
        landed = disk.landed()
        assert [*landed.uris(""), *landed.iter_rows("")] == []
        assert landed.to_arrow("").num_rows == landed.to_duckdb(new_only="").shape[0] == 0

    def test_files_of_others_have_their_real_names(self, disk: Table) -> None:
        named = make_format("parquet", columns=["n"])
        land(disk, 5, file_format=named, partition="dt=a")
        rows = pa.table({"n": ["99"], "dt": ["b c%"]})
        write_deltalake(disk.table(), rows, mode="append", partition_by=["dt"])
        landed = disk.landed()
        assert all(disk.fs.exists(uri) for uri in landed.uris())
        landed.verify()

    def test_missing_files_are_reported(self, disk: Table) -> None:
        land_runs(disk, 2)
        disk.compact()
        landed = disk.landed()
        disk.fs.rm(landed.uris()[0])
        with pytest.raises(StorageError, match="cannot be read or written"):
            landed.to_arrow()

    def test_tables_with_deletion_vectors_are_not_read_by_files(self, disk: Table) -> None:
        land_runs(disk, 3)
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
        disk.write(f"_delta_log/{disk.version() + 1:020}.json", json.dumps(protocol).encode())
        landed = disk.landed()
        with pytest.raises(RowsRewritten):
            landed.to_arrow(new_only="r0")
        land(disk, 20, "r3")


def test_rows_that_do_not_fit_the_table_are_not_quarantined(disk: Table) -> None:
    runs = Runs(disk, file_format=PARQUET)
    runs.land(goods(20), FILLED)
    rows = goods(10, price="", PRICE="1")
    for on_failed_checks in ("quarantine", "fail"):
        with pytest.raises(FormatChanged, match="would be one"):
            runs.land(rows, FILLED, on_failed_checks=on_failed_checks)
        rows = []
    assert disk.state().commit == 1
    del runs.rows[20:]
    runs.land(goods(5), FILLED)
    assert len(disk.found()) == 25


def test_the_local_copy_of_a_log_is_removed_after_use(
    disk: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(disk, 5)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    snapshot = disk.destination.snapshot()
    assert snapshot
    assert snapshot.files
    assert len([*tmp_path.iterdir()]) == 1
    del snapshot
    gc.collect()
    assert [*tmp_path.iterdir()] == []
