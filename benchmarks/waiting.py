"""Ten thousand waits in one event loop: ``python -m benchmarks.waiting [--quick]``.

A sandbox that enforces the service's limits runs in a process of its own. The first measurement runs the
provider's triggers as Airflow's triggerer does, for four rounds: one in which they arrive, one of nothing but
waiting, one in which some tasks finish at random moments, and one more in which the last of those is noticed.
The second is the common way, a request for each wait and look, on the same server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import os
import platform
import random
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import httpx

from airflow_provider_webcollect.sandbox import Control, demo
from airflow_provider_webcollect.service.pace import STATUS_INTERVALS, Pace

T = TypeVar("T")

STATUS = "/cloudextraction/statuses/v2"
BATCH = 100
ROUNDS = 4
#: Of the waits, those whose task finishes.
FINISHING = 0.01
SEED = 4


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    :ivar waits: waits at once.
    :ivar interval: seconds between two looks of a wait, which is the length of a round.
    """

    waits: int
    interval: float

    @property
    def least(self) -> int:
        """The fewest requests that a round can do with."""
        return math.ceil(self.waits / BATCH)

    @property
    def lead(self) -> float:
        """Seconds by which a round is counted from before its first request.

        The requests of a round take only a part of it; half of the rest lies before them, half after.
        """
        return (self.interval - self.least * STATUS_INTERVALS[Pace.STATUS_V2]) / 2


FULL = Plan(waits=10_000, interval=60.0)
QUICK = Plan(waits=1_000, interval=15.0)


def main() -> None:
    """Start a sandbox, measure both ways, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="1,000 waits, and a minute and a half instead of six"
    )
    plan = QUICK if parser.parse_args().quick else FULL
    random.seed(SEED)
    print(f"{machine()}\n\n{plan.waits:,} waits, each with a look every {plan.interval:.0f} s.\n", flush=True)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        bare = process.submit(bare_task_bytes, plan.waits).result()
    quiet_logs()
    with sandbox() as url:
        control = Control(url)
        ids = [control.add_task(state="Extracting")["task_id"] for _ in range(plan.waits)]
        connect(url)
        seen = in_loop(lambda turns: shared(plan, control, ids, turns))
        print_shared(plan, seen, bare)
        control.clear_requests()
        in_loop(lambda turns: common(plan, control, url, ids))


def machine() -> str:
    """Say what this runs on."""
    from airflow import __version__ as airflow

    load = os.getloadavg()[0]
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at first; "
        f"Python {platform.python_version()}, Airflow {airflow}."
    )


def quiet_logs() -> None:
    """Log as the triggerer does, to nowhere: writing what is logged is part of what a wait costs."""
    from airflow.sdk.log import configure_logging

    configure_logging(json_output=True, output=Path(os.devnull).open("wb"))


@contextlib.contextmanager
def sandbox() -> Iterator[str]:
    """Run a sandbox in another process; yield its URL."""
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "url"
        command = [sys.executable, "-m", "airflow_provider_webcollect.sandbox", "--port", "0"]
        server = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=subprocess.DEVNULL)
        try:
            while not ready.exists():
                time.sleep(0.02)
            yield ready.read_text()
        finally:
            server.terminate()
            server.wait()


def connect(url: str) -> None:
    """Make the sandbox Airflow's default connection of the service."""
    os.environ["AIRFLOW_CONN_WEBCOLLECT_DEFAULT"] = json.dumps(
        {
            "conn_type": "webcollect",
            "host": url,
            "extra": {"access_token": demo.ACCESS_TOKEN, "token_store": "memory"},
        }
    )


@dataclass
class Block:
    """A turn of the event loop: how long it took, the CPU time in it, and the garbage collector's share."""

    seconds: float = 0.0
    cpu: float = 0.0
    garbage: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1000:.0f} ms (CPU {self.cpu * 1000:.0f} ms, of it the garbage collector "
            f"{self.garbage * 1000:.0f} ms)"
        )


