"""The text formats, JSON lines and CSV, and their compression piece by piece."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

import msgspec

from airflow_provider_webcollect.landing.formats.base import FileFormat, RowWriter, TableWriter, require
from airflow_provider_webcollect.landing.formats.rows import slices

if TYPE_CHECKING:
    from typing import BinaryIO

    from airflow_provider_webcollect.landing.formats.base import Columns, SupportsWrite
    from airflow_provider_webcollect.landing.formats.rows import Values

Compression = Literal["gzip", "zstd"]

SUFFIXES: dict[str | None, str] = {None: "", "gzip": ".gz", "zstd": ".zst"}
_ZSTD_LEVEL = 3
#: The highest of isal's levels is 3. Higher ones take many times longer for little saving.
_ISAL_LEVEL = 2
#: The highest of zlib's levels is 9. Without isal, this is the one closest to its speed.
_ZLIB_LEVEL = 1
#: Makes zlib write a gzip file with header and checksum.
_GZIP_WINDOW = 31


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class Output:
    """Writes to ``sink``, compressed: one gzip member or zstd frame, with a checksum.

    gzip is compressed by isal (the extra ``gzip``), or more slowly by zlib.
    """

    def __init__(self, sink: SupportsWrite, compression: Compression | None) -> None:
        self._sink = sink
        self._compressor = _compressor(compression)

    def write(self, data: bytes) -> None:
        """Write ``data``, or buffer it until there is enough."""
        if self._compressor is not None:
            data = self._compressor.compress(data)
        if data:
            self._sink.write(data)

    def close(self) -> None:
        """Write what is still buffered, and the trailer."""
        if self._compressor is not None:
            self._sink.write(self._compressor.flush())


def _require(compression: Compression | None) -> None:
    """Raise :class:`ExtraMissing` if a package for ``compression`` is not installed."""
    if compression == "zstd":
        require("zstandard", "zstd", "compression='zstd'")


def decompressed(source: BinaryIO, compression: Compression | None) -> BinaryIO:
    """Return a file that reads the decompressed bytes of ``source``."""
    match compression:
        case "gzip":
            return _gunzipped(source)
        case "zstd":
            _require(compression)
            import zstandard

            return zstandard.ZstdDecompressor().stream_reader(source, closefd=False)
    return source


def _gunzipped(source: BinaryIO) -> BinaryIO:
    try:
        from isal import igzip
    except ImportError:
        return cast("BinaryIO", gzip.GzipFile(fileobj=source))
    return cast("BinaryIO", igzip.IGzipFile(fileobj=source))  # type: ignore[no-untyped-call]


def _compressor(compression: Compression | None) -> _Compressor | None:
    match compression:
        case "gzip":
            return _gzip()
        case "zstd":
            _require(compression)
            import zstandard

            return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    return None


def _gzip() -> _Compressor:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.compressobj(_ZLIB_LEVEL, wbits=_GZIP_WINDOW)
    return isal_zlib.compressobj(_ISAL_LEVEL, wbits=_GZIP_WINDOW)


@dataclass(frozen=True, kw_only=True)
class _Text(FileFormat):
    compression: Compression | None = None
    columns: tuple[str, ...] | None = None

    @property
    def suffix(self) -> str:
        """The ending of parts' names."""
        return f".{self.name}{SUFFIXES[self.compression]}"

    def require_extras(self) -> None:
        """Raise :class:`ExtraMissing` if the compression is not installed."""
        _require(self.compression)


@dataclass(frozen=True, kw_only=True)
class JsonLines(_Text):
    """One JSON object per line.

    If columns are given, each row keeps only these, in their order, with unchanged values. Bytes that are not
    valid UTF-8 also stay unchanged; in the other formats they become U+FFFD.
    """

    name: ClassVar[str] = "jsonl"

    def writer(self, sink: SupportsWrite, columns: Columns) -> RowWriter:
        """Begin a part. Only fixed columns have an effect."""
        return _JsonLinesWriter(Output(sink, self.compression), columns)


class _JsonLinesWriter(RowWriter):
    def __init__(self, output: Output, columns: Columns) -> None:
        self._output = output
        self._cut = columns.fixed
        self.columns = columns.names if columns.fixed else ()

    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        # each row is already a single line
        lines = _cut(rows, self.columns) if self._cut else rows
        self._output.write(b"\n".join([*lines, b""]))
        return True

    def close(self) -> None:
        self._output.close()

    def abandon(self) -> None:
        """Write nothing more."""


