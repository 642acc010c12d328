"""Landings that are tables of Apache Iceberg: what others find in them, and what others do to them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    FormatChanged,
    NothingLanded,
    StorageError,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.tables.iceberg import load_table
from tests.landing.checked_runs import Runs
from tests.landing.tables import (
    PARQUET,
    IcebergTable,
    glue_catalog,
    held_at,
    land,
    land_runs,
    numbers,
    same,
    sql_catalog,
)
from tests.storages import Storage


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table that has no columns yet."""
    return IcebergTable(sql_catalog(tmp_path), "shop.prices")


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
        Runs(table, file_format=PARQUET).land([{"Price": "1", "price": "2"}])
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


def test_the_cursor_stays_when_snapshots_expire(table: IcebergTable) -> None:
    land_runs(table, 3)
    current = table.table().current_snapshot().snapshot_id
    old = [each.snapshot_id for each in table.table().snapshots() if each.snapshot_id != current]
    table.table().maintenance.expire_snapshots().by_ids(old).commit()
    assert len(table.table().snapshots()) == 1
    assert land(table, 17, "r3").manifest.rows == 17
    assert numbers(table) == list(range(17))


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


@pytest.mark.xdist_group("s3")
class TestGlue:
    """Another catalog, whose tables are on S3."""

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
    def test_who_may_not_read_it_is_told_so(self, table: IcebergTable, storage_of: Any) -> None:
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
