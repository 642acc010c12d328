"""The location of a landing: parsed once from a text, opened with Airflow's or this machine's credentials."""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import msgspec

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from pyiceberg.catalog import Catalog

    from airflow_provider_webcollect.landing.storage.folder import Folder

TableFormat = Literal["delta", "iceberg"]
#: The Airflow connection of Iceberg's catalog, unless another is named.
ICEBERG_DEFAULT = "iceberg_default"
#: The extra of this package that installs the filesystem of a URL, by scheme.
STORAGE_EXTRAS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "azure"),
}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)
_BUCKET = re.compile(r"(?:(?P<conn_id>[^/@]*)@)?(?P<bucket>[^/@]+)(?:/|$)")
#: Characters that some URL parsers drop, or that control a terminal or end a line in it.
_DROPPED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[?#]$")
#: Maximum length of a folder's name that every file system accepts.
_LONGEST_FOLDER = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]|^\.+$")


class Connections(Protocol):
    """Opens locations: with Airflow's connections, or with the credentials of this machine."""

    def filesystem(self, location: Location) -> tuple[AbstractFileSystem, str]:
        """Return the filesystem of a folder, and the folder's path on it; nothing is read."""

    def catalog(self, conn_id: str) -> Catalog:
        """Return the Iceberg catalog of an Airflow connection."""


