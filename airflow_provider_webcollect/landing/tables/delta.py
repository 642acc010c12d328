"""Landings as Delta Lake tables: the parts are added in one entry of the table's log.

The entry stores the number of the last log commit as the transaction version of the application
:data:`APPLICATION`, which checkpoints keep. An entry is based on the table as it was read: if others have
written meanwhile, the table is read again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import posixpath
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from airflow_provider_webcollect.landing.errors import FormatChanged, NoColumns, StorageError
from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.landing.storage.folder import DELTA_LOG
from airflow_provider_webcollect.landing.tables.table import (
    Lacking,
    Snapshot,
    TableFolder,
    partition_values,
    schema_of,
)
from airflow_provider_webcollect.landing.temporary import TemporaryFolder
from airflow_provider_webcollect.service.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    import pyarrow.dataset as ds
    from deltalake import DeltaTable, Field

    from airflow_provider_webcollect.landing.log.commits import Part
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
#: The id of the application whose transaction version is the number of a landing's commit.
APPLICATION = "webcollect"
#: The table property that tells writers after how many log entries to write a checkpoint: each entry since
#: the last checkpoint costs readers one more request.
_CHECKPOINTS = {"delta.checkpointInterval": "8"}
#: The table features that do not concern added files, or that :attr:`DeltaSnapshot.demands` checks.
_FEATURES = {
    "allowColumnDefaults",
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "clustering",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "identityColumns",
    "invariants",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "variantType",
    "variantType-preview",
    "vacuumProtocolCheck",
}
#: The prefix of the names of constraints in a table's configuration.
_CONSTRAINT = "delta.constraints."
#: The prefixes of the keys of a column's metadata that are rules for its values.
_RULES = ("CURRENT_DEFAULT", "delta.generationExpression", "delta.identity.", "delta.invariants")
#: The file that names the last checkpoint; it may be absent.
_HINT = f"{DELTA_LOG}/_last_checkpoint"
_NUMBERED = re.compile(rf"{DELTA_LOG}/(\d{{20}})\..+")
_SIDECAR = re.compile(rf"{DELTA_LOG}/_sidecars/[^/]+")


class _Checkpoint(msgspec.Struct):
    """The file that names the last checkpoint.

    :ivar parts: the number of the checkpoint's files; None for a single file.
    """

    version: int
    parts: int | None = None
    v2Checkpoint: msgspec.Raw | None = None  # noqa: N815  # as it is in the file


def _entry(number: int) -> str:
    return f"{DELTA_LOG}/{number:020}.json"


class DeltaLog:
    """A local copy of a table's log, from the last checkpoint on, on which the library works.

    On an object store, the library would request each entry several times, and a checkpoint a dozen times.
    This class reads each file once. An entry that the library has written to the copy is then added to the
    table's log if there is no entry with its number, as Delta Lake demands.

    :param folder: the folder of the table.
    :ivar is_empty: whether there is no table.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._copied = TemporaryFolder("delta")
        self._contents: dict[str, bytes] = {}
        self._copy_log()
        self.is_empty = not self._contents

    @property
    def uri(self) -> str:
        """The URI of the copy, for the library."""
        return self._copied.path.as_uri()

    def publish(self) -> bool:
        """Add the library's new entries to the table's log, and then its new checkpoints.

        :return: False if somebody else has written an entry with the same number.
        """
        files = [file for file in (self._copied.path / DELTA_LOG).glob("*") if file.is_file()]
        contents = {f"{DELTA_LOG}/{file.name}": file.read_bytes() for file in files}
        written = {
            name: content
            for name, content in contents.items()
            if (name == _HINT or _NUMBERED.fullmatch(name)) and content != self._contents.get(name)
        }
        entries = sorted(name for name in written if name.endswith(".json"))
        if not all(self._folder.created(name, written[name]) for name in entries):
            return False
        # the file that names the checkpoint comes last
        for name in sorted(written.keys() - entries, key=lambda name: name == _HINT):
            try:
                self._folder.write(name, written[name])
            except StorageError as error:
                # a checkpoint only saves readers from reading the entries before it
                log.warning("%s was not written: %s", self._folder.path_of(name), error)
        return True

    def _copy_log(self) -> None:
        number = 0
        checkpoint = None
        if (hint := self._folder.read(_HINT)) is not None:
            # a damaged file is ignored, since the whole log has the same facts
            with contextlib.suppress(msgspec.MsgspecError):
                checkpoint = msgspec.json.decode(hint, type=_Checkpoint)
        if hint is not None and checkpoint is not None:
            number = checkpoint.version + 1
            if self._copy_checkpoint(checkpoint):
                self._keep(_HINT, hint)
            else:
                self._copy_listed(0)
        first = number
        while self._copy(_entry(number)) is not None:
            number += 1
        if number == first > 0:
            # the library also looks for the entry of the checkpoint, if there is no later one
            self._copy(_entry(first - 1))
        if not self._contents:
            # the log may begin with a checkpoint that no file names
            self._copy_listed(0)

    def _copy_checkpoint(self, checkpoint: _Checkpoint) -> bool:
        """Copy a checkpoint, and for one of several files all later files; return whether it exists."""
        begin = f"{DELTA_LOG}/{checkpoint.version:020}.checkpoint."
        if checkpoint.parts is None and checkpoint.v2Checkpoint is None:
            return self._copy(f"{begin}parquet") is not None
        self._copy_listed(checkpoint.version)
        return any(name.startswith(begin) for name in self._contents)

    def _copy_listed(self, first: int) -> None:
        """Copy all files of the log with this number or a higher one, and the sidecars of checkpoints."""
        for name in self._folder.files(DELTA_LOG):
            numbered = _NUMBERED.fullmatch(name)
            if (numbered and int(numbered[1]) >= first) or _SIDECAR.fullmatch(name):
                self._copy(name)

    def _copy(self, name: str) -> bytes | None:
        """Copy a file, and return its content; None if it is absent."""
        if name in self._contents:
            return self._contents[name]
        content = self._folder.read(name)
        if content is not None:
            self._keep(name, content)
        return content

    def _keep(self, name: str, content: bytes) -> None:
        copied = self._copied.path / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(content)
        self._contents[name] = content


