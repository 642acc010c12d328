"""Cost of the input check: ``python -m benchmarks.inputs [--rows N] [--inputs N]``.

A task with a list of URLs is landed as JSON lines on a local disk, with and without the check, each time in a
process of its own. The list comes from a sandbox over HTTP; the rows are generated in the process. By default
each input has ten consecutive rows, and one input in a hundred has none. Figures are medians of three passes;
the ways take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import msgspec
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.location import folder_at
from airflow_provider_webcollect.landing.log.commits import Run, Source
from airflow_provider_webcollect.landing.options import LandOptions
from airflow_provider_webcollect.landing.write.job import job_of
from airflow_provider_webcollect.landing.write.run import run_job
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sandbox.settings import Settings
from airflow_provider_webcollect.service.models import DataPage
from benchmarks.formats import PAGE_ROWS
from benchmarks.landers import connected
from benchmarks.measured import measured
from benchmarks.report import machine, table
from tests.landing.pages import changed

PASSES = 3
WAYS = ("none", "text", "url")


def url(number: int) -> str:
    """Return the input with a number."""
    return f"https://shop.example/catalogue/products/{number}?ref=list&page=1"


def main() -> None:
    """Measure the ways in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=100_000, help="(default: %(default)s)")
    parser.add_argument("--way", nargs=3, metavar=("WAY", "SANDBOX", "TASK"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        measured(lambda: land(given.rows, given.inputs, *given.way))
        return
    print(machine())
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with Sandbox(Settings(enforce_limits=False)) as sandbox:
        task = sandbox.control.add_task(loop_items=[url(number) for number in range(given.inputs)])
        size = [f"--rows={given.rows}", f"--inputs={given.inputs}"]
        for _ in range(PASSES):
            for way in WAYS:
                asked = ["--way", way, sandbox.url, task["task_id"]]
                command = [sys.executable, "-m", "benchmarks.inputs", *size, *asked]
                results[way].append(json.loads(subprocess.check_output(command)))
    medians = {
        way: {name: statistics.median(each[name] for each in results[way]) for name in ("cpu", "peak")}
        for way in WAYS
    }
    rows = [
        (
            "without the check" if way == "none" else f"`match: {way}`",
            f"{found['cpu']:.2f}",
            f"{found['peak']:.0f}",
            f"{found['peak'] - medians['none']['peak']:.0f}",
        )
        for way, found in medians.items()
    ]
    table(f"{given.rows:,} rows, {given.inputs:,} inputs | CPU seconds | MB at the peak | MB above", rows)


def land(rows: int, inputs: int, way: str, sandbox: str, task: str) -> int:
    """Land the rows in one way."""
    checks: Any = None if way == "none" else {"inputs": {"column": "url", "match": way, "missing": 0.02}}
    per_input = rows // inputs or 1

    def fetch(offset: int) -> DataPage:
        numbers = range(offset, min(offset + PAGE_ROWS, rows))
        items = [number // per_input for number in numbers]
        page = [
            msgspec.Raw(msgspec.json.encode({"url": url(item - (item % 100 == 0)), "price": f"{item}.50"}))
            for item in items
        ]
        after = offset + len(page)
        return DataPage(offset=after, total=rows, rest_total=rows - after, rows=page)

    with tempfile.TemporaryDirectory() as place:
        job = job_of(
            connected(sandbox),
            Source(collection_task_id=task),
            folder_at(LocalFileSystem(), f"{place}/landing"),
            Run(dag_id="d", task_id="t", run_id="r"),
            LandOptions.parse({"mode": "full", "late_rows_delay": 0}),
        )
        job = changed(job, fetch=fetch, checks=make_checks(checks, make_format()))
        landed = run_job(job)
    if checks:
        assert landed.missing_inputs
        assert landed.missing_inputs.count == inputs // 100, landed.checks
    return landed.manifest.rows


if __name__ == "__main__":
    main()
