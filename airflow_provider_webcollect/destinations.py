"""Storage paths in DAGs: early checks of sources and destinations, and what connections of Airflow open.

Airflow is imported only where one of its connections is named.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from airflow_provider_webcollect.collection_tasks import described, task_id_of, task_of
from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.landing.options import STORAGE_EXTRAS, check_location, connection_of
from airflow_provider_webcollect.landing.tables import check_table_name, is_iceberg_name, is_iceberg_table
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from airflow_provider_webcollect.landing.log.commits import Source
    from airflow_provider_webcollect.landing.reader import LandedData
    from airflow_provider_webcollect.landing.storage.folder import Folder

#: With this, Airflow 3 finds connections in its database; without it, a process that is not a task's finds
#: only those in the environment.
_AS_AIRFLOW = {"_AIRFLOW_PROCESS_CONTEXT": "server"}
#: The Airflow connection of Iceberg's catalog, unless another is named.
ICEBERG_DEFAULT = "iceberg_default"
#: The errors of Airflow, pyiceberg, SQLAlchemy and others for a connection that is wrong; their texts may
#: show the connection's values. Those for a response are subclasses of ``ValueError`` too.
_OF_CONNECTIONS = {
    *("ArgumentError", "ImportError", "KeyError", "TypeError", "ValueError"),
    *("BadRequestError", "ForbiddenError", "OAuthError", "UnauthorizedError"),
    *("NoSuchPropertyException", "NotInstalledError", "StorageError"),
}
#: Airflow 3 raises it too while its API server or a secrets backend cannot be reached.
_NOT_FOUND = "AirflowNotFoundException"
_OF_RESPONSES = {"JSONDecodeError", "ValidationError"}
_KEYS = ("collection_task_id", "lotno", "destination", "checks")
#: Characters in the name of a folder that every file system takes.
_LONGEST_FOLDER = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]|^\.+$")


def check_destination(argument: str, value: str | ObjectStoragePath) -> str | ObjectStoragePath:
    """Check the form of a storage path, without connecting to anything, and return the path.

    :raises InvalidArgument: if it is not a string, has a scheme without a filesystem in Airflow, or breaks
        a rule of :func:`~airflow_provider_webcollect.landing.options.check_location`.
    """
    # do not use an instance's `fs`, which connects to the storage
    is_path = hasattr(type(value), "fs")
    path = str(value) if is_path else validation.text(argument, value)
    scheme = check_location(argument, path)
    # Airflow knows the scheme of every ObjectStoragePath
    if not (
        is_path
        or scheme in {*STORAGE_EXTRAS, "file"}
        or (scheme.islower() and (_is_registered(scheme) or _is_attached(path)))
    ):
        raise InvalidArgument(argument, path, f"Airflow has no filesystem for the scheme `{scheme}`")
    return value if is_path else path


def _is_registered(scheme: str) -> bool:
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

    # imported only when needed, since it loads all providers
    module = importlib.import_module("airflow.sdk.io" if AIRFLOW_V_3_0_PLUS else "airflow.io")
    return bool(module.has_fs(scheme))


def _is_attached(path: str) -> bool:
    """Return whether a DAG has attached a filesystem to Airflow for a path (``attach``)."""
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    try:
        return ObjectStoragePath(path).fs is not None
    except ValueError:
        return False


class Place(msgspec.Struct, frozen=True):
    """A source and the folder for its rows.

    :ivar checks: of these rows alone, not checked yet; None for those of the landing.
    """

    source: Source
    folder: str | ObjectStoragePath
    checks: Any = None

    def described_source(self) -> str:
        """Return what logs call the source: with the name of its task, if the file has one."""
        task = described(self.source.collection_task_id)
        return str(msgspec.structs.replace(self.source, collection_task_id=task))


def make_source(collection_task_id: object, lotno: object, where: str = "") -> Source:
    """Return the checked source; an empty batch number means no batch.

    :param collection_task_id: the task's id, or its name in the file of collection tasks.
    :param where: prefix of the arguments' names in messages.
    """
    from airflow_provider_webcollect.landing.log.commits import Source

    return Source(
        collection_task_id=task_id_of(f"{where}collection_task_id", collection_task_id),
        lotno=None if lotno is None or lotno == "" else validation.text(f"{where}lotno", lotno),
    )


def places(sources: object, folder: str | ObjectStoragePath, table_format: str | None = None) -> list[Place]:
    """Return the sources with their folders, no two of which overlap.

    :param sources: ids or names of tasks, or dicts of ``collection_task_id`` and, optionally, ``lotno``,
        ``destination`` and ``checks``.
    :param folder: the sources without a destination go to ``<task>`` or ``<task>/<batch>`` in it: the name
        or the id of the task, as the source has it.
    :param table_format: of all of them; for ``iceberg`` each names its table.
    :raises InvalidArgument: if a source is wrong, two of them share a folder, or two of them, one with the
        name and one with the id of the same task, have no destination.
    """
    entries = validation.items("sources", sources)
    places = [_place(f"sources[{index}]", entry, folder, table_format) for index, entry in enumerate(entries)]
    names = [f"sources[{index}]" for index in range(len(places))]
    refuse_shared_folders(names, [place.folder for place in places], table_format)
    firsts: dict[tuple[str, str | None], int] = {}
    for index, (entry, place) in enumerate(zip(entries, places, strict=True)):
        if isinstance(entry, Mapping) and entry.get("destination") is not None:
            continue
        source = place.source.collection_task_id.lower(), place.source.lotno
        if (first := firsts.setdefault(source, index)) != index:
            rule = f"it is of the same task as sources[{first}]; give one its own `destination`"
            raise InvalidArgument(f"sources[{index}]", entry, rule)
    return places


def _place(name: str, entry: object, folder: str | ObjectStoragePath, table_format: str | None) -> Place:
    if isinstance(entry, str | int):
        entry = {"collection_task_id": entry}
    if not isinstance(entry, Mapping):
        raise InvalidArgument(name, entry, "it must be the id or name of a task, or a dict")
    if unknown := [key for key in entry if key not in _KEYS]:
        raise InvalidArgument(name, unknown, f"its keys can be {', '.join(_KEYS)}")
    task = task_of(f"{name}.collection_task_id", entry.get("collection_task_id"))
    source = make_source(task.id, entry.get("lotno"), f"{name}.")
    own: Any = entry.get("destination")
    if own is None and table_format != "iceberg":
        folder = _inside(name, folder, task.name, source.lotno)
    else:
        folder = check_place(f"{name}.destination", own, table_format)
    return Place(source, folder, entry.get("checks"))


def check_place(argument: str, value: Any, table_format: str | None) -> str | ObjectStoragePath:
    """Check a destination as :func:`check_destination` does, or the name of a table of Iceberg."""
    if table_format == "iceberg":
        return check_table_name(argument, value)
    return check_destination(argument, value)


def _inside(name: str, folder: str | ObjectStoragePath, *texts: str | None) -> str | ObjectStoragePath:
    segments = [folder_name(name, text) for text in texts if text is not None]
    if isinstance(folder, str):
        return "/".join([folder.rstrip("/"), *segments])
    return folder.joinpath(*segments)


def folder_name(argument: str, text: str) -> str:
    """Return ``text`` as :func:`safe_name` does.

    :raises InvalidArgument: if it is too long for a file system.
    """
    name = safe_name(text)
    if len(name) > _LONGEST_FOLDER:
        rule = f"as a folder it has more than {_LONGEST_FOLDER} characters; give it its own `destination`"
        raise InvalidArgument(argument, text, rule)
    return name


def safe_name(text: str) -> str:
    """Return ``text`` as a folder name that any storage accepts; different texts give different names."""
    return _UNSAFE.sub(lambda match: "".join(f"~{byte:02x}" for byte in match[0].encode()), text)


def refuse_shared_folders(
    names: Sequence[str], folders: Sequence[str | ObjectStoragePath], table_format: str | None
) -> None:
    """Refuse two sources of one folder, or of one inside the other.

    :param names: what errors call the sources.
    :param folders: those of the sources, or their tables of Iceberg.
    :raises InvalidArgument: if two of them overlap.
    """
    # two names may mean the same catalog
    places = [text.partition(".")[2] if table_format == "iceberg" else text for text in map(str, folders)]
    # in sorted order, a folder comes right before the folders inside it
    ordered = sorted((place.rstrip("/") + "/", -index) for index, place in enumerate(places))
    for (outer, other), (inner, index) in itertools.pairwise(ordered):
        if inner.startswith(outer):
            rule = f"its folder must not be in that of {names[-other]}; give one its own `destination`"
            raise InvalidArgument(names[-index], str(folders[-index]), rule)


def storage_path(
    path: str | ObjectStoragePath, conn_id: str | None, known: set[str] | None = None
) -> ObjectStoragePath:
    """Return a path on object storage, whose connection Airflow has.

    :param path: may include the connection: ``s3://conn_id@bucket/…``.
    :param conn_id: the Airflow connection of the storage; None for the one in ``path``, if any.
    :param known: connections that Airflow is known to have; this one is added. With one set for several
        paths, each connection is looked up once.
    :raises StorageError: if Airflow has no such connection. It is not permanent, since Airflow 3 finds none
        while its API server cannot be reached.
    """
    from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, ObjectStoragePath

    if isinstance(path, str):
        named = conn_id or urlsplit(path).netloc.rpartition("@")[0]
    else:
        named = path.serialize()["conn_id"]
    known = set() if known is None else known
    if named and named not in known:
        try:
            # filesystems would use the credentials of the machine instead
            BaseHook.get_connection(named)
        except AirflowNotFoundException as error:
            raise StorageError(f"Airflow has no connection {named!r}, which is named for {path}") from error
        known.add(named)
    if not isinstance(path, str):
        return path
    # in Airflow 2, an explicit None overrides the connection in the path
    return ObjectStoragePath(path, conn_id=conn_id) if conn_id else ObjectStoragePath(path)


def connected_path(path: str, conn_id: str) -> ObjectStoragePath | Table:
    """Return a landing that a connection of Airflow opens; nothing is read from the storage.

    :param path: on the storage, or the name of a table of Iceberg, with the connection of its catalog.
    :raises InvalidArgument: if the path is wrong, Airflow has no such connection, or cannot use it.
    :raises StorageError: if Airflow, or what it connects to, is in trouble.
    :raises NothingLanded: if there is no such table.
    """
    from airflow_provider_webcollect.service.environment import variables_added

    if is_iceberg_name(path):
        return iceberg_table(path, conn_id)
    check_destination("landing", path)
    try:
        with variables_added(_AS_AIRFLOW):
            landing = storage_path(path, conn_id)
            folder_at(landing)
    except Exception as error:  # of Airflow or of the storage's own package
        # those of Airflow's database have many lines
        reason = str(error).partition("\n")[0]
        if not (_is_lasting(error) or type(error).__name__ == _NOT_FOUND):
            raise StorageError(f"{path} cannot be reached by {conn_id!r} now: {reason}") from error
        rule = f"{path} cannot be reached: {reason}"
        raise InvalidArgument("object_storage_conn_id", conn_id, rule) from error
    return landing


def _is_lasting(error: Exception) -> bool:
    """Return whether a connection is wrong; trouble of Airflow, a storage or a catalog passes."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & _OF_CONNECTIONS) and not kinds & _OF_RESPONSES


