"""Landings as tables of Delta Lake: a commit adds the parts to the table's log in one transaction.

The log has the version of the last landing as that of the application :data:`APPLICATION`, which checkpoints
keep. Who writes through a table that was read before another landing's commit learns it from the log.
"""

from __future__ import annotations

import functools
import json
import posixpath
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from airflow_provider_webcollect.landing.errors import FormatChanged, NoColumns
from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.landing.storage import Changed
from airflow_provider_webcollect.landing.tables.table import (
    Snapshot,
    TableFolder,
    facts_of,
    listed,
    partition_values,
    schema_of,
)
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.transaction import AddAction
    from fsspec import AbstractFileSystem

    from airflow_provider_webcollect.landing.manifest import Manifest, Part

#: The application whose transactions are the commits of landings.
APPLICATION = "webcollect"
#: How the library says that somebody may not do something.
_DENIED = "lacked the necessary privileges"
#: The tokens of gcsfs for credentials that the machine has.
_MACHINE_S = (None, "google_default", "cloud")


class Location(NamedTuple):
    """A folder for the library.

    :ivar options: for its storage; they may have credentials.
    """

    uri: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"<Location {self.uri}>"


def location_of(fs: AbstractFileSystem, root: str) -> Location:
    """Return where the library finds a folder, with the credentials that the filesystem has now.

    What a filesystem leaves to the machine (a role, a service account), the library finds there itself.

    :raises InvalidArgument: if it does not reach such a filesystem.
    """
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & {"file", "local"}:
        return Location(Path(root).as_uri(), {})
    path = quote(root.lstrip("/"))
    if "s3" in protocols:
        return Location(f"s3://{path}", _given(_s3_options(fs)))
    if "abfs" in protocols:
        return Location(f"az://{path}", _given(_azure_options(fs)))
    if "gs" in protocols:
        return Location(f"gs://{path}", _given(_gcs_options(fs)))
    raise InvalidArgument(
        "destination",
        fs.unstrip_protocol(root),
        "a table can be on a disk, S3, Azure or Google Cloud Storage",
    )


def _given(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value}


def _s3_options(fs: Any) -> dict[str, Any]:
    if not (fs.anon or fs.key or fs.session):
        # only then it knows a profile, or what else the machine has
        fs.connect()
    endpoint = fs.endpoint_url or fs.client_kwargs.get("endpoint_url")
    region = fs.client_kwargs.get("region_name") or (fs.session and fs.session.get_config_variable("region"))
    common = {
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true" if str(endpoint).startswith("http:") else None,
        # a server of one's own has no regions, but its requests are signed with one
        "aws_region": region or ("us-east-1" if endpoint else None),
    }
    if fs.anon:
        return {**common, "aws_skip_signature": "true"}
    key, secret, token = fs.key, fs.secret, fs.token
    if not key and fs.session and (found := _session_credentials(fs)):
        key, secret, token = found.access_key, found.secret_key, found.token
    return {
        **common,
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
        "aws_session_token": token,
    }


def _session_credentials(fs: Any) -> Any:
    """Return the credentials of a session, such as that of an Airflow connection."""
    from fsspec.asyn import sync

    async def read() -> Any:
        credentials = await fs.session.get_credentials()
        return credentials and await credentials.get_frozen_credentials()

    return sync(fs.loop, read)


def _azure_options(fs: Any) -> dict[str, Any]:
    parts = dict(each.split("=", 1) for each in (fs.connection_string or "").split(";") if "=" in each)
    endpoint = parts.get("BlobEndpoint")
    return {
        "azure_storage_account_name": fs.account_name or parts.get("AccountName"),
        "azure_storage_account_key": fs.account_key or parts.get("AccountKey"),
        "azure_storage_sas_token": fs.sas_token or parts.get("SharedAccessSignature"),
        "azure_storage_client_id": fs.client_id,
        "azure_storage_client_secret": fs.client_secret,
        "azure_storage_tenant_id": fs.tenant_id,
        "azure_endpoint": endpoint,
        "azure_allow_http": "true" if str(endpoint).startswith("http:") else None,
        "azure_skip_signature": "true" if fs.anon is True else None,
    }


def _gcs_options(fs: Any) -> dict[str, Any]:
    token = fs.credentials.token
    is_machine_s = token in _MACHINE_S or type(token).__module__.startswith("google.auth.compute_engine")
    if not (is_machine_s or token == "anon" or isinstance(token, dict) or str(token).startswith("/")):
        raise InvalidArgument(
            "object_storage_conn_id",
            "…",
            "Delta Lake's library cannot use its credentials on Google Cloud Storage: it takes a key as a "
            "file or as a dict, or what the machine has (application default credentials)",
        )
    return {
        "google_service_account_key": json.dumps(token) if isinstance(token, dict) else None,
        "google_service_account": token if isinstance(token, str) and token.startswith("/") else None,
        "google_skip_signature": "true" if token == "anon" else None,
    }