class Location(msgspec.Struct, frozen=True):
    """The location of a landing; :meth:`parse` refuses invalid texts.

    :ivar kind: ``folder`` for a folder with a manifest, or the format of a table.
    :ivar text: the text as it was given: the path or URL of the folder, or ``catalog.namespace.table`` for an
        Iceberg table.
    :ivar conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for no connection.
    """

    kind: Literal["folder"] | TableFormat
    text: str
    conn_id: str | None = None

    @classmethod
    def parse(
        cls,
        argument: str,
        value: Any,
        *,
        conn_id: str | None = None,
        may_differ: bool = False,
        table_format: TableFormat | None = None,
        is_exact: bool = False,
    ) -> Location:
        """Return the location to land in, without connecting to it.

        :param argument: the name of the argument, for errors.
        :param value: an absolute path; a URL, which may name the Airflow connection
            (``s3://conn_id@bucket/folder``); an ``ObjectStoragePath`` of Airflow; or the name of an Iceberg
            table.
        :param conn_id: the Airflow connection that another argument names; None or an empty text for none.
        :param may_differ: whether the URL may name another connection, which then takes precedence.
        :param table_format: the format of the table, which need not exist yet; None for a folder with a
            manifest.
        :param is_exact: whether to keep white space around the text, because it is not from a template.
        :raises InvalidArgument: if the text has neither a scheme nor an absolute path, chains filesystems
            (``::``), names no bucket although the scheme needs one, or could mean another place to some
            readers; if it must be the name of an Iceberg table, and is not; or if two connections are named,
            unless ``may_differ``.
        """
        if table_format is not None:
            arguments.one_of("table_format", table_format, get_args(TableFormat))
        # a template renders None as an empty text
        if conn_id is not None and conn_id != "":
            conn_id = arguments.text("object_storage_conn_id", conn_id)
        if table_format == "iceberg":
            name = arguments.text(argument, value)
            if not is_iceberg_name(name):
                raise InvalidArgument(argument, name, "an Iceberg table is named catalog.namespace.table")
            return cls("iceberg", name, conn_id or None)
        # look at the type: `fs` of the instance would connect to the storage
        if hasattr(type(value), "fs"):
            if not hasattr(value, "serialize"):
                rule = "it must be a text, or an ObjectStoragePath, whose connection Airflow has"
                raise InvalidArgument(argument, str(value), rule)
            value, is_exact = arguments.encodable(argument, str(value)), True
        if not (is_exact and isinstance(value, str) and value.strip()):
            value = arguments.text(argument, value)
        text = str.__str__(value).removesuffix(f"/{MANIFEST}")
        _check_url(argument, text)
        url = _URL.match(text)
        extra = STORAGE_EXTRAS.get(url["scheme"]) if url else None
        bucket = _BUCKET.match(url["rest"]) if url and extra else None
        # Azure's own URLs are abfss://container@account.dfs.core.windows.net/folder
        named = bucket["conn_id"] if bucket and not (extra == "azure" and "." in bucket["bucket"]) else None
        if conn_id and named and conn_id != named and not may_differ:
            raise InvalidArgument("object_storage_conn_id", conn_id, f"{text} names another connection")
        return cls(table_format or "folder", text, named or conn_id or None)

    @classmethod
    def parse_landed(
        cls,
        argument: str,
        value: Any,
        *,
        conn_id: str | None = None,
        may_differ: bool = False,
        is_exact: bool = False,
    ) -> Location:
        """Return a landing's location, as :meth:`parse` does; an Iceberg table is recognized by its name.

        :param value: as for :meth:`parse`, or the ``_manifest.json`` of a landing.
        """
        is_table = is_iceberg_name(value)
        table_format: TableFormat | None = "iceberg" if is_table else None
        return cls.parse(
            argument,
            value,
            conn_id=conn_id,
            may_differ=may_differ,
            table_format=table_format,
            is_exact=is_exact,
        )

    def child(self, argument: str, *names: str | None) -> Location:
        """Return the folder of a source inside this one; different names give different folders.

        :param argument: the name of the argument with the names, for errors.
        :param names: the names of the nested folders, the outermost first; None for no folder.
        :raises InvalidArgument: if a name is too long for a file system.
        """
        path = [folder_name(argument, name) for name in names if name is not None]
        return msgspec.structs.replace(self, text="/".join([self.text.rstrip("/"), *path]))

    @property
    def scheme(self) -> str:
        """The scheme of the URL; ``file`` for a path."""
        url = _URL.match(self.text)
        return url["scheme"] if url else "file"

    @property
    def bucket(self) -> str:
        """The bucket, without the connection; empty for local files."""
        return self._host.rpartition("@")[2]

    @property
    def _host(self) -> str:
        url = _URL.match(self.text)
        return url["rest"].partition("/")[0] if url else ""

    @property
    def storage(self) -> tuple[str, str]:
        """The connection and the address, which are equal for two texts that mean the same place.

        The connection is included because two connections may lead to different buckets of the same name.
        Schemes of the same store, such as ``s3`` and ``s3a``, give the same address.
        """
        conn_id = self.conn_id or self._host.rpartition("@")[0]
        store = STORAGE_EXTRAS.get(self.scheme)
        address = f"{store}://{self.bucket}/{self.key}" if store else self.asset_uri
        return conn_id if self.bucket else "", address

    @property
    def key(self) -> str:
        """The path within the bucket; for local files, the whole path."""
        url = _URL.match(self.text)
        path = url["rest"][len(self._host) :] if url else self.text
        if not self.bucket:
            # two leading slashes may have another meaning in POSIX, but not in Linux
            return posixpath.normpath(f"/{path.lstrip('/')}") if path else ""
        # only keys of object stores have no leading slash
        return (path[1:] if self.scheme in STORAGE_EXTRAS else path).rstrip("/")

    @property
    def uri(self) -> str:
        """The URI that names the connection too, if there is one: ``s3://conn_id@bucket/folder``."""
        # a path on this machine has no place for a connection
        if self.kind == "iceberg" or self.conn_id is None or not self.bucket:
            return self.text
        return f"{self.scheme}://{self.conn_id}@{self.asset_uri.partition('://')[2]}"

    @property
    def asset_uri(self) -> str:
        """The URI of the folder or table itself, without the connection: the same for all connections."""
        if self.kind == "iceberg":
            return f"iceberg://{self.text.replace('.', '/')}"
        separator = "/" if self.bucket and self.key and not self.key.startswith("/") else ""
        return f"{self.scheme}://{self.bucket}{separator}{self.key}"

    @property
    def dataset(self) -> tuple[str, str]:
        """The namespace and the name in OpenLineage, by its naming rules for object stores and files."""
        return f"{self.scheme}://{self.bucket}" if self.bucket else self.scheme, self.key or "/"

    def open(self, connections: Connections, *, is_made: bool = False) -> Folder:
        """Return the folder to land in; nothing is read, except an Iceberg table from its catalog.

        :param is_made: whether to create an Iceberg table, without columns, if it does not exist.
        :raises NothingLanded: if the Iceberg table does not exist, and ``is_made`` is False.
        """
        if self.kind == "iceberg":
            from airflow_provider_webcollect.landing.tables.iceberg import IcebergFolder, load_table

            catalog = connections.catalog(self.conn_id or ICEBERG_DEFAULT)
            return IcebergFolder(load_table(catalog, self.text, is_made=is_made))
        public_url = self.uri if self.conn_id is not None and self.bucket else None
        return folder_at(*connections.filesystem(self), public_url, table_format=self.kind)

    def open_landed(self, connections: Connections) -> Folder:
        """Return the folder of an existing landing, as a Delta Lake table if it is one."""
        if self.kind == "iceberg":
            return self.open(connections)
        return _landed_at(*connections.filesystem(self))


