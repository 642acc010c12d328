"""Opens storages and catalogs with Airflow connections.

Airflow is imported only if a location names one of its connections.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.landing.location import (
    STORAGE_EXTRAS,
    Location,
    MachineConnections,
    is_opened,
)
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath
    from fsspec import AbstractFileSystem
    from pyiceberg.catalog import Catalog

    from airflow_provider_webcollect.landing.location import Connections
    from airflow_provider_webcollect.landing.reader import LandedData

#: The environment variable that lets Airflow 3 find connections in its database. Without it, a process that
#: does not run a task finds only connections in the environment.
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
#: The names of errors that Airflow, pyiceberg, SQLAlchemy and others raise for a wrong connection. The texts
#: of these errors may show the connection's values.
_OF_CONNECTIONS = {
    *("ArgumentError", "ImportError", "KeyError", "TypeError", "ValueError"),
    *("BadRequestError", "ForbiddenError", "OAuthError", "UnauthorizedError"),
    *("NoSuchPropertyException", "NotInstalledError"),
}
#: Airflow 3 also raises this error while its API server or a secrets backend cannot be reached.
_NOT_FOUND = "AirflowNotFoundException"
#: Errors about a response, which are temporary although they are subclasses of ``ValueError``.
_OF_RESPONSES = {"JSONDecodeError", "ValidationError"}
_lock = threading.Lock()
#: The running blocks that need the variable; the first of them has set it.
_blocks: set[object] = set()


@contextlib.contextmanager
def _with_database_connections() -> Iterator[None]:
    """Let Airflow find the connections in its database while the block runs.

    All threads of a process share the environment, so the variable stays until the last block that needs it
    has ended.
    """
    block = object()
    with _lock:
        if _blocks or _CONTEXT not in os.environ:
            _blocks.add(block)
            os.environ[_CONTEXT] = "server"
    try:
        yield
    finally:
        with _lock:
            if block in _blocks:
                _blocks.remove(block)
                if not _blocks:
                    os.environ.pop(_CONTEXT, None)


#: Schemes that fsspec supports, but that Airflow does not, or uses without a container.
_UNKNOWN_TO_AIRFLOW = {"adl", "az", "s3n"}


def require_supported(argument: str, location: Location) -> Location:
    """Return the location if Airflow supports its scheme; no connection is opened.

    :param argument: name of the argument that has the location, for errors.
    :raises InvalidArgument: if Airflow has no filesystem for the scheme, or would take Azure's container for
        a connection.
    """
    scheme = location.scheme
    # fsspec and other readers support these locations
    if scheme in _UNKNOWN_TO_AIRFLOW or (STORAGE_EXTRAS.get(scheme) == "azure" and "." in location.bucket):
        known = "s3://bucket/folder" if scheme == "s3n" else "abfs://connection@container/folder"
        raise InvalidArgument(argument, location.text, f"Airflow takes {known}")
    if not (
        location.kind == "iceberg"
        or scheme in {*STORAGE_EXTRAS, "file"}
        or (scheme.islower() and (_is_registered(scheme) or _is_attached(location.text)))
    ):
        rule = f"Airflow has no filesystem for the scheme `{scheme}`"
        raise InvalidArgument(argument, location.text, rule)
    return location


def _is_registered(scheme: str) -> bool:
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

    # imported only when needed, since the import loads all providers
    module = importlib.import_module("airflow.sdk.io" if AIRFLOW_V_3_0_PLUS else "airflow.io")
    return bool(module.has_fs(scheme))


def _is_attached(path: str) -> bool:
    """Return whether a DAG has attached a filesystem to Airflow for a path (``attach``)."""
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    try:
        return ObjectStoragePath(path).fs is not None
    except ValueError:
        return False


class AirflowConnections:
    """Airflow's connections, as a task sees them; each connection is looked up once.

    It is an error if a named connection does not exist: otherwise, the filesystem would use the machine's
    credentials.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def require(self, conn_id: str, text: str) -> None:
        """Check that a connection exists.

        :param text: the location that names the connection, for errors.
        :raises StorageError: if Airflow has no such connection. The error is not permanent, since Airflow 3
            finds no connections while its API server cannot be reached.
        """
        from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

        if conn_id in self._known:
            return
        try:
            BaseHook.get_connection(conn_id)
        except AirflowNotFoundException as error:
            raise StorageError(f"Airflow has no connection {conn_id!r}, which is set for {text}") from error
        self._known.add(conn_id)

    def path(self, location: Location) -> ObjectStoragePath:
        """Return the location as an Airflow path with its connection.

        :raises StorageError: if Airflow has no such connection.
        """
        from airflow.providers.common.compat.sdk import ObjectStoragePath

        text, conn_id = location.text, location.conn_id
        # for storages that the provider has no extra for, Airflow reads the text before the host as a
        # connection
        if named := conn_id or urlsplit(text).netloc.rpartition("@")[0]:
            self.require(named, text)
        # in Airflow 2, an explicit None overrides the connection in the path
        return ObjectStoragePath(text, conn_id=conn_id) if conn_id else ObjectStoragePath(text)

    def filesystem(self, location: Location) -> tuple[AbstractFileSystem, str]:
        """Return the filesystem of a folder, and the folder's path on it; nothing is read.

        :raises StorageError: if Airflow has no such connection, or if there is no filesystem for the location
            or the filesystem cannot be set up.
        """
        path = self.path(location)
        try:
            return path.fs, path.path
        except (ImportError, ValueError) as error:
            extra = STORAGE_EXTRAS.get(path.protocol)
            if extra and (isinstance(error, ImportError) or not _is_registered(path.protocol)):
                problem = (
                    f"{path} needs an extra: pip install 'airflow-provider-webcollect[{extra}]' ({error})"
                )
            else:
                problem = (
                    f"The storage of {path} cannot be used, check its connection (`object_storage_conn_id`): "
                    f"{error}"
                )
            raise StorageError(problem, permanent=True) from error

    def catalog(self, conn_id: str) -> Catalog:
        """Return the catalog of an Airflow connection of type ``iceberg``.

        :raises ExtraMissing: if the provider of Iceberg is not installed.
        :raises InvalidArgument: if Airflow has no such connection, or cannot open the catalog with it.
        :raises StorageError: if the catalog or its database fails temporarily.
        """
        from airflow_provider_webcollect.landing.formats import require

        require("airflow.providers.apache.iceberg.hooks.iceberg", "iceberg", "an Iceberg table")
        from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook

        address = None
        try:
            with _with_database_connections():
                connection = IcebergHook.get_connection(conn_id)
                address = connection.host or connection.extra_dejson.get("uri")
                return IcebergHook(conn_id).catalog
        except Exception as error:  # Airflow and catalogs raise many kinds
            if not _is_connection_error(error):
                from airflow_provider_webcollect.landing.tables.table import catalog_error

                raise catalog_error(conn_id, address, error) from None
            # only the error's type: its text may show the connection's values
            said = type(error).__name__
            raise InvalidArgument(
                "iceberg_conn_id", conn_id, f"its catalog cannot be opened: {said}"
            ) from None


