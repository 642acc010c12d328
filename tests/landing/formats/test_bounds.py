"""The memory that a part takes while it is written, and what is left of one that failed."""

from __future__ import annotations

import gc
import io
import tempfile
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.formats import parquet as parquet_format
from tests.landing.formats.parts import Kind, land, page

ALL: list[Kind] = [("jsonl", None), ("jsonl", "gzip"), ("csv", None), ("csv", "zstd"), ("parquet", "snappy")]
#: Maximum memory of each format, in MiB; Parquet holds a whole row group.
BOUNDS = {"jsonl": 15, "csv": 50, "parquet": 120}


@pytest.mark.parametrize(("rows", "row_bytes"), [(1000, 250), (1, 10_000_000)])
@pytest.mark.parametrize("kind", ALL)
def test_memory_is_bounded_whatever_the_rows(kind: Kind, rows: int, row_bytes: int) -> None:
    chosen = make_format(*kind)
    bound = BOUNDS[chosen.name] * 2**20
    # enough pages that a part held whole would exceed the bound by half
    pages = 3 * bound // (2 * rows * row_bytes) + 1
    written = page(*({"id": str(number), "text": "x" * row_bytes} for number in range(rows)))
    tracemalloc.start()
    try:
        with tempfile.TemporaryFile() as part, chosen.writer(part, chosen.columns_after()) as writer:
            in_arrow = []
            for _ in range(pages):
                assert writer.write(written)
                in_arrow.append(pa.total_allocated_bytes())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak + max(in_arrow) <= bound


def test_row_groups_end_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_format, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(parquet_format, "ROW_GROUP_BYTES", 10_000)
    short = [page(*({"a": "x"} for _ in range(40))) for _ in range(6)]
    long = [page({"a": "x" * 6_000}) for _ in range(4)]
    (part,) = land(make_format("parquet"), *short, *long)
    metadata = pq.ParquetFile(io.BytesIO(part)).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [120, 120, 2, 2]


class Sink:
    """A sink that takes ``capacity`` bytes, then fails like a full disk."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bytes = 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.bytes > self.capacity:
            raise OSError("no space left")


ROWS = [page(*({"a": f"{n}", "b": "x" * 50} for n in range(1000))) for _ in range(3)]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("capacity", [0, 100, 20_000])
def test_a_sink_error_ends_all_writing(kind: Kind, capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_format, "ROW_GROUP_ROWS", 1000)
    chosen = make_format(*kind)
    sink = Sink(min(capacity, len(land(chosen, *ROWS)[0]) - 1))
    with pytest.raises(OSError, match="no space left"), chosen.writer(sink, chosen.columns_after()) as writer:
        list(map(writer.write, ROWS))
    refused = sink.bytes
    gc.collect()
    assert sink.bytes == refused


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_part_that_was_never_begun_can_be_abandoned(file_format: FormatName) -> None:
    chosen = make_format(file_format)
    sink = io.BytesIO()
    with pytest.raises(KeyError), chosen.writer(sink, chosen.columns_after()):
        raise KeyError("no page")
    assert not sink.getvalue()