class Turns(selectors.DefaultSelector):
    """Measures how long the event loop takes from one look at its sockets to the next, all turns of it."""

    def __init__(self) -> None:
        super().__init__()
        self._garbage_since = 0.0
        gc.callbacks.append(self._note_garbage)
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.longest = Block()
        self._begin()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """End a turn, wait, and begin the next one."""
        seconds = time.perf_counter() - self._since
        if seconds > self.longest.seconds:
            self.longest = Block(seconds, time.thread_time() - self._cpu_since, self._garbage)
        try:
            return super().select(timeout)
        finally:
            self._begin()

    def close(self) -> None:
        """Stop measuring."""
        gc.callbacks.remove(self._note_garbage)
        super().close()

    def _begin(self) -> None:
        self._since, self._cpu_since, self._garbage = time.perf_counter(), time.thread_time(), 0.0

    def _note_garbage(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._garbage_since = now
        else:
            self._garbage += now - self._garbage_since


def in_loop(measure: Callable[[Turns], Awaitable[T]]) -> T:
    """Run a measurement in an event loop whose turns are watched."""
    turns = Turns()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        return runner.run(measure(turns))


def cpu() -> float:
    """Return the seconds of CPU that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident() -> int:
    """Return the bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def bare_task_bytes(count: int) -> float:
    """Return the bytes that each task takes of which asyncio knows, if it waits for nothing but a future."""

    class Bare:
        async def run(self):
            yield await asyncio.get_running_loop().create_future()

    async def run(trigger: Bare) -> None:
        async for _ in trigger.run():
            pass

    async def measure() -> float:
        before = resident()
        tasks = [asyncio.create_task(run(Bare())) for _ in range(count)]
        await asyncio.sleep(0.5)
        each = (resident() - before) / count
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return each

    return asyncio.run(measure())


@dataclass
class Seen:
    """What was measured of the provider's waits."""

    requests: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    delays: list[float] = field(default_factory=list)
    finished: int = 0
    cpu: float = 0.0
    bytes_per_wait: float = 0.0
    arriving: Block = field(default_factory=Block)
    waiting: Block = field(default_factory=Block)


async def shared(plan: Plan, control: Control, ids: list[str], turns: Turns) -> Seen:
    """Run a trigger for each task, and let some tasks finish meanwhile."""
    from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskStatusTrigger

    seen = Seen()
    noticed: dict[str, float] = {}

    async def run(trigger: WebCollectTaskStatusTrigger, task_id: str) -> None:
        async for event in trigger.run():
            assert event.payload["outcome"] == "done", event.payload
            noticed[task_id] = time.time()

    async def start(task_id: str) -> asyncio.Task[None]:
        # the triggerer gives way twice before each
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        trigger = WebCollectTaskStatusTrigger(
            wait={"task_ids": [task_id]}, poke_interval=plan.interval, webcollect_conn_id="webcollect_default"
        )
        return asyncio.create_task(run(trigger, task_id))

    await warm_up(start)
    control.clear_requests()
    before = resident()
    turns.forget()
    clock = time.time()
    began = time.monotonic()

    async def round_ends(number: int) -> None:
        await asyncio.sleep(began + number * plan.interval - plan.lead - time.monotonic())

    waits = [await start(task_id) for task_id in ids]
    await round_ends(1)
    seen.arriving = turns.longest
    seen.bytes_per_wait = (resident() - before) / plan.waits
    turns.forget()
    used, since = cpu(), time.monotonic()
    await round_ends(2)
    finished = await finish_some(control, ids, began + 3 * plan.interval - plan.lead)
    await round_ends(3)
    seen.cpu = (cpu() - used) / (time.monotonic() - since)
    await round_ends(4)
    seen.waiting = turns.longest
    seen.finished = len(finished)
    seen.delays = [noticed[task_id] - moment for task_id, moment in finished.items() if task_id in noticed]
    for request in control.requests(STATUS):
        seen.requests[int((request["time"] - clock + plan.lead) // plan.interval)] += 1
        seen.refused += request["status"] == 429
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    return seen


async def warm_up(start: Callable[[str], Awaitable[asyncio.Task[None]]]) -> None:
    """Import and look up what the first wait of a process needs, and no later one."""
    wait = await start(demo.FINISHED_TASK_ID)
    await wait


async def finish_some(control: Control, ids: list[str], until: float) -> dict[str, float]:
    """Finish tasks at random moments; return when each did."""
    count = int(len(ids) * FINISHING)
    pauses = sorted(random.uniform(time.monotonic(), until - 0.5) for _ in range(count))
    finished = {}
    for task_id, moment in zip(random.sample(ids, count), pauses, strict=True):
        await asyncio.sleep(moment - time.monotonic())
        await asyncio.to_thread(control.mark_state, task_id, "Finished")
        finished[task_id] = time.time()
    return finished


def print_shared(plan: Plan, seen: Seen, bare: float) -> None:
    """Print what the provider's waits cost, beside what they may cost."""
    counts = [seen.requests[number] for number in range(ROUNDS)]
    worst = max(seen.delays, default=math.inf)
    kilobytes = seen.bytes_per_wait / 1024
    rows = [
        ("requests per round", f"{plan.least}", "{}, {}".format(*counts), counts[:2] == [plan.least] * 2),
        (
            "the same while some finish",
            f"≤ {plan.least}",
            "{}, {}".format(*counts[2:]),
            max(counts) <= plan.least,
        ),
        ("answers 429", "0", f"{seen.refused}", not seen.refused),
        (
            "finished tasks noticed",
            f"{seen.finished}",
            f"{len(seen.delays)}",
            len(seen.delays) == seen.finished,
        ),
        ("noticed after at most", f"{plan.interval + 1:.0f} s", f"{worst:.1f} s", worst <= plan.interval + 1),
        ("CPU, of one core", "≤ 3 %", f"{seen.cpu:.2%}", seen.cpu <= 0.03),
        ("memory per wait", "≤ 4 KB", f"{kilobytes:.1f} KB", kilobytes <= 4),
        ("of it the bare asyncio task", "", f"{bare / 1024:.1f} KB", None),
        ("longest block, as they arrive", "≤ 50 ms", f"{seen.arriving}", seen.arriving.seconds <= 0.05),
        ("longest block, from then on", "≤ 50 ms", f"{seen.waiting}", seen.waiting.seconds <= 0.05),
    ]
    print_table("this provider's triggers", rows)


async def common(plan: Plan, control: Control, url: str, ids: list[str]) -> None:
    """Look at each task with a request of its own, as providers commonly do, for one round.

    The waits begin evenly spread over the round, which is the best that can happen to them.
    """
    headers = {"Authorization": f"Bearer {demo.ACCESS_TOKEN}"}
    answers: Counter[int] = Counter()

    async def look(client: httpx.AsyncClient, number: int, task_id: str) -> None:
        await asyncio.sleep(number / plan.waits * plan.interval)
        with contextlib.suppress(httpx.HTTPError):
            answer = await client.post(url + STATUS, json={"taskIds": [task_id]}, headers=headers)
            answers[answer.status_code] += 1

    used, since = cpu(), time.monotonic()
    async with httpx.AsyncClient() as client:
        await asyncio.gather(*(look(client, *each) for each in enumerate(ids)))
    seconds = time.monotonic() - since
    rows = [
        ("requests", f"{sum(control.counters().get(STATUS, {}).values())}"),
        ("answers 429", f"{answers[429]}"),
        ("waits answered", f"{answers[200]} of {plan.waits} in {seconds:.0f} s"),
        ("time to answer all at that rate", f"{plan.waits / max(1, answers[200]) * seconds / 60:.0f} min"),
        ("CPU, of one core", f"{(cpu() - used) / seconds:.2%}"),
    ]
    print_table("a request for each wait and look", [(name, "", value, None) for name, value in rows])


def print_table(title: str, rows: list[tuple[str, str, str, bool | None]]) -> None:
    """Print a table in Markdown."""
    print(f"| {title} | target | measured | |\n|---|---|---|---|")
    for name, target, measured, met in rows:
        print(f"| {name} | {target} | {measured} | {'' if met is None else 'met' if met else '**missed**'} |")
    print(flush=True)


if __name__ == "__main__":
    main()
