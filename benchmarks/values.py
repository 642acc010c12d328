"""Cost of column types: ``python -m benchmarks.values [--rows N]``.

Rows have six texts and about 180 bytes. Five of the texts are a price, a day, a boolean, a URL and a number
with a unit; most prices, URLs and numbers occur only once. The rows are landed on a local disk as JSON lines
and as Parquet, and read by ``to_duckdb``, with and without types in turns, in one process. Figures are the
CPU time of the fastest of three passes, and the time with types as a multiple of the time without.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_webcollect.landing.formats import FormatName
from airflow_provider_webcollect.landing.location import folder_at
from airflow_provider_webcollect.landing.reader import read_landing
from benchmarks.formats import PAGE_ROWS
from benchmarks.report import machine, table
from benchmarks.tables import landing

PASSES = 3
TYPES = {
    "price": {"type": "decimal(12,2)", "decimal": ",", "thousands": ".", "currency": True},
    "day": {"type": "date32", "format": "%a, %d. %b %Y", "locale": "de"},
    "stock": {"type": "bool", "true": ["ja"], "false": ["nein"]},
    "link": {"type": "url", "base": "https://shop.example/de/"},
    "weight": {"type": "float64", "decimal": ",", "unit": "kg"},
}


def row(number: int) -> dict[str, str]:
    """Return a row of a shop's products."""
    whole, cents = divmod(number * 7919 % 1_000_000_000, 100)
    day = f"{number % 28 + 1}"
    return {
        "name": f"Product {number} of the shop, with some words that describe it",
        "price": f"{whole:,}".replace(",", ".") + f",{cents:02} €",
        "day": f"Mo., {day}. Aug. 2026",
        "stock": "nein" if number % 3 else "ja",
        "link": f"/p/{number}?ref=list",
        "weight": f"{number % 99_991},{number % 7} kg",
    }


def main() -> None:
    """Land and read the rows, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="(default: %(default)s)")
    rows = parser.parse_args().rows
    print(machine())
    bodies = [
        msgspec.json.encode([row(number) for number in range(begin, begin + PAGE_ROWS)])
        for begin in range(0, rows, PAGE_ROWS)
    ]
    compared = [
        (f"{what}, {name}", *best(work))
        for name in ("jsonl", "parquet")
        for what, work in (("land", partial(land, bodies, name)), ("to_duckdb", partial(read, bodies, name)))
    ]
    columns = f"{rows:,} rows | seconds of CPU without types | with five types | times as long"
    table(columns, ((what, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}") for what, a, b in compared))


def land(bodies: Sequence[bytes], file_format: FormatName, types: Any) -> float:
    """Land the rows; return the CPU time in seconds."""
    with tempfile.TemporaryDirectory() as place:
        begin = time.process_time()
        landing(bodies, folder_at(LocalFileSystem(), f"{place}/landing"), file_format, types)
        return time.process_time() - begin


def read(bodies: Sequence[bytes], file_format: FormatName, types: Any) -> float:
    """Land the rows, and read them in DuckDB; return the CPU time of the reading in seconds."""
    with tempfile.TemporaryDirectory() as place:
        rows = landing(bodies, folder_at(LocalFileSystem(), f"{place}/landing"), file_format, types)
        begin = time.process_time()
        assert read_landing(f"{place}/landing").to_duckdb().count("*").fetchall() == [(rows,)]
        return time.process_time() - begin


def best(work: Callable[[Any], float]) -> tuple[float, float]:
    """Return the shortest time of ``work`` without and with types, in passes that take turns."""
    passes = [(work(None), work(TYPES)) for _ in range(PASSES)]
    return min(plain for plain, _ in passes), min(typed for _, typed in passes)


if __name__ == "__main__":
    main()
