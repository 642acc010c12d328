"""Landing compared with other ways: ``python -m benchmarks.landing [--dlt-python PATH] [--quick]``.

One sandbox in its own process serves all ways, without its rate limit; the clients have no rate limit either.
Every measurement is a fresh process, and the ways take turns. Figures are medians. Seconds do not include the
imports; memory is shown with and without them. The files are written to the folder for temporary files; for
the memory figures, also to an S3 server (moto). Needs Linux, a quiet machine and about thirteen minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.formats import FormatName
from airflow_provider_webcollect.sandbox import Control, demo
from benchmarks.report import machine
from benchmarks.server import S3, link, s3, sandbox
from tests.landing.costs import EACH, Landing, Runs, rows_of, with_rating
from tests.storages import s3_server

PAGE_ROWS = 1000
#: Additional seconds for each page in the second round.
DELAY = 0.05
SOURCES, SOURCE_PAGES, AT_ONCE = 32, 20, 8
#: Numbers of runs that a landing has before the counted run.
RUNS_BEFORE = (10, 1000)
#: For the slow link: seconds to the first byte, bytes per second, and bytes per row.
LINK_DELAY, LINK_SPEED, LINK_ROW_BYTES = 0.3, 10_000_000, 2000
NAMES = {
    "floor": "sequential fetch, rows thrown away (the floor)",
    "plain": "`requests` and `json` in a loop, JSON lines",
    "jsonl": "this provider, JSON lines",
    "jsonl traced": "this provider, JSON lines, its spans recorded",
    "jsonl checked": "this provider, JSON lines, three rules about values",
    "jsonl sorted": "this provider, JSON lines, these rules with `max_wrong`",
    "jsonl gzip": "this provider, JSON lines, gzip",
    "parquet": "this provider, Parquet",
    "dlt jsonl": "dlt, JSON lines",
    "dlt jsonl gzip": "dlt, JSON lines, gzip (its default)",
    "dlt parquet": "dlt, Parquet",
}
#: Ways whose memory is measured, with the maximum MB that they may take over the imports.
MEMORY = {"jsonl": 64, "parquet": 200, "s3 jsonl": 64, "s3 parquet": 200}


@dataclass(frozen=True)
class Plan:
    """The size of the measurement.

    :ivar rows: number of rows of the task that all ways land.
    :ivar many_rows: number of rows of the larger task for the memory figures.
    :ivar turns: number of measurements of each way.
    :ivar dlt_python: path of a Python that has dlt; None to leave dlt out.
    """

    rows: int
    many_rows: int
    turns: int
    dlt_python: str | None

    @property
    def ways(self) -> list[str]:
        """The ways that can be measured here."""
        return [way for way in NAMES if self.dlt_python or not way.startswith("dlt")]


@dataclass(frozen=True)
class Result:
    """Medians of several measurements: seconds, CPU seconds, MB at the peak, and MB over the imports."""

    rows: int
    seconds: float
    cpu: float
    peak: float
    over: float


def main() -> None:
    """Start a sandbox, measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dlt-python", help="a Python that has dlt; without it, dlt is left out")
    parser.add_argument("--quick", action="store_true", help="few rows, once: to see that it works")
    arguments = parser.parse_args()
    sizes = (20_000, 40_000, 1) if arguments.quick else (200_000, 2_000_000, 5)
    plan = Plan(*sizes, dlt_python=arguments.dlt_python)
    with (
        sandbox("--no-enforce-limits") as server,
        s3() as bucket,
        tempfile.TemporaryDirectory() as directory,
    ):
        report(plan, Bench(server.url, Path(directory) / "landed", bucket, plan.dlt_python))
    if arguments.quick:
        print("\nThis was --quick: what is fixed weighs too much in it for the targets to mean anything.")


