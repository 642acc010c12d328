"""Reading parts, as rows or as Arrow tables.

No part is completely in memory: files are read a few megabytes at a time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec

from airflow_provider_webcollect.landing.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats import Compression, require, require_compression
from airflow_provider_webcollect.landing.formats.types import ColumnType, made_of
from airflow_provider_webcollect.landing.formats.writing import (
    Columns,
    Row,
    batches,
    columns_of,
    decode_rows,
    from_lines,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_webcollect.landing.formats.values import Values


_CHUNK_BYTES = 4 * 1024 * 1024
#: Number of bytes that are read first, enough for a few rows.
FIRST_BYTES = 64 * 1024
_PARQUET_ROWS = 10_000
#: Cells of one row of CSV: an opening quote and the quoted text, or the unquoted text.
_CELLS = re.compile(r'(?:^|,)(?:(")([^"]*(?:""[^"]*)*)"|([^,]*))')
#: A placeholder column, with which a table without any other column keeps its number of rows.
ROWS = "\0rows"


class PartReader(ABC):
    """Reads the parts of one landing.

    :param compression: None for no compression.
    :param columns: the landing's columns; empty for JSON lines without fixed columns. A part of CSV or
        Parquet may have only the first columns; the others are null.
    :param types: the types of columns, for tables; other columns are strings. Rows of JSON lines and CSV are
        not typed.
    :param on_cast_error: ``fail`` (default), or ``null`` to have null in place of a text that does not fit
        its type.
    :param is_sanitized: whether CSV was written with ``sanitize_formulas``, before which the texts had their
        types; False by default.
    """

    def __init__(
        self,
        compression: str | None,
        columns: Sequence[str],
        types: Mapping[str, ColumnType] = MappingProxyType({}),
        on_cast_error: str = "fail",
        is_sanitized: bool = False,
    ) -> None:
        self.compression = cast("Compression | None", compression)
        self.columns = columns
        self._types = types
        self._on_cast_error = on_cast_error
        self._is_sanitized = is_sanitized

    @abstractmethod
    def rows(self, source: BinaryIO) -> Iterator[Row]:
        """Yield the rows of a part."""

    @abstractmethod
    def tables(self, source: BinaryIO) -> Iterator[pa.Table]:
        """Yield the rows of a part as Arrow tables, which may have the column :data:`ROWS`.

        :raises CastFailed: if a text does not fit the type of its column, and may not become null.
        """

    @abstractmethod
    def count(self, source: BinaryIO, sha256: str) -> int | None:
        """Return the number of rows of a part; None if its SHA-256 is not ``sha256`` (hex digits)."""

    def schema(self) -> pa.Schema:
        """Return the columns that are known before reading, with their types."""
        return self.schema_of(self._landing().names)

    def schema_of(self, names: Sequence[str]) -> pa.Schema:
        """Return the Arrow schema of columns of the landing."""
        from airflow_provider_webcollect.landing.formats.values import schema

        return schema(names, self._types)

    def _landing(self) -> Columns:
        """Return the columns that are known before reading, with those that are made of them."""
        columns = Columns(fixed=bool(self.columns), made=made_of(self._types))
        columns.add(self.columns)
        return columns

    def _values(self) -> Values:
        from airflow_provider_webcollect.landing.formats.values import Values

        return Values(self._types, self._on_cast_error, is_sanitized=self._is_sanitized)

    def joined(self, tables: Iterator[pa.Table]) -> pa.Table:
        """Return the rows of all ``tables``, with null where a row lacks a column."""
        import pyarrow as pa

        whole = pa.concat_tables([self.schema().empty_table(), *tables], promote_options="default")
        return whole.drop_columns([ROWS]) if ROWS in whole.column_names else whole


def part_reader(
    file_format: str,
    compression: str | None,
    columns: Sequence[str],
    types: Mapping[str, ColumnType],
    on_cast_error: str = "fail",
    is_sanitized: bool = False,
) -> PartReader | None:
    """Return a reader for parts of a format, see :class:`PartReader`; None for an unknown format."""
    readers: dict[str, type[PartReader]] = {"jsonl": _JsonLines, "csv": _Csv, "parquet": _Parquet}
    reader = readers.get(file_format)
    return reader(compression, columns, types, on_cast_error, is_sanitized) if reader else None


class _TextReader(PartReader):
    """Reads text files, compressed or not."""

    def count(self, source: BinaryIO, sha256: str) -> int | None:
        digesting = _Digesting(source)
        try:
            rows = self._count(self._chunks(cast("BinaryIO", digesting)))
        except Exception:
            # a part with other bytes than were written is damaged: the decoding error then says nothing new
            if digesting.failed or digesting.sha256() == sha256:
                raise
            return None
        return rows if digesting.sha256() == sha256 else None

    @abstractmethod
    def _count(self, chunks: Iterator[bytes]) -> int:
        """Return the number of rows in a part."""

    def _chunks(self, source: BinaryIO) -> Iterator[bytes]:
        plain = decompressed(source, self.compression)
        sizes = itertools.chain([FIRST_BYTES], itertools.repeat(_CHUNK_BYTES))
        return itertools.takewhile(bool, map(plain.read, sizes))

    def _lines(self, source: BinaryIO) -> Iterator[list[bytes]]:
        """Yield lists of lines, without line feeds."""
        rest = b""
        for chunk in self._chunks(source):
            *lines, rest = (rest + chunk).split(b"\n")
            yield lines
        if rest:
            yield [rest]


class _JsonLines(_TextReader):
    def rows(self, source: BinaryIO) -> Iterator[Row]:
        for lines in self._lines(source):
            yield from map(_object, lines)

    def tables(self, source: BinaryIO) -> Iterator[pa.Table]:
        import pyarrow as pa

        from airflow_provider_webcollect.landing.formats.values import as_texts

        columns, parsed = self._landing(), self._values()
        for lines in self._lines(source):
            for raw in batches([msgspec.Raw(line) for line in lines]):
                # numbers with a fraction or exponent are raw JSON
                batch: Sequence[Row]
                try:
                    (batch,) = decode_rows(raw)
                except UnreadableRow:
                    batch = [_object(bytes(line)) for line in raw]
                columns.add(columns.missing([batch]))
                values = columns_of(batch, columns.names)
                texts = {
                    name: as_texts(column, parsed.marks.get(name, ""))
                    for name, column in zip(columns.names, values, strict=True)
                }
                yield pa.table([*parsed.arrays(texts), pa.nulls(len(batch))], names=[*columns.names, ROWS])

    def _count(self, chunks: Iterator[bytes]) -> int:
        return sum(chunk.count(b"\n") for chunk in chunks)


class SingleRows(_JsonLines):
    """Reads files of single quarantined rows, see :func:`~.landing.formats.writing.as_lines`.

    A row that is not an object, or is nested too deeply, is read as a text in the column ``row``.
    """

    def __init__(self) -> None:
        super().__init__(None, ())

    def _lines(self, source: BinaryIO) -> Iterator[list[bytes]]:
        for lines in super()._lines(source):
            rows = [bytes(single.row) for single in from_lines(lines)]
            for index, row in enumerate(rows):
                try:
                    _object(row)
                except UnreadableRow:
                    rows[index] = msgspec.json.encode({"row": row.decode(errors="replace")})
            yield rows


class _Csv(_TextReader):
    """Reads all values as strings, or as None where there is nothing between the commas."""

    def rows(self, source: BinaryIO) -> Iterator[Row]:
        for batch in self._batches(source):
            yield from (dict(zip(self.columns, row, strict=True)) for row in batch)

    def tables(self, source: BinaryIO) -> Iterator[pa.Table]:
        import pyarrow as pa

        schema, parsed = self.schema(), self._values()
        marks = [
            (index, parsed.marks[name]) for index, name in enumerate(self.columns) if name in parsed.marks
        ]
        for batch in self._batches(source, marks):
            texts = dict.fromkeys(schema.names, pa.nulls(len(batch), pa.string()))
            for name, values in zip(self.columns, zip(*batch, strict=True), strict=False):
                texts[name] = pa.array(values, pa.string())
            yield pa.table(parsed.arrays(texts), schema=schema)

    def _batches(
        self, source: BinaryIO, marks: Sequence[tuple[int, str]] = ()
    ) -> Iterator[list[list[str | None]]]:
        """Yield batches of rows, without the header.

        :param marks: indices of columns, each with the prefix for its numbers and booleans, which have no
            quotes.
        """
        begun: list[bytes] = []
        missing: list[str | None] = []
        is_header, inside = True, False
        for lines in self._lines(source):
            batch: list[list[str | None]] = []
            for line in lines:
                begun.append(line)
                # after an odd number of quotes, a quoted text continues in the next line
                inside ^= line.count(b'"') % 2 == 1
                if not inside:
                    cells = _CELLS.findall(b"\n".join(begun).decode())
                    row = [
                        text.replace('""', '"') if quote else plain or None for quote, text, plain in cells
                    ]
                    for index, mark in marks if batch or not is_header else ():
                        if index < len(row) and not cells[index][0] and row[index]:
                            row[index] = f"{mark}{row[index]}"
                    batch.append(row)
                    begun.clear()
            if batch:
                if is_header:
                    missing = [None] * (len(self.columns) - len(batch[0]))
                yield [row + missing for row in batch[is_header:]]
                is_header = False
        if begun:
            raise UnreadableRow("the last row ends within a text")

    def _count(self, chunks: Iterator[bytes]) -> int:
        rows, inside = -1, False
        for chunk in chunks:
            pieces = chunk.split(b'"')
            rows += sum(piece.count(b"\n") for piece in pieces[inside::2])
            inside ^= len(pieces) % 2 == 0
        return rows


class _Parquet(PartReader):
    def rows(self, source: BinaryIO) -> Iterator[Row]:
        whole = dict.fromkeys(self.columns)
        for batch in _parquet_file(source).iter_batches(_PARQUET_ROWS):
            yield from (whole | row for row in batch.to_pylist())

    def tables(self, source: BinaryIO) -> Iterator[pa.Table]:
        import pyarrow as pa

        for batch in _parquet_file(source).iter_batches(_PARQUET_ROWS):
            yield pa.Table.from_batches([batch])

    def count(self, source: BinaryIO, sha256: str) -> int | None:
        if _Digesting(source).sha256() != sha256:
            return None
        source.seek(0)
        rows: int = _parquet_file(source).metadata.num_rows
        return rows


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


class _Digesting(io.RawIOBase):
    """A file that computes the digest of everything read from it.

    :ivar failed: whether a read has failed.
    """

    def __init__(self, source: BinaryIO) -> None:
        super().__init__()
        self._source = source
        self._digest = hashlib.sha256()
        self.failed = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._source.read(len(buffer))
        except BaseException:
            self.failed = True
            raise
        self._digest.update(data)
        buffer[: len(data)] = data
        return len(data)

    def sha256(self) -> str:
        """Read to the end and return the digest of the whole file."""
        while self.read(_CHUNK_BYTES):
            pass
        return self._digest.hexdigest()


def _parquet_file(source: BinaryIO) -> Any:
    require("pyarrow.parquet", "parquet", "reading Parquet")
    import pyarrow.parquet as pq

    return pq.ParquetFile(source)


def _object(line: bytes) -> Row:
    try:
        try:
            return msgspec.json.decode(line, type=Row)
        except UnicodeDecodeError:
            # values keep their original bytes, which need not be UTF-8
            return msgspec.json.decode(line.decode(errors="replace"), type=Row)
    except msgspec.DecodeError as error:
        return _lenient(line, error)
    except RecursionError as error:
        raise UnreadableRow("it is nested deeper than Python can read; the part has its JSON") from error


def _lenient(line: bytes, error: msgspec.DecodeError) -> Row:
    """Return a row with texts in place of numbers that Python does not have.

    :param error: the error of the usual decoder.
    :raises UnreadableRow: if the line is not a JSON object.
    """
    try:
        row = json.loads(
            line.decode(errors="replace"), parse_int=_integer, parse_float=_float, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise UnreadableRow(f"it cannot be read: {error}") from error
    return row


def _integer(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:  # it has more digits than Python converts
        return text


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _refuse(constant: str) -> None:
    raise ValueError(constant)
