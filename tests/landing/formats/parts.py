"""Write parts in memory, as landings do, and read them back with the package's and independent readers."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import zstandard

from airflow_provider_webcollect.landing.formats import CompressionName, FileFormat, FormatName
from airflow_provider_webcollect.landing.formats.reading import PartReader, part_reader
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.responses import Response, read_response

Row = dict[str, Any]
Kind = tuple[FormatName, CompressionName]

CSV: list[Kind] = [("csv", None), ("csv", "gzip"), ("csv", "zstd")]
TABLES: list[Kind] = [*CSV, ("parquet", "snappy"), ("parquet", "none")]
#: Every format but plain JSON lines, as options.
FORMATS: list[dict[str, Any]] = [
    {"file_format": "jsonl", "compression": "gzip"},
    {"file_format": "jsonl", "compression": "zstd"},
    {"file_format": "csv"},
    {"file_format": "csv", "compression": "gzip"},
    {"file_format": "csv", "compression": "zstd"},
    {"file_format": "parquet"},
    {"file_format": "parquet", "compression": "zstd"},
]
ALL_FORMATS = [{"file_format": "jsonl"}, *FORMATS]
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


def named(options: dict[str, Any]) -> str:
    return "-".join(str(value) for value in options.values())


def page(*rows: Any) -> list[msgspec.Raw]:
    """Return a page of rows as the client returns it; values that are not JSON texts are encoded."""
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    body = f'{{"data":{{"offset":1,"total":1,"restTotal":0,"data":[{",".join(texts)}]}}}}'
    return read_response(endpoints.read_data("t").result, Response(200, {}, body.encode())).rows


def land(file_format: FileFormat, *pages: Sequence[msgspec.Raw], earlier: Sequence[str] = ()) -> list[bytes]:
    """Write all pages, and return the parts.

    :param earlier: columns of earlier parts.
    """
    columns = file_format.columns_after(earlier)
    parts = []
    waiting = list(pages)
    while waiting:
        sink = io.BytesIO()
        with file_format.writer(sink, columns) as writer:
            took = 0
            while waiting and writer.write(waiting[0]):
                del waiting[0]
                took += 1
        assert took, "the first page of a part was refused"
        parts.append(sink.getvalue())
    return parts


def reader_of(file_format: FileFormat, names: Sequence[str]) -> PartReader:
    """Return the package's reader for the parts of a landing with these columns."""
    options = file_format.compression, names, file_format.column_types, file_format.on_cast_error
    chosen = part_reader(file_format.name, *options)
    assert chosen is not None
    return chosen


def rows_of(reader: PartReader, parts: Iterable[bytes]) -> list[Row]:
    """Return all rows of all parts, as the package reads them."""
    return [row for part in parts for row in reader.rows(io.BytesIO(part))]


def table_of(reader: PartReader, parts: Iterable[bytes]) -> pa.Table:
    """Return all parts as one table, as the package reads them."""
    return reader.joined(table for part in parts for table in reader.tables(io.BytesIO(part)))


def filled(row: Row, names: Iterable[str]) -> Row:
    """Return the row with all columns of the landing, null in those that it lacks."""
    return dict.fromkeys(names) | row


def as_texts(row: Row) -> Row:
    """Return the row as a table of texts has it."""
    return {
        name: value
        if value is None or isinstance(value, str)
        else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        for name, value in row.items()
    }


def plain(part: bytes, compression: str | None) -> bytes:
    match compression:
        case "gzip":
            return gzip.decompress(part)
        case "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(part)
    return part


def read_csv(part: bytes) -> list[dict[str, str | None]]:
    """Return all rows, with cells as texts; null differs from the empty text."""
    header = next(csv.reader(io.StringIO(part.decode(), newline=""), strict=True))
    return (
        pa.csv.read_csv(
            io.BytesIO(part),
            read_options=pa.csv.ReadOptions(block_size=max(len(part), 1 << 20)),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ).to_pylist()
        if header
        else []
    )


def csv_records(part: bytes) -> list[list[str]]:
    """Return header and rows as the standard library reads them."""
    csv.field_size_limit(1 << 30)
    return list(csv.reader(io.StringIO(part.decode(), newline=""), strict=True))


def read_parquet(part: bytes) -> list[Row]:
    rows: list[Row] = pq.read_table(io.BytesIO(part)).to_pylist()
    return rows


def read_jsonl(part: bytes) -> list[Row]:
    """Return all rows, with numbers as the texts that were written."""
    assert not part or part.endswith(b"\n")
    return [json.loads(line, parse_float=str, parse_int=str) for line in part.split(b"\n")[:-1]]


def read_part(name: str, part: bytes) -> list[Row]:
    """Return all rows of a part whose name says its format; numbers of JSON lines stay numbers."""
    if name.endswith(".parquet"):
        return read_parquet(part)
    part = plain(part, COMPRESSIONS.get(name[name.rindex(".") :]))
    if ".csv" in name:
        return read_csv(part)
    assert part.endswith(b"\n")
    return [json.loads(line) for line in part[:-1].split(b"\n")]
