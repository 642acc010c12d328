"""Databases that landings are loaded into, and landings to load."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import psycopg2
import pytest

from airflow_provider_webcollect.landing.errors import LoadRefused
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.options import LoadOptions
from airflow_provider_webcollect.landing.read import loading
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from airflow_provider_webcollect.transfers.warehouses import Warehouse
from tests.landing.checked_runs import Runs
from tests.landing.conftest import Folder
from tests.landing.pages import PAGE, serving
from tests.landing.tables import Table
from tests.storages import local

_numbers = itertools.count(1)
OWN = (loading.LANDING, loading.PART, loading.ROW)


@dataclass
class Database:
    """A real database.

    :param kind: ``duckdb`` or ``postgres``.
    :param address: a path, or a URL.
    :param table: name of the table, with its dataset; by default the dataset is one that no other test uses.
    """

    kind: str
    address: str
    table: str = field(default_factory=lambda: f"shop_{next(_numbers)}.prices")

    def destination(self, **options: Any) -> Any:
        return Warehouse(kind=self.kind, credentials=self.address).destination(**options)

    def create(self, columns: str) -> None:
        """Drop the table and create it, as its users may have done."""
        self.query(f"create schema if not exists {self.table.partition('.')[0]}")
        self.query(f"drop table if exists {self.table}")
        self.query(f"create table {self.table} ({columns})")

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows."""
        connect = duckdb.connect if self.kind == "duckdb" else psycopg2.connect
        connection = connect(self.address)
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            connection.commit()
        finally:
            connection.close()
        return rows

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows in the order of the landing, with ``columns`` or, by default, all but ours."""
        names = ", ".join(columns or self.columns())
        return self.query(f"select {names} from {self.table} order by {loading.ROW}")

    def columns(self) -> list[str]:
        """Return the names of the table's columns, without ours."""
        dataset, _, table = self.table.partition(".")
        rows = self.query(
            f"select column_name from information_schema.columns where table_schema = '{dataset}'"
            f" and table_name = '{table}' order by ordinal_position"
        )
        return [name for (name,) in rows if name not in OWN]


def load(landed: LandedData, database: Database, **options: Any) -> loading.NewParts:
    """Load what has landed, and return the parts that were new."""
    return loading.load(landed, LoadOptions.parse(options), database.table, database.destination)


class Landing:
    """A landing of chosen rows, each page a part of its own.

    :param table_format: ``delta`` for a table; None for a folder.
    :ivar source: the rows of the source.
    """

    def __init__(self, parent: Path, table_format: str | None = None) -> None:
        self.folder = (Table if table_format else Folder).new(local(parent))
        file_format = make_format("parquet" if table_format else "jsonl")
        self._runs = Runs(self.folder, file_format=file_format, max_part_bytes=1)
        self.source = self._runs.rows

    def land(self, *rows: dict[str, Any], **options: Any) -> None:
        """Add rows to the source, and land what is new."""
        self.source += rows
        self._runs.next(fetch=serving(self.source, PAGE), **options)

    def refill(self, *rows: dict[str, Any]) -> None:
        """Replace the rows of the source, and land the new ones in place of all landed rows."""
        self.source.clear()
        self.land(*rows, on_reset="full")

    def read(self) -> LandedData:
        return read_landing(self.folder.root)

    def load(
        self, database: Database, write_disposition: str = "append", key: Any = None, **more: Any
    ) -> int:
        """Load the landing, and return the number of loaded parts."""
        options = {"write_disposition": write_disposition, "primary_key": key, **more}
        return len(load(self.read(), database, **options).parts)

    def refused(self, said: str, database: Database, *options: Any, **more: Any) -> str:
        """Check that a load is refused permanently, and return the message."""
        with pytest.raises(LoadRefused, match=said) as refused:
            self.load(database, *options, **more)
        assert refused.value.permanent
        return str(refused.value)

    def order(self, database: Database, *, at: int, kill: bool, **options: Any) -> dict[str, Any]:
        """Return the order for a load in its own process: see :mod:`tests.landing.loading.loader`."""
        place = [database.kind, database.address, database.table]
        return {"database": place, "root": self.folder.root, "at": at, "kill": kill, "options": options}


def product(number: int, key: int | None = None, **more: Any) -> dict[str, Any]:
    """Return the row with that number; ``key`` names its product, by default the number does."""
    return {"url": f"/{number if key is None else key}", "n": str(number), **more}


def products(first: int, count: int, keys: int = 1000) -> list[dict[str, Any]]:
    """Return numbered rows, of ``keys`` products at most."""
    return [product(number, number % keys) for number in range(first, first + count)]


def as_rows(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return rows as the database returns them."""
    return [(row["url"], row["n"]) for row in rows]


def latest(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the last row of each product."""
    return sorted({row["url"]: (row["url"], row["n"]) for row in rows}.values())
