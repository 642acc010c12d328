"""Landing in tables compared with libraries: ``python -m benchmarks.tables [--rows N] [--turns N] …``.

All ways write the same rows of 8 texts. They get the rows as JSON, in pages of 1,000 rows, from their own
process, without a service or a network. Every measurement is a fresh process, and the ways take turns.
Seconds do not include the imports; memory is shown with and without them. The landing also checks the order
of the pages, profiles the rows, and computes the SHA-256 of every part.

Then runs of one page each land in one table, and the sizes of the files that a commit writes are measured:
the log entry of Delta Lake or the metadata of Iceberg, and the landing's own files. Delta Lake's library also
writes a checkpoint now and then; the table shows the size with and without it. Needs Linux.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.location import folder_at
from airflow_provider_webcollect.landing.log.commits import Run, Source
from airflow_provider_webcollect.landing.log.names import COMMITS
from airflow_provider_webcollect.landing.tables.iceberg import IcebergFolder
from airflow_provider_webcollect.landing.write.run import run_job
from airflow_provider_webcollect.sandbox.data import DEFAULT_FIELDS
from airflow_provider_webcollect.service.models import DataPage
from benchmarks.formats import PAGE_ROWS, made_up
from benchmarks.measured import measured
from benchmarks.report import machine, table
from tests.landing.costs import EACH, Rows, rows_of, run_of
from tests.landing.pages import make_job, serving
from tests.landing.tables import sql_catalog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from airflow_provider_webcollect.landing.storage.folder import Folder

#: Number of pages that are generated before the measurement; the rows repeat these pages.
POOL = 100
WAYS = {
    "landing": 'a landing with `table_format="delta"`',
    "deltalake": "`deltalake.write_deltalake(table, reader)`",
    "iceberg": 'a landing with `table_format="iceberg"`',
    "pyiceberg": "`table.append(reader)` of pyiceberg",
    "dlt": 'dlt, `filesystem` with `table_format="delta"`, given tables of Arrow',
}
FEW_RUNS = 10
#: Number of measured runs, of which one writes a checkpoint in the log of a Delta Lake table.
CYCLE = 8


class Result(NamedTuple):
    """One measurement of a way: seconds, CPU seconds, MB at the peak, and MB over the imports."""

    rows: int
    seconds: float
    cpu: float
    peak: float
    over: float


def main() -> None:
    """Measure the ways and the sizes of commits, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="(default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of each way (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=1000, help="before a commit (default: %(default)s)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        measure(arguments.way, arguments.rows, arguments.folder)
        return
    print(machine())
    ways(arguments.rows, arguments.turns)
    commits(arguments.runs)


def ways(rows: int, turns: int) -> None:
    """Measure all ways in turns, and print a table."""
    taken = [{way: in_a_process(way, rows) for way in WAYS} for _ in range(turns)]
    results = {way: median([turn[way] for turn in taken]) for way in WAYS}
    ours = results["landing"]
    table(
        f"{rows:,} rows, medians of {turns} | CPU, x a landing | seconds, x a landing | rows/s "
        "| MB at the peak | MB over the imports",
        [
            (
                WAYS[way],
                f"{result.cpu / ours.cpu:.2f}",
                f"{result.seconds / ours.seconds:.2f}",
                f"{result.rows / result.seconds:,.0f}",
                f"{result.peak:.0f}",
                f"{result.over:.0f}",
            )
            for way, result in results.items()
        ],
    )


def median(results: Sequence[Result]) -> Result:
    """Return the median of each field."""
    return Result(*map(statistics.median, zip(*results, strict=True)))


def in_a_process(way: str, rows: int) -> Result:
    """Measure a way once, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.tables", "--way", way, "--folder", folder]
        done = subprocess.run([*command, f"--rows={rows}"], stdout=subprocess.PIPE, text=True, check=True)
    result = Result(**json.loads(done.stdout.splitlines()[-1]))
    assert result.rows == rows, (way, result)
    return result


def measure(way: str, rows: int, folder: Path) -> None:
    """Write the rows in this process, and print the measurement."""
    # imported here, so that the imports are not measured
    import deltalake  # noqa: F401
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401

    pool = [b"[%b]" % b",".join(map(bytes, page)) for page in made_up(min(rows, POOL * PAGE_ROWS))]
    bodies = list(itertools.islice(itertools.cycle(pool), rows // PAGE_ROWS))
    match way:
        case "landing":
            measured(lambda: landing(bodies, delta_table(folder)))
        case "iceberg" | "pyiceberg":
            import pyiceberg.catalog.sql
            import pyiceberg.table  # noqa: F401

            with_iceberg = landing_in_iceberg if way == "iceberg" else with_pyiceberg
            measured(lambda: with_iceberg(bodies, folder))
        case "deltalake":
            measured(lambda: with_deltalake(bodies, folder / "table"))
        case "dlt":
            os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
            import dlt
            import dlt.destinations  # noqa: F401

            measured(lambda: with_dlt(bodies, folder))


def delta_table(folder: Path) -> Folder:
    """Return the folder of a Delta Lake table that does not exist yet."""
    return folder_at(LocalFileSystem(), str(folder / "table"), table_format="delta")


def iceberg_table(folder: Path) -> Table:
    """Return a new Iceberg table."""
    from pyiceberg.schema import Schema

    return sql_catalog(folder).create_table("shop.prices", Schema())


def landing_in_iceberg(bodies: Sequence[bytes], folder: Path) -> int:
    """Land the rows in an Iceberg table."""
    return landing(bodies, IcebergFolder(iceberg_table(folder)))


def with_pyiceberg(bodies: Sequence[bytes], folder: Path) -> int:
    """Append the rows with Iceberg's library."""
    import pyarrow as pa

    prices = iceberg_table(folder)
    with prices.update_schema() as update:
        update.union_by_name(schema())
    prices.append(pa.RecordBatchReader.from_batches(schema(), batches(bodies)))
    return int(prices.scan().count())