def check_landing(argument: str, value: str | ObjectStoragePath) -> None:
    """Check the form of the name of a landing: a storage path, or a table of Iceberg.

    :raises InvalidArgument: as :func:`check_destination` does.
    """
    if not is_iceberg_name(value):
        check_destination(argument, value)


def landing_path(value: str | ObjectStoragePath, conn_id: str | None) -> ObjectStoragePath | Table:
    """Return a landing as :func:`~airflow_provider_webcollect.landing.reader.read_landing` takes it.

    :param value: a storage path, or ``catalog.namespace.table`` for a table of Iceberg.
    :param conn_id: the Airflow connection of the storage, or of the catalog; None for that in the path, or
        ``iceberg_default``.
    :raises StorageError: if Airflow has no such connection, there is no filesystem for the path, or it cannot
        be set up.
    :raises NothingLanded: if there is no such table.
    :raises InvalidArgument: if Airflow cannot open the catalog.
    """
    if is_iceberg_name(value):
        return iceberg_table(str(value), conn_id or ICEBERG_DEFAULT)
    path = storage_path(value, conn_id)
    # an error of it names what is missing
    folder_at(path)
    return path


def read_landing(
    landing: Any,
    storage_options: Mapping[str, Any] | None = None,
    object_storage_conn_id: str | None = None,
    *,
    quarantined: int | None = None,
) -> LandedData:
    """Open landed rows for reading, in a task, a notebook or a script: from a folder or a table.

    :param landing: its folder or its ``_manifest.json``: an absolute local path, a URL that fsspec
        supports (``s3://bucket/prices``), also with an Airflow connection (``s3://conn_id@bucket/prices``),
        or an object with ``fs`` and ``path``, such as Airflow's ``ObjectStoragePath``. For a table of Iceberg
        the table, or its name, ``catalog.namespace.table``, with the connection of its catalog.
    :param storage_options: fsspec's options for the URL's filesystem, such as credentials.
    :param object_storage_conn_id: the Airflow connection of the storage, instead of options; None for the one
        in ``landing``, if any. Without a connection, Airflow is not needed.
    :param quarantined: the number of a commit whose rows are quarantined, to read these alone.
    :raises InvalidArgument: if ``landing`` cannot be one, or Airflow cannot open the storage with the
        connection; other errors are those of :func:`airflow_provider_webcollect.landing.reader.read_landing`.
    """
    from airflow_provider_webcollect.landing import reader
    from airflow_provider_webcollect.service.environment import variables_added

    is_open = hasattr(landing, "fs") or is_iceberg_table(landing)
    if is_open and object_storage_conn_id is not None:
        raise InvalidArgument(
            "object_storage_conn_id", object_storage_conn_id, "what has its filesystem or catalog needs none"
        )
    if hasattr(landing, "serialize"):
        # only for the check that Airflow has its connection
        with variables_added(_AS_AIRFLOW):
            storage_path(landing, None)
    connection = None if is_open else connection_of(str(landing), object_storage_conn_id)
    if connection is None:
        return reader.read_landing(landing, storage_options, quarantined=quarantined)
    if storage_options is not None:
        raise InvalidArgument("storage_options", "{…}", "the Airflow connection gives them")
    return reader.read_landing(connected_path(str(landing), connection), quarantined=quarantined)


