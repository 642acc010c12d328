"""Tables that landings write, and what the tables' own readers find in them."""

from __future__ import annotations

import functools
import io
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec
import polars
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.log.commits import Manifest
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog
from airflow_provider_webcollect.landing.tables.delta import DeltaFolder
from airflow_provider_webcollect.landing.tables.iceberg import IcebergFolder
from airflow_provider_webcollect.landing.tables.table import TableFolder
from airflow_provider_webcollect.landing.write.job import Job, Landed
from airflow_provider_webcollect.landing.write.run import run_job
from tests.landing import pages as numbered
from tests.landing.conftest import Folder
from tests.landing.pages import job
from tests.simulation.steps import Held, Stepping, step
from tests.storages import Storage, local

T = TypeVar("T")
Rows = list[dict[str, Any]]
PARQUET = make_format("parquet")
#: Columns with a type of each kind, and a row of these with an additional text column.
TYPES = {
    **{"a": "int64", "b": "decimal(10,2)", "c": "timestamptz", "d": "timestamp", "e": "date32"},
    **{"f": "bool", "g": "float32", "h": "int32", "j": "float64"},
}
TYPED_ROW = {
    **{"a": 1, "b": "1.50", "c": "2026-01-01T00:00:00Z", "d": "2026-01-01T00:00:00", "e": "2026-01-01"},
    **{"f": True, "g": 0.5, "h": 7, "j": 0.25, "i": "text"},
}


def landing(destination: Any, *, count: int, run: str, **options: Any) -> Job:
    """Return a landing of numbered rows, five to a part."""
    options = {"mode": "incremental", "file_format": PARQUET, **options}
    return job(numbered.Rows(count), destination, run, **options)


def land(table: Table, count: int, run: str = "r1", **options: Any) -> Landed:
    """Land numbered rows, five to a part."""
    return run_job(landing(table.destination, count=count, run=run, **options))


def land_runs(table: Table, count: int) -> None:
    """Land five new rows in each of ``count`` runs: r0, r1 and so on."""
    for run in range(count):
        land(table, 5 * (run + 1), f"r{run}")


def held_at(table: Table, at: int | tuple[str, str], **options: Any) -> Held:
    """Land numbered rows, but stop before an operation or a call of the table's library."""
    return Held(lambda place: run_job(landing(place, **options)), table.destination, at)


def numbers(table: Table, version: Any = None) -> list[int]:
    """Return the numbers of the rows that the table's own reader finds.

    :param version: version of the table; None for the latest one.
    """
    return sorted(int(row["n"]) for row in table.found(version))


class _Stepping(TableFolder):
    """A table for which each call of its library is a step, like the operations of its storage.

    The response to a commit may be lost.
    """

    def call(self, what: str, work: Callable[[], T]) -> T:
        step(self, what, "table")

        def worked() -> T:
            done, storage = work(), self._storage
            # a Delta Lake table is written by its storage
            if what == "commit" and isinstance(storage, Stepping) and self.table_format == "iceberg":
                storage.done(what, f"{self.root}/table")
            return done

        return super().call(what, worked)


class SteppingDelta(_Stepping, DeltaFolder):
    """A Delta Lake table with steps."""


class SteppingIceberg(_Stepping, IcebergFolder):
    """An Iceberg table with steps."""


class Table(Folder):
    """A destination that is a Delta Lake table."""

    @property
    def destination(self) -> DeltaFolder:
        return SteppingDelta(self.fs, self.root)

    def table(self) -> Any:
        uri, options = _of_library(self.fs, self.root)
        return DeltaTable(uri, storage_options=options)

    def log(self) -> CommitLog:
        return CommitLog(self.destination)

    def state(self) -> Manifest:
        """Return the state of the landing, according to its commits."""
        state = self.log().read()
        assert state is not None
        return state

    def manifest(self) -> Any:
        log = self.log()
        state = log.read()
        assert state is not None
        return msgspec.to_builtins(msgspec.structs.replace(state, parts=log.parts_after(state, 0)))

    def committed_rows(self) -> Rows:
        """Return the rows of the parts that the commits list."""
        if self.log().read() is None:
            return []
        files = (io.BytesIO(self.read(part["name"])) for part in self.manifest()["parts"])
        return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]

    def rows(self) -> Rows:
        """Return the rows that the table's own library finds; none if there is no table."""
        try:
            return self.found()
        except TableNotFoundError:
            return []

    def version(self) -> Any:
        return self.table().version()

    def found(self, version: Any = None) -> Rows:
        """Return the rows that the table's own library finds."""
        table = self.table()
        if version is not None:
            table.load_as_version(version)
        rows: Rows = table.to_pyarrow_dataset().to_table().to_pylist()
        return rows

    def append(self, rows: Rows) -> None:
        """Let others add rows of texts, and create the table if there is none."""
        write_deltalake(_of_library(self.fs, self.root)[0], pa.Table.from_pylist(rows), mode="append")

    def widen(self, schema: pa.Schema) -> None:
        """Let others add columns."""
        self.table().alter.add_columns(list(DeltaSchema.from_arrow(schema).fields))

    def delete(self, condition: str) -> None:
        """Let others delete rows."""
        self.table().delete(condition)

    def compact(self) -> None:
        """Let others compact the table."""
        self.table().optimize.compact()

    def vacuum(self) -> None:
        """Let others remove the files that the last version does not need."""
        self.table().vacuum(0, dry_run=False, enforce_retention_duration=False)

    def readers(self) -> dict[str, Callable[[], Rows]]:
        """Return the readers that know Delta Lake tables, by their names."""
        table = self.table()
        arrow = table.to_pyarrow_dataset().to_table()
        return {
            "pyarrow": arrow.to_pylist,
            # not over the dataset: pyarrow's to_reader waits for files that Python opens, and holds the GIL
            "duckdb": lambda: duckdb.connect().from_arrow(arrow).to_arrow_table().to_pylist(),
            "polars": lambda: polars.read_delta(table).to_dicts(),
            "delta-rs": functools.partial(_queried, table),
        }


