"""What a part costs while it is written, and what is left of one that failed."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.formats import parquet as parquet_format
from airflow_provider_webcollect.landing.formats.writing import RowWriter
from tests.landing.formats.parts import land, page

ALL = [("jsonl", None), ("jsonl", "gzip"), ("csv", None), ("csv", "zstd"), ("parquet", "snappy")]

#: The most MiB that a format may take; Parquet holds a row group.
BOUNDS = {"jsonl": 15, "csv": 30, "parquet": 120}


def shapes(file_format: str) -> list[tuple[int, int, int]]:
    """Rows to a page, bytes of a row, and pages: far more than the bound, would a part be held whole."""
    if file_format == "parquet":
        return [(1000, 250, 250), (1, 10_000_000, 10), (50, 1_000_000, 2)]
    return [(1000, 250, 100), (1, 10_000_000, 6), (50, 1_000_000, 2)]


#: Measures each shape in a fork, whose peak begins with what it has: the imports take longest.
MEASURE = """
import io, json, os, re, sys, tempfile
from pathlib import Path
import msgspec
from airflow_provider_webcollect.landing.formats import make_format

file_format, compression = sys.argv[1], sys.argv[2] or None

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def page(number, rows_per_page, row_bytes):
    first = number * rows_per_page
    rows = [
        b'{"id":"%d","text":"%b"}' % (row, (b"%d\\\\n" % row) * (row_bytes // 5))
        for row in range(first, first + rows_per_page)
    ]
    return msgspec.json.decode(b"[" + b",".join(rows) + b"]", type=list[msgspec.Raw])

def growth(pages, *shape):
    page(0, *shape)
    page(1, *shape)  # what the page itself takes is not counted
    before = peak()
    with tempfile.TemporaryFile() as part, chosen.writer(part, chosen.columns_after()) as writer:
        for number in range(pages):
            assert writer.write(page(number, *shape))
    return (peak() - before) // 1024

chosen = make_format(file_format, compression)
small = io.BytesIO()
chosen.writer(small, chosen.columns_after()).close()
with chosen.writer(small, chosen.columns_after()) as writer:
    writer.write([msgspec.Raw(b'{"id":1,"text":2}')])
for rows_per_page, row_bytes, pages in json.loads(sys.argv[3]):
    if os.fork() == 0:
        print(growth(pages, rows_per_page, row_bytes))
        sys.exit()
    assert os.wait()[1] == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.by_day(1)
@pytest.mark.parametrize(("file_format", "compression"), ALL)
def test_memory_is_bounded_whatever_the_rows(file_format: str, compression: str | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, file_format, compression or "", json.dumps(shapes(file_format))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    grown = [int(line) for line in done.stdout.split()]
    assert len(grown) == len(shapes(file_format))
    assert max(grown) <= BOUNDS[file_format], grown


def test_row_groups_end_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_format, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(parquet_format, "ROW_GROUP_BYTES", 10_000)
    short = [page(*({"a": "x"} for _ in range(40))) for _ in range(6)]
    long = [page({"a": "x" * 6_000}) for _ in range(4)]
    (part,) = land(make_format("parquet"), *short, *long)
    metadata = pq.ParquetFile(io.BytesIO(part)).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [120, 120, 2, 2]


class Sink:
    """Takes this number of bytes, then fails like a full disk."""

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.bytes = 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.bytes > self.capacity:
            raise OSError("no space left")


def write_all(writer: RowWriter) -> None:
    for rows in ROWS:
        writer.write(rows)


ROWS = [page(*({"a": f"{n}", "b": "x" * 50} for n in range(1000))) for _ in range(3)]


@pytest.mark.parametrize(("file_format", "compression"), ALL)
def test_an_error_between_pages_leaves_the_part_unfinished(file_format: str, compression: str | None) -> None:
    chosen = make_format(file_format, compression)
    sink = io.BytesIO()

    def fail_after_a_page() -> None:
        with chosen.writer(sink, chosen.columns_after()) as writer:
            writer.write(ROWS[0])
            raise ConnectionError("the service is gone")

    with pytest.raises(ConnectionError):
        fail_after_a_page()
    size = len(sink.getvalue())
    sink.close()
    gc.collect()
    assert size < len(land(chosen, ROWS[0])[0]) or (file_format, compression) in {
        ("jsonl", None),
        ("csv", None),
    }


@pytest.mark.parametrize(("file_format", "compression"), ALL)
@pytest.mark.parametrize("capacity", [0, 100, 20_000])
def test_what_the_sink_raises_comes_through_and_nothing_is_written_after_it(
    file_format: str, compression: str | None, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_format, "ROW_GROUP_ROWS", 1000)
    chosen = make_format(file_format, compression)
    sink = Sink(min(capacity, len(land(chosen, *ROWS)[0]) - 1))
    with pytest.raises(OSError, match="no space left"), chosen.writer(sink, chosen.columns_after()) as writer:
        write_all(writer)
    refused = sink.bytes
    gc.collect()
    assert sink.bytes == refused


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_part_that_was_never_begun_can_be_abandoned(file_format: str) -> None:
    chosen = make_format(file_format)
    sink = io.BytesIO()
    with pytest.raises(KeyError), chosen.writer(sink, chosen.columns_after()):
        raise KeyError("no page")
    assert not sink.getvalue()
