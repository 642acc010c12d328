"""Landings that are tables of Delta Lake: what others find in them, and what others do to them."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.schema import Field, PrimitiveType

from airflow_provider_webcollect.landing.cleaning import clean, replaced_landings, restore
from airflow_provider_webcollect.landing.errors import (
    ChecksFailed,
    DestinationTaken,
    DestinationUnreadable,
    FormatChanged,
    LandingDamaged,
    LandingReplaced,
    NoColumns,
    NothingLanded,
    RowsRewritten,
    StorageError,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.manifest import Run
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.review import accept, discard
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.tables import landing_folder
from airflow_provider_webcollect.landing.tables import table as table_module
from airflow_provider_webcollect.landing.tables.delta import DeltaFolder
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.checked_runs import Runs, goods
from tests.landing.pages import Rows, job, make_job, serving
from tests.landing.storages import Storage
from tests.landing.tables import Table, as_texts, same
from tests.landing.victim import Victim, running_lander

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.sandbox import Sandbox

PARQUET = make_format("parquet")


@pytest.fixture(params=["disk", "s3", "azure"])
def storage(request: pytest.FixtureRequest, storage_of: Callable[[str], Storage]) -> Storage:
    """A real storage of each kind that is tried."""
    return storage_of(request.param)


@pytest.fixture
def disk(storage_of: Callable[[str], Storage]) -> Table:
    """A table on a disk that is not there yet."""
    found = storage_of("disk")
    return Table(found.fs, found.new_folder())


def land(table: Table, count: int, run: str = "r1", **options: Any) -> Any:
    """Land numbered rows, five to a part."""
    options = {"mode": "incremental", "file_format": PARQUET, **options}
    return run_job(job(Rows(count), table.destination, run, **options))


def in_table(table: Table) -> Callable[..., Any]:
    """Return what adds rows to a source, and lands them in a run of its own."""
    rows: list[dict[str, Any]] = []
    number = itertools.count(1)

    def run(new: list[dict[str, Any]], **options: Any) -> Any:
        rows.extend(new)
        options = {"mode": "incremental", "file_format": PARQUET, **options}
        run = Run(dag_id="d", task_id="t", run_id=f"r{next(number)}")
        return run_job(make_job(serving(rows), folder=table.destination, run=run, **options))

    return run


def enable_deletion_vectors(table: Table) -> None:
    """Let others write in the table's log that its files may have deletion vectors."""
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    version = table.table().version() + 1
    table.write(f"_delta_log/{version:020}.json", json.dumps({"protocol": protocol}).encode())


def write_beside(table: Table, others: str) -> None:
    """Let others compact a table, or add a row to it."""
    if others == "compact":
        table.table().optimize.compact()
    else:
        write_deltalake(table.table(), pa.table({"n": ["99"]}), mode="append")


def meeting(others: Callable[[], object]) -> Any:
    """Return a kind of table to which others write right before the first commit of a landing."""

    class Meeting(DeltaFolder):
        met = False

        def call(self, what: str, work: Callable[[], Any]) -> Any:
            if what == "commit" and not Meeting.met:
                Meeting.met = True
                others()
            return super().call(what, work)

    return Meeting


def numbers(table: Table) -> list[int]:
    """Return the numbers of the rows that the table's own reader finds."""
    return sorted(int(number) for number in table.table().to_pyarrow_dataset().to_table()["n"].to_pylist())


def log_of(table: Table) -> dict[str, Any]:
    """Return what the table's log says of its last commit."""
    return table.table().history(1)[0]