class DeltaSnapshot(Snapshot):
    """A Delta Lake table as it was at one moment.

    :param log: the copy of the table's log.
    :param folder: the folder of the table.
    """

    def __init__(self, log: DeltaLog, folder: Folder) -> None:
        from deltalake import DeltaTable

        self.log = log
        self.table = DeltaTable(log.uri)
        self.version: int | None = self.table.transaction_version(APPLICATION)
        self.partition_columns: Sequence[str] = self.table.metadata().partition_columns
        self.columns: Sequence[str] = [field.name for field in self.table.schema().fields]
        self._folder = folder

    @functools.cached_property
    def demands(self) -> Sequence[str]:
        demands = []
        for name, value in self.table.metadata().configuration.items():
            if name.startswith(_CONSTRAINT):
                demands.append(f"the constraint {name.removeprefix(_CONSTRAINT)}, {value}")
            elif name == "delta.columnMapping.mode" and value != "none":
                demands.append("column mapping, with other names of the columns in its files")
        for field in self.table.schema().fields:
            if not field.nullable:
                demands.append(f"the column {field.name}, which is NOT NULL")
            demands += [
                f"the column {field.name} with {name}" for name in field.metadata if name.startswith(_RULES)
            ]
        unknown = {*(self.table.protocol().writer_features or ())} - _FEATURES
        return [*demands, *(f"the feature {name}" for name in sorted(unknown))]

    @property
    def is_append_only(self) -> bool:
        """Whether none of its rows may be removed."""
        return self.table.metadata().configuration.get("delta.appendOnly") == "true"

    @property
    def state(self) -> int:
        return self.table.version()

    @functools.cached_property
    def files(self) -> Mapping[str, int]:
        import pyarrow as pa

        actions = pa.table(self.table.get_add_actions(flatten=True))
        names, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
        # the log has URL-encoded names
        return dict(zip(map(unquote, names), sizes, strict=True))

    @property
    def whole_files(self) -> Collection[str]:
        # the library does not show which files have deletion vectors
        has_vectors = "deletionVectors" in (self.table.protocol().reader_features or ())
        return () if has_vectors else self.files.keys()

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self._dataset().to_table(columns=None if columns is None else list(columns))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._dataset().to_batches(columns=list(columns))

    def _dataset(self) -> ds.Dataset:
        from pyarrow.fs import FSSpecHandler, PyFileSystem, SubTreeFileSystem

        files = PyFileSystem(FSSpecHandler(self._folder.fs))
        return self.table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(self._folder.root, files))


