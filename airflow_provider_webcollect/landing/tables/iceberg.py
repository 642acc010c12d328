"""Landings as Apache Iceberg tables: a commit adds the parts in one transaction of the table's catalog.

A property of the table stores the number of the last log commit, since snapshots expire. Each commit, even
one without parts, makes a snapshot on the condition that the table's last snapshot is still the one that was
read. Thus every catalog refuses the commit if others have committed meanwhile.
"""

from __future__ import annotations

import copy
import functools
import shlex
from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    FormatChanged,
    NothingLanded,
    StorageError,
)
from airflow_provider_webcollect.landing.tables.table import (
    Lacking,
    Snapshot,
    TableFolder,
    schema_of,
    table_error,
)
from airflow_provider_webcollect.service.errors import escaped, quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

#: The table property with the number of the last log commit whose rows the table has.
VERSION_PROPERTY = "webcollect.version"
_RETRIES = "commit.retry.num-retries"


class IcebergSnapshot(Snapshot):
    """An Iceberg table as it was at one moment."""

    def __init__(self, table: Table) -> None:
        self.table = table
        version = table.properties.get(VERSION_PROPERTY)
        self.version = None if version is None else int(version)
        self.partition_columns: Sequence[str] = [field.name for field in table.spec().fields]
        self.columns: Sequence[str] = [field.name for field in table.schema().fields]

    @property
    def demands(self) -> Sequence[str]:
        fields = self.table.schema().fields
        return [f"the column {field.name}, which is required" for field in fields if field.required]

    @property
    def state(self) -> str:
        return self.table.metadata_location

    @functools.cached_property
    def files(self) -> Mapping[str, int]:
        return {self._name(task): task.file.file_size_in_bytes for task in self._tasks}

    @functools.cached_property
    def whole_files(self) -> Collection[str]:
        return {self._name(task) for task in self._tasks if not task.delete_files}

    @functools.cached_property
    def _tasks(self) -> Sequence[FileScanTask]:
        return list(self.table.scan().plan_files())

    def _name(self, task: FileScanTask) -> str:
        return str(task.file.file_path).removeprefix(f"{self.table.location().rstrip('/')}/")

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self.table.scan(selected_fields=("*",) if columns is None else tuple(columns)).to_arrow()

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self.table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader()


