"""The formats of a part: JSON lines, CSV or Parquet. The declarations here import nothing heavy.

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
first columns of the landing, and the manifest says how many. Readers return null for the others.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from airflow_provider_webcollect.landing.errors import ExtraMissing
from airflow_provider_webcollect.service.arguments import as_given, encodable, items, one_of, parse_call
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats.profile import Inspector
    from airflow_provider_webcollect.landing.formats.types import ColumnType
    from airflow_provider_webcollect.landing.formats.writing import Columns, RowWriter, SupportsWrite

Compression = Literal["gzip", "zstd"]
OnCastError = Literal["fail", "null"]
_TEXT_COMPRESSIONS = ("none", "gzip", "zstd")
_PARQUET_COMPRESSIONS = ("snappy", "zstd", "gzip", "none")
_SUFFIXES: dict[str | None, str] = {None: "", "gzip": ".gz", "zstd": ".zst"}


class FileFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a format.

    :cvar name: ``jsonl``, ``csv`` or ``parquet``.
    :ivar compression: None for no compression.
    :ivar columns: the columns given by the user; None for all keys of the rows.
    :ivar column_types: the declared types by column; other columns are strings.
    :ivar on_cast_error: ``fail``, or ``null``, which writes null instead of a value that does not fit.
    """

    name: ClassVar[str]
    compression: str | None = None
    columns: tuple[str, ...] | None = None
    column_types: Mapping[str, ColumnType] = msgspec.field(default_factory=dict)
    on_cast_error: OnCastError = "fail"

    @property
    def suffix(self) -> str:
        """The suffix of parts' names: ``.jsonl.gz``, ``.parquet``."""
        raise NotImplementedError

    def source_of(self, column: str) -> str:
        """Return the column of the rows from which ``column`` takes its texts."""
        kind = self.column_types.get(column)
        return (kind and kind.from_) or column

    def require_extras(self) -> None:
        """Check that everything the format needs is installed.

        :raises ExtraMissing: if a package is missing; the message names the extra to install.
        """
        raise NotImplementedError

    def writer(self, sink: SupportsWrite, columns: Columns, inspector: Inspector | None = None) -> RowWriter:
        """Return a writer for a new part.

        :param sink: receives the bytes of the part.
        :param columns: the landing's columns so far; the part's first page may add to them.
        :param inspector: receives the written rows, decoded; rows that cannot be decoded, which only JSON
            lines accept, are left out. None to decode no more than needed.
        """
        raise NotImplementedError

    def columns_after(self, earlier: Sequence[str] = ()) -> Columns:
        """Return the columns with which a landing continues.

        :param earlier: the columns of its finished parts.
        """
        from airflow_provider_webcollect.landing.formats.writing import Columns

        return Columns(earlier) if self.columns is None else Columns(self.columns, fixed=True)


class _TextFormat(FileFormat, frozen=True, kw_only=True):
    compression: Compression | None = None

    @property
    def suffix(self) -> str:
        return f".{self.name}{_SUFFIXES[self.compression]}"

    def require_extras(self) -> None:
        require_compression(self.compression)


class JsonLines(_TextFormat, frozen=True, kw_only=True):
    """One JSON object per line.

    If columns are given, each row keeps only these, in their order, with unchanged values. Bytes that are not
    valid UTF-8 also stay unchanged; in the other formats they become U+FFFD.
    """

    name: ClassVar[str] = "jsonl"

    def writer(self, sink: SupportsWrite, columns: Columns, inspector: Inspector | None = None) -> RowWriter:
        """Return a writer for a new part; ``columns`` have an effect only if they are fixed."""
        from airflow_provider_webcollect.landing.formats.writing import JsonLinesWriter, Output

        return JsonLinesWriter(Output(sink, self.compression), columns, inspector)


