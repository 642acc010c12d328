"""Encoding rows as the bytes of a part: JSON lines, CSV or Parquet.

How a landing uses it::

    file_format = make_format("csv", compression="gzip")  # checks the arguments, imports nothing
    file_format.require_extras()  # where the landing runs: is everything installed?
    columns = file_format.columns_after(progress_columns)  # () for a new landing
    name = f"part-00001{file_format.suffix}"
    with folder.part(name) as file, file_format.writer(file, columns) as writer:
        for page in pages:
            if not writer.write(page.rows):
                break  # nothing of the page was written: end this part, the page is the first of the next one
    len(writer.columns)  # columns of this part: the first ones of `columns.names`

A part's header or schema comes before its first row. If a later page has a key without a column, the part
ends before that page. Columns are only ever added at the end, and parts never change: an older part has the
first of the landing's columns, and the manifest says how many. Readers take null for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.formats.parquet import RULE, OnCastError, Parquet, is_type
from airflow_provider_webcollect.landing.formats.text import Csv, JsonLines
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats.base import FileFormat

FILE_FORMATS = ("jsonl", "csv", "parquet")
ON_CAST_ERROR = ("fail", "null")
_TEXT_COMPRESSIONS = ("none", "gzip", "zstd")
_PARQUET_COMPRESSIONS = ("snappy", "zstd", "gzip", "none")


def make_format(
    file_format: str = "jsonl",
    compression: str | None = None,
    columns: Sequence[str] | None = None,
    column_types: Mapping[str, str] | None = None,
    on_cast_error: OnCastError = "fail",
    sanitize_formulas: bool = False,
) -> FileFormat:
    """Return the format for the arguments. Imports nothing heavy, so it may run while a DAG is parsed.

    :param file_format: ``jsonl``, ``csv`` or ``parquet``.
    :param compression: ``gzip``, ``zstd`` or ``none``, the default, for JSON lines and CSV; Parquet's own
        ``snappy``, the default, ``zstd``, ``gzip`` or ``none``.
    :param columns: the columns in order; other keys are dropped. None for all keys in order of appearance.
    :param column_types: for Parquet: types by column: ``string`` (the default), ``bool``, ``int32``,
        ``int64``, ``float32``, ``float64``, ``decimal(precision,scale)``, ``date32``, ``timestamp``
        (microseconds, for times without a time zone) or ``timestamptz`` (for times with one, stored in UTC).
        Values are parsed from their text (ISO 8601 for times, ``true`` or ``1`` for bool); surrounding white
        space is ignored, and an empty text is null. Only floats are rounded.
    :param on_cast_error: ``fail``, or ``null`` to store null if a value does not fit its column's type.
    :param sanitize_formulas: for CSV: put ``'`` before values that a spreadsheet may read as a formula.
    :raises InvalidArgument: if an argument is wrong, or does not apply to the format.
    """
    fixed = None if columns is None else _columns(columns)
    validation.one_of("file_format", file_format, FILE_FORMATS)
    validation.one_of("on_cast_error", on_cast_error, ON_CAST_ERROR)
    packed = _compression(file_format, compression)
    types = _types(column_types, fixed)
    if types and file_format != "parquet":
        raise InvalidArgument("column_types", column_types, "only file_format='parquet' has types")
    if validation.boolean("sanitize_formulas", sanitize_formulas) and file_format != "csv":
        raise InvalidArgument("sanitize_formulas", sanitize_formulas, "it goes with file_format='csv' alone")
    common: dict[str, Any] = {"compression": packed, "columns": fixed}
    match file_format:
        case "csv":
            return Csv(**common, sanitize_formulas=sanitize_formulas)
        case "parquet":
            return Parquet(**common, column_types=types, on_cast_error=on_cast_error)
    return JsonLines(**common)


def _compression(file_format: str, compression: str | None) -> str | None:
    choices = _PARQUET_COMPRESSIONS if file_format == "parquet" else _TEXT_COMPRESSIONS
    chosen = choices[0] if compression is None else compression
    validation.one_of("compression", chosen, choices, f" for file_format={file_format!r}")
    return None if chosen == "none" else chosen


def _columns(columns: object) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InvalidArgument("columns", columns, "it must be a list of names")
    for index, name in enumerate(columns):
        if not isinstance(name, str):
            raise InvalidArgument(f"columns[{index}]", name, "it must be a string")
        if name in columns[:index]:
            raise InvalidArgument(f"columns[{index}]", name, "every column can be named once")
    if not columns:
        raise InvalidArgument("columns", columns, "it must name at least one column, or be None for all")
    return tuple(columns)


def _types(types: object, columns: tuple[str, ...] | None) -> dict[str, str]:
    if types is None:
        return {}
    if not isinstance(types, Mapping):
        raise InvalidArgument("column_types", types, "it must be a dict of types by column")
    for name, kind in types.items():
        if not isinstance(name, str):
            raise InvalidArgument("column_types", name, "columns are named by strings")
        if columns is not None and name not in columns:
            raise InvalidArgument("column_types", name, "it must be one of `columns`")
        if not is_type(kind):
            raise InvalidArgument(f"column_types[{name!r}]", kind, RULE)
    return dict(types)