def landing(
    bodies: Sequence[bytes], folder: Folder, file_format: FormatName = "parquet", types: Any = None
) -> int:
    """Land the rows, and return their number.

    :param bodies: the pages of rows, as JSON.
    :param types: types by column; None (default) for texts.
    """
    total = len(bodies) * PAGE_ROWS

    def fetch(offset: int) -> DataPage:
        rows = msgspec.json.decode(bodies[offset // PAGE_ROWS], type=list[msgspec.Raw])
        after = offset + len(rows)
        return DataPage(offset=after, total=total, rest_total=total - after, rows=rows)

    job = make_job(
        fetch,
        folder=folder,
        run=Run(dag_id="d", task_id="t", run_id="r"),
        file_format=make_format(file_format, column_types=types),
    )
    return run_job(job).manifest.rows


def with_deltalake(bodies: Sequence[bytes], folder: Path) -> int:
    """Append the rows with Delta Lake's library."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    reader = pa.RecordBatchReader.from_batches(schema(), batches(bodies))
    write_deltalake(folder, reader, mode="append")
    return int(DeltaTable(folder).to_pyarrow_dataset().count_rows())


def with_dlt(bodies: Sequence[bytes], folder: Path) -> int:
    """Load the rows with dlt."""
    import dlt
    import pyarrow as pa
    from deltalake import DeltaTable
    from dlt.destinations import filesystem

    pipeline = dlt.pipeline(
        pipeline_name="benchmark",
        pipelines_dir=f"{folder}/pipelines",
        destination=filesystem(bucket_url=f"file://{folder}/bucket"),
        dataset_name="landed",
    )
    tables = (pa.Table.from_batches([batch]) for batch in batches(bodies))
    pipeline.run(tables, table_name="prices", table_format="delta").raise_on_failed_jobs()
    return int(DeltaTable(f"{folder}/bucket/landed/prices").to_pyarrow_dataset().count_rows())


def schema() -> pa.Schema:
    """Return the schema, in which all columns are texts."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in DEFAULT_FIELDS])


def batches(bodies: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each page as an Arrow batch."""
    import pyarrow as pa

    columns = schema()
    for body in bodies:
        yield pa.RecordBatch.from_pylist(msgspec.json.decode(body), schema=columns)


def commits(many_runs: int) -> None:
    """Print the number of bytes that a commit writes, after few runs and after many."""
    rows = []
    for name, make, pattern in (
        ("Delta Lake", delta_table, "table/_delta_log/*"),
        ("Iceberg", lambda folder: IcebergFolder(iceberg_table(folder)), "warehouse/shop/prices/metadata/*"),
    ):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            bytes_by_run = dict(written(folder, make(folder), pattern, many_runs + CYCLE))
        for before in (FEW_RUNS, many_runs):
            of_table, own = zip(*(bytes_by_run[before + more] for more in range(CYCLE)), strict=True)
            sizes = (round(statistics.median(of_table)), max(of_table), round(statistics.median(own)))
            rows.append((f"{name}, {before:,}", *sizes))
    table(
        f"Runs of {EACH} rows before | bytes of the table's log or metadata, median of {CYCLE} | with a "
        "checkpoint | of the landing's commit and manifest",
        rows,
    )


def written(folder: Path, target: Folder, pattern: str, runs: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Land runs of one page in a table, and yield the sizes of the files that each writes besides its part.

    Yields the number of earlier runs, and a pair: the bytes of the table's log or metadata, and the bytes of
    the landing's own files.

    :param pattern: glob pattern of the files of the table's log or metadata, relative to ``folder``.
    """
    rows: Rows = []
    seen: set[Path] = set()
    for number in range(runs):
        rows += rows_of(number)
        job = make_job(
            serving(rows),
            folder=target,
            run=run_of(number),
            source=Source(collection_task_id="0f6a1f7e-1f3c-4f0e-9d53-0f1a2b3c4d5e"),
            file_format=make_format("parquet"),
            mode="incremental",
        )
        run_job(job)
        of_table = {*folder.glob(pattern)} - seen
        own = {*folder.glob(f"**/{COMMITS}/*.json"), *folder.glob(f"**/{MANIFEST}")} - seen
        seen |= of_table | {file for file in own if file.name != MANIFEST}
        yield number, (bytes_of(of_table), bytes_of(own))


def bytes_of(files: Iterable[Path]) -> int:
    """Return the total size of files in bytes."""
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    main()