class DeltaSnapshot(Snapshot):
    """A table of Delta Lake as it was at one moment."""

    def __init__(self, table: DeltaTable) -> None:
        self.table = table
        self.version: int | None = table.transaction_version(APPLICATION)
        self.partition_columns: Sequence[str] = table.metadata().partition_columns

    @property
    def state(self) -> int:
        return self.table.version()

    @functools.cached_property
    def files(self) -> Mapping[str, int]:
        import pyarrow as pa

        actions = pa.table(self.table.get_add_actions(flatten=True))
        names, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
        # in the log they are quoted, as in addresses
        return dict(zip(map(unquote, names), sizes, strict=True))

    @property
    def whole_files(self) -> Collection[str]:
        # as far as the library tells
        has_vectors = "deletionVectors" in (self.table.protocol().reader_features or ())
        return () if has_vectors else self.files.keys()

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self.table.to_pyarrow_dataset().to_table(columns=None if columns is None else list(columns))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self.table.to_pyarrow_dataset().to_batches(columns=list(columns))


class DeltaFolder(TableFolder):
    """The folder of a landing that is a table of Delta Lake."""

    table_format = "delta"

    def snapshot(self) -> DeltaSnapshot | None:
        require("deltalake", "delta", "table_format='delta'")
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        def read() -> DeltaSnapshot | None:
            location = location_of(self.fs, self.root)
            try:
                return DeltaSnapshot(DeltaTable(location.uri, storage_options=location.options))
            except TableNotFoundError:
                return None

        return self.call("read", read)

    def unreferenced(self, names: set[str]) -> set[str]:
        snapshot = self.snapshot()
        if snapshot is None or not names:
            return names
        vacuum = functools.partial(snapshot.table.vacuum, 0, dry_run=True, enforce_retention_duration=False)
        return names - set(snapshot.files) - set(self.call("list", vacuum))

    @staticmethod
    def is_denied(error: Exception) -> bool:
        return _DENIED in str(error)

    def _write(
        self,
        snapshot: DeltaSnapshot | None,
        manifest: Manifest,
        added: Sequence[Part],
        version: int,
        *,
        is_append: bool,
    ) -> None:
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        partition_by = self._partition_columns(added, snapshot)
        schema = schema_of(manifest, partition_by)
        self._refuse_twins(schema.names)
        wanted, actions = Schema.from_arrow(schema), [_add(part) for part in added]
        common: dict[str, Any] = {
            "partition_by": list(partition_by),
            "commit_properties": _properties(manifest, added, version, is_append),
        }
        if snapshot is None:
            if not manifest.columns:
                raise NoColumns(
                    f"{manifest.source} has no rows yet that name the columns of the table {self.url}; name "
                    "them with `columns`, or run this again when there are rows"
                )
            uri, options = location_of(self.fs, self.root)
            create_table_with_add_actions(uri, wanted, actions, storage_options=options, **common)
            return
        table = snapshot.table
        if is_append:
            self._add_columns(table, wanted)
            wanted = table.schema()
            # the table was read again for that
            if table.transaction_version(APPLICATION) != snapshot.version:
                raise Changed(self.url)
        table.create_write_transaction([*actions], "append" if is_append else "overwrite", wanted, **common)

    def _add_columns(self, table: DeltaTable, wanted: Schema) -> None:
        """Add the columns to the table that new parts have, in a commit of its own: rows have null there."""
        there = {field.name: field.type for field in table.schema().fields}
        for field in wanted.fields:
            if there.get(field.name, field.type) != field.type:
                raise FormatChanged(
                    f"column `{field.name}` of the table {self.url} is of the type {there[field.name]}, and "
                    f"the rows have {field.type}; change `column_types`, or give the landing another "
                    "destination"
                )
        if new := [field for field in wanted.fields if field.name not in there]:
            table.alter.add_columns(new)

    def _partition_columns(self, added: Sequence[Part], snapshot: DeltaSnapshot | None) -> Sequence[str]:
        """Return the columns by which the table is, or will be, partitioned.

        :raises FormatChanged: if not all parts are in such folders.
        """
        if snapshot is not None:
            for part in added:
                self._compare_partition(snapshot, posixpath.dirname(part.name))
            return snapshot.partition_columns
        names = {tuple(partition_values(posixpath.dirname(part.name))) for part in added}
        if len(names) > 1:
            raise FormatChanged(
                f"the rows for the table {self.url} were written with different `partition`s: "
                f"{' and '.join(map(listed, sorted(names)))}; discard what is staged, or give the landing "
                "another destination"
            )
        return names.pop() if names else self._partition_names


def _add(part: Part) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(
        path=part.name,
        size=part.bytes,
        partition_values=partition_values(posixpath.dirname(part.name)),
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": part.rows}),
    )


def _properties(manifest: Manifest, added: Sequence[Part], version: int, is_append: bool) -> CommitProperties:
    """Return what the log says of a commit: the transaction, and for people whose rows these are."""
    from deltalake import CommitProperties
    from deltalake.transaction import Transaction

    return CommitProperties(
        custom_metadata=facts_of(manifest, added),
        app_transactions=[Transaction(APPLICATION, version)],
        # the library sees no conflict between files that are removed here and what others make of them
        max_commit_retries=None if is_append else 0,
    )