class Csv(_TextFormat, frozen=True, kw_only=True):
    """Comma-separated values that keep null, texts and numbers distinct.

    UTF-8, commas, a header in every part, line feeds at the ends of lines; quoting as in RFC 4180. Strings
    are always quoted; numbers, ``true`` and ``false`` never are, and are copied unchanged, except ``-0``,
    which becomes ``0``. So null (nothing between the commas) differs from the empty string (``""``), and
    ``"1.50"`` from ``1.50``. Objects and lists are strings of compact JSON; if a key is repeated, its last
    value is kept. An absent key is null. In a part with a single column, null is ``""`` too, since most
    readers skip empty lines.

    :param sanitize_formulas: put ``'`` before strings and names that a spreadsheet may read as a formula.
        JSON numbers are not changed, since they cannot be formulas.
    """

    name: ClassVar[str] = "csv"
    sanitize_formulas: bool = False

    def writer(self, sink: SupportsWrite, columns: Columns, inspector: Inspector | None = None) -> RowWriter:
        from airflow_provider_webcollect.landing.formats.writing import CsvWriter, Output

        return CsvWriter(Output(sink, self.compression), columns, self.sanitize_formulas, inspector)


class Parquet(FileFormat, frozen=True, kw_only=True):
    """Parquet files.

    :param compression: Parquet's own: ``snappy``, ``zstd``, ``gzip``, or None for no compression.
    """

    name: ClassVar[str] = "parquet"
    compression: str | None = "snappy"

    @property
    def suffix(self) -> str:
        return ".parquet"

    def require_extras(self) -> None:
        require("pyarrow.parquet", "parquet", "file_format='parquet'")

    def writer(self, sink: SupportsWrite, columns: Columns, inspector: Inspector | None = None) -> RowWriter:
        self.require_extras()
        from airflow_provider_webcollect.landing.formats.parquet import ParquetWriter

        return ParquetWriter(sink, columns, self, inspector)

    def columns_after(self, earlier: Sequence[str] = ()) -> Columns:
        from airflow_provider_webcollect.landing.formats.types import made_of
        from airflow_provider_webcollect.landing.formats.writing import Columns

        made = made_of(self.column_types)
        names = earlier if self.columns is None else self.columns
        return Columns(names, fixed=self.columns is not None, made=made)


def _columns(argument: str, columns: object) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InvalidArgument(argument, columns, "it must be a list of names")
    names = tuple(encodable(f"{argument}[{index}]", name) for index, name in enumerate(columns))
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidArgument(f"{argument}[{index}]", name, "each column can be named only once")
    if not names:
        raise InvalidArgument(argument, columns, "it must name at least one column, or be None for all")
    return names


def _column_types(argument: str, types: object) -> Mapping[str, ColumnType]:
    # most DAGs declare none
    from airflow_provider_webcollect.landing.formats.types import parse_types

    return parse_types(argument, types)


FormatName = Literal["jsonl", "csv", "parquet"]
#: :func:`make_format` checks that the format has the compression.
CompressionName: TypeAlias = Annotated[Literal["none", "gzip", "zstd", "snappy"] | None, as_given]
ColumnNames: TypeAlias = Annotated[Sequence[str] | None, _columns]
#: Types by column, each a name or a dict.
ColumnTypes: TypeAlias = Annotated[Mapping[str, Any] | None, _column_types]