class TestRows:
    @pytest.mark.by_day(1)
    def test_each_reader_finds_every_row_once(self, storage: Storage) -> None:
        table = Table(storage.fs, storage.new_folder())
        for run, count in enumerate([12, 12, 30]):
            land(table, count, f"r{run}")
        expected = [{"n": str(number)} for number in range(30)]
        assert table.rows() == expected
        for name, read in table.readers().items() if storage.fs.protocol[0] == "file" else ():
            assert same(read(), expected), name
        table.landed().verify()

    def test_the_log_says_whose_rows_a_commit_has_added(self, disk: Table) -> None:
        land(disk, 12)
        land(disk, 15, "r2")
        told = {name: value for name, value in log_of(disk).items() if name.startswith("webcollect.")}
        assert told == {
            "webcollect.collection_task_id": "t",
            "webcollect.run": "d.t r2",
            "webcollect.rows": "3",
            "webcollect.next_offset": "15",
        }

    def test_types_are_those_of_the_columns(self, disk: Table) -> None:
        types = {
            "a": "int64",
            "b": "decimal(10,2)",
            "c": "timestamptz",
            "d": "timestamp",
            "e": "date32",
            "f": "bool",
            "g": "float32",
            "h": "int32",
        }
        row = {
            "a": 1,
            "b": "1.50",
            "c": "2026-01-01T00:00:00Z",
            "d": "2026-01-01T00:00:00",
            "e": "2026-01-01",
            "f": True,
            "g": 0.5,
            "h": 7,
            "i": "text",
        }
        in_table(disk)([row], file_format=make_format("parquet", column_types=types))
        (found,) = disk.table().to_pyarrow_dataset().to_table().to_pylist()
        assert (found["a"], found["f"], found["g"], found["h"], found["i"]) == (1, True, 0.5, 7, "text")
        assert str(found["b"]) == "1.50"
        assert found["c"] == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        assert found["d"] == datetime.datetime(2026, 1, 1)
        assert found["e"] == datetime.date(2026, 1, 1)
        assert disk.landed().to_arrow().to_pylist() == [found]

    def test_a_column_that_comes_later_is_added_to_the_table(self, disk: Table) -> None:
        runs = in_table(disk)
        runs([{"a": "1"}])
        runs([{"a": "2", "b": "x"}])
        runs([{"c": "y"}])
        assert disk.landed().to_arrow().to_pylist() == [
            {"a": "1", "b": None, "c": None},
            {"a": "2", "b": "x", "c": None},
            {"a": None, "b": None, "c": "y"},
        ]
        found = disk.table().to_pyarrow_dataset().to_table().to_pylist()
        assert same(found, disk.landed().to_arrow().to_pylist())

    def test_partitions_are_columns_of_the_table(self, disk: Table) -> None:
        land(disk, 12, partition="dt=2026-01-01/shop=a")
        land(disk, 17, "r2", partition="dt=2026-01-02/shop=a")
        table = disk.table()
        assert table.metadata().partition_columns == ["dt", "shop"]
        second = table.to_pyarrow_dataset().to_table(filter=ds.field("dt") == "2026-01-02")
        assert sorted(second["n"].to_pylist()) == ["12", "13", "14", "15", "16"]
        assert disk.landed().to_arrow(new_only="r2")["n"].to_pylist() == ["12", "13", "14", "15", "16"]
        assert disk.landed().to_duckdb().columns == ["n", "dt", "shop"]

    def test_a_landing_that_replaces_another_keeps_the_versions_before(self, disk: Table) -> None:
        land(disk, 12, mode="full")
        before = disk.table().version()
        land(disk, 7, "r2", mode="full", if_exists="overwrite")
        assert numbers(disk) == list(range(7))
        old = DeltaTable(disk.root, version=before).to_pyarrow_dataset().to_table()
        assert sorted(map(int, old["n"].to_pylist())) == list(range(12))
        assert clean(disk.location, older_than=0) == ()

    def test_other_types_come_with_a_landing_that_replaces_the_rows(self, disk: Table) -> None:
        land(disk, 3, mode="full")
        typed = make_format("parquet", column_types={"n": "int64"})
        land(disk, 4, "r2", mode="full", if_exists="overwrite", file_format=typed)
        assert disk.table().to_pyarrow_dataset().to_table()["n"].to_pylist() == [0, 1, 2, 3]

    def test_after_a_reset_of_the_source_the_table_has_the_new_rows_alone(self, disk: Table) -> None:
        land(disk, 12)
        land(disk, 5, "r2", on_reset="full")
        assert numbers(disk) == list(range(5))
        for put_back in (replaced_landings, restore):
            with pytest.raises(InvalidArgument, match="a table keeps its own versions"):
                put_back(disk.location)