class MachineConnections:
    """Opens locations without Airflow, with the credentials of this machine or with given ones.

    :param storage_options: fsspec's options for the URL's filesystem, such as credentials.
    """

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise InvalidArgument("storage_options", "…", "it must be a dict of options of fsspec")
        self._storage_options = storage_options or {}

    def filesystem(self, location: Location) -> tuple[AbstractFileSystem, str]:
        """Return the filesystem of a folder, and the folder's path on it.

        :raises ExtraMissing: if the package for the URL's storage is not installed.
        :raises InvalidArgument: if fsspec does not support the URL, or the location names an Airflow
            connection.
        """
        if location.conn_id is not None:
            rule = "it names an Airflow connection: give an ObjectStoragePath with this connection"
            raise InvalidArgument("landing", location.text, rule)
        import fsspec

        try:
            return fsspec.core.url_to_fs(location.text, **self._storage_options)  # type: ignore[no-any-return]
        except ImportError as error:
            from airflow_provider_webcollect.landing.errors import ExtraMissing

            extra = STORAGE_EXTRAS.get(location.scheme)
            hint = f"; install airflow-provider-webcollect[{extra}]" if extra else ""
            raise ExtraMissing(f"{location.text} cannot be reached: {error}{hint}") from error
        except ValueError as error:
            raise InvalidArgument("landing", location.text, f"it cannot be opened: {error}") from error

    def catalog(self, conn_id: str) -> Catalog:
        """Raise :class:`InvalidArgument`: only Airflow has the connection of a catalog."""
        raise InvalidArgument("landing", conn_id, "only Airflow has the connection of a catalog")


def is_iceberg_name(value: object) -> bool:
    """Return whether a value has the form ``catalog.namespace.table`` and is not a path."""
    if not isinstance(value, str) or re.search(r"[/\\]", value):
        return False
    names = value.split(".")
    return len(names) >= 3 and all(names)


def is_iceberg_table(value: object) -> bool:
    """Return whether a value is a pyiceberg table."""
    return type(value).__module__.startswith("pyiceberg.")


def is_opened(landing: object) -> bool:
    """Return whether a value has its own filesystem or catalog: a path object, or an Iceberg table."""
    return (hasattr(landing, "fs") and hasattr(landing, "path")) or is_iceberg_table(landing)


def landing_at(landing: Any, storage_options: Mapping[str, Any] | None = None) -> Folder:
    """Return the folder of an existing landing, as a table if it is one.

    The arguments and errors are as in :func:`~airflow_provider_webcollect.landing.reader.read_landing`.

    :param landing: the landing; a ``Folder`` is returned as it is.
    """
    from airflow_provider_webcollect.landing.storage.folder import Folder

    if isinstance(landing, Folder):
        return landing
    if is_opened(landing):
        is_table = is_iceberg_table(landing)
        if storage_options is not None:
            rule = "it must be None, since an Iceberg table has its own catalog"
            if not is_table:
                rule = "it must be None, since the path has its own filesystem"
            raise InvalidArgument("storage_options", "{…}", rule)
        if is_table:
            from airflow_provider_webcollect.landing.tables.iceberg import IcebergFolder

            return IcebergFolder(landing)
        return _landed_at(landing.fs, landing.path)
    text = os.fspath(landing) if isinstance(landing, str | os.PathLike) else None
    if not text or not isinstance(text, str):
        raise InvalidArgument("landing", landing, "it must be a folder's path or URL")
    return Location.parse("landing", text, is_exact=True).open_landed(MachineConnections(storage_options))


