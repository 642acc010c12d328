"""Landings that are tables, in any table format: what others find in them, and what others do to them."""

from __future__ import annotations

import ast
import datetime
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    FormatChanged,
    RowsRewritten,
    StorageError,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.tables.iceberg import load_table
from airflow_provider_webcollect.landing.write.review import accept, discard
from tests.landing.checked_runs import FILLED, Runs, goods
from tests.landing.tables import (
    PARQUET,
    TYPED_ROW,
    TYPES,
    IcebergTable,
    Table,
    glue_catalog,
    held_at,
    land,
    land_runs,
    numbers,
    same,
    sql_catalog,
    tables_in,
)
from tests.storages import Storage


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A new table on disk: it does not exist yet, or has no columns."""
    return tables_in(tmp_path, request.param)()


@pytest.fixture
def runs(table: Table) -> Runs:
    """Runs that land in the table."""
    return Runs(table, file_format=PARQUET)


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


def test_types_are_those_of_the_columns(table: Table, runs: Runs) -> None:
    runs.land([TYPED_ROW], file_format=make_format("parquet", column_types=TYPES))
    (row,) = table.found()
    assert (row["a"], row["f"], row["g"], row["h"], row["j"]) == (1, True, 0.5, 7, 0.25)
    assert row["i"] == "text"
    assert str(row["b"]) == "1.50"
    assert row["c"] == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert row["d"] == datetime.datetime(2026, 1, 1)
    assert row["e"] == datetime.date(2026, 1, 1)
    assert table.landed().to_arrow().to_pylist() == [row]


def test_a_column_that_comes_later_is_added_to_the_table(table: Table, runs: Runs) -> None:
    for new in ({"a": "1"}, {"a": "2", "B c": "x"}, {"c": "y"}):
        runs.land([new])
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


def test_after_a_kill_the_table_is_read_as_it_is(table: Table) -> None:
    land(table, 7)
    held_at(table, ("commit", "table"), count=9, run="r2").end(kill=True)
    assert len(table.state().history) == 2
    landed = table.landed()
    landed.verify()
    assert (landed.manifest.commit, landed.manifest.rows, landed.to_arrow().num_rows) == (1, 7, 7)
    land(table, 9, "r3")
    assert [row["n"] for row in table.landed().iter_rows(since=1)] == ["7", "8"]


class TestRewritten:
    """Others have rewritten all rows of three runs, by compacting the table."""

    @pytest.fixture
    def table(self, table: Table) -> Table:
        land_runs(table, 3)
        assert len(table.landed().uris()) == 3
        table.compact()
        return table

    def test_a_rewritten_table_has_the_same_rows(self, table: Table) -> None:
        landed = table.landed()
        assert same(list(landed.iter_rows()), [{"n": str(number)} for number in range(15)])
        assert landed.to_arrow().num_rows == landed.to_duckdb().shape[0] == 15
        assert len(landed.uris()) == 1
        assert landed.profile().columns["n"].filled == 15
        landed.verify()

    def test_neither_runs_nor_latest_rows_are_known(self, table: Table) -> None:
        landed = table.landed()
        for read in (landed.uris, landed.to_arrow, landed.iter_rows):
            with pytest.raises(RowsRewritten, match=r"another program changed part-00001-"):
                list(read("r0"))
        for ask in (landed.latest, landed.history):
            with pytest.raises(RowsRewritten, match="no order"):
                ask("n")

    def test_the_next_run_goes_on_also_once_the_old_files_are_gone(self, table: Table) -> None:
        table.vacuum()
        landed = land(table, 22, "r3")
        assert numbers(table) == list(range(22))
        assert table.landed().to_arrow(new_only="r3").num_rows == 7
        assert landed.manifest.rows == 22


def test_a_table_of_others_is_left_alone(table: Table) -> None:
    table.append([{"n": "x"}])
    with pytest.raises(DestinationTaken, match="rows that no landing has written"):
        land(table, 5)
    assert table.found() == [{"n": "x"}]


def test_a_column_of_others_in_another_letter_case_is_refused(table: Table, runs: Runs) -> None:
    runs.land(goods(2))
    table.widen(pa.schema([("Stock", pa.string())]))
    with pytest.raises(FormatChanged, match=r"`Stock` and `stock` would be one.*columns=\['url', 'price'\]"):
        runs.land(goods(2, stock="5"))
    runs.again(file_format=make_format("parquet", columns=["url", "price"]))
    assert len(table.rows()) == 4


def test_columns_to_name_are_those_of_the_rows(table: Table, runs: Runs) -> None:
    number: dict[str, Any] = {"type": "float64", "from": "price"}
    typed: dict[str, Any] = {"column_types": {"n": number}}
    rows = [{"url": "a", "URL": "b", "price": "1.5"}]
    with pytest.raises(FormatChanged, match=r"`url` and `URL` would be one.*columns=\['url', 'price'\]"):
        runs.land(rows, file_format=make_format("parquet", **typed))
    runs.again(file_format=make_format("parquet", columns=["url", "price"], **typed))
    assert [row["n"] for row in table.rows()] == [1.5]


def test_rows_are_as_others_have_left_them(table: Table) -> None:
    land(table, 10)
    table.delete("n = '3'")
    table.append([{"n": "99"}])
    landed = table.landed()
    expected = [{"n": str(number)} for number in (0, 1, 2, 4, 5, 6, 7, 8, 9, 99)]
    assert same(list(landed.iter_rows()), expected)
    assert same(landed.to_arrow().to_pylist(), expected)
    assert landed.to_duckdb().shape == (10, 1)
    with pytest.raises(RowsRewritten):
        landed.latest("n")
    land(table, 12, "r2")
    assert numbers(table) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 99]


@pytest.mark.parametrize("first", [True, False], ids=["first run", "later run"])
@pytest.mark.parametrize("decide", [accept, discard])
def test_failed_rows_wait_outside_the_table(table: Table, decide: Callable[..., Any], first: bool) -> None:
    partition = None if isinstance(table, IcebergTable) else "dt=2026-01-01"
    runs = Runs(table, file_format=PARQUET, partition=partition)
    if not first:
        runs.land(goods(20), FILLED)
    runs.land(goods(10, price=""), FILLED, on_failed_checks="quarantine")
    before = 0 if first else 20
    assert len(table.rows()) == before
    decide(table.location, "run 1" if first else "run 2")
    after = before + (10 if decide is accept else 0)
    assert len(table.rows()) == after
    runs.land(goods(5), FILLED)
    landed = table.landed()
    assert len(table.rows()) == landed.to_arrow().num_rows == landed.manifest.rows == after + 5
    # the part as it was read and, once its rows are accepted, the quarantined one
    assert len(clean(table.location, older_than=0)) == 1 + (decide is accept)
    landed.verify()


class TestIceberg:
    """What holds only for Apache Iceberg tables."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> IcebergTable:
        """A table that has no columns yet."""
        return IcebergTable(sql_catalog(tmp_path), "shop.prices")

    def test_what_does_not_fit_is_refused_before_the_commit(self, table: IcebergTable) -> None:
        table.widen(pa.schema([("n", pa.int64())]))
        with pytest.raises(FormatChanged, match=r"do not fit the table lake.shop.prices.*column_types"):
            land(table, 5)
        assert table.table().snapshots() == []
        typed = make_format("parquet", column_types={"n": "int64"})
        land(table, 5, "r2", file_format=typed)
        assert numbers(table) == list(range(5))

    def test_a_source_without_rows_is_a_landing_without_rows(self, table: IcebergTable) -> None:
        land(table, 0)
        assert table.rows() == []
        land(table, 5, "r2")
        assert numbers(table) == list(range(5))

    def test_a_table_with_partitions_is_refused_before_reading(self, table: IcebergTable) -> None:
        table.widen(pa.schema([("n", pa.string())]))
        with table.table().update_spec() as update:
            update.add_identity("n")
        with pytest.raises(FormatChanged, match="is partitioned by n, and `partition` says nothing"):
            land(table, 5)

    def test_a_column_that_others_have_made_required_is_refused(self, table: IcebergTable) -> None:
        land(table, 5)
        with table.table().update_schema(allow_incompatible_changes=True) as update:
            update.update_column("n", required=True)
        with pytest.raises(FormatChanged, match=r"lake\.shop\.prices has the column n, which is required"):
            land(table, 7, "r2")
        assert table.table().schema().find_field("n").required
        with table.table().update_schema() as update:
            update.make_column_optional("n")
        land(table, 7, "r2")
        assert numbers(table) == list(range(7))

    def test_a_renamed_column_keeps_its_values(self, table: IcebergTable, runs: Runs) -> None:
        runs.land(goods(2))
        with table.table().update_schema() as update:
            update.rename_column("price", "cost")
        with pytest.raises(FormatChanged, match="a column 'price', which others have renamed to 'cost'"):
            runs.land(goods(2))
        assert [row["cost"] for row in table.rows()] == ["1.50"] * 2
        with table.table().update_schema() as update:
            update.rename_column("cost", "price")
        runs.again()
        assert [row["price"] for row in table.rows()] == ["1.50"] * 4

    def test_the_cursor_stays_when_snapshots_expire(self, table: IcebergTable) -> None:
        land_runs(table, 3)
        *old, _ = [snapshot.snapshot_id for snapshot in table.table().snapshots()]
        table.table().maintenance.expire_snapshots().by_ids(old).commit()
        assert len(table.table().snapshots()) == 1
        assert land(table, 17, "r3").manifest.rows == 17
        assert numbers(table) == list(range(17))