class Bench:
    """Measures ways to land rows from a sandbox.

    :param url: the URL of the sandbox.
    :param folder: the folder to land in, which is removed after each measurement.
    :param s3: the S3 server for ways that land on S3.
    :param dlt_python: path of a Python that has dlt; None without dlt.
    """

    def __init__(self, url: str, folder: Path, s3: S3, dlt_python: str | None) -> None:
        self.url = url
        self._folder = folder
        self._s3 = s3
        self._dlt_python = dlt_python
        self.control = Control(url)

    def over(self, url: str) -> Bench:
        """Return a bench that uses another URL for the sandbox."""
        return Bench(url, self._folder, self._s3, self._dlt_python)

    def task(self, rows: int) -> str:
        """Create a task, and read its rows once, since the sandbox generates rows at the first read."""
        task = str(self.control.add_task(lots=[rows])["task_id"])
        self._once("floor", [task])
        return task

    def take_turns(self, turns: int, ways: Iterable[str], tasks: Sequence[str]) -> dict[str, Result]:
        """Measure each way ``turns`` times, and return the medians by way."""
        taken = [{way: self._once(way, tasks) for way in ways} for _ in range(turns)]
        return {way: _median([turn[way] for turn in taken]) for way in taken[0]}

    def _once(self, way: str, tasks: Sequence[str]) -> Result:
        python, module, last, folder = sys.executable, "benchmarks.landers", list(tasks), str(self._folder)
        if way.startswith("dlt "):
            assert self._dlt_python
            python, module, last = self._dlt_python, "benchmarks.lander_dlt", [*tasks, demo.ACCESS_TOKEN]
        if way.startswith("s3 "):
            folder = f"{self._s3.bucket}/landed"
            self._s3.empty()
        way = way.removeprefix("dlt ").removeprefix("s3 ")
        command = [python, "-m", module, way, self.url, folder, *last]
        environment = {**os.environ, **self._s3.environment}
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return Result(**json.loads(done.stdout.splitlines()[-1]))


def _median(results: Sequence[Result]) -> Result:
    assert len({result.rows for result in results}) == 1, results
    median = {
        name: statistics.median(getattr(result, name) for result in results)
        for name in ("seconds", "cpu", "peak", "over")
    }
    return Result(rows=results[0].rows, **median)


def report(plan: Plan, bench: Bench) -> None:
    """Measure and print everything."""
    print(f"{machine()}\n")
    costs()
    task = bench.task(plan.rows)
    if plan.dlt_python is None:
        print("dlt is left out: there is no --dlt-python.\n")
    now = one_round(plan, bench, task, 0.0)
    delayed = one_round(plan, bench, task, DELAY)
    grown = memory(plan, bench, task)
    concurrent = several(plan, bench)
    linked = slow_link(plan, bench)
    targets(now, delayed, grown, concurrent, linked)