def _landed_at(fs: AbstractFileSystem, root: str) -> Folder:
    from airflow_provider_webcollect.landing.storage.commit_log import CommitLog

    folder = folder_at(fs, root)
    return folder_at(fs, root, table_format=CommitLog(folder).table_format())


def folder_at(
    fs: AbstractFileSystem, root: str, public_url: str | None = None, *, table_format: str | None = None
) -> Folder:
    """Return the folder of a landing, without reading the storage.

    :param root: the path of the folder, or of its manifest.
    :param public_url: the URL that users see, as for :class:`~.landing.storage.folder.Folder`; None for the
        default.
    :param table_format: ``delta`` if the folder is, or will be, a Delta Lake table.
    """
    # the root of a disk keeps its slash
    root = root.rstrip("/").removesuffix(f"/{MANIFEST}").rstrip("/") or root[:1]
    if table_format == "delta":
        from airflow_provider_webcollect.landing.tables.delta import DeltaFolder

        return DeltaFolder(fs, root, public_url)
    from airflow_provider_webcollect.landing.storage.folder import Folder

    return Folder(fs, root, public_url)


def _check_url(argument: str, text: str) -> None:
    if "::" in text:
        raise InvalidArgument(argument, text, "it must not hold `::`, which chains filesystems")
    if _DROPPED.search(text):
        raise InvalidArgument(
            argument,
            text,
            "it must hold no control character, and not end with `?` or `#`, which would be dropped",
        )
    url = _URL.match(text)
    scheme, path = (url["scheme"], url["rest"]) if url else ("file", text)
    if scheme in STORAGE_EXTRAS and not _BUCKET.match(path):
        raise InvalidArgument(argument, text, f"it must name a bucket: {scheme}://bucket/folder")
    if scheme in {"file", "local"} and not path.startswith("/"):
        # without a scheme, the name of a bucket would become a folder in the working directory
        raise InvalidArgument(
            argument, text, "it needs a scheme (s3://bucket/folder) or an absolute path (/data/folder)"
        )
    if scheme in STORAGE_EXTRAS and not {"", ".", ".."}.isdisjoint(path.rstrip("/").split("/")):
        raise InvalidArgument(
            argument, text, "it must have no segment that is empty, `.` or `..`, which some readers leave out"
        )


def folder_name(argument: str, text: str) -> str:
    """Return ``text`` as a folder name that any storage accepts; different texts give different names.

    :param argument: the name of the argument with the text, for errors.
    :raises InvalidArgument: if the folder name is too long for a file system.
    """
    # a blank does not become ~20: `Shop 2` would be `Shop~202`, which people read as another number
    name = _UNSAFE.sub(
        lambda match: "~_" if match[0] == " " else "".join(f"~{byte:02x}" for byte in match[0].encode()), text
    )
    if len(name) > _LONGEST_FOLDER:
        rule = f"as a folder it has more than {_LONGEST_FOLDER} characters; give it its own `destination`"
        raise InvalidArgument(argument, text, rule)
    return name


def refuse_overlaps(names: Sequence[str], locations: Sequence[Location]) -> None:
    """Refuse two sources with the same folder or table, or with one folder inside the other.

    :param names: the names of the sources for errors.
    :param locations: the locations of the sources' rows.
    :raises InvalidArgument: if two of them overlap.
    """
    # the catalog's name is left out, since two names may mean the same catalog
    places = [
        ("", location.text.partition(".")[2]) if location.kind == "iceberg" else location.storage
        for location in locations
    ]
    # in sorted order, a folder comes right before the folders inside it
    ordered = sorted(
        (conn_id, place.rstrip("/") + "/", -index) for index, (conn_id, place) in enumerate(places)
    )
    for (opener, outer, other), (opened_by, inner, index) in itertools.pairwise(ordered):
        if opener == opened_by and inner.startswith(outer):
            rule = f"its folder must not be in the folder of {names[-other]}; give one its own `destination`"
            raise InvalidArgument(names[-index], locations[-index].text, rule)
