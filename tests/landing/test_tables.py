"""Landings that are tables of whichever format: what others find in them, and what others do to them."""

from __future__ import annotations

import datetime
import functools
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import RowsRewritten
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.review import accept, discard
from airflow_provider_webcollect.landing.run import run_job
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.checked_runs import Runs, goods
from tests.landing.interleaving import outcome_of
from tests.landing.pages import nothing
from tests.landing.tables import (
    PARQUET,
    IcebergTable,
    Table,
    held_at,
    land,
    land_runs,
    landing,
    numbers,
    same,
    tables_in,
)

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


def test_each_reader_finds_every_row_once(table: Table) -> None:
    for run, count in enumerate([12, 12, 30]):
        land(table, count, f"r{run}")
    expected = [{"n": str(number)} for number in range(30)]
    landed = table.landed()
    landed.verify()
    assert list(landed.iter_rows()) == expected
    assert landed.to_duckdb().shape == (30, 1)
    for name, read in table.readers().items():
        assert same(read(), expected), name


def test_types_are_those_of_the_columns(table: Table) -> None:
    Runs(table, file_format=PARQUET).land([TYPED_ROW], file_format=make_format("parquet", column_types=TYPES))
    (found,) = table.found()
    assert (found["a"], found["f"], found["g"], found["h"], found["i"]) == (1, True, 0.5, 7, "text")
    assert str(found["b"]) == "1.50"
    assert found["c"] == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert found["d"] == datetime.datetime(2026, 1, 1)
    assert found["e"] == datetime.date(2026, 1, 1)
    assert table.landed().to_arrow().to_pylist() == [found]


def test_a_column_that_comes_later_is_added_to_the_table(table: Table) -> None:
    runs = Runs(table, file_format=PARQUET).land
    for new in ({"a": "1"}, {"a": "2", "B c": "x"}, {"c": "y"}):
        runs([new])
    expected = [
        {"a": "1", "B c": None, "c": None},
        {"a": "2", "B c": "x", "c": None},
        {"a": None, "B c": None, "c": "y"},
    ]
    assert table.landed().to_arrow().to_pylist() == expected
    assert same(table.found(), expected)


def test_leftovers_go_and_what_a_version_has_stays(table: Table) -> None:
    land(table, 12, mode="full")
    before = table.version()
    land(table, 7, "r2", mode="full", if_exists="overwrite")
    table.write("part-00009-0badcafe.parquet", b"left")
    assert [left.name for left in clean(table.location, older_than=0)] == ["part-00009-0badcafe.parquet"]
    assert numbers(table) == list(range(7))
    assert numbers(table, before) == list(range(12))


def test_after_a_kill_before_the_table_has_the_last_commit_what_is_read_is_what_it_has(table: Table) -> None:
    land(table, 7)
    held_at(table, ("commit", "table"), count=9, run="r2").end(kill=True)
    assert len(table.log().read().history) == 2
    landed = table.landed()
    landed.verify()
    assert (landed.manifest.commit, landed.manifest.rows, landed.to_arrow().num_rows) == (1, 7, 7)
    land(table, 9, "r3")
    assert [row["n"] for row in table.landed().iter_rows(since=1)] == ["7", "8"]


class TestRewritten:
    """Others have written all rows of three runs again, as by the table's own compaction."""

    @pytest.fixture
    def table(self, table: Table) -> Table:
        land_runs(table, 3)
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
def test_quarantined_rows_are_not_in_the_table_until_accepted(table: Table, decide: Any, first: bool) -> None:
    options: dict[str, Any] = {"checks": {"columns": {"price": {"filled": 0.95}}}, "file_format": PARQUET}
    if not isinstance(table, IcebergTable):
        options["partition"] = "dt=2026-01-01"
    checked = functools.partial(Runs(table).land, **options)
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
        late = held_at(table, operation, count=12, run="r1", mark=mark)
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
