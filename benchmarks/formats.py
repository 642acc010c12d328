"""Speed of encoding rows: ``python benchmarks/formats.py [--rows N]``.

The rows come from the sandbox: 8 fields, about 250 bytes, in pages of 1,000 rows. Each figure is the best of
three passes in one process; the bytes are counted and dropped. A landing also profiles the contents of the
rows: the last two columns show the speed with the profile, and the time as a multiple of the time without it.
"""

from __future__ import annotations

import argparse
import csv
import io
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from airflow_provider_webcollect.landing.formats import FileFormat, make_format
from airflow_provider_webcollect.landing.formats.profile import Profiler
from airflow_provider_webcollect.sandbox.data import DEFAULT_FIELDS, MadeUpRows

PAGE_ROWS = 1000
PASSES = 3
TYPES = {"price": "float64"}
FORMATS = {
    "jsonl": make_format("jsonl"),
    "jsonl gzip": make_format("jsonl", "gzip"),
    "jsonl zstd": make_format("jsonl", "zstd"),
    "jsonl, 4 columns": make_format("jsonl", columns=DEFAULT_FIELDS[:4]),
    "csv": make_format("csv"),
    "csv gzip": make_format("csv", "gzip"),
    "csv zstd": make_format("csv", "zstd"),
    "csv, sanitized": make_format("csv", sanitize_formulas=True),
    "parquet snappy": make_format("parquet"),
    "parquet zstd": make_format("parquet", "zstd"),
    "parquet gzip": make_format("parquet", "gzip"),
    "parquet none": make_format("parquet", "none"),
    "parquet, 1 float": make_format("parquet", column_types=TYPES),
}

Pages = Sequence[Sequence[msgspec.Raw]]


class Counter:
    """A sink that only counts the bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)


def main() -> None:
    """Encode rows in every format, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="(default: %(default)s)")
    pages = list(made_up(parser.parse_args().rows))
    rows = sum(map(len, pages))
    print(f"{'format':18} {'rows/s':>12} {'MB':>8} {'profiled':>12} {'x':>6}")
    for name, file_format in FORMATS.items():
        plain, megabytes = best_of(partial(encode, pages, file_format))
        profiled, _ = best_of(partial(encode, pages, file_format, is_profiled=True))
        speeds = f"{rows / plain:12,.0f} {megabytes:8.1f} {rows / profiled:12,.0f} {profiled / plain:6.2f}"
        print(f"{name:18} {speeds}", flush=True)
    seconds, megabytes = best_of(partial(with_dict_writer, pages))
    print(f"{'csv.DictWriter':18} {rows / seconds:12,.0f} {megabytes:8.1f}")


def made_up(rows: int) -> Iterator[list[msgspec.Raw]]:
    """Yield pages of generated rows in the form that the service sends."""
    source = MadeUpRows("formats", "lot", DEFAULT_FIELDS, ("laptop", "phone"), 5000, 250)
    for number in range(rows // PAGE_ROWS):
        body = b"[" + b",".join(source.make(range(number * PAGE_ROWS, (number + 1) * PAGE_ROWS))) + b"]"
        yield msgspec.json.decode(body, type=list[msgspec.Raw])


def encode(pages: Pages, file_format: FileFormat, sink: Counter, *, is_profiled: bool = False) -> None:
    """Write all pages as one part."""
    profiler = Profiler() if is_profiled else None
    with file_format.writer(sink, file_format.columns_after(), profiler) as writer:
        for page in pages:
            writer.write(page)


def with_dict_writer(pages: Pages, sink: Counter) -> None:
    """Write CSV with Python's own writer, for comparison."""
    for page in pages:
        text = io.StringIO()
        csv.DictWriter(text, DEFAULT_FIELDS).writerows(map(msgspec.json.decode, page))
        sink.write(text.getvalue().encode())


def best_of(work: Callable[[Counter], None]) -> tuple[float, float]:
    """Return the seconds of the fastest pass, and the megabytes written."""
    best = float("inf")
    for _ in range(PASSES):
        sink = Counter()
        start = time.perf_counter()
        work(sink)
        best = min(best, time.perf_counter() - start)
    return best, sink.bytes / 1e6


if __name__ == "__main__":
    main()
