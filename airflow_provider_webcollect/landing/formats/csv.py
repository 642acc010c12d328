"""CSV that preserves the values.

UTF-8, commas, a header in every part, line feeds at the ends of lines; quoting as in RFC 4180. Strings are
always quoted; numbers, ``true`` and ``false`` never are, and are copied unchanged, except ``-0``, which
becomes ``0``. So null (nothing between the commas) differs from the empty string (``""``), and ``"1.50"``
from ``1.50``. Objects and lists are strings of compact JSON; of a repeated key the last value is kept. An
absent key is null. In a part with a single column, null is ``""`` too, since most readers skip
empty lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from airflow_provider_webcollect.landing.formats import compression as compressions
from airflow_provider_webcollect.landing.formats.base import FileFormat
from airflow_provider_webcollect.landing.formats.table_writer import TableWriter

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats.base import RowWriter, SupportsWrite
    from airflow_provider_webcollect.landing.formats.columns import Columns
    from airflow_provider_webcollect.landing.formats.rows import Values

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
class Csv(FileFormat):
    """Comma-separated values.

    :param sanitize_formulas: put ``'`` before strings and names that a spreadsheet may read as a formula.
        JSON numbers are not changed, since they cannot be formulas.
    """

    name: ClassVar[str] = "csv"
    compression: compressions.Compression | None = None
    columns: tuple[str, ...] | None = None
    sanitize_formulas: bool = False

    @property
    def suffix(self) -> str:
        """The ending of parts' names."""
        return ".csv" + compressions.SUFFIXES[self.compression]

    def require_extras(self) -> None:
        """Raise :class:`ExtraMissing` if the compression is not installed."""
        compressions.require_extras(self.compression)

    def writer(self, sink: SupportsWrite, columns: Columns) -> RowWriter:
        """Begin a part."""
        return _Writer(compressions.Output(sink, self.compression), columns, self.sanitize_formulas)


class _Writer(TableWriter):
    def __init__(self, output: compressions.Output, columns: Columns, sanitize: bool) -> None:
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