def make_format(
    file_format: FormatName = "jsonl",
    compression: CompressionName = None,
    columns: ColumnNames = None,
    column_types: ColumnTypes = None,
    on_cast_error: OnCastError = "fail",
    sanitize_formulas: bool = False,
) -> FileFormat:
    """Return the format for the arguments; imports nothing heavy, so it can be called in DAG files.

    :param file_format: ``jsonl``, ``csv`` or ``parquet``.
    :param compression: for JSON lines and CSV ``gzip``, ``zstd`` or ``none`` (default); for Parquet its own
        ``snappy`` (default), ``zstd``, ``gzip`` or ``none``.
    :param columns: the columns in order; other keys are dropped. None for all keys in order of appearance.
    :param column_types: types by column: ``string`` (the default), ``bool``, ``int32``, ``int64``,
        ``float32``, ``float64``, ``decimal(precision,scale)``, ``date32``, ``timestamp`` (microseconds, for
        times without a time zone), ``timestamptz`` (for times with one, in UTC) or ``url``. Values are parsed
        from their text (ISO 8601 for times, ``true`` or ``1`` for bool); surrounding white space is ignored,
        and an empty text is null. Only floats are rounded. A dict describes the texts, see
        :class:`~airflow_provider_webcollect.landing.formats.types.ColumnType`. Parquet is written typed; JSON
        lines and CSV keep their texts, and are typed when they are read as a table.
    :param on_cast_error: what to do if a value does not fit its column's type: ``fail`` (default), or
        ``null``, which writes null.
    :param sanitize_formulas: for CSV: put ``'`` before values that a spreadsheet may read as a formula; False
        by default.
    :raises InvalidArgument: if an argument is wrong, or does not apply to the format.
    """
    parsed = parse_call(
        make_format, file_format, compression, columns, column_types, on_cast_error, sanitize_formulas
    )
    fixed = parsed["columns"]
    types: Mapping[str, ColumnType] = parsed["column_types"] or {}
    choices = _PARQUET_COMPRESSIONS if file_format == "parquet" else _TEXT_COMPRESSIONS
    chosen = choices[0] if compression is None else compression
    packed = one_of("compression", chosen, choices, f" for file_format={file_format!r}")
    for name, kind in types.items() if fixed is not None else ():
        place = f"column_types[{name!r}]['from']"
        if (source := kind.from_ or name) not in fixed:
            argument = "column_types" if kind.from_ is None else place
            raise InvalidArgument(argument, source, "it must be one of `columns`")
        if kind.from_ is not None and name in fixed:
            rule = f"{name!r} is made of it, so `columns` cannot name {name!r} too"
            raise InvalidArgument(place, source, rule)
    if sanitize_formulas and file_format != "csv":
        raise InvalidArgument("sanitize_formulas", sanitize_formulas, "it requires file_format='csv'")
    common: dict[str, Any] = {
        "compression": None if packed == "none" else packed,
        "columns": fixed,
        "column_types": types,
        "on_cast_error": on_cast_error,
    }
    match file_format:
        case "csv":
            return Csv(**common, sanitize_formulas=sanitize_formulas)
        case "parquet":
            return Parquet(**common)
    return JsonLines(**common)


def chosen_columns(
    key: object, compare: object, columns: Sequence[str] | None
) -> tuple[list[str], list[str] | None]:
    """Return the columns of a key, and the compared columns or None for all columns.

    :param key: a column, or a list of columns.
    :param compare: a column, or a list of columns; None for all columns.
    :param columns: the columns of the landing; None if they are not known.
    :raises InvalidArgument: if an argument names no column, a column twice, or a column that does not exist.
    """
    compared = None if compare is None else _named("compare", compare, columns)
    return _named("key", key, columns), compared


def key_columns(argument: str, key: object, columns: Sequence[str] | None = None) -> list[str]:
    """Return the columns of a key as a list.

    :param argument: the name of the argument with the key, for errors.
    :param columns: the columns of the landing; None (default) if they are not known.
    :raises InvalidArgument: if there is no column, or one is blank, named twice, or does not exist.
    """
    names = _named(argument, key, columns)
    for index, name in enumerate(names):
        if not name.strip():
            place = argument if isinstance(key, str) else f"{argument}[{index}]"
            raise InvalidArgument(place, name, "it must be the name of a column")
    return names


def _named(argument: str, names: object, columns: Sequence[str] | None) -> list[str]:
    is_one = isinstance(names, str)
    listed = list(items(argument, [names] if is_one else names))
    for index, name in enumerate(listed):
        place = argument if is_one else f"{argument}[{index}]"
        if not isinstance(name, str):
            raise InvalidArgument(place, name, "it must be the name of a column")
        encodable(place, name)
        if columns is not None:
            one_of(place, name, tuple(columns), ", the columns of the landing")
        if name in listed[:index]:
            raise InvalidArgument(place, name, "each column can be named only once")
    return listed


def require_compression(compression: Compression | None) -> None:
    """Raise :class:`ExtraMissing` if a package for ``compression`` is not installed."""
    if compression == "zstd":
        require("zstandard", "zstd", "compression='zstd'")


def require(package: str, extra: str | None, what: str) -> None:
    """Import ``package``.

    :param extra: the extra of this provider that installs it; None if there is none.
    :param what: what needs the package, such as an argument, for the error.
    :raises ExtraMissing: if it cannot be imported.
    """
    try:
        importlib.import_module(package)
    except ImportError as error:
        to_install = package if extra is None else f"airflow-provider-webcollect[{extra}]"
        raise ExtraMissing(
            f"{what} needs the package {package}, which cannot be imported here ({error}); install "
            f"{to_install}"
        ) from error