class IcebergFolder(TableFolder):
    """The folder of a landing that is an Iceberg table: the location that its catalog names.

    :param table: the table.
    """

    table_format = "iceberg"

    def __init__(self, table: Table) -> None:
        from pyiceberg.io.fsspec import FsspecFileIO

        self._catalog: Catalog = table.catalog
        self._name = table.name()
        location = table.location()
        scheme, separator, _ = location.partition("://")
        fs = FsspecFileIO(table.io.properties).get_fs(scheme if separator else "file")
        super().__init__(
            fs, str(fs._strip_protocol(location)), f"{table.catalog.name}.{'.'.join(self._name)}"
        )
        self._location = location.rstrip("/")
        self._known, self._is_known = IcebergSnapshot(table), True

    @property
    def as_argument(self) -> str:
        # a catalog that was opened by a connection has the connection's id as its name
        return f"{super().as_argument} --object-storage-conn-id {shlex.quote(str(self._catalog.name))}"

    def snapshot(self) -> IcebergSnapshot:
        return self.call("read", lambda: IcebergSnapshot(self._catalog.load_table(self._name)))

    def unreferenced(self, names: set[str]) -> set[str]:
        if not names:
            return names
        table = self.snapshot().table

        def files_of_snapshots() -> set[str]:
            # snapshots share most of their manifests, so each one is read once
            manifests = {
                manifest.manifest_path: manifest
                for snapshot in table.snapshots()
                for manifest in snapshot.manifests(table.io)
            }
            return {
                entry.data_file.file_path
                for manifest in manifests.values()
                for entry in manifest.fetch_manifest_entry(table.io)
            }

        paths = self.call("list", files_of_snapshots)
        return names - {path.removeprefix(f"{self._location}/") for path in paths}

    def _refuse(self, snapshot: IcebergSnapshot, lacking: Lacking) -> None:
        self._refuse_names(snapshot, lacking.state)
        schema = schema_of(lacking.state)
        # only a check: the transaction is never committed
        self.call("read", lambda: self._add_columns(snapshot.table.transaction(), schema))

    def _write(self, snapshot: IcebergSnapshot, lacking: Lacking) -> None:
        try:
            self.call("commit", functools.partial(self._commit, snapshot, lacking))
        except StorageError:
            # the library reads each part, and its error does not say what to do if a part is absent
            self._require(lacking.parts)
            raise

    def _commit(self, snapshot: IcebergSnapshot, lacking: Lacking) -> None:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io import PY_IO_IMPL
        from pyiceberg.io.fsspec import FsspecFileIO

        # like a landing's files, the table's small files are then written in one request each; the catalog,
        # which writes the metadata, is copied, so that nothing changes for its other users
        read = snapshot.table
        catalog = copy.copy(read.catalog)
        catalog.properties = {**catalog.properties, PY_IO_IMPL: "pyiceberg.io.fsspec.FsspecFileIO"}
        file_io = FsspecFileIO(read.io.properties)
        table = type(read)(read.name(), read.metadata, read.metadata_location, file_io, catalog)
        uris = [f"{self._location}/{part.name}" for part in lacking.parts]
        properties = {**lacking.facts(), VERSION_PROPERTY: str(lacking.state.rows_commit)}
        # a retry by the library could add the parts a second time, after another landing has added them;
        # the property is not stored
        table.metadata.properties[_RETRIES] = "0"
        transaction = table.transaction()
        if uris:
            self._add_columns(transaction, schema_of(lacking.state))
        if not lacking.is_append:
            transaction.delete(AlwaysTrue())
        if uris:
            transaction.add_files(uris, snapshot_properties=properties, check_duplicate_files=False)
        else:
            with transaction.update_snapshot(snapshot_properties=properties).fast_append():
                pass
        transaction.set_properties(properties)
        transaction.commit_transaction()

    def _add_columns(self, transaction: Transaction, schema: pa.Schema) -> None:
        """Add the columns that the table does not have.

        :raises FormatChanged: if a column of the table has another type, or a new column has the former name
            of a renamed one.
        """
        from pyiceberg.exceptions import ValidationError

        self._refuse_old_names(transaction.table_metadata, schema.names)
        try:
            if schema.names:
                with transaction.update_schema() as update:
                    update.union_by_name(schema)
        except ValidationError as error:
            raise FormatChanged(
                f"the rows do not fit the table {self.url}: {escaped(str(error))}; change `column_types`, or "
                "give the landing another destination"
            ) from error

    def _refuse_old_names(self, table: TableMetadata, names: Sequence[str]) -> None:
        """Refuse a new column that has the former name of a renamed column.

        Parts have no column ids, so the table finds their columns by name, and it knows all names that a
        column has had: both columns would have this name.
        """
        columns = {field.field_id: field.name for field in table.schema().fields}
        renamed = [field for field in table.name_mapping() or () if field.field_id in columns]
        for field in renamed:
            for name in {*field.names}.intersection(names).difference(columns.values()):
                raise FormatChanged(
                    f"the table {self.url} has had a column {quoted(name)}, which others have renamed to "
                    f"{quoted(columns.get(field.field_id or 0, ''))}, and the rows still have the old name: "
                    "rename it back, or give the landing another destination"
                )


def load_table(catalog: Catalog, name: str, *, is_made: bool = False) -> Table:
    """Return a table.

    :param name: ``catalog.namespace.table``; the first part is a name for the catalog, which the catalog
        itself does not know.
    :param is_made: whether to create the table, without columns, if it does not exist.
    :raises NothingLanded: if the table does not exist, and is not created.
    :raises DestinationTaken: if the table has to be created, and its namespace does not exist.
    :raises StorageError: if the table cannot be read or created.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.schema import Schema

    identifier = tuple(name.split(".")[1:])
    try:
        if is_made:
            return catalog.create_table_if_not_exists(identifier, Schema())
        return catalog.load_table(identifier)
    except NoSuchTableError as error:
        raise NothingLanded(
            f"there is no table {name}: nothing has landed there yet; check the name"
        ) from error
    except NoSuchNamespaceError as error:
        raise DestinationTaken(
            f"the catalog has no namespace {'.'.join(identifier[:-1])!r} for {name}; create it, or correct "
            "the name"
        ) from error
    except Exception as error:
        raise table_error(name, error) from None
