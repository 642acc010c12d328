"""Writing parts: rows are decoded as far as needed, counted and written as JSON lines or CSV.

The classes that the writers of all formats share are here, too: the columns of a landing, and the base of
writers of tables. The writer of Parquet has a module of its own. Rows that are quarantined one by one are
written to files of their own, whatever the format.
"""

from __future__ import annotations

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from airflow_provider_webcollect.landing.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats import Compression, require_compression
from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS, Inspector

if TYPE_CHECKING:
    from typing import Self

#: Bytes of JSON that are decoded at a time; a single row may be larger.
BATCH_BYTES = 4 * 1024 * 1024

Row = dict[str, Any]
#: The values of a column, one per row; ``UNSET`` where a row has none.
Column = Sequence[Any]
Rows = Sequence[msgspec.Raw]
#: The rows of a page in batches, which can be iterated repeatedly.
Batches = Iterable[Sequence[Row]]
V = TypeVar("V")
_encode = msgspec.json.Encoder().encode


def _exact(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


# floats keep their original text
_VALUES = msgspec.json.Decoder(list[Row], float_hook=_exact)
_SLICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def decode_rows(rows: Rows) -> Batches:
    """Decode a page; a number with a fraction or exponent keeps its text, as :class:`msgspec.Raw`.

    A page of usual size is decoded at once and kept. A large one is decoded batch by batch whenever it is
    iterated, so that it is never completely in memory.

    :raises UnreadableRow: if a row is not a JSON object, now or during iteration.
    """
    parts = batches(rows)
    return [_decoded(parts[0], _VALUES)] if len(parts) == 1 else _DecodedAgain(parts)


def slices(rows: Rows) -> Iterator[dict[str, msgspec.Raw]]:
    """Yield the rows with their values as raw JSON."""
    for batch in batches(rows):
        yield from _decoded(batch, _SLICES)


def known_columns(names: Sequence[str], *, others_dropped: bool) -> Callable[[Rows], list[Column] | None]:
    """Return a faster decoder for pages with known columns, with the same values as :func:`decode_rows`.

    The decoder takes about 60 % of the time. It returns None for pages that need :func:`decode_rows`: large
    pages, pages with other keys, and pages that cannot be decoded.

    :param others_dropped: whether rows may have other keys, which are then ignored.
    """
    fields = [f"f{number}" for number in range(len(names))]
    try:
        row = msgspec.defstruct(
            "Row",
            [(field, Any, UNSET) for field in fields],
            rename=dict(zip(fields, names, strict=True)),
            forbid_unknown_fields=not others_dropped,
            gc=False,
        )
    except ValueError:
        # some characters cannot occur in field names
        return lambda rows: None
    decode = msgspec.json.Decoder(list[row], float_hook=_exact).decode  # type: ignore[valid-type]

    def columns(rows: Rows) -> list[Column] | None:
        if _is_large(rows):
            return None
        try:
            decoded = decode(_joined(rows))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return list(zip(*map(msgspec.structs.astuple, decoded), strict=True))

    return columns


def columns_of(batch: Sequence[Row], names: Sequence[str]) -> list[Column]:
    """Return the values of each column, with ``UNSET`` where a row has none."""
    return [[row.get(name, UNSET) for row in batch] for name in names]


class _DecodedAgain:
    """A large page, decoded batch by batch whenever it is iterated."""

    def __init__(self, batches: Sequence[Sequence[msgspec.Raw]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[Row]]:
        return (_decoded(batch, _VALUES) for batch in self._batches)


def batches(rows: Rows) -> list[Sequence[msgspec.Raw]]:
    """Return ``rows`` in batches of at most :data:`BATCH_BYTES`, or of one larger row."""
    if not _is_large(rows):
        return [rows]
    batches = []
    start = size = 0
    for index, row in enumerate(rows):
        if size and size + len(row) > BATCH_BYTES:
            batches.append(rows[start:index])
            start, size = index, 0
        size += len(row)
    return [*batches, rows[start:]]


def _is_large(rows: Rows) -> bool:
    return sum(map(len, rows)) > BATCH_BYTES


def _joined(rows: Rows) -> bytes:
    return b"[" + b",".join(rows) + b"]"


def _decoded(
    batch: Sequence[msgspec.Raw], decoder: msgspec.json.Decoder[list[dict[str, V]]]
) -> list[dict[str, V]]:
    text = _joined(batch)
    try:
        try:
            return decoder.decode(text)
        except UnicodeDecodeError:
            # files are UTF-8, and one invalid character must not prevent the landing of all rows
            return decoder.decode(text.decode(errors="replace"))
    except RecursionError as error:
        raise UnreadableRow(
            "a value in a row is nested too deeply; use file_format='jsonl' without `columns`"
        ) from error
    except msgspec.DecodeError as error:
        raise UnreadableRow(
            f"a row cannot be read: {error} (counted in a batch of {len(batch)} rows)"
        ) from error


class SupportsWrite(Protocol):
    """The destination for the bytes of a part. This package never closes it."""

    def write(self, data: bytes, /) -> Any:
        """Write ``data``."""


class Columns:
    """Names of columns in order: the user's own, or every key of the rows in order of first appearance.

    Names are only ever added at the end, so the columns of an earlier part are the first ones of this list.

    :param names: the names so far.
    :param fixed: whether rows add no names, and their other keys are dropped; False by default.
    :param made: the columns that are made of a column, by that column; they are added right after it.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        *,
        fixed: bool = False,
        made: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._names = dict.fromkeys(names)
        self._made = made or {}
        self.fixed = fixed
        self.add(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far."""
        return tuple(self._names)

    def missing(self, page: Batches) -> list[str]:
        """Return the keys of ``page`` that have no column yet; none if the columns are fixed."""
        if self.fixed:
            return []
        keys = dict.fromkeys(chain.from_iterable(chain.from_iterable(page)))
        return [key for key in keys if key not in self._names]

    def add(self, names: Iterable[str]) -> None:
        """Append columns, each with the columns that are made of it."""
        for name in names:
            self._names.update(dict.fromkeys((name, *self._made.get(name, ()))))


class InspectedRows:
    """Decodes rows for an inspector of their values, where the rows are written without decoding.

    :param columns: the columns of the landing. If they are fixed, only they are inspected. Otherwise, columns
        are taken from the rows, and the first :data:`~.landing.formats.profile.MAX_COLUMNS` are remembered.
    """

    def __init__(self, inspector: Inspector, columns: Columns) -> None:
        self._inspector = inspector
        self._fixed = columns.fixed
        # whether the rows have more columns than are remembered
        self._is_cut = False
        self._names = columns.names if columns.fixed else inspector.first
        self._known = self._decoder()

    def add(self, rows: Rows) -> None:
        """Pass the decoded rows to the inspector, without those that cannot be decoded."""
        if decoded := self._known(rows):
            self._inspector.add(self._names, decoded, len(rows))
            return
        for batch in batches(rows):
            self._add_unknown(batch)

    def _add_unknown(self, batch: Rows) -> None:
        decoded: list[Row] = []
        try:
            decoded = _decoded(batch, _VALUES)
        except UnreadableRow:
            for row in batch:
                with contextlib.suppress(UnreadableRow):
                    decoded += _decoded([row], _VALUES)
        names = self._names
        if not self._fixed:
            names = tuple(dict.fromkeys(chain(names, chain.from_iterable(decoded))))
        if decoded:
            self._inspector.add(names, columns_of(decoded, names), len(decoded))
        if names != self._names:
            most = max(MAX_COLUMNS, len(self._inspector.first))
            self._names, self._is_cut = names[:most], len(names) > most
            self._known = self._decoder()

    def _decoder(self) -> Callable[[Rows], list[Column] | None]:
        return known_columns(self._names, others_dropped=self._fixed or self._is_cut)


class RowWriter(ABC):
    """Encodes one part.

    As a context manager, it finishes the part, or after an error leaves it unfinished.

    :ivar columns: the part's columns, as far as known; empty for JSON lines without fixed columns.
    :ivar held_bytes: the size in bytes of the rows that are held in memory, and not encoded yet.
    :ivar misfits: the number of values that became null because they do not fit their type, by the column
        that has their texts.
    """

    columns: tuple[str, ...] = ()
    held_bytes = 0
    misfits: Mapping[str, int] = {}

    def flush(self) -> None:  # noqa: B027  # most formats hold no rows
        """Encode the held rows; :meth:`write` does so when there are many, and :meth:`close` at the end.

        :raises CastFailed: if a value does not fit its column's type, and ``on_cast_error`` is ``fail``.
        """

    @abstractmethod
    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        """Append a page of rows, all of them or none.

        :param rows: raw JSON objects.
        :return: False if the rows have a key that this part has no column for: then nothing was written, and
            the page belongs to the next part. The first page of a part is always written.
        :raises UnreadableRow: if a row is not a JSON object.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is still buffered: the compressor's trailer, the last row group and the footer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
            self.close()


class TableWriter(RowWriter):
    """Encodes a part with the landing's columns as known after the part's first page."""

    def __init__(self, columns: Columns, inspector: Inspector | None = None) -> None:
        self._landing = columns
        self._inspector = inspector
        self._begun = False
        self._known: Callable[[Rows], list[Column] | None] = lambda rows: None

    def write(self, rows: Rows) -> bool:
        if not rows:
            return True
        if decoded := self._known(rows):
            self._add(decoded, len(rows))
            return True
        page = decode_rows(rows)
        if missing := self._landing.missing(page):
            if self._begun:
                return False
            self._landing.add(missing)
        if not self._landing.names:
            raise UnreadableRow(
                "no row of the first page has any field, so there are no columns to write; "
                "name the columns, or write JSON lines"
            )
        self._begin()
        for batch in page:
            self._add(columns_of(batch, self.columns), len(batch))
        return True

    def close(self) -> None:
        self._begin()
        self._end()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.columns = self._landing.names
            self._known = known_columns(self.columns, others_dropped=self._landing.fixed)
            self._head()

    def _add(self, columns: Sequence[Column], rows: int) -> None:
        self._append(columns, rows)
        if self._inspector is not None:
            self._inspector.add(self.columns, columns, rows)

    @abstractmethod
    def _head(self) -> None:
        """Write the header or schema; the columns are known by now."""

    @abstractmethod
    def _append(self, columns: Sequence[Column], rows: int) -> None:
        """Write rows.

        :param columns: the values of each of the part's columns.
        :param rows: the number of rows.
        """

    @abstractmethod
    def _end(self) -> None:
        """Finish the file after the last row."""


_ZSTD_LEVEL = 3
#: isal's highest level is 3, which takes many times longer for little saving.
_ISAL_LEVEL = 2
#: zlib's highest level is 9; level 1 comes closest to the speed of isal.
_ZLIB_LEVEL = 1
#: Makes zlib write a gzip file with header and checksum.
_GZIP_WINDOW = 31


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class Output:
    """Writes to ``sink``, compressed as one gzip member or zstd frame, with a checksum.

    gzip is compressed by isal (the extra ``gzip``), or more slowly by zlib.

    :param compression: None for no compression.
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
    """Writes each row as a line, unchanged or reduced to fixed columns."""

    def __init__(self, output: Output, columns: Columns, inspector: Inspector | None) -> None:
        self._output = output
        self._cut = columns.fixed
        self._inspected = InspectedRows(inspector, columns) if inspector else None
        self.columns = columns.names if columns.fixed else ()

    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        # each row is already a single line
        lines = rows
        if self._cut:
            cut = ({name: row[name] for name in self.columns if name in row} for row in slices(rows))
            lines = [msgspec.Raw(_encode(row)) for row in cut]
        self._output.write(b"\n".join([*lines, b""]))
        if self._inspected is not None:
            self._inspected.add(rows)
        return True

    def close(self) -> None:
        self._output.close()


#: Characters that spreadsheets may read as the start of a formula (OWASP, CSV Injection); the last four are
#: full-width.
FORMULA_STARTS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")

_NOTHING = msgspec.Raw(b"")
_EMPTY_TEXT = msgspec.Raw(b'""')
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


#: The suffix of files with rows that are quarantined one by one.
SINGLE_ROWS_SUFFIX = ".rows.jsonl"
#: Separates the two values of a line; no JSON string contains it, since its quotes would be escaped.
_BETWEEN = b',"row":'


class _Broke(msgspec.Struct):
    """The first value of a line."""

    broke: list[str]


_decode = msgspec.json.Decoder(_Broke).decode


class SingleRow(NamedTuple):
    """A row that breaks rules about values, and is quarantined by itself.

    :ivar broke: the names of these rules, in the order of declaration.
    :ivar row: the row's JSON as the service sent it.
    """

    broke: Sequence[str]
    row: msgspec.Raw


def as_lines(rows: Iterable[SingleRow]) -> bytes:
    """Return single quarantined rows as lines of JSON, for a file of their own.

    Each row is a line ``{"broke": [<names of rules>], "row": <the row>}``. The row is as the service sent it,
    whatever the format of the landing.
    """
    return b"".join(b'{"broke":%s%s%s}\n' % (_encode(row.broke), _BETWEEN, row.row) for row in rows)


def from_lines(lines: Iterable[bytes]) -> Iterator[SingleRow]:
    """Yield the single rows of a file's lines, which may end with line feeds.

    :raises UnreadableRow: if a line is incomplete.
    """
    for line in lines:
        broke, _, row = line.rstrip(b"\n").partition(_BETWEEN)
        try:
            names = _decode(broke + b"}").broke
        except msgspec.DecodeError:
            names = None
        if names is None or not row.endswith(b"}"):
            raise UnreadableRow("it is no line of quarantined rows")
        yield SingleRow(names, msgspec.Raw(row[:-1]))
