"""Landings that are tables of Apache Iceberg: what others find in them, and what others do to them."""

from __future__ import annotations

import functools
import itertools
import random
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    FormatChanged,
    NothingLanded,
    RowsRewritten,
    StorageError,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import Run
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.review import accept, discard
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.tables.iceberg import load_table, made_table
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.checked_runs import Runs, goods
from tests.landing.interleaving import Held, outcome_of
from tests.landing.pages import Rows, job, make_job, serving
from tests.landing.storages import Storage
from tests.landing.tables import IcebergTable, as_texts, glue_catalog, same, sql_catalog
from tests.landing.victim import Victim, running_lander

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

PARQUET = make_format("parquet")


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table that has no columns yet."""
    return IcebergTable(sql_catalog(tmp_path), "shop.prices")


def land(table: IcebergTable, count: int, run: str = "r1", **options: Any) -> Landed:
    """Land numbered rows, five to a part."""
    return run_job(landing(table.destination, count=count, run=run, **options))


def landing(destination: Any, *, count: int, run: str, **options: Any) -> Any:
    """Return what lands numbered rows."""
    return job(Rows(count), destination, run, **{"mode": "incremental", "file_format": PARQUET, **options})


def in_table(table: IcebergTable, rows: list[dict[str, Any]], run: str, **options: Any) -> Landed:
    """Land the rows of a source."""
    return run_job(
        make_job(
            serving(rows),
            folder=table.destination,
            run=Run(dag_id="d", task_id="t", run_id=run),
            **{"mode": "incremental", "file_format": PARQUET, **options},
        )
    )


def numbers(table: IcebergTable) -> list[int]:
    """Return the numbers of the rows that pyiceberg finds."""
    return sorted(int(row["n"]) for row in table.found())


def test_each_reader_finds_every_row_once(table: IcebergTable) -> None:
    for run, count in enumerate([12, 12, 30]):
        land(table, count, f"r{run}")
    expected = [{"n": str(number)} for number in range(30)]
    assert table.rows() == expected
    for name, read in table.readers().items():
        assert same(read(), expected), name
    table.landed().verify()
    assert table.landed().to_duckdb().shape == (30, 1)


def test_a_column_that_comes_later_is_added_to_the_table(table: IcebergTable) -> None:
    rows: list[dict[str, Any]] = []
    for run, new in enumerate([{"a": "1"}, {"a": "2", "B c": "x"}, {"c": "y"}]):
        rows.append(new)
        in_table(table, rows, f"r{run}")
    expected = [
        {"a": "1", "B c": None, "c": None},
        {"a": "2", "B c": "x", "c": None},
        {"a": None, "B c": None, "c": "y"},
    ]
    assert table.landed().to_arrow().to_pylist() == expected
    assert same(table.found(), expected)


def test_types_are_those_of_the_columns(table: IcebergTable) -> None:
    types = {"a": "int64", "b": "decimal(10,2)", "c": "timestamptz", "d": "timestamp", "e": "date32"}
    types |= {"f": "bool", "g": "float32", "h": "int32"}
    row = {"a": 1, "b": "1.50", "c": "2026-01-01T00:00:00Z", "d": "2026-01-01T00:00:00", "e": "2026-01-01"}
    row |= {"f": True, "g": 0.5, "h": 7, "i": "text"}
    in_table(table, [row], "r1", file_format=make_format("parquet", column_types=types))
    (found,) = table.found()
    assert (found["a"], str(found["b"]), found["f"], found["g"], found["h"]) == (1, "1.50", True, 0.5, 7)
    assert table.landed().to_arrow().to_pylist() == [found]


def test_what_does_not_fit_the_table_is_refused_before_the_commit(table: IcebergTable) -> None:
    with table.table().update_schema() as update:
        update.union_by_name(pa.schema([("n", pa.int64())]))
    with pytest.raises(FormatChanged, match=r"do not fit the table lake.shop.prices.*column_types"):
        land(table, 5)
    assert table.table().snapshots() == []
    typed = make_format("parquet", column_types={"n": "int64"})
    land(table, 5, "r2", file_format=typed)
    assert numbers(table) == list(range(5))


def test_names_that_differ_in_letter_case_alone_are_refused(table: IcebergTable) -> None:
    with pytest.raises(FormatChanged, match="would be one for the table"):
        in_table(table, [{"Price": "1", "price": "2"}], "r1")
    with pytest.raises(NothingLanded):
        read_landing(table.location)


def test_a_source_without_rows_is_a_landing_without_rows(table: IcebergTable) -> None:
    land(table, 0)
    assert table.rows() == []
    land(table, 5, "r2")
    assert numbers(table) == list(range(5))


def test_a_table_of_others_is_left_alone(table: IcebergTable) -> None:
    rows = pa.table({"n": ["x"]})
    with table.table().update_schema() as update:
        update.union_by_name(rows.schema)
    table.table().append(rows)
    with pytest.raises(DestinationTaken, match="rows that no landing has written"):
        land(table, 5)
    assert table.found() == [{"n": "x"}]


def test_a_table_with_partitions_is_refused_before_anything_is_read(table: IcebergTable) -> None:
    with table.table().update_schema() as update:
        update.union_by_name(pa.schema([("n", pa.string())]))
    with table.table().update_spec() as update:
        update.add_identity("n")
    with pytest.raises(FormatChanged, match="is partitioned by n, and `partition` says nothing"):
        land(table, 5)


def test_a_landing_that_replaces_another_keeps_the_snapshots_before(table: IcebergTable) -> None:
    land(table, 12, mode="full")
    before = table.table().current_snapshot().snapshot_id
    land(table, 7, "r2", mode="full", if_exists="overwrite")
    assert numbers(table) == list(range(7))
    old = table.table().scan(snapshot_id=before).to_arrow()
    assert sorted(map(int, old["n"].to_pylist())) == list(range(12))
    assert clean(table.location, older_than=0) == ()


def test_the_cursor_stays_when_snapshots_expire(table: IcebergTable) -> None:
    for run in range(3):
        land(table, 5 * (run + 1), f"r{run}")
    current = table.table().current_snapshot().snapshot_id
    old = [each.snapshot_id for each in table.table().snapshots() if each.snapshot_id != current]
    table.table().maintenance.expire_snapshots().by_ids(old).commit()
    assert len(table.table().snapshots()) == 1
    assert land(table, 17, "r3").manifest.rows == 17
    assert numbers(table) == list(range(17))


def test_rows_that_others_have_written_again_are_read_from_the_table(table: IcebergTable) -> None:
    for run in range(3):
        land(table, 5 * (run + 1), f"r{run}")
    table.compact()
    landed = table.landed()
    assert same(list(landed.iter_rows()), [{"n": str(number)} for number in range(15)])
    assert landed.to_arrow().num_rows == landed.to_duckdb().shape[0] == 15
    landed.verify()
    with pytest.raises(RowsRewritten, match=r"others have rewritten part-00001-"):
        landed.to_arrow(new_only="r0")
    land(table, 22, "r3")
    assert numbers(table) == list(range(22))
    assert table.landed().to_arrow(new_only="r3").num_rows == 7


def test_rows_that_others_have_deleted_or_added_are_as_the_table_has_them(table: IcebergTable) -> None:
    land(table, 10)
    table.table().delete("n == '3'")
    table.table().append(pa.table({"n": ["99"]}))
    landed = table.landed()
    expected = [{"n": str(number)} for number in (0, 1, 2, 4, 5, 6, 7, 8, 9, 99)]
    assert same(list(landed.iter_rows()), expected)
    assert same(landed.to_arrow().to_pylist(), expected)
    land(table, 12, "r2")
    assert numbers(table) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 99]


def test_leftovers_go(table: IcebergTable) -> None:
    land(table, 10)
    land(table, 5, "r2", on_reset="full")
    table.write("part-00009-0badcafe.parquet", b"left")
    assert [left.name for left in clean(table.location, older_than=0)] == ["part-00009-0badcafe.parquet"]
    assert numbers(table) == list(range(5))


@pytest.mark.by_day(1)
@pytest.mark.parametrize("mark", [None, lambda: None], ids=["lands", "marks"])
def test_of_two_attempts_of_a_run_that_commit_at_once_one_counts(
    tmp_path: Path, mark: Callable[[], None] | None
) -> None:
    """The library would repeat the commit of the second one by itself."""
    catalog = sql_catalog(tmp_path)
    stride = 1 if ALL_HISTORIES else 12
    everywhere = itertools.count(random.Random(f"{SEED} {mark is None}").randint(1, stride), stride)
    for operation in itertools.chain([("commit", "table")], everywhere):
        table = IcebergTable(catalog, f"shop.t{uuid.uuid4().hex}")
        land(table, 5, "r0", mark=mark)
        late = Held(
            lambda place: run_job(landing(place, count=12, run="r1", attempt=1, mark=mark)),
            table.destination,
            operation,
        )
        if not late.met:
            break
        outcome = outcome_of(
            lambda place: run_job(landing(place, count=12, run="r1", attempt=2, mark=mark)),
            table.destination,
        )
        assert isinstance(outcome, Landed)
        late.end()
        assert numbers(table) == list(range(12)), operation
        assert table.landed().manifest.rows == 12
    assert operation > 15


@pytest.mark.xdist_group("s3")
class TestGlue:
    """Another catalog, whose tables are on S3."""

    @pytest.fixture
    def table(self, storage_of: Callable[[str], Storage]) -> IcebergTable:
        return IcebergTable(glue_catalog(storage_of("s3")), f"shop.t{uuid.uuid4().hex}")

    @pytest.mark.at_night
    def test_every_row_is_there_once_though_two_runs_commit_at_once(self, table: IcebergTable) -> None:
        land(table, 7)
        late = Held(
            lambda place: run_job(landing(place, count=12, run="r2")), table.destination, ("commit", "table")
        )
        assert late.met
        land(table, 17, "r3")
        late.end()
        assert numbers(table) == list(range(17))
        land(table, 20, "r4")
        assert table.rows() == [{"n": str(number)} for number in range(20)]
        table.landed().verify()

    @pytest.mark.at_night
    def test_who_may_not_read_it_is_told_so(
        self, table: IcebergTable, storage_of: Callable[[str], Storage]
    ) -> None:
        land(table, 5)
        folder = table.destination
        name = f"lake.{table.name}"
        with storage_of("s3").denied(f"{table.root}/*"):
            for work in (
                folder.snapshot,
                lambda: load_table(table.catalog, name),
                lambda: made_table(table.catalog, name),
            ):
                with pytest.raises(StorageError, match=f"Access to the table {name} is denied") as raised:
                    work()
                assert raised.value.permanent


@pytest.mark.parametrize("decide", [accept, discard])
def test_quarantined_rows_are_no_rows_of_the_table_until_accepted(
    land_job: Callable[..., Landed], table: IcebergTable, decide: Callable[..., Any]
) -> None:
    checked = functools.partial(
        Runs(land_job, table).land, checks={"columns": {"price": {"filled": 0.95}}}, file_format=PARQUET
    )
    checked(goods(20))
    checked(goods(10, price=""), on_failed_checks="quarantine")
    assert len(table.found()) == 20
    decide(table.location, "run 2")
    assert len(table.found()) == (30 if decide is accept else 20)
    checked(goods(5))
    assert len(table.found()) == (35 if decide is accept else 25)
    table.landed().verify()


@pytest.fixture
def folder(table: IcebergTable) -> IcebergTable:
    """What lands a task lands it in the table."""
    return table


@pytest.fixture(scope="module")
def lander() -> Iterator[subprocess.Popen[str]]:
    """What lands in forks of itself."""
    with running_lander("pyiceberg.catalog.sql, pyiceberg.io.fsspec") as process:
        yield process


@pytest.mark.webcollect_sandbox(enforce_limits=False)
@pytest.mark.at_night
def test_every_row_is_in_the_table_once_after_a_kill_at_each_single_operation(
    lander: subprocess.Popen[str],
    sandbox: Sandbox,
    storage_of: Callable[[str], Storage],
    tmp_path: Path,
) -> None:
    catalog = sql_catalog(tmp_path)
    task = sandbox.control.add_task(rows=300, lots=2)["task_id"]
    rows = as_texts(sandbox.control.true_rows(task))
    for operation in itertools.count(1):
        table = IcebergTable(catalog, f"shop.t{operation}")
        victim = Victim(lander, sandbox, storage_of("disk"), task, table_format="iceberg")
        victim.order["table"] = [str(tmp_path), table.name]
        if victim.land(kill_at=operation):
            break
        assert len(table.rows()) in (0, 600)
        assert victim.land()
        assert same(table.rows(), rows)
    assert operation > 40