class IcebergTable(Table):
    """A destination that is an Iceberg table.

    :param catalog: catalog of the table.
    :param name: name in the catalog, as ``namespace.table``.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.catalog, self.name = catalog, name
        catalog.create_table(name, Schema())
        folder = self.destination
        super().__init__(folder.fs, folder.root)

    @property
    def destination(self) -> Any:
        return SteppingIceberg(self.table())

    @property
    def location(self) -> Any:
        """The table in a form that `read_landing`, `clean` and others accept."""
        return self.table()

    def table(self) -> Any:
        return self.catalog.load_table(self.name)

    def version(self) -> Any:
        return self.table().current_snapshot().snapshot_id

    def found(self, version: Any = None) -> Rows:
        rows: Rows = self.table().scan(snapshot_id=version).to_arrow().to_pylist()
        return rows

    def append(self, rows: Rows) -> None:
        data = pa.Table.from_pylist(rows)
        self.widen(data.schema)
        self.table().append(data)

    def widen(self, schema: pa.Schema) -> None:
        with self.table().update_schema() as update:
            update.union_by_name(schema)

    def compact(self) -> None:
        """Let others write all rows again."""
        self.table().overwrite(self.table().scan().to_arrow())

    def vacuum(self) -> None:
        """Do nothing: pyiceberg removes no files."""

    def readers(self) -> dict[str, Callable[[], Rows]]:
        scan = self.table().scan()
        return {
            "pyiceberg": lambda: scan.to_arrow().to_pylist(),
            "duckdb": lambda: scan.to_duckdb("t").sql("from t").to_arrow_table().to_pylist(),
            "polars": lambda: polars.scan_iceberg(self.table()).collect().to_dicts(),
        }


def tables_in(folder: Path, kind: str) -> Callable[[], Table]:
    """Return a function that returns new tables on disk: they do not exist yet, or have no columns.

    :param kind: ``delta`` or ``iceberg``.
    """
    if kind == "delta":
        return functools.partial(Table.new, local(folder))
    catalog = sql_catalog(folder)
    return lambda: IcebergTable(catalog, f"shop.t{uuid.uuid4().hex}")


def sql_catalog(folder: Path, storage: Storage | None = None) -> Catalog:
    """Return a catalog in an SQLite file, with the namespace ``shop``.

    :param folder: folder of the catalog and its tables.
    :param storage: S3 storage for the tables; None to keep them in the folder.
    """
    warehouse = f"file://{folder}/warehouse" if storage is None else f"s3://{storage.new_folder()}"
    access = {} if storage is None else _access(storage, "s3")
    return _catalog(type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=warehouse, **access)


def glue_catalog(storage: Storage) -> Catalog:
    """Return a catalog of AWS Glue, with the namespace ``shop``.

    :param storage: S3 storage for the tables; its server also serves the catalog.
    """
    access = _access(storage, "glue", "s3")
    return _catalog(type="glue", warehouse=f"s3://{storage.new_folder()}", **access)


def _catalog(**options: str) -> Catalog:
    catalog = load_catalog("lake", **options)
    catalog.create_namespace_if_not_exists("shop")
    return catalog


def _access(storage: Storage, *services: str) -> dict[str, str]:
    options = storage.options
    access = {
        "endpoint": options["endpoint_url"],
        "region": "us-east-1",
        "access-key-id": options["key"],
        "secret-access-key": options["secret"],
    }
    return {f"{service}.{name}": value for service in services for name, value in access.items()}


def _of_library(fs: Any, root: str) -> tuple[str, dict[str, str]]:
    """Return the URI of a Delta Lake table, and the storage options of its library."""
    if "s3" in fs.protocol:
        access = {"aws_access_key_id": fs.key, "aws_secret_access_key": fs.secret, "aws_region": "us-east-1"}
        return f"s3://{root}", {**access, "aws_endpoint_url": fs.endpoint_url, "aws_allow_http": "true"}
    if "abfs" in fs.protocol:
        parts = dict(setting.split("=", 1) for setting in fs.connection_string.split(";") if setting)
        access = {
            "azure_storage_account_name": parts["AccountName"],
            "azure_storage_account_key": parts["AccountKey"],
            "azure_endpoint": parts["BlobEndpoint"],
        }
        return f"az://{root}", {**access, "azure_allow_http": "true"}
    return f"file://{root}", {}


def _queried(table: DeltaTable) -> Rows:
    rows: Rows = pa.table(
        QueryBuilder().register("t", table).execute("select * from t").read_all()
    ).to_pylist()
    return rows


def same(rows: Rows, others: Rows) -> bool:
    """Return whether both have the same rows, each equally often, in any order."""
    return sorted(map(_items, rows)) == sorted(map(_items, others))


def _items(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))
