"""Tables of Delta Lake that landings write, and what their own readers find in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import polars
from deltalake import DeltaTable, QueryBuilder

from airflow_provider_webcollect.landing.errors import NothingLanded
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from airflow_provider_webcollect.landing.tables.delta import DeltaFolder
from airflow_provider_webcollect.landing.tables.locations import location_of
from tests.landing.conftest import Folder
from tests.landing.interleaving import Losing, Stepping

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.storage import Storage

T = TypeVar("T")
Rows = list[dict[str, Any]]


class SteppingDelta(DeltaFolder):
    """A table whose every call of the library is a step, as the operations of its storage are.

    The answer of a commit may be lost.
    """

    def _call(self, what: str, work: Callable[[], T]) -> T:
        storage: Storage | Stepping = self._storage
        if isinstance(storage, Stepping):
            storage.step(what, f"{self.root}/table")
        if what != "commit" or not isinstance(storage, Losing):
            return super()._call(what, work)

        def and_lose() -> T:
            done = work()
            storage.lose()
            return done

        return super()._call(what, and_lose)


class Table(Folder):
    """A destination that is a table."""

    kind: type[DeltaFolder] = SteppingDelta

    @property
    def destination(self) -> DeltaFolder:
        return self.kind(self.fs, self.root)

    def landed(self) -> LandedData:
        return read_landing(self.location)

    def table(self) -> DeltaTable:
        uri, options = location_of(self.fs, self.root)
        return DeltaTable(uri, storage_options=options)

    def manifest(self) -> Any:
        import msgspec

        return msgspec.to_builtins(self.landed().manifest)

    def rows(self) -> Rows:
        """Return the rows in their order, once the table's own reader has found the same."""
        try:
            landed = self.landed()
        except NothingLanded:
            return []
        rows = list(landed.iter_rows())
        assert same(rows, self.table().to_pyarrow_dataset().to_table(columns=names_in(rows)).to_pylist())
        return rows

    def readers(self) -> dict[str, Callable[[], Rows]]:
        """Return the readers that know tables of Delta Lake, by their names."""
        table = self.table()
        arrow = table.to_pyarrow_dataset()
        return {
            "pyarrow": lambda: arrow.to_table().to_pylist(),
            "duckdb": lambda: duckdb.connect().from_arrow(arrow).to_arrow_table().to_pylist(),
            "polars": lambda: polars.read_delta(table).to_dicts(),
            "delta-rs": functools.partial(_queried, table),
        }


def _queried(table: DeltaTable) -> Rows:
    import pyarrow as pa

    return pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all()).to_pylist()


def names_in(rows: Rows) -> list[str]:
    """Return the names of the columns that rows have, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def same(rows: Rows, others: Rows) -> bool:
    """Return whether there are the same rows, each as often, in whatever order."""
    return sorted(map(_items, rows)) == sorted(map(_items, others))


def _items(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))
