"""Landings that are tables of whichever format: what others find in them, and what others do to them."""

from __future__ import annotations

import datetime
import functools
import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import RowsRewritten
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.review import accept, discard
from airflow_provider_webcollect.landing.run import run_job
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.checked_runs import Runs, goods
from tests.landing.interleaving import Held, outcome_of
from tests.landing.pages import nothing
from tests.landing.tables import (
    PARQUET,
    IcebergTable,
    Table,
    as_texts,
    in_table,
    land,
    landing,
    numbers,
    same,
    sql_catalog,
    tables_in,
)
from tests.landing.victim import Victim, running_lander

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.landing.conftest import Landing
    from tests.landing.storages import Storage

TYPES = {
    **{"a": "int64", "b": "decimal(10,2)", "c": "timestamptz", "d": "timestamp", "e": "date32"},
    **{"f": "bool", "g": "float32", "h": "int32"},
}
TYPED_ROW = {
    **{"a": 1, "b": "1.50", "c": "2026-01-01T00:00:00Z", "d": "2026-01-01T00:00:00", "e": "2026-01-01"},
    **{"f": True, "g": 0.5, "h": 7, "i": "text"},
}


@pytest.fixture(params=["delta", "iceberg"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Table]:
    """Make a table on a disk without columns, or that is not there yet."""
    return tables_in(tmp_path, request.param)


@pytest.fixture
def table(tables: Callable[[], Table]) -> Table:
    """Such a table."""
    return tables()


@pytest.fixture
def folder(table: Table) -> Table:
    """What lands a task lands it in the table."""
    return table


def test_types_are_those_of_the_columns(table: Table) -> None:
    in_table(table)([TYPED_ROW], file_format=make_format("parquet", column_types=TYPES))
    (found,) = table.found()
    assert (found["a"], found["f"], found["g"], found["h"], found["i"]) == (1, True, 0.5, 7, "text")
    assert str(found["b"]) == "1.50"
    assert found["c"] == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert found["d"] == datetime.datetime(2026, 1, 1)
    assert found["e"] == datetime.date(2026, 1, 1)
    assert table.landed().to_arrow().to_pylist() == [found]


def test_a_column_that_comes_later_is_added_to_the_table(table: Table) -> None:
    runs = in_table(table)
    for new in ({"a": "1"}, {"a": "2", "B c": "x"}, {"c": "y"}):
        runs([new])
    expected = [
        {"a": "1", "B c": None, "c": None},
        {"a": "2", "B c": "x", "c": None},
        {"a": None, "B c": None, "c": "y"},
    ]
    assert table.landed().to_arrow().to_pylist() == expected
    assert same(table.found(), expected)


def test_a_landing_that_replaces_another_keeps_the_versions_before(table: Table) -> None:
    land(table, 12, mode="full")
    before = table.version()
    land(table, 7, "r2", mode="full", if_exists="overwrite")
    assert numbers(table) == list(range(7))
    assert numbers(table, before) == list(range(12))
    assert clean(table.location, older_than=0) == ()


def test_leftovers_go_and_what_a_version_has_stays(table: Table) -> None:
    land(table, 10)
    before = table.version()
    land(table, 5, "r2", on_reset="full")
    table.write("part-00009-0badcafe.parquet", b"left")
    assert [left.name for left in clean(table.location, older_than=0)] == ["part-00009-0badcafe.parquet"]
    assert numbers(table) == list(range(5))
    assert numbers(table, before) == list(range(10))


class TestRewritten:
    """Others have written all rows of three runs again, as by the table's own compaction."""

    @pytest.fixture
    def table(self, table: Table) -> Table:
        for run in range(3):
            land(table, 5 * (run + 1), f"r{run}")
        assert len(table.landed().uris()) == 3
        table.compact()
        return table

    def test_it_has_the_same_rows(self, table: Table) -> None:
        landed = table.landed()
        assert same(list(landed.iter_rows()), [{"n": str(number)} for number in range(15)])
        assert landed.to_arrow().num_rows == landed.to_duckdb().shape[0] == 15
        assert len(landed.uris()) == 1
        assert landed.profile().columns["n"].filled == 15
        landed.verify()

    @pytest.mark.parametrize("read", ["uris", "to_arrow", "iter_rows"])
    def test_the_rows_of_one_run_are_not_known(self, table: Table, read: str) -> None:
        with pytest.raises(RowsRewritten, match=r"others have rewritten part-00001-"):
            list(getattr(table.landed(), read)(new_only="r0"))

    @pytest.mark.parametrize("read", ["latest", "history"])
    def test_nor_are_the_latest_rows(self, table: Table, read: str) -> None:
        with pytest.raises(RowsRewritten, match="not in their order"):
            getattr(table.landed(), read)("n")

    def test_the_next_run_goes_on_also_once_the_old_files_are_gone(self, table: Table) -> None:
        table.vacuum()
        landed = land(table, 22, "r3")
        assert numbers(table) == list(range(22))
        assert table.landed().to_arrow(new_only="r3").num_rows == 7
        assert landed.manifest.rows == 22


@pytest.mark.parametrize("first", [True, False], ids=["first run", "later run"])
@pytest.mark.parametrize("decide", [accept, discard])
def test_quarantined_rows_are_no_rows_of_the_table_until_accepted(
    land_job: Landing, table: Table, decide: Callable[..., Any], first: bool
) -> None:
    options: dict[str, Any] = {"checks": {"columns": {"price": {"filled": 0.95}}}, "file_format": PARQUET}
    if not isinstance(table, IcebergTable):
        options["partition"] = "dt=2026-01-01"
    checked = functools.partial(Runs(land_job, table).land, **options)
    if not first:
        checked(goods(20))
    checked(goods(10, price=""), on_failed_checks="quarantine")
    before = 0 if first else 20
    assert len(table.rows()) == before
    decide(table.location, "run 1" if first else "run 2")
    after = before + (10 if decide is accept else 0)
    assert len(table.rows()) == after
    checked(goods(5))
    assert len(table.rows()) == after + 5
    assert not [name for name in table.destination.files() if name.startswith("_quarantine/")]
    assert clean(table.location, older_than=0) == ()
    table.landed().verify()


@pytest.mark.by_day(2)
@pytest.mark.parametrize(("run", "count"), [("r1", 12), ("r2", 17)], ids=["of one run", "of two runs"])
@pytest.mark.parametrize("mark", [None, nothing], ids=["lands", "marks"])
def test_of_two_landings_at_once_each_row_counts_once(
    tables: Callable[[], Table], run: str, count: int, mark: Callable[[], None] | None
) -> None:
    """One is held at each of its operations while the other lands, and goes on then."""
    stride = 1 if ALL_HISTORIES else 12
    everywhere = itertools.count(random.Random(f"{SEED} {run} {mark is None}").randint(1, stride), stride)
    for operation in itertools.chain([("commit", "table")], everywhere):
        table = tables()
        land(table, 5, "r0", mark=mark)
        late = Held(
            lambda place: run_job(landing(place, count=12, run="r1", mark=mark)), table.destination, operation
        )
        if not late.met:
            break
        outcome = outcome_of(
            lambda place: run_job(landing(place, count=count, run=run, mark=mark)), table.destination
        )
        assert isinstance(outcome, Landed)
        late.end()
        assert numbers(table) == list(range(count)), operation
        assert table.manifest()["rows"] == count
    assert isinstance(operation, int)
    assert operation > 12


@pytest.fixture(scope="module")
def lander() -> Iterator[subprocess.Popen[str]]:
    """What lands in forks of itself."""
    with running_lander("deltalake, pyiceberg.catalog.sql, pyiceberg.io.fsspec") as process:
        yield process


@pytest.mark.webcollect_sandbox(enforce_limits=False)
@pytest.mark.at_night
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_every_row_is_in_the_table_once_after_a_kill_at_each_single_operation(
    lander: subprocess.Popen[str],
    sandbox: Sandbox,
    storage_of: Callable[[str], Storage],
    tmp_path: Path,
    kind: str,
) -> None:
    storage, catalog = storage_of("disk"), sql_catalog(tmp_path)
    task = sandbox.control.add_task(rows=300, lots=2)["task_id"]
    rows = as_texts(sandbox.control.true_rows(task))
    for operation in itertools.count(1):
        victim = Victim(lander, sandbox, storage, task, table_format=kind)
        table = Table(storage.fs, victim.folder.root)
        if kind == "iceberg":
            table = IcebergTable(catalog, f"shop.t{operation}")
            victim.order["table"] = [str(tmp_path), table.name]
        if victim.land(kill_at=operation):
            break
        assert same(table.rows(), rows) or table.rows() == []
        assert victim.land()
        assert same(table.rows(), rows)
    assert operation > 40
