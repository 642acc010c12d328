"""How the provider scales: ``python -m benchmarks.scale [--tasks N] [--megabytes M] …``.

First counts the costs of a start, a wait and a landing (benchmarks/counts.py). Then simulates days of
collection tasks in virtual time: each task is started, collects, is waited for in a triggerer, and is landed.
All requests from one caller address share its rate limit. Times are from the other benchmarks (RESULTS.md).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from benchmarks.counts import Costs, count
from benchmarks.report import machine, table

DAY, HOUR, MINUTE = 86_400, 3600, 60
#: Requests per second that the service accepts from one address (rate_limits.py, 10 processes), and the
#: maximum number of status queries among them from one process.
ADDRESS_RATE, STATUS_RATE = 17.5, 4.0
#: Seconds until a page begins to arrive, and bytes per second when landing on S3 (landing.py: JSON lines).
LATENCY, SPEED = 0.05, 76e6
#: Seconds for which a task that does almost nothing holds a slot: 500 tasks in 95 s on 16 slots
#: (airflow_waiting.py).
PROCESS = 3.0
#: Number of waits in one triggerer, tasks per status query, and seconds between two polls (waiting.py).
WAITS, BATCH, POLL = 10_000, 100, 60
#: Limits of a page: number of rows, and bytes.
PAGE_ROWS, PAGE_BYTES = 1000, 8_000_000
#: Minimum and maximum duration of a collection in seconds.
COLLECTS = 300, 900
#: Number of sources of an Airflow task that lands several sources.
TOGETHER = 100
#: Number of slots for starts at each address.
STARTS_AT_ONCE = 10


@dataclass(frozen=True)
class Layout:
    """The way in which landings are distributed over Airflow tasks.

    :ivar at_once: number of simultaneous landings at each address.
    :ivar rate: maximum number of requests per second of one landing.
    :ivar process: seconds for which a slot is held in addition to the landing itself.
    """

    name: str
    at_once: int
    rate: float
    process: float


LAYOUTS = {
    layout.name: layout
    for layout in (
        # at most 2 requests per second, a little less in practice
        Layout("alone", at_once=10, rate=1.8, process=PROCESS),
        # two tasks of `max_concurrency=8`, the default
        Layout("together", at_once=16, rate=1 / LATENCY, process=PROCESS / TOGETHER),
    )
}
#: Seconds that a landing waits for late rows before its mark: the operator's default.
LATE_ROWS_DELAY = 15.0
#: The simulated layouts, each with whether landings are marked as exported, and the number of addresses.
DAYS = (("alone", True, 4), ("alone", False, 2), ("together", True, 2), ("together", False, 2))


@dataclass(frozen=True)
class Plan:
    """The plan of a simulated day.

    :ivar tasks: number of collection tasks.
    :ivar pages: number of pages of each task.
    :ivar size: bytes of each task's rows.
    :ivar arrivals: the distribution of starts: ``evenly``, ``hourly`` or ``at midnight``.
    :ivar marks: whether landings are marked as exported.
    :ivar addresses: number of caller addresses.
    """

    tasks: int
    pages: int
    size: float
    arrivals: str
    layout: Layout
    marks: bool
    addresses: int
    costs: Costs

    @property
    def landing(self) -> int:
        """The number of requests of a landing."""
        return self.pages + (self.costs.marked if self.marks else self.costs.unmarked)


@dataclass
class Day:
    """The results of a simulated day for one address.

    :ivar requests: number of requests by hour.
    :ivar delays: seconds from the time when a wait noticed a task's end until the task's landing began.
    :ivar landed: virtual time at which the last landing ended, in seconds.
    :ivar busy: total seconds of all landings.
    :ivar waits: maximum number of simultaneous waits.
    """

    requests: Counter[int] = field(default_factory=Counter)
    delays: list[float] = field(default_factory=list)
    landed: float = 0.0
    busy: float = 0.0
    waits: int = 0


class Address:
    """One caller address, with its workers and its triggerer; it sends requests in order."""

    def __init__(self, plan: Plan) -> None:
        self.day = Day()
        self._plan = plan
        self._chance = random.Random(1)
        self._free_from = {ADDRESS_RATE: 0.0, STATUS_RATE: 0.0}
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, str]] = []
        self._queues: dict[str, deque[float]] = {"start": deque(), "land": deque()}
        self._slots = {"start": STARTS_AT_ONCE, "land": plan.layout.at_once}
        self._waits = self._open = 0

    def run(self) -> Day:
        """Simulate until all tasks have landed."""
        self._open = self._plan.tasks // self._plan.addresses
        for number in range(self._open):
            share = number / self._open * DAY
            begin = {"evenly": share, "hourly": share // HOUR * HOUR, "at midnight": 0.0}[self._plan.arrivals]
            self._at(begin, "start")
        self._at(0.0, "poll")
        while self._open:
            now, _, event = heapq.heappop(self._events)
            getattr(self, f"_{event}")(now)
        return self.day

    def _at(self, moment: float, event: str) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), event))

    def _send(self, now: float, number: int, rate: float = ADDRESS_RATE) -> float:
        """Send requests as soon as the rate allows; return the seconds until the last one is sent."""
        self._free_from[rate] = max(now, self._free_from[rate]) + number / rate
        if rate == ADDRESS_RATE:
            self.day.requests[int(self._free_from[rate] // HOUR)] += number
        return self._free_from[rate] - now

    def _take_slot(self, now: float, kind: str) -> float | None:
        """Take a slot for the first entry of a queue, and return the time since which the entry has waited.

        :return: None if the queue is empty or no slot is free.
        """
        if not (self._slots[kind] and self._queues[kind]):
            return None
        self._slots[kind] -= 1
        return self._queues[kind].popleft()

    def _start(self, now: float) -> None:
        self._queues["start"].append(now)
        self._begin_starts(now)

    def _begin_starts(self, now: float) -> None:
        while self._take_slot(now, "start") is not None:
            limits = max(self._send(now, 1, STATUS_RATE), self._send(now, self._plan.costs.start))
            self._at(now + PROCESS + limits + self._plan.costs.start * LATENCY, "started")

    def _started(self, now: float) -> None:
        self._slots["start"] += 1
        self._waits += 1
        self.day.waits = max(self.day.waits, self._waits)
        self._at(now + self._chance.uniform(*COLLECTS) + self._chance.uniform(0, POLL), "finished")
        self._begin_starts(now)

    def _poll(self, now: float) -> None:
        if self._waits:
            queries = -(-self._waits // BATCH)
            self._send(now, queries, STATUS_RATE)
            self._send(now, queries)
        self._at(now + POLL, "poll")

    def _finished(self, now: float) -> None:
        self._waits -= 1
        self._queues["land"].append(now)
        self._begin_landings(now)

    def _begin_landings(self, now: float) -> None:
        layout, requests = self._plan.layout, self._plan.landing
        while (since := self._take_slot(now, "land")) is not None:
            self.day.delays.append(now - since)
            reading = max(self._send(now, requests), requests / layout.rate) + self._plan.size / SPEED
            seconds = layout.process + reading + LATE_ROWS_DELAY * self._plan.marks
            self.day.busy += seconds
            self._at(now + seconds, "landed")

    def _landed(self, now: float) -> None:
        self._slots["land"] += 1
        self._open -= 1
        self.day.landed = now
        self._begin_landings(now)


def simulate(plan: Plan) -> Day:
    """Simulate one of the addresses, which are all alike."""
    return Address(plan).run()


def pages_of(size: float, row_bytes: int) -> int:
    """Return the number of pages for ``size`` bytes; a page ends after 1000 rows or 8 MB."""
    return -(-int(size) // min(PAGE_ROWS * row_bytes, PAGE_BYTES))


def capacity(costs: Costs) -> None:
    """Print the capacity of one address in a day, by the size of a row."""
    day = ADDRESS_RATE * DAY
    rows: list[list[object]] = []
    for row_bytes in (250, 1000, 8000):
        pages, terabyte = pages_of(10e6, row_bytes), pages_of(1e12, row_bytes)
        landings = (day / (costs.start + requests + pages) for requests in (costs.marked, costs.unmarked))
        rows.append([row_bytes, f"{terabyte:,}", f"{day / terabyte:.2f}", pages])
        rows[-1] += [f"{number:,.0f}" for number in landings]
    print(f"\nOne address, {ADDRESS_RATE} requests per second, a day:")
    table(
        "bytes of a row | pages of 1 TB | TB, pages alone | pages of 10 MB | tasks of it with mark | without",
        rows,
    )
    layout, pages, rows = LAYOUTS["alone"], pages_of(10e6, 1000), []
    for mark, requests, late_rows_delay in (
        ("with", costs.marked, LATE_ROWS_DELAY),
        ("without", costs.unmarked, 0.0),
    ):
        seconds = layout.process + (pages + requests) / layout.rate + 10e6 / SPEED + late_rows_delay
        rows.append(
            [mark, pages + requests, f"{seconds:.1f}", f"{HOUR / seconds:.0f}", f"{DAY / seconds / 100:.0f}"]
        )
    print("\nOne slot, landings alone of 10 MB in rows of 1000 bytes:")
    table("mark | requests | seconds | landings an hour | GB a day", rows)


def days(tasks: int, megabytes: float, row_bytes: int, costs: Costs) -> None:
    """Simulate days, and print a table of the results."""
    size = megabytes * 1e6
    plans = [
        Plan(tasks, pages_of(size, row_bytes), size, arrivals, LAYOUTS[layout], marks, addresses, costs)
        for layout, marks, addresses in DAYS
        for arrivals in ("evenly", "hourly", "at midnight")
    ]
    # spawned, not forked, since Airflow has started threads
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        results = list(pool.map(simulate, plans))
    rows = []
    for plan, day in zip(plans, results, strict=True):
        length = max(DAY, day.landed)
        late = statistics.median(day.delays), statistics.quantiles(day.delays, n=20)[-1]
        sent = (
            f"{day.requests.total() / length:.1f}",
            f"{max(day.requests.values()) / HOUR / ADDRESS_RATE:.0%}",
        )
        minutes = (f"{value / MINUTE:.1f} min" for value in late)
        held = f"{day.landed / HOUR:.1f} h", f"{day.busy / length * plan.addresses:.0f}"
        waits = f"{day.waits * plan.addresses:,}", -(-day.waits // BATCH)
        marks = "yes" if plan.marks else "no"
        rows.append([plan.layout.name, marks, plan.addresses, plan.arrivals, *sent, *minutes, *held, *waits])
    print(f"\n{tasks:,} collection tasks of {megabytes:g} MB a day, rows of {row_bytes} bytes:")
    table(
        "landings | marks | addresses | arrivals | requests/s of each | of the limit, busiest hour | "
        "a landing begins after, median | 95 % | all landed after | landings at once, mean | most waits | "
        "status queries a minute of each",
        rows,
    )


def in_airflow(tasks: int, costs: Costs) -> None:
    """Print the load on Airflow, by the way in which collection tasks are waited for and landed."""
    start, wait, land = costs.start_writes, costs.wait_writes, costs.landing_writes
    # processes and writes for each collection task; a deferred wait takes two processes
    kinds = {
        "deferred wait, landing alone": (1 + 2 + 1, start + wait + land),
        f"{TOGETHER} waited for and landed at once": (1 + 3 / TOGETHER, start + (wait + land) / TOGETHER),
        f"started by the service's schedule, {TOGETHER} landed at once": (1 / TOGETHER, land / TOGETHER),
    }
    print(f"\n{tasks:,} collection tasks a day in Airflow:")
    rows = [
        [kind, f"{count * tasks:,.0f}", f"{count * PROCESS * tasks / DAY:.1f}", f"{writes * tasks / DAY:.1f}"]
        for kind, (count, writes) in kinds.items()
    ]
    table("  | processes a day | slots for starting them, mean | writes by tasks per second, mean", rows)


def main() -> None:
    """Count costs, simulate days, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100_000, help="a day (default: %(default)s)")
    parser.add_argument("--megabytes", type=float, default=10, help="of each (default: %(default)s)")
    parser.add_argument("--row-bytes", type=int, default=1000, help="of a row (default: %(default)s)")
    arguments = parser.parse_args()
    print(machine(), flush=True)
    costs = count()
    capacity(costs)
    in_airflow(arguments.tasks, costs)
    days(arguments.tasks, arguments.megabytes, arguments.row_bytes, costs)


if __name__ == "__main__":
    main()
