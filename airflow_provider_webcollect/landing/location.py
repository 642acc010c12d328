"""Where a landing is: the paths and URLs that name its folder, and the filesystem that they lead to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_webcollect.landing.manifest import MANIFEST
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsspec import AbstractFileSystem

#: The extras of this package that install the filesystems of URLs.
STORAGE_EXTRAS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "azure"),
}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)
_BUCKET = re.compile(r"(?:(?P<conn_id>[^/@]*)@)?(?P<bucket>[^/@]+)(?:/|$)")


def check_location(argument: str, text: str) -> str:
    """Check the form of a folder's path or URL, and return its scheme; an absolute path has ``file``.

    :raises InvalidArgument: if it has neither a scheme nor an absolute path, chains filesystems (``::``), or
        names no bucket where the scheme needs one.
    """
    if "::" in text:
        raise InvalidArgument(argument, text, "it must not hold `::`, which chains filesystems")
    url = _URL.match(text)
    scheme, path = (url["scheme"], url["rest"]) if url else ("file", text)
    if scheme in STORAGE_EXTRAS and not _BUCKET.match(path):
        raise InvalidArgument(argument, text, f"it must name a bucket: {scheme}://bucket/folder")
    if scheme in {"file", "local"} and not path.startswith("/"):
        # a bucket whose scheme was forgotten would become a folder wherever the process happens to run
        raise InvalidArgument(
            argument, text, "it needs a scheme (s3://bucket/folder) or an absolute path (/data/folder)"
        )
    return scheme


def connection_of(text: str, conn_id: str | None) -> str | None:
    """Return the id of the Airflow connection for a path or URL; None to go without Airflow.

    :param text: may name it: ``s3://conn_id@bucket/folder``.
    :param conn_id: the one that was named beside it.
    :raises InvalidArgument: if both name one, and not the same.
    """
    url = _URL.match(text)
    extra = STORAGE_EXTRAS.get(url["scheme"]) if url else None
    place = _BUCKET.match(url["rest"]) if url and extra else None
    # Azure's own URLs are abfss://container@account.dfs.core.windows.net/folder
    named = place["conn_id"] if place and not (extra == "azure" and "." in place["bucket"]) else None
    if conn_id and named and conn_id != named:
        raise InvalidArgument("storage_conn_id", conn_id, f"{text} names another connection")
    return conn_id or named or None


class Located(NamedTuple):
    """A folder's path on a filesystem."""

    fs: AbstractFileSystem
    path: str


def locate(
    path: Any, storage_options: Mapping[str, Any] | None = None, storage_conn_id: str | None = None
) -> Located:
    """Return the filesystem of a landing and its folder's path on it.

    The arguments, and the errors :class:`ExtraMissing` and :class:`InvalidArgument`, are those of
    :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    """
    if not (hasattr(path, "fs") and hasattr(path, "path")):
        path = _opened(path, storage_options, storage_conn_id)
    elif storage_options is not None:
        raise InvalidArgument("storage_options", "{…}", "a path that has its filesystem needs none")
    elif storage_conn_id is not None:
        raise InvalidArgument("storage_conn_id", storage_conn_id, "a path that has its filesystem needs none")
    root = path.path.rstrip("/")
    return Located(
        path.fs, root.removesuffix(MANIFEST).rstrip("/") if root.endswith(f"/{MANIFEST}") else root
    )


def _opened(path: object, options: Mapping[str, Any] | None, conn_id: str | None) -> Any:
    """Return an object with the filesystem of a path, and the path on it."""
    if not isinstance(path, str | os.PathLike) or not (text := os.fspath(path)) or not isinstance(text, str):
        raise InvalidArgument("path", path, "it must be a folder's path or URL")
    scheme = check_location("path", text)
    if connection := connection_of(text, conn_id):
        if options is not None:
            raise InvalidArgument("storage_options", "{…}", "the Airflow connection gives them")
        # all else in landing/ goes without Airflow; here a caller asks for one of its connections
        from airflow_provider_webcollect.destinations import connected_path

        return connected_path(text, connection)
    return _with_options(text, scheme, options or {})


def _with_options(text: str, scheme: str, options: Mapping[str, Any]) -> Located:
    import fsspec

    if "://" not in text:
        return Located(fsspec.filesystem("file", **options), str(Path(text).resolve()))
    try:
        return Located(*fsspec.core.url_to_fs(text, **options))
    except ImportError as error:
        from airflow_provider_webcollect.landing.errors import ExtraMissing

        extra = STORAGE_EXTRAS.get(scheme)
        hint = f"; install airflow-provider-webcollect[{extra}]" if extra else ""
        raise ExtraMissing(f"{text} cannot be reached: {error}{hint}") from error
    except ValueError as error:
        raise InvalidArgument("path", text, f"it cannot be opened: {error}") from error