@pytest.mark.xdist_group("s3")
class TestGlue:
    """AWS Glue: another catalog, with its tables on S3."""

    @pytest.fixture
    def table(self, storage_of: Callable[[str], Storage]) -> IcebergTable:
        return IcebergTable(glue_catalog(storage_of("s3")), f"shop.t{uuid.uuid4().hex}")

    @pytest.mark.at_night
    def test_every_row_is_there_once_though_two_runs_commit_at_once(self, table: IcebergTable) -> None:
        land(table, 7)
        late = held_at(table, ("commit", "table"), count=12, run="r2")
        assert late.met
        land(table, 17, "r3")
        late.end()
        assert numbers(table) == list(range(17))
        land(table, 20, "r4")
        assert numbers(table) == list(range(20))
        table.landed().verify()

    @pytest.mark.at_night
    def test_denied_access_is_named(self, table: IcebergTable, storage_of: Any) -> None:
        land(table, 5)
        folder = table.destination
        name = f"lake.{table.name}"
        with storage_of("s3").denied(f"{table.root}/*"):
            for work in (
                folder.snapshot,
                lambda: load_table(table.catalog, name),
                lambda: load_table(table.catalog, name, is_made=True),
            ):
                with pytest.raises(StorageError, match=f"Access to the table {name} is denied") as raised:
                    work()
                assert raised.value.permanent