def _cut(rows: Sequence[msgspec.Raw], names: Sequence[str]) -> list[msgspec.Raw]:
    """Return the rows with only ``names``, in this order."""
    encode = msgspec.json.Encoder().encode
    return [msgspec.Raw(encode({name: row[name] for name in names if name in row})) for row in slices(rows)]


#: Characters that spreadsheets may read as the start of a formula (OWASP, CSV Injection), also full-width.
_FORMULA_STARTS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")

_NOTHING = msgspec.Raw(b"")
_EMPTY_TEXT = msgspec.Raw(b'""')
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
#: A byte that never occurs in UTF-8.
_BACKSLASH = b"\xff"
#: JSON's escapes in strings. The escaped backslash comes first, since a character after it is not escaped;
#: then the most frequent ones.
_ESCAPES = {rb"\\": _BACKSLASH, rb"\"": b'""', rb"\n": b"\n", rb"\r": b"\r", rb"\t": b"\t"}
_ESCAPES |= {_encode(chr(code))[1:-1]: bytes([code]) for code in range(32)}


@dataclass(frozen=True, kw_only=True)
class Csv(_Text):
    """Comma-separated values that stay what they were.

    UTF-8, commas, a header in every part, line feeds at the ends of lines; quoting as in RFC 4180. Strings
    are always quoted; numbers, ``true`` and ``false`` never are, and are copied unchanged, except ``-0``,
    which becomes ``0``. So null (nothing between the commas) differs from the empty string (``""``), and
    ``"1.50"`` from ``1.50``. Objects and lists are strings of compact JSON; of a repeated key the last value
    is kept. An absent key is null. In a part with a single column, null is ``""`` too, since most readers
    skip empty lines.

    :param sanitize_formulas: put ``'`` before strings and names that a spreadsheet may read as a formula.
        JSON numbers are not changed, since they cannot be formulas.
    """

    name: ClassVar[str] = "csv"
    sanitize_formulas: bool = False

    def writer(self, sink: SupportsWrite, columns: Columns) -> RowWriter:
        """Begin a part."""
        return _CsvWriter(Output(sink, self.compression), columns, self.sanitize_formulas)


class _CsvWriter(TableWriter):
    def __init__(self, output: Output, columns: Columns, sanitize: bool) -> None:
        super().__init__(columns)
        self._output = output
        self._sanitize = sanitize

    def _head(self) -> None:
        self._output.write(_encoded([self.columns], self._sanitize))

    def _append(self, batch: Sequence[Values]) -> None:
        self._output.write(_encoded(batch, self._sanitize))

    def _end(self) -> None:
        self._output.close()

    def abandon(self) -> None:
        """Write nothing more."""


def _encoded(rows: Sequence[Sequence[Any]], sanitize: bool) -> bytes:
    """Return the CSV lines of ``rows``, which all have the same number of values."""
    null = _EMPTY_TEXT if len(rows[0]) == 1 else _NOTHING
    cells = [[value if type(value) is str else _cell(value, null) for value in row] for row in rows]
    if sanitize:
        cells = [
            [f"'{cell}" if type(cell) is str and cell[:1] in _FORMULA_STARTS else cell for cell in row]
            for row in cells
        ]
    # a JSON array quotes strings as CSV does, except for escapes, and contains no line feed
    lines = _encode_lines(cells).splitlines()
    return b"\n".join([_unescaped(line[1:-1]) if b"\\" in line else line[1:-1] for line in lines]) + b"\n"


def _unescaped(line: bytes) -> bytes:
    """Return ``line`` with JSON's escapes replaced by plain characters and doubled quotes."""
    escapes = iter(_ESCAPES.items())
    while b"\\" in line:
        line = line.replace(*next(escapes))
    return line.replace(_BACKSLASH, b"\\")


def _cell(value: Any, null: msgspec.Raw) -> Any:
    """Return the value that JSON encodes as the cell of ``value``, which is not a string."""
    if value is None:
        return null
    return _encode(value).decode() if isinstance(value, dict | list) else value
