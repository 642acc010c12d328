"""Landings that are tables of a table format instead of folders with a manifest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, get_args

from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from airflow_provider_webcollect.landing.storage.folder import Folder

TableFormat = Literal["delta", "iceberg"]


def check_table_format(table_format: str | None, file_format: str | None) -> str:
    """Return the format of the parts.

    :param table_format: ``delta`` or ``iceberg``, or None for a folder with a manifest.
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


def is_iceberg_name(destination: object) -> bool:
    """Return whether a destination is ``catalog.namespace.table``, and no path."""
    return (
        isinstance(destination, str) and destination.count(".") >= 2 and not re.search(r"[/\\]", destination)
    )


def check_table_name(argument: str, value: object) -> str:
    """Return the name of a table: of its catalog, of its namespace or several, and its own.

    :raises InvalidArgument: if it is not such a text.
    """
    name = validation.text(argument, value)
    if not is_iceberg_name(name) or not all(name.split(".")):
        raise InvalidArgument(argument, name, "a table of Iceberg is named catalog.namespace.table")
    return name


def is_iceberg_table(path: object) -> bool:
    """Return whether something is a table of pyiceberg."""
    return type(path).__module__.startswith("pyiceberg.")


def landing_folder(
    fs: AbstractFileSystem, root: str, public_url: str | None = None, *, table_format: str | None = None
) -> Folder:
    """Return the folder of a landing; nothing is read from the storage.

    :param public_url: how users name it, as for :class:`~.landing.storage.folder.Folder`.
    :param table_format: ``delta``, or None for a folder with a manifest; a table of Iceberg is found by its
        catalog, see :class:`~.landing.tables.iceberg.IcebergFolder`.
    """
    if table_format is None:
        from airflow_provider_webcollect.landing.storage.folder import Folder

        return Folder(fs, root, public_url)
    from airflow_provider_webcollect.landing.tables.delta import DeltaFolder

    return DeltaFolder(fs, root, public_url)