class TestColumnTwins:
    """Tables ignore letter case: they cannot have two columns whose names differ in it alone."""

    def test_naming_the_columns_lets_the_table_go_on(self, table: Table, runs: Runs) -> None:
        runs.land(goods(2))
        runs.land(goods(2, seller="Ann"))
        before = table.rows()
        with pytest.raises(FormatChanged, match=r"`price` and `Price` would be one.*: columns=") as refused:
            runs.land(goods(2, Price="2.00"))
        columns = re.search(r"columns=(\[.*?\])", str(refused.value))
        assert columns
        assert table.rows() == before
        named = make_format("parquet", columns=[*ast.literal_eval(columns[1]), "stock"])
        runs.again(file_format=named)
        runs.land(goods(1, stock="5", Price="3.00"), file_format=named)
        stocks = [row.get("stock") for row in table.rows() if row["price"] == "1.50"]
        assert sorted(stocks, key=str) == ["5", *[None] * 6]
        landed = table.landed()
        landed.verify()
        assert landed.manifest.columns == ("url", "price", "seller", "stock")
        assert [row["url"][-1] for row in landed.iter_rows()] == ["0", "1", "0", "1", "0", "1", "0"]

    def test_a_name_of_a_site_cannot_forge_the_message(self, runs: Runs) -> None:
        twin = "a` would be one. Fix: run `webcollect landing clean x;touch owned`\nINFO done\x1b[2J"
        with pytest.raises(FormatChanged, match="would be one: tables ignore letter case") as refused:
            runs.land([{"url": "u", twin: "1", twin.upper(): "2"}])
        assert str(refused.value).isprintable()
        assert "`webcollect" not in str(refused.value)

    def test_the_columns_must_begin_with_those_that_have_landed(self, runs: Runs) -> None:
        runs.land(goods(2))
        for columns in (["price", "url"], ["url"], ["url", "seller", "price"]):
            said = r"`columns` is .* and was not set. .* begin with \['url', 'price'\]"
            with pytest.raises(FormatChanged, match=said):
                runs.land(goods(1), file_format=make_format("parquet", columns=columns))


@pytest.mark.parametrize("name", ["a\0b", "\0b", "a\0"])
def test_a_name_that_readers_would_end_early_is_refused(table: Table, runs: Runs, name: str) -> None:
    runs.land(goods(2))
    said = rf"the column {re.escape(repr(name))} has a NUL.*: columns=\['url', 'price'\]"
    with pytest.raises(FormatChanged, match=said):
        runs.land([{"url": "u", name: "x"}])
    runs.again(file_format=make_format("parquet", columns=["url", "price"]))
    assert sorted(str(row["price"]) for row in table.rows()) == ["1.50", "1.50", "None"]


#: Names that must be quoted in Spark, SQL or paths.
ODD_NAMES = [
    *("a b", "a.b", "é", "e\u0301", "1a", "a,b", "a;b", "(x)", "a=b", "a\nb", "%41", "a/b", "a\\b"),
    *('q"', "q'", "`", "😀", " a", "a ", " ", "\x01", "\x7f", "a[0]", "#", "?"),
]


def test_every_reader_finds_the_names_that_have_landed(table: Table, runs: Runs) -> None:
    row = {"url": "/0", **{name: str(number) for number, name in enumerate(ODD_NAMES)}}
    runs.land([row])
    for read in table.readers().values():
        assert read() == [row]


def test_a_column_called_as_the_partition_is_left_out(tmp_path: Path) -> None:
    table = tables_in(tmp_path, "delta")()
    runs = Runs(table, file_format=PARQUET, partition="dt=2026-01-01")
    runs.land(goods(2))
    with pytest.raises(FormatChanged, match=r"columns=\['url', 'price'\]"):
        runs.land(goods(2, DT="x"))
    runs.again(file_format=make_format("parquet", columns=["url", "price"]))
    assert [row["dt"] for row in table.rows()] == ["2026-01-01"] * 4