class ServerConnections(AirflowConnections):
    """Airflow's connections, as seen by a process that may not be running a task."""

    def filesystem(self, location: Location) -> tuple[AbstractFileSystem, str]:
        """Return the filesystem of a folder, and the folder's path on it; nothing is read.

        :raises InvalidArgument: if Airflow has no such connection, or cannot use it.
        :raises StorageError: if Airflow or the storage fails temporarily.
        """
        require_supported("landing", location)
        try:
            with _with_database_connections():
                return super().filesystem(location)
        except Exception as error:  # Airflow and the storage's own package raise many kinds
            # the text of a database error has many lines
            reason = str(error).partition("\n")[0]
            if not (
                _is_connection_error(error)
                or isinstance(error, StorageError)
                or type(error).__name__ == _NOT_FOUND
            ):
                problem = f"{location.text} cannot be reached with {location.conn_id!r} now: {reason}"
                raise StorageError(problem) from error
            rule = f"{location.text} cannot be reached: {reason}"
            raise InvalidArgument("object_storage_conn_id", location.conn_id, rule) from error


def connections_of(location: Location) -> Connections:
    """Return the connections for opening a location outside a task.

    Airflow is needed only if the location names a connection or is an Iceberg table.
    """
    is_table = location.kind == "iceberg"
    return MachineConnections() if location.conn_id is None and not is_table else ServerConnections()


def _is_connection_error(error: Exception) -> bool:
    """Return whether an error means that the connection is wrong; other errors are temporary failures."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & _OF_CONNECTIONS) and not kinds & _OF_RESPONSES


def read_landing(
    landing: Any,
    storage_options: Mapping[str, Any] | None = None,
    object_storage_conn_id: str | None = None,
    *,
    quarantined: int | None = None,
    raw: bool = False,
) -> LandedData:
    """Open a landing (a folder or a table) for reading, in a task, a notebook or a script.

    :param landing: the landing's folder or its ``_manifest.json``: an absolute local path, a URL that fsspec
        supports (``s3://bucket/prices``), optionally with an Airflow connection
        (``s3://conn_id@bucket/prices``), or an object with ``fs`` and ``path``, such as Airflow's
        ``ObjectStoragePath``. For an Iceberg table: the table itself, or its name,
        ``catalog.namespace.table``, with the connection of its catalog.
    :param storage_options: fsspec's options for the URL's filesystem, such as credentials.
    :param object_storage_conn_id: the Airflow connection of the storage, instead of ``storage_options``; None
        for the connection in ``landing``, if any. Without a connection, Airflow is not needed.
    :param quarantined: the number of a commit, to read only the rows that it has quarantined; None (default)
        for the landed rows.
    :param raw: read values from JSON lines and CSV as plain strings, without applying ``column_types``;
        False by default.
    :raises InvalidArgument: if ``landing`` cannot be a landing, or if Airflow cannot open the storage with
        the connection. For other errors, see
        :func:`airflow_provider_webcollect.landing.reader.read_landing`.
    """
    from airflow_provider_webcollect.landing import reader

    if is_opened(landing):
        if object_storage_conn_id is not None:
            rule = "it must be None, since `landing` has its own filesystem or catalog"
            raise InvalidArgument("object_storage_conn_id", object_storage_conn_id, rule)
        if hasattr(landing, "serialize") and (conn_id := landing.serialize()["conn_id"]):
            with _with_database_connections():
                AirflowConnections().require(conn_id, str(landing))
    elif isinstance(landing, str | os.PathLike):
        location = Location.parse_landed(
            "landing", str(landing), conn_id=object_storage_conn_id, is_exact=True
        )
        if location.conn_id is not None:
            if storage_options is not None:
                rule = "it must be None, since the Airflow connection has the options"
                raise InvalidArgument("storage_options", "{…}", rule)
            landing = location.open_landed(ServerConnections())
    return reader.read_landing(landing, storage_options, quarantined=quarantined, raw=raw)