def costs() -> None:
    """Count the requests and bytes that one more run sends to S3, after few runs and after many."""
    # the S3 server logs each request, and the client logs closed connections
    for name in ("werkzeug", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    print(f"One more run with {EACH} rows, one part, on S3: requests, and bytes beside part and manifest\n")
    row("", "runs before", "requests", "bytes", "nothing new", "a new column", "manifest")
    row(*["---"] * 7)
    formats: tuple[FormatName, ...] = ("jsonl", "csv")
    for file_format, runs in itertools.product(formats, RUNS_BEFORE):
        with s3_server() as storage:
            landing = Landing(storage, Runs(runs, file_format))
            new = landing.land(rows_of(landing.runs))
            size = len(landing.folder.read(MANIFEST))
            idle = landing.land([])
            wider = landing.land(with_rating(rows_of(landing.runs)))
        row(
            file_format,
            f"{runs:,}",
            str(len(new.requests)),
            f"{new.bytes:,}",
            f"{len(idle.requests)} requests, {idle.bytes} bytes",
            f"{len(wider.requests)} requests, {len(wider.parts)} of parts",
            f"{size:,} bytes",
        )
    print(flush=True)


def one_round(plan: Plan, bench: Bench, task: str, delay: float) -> dict[str, Result]:
    """Measure all ways, with ``delay`` additional seconds for each page."""
    with delayed_by(bench, delay):
        results = bench.take_turns(plan.turns, plan.ways, [task])
    floor = results["floor"].seconds
    pages = f"{plan.rows:,} rows in pages of {PAGE_ROWS:,}, {delay * 1000:.0f} ms of delay per page"
    print(f"{pages}; medians of {plan.turns}\n")
    row("", "seconds", "rows/s", "x floor", "MB at the peak", "MB over the imports")
    row(*["---"] * 6)
    for way, result in results.items():
        assert result.rows == plan.rows, (way, result)
        rate, ratio = f"{result.rows / result.seconds:,.0f}", f"{result.seconds / floor:.2f}"
        row(NAMES[way], f"{result.seconds:.3f}", rate, ratio, f"{result.peak:.0f}", f"{result.over:.1f}")
    print(flush=True)
    return results


def memory(plan: Plan, bench: Bench, task: str) -> dict[str, tuple[Result, Result]]:
    """Measure the memory that this provider needs for few rows and for many."""
    few = bench.take_turns(plan.turns, MEMORY, [task])
    many = bench.take_turns(plan.turns, MEMORY, [bench.task(plan.many_rows)])
    print("Memory at the peak\n")
    row("", f"{plan.rows:,} rows", f"{plan.many_rows:,} rows", "over the imports", "seconds for many")
    row(*["---"] * 5)
    for way, result in many.items():
        peaks = (f"{measured.peak:.1f} MB" for measured in (few[way], result))
        row(memory_name(way), *peaks, f"{result.over:.1f} MB", f"{result.seconds:.1f}")
    print(flush=True)
    return {way: (few[way], many[way]) for way in MEMORY}


def memory_name(way: str) -> str:
    """Return the name of a way in the memory tables."""
    return NAMES[way.removeprefix("s3 ")] + (" on S3" if way.startswith("s3 ") else "")


def several(plan: Plan, bench: Bench) -> float:
    """Land many sources at once; return the time as a multiple of the ideal."""
    tasks = [bench.task(SOURCE_PAGES * PAGE_ROWS) for _ in range(SOURCES)]
    with delayed_by(bench, DELAY):
        seconds = bench.take_turns(plan.turns, ["many"], tasks)["many"].seconds
    ideal = SOURCES * SOURCE_PAGES * DELAY / AT_ONCE
    sources = f"{SOURCES} sources of {SOURCE_PAGES} pages, {DELAY * 1000:.0f} ms of delay per page"
    print(
        f"{sources}, {AT_ONCE} at a time: {seconds:.2f} s. The delays alone take {ideal:.2f} s.\n", flush=True
    )
    return seconds / ideal


def slow_link(plan: Plan, bench: Bench) -> float:
    """Land large pages over a slow link; return the speed as a multiple of the floor's speed."""
    bench.control.configure(row_bytes=LINK_ROW_BYTES)
    task = bench.task(plan.rows // 10)
    with link(bench.url, LINK_SPEED) as url, delayed_by(bench, LINK_DELAY):
        results = bench.over(url).take_turns(plan.turns, ["floor", "jsonl"], [task])
    pages, megabytes = plan.rows // 10 // PAGE_ROWS, PAGE_ROWS * LINK_ROW_BYTES / 1e6
    print(
        f"{pages} pages of {megabytes:g} MB, {LINK_DELAY * 1000:.0f} ms to the first byte, "
        f"{LINK_SPEED / 1e6:g} MB/s; medians of {plan.turns}\n"
    )
    row("", "seconds", "times as fast as the floor")
    row(*["---"] * 3)
    floor = results["floor"].seconds
    for way, result in results.items():
        row(NAMES[way], f"{result.seconds:.2f}", f"{floor / result.seconds:.2f}")
    print(flush=True)
    return floor / results["jsonl"].seconds


def targets(
    now: dict[str, Result],
    delayed: dict[str, Result],
    grown: dict[str, tuple[Result, Result]],
    concurrent: float,
    linked: float,
) -> None:
    """Print the targets, and whether they are reached."""

    def times(one: str, other: str, among: dict[str, Result]) -> float:
        return among[one].seconds / among[other].seconds

    row("Target", "to reach", "reached", "holds")
    row(*["---"] * 4)
    at_most("JSON lines, no delay, x floor", times("jsonl", "floor", now), 1.2)
    at_most("JSON lines, 50 ms, x floor", times("jsonl", "floor", delayed), 1.05)
    if "dlt jsonl" in now:
        gzip = times("dlt jsonl gzip", "jsonl gzip", now)
        at_least("JSON lines, no delay, faster than dlt, both with gzip", gzip, 20)
        at_least("JSON lines, no delay, faster than dlt, both without", times("dlt jsonl", "jsonl", now), 20)
        at_least("Parquet, no delay, faster than dlt", times("dlt parquet", "parquet", now), 6)
    for way, most in MEMORY.items():
        few, many = grown[way]
        at_most(f"{memory_name(way)}: MB over the imports, many rows", many.over, most)
        at_most(f"{memory_name(way)}: memory for ten times the rows, x", many.peak / few.peak, 1.05)
    at_most(f"{SOURCES} sources at once, x ideal", concurrent, 1.25)
    at_least("JSON lines over the slow link, times as fast as the floor", linked, 1.5)


def at_most(what: str, reached: float, target: float) -> None:
    row(what, f"<= {target:g}", f"{reached:.2f}", "yes" if reached <= target else "no")


def at_least(what: str, reached: float, target: float) -> None:
    row(what, f">= {target:g}", f"{reached:.2f}", "yes" if reached >= target else "no")


@contextlib.contextmanager
def delayed_by(bench: Bench, delay: float) -> Iterator[None]:
    """Make the sandbox delay its responses by ``delay`` seconds while the block runs."""
    bench.control.configure(latency=delay)
    yield
    bench.control.configure(latency=0.0)


def row(*cells: str) -> None:
    """Print a line of a table."""
    print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
