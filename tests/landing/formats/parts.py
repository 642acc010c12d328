"""Landing rows as the engine does, without its files; and reading parts back with other people's readers."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import zstandard

from airflow_provider_webcollect.landing.formats import Columns, FileFormat
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.responses import Response, read_response

Pages = Iterable[Sequence[msgspec.Raw]]


def page(*rows: Any) -> list[msgspec.Raw]:
    """A page of rows as the client gives it: what is no text of JSON yet becomes it."""
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    body = f'{{"data":{{"offset":1,"total":1,"restTotal":0,"data":[{",".join(texts)}]}}}}'
    return read_response(endpoints.read_data("t").result, Response(200, {}, body.encode())).rows


def land(file_format: FileFormat, *pages: Sequence[msgspec.Raw], known: Sequence[str] = ()) -> list[bytes]:
    """Write all pages, then widen the parts that lack columns: the parts of the landing."""
    columns = file_format.columns_after(known)
    parts = list(written(file_format, columns, pages))
    return [widened(file_format, part, names, columns.names) for part, names in parts]


def written(
    file_format: FileFormat, columns: Columns, pages: Pages
) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Write all pages; yield every part with its columns."""
    waiting = list(pages)
    while waiting:
        sink = io.BytesIO()
        with file_format.writer(sink, columns) as writer:
            took = 0
            while waiting and writer.write(waiting[0]):
                del waiting[0]
                took += 1
        assert took, "the first page of a part was refused"
        yield sink.getvalue(), writer.columns


def widened(file_format: FileFormat, part: bytes, old: Sequence[str], new: Sequence[str]) -> bytes:
    """Rewrite a part if it lacks columns."""
    if len(old) == len(new):
        return part
    sink = io.BytesIO()
    file_format.widen(io.BytesIO(part), sink, old, new)
    return sink.getvalue()


def plain(part: bytes, compression: str | None) -> bytes:
    """Unpack a part."""
    match compression:
        case "gzip":
            return gzip.decompress(part)
        case "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(part)
    return part


def read_csv(part: bytes) -> list[dict[str, str | None]]:
    """All cells as texts; null is not the empty text."""
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
    """Header and rows as the standard library reads them."""
    csv.field_size_limit(1 << 30)
    return list(csv.reader(io.StringIO(part.decode(), newline=""), strict=True))


def read_parquet(part: bytes) -> list[dict[str, Any]]:
    """All rows."""
    return pq.read_table(io.BytesIO(part)).to_pylist()


def read_jsonl(part: bytes) -> list[dict[str, Any]]:
    """All rows, numbers as the texts they are."""
    assert not part or part.endswith(b"\n")
    return [json.loads(line, parse_float=str, parse_int=str) for line in part.split(b"\n")[:-1]]