def iceberg_table(name: str, conn_id: str, *, is_made: bool = False) -> Table:
    """Return a table of Iceberg.

    The other arguments and errors are those of :func:`~.landing.tables.iceberg.load_table`.

    :param conn_id: the Airflow connection of its catalog.
    :raises InvalidArgument: if Airflow has no such connection, or cannot open the catalog with it.
    """
    from airflow_provider_webcollect.landing.tables.iceberg import load_table

    return load_table(iceberg_catalog(conn_id), name, is_made=is_made)


def iceberg_catalog(conn_id: str) -> Catalog:
    """Return the catalog of an Airflow connection of type ``iceberg``.

    :raises ExtraMissing: if the provider of Iceberg is not installed.
    :raises InvalidArgument: if Airflow has no such connection, or cannot open the catalog with it.
    :raises StorageError: if the catalog, or its database, is in trouble.
    """
    require("airflow.providers.apache.iceberg.hooks.iceberg", "iceberg", "a table of Iceberg")
    from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook

    from airflow_provider_webcollect.service.environment import variables_added

    address = None
    try:
        with variables_added(_AS_AIRFLOW):
            connection = IcebergHook.get_connection(conn_id)
            address = connection.host or connection.extra_dejson.get("uri")
            return IcebergHook(conn_id).catalog
    except Exception as error:  # of Airflow or of the catalog
        if not _is_lasting(error):
            from airflow_provider_webcollect.landing.tables.table import catalog_error

            raise catalog_error(conn_id, address, error) from None
        # the rest of the error may show the connection's values
        said = type(error).__name__
        raise InvalidArgument("iceberg_conn_id", conn_id, f"its catalog cannot be opened: {said}") from None


def folder_at(path: ObjectStoragePath, table_format: str | None = None) -> Folder:
    """Return the folder at a path; nothing is read from the storage.

    :param table_format: of the table that it is, or will be; None for a folder with a manifest.
    :raises StorageError: if there is no filesystem for it, or it cannot be set up.
    """
    from airflow_provider_webcollect.landing.tables import landing_folder

    try:
        fs = path.fs
    except (ImportError, ValueError) as error:
        raise StorageError(_what_to_do(path, error), permanent=True) from error
    public_url = str(path).rstrip("/") if "@" in str(path) else None
    return landing_folder(fs, path.path, public_url, table_format=table_format)


def _what_to_do(path: ObjectStoragePath, error: Exception) -> str:
    extra = STORAGE_EXTRAS.get(path.protocol)
    if extra and (isinstance(error, ImportError) or not _is_registered(path.protocol)):
        return f"{path} needs an extra: pip install 'airflow-provider-webcollect[{extra}]' ({error})"
    return f"The storage of {path} cannot be used, check its connection (`object_storage_conn_id`): {error}"