class DeltaFolder(TableFolder):
    """The folder of a landing that is a Delta Lake table."""

    table_format = "delta"

    def snapshot(self) -> DeltaSnapshot | None:
        require("deltalake", "delta", "table_format='delta'")
        copied = DeltaLog(self)
        return None if copied.is_empty else self.call("read", functools.partial(DeltaSnapshot, copied, self))

    def unreferenced(self, names: set[str]) -> set[str]:
        snapshot = self.snapshot()
        if snapshot is None or not names:
            return names
        vacuum = functools.partial(snapshot.table.vacuum, 0, dry_run=True, enforce_retention_duration=False)
        return names - set(snapshot.files) - set(self.call("list", vacuum))

    def _refuse(self, snapshot: DeltaSnapshot | None, lacking: Lacking) -> None:
        state = lacking.state
        partition_by = self._partition_columns(lacking.parts, snapshot)
        self._refuse_names(snapshot, state, partition_by)
        schema = schema_of(state, partition_by)
        if snapshot is None and not state.columns:
            raise NoColumns(
                f"{state.source} has no rows yet that name the columns of the table {self.url}; name "
                "them with `columns`, or run this again when there are rows"
            )
        if snapshot is not None and lacking.is_append:
            self._new_columns(snapshot.table, schema)
        elif snapshot is not None and snapshot.is_append_only:
            raise FormatChanged(
                f"the table {self.url} has delta.appendOnly, and this landing replaces rows. Remove the "
                "property from the table, or give the landing another destination"
            )

    def _write(self, snapshot: DeltaSnapshot | None, lacking: Lacking) -> None:
        self._require(lacking.parts)
        log = DeltaLog(self) if snapshot is None else snapshot.log
        self.call("commit", functools.partial(self._add, snapshot, log, lacking))
        if not log.publish():
            raise StorageError(f"others have written to the table {self.url}")

    def _add(self, snapshot: DeltaSnapshot | None, log: DeltaLog, lacking: Lacking) -> None:
        """Let the library add the parts to the copy of the log; for the parameters, see :meth:`_write`."""
        from deltalake import CommitProperties, Schema
        from deltalake.transaction import AddAction, Transaction, create_table_with_add_actions

        partition_by = self._partition_columns(lacking.parts, snapshot)
        schema = schema_of(lacking.state, partition_by)
        wanted, now = Schema.from_arrow(schema), int(time.time() * 1000)
        actions = [
            AddAction(
                path=part.name,
                size=part.bytes,
                partition_values=partition_values(posixpath.dirname(part.name)),
                modification_time=now,
                data_change=True,
                stats=json.dumps({"numRecords": part.rows}),
            )
            for part in lacking.parts
        ]
        common: dict[str, Any] = {
            "partition_by": list(partition_by),
            # the commit's number, and facts about the rows for people
            "commit_properties": CommitProperties(
                custom_metadata=lacking.facts(),
                app_transactions=[Transaction(APPLICATION, lacking.state.rows_commit)],
            ),
        }
        if snapshot is None:
            create_table_with_add_actions(log.uri, wanted, actions, configuration=_CHECKPOINTS, **common)
            return
        table = snapshot.table
        if lacking.is_append:
            if new := self._new_columns(table, schema):
                # in an entry of their own; existing rows have null in these columns
                table.alter.add_columns(new)
            wanted = table.schema()
        mode: Any = "append" if lacking.is_append else "overwrite"
        table.create_write_transaction([*actions], mode, wanted, **common)

    def _new_columns(self, table: DeltaTable, schema: pa.Schema) -> list[Field]:
        """Return the columns that the table does not have.

        :raises FormatChanged: if the table has a column with another type.
        """
        from deltalake import Schema

        table_types = {field.name: field.type for field in table.schema().fields}
        wanted = Schema.from_arrow(schema).fields
        for field in wanted:
            if table_types.get(field.name, field.type) != field.type:
                raise FormatChanged(
                    f"column `{escaped(field.name)}` of the table {self.url} is of the type "
                    f"{table_types[field.name]}, and the rows have {field.type}; change `column_types`, or "
                    "give the landing another destination"
                )
        return [field for field in wanted if field.name not in table_types]

    def _partition_columns(self, added: Sequence[Part], snapshot: DeltaSnapshot | None) -> Sequence[str]:
        """Return the columns by which the table is, or will be, partitioned.

        :raises FormatChanged: if the folders of a part have other columns.
        """
        folders = [posixpath.dirname(part.name) for part in added]
        if snapshot is not None:
            names = snapshot.partition_columns
        else:
            names = tuple(partition_values(folders[0])) if folders else self._partition_names
        for folder in folders:
            self._compare_partition(names, folder)
        return names