class TestManifest:
    @pytest.fixture
    def often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every fifth commit has all of the manifest."""
        monkeypatch.setattr(table_module, "WHOLE_EVERY", 5)

    @pytest.mark.parametrize("runs", [7, pytest.param(33, marks=pytest.mark.at_night)])
    def test_it_is_the_same_as_that_of_a_folder_whatever_many_commits_there_were(
        self, disk: Table, runs: int
    ) -> None:
        for run in range(runs):
            landed = land(disk, 5 + run, f"r{run}", mark=[None, lambda: None][run % 2])
            assert disk.destination.committed().manifest == landed.manifest
        assert len(landed.manifest.parts) == runs
        assert len(landed.manifest.history) == min(runs, 30)

    def test_a_commit_writes_what_is_new_alone(self, disk: Table, often: None) -> None:
        sizes: dict[str, int] = {}
        for run in range(24):
            land(disk, 5 * (run + 1), f"r{run}")
            sizes |= {
                name: size for name, size in disk.destination.all_files().items() if "_landing/" in name
            }
        # the last one before them has all of it
        small = [size for name, size in sorted(sizes.items()) if "_landing/" in name][-3:]
        assert max(small) < 3_000
        # those before one that has all of it have gone
        assert sum("_landing/" in name for name in disk.destination.all_files()) <= 6

    def test_a_reader_finds_rows_while_files_of_earlier_commits_go(self, disk: Table, often: None) -> None:
        land(disk, 5)
        reader = disk.destination
        version = reader.snapshot().version
        assert version is not None
        for run in range(15):
            land(disk, 6 + run, f"s{run}")
        assert reader.committed().manifest.rows == 20

    def test_one_of_its_files_that_is_gone_is_said(self, disk: Table) -> None:
        land(disk, 5)
        disk.fs.rm(f"{disk.root}/_landing", recursive=True)
        with pytest.raises(DestinationUnreadable, match=r"_landing/.* is missing"):
            read_landing(disk.location)


class TestWhatIsThereAlready:
    def test_a_table_of_others_is_left_alone(self, disk: Table) -> None:
        write_deltalake(disk.root, pa.table({"n": ["x"]}))
        with pytest.raises(DestinationTaken, match="rows that no landing has written"):
            land(disk, 5)
        assert disk.table().version() == 0

    def test_a_table_that_was_made_for_the_landing_is_filled(self, disk: Table) -> None:
        fields = [Field("n", PrimitiveType("string")), Field("note", PrimitiveType("string"))]
        DeltaTable.create(disk.root, Schema(fields), configuration={"delta.appendOnly": "true"})
        land(disk, 5)
        assert numbers(disk) == list(range(5))
        assert disk.table().metadata().configuration == {"delta.appendOnly": "true"}

    def test_rows_that_do_not_fit_the_table_are_refused_before_the_commit(self, disk: Table) -> None:
        DeltaTable.create(disk.root, Schema([Field("n", PrimitiveType("long"))]))
        with pytest.raises(FormatChanged, match=r"column `n` of the table .* is of the type .*long.*string"):
            land(disk, 5)
        assert disk.table().version() == 0

    def test_a_landing_in_a_folder_is_no_table_and_a_table_no_folder(self, disk: Table) -> None:
        folder = landing_folder(disk.fs, disk.root)
        run_job(job(Rows(5), folder, "r1", file_format=PARQUET))
        with pytest.raises(DestinationTaken, match="holds a landing that is no table"):
            land(disk, 5, "r2")
        other = Table(disk.fs, f"{disk.root}-2")
        land(other, 5)
        with pytest.raises(DestinationTaken, match="files that no landing wrote"):
            run_job(job(Rows(5), landing_folder(disk.fs, other.root), "r2", file_format=PARQUET))

    @pytest.mark.parametrize("partitions", [("dt=1", None), (None, "dt=1"), ("dt=1", "day=1")])
    def test_another_partition_is_refused_before_anything_is_read(
        self, disk: Table, partitions: tuple[str, str]
    ) -> None:
        land(disk, 5, partition=partitions[0])
        with pytest.raises(FormatChanged, match=r"is partitioned by (dt|nothing), and `partition` says"):
            land(disk, 10, "r2", partition=partitions[1])
        assert numbers(disk) == list(range(5))

    @pytest.mark.parametrize(
        ("row", "partition"),
        [({"Price": "1", "price": "2"}, None), ({"DT": "1"}, "dt=2026-01-01"), ({"n": "1"}, "n=7")],
    )
    def test_names_that_are_the_same_or_differ_in_letter_case_alone_are_refused(
        self, disk: Table, row: dict[str, str], partition: str | None
    ) -> None:
        with pytest.raises(FormatChanged, match="would be one for the table"):
            in_table(disk)([row], partition=partition)
        with pytest.raises(NothingLanded):
            read_landing(disk.location)

    def test_a_source_without_rows_makes_no_table(self, disk: Table) -> None:
        with pytest.raises(NoColumns, match="name them with `columns`"):
            land(disk, 0)
        named = make_format("parquet", columns=["n"])
        land(disk, 0, "r2", file_format=named)
        assert numbers(disk) == []
        land(disk, 5, "r3", file_format=named)
        assert numbers(disk) == list(range(5))

    @pytest.mark.parametrize("partition", [None, "dt=2026-01-01"])
    def test_a_table_without_rows_is_partitioned_already(self, disk: Table, partition: str | None) -> None:
        named = make_format("parquet", columns=["n"])
        land(disk, 0, file_format=named, partition=partition)
        land(disk, 5, "r2", file_format=named, partition=partition)
        assert numbers(disk) == list(range(5))

    def test_a_filesystem_that_the_library_does_not_know_is_refused(self) -> None:
        import fsspec

        with pytest.raises(InvalidArgument, match="a table can be on a disk, S3, Azure"):
            land(Table(fsspec.filesystem("memory"), "/landing"), 5)


class TestOthersAtWork:
    """Others compact the table, remove old files, delete rows, or write while a landing does."""

    @pytest.fixture
    def compacted(self, disk: Table) -> Table:
        for run in range(3):
            land(disk, 5 * (run + 1), f"r{run}")
        assert disk.table().optimize.compact()["numFilesRemoved"] == 3
        return disk

    def test_a_compacted_table_has_the_same_rows(self, compacted: Table) -> None:
        landed = compacted.landed()
        assert same(list(landed.iter_rows()), [{"n": str(number)} for number in range(15)])
        assert landed.to_arrow().num_rows == landed.to_duckdb().shape[0] == 15
        assert len(landed.uris()) == 1
        assert landed.profile().columns["n"].filled == 15
        landed.verify()

    @pytest.mark.parametrize("read", ["uris", "to_arrow", "iter_rows"])
    def test_the_rows_of_one_run_are_not_known_then(self, compacted: Table, read: str) -> None:
        with pytest.raises(RowsRewritten, match=r"others have rewritten part-00001-"):
            list(getattr(compacted.landed(), read)(new_only="r0"))

    @pytest.mark.parametrize("read", ["latest", "history"])
    def test_nor_are_the_latest_rows(self, compacted: Table, read: str) -> None:
        with pytest.raises(RowsRewritten, match="not in their order"):
            getattr(compacted.landed(), read)("n")

    def test_the_next_run_goes_on(self, compacted: Table) -> None:
        compacted.table().vacuum(0, dry_run=False, enforce_retention_duration=False)
        landed = land(compacted, 22, "r3")
        assert numbers(compacted) == list(range(22))
        assert compacted.landed().to_arrow(new_only="r3").num_rows == 7
        assert landed.manifest.rows == 22

    def test_a_reader_of_before_is_told_to_read_again(self, disk: Table) -> None:
        for run in range(2):
            land(disk, 5 * (run + 1), f"r{run}")
        before = disk.landed()
        disk.table().optimize.compact()
        disk.table().vacuum(0, dry_run=False, enforce_retention_duration=False)
        with pytest.raises(LandingReplaced, match="read it again"):
            before.to_arrow()
        assert disk.landed().to_arrow().num_rows == 10

    def test_a_landing_commits_beside_others(self, disk: Table) -> None:
        for run in range(3):
            land(disk, 5 * (run + 1), f"r{run}")
        table = disk.table()
        land(disk, 20, "r3", on_progress=lambda *_: table.optimize.compact() if len(numbers(disk)) else None)
        assert numbers(disk) == list(range(20))

    @pytest.mark.parametrize("others", ["compact", "append"])
    def test_a_landing_that_replaces_the_rows_replaces_those_that_others_have_written(
        self, disk: Table, others: str
    ) -> None:
        for run in range(3):
            land(disk, 5 * (run + 1), f"r{run}")
        table = Table(disk.fs, disk.root)
        table.kind = kind = meeting(lambda: write_beside(disk, others))
        land(table, 4, "r3", mode="full", if_exists="overwrite")
        assert kind.met
        assert numbers(disk) == list(range(4))

    def test_deleted_rows_stay_deleted(self, disk: Table) -> None:
        land(disk, 10)
        disk.table().delete("n = '3'")
        land(disk, 15, "r2")
        assert numbers(disk) == [n for n in range(15) if n != 3]

    def test_rows_that_others_have_added_are_read(self, disk: Table) -> None:
        land(disk, 5)
        write_deltalake(disk.table(), pa.table({"n": ["99"]}), mode="append")
        landed = disk.landed()
        assert len(list(landed.iter_rows())) == landed.to_arrow().num_rows == landed.to_duckdb().shape[0] == 6
        with pytest.raises(RowsRewritten):
            landed.latest("n")

    def test_an_empty_id_is_that_of_a_run_without_rows(self, disk: Table) -> None:
        land(disk, 5)
        for change in (lambda: None, lambda: write_beside(disk, "append")):
            change()
            landed = disk.landed()
            assert landed.uris("") == list(landed.iter_rows("")) == []
            assert landed.to_arrow("").num_rows == landed.to_duckdb(new_only="").shape[0] == 0

    def test_files_of_others_are_named_as_they_are(self, disk: Table) -> None:
        named = make_format("parquet", columns=["n"])
        land(disk, 5, file_format=named, partition="dt=a")
        rows = pa.table({"n": ["99"], "dt": ["b c%"]})
        write_deltalake(disk.table(), rows, mode="append", partition_by=["dt"])
        landed = disk.landed()
        assert all(disk.fs.exists(uri) for uri in landed.uris())
        landed.verify()

    def test_files_that_are_gone_are_said(self, disk: Table) -> None:
        for run in range(2):
            land(disk, 5 * (run + 1), f"r{run}")
        disk.compact()
        landed = disk.landed()
        disk.fs.rm(landed.uris()[0])
        with pytest.raises(StorageError, match="cannot be read or written"):
            landed.to_arrow()

    def test_where_rows_may_be_deleted_beside_files_these_are_not_read(self, disk: Table) -> None:
        for run in range(3):
            land(disk, 5 * (run + 1), f"r{run}")
        enable_deletion_vectors(disk)
        landed = disk.landed()
        with pytest.raises(RowsRewritten):
            landed.to_arrow(new_only="r0")
        land(disk, 20, "r3")

    def test_damage_is_found(self, disk: Table) -> None:
        land(disk, 10)
        name = disk.landed().manifest.parts[0].name
        disk.write(name, disk.read(name)[:-1])
        with pytest.raises(LandingDamaged, match=f"{name} has"):
            disk.landed().verify()

    def test_leftovers_go_and_what_a_version_has_stays(self, disk: Table) -> None:
        land(disk, 10)
        land(disk, 5, "r2", on_reset="full")
        disk.write("part-00009-0badcafe.parquet", b"left")
        assert [left.name for left in clean(disk.location, older_than=0)] == ["part-00009-0badcafe.parquet"]
        assert numbers(disk) == list(range(5))
        old = DeltaTable(disk.root, version=0).to_pyarrow_dataset().to_table()
        assert old.num_rows == 10


class TestReview:
    CHECKS = {"columns": {"price": {"filled": 0.95}}}  # noqa: RUF012  # a constant

    @pytest.fixture
    def folder(self, disk: Table) -> Table:
        return disk

    @pytest.fixture
    def land_checked(self, runs: Runs) -> Callable[..., Any]:
        """Lands rows that have been added, and checks them."""
        return functools.partial(runs.land, checks=self.CHECKS, file_format=PARQUET)

    @pytest.mark.parametrize("first", [True, False], ids=["first run", "later run"])
    @pytest.mark.parametrize("decide", [accept, discard])
    def test_quarantined_rows_are_no_rows_of_the_table_until_accepted(
        self, land_checked: Callable[..., Any], disk: Table, decide: Callable[..., Any], first: bool
    ) -> None:
        partition = "dt=2026-01-01"
        if not first:
            land_checked(goods(20), partition=partition)
        land_checked(goods(10, price=""), on_failed_checks="quarantine", partition=partition)
        before = 0 if first else 20
        assert disk.table().to_pyarrow_dataset().to_table().num_rows == before
        decide(disk.location, "run 1" if first else "run 2")
        after = before + (10 if decide is accept else 0)
        assert disk.table().to_pyarrow_dataset().to_table().num_rows == after
        land_checked(goods(5), partition=partition)
        assert disk.table().to_pyarrow_dataset().to_table().num_rows == after + 5
        disk.landed().verify()

    @pytest.mark.parametrize("decide", [accept, discard])
    def test_staged_rows_are_decided_on_before_there_is_a_table(
        self, land_checked: Callable[..., Any], disk: Table, decide: Callable[..., Any]
    ) -> None:
        with pytest.raises(ChecksFailed):
            land_checked(goods(10, price=""))
        decide(disk.location, "run 1")
        land_checked(goods(5))
        count = 15 if decide is accept else 5
        assert disk.table().to_pyarrow_dataset().to_table().num_rows == disk.landed().manifest.rows == count

    @pytest.mark.parametrize("decide", [accept, discard])
    def test_staged_rows_are_accepted_or_discarded(
        self, land_checked: Callable[..., Any], disk: Table, decide: Callable[..., Any]
    ) -> None:
        land_checked(goods(20))
        with pytest.raises(ChecksFailed):
            land_checked(goods(10, price=""))
        assert len(disk.landed().uris()) == 1
        decide(disk.location, "run 2")
        assert disk.landed().to_arrow().num_rows == (30 if decide is accept else 20)
        assert disk.table().to_pyarrow_dataset().to_table().num_rows == (30 if decide is accept else 20)


@pytest.mark.xdist_group("s3")
def test_a_storage_that_is_down_is_said_without_secrets(storage_of: Callable[[str], Storage]) -> None:
    found = storage_of("s3")
    table = Table(found.fs, found.new_folder())
    land(table, 5)
    broken = DeltaFolder(
        type(found.fs)(key="k", secret="hidden-secret", endpoint_url="http://127.0.0.1:9"), "b/t"
    )
    with pytest.raises(StorageError, match="cannot be read or written") as raised:
        broken.snapshot()
    assert "hidden-secret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.fixture(scope="module")
def lander() -> Iterator[subprocess.Popen[str]]:
    """What lands in forks of itself."""
    with running_lander("deltalake") as process:
        yield process


@pytest.mark.webcollect_sandbox(enforce_limits=False)
@pytest.mark.at_night
def test_every_row_is_in_the_table_once_after_a_kill_at_each_single_operation(
    lander: subprocess.Popen[str], sandbox: Sandbox, storage_of: Callable[[str], Storage]
) -> None:
    storage = storage_of("disk")
    task = sandbox.control.add_task(rows=300, lots=2)["task_id"]
    for operation in itertools.count(1):
        victim = Victim(lander, sandbox, storage, task, table_format="delta")
        table = Table(storage.fs, victim.folder.root)
        if victim.land(kill_at=operation):
            break
        assert table.rows() in ([], sandbox.control.true_rows(task))
        assert victim.land()
        assert same(table.rows(), as_texts(sandbox.control.true_rows(task)))
    assert operation > 40
