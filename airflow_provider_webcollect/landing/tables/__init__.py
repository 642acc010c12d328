"""Landings that are tables of a table format instead of folders with a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from airflow_provider_webcollect.landing.storage.folder import Folder

TableFormat = Literal["delta"]


def check_table_format(table_format: str | None, file_format: str | None) -> str:
    """Return the format of the parts.

    :param table_format: ``delta``, or None for a folder with a manifest.
    :param file_format: None for the default: ``parquet`` for a table, else ``jsonl``.
    :raises InvalidArgument: if there is no such table format, or its parts cannot have the file format.
    """
    if table_format is None:
        return "jsonl" if file_format is None else file_format
    validation.one_of("table_format", table_format, get_args(TableFormat))
    if file_format not in (None, "parquet"):
        raise InvalidArgument(
            "file_format", file_format, f"table_format={table_format!r} goes with 'parquet' alone"
        )
    return "parquet"


def landing_folder(
    fs: AbstractFileSystem, root: str, shown: str | None = None, *, table_format: str | None = None
) -> Folder:
    """Return the folder of a landing; nothing is read from the storage.

    :param shown: how users name it, as for :class:`~.landing.storage.folder.Folder`.
    :param table_format: ``delta``, or None for a folder with a manifest.
    :raises InvalidArgument: if the table format does not reach such a filesystem.
    """
    if table_format is None:
        from airflow_provider_webcollect.landing.storage.folder import Folder

        return Folder(fs, root, shown)
    from airflow_provider_webcollect.landing.tables.delta import DeltaFolder

    return DeltaFolder(fs, root, shown)


def found_folder(fs: AbstractFileSystem, root: str, shown: str | None = None) -> Folder:
    """Return the folder of a landing that is there, as a table if it is one.

    :param shown: as for :func:`landing_folder`.
    """
    is_delta = bool(landing_folder(fs, root).inside("_delta_log").files())
    return landing_folder(fs, root, shown, table_format="delta" if is_delta else None)
