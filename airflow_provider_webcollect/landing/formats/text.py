"""The text formats, JSON lines and CSV, and their compression piece by piece."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from airflow_provider_webcollect.landing.formats import Compression, require_compression
from airflow_provider_webcollect.landing.formats.base import (
    Column,
    Columns,
    InspectedRows,
    RowWriter,
    SupportsWrite,
    TableWriter,
    slices,
)

if TYPE_CHECKING:
    from typing import BinaryIO

    from airflow_provider_webcollect.landing.formats.profile import Inspector


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


def decompressed(source: BinaryIO, compression: Compression | None) -> BinaryIO:
    """Return a file that reads the decompressed bytes of ``source``."""
    match compression:
        case "gzip":
            try:
                from isal import igzip
            except ImportError:
                return cast("BinaryIO", gzip.GzipFile(fileobj=source))
            return cast("BinaryIO", igzip.IGzipFile(fileobj=source))  # type: ignore[no-untyped-call]
        case "zstd":
            require_compression(compression)
            import zstandard

            return zstandard.ZstdDecompressor().stream_reader(source, closefd=False)
    return source


def _compressor(compression: Compression | None) -> _Compressor | None:
    match compression:
        case "gzip":
            try:
                from isal import isal_zlib
            except ImportError:
                return zlib.compressobj(_ZLIB_LEVEL, wbits=_GZIP_WINDOW)
            return isal_zlib.compressobj(_ISAL_LEVEL, wbits=_GZIP_WINDOW)
        case "zstd":
            require_compression(compression)
            import zstandard

            return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    return None


class JsonLinesWriter(RowWriter):
    """Writes rows as they are, or reduced to fixed columns, each a line."""

    def __init__(self, output: Output, columns: Columns, inspector: Inspector | None) -> None:
        self._output = output
        self._cut = columns.fixed
        self._inspected = InspectedRows(inspector, columns) if inspector else None
        self.columns = columns.names if columns.fixed else ()

    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        # each row is already a single line
        lines = _cut(rows, self.columns) if self._cut else rows
        self._output.write(b"\n".join([*lines, b""]))
        if self._inspected is not None:
            self._inspected.add(rows)
        return True

    def close(self) -> None:
        self._output.close()


def _cut(rows: Sequence[msgspec.Raw], names: Sequence[str]) -> list[msgspec.Raw]:
    """Return the rows with only ``names``, in this order."""
    encode = msgspec.json.Encoder().encode
    return [msgspec.Raw(encode({name: row[name] for name in names if name in row})) for row in slices(rows)]


#: Characters that spreadsheets may read as the start of a formula (OWASP, CSV Injection), also full-width.
FORMULA_STARTS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")

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


class CsvWriter(TableWriter):
    """Writes a header, and rows as :class:`~.landing.formats.Csv` describes them."""

    def __init__(
        self, output: Output, columns: Columns, sanitize: bool, inspector: Inspector | None = None
    ) -> None:
        super().__init__(columns, inspector)
        self._output = output
        self._sanitize = sanitize

    def _head(self) -> None:
        self._output.write(_encoded([self.columns], self._sanitize))

    def _append(self, columns: Sequence[Column], rows: int) -> None:
        self._output.write(_encoded(list(zip(*columns, strict=True)), self._sanitize))

    def _end(self) -> None:
        self._output.close()


def _encoded(rows: Sequence[Sequence[Any]], sanitize: bool) -> bytes:
    """Return the CSV lines of ``rows``, which all have the same number of values."""
    null = _EMPTY_TEXT if len(rows[0]) == 1 else _NOTHING
    cells = [[value if type(value) is str else _cell(value, null) for value in row] for row in rows]
    if sanitize:
        cells = [
            [f"'{cell}" if type(cell) is str and cell[:1] in FORMULA_STARTS else cell for cell in row]
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
    if value is None or value is msgspec.UNSET:
        return null
    return _encode(value).decode() if isinstance(value, dict | list) else value
