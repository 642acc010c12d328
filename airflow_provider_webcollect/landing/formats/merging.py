"""Writing the rows of several parts as one part, unchanged and in order.

A compressed text is compressed again, as one gzip member or zstd frame: many readers stop after the first one
without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

from airflow_provider_webcollect.landing.formats import Compression, require
from airflow_provider_webcollect.landing.formats.text import Output, decompressed

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats.base import SupportsWrite

_CHUNK_BYTES = 4 * 1024 * 1024
_PARQUET_ROWS = 10_000
#: The first line of CSV; names of columns may have line feeds, within quotes.
_HEADER = re.compile(rb'(?:[^"\n]++|"[^"]*+")*+\n')


def merge(
    file_format: str, compression: str | None, sources: Iterable[BinaryIO], sink: SupportsWrite
) -> None:
    """Write the rows of parts that have the same columns as one part.

    Never is a whole part in memory.

    :param file_format: ``jsonl``, ``csv`` or ``parquet``.
    :param sources: the parts, each read to its end before the next one; Parquet is read at any place.
    :param sink: gets the bytes of the new part.
    :raises ExtraMissing: if the format or compression needs a package that is not installed.
    """
    if file_format == "parquet":
        _merge_parquet(compression, sources, sink)
    else:
        _merge_texts(cast("Compression | None", compression), sources, sink, has_header=file_format == "csv")


def _merge_texts(
    compression: Compression | None, sources: Iterable[BinaryIO], sink: SupportsWrite, *, has_header: bool
) -> None:
    output = Output(sink, compression)
    for number, source in enumerate(sources):
        chunks = _chunks(decompressed(source, compression))
        for chunk in _without_header(chunks) if has_header and number else chunks:
            output.write(chunk)
    output.close()


def _chunks(text: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: text.read(_CHUNK_BYTES), b"")


def _without_header(chunks: Iterator[bytes]) -> Iterator[bytes]:
    begun = b""
    for chunk in chunks:
        begun += chunk
        if header := _HEADER.match(begun):
            yield begun[header.end() :]
            break
    yield from chunks


def _merge_parquet(compression: str | None, sources: Iterable[BinaryIO], sink: SupportsWrite) -> None:
    require("pyarrow.parquet", "parquet", "merging Parquet")
    import pyarrow.parquet as pq

    from airflow_provider_webcollect.landing.formats.parquet import ParquetFile

    merged: ParquetFile | None = None
    try:
        for source in sources:
            part = pq.ParquetFile(source)
            merged = merged or ParquetFile(sink, part.schema_arrow, compression)
            for batch in part.iter_batches(_PARQUET_ROWS):
                merged.append(batch)
        if merged is not None:
            merged.close()
    except BaseException:
        if merged is not None:
            merged.abandon()
        raise
