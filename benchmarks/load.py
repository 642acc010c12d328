"""Merging a landing into a DuckDB file: ``python -m benchmarks.load [--rows N]``.

The rows have 8 texts, about 250 bytes and a unique key each; the landing is a folder on a local disk. Each
load runs in a fresh process; seconds do not include the imports, and memory is shown with and without them.
Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from airflow_provider_webcollect.landing.formats import FormatName
from airflow_provider_webcollect.landing.location import folder_at
from airflow_provider_webcollect.landing.options import LoadOptions
from airflow_provider_webcollect.landing.read.loading import load
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.transfers.warehouses import Warehouse
from benchmarks.formats import PAGE_ROWS, made_up
from benchmarks.measured import measured
from benchmarks.report import machine, table
from benchmarks.tables import landing


def main() -> None:
    """Land and load the rows in each format, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        measure(arguments.folder)
        return
    print(machine())
    formats: tuple[FormatName, ...] = ("jsonl", "parquet")
    rows = [(name, *taken(name, arguments.rows)) for name in formats]
    table(f"{arguments.rows:,} rows | seconds | MB at the peak | MB over the imports", rows)


def taken(file_format: FormatName, rows: int) -> list[str]:
    """Return the cells for a load: seconds, MB at the peak, and MB above the memory after the imports."""
    with tempfile.TemporaryDirectory() as name:
        folder = folder_at(LocalFileSystem(), f"{name}/landing")
        bodies = [b"[%b]" % b",".join(map(bytes, page)) for page in made_up(rows)]
        landing(bodies, folder, file_format)
        command = [sys.executable, "-m", "benchmarks.load", "--folder", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["rows"] == len(bodies) * PAGE_ROWS, result
    return [f"{result[figure]:.0f}" for figure in ("seconds", "peak", "over")]


def measure(folder: Path) -> None:
    """Load in this process, and print the measurement."""
    import dlt.destinations  # noqa: F401
    import duckdb  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    warehouse = Warehouse(kind="duckdb", credentials=str(folder / "warehouse.duckdb"))
    options = LoadOptions.parse({"write_disposition": "merge", "primary_key": "id"})
    landed = read_landing(str(folder / "landing"))

    def merge() -> int:
        parts = load(landed, options, "shop.prices", warehouse.destination).parts
        return sum(part.rows for part in parts)

    measured(merge)


if __name__ == "__main__":
    main()
