"""Ten thousand waits: ``python -m benchmarks.waiting [--quick]``.

A sandbox that enforces the service's limits runs in a process of its own. There are four measurements:

- the provider's triggers in one event loop, as in Airflow's triggerer, for four rounds: in the first, the
  triggers arrive; in the second, they only wait; in the third, some tasks finish at random times; in the
  fourth, the last of these tasks are noticed;
- the same while 3 % of the responses are faulty: each finished task must be noticed, no other wait may end;
- half of the waits in each of two processes, like two triggerers at one address;
- the common way, one request for each wait and poll, to the same server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import os
import random
import resource
import selectors
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import httpx

from airflow_provider_webcollect.sandbox import Control, demo
from airflow_provider_webcollect.waiting.poll import SPACING, SPREAD
from benchmarks.report import machine, table
from benchmarks.server import sandbox

T = TypeVar("T")
#: The name of a measured value, its target, the value, and whether the target is met; None without a target.
Row: TypeAlias = tuple[str, str, str, bool | None]

STATUS = "/cloudextraction/statuses/v2"
BATCH = 100
ROUNDS = 4
ODD_ROUNDS = 8
TRIGGERER_ROUNDS = 3
#: Share of the waits whose task finishes.
FINISHING = 0.01
#: Share of the responses that are faulty, distributed equally over the following kinds.
ODD = 0.03
ODD_KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "html", "status": 502},
    {"kind": "cut_body"},
    {"kind": "broken_json"},
    {"kind": "status", "status": 401},
)
SEED = 4
#: Maximum number of seconds for which the event loop may be blocked.
LONGEST_BLOCK = 0.05


@dataclass(frozen=True)
class Plan:
    """The size of a measurement.

    :ivar waits: number of simultaneous waits.
    :ivar interval: seconds between two polls of a wait, which is the length of a round.
    """

    waits: int
    interval: float

    @property
    def least(self) -> int:
        """The minimum number of requests in a round."""
        return math.ceil(self.waits / BATCH)

    @property
    def lead(self) -> float:
        """Seconds between the beginning of a round, as it is counted, and its first request.

        The requests of a round take only a part of its time; half of the other time is before the requests.
        """
        return (self.interval - self.least * min(SPACING, SPREAD * self.interval / self.least)) / 2


FULL = Plan(waits=10_000, interval=60.0)
QUICK = Plan(waits=1_000, interval=6.0)
#: With faulty responses, the rounds are as short as the limits allow, so that there are many responses.
FULL_ODD = Plan(waits=10_000, interval=30.0)
QUICK_ODD = Plan(waits=1_000, interval=3.0)


def main() -> None:
    """Start a sandbox, measure everything, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 waits, in shorter rounds")
    quick = parser.parse_args().quick
    plan, odd_plan = (QUICK, QUICK_ODD) if quick else (FULL, FULL_ODD)
    random.seed(SEED)
    print(f"{machine()}\n\n{plan.waits:,} waits, each with a poll every {plan.interval:.0f} s.\n", flush=True)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        nothing = process.submit(bare, plan.waits).result()
    quiet_logs()
    with sandbox() as server:
        url = server.url
        control = Control(url)
        # only the measurement finishes tasks
        control.configure(run_seconds=3600)
        ids = [control.add_task(state="Extracting")["task_id"] for _ in range(plan.waits)]
        connect(url)
        seen = in_loop(lambda turns: shared(plan, control, ids, turns))
        print_shared(plan, seen, nothing)
        control.clear_requests()
        asyncio.run(odd(odd_plan, control, ids))
        two_triggerers(plan, control, url, ids)
        control.clear_requests()
        in_loop(lambda turns: common(plan, control, url, ids))


def quiet_logs() -> None:
    """Log as the triggerer does, but to the null device, since logging is a part of the cost of a wait."""
    from airflow.sdk.log import configure_logging

    configure_logging(json_output=True, output=Path(os.devnull).open("wb"))  # noqa: SIM115  # for good


def connect(url: str) -> None:
    """Set Airflow's default connection of the service to the sandbox."""
    os.environ["AIRFLOW__WEBCOLLECT__TOKEN_STORE"] = "memory"
    os.environ["AIRFLOW_CONN_WEBCOLLECT_DEFAULT"] = json.dumps(
        {
            "conn_type": "webcollect",
            "host": url,
            "extra": {"access_token": demo.ACCESS_TOKEN},
        }
    )


@dataclass(frozen=True)
class Block:
    """A turn of the event loop: its duration, its CPU time, and the garbage collector's part of that time."""

    seconds: float = 0.0
    cpu: float = 0.0
    garbage: float = 0.0

    @property
    def work(self) -> float:
        """The CPU seconds without the garbage collector."""
        return self.cpu - self.garbage

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1000:.0f} ms (CPU {self.cpu * 1000:.0f} ms, of it the garbage collector "
            f"{self.garbage * 1000:.0f} ms)"
        )


@dataclass(frozen=True)
class Longest:
    """The longest turn, and the turn with the most work."""

    block: Block = Block()
    work: Block = Block()

    def and_also(self, turn: Block) -> Longest:
        """Return the longest turns after another turn."""
        return Longest(
            max(self.block, turn, key=lambda block: block.seconds),
            max(self.work, turn, key=lambda block: block.work),
        )


class Turns(selectors.DefaultSelector):
    """Measures the turns of the event loop: the time from one poll of its sockets to the next."""

    def __init__(self) -> None:
        super().__init__()
        self._garbage_since = 0.0
        gc.callbacks.append(self._note_garbage)
        self.forget()

    def forget(self) -> None:
        """Forget the turns that were measured so far."""
        self.longest = Longest()
        self._begin()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """End a turn, wait, and begin the next one."""
        now, used = time.perf_counter(), time.thread_time()
        turn = Block(now - self._since, used - self._cpu_since, self._garbage)
        # most turns are too short to matter
        if turn.seconds > 0.001:
            self.longest = self.longest.and_also(turn)
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
        now = time.thread_time()
        if phase == "start":
            self._garbage_since = now
        else:
            self._garbage += now - self._garbage_since


def in_loop(measure: Callable[[Turns], Coroutine[Any, Any, T]]) -> T:
    """Run a measurement in an event loop whose turns are measured."""
    turns = Turns()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        return runner.run(measure(turns))


def cpu() -> float:
    """Return the CPU time of this process in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def arrive(coroutines: Iterable[Coroutine[Any, Any, None]]) -> list[asyncio.Task[None]]:
    """Start coroutines one after another; like the triggerer, yield to the event loop twice before each."""
    tasks = []
    for one in coroutines:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(one))
    return tasks


async def leave(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the remaining tasks."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


#: The Unix time of a trigger's event, and its payload.
Event: TypeAlias = tuple[float, dict[str, Any]]


async def run_trigger(task_id: str, interval: float, events: dict[str, Event]) -> None:
    """Wait for a task as the triggerer does, and record the event."""
    from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskStatusTrigger

    trigger = WebCollectTaskStatusTrigger(
        condition={"task_ids": [task_id]}, poke_interval=interval, webcollect_conn_id="webcollect_default"
    )
    async for event in trigger.run():
        events[task_id] = time.time(), event.payload


@dataclass
class Bare:
    """The cost of triggers that do nothing: the cost that Airflow and asyncio add to each trigger."""

    bytes_per_wait: float
    arriving: Longest


def bare(count: int) -> Bare:
    """Measure triggers that do nothing, in this process."""
    # most of the objects that the garbage collector must visit are Airflow's
    from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskStatusTrigger  # noqa: F401

    async def nothing() -> AsyncIterator[None]:
        yield await asyncio.get_running_loop().create_future()

    async def run() -> None:
        async for _ in nothing():
            pass

    async def measure(turns: Turns) -> Bare:
        before = resident()
        turns.forget()
        tasks = await arrive(run() for _ in range(count))
        longest = turns.longest
        size = (resident() - before) / count
        await leave(tasks)
        return Bare(size, longest)

    return in_loop(measure)


@dataclass
class Seen:
    """The measured values of the provider's waits.

    :ivar requests: number of status queries, by round.
    :ivar refused: number of responses with HTTP 429.
    :ivar delays: seconds from a task's end to the event, for each finished task that was noticed.
    :ivar finished: number of finished tasks.
    :ivar cpu: share of one core that the process has used.
    :ivar bytes_per_wait: memory in bytes.
    :ivar arriving: the longest turns while triggers arrive.
    :ivar waiting: the longest turns after that.
    """

    requests: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    delays: list[float] = field(default_factory=list)
    finished: int = 0
    cpu: float = 0.0
    bytes_per_wait: float = 0.0
    arriving: Longest = Longest()
    waiting: Longest = Longest()


async def shared(plan: Plan, control: Control, ids: list[str], turns: Turns) -> Seen:
    """Run a trigger for each task, and let some tasks finish meanwhile."""
    seen = Seen()
    events: dict[str, Event] = {}

    # a first wait, so that imports and the look-up of the connection are not measured
    await run_trigger(demo.FINISHED_TASK_ID, plan.interval, events)
    control.clear_requests()
    before = resident()
    turns.forget()
    clock = time.time()
    began = time.monotonic()

    async def round_ends(number: int) -> None:
        await asyncio.sleep(began + number * plan.interval - plan.lead - time.monotonic())

    waits = await arrive(run_trigger(task_id, plan.interval, events) for task_id in ids)
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
    seen.delays = [
        events[task_id][0] - moment for task_id, moment in finished.items() if is_done(events, task_id)
    ]
    for request in control.requests(STATUS):
        seen.requests[int((request["time"] - clock + plan.lead) // plan.interval)] += 1
        seen.refused += request["status"] == 429
    await leave(waits)
    return seen


def is_done(events: dict[str, Event], task_id: str) -> bool:
    """Return whether the wait for a task has ended with success."""
    return task_id in events and events[task_id][1]["outcome"] == "done"


async def finish_some(control: Control, ids: list[str], until: float) -> dict[str, float]:
    """Finish tasks at random times; return the Unix time of each task's end."""
    count = int(len(ids) * FINISHING)
    moments = sorted(random.uniform(time.monotonic(), until) for _ in range(count))
    finished = {}
    for task_id, moment in zip(random.sample(ids, count), moments, strict=True):
        await asyncio.sleep(moment - time.monotonic())
        finished[task_id] = time.time()
        await asyncio.to_thread(control.mark_state, task_id, "Finished")
    return finished


def print_shared(plan: Plan, seen: Seen, nothing: Bare) -> None:
    """Print the cost of the provider's waits, and the targets."""
    counts = [seen.requests[number] for number in range(ROUNDS)]
    worst = max(seen.delays, default=math.inf)
    kilobytes = seen.bytes_per_wait / 1024
    rows: list[Row] = [
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
        ("memory per wait", "≤ 4 KB", f"{kilobytes:.2f} KB", kilobytes <= 4),
        ("of it a trigger that does nothing", "", f"{nothing.bytes_per_wait / 1024:.2f} KB", None),
    ]
    for when, turns in (("as they arrive", seen.arriving), ("from then on", seen.waiting)):
        longest, work = turns.block.seconds, turns.work.work
        rows += [
            (f"longest block, {when}", "≤ 50 ms", f"{turns.block}", longest <= LONGEST_BLOCK),
            (f"most work in one block, {when}", "≤ 50 ms", f"{work * 1000:.0f} ms", work <= LONGEST_BLOCK),
        ]
    rows.append(("longest block as triggers arrive that do nothing", "", f"{nothing.arriving.block}", None))
    print_table("this provider's triggers", rows)


async def odd(plan: Plan, control: Control, ids: list[str]) -> None:
    """Wait while some responses are faulty and some tasks finish, and print the results."""
    for task_id in ids:
        await asyncio.to_thread(control.mark_state, task_id, "Extracting")
    for kind in ODD_KINDS:
        control.fail(STATUS, times=None, probability=ODD / len(ODD_KINDS), **kind)
    events: dict[str, Event] = {}
    began = time.monotonic()
    waits = await arrive(run_trigger(task_id, plan.interval, events) for task_id in ids)
    finished = await finish_some(control, ids, began + (ODD_ROUNDS - 3) * plan.interval)
    await asyncio.sleep(began + ODD_ROUNDS * plan.interval - time.monotonic())
    control.clear_faults()
    requests = control.requests(STATUS)
    await leave(waits)
    ended = {task_id for task_id in ids if task_id in events}
    done = {task_id for task_id in finished if is_done(events, task_id)}
    delays = [events[task_id][0] - finished[task_id] for task_id in done]
    statuses = Counter(request["status"] for request in requests)
    rows: list[Row] = [
        ("answers", "", f"{len(requests)}", None),
        ("of them a gateway's page, a 401", "", f"{statuses[502]}, {statuses[401]}", None),
        ("of them cut or unreadable", "", f"{repeated(requests, plan.interval)}", None),
        ("answers 429", "0", f"{statuses[429]}", not statuses[429]),
        ("waits that ended early or wrongly", "0", f"{len(ended - done)}", not ended - done),
        ("finished tasks noticed", f"{len(finished)}", f"{len(done)}", len(done) == len(finished)),
        ("noticed after, median", "", f"{statistics.median(delays):.1f} s", None),
        ("noticed after at most", "", f"{max(delays):.1f} s", None),
    ]
    print_table(f"{plan.waits:,} waits, a poll every {plan.interval:.0f} s, 3 % odd answers", rows)


def repeated(requests: list[dict[str, Any]], interval: float) -> int:
    """Return the number of requests that were answered with HTTP 200, but repeated before they were due."""
    answered: dict[str, float] = {}
    count = 0
    for request in requests:
        count += request["time"] - answered.pop(request["body"], -math.inf) < interval / 2
        if request["status"] == 200:
            answered[request["body"]] = request["time"]
    return count


def two_triggerers(plan: Plan, control: Control, url: str, ids: list[str]) -> None:
    """Wait in two processes at once, each for half of the tasks, and print the number of their requests."""
    for task_id in ids:
        control.mark_state(task_id, "Extracting")
    halves = ids[: len(ids) // 2], ids[len(ids) // 2 :]
    seconds = TRIGGERER_ROUNDS * plan.interval
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        # both processes finish their imports first, so that they begin to wait at the same time
        list(processes.map(prepare, [url] * 2))
        control.clear_requests()
        began = time.time()
        list(processes.map(triggerer, halves, [plan.interval] * 2, [seconds] * 2))
    # requests after this time are part of another round
    requests = [request for request in control.requests(STATUS) if request["time"] < began + seconds]
    of_first = set(halves[0])
    counts = Counter(json.loads(request["body"])["taskIds"][0] in of_first for request in requests)
    moments = [request["time"] for request in requests]
    most = max(sum(moment <= other < moment + 1 for other in moments) for moment in moments)
    refused = sum(request["status"] == 429 for request in requests)
    least = math.ceil(plan.waits / 2 / BATCH) * 60 / plan.interval
    rows: list[Row] = [
        (
            f"requests per minute of triggerer {name}",
            f"{least:.0f}",
            f"{counts[key] / seconds * 60:.1f}",
            counts[key] <= least * seconds / 60,
        )
        for name, key in (("A", True), ("B", False))
    ]
    rows += [
        ("most requests of both in any second", "≤ 5", f"{most}", most <= 5),
        ("answers 429", "0", f"{refused}", not refused),
    ]
    print_table(f"two triggerers, {plan.waits // 2:,} waits each, for {seconds:.0f} s", rows)


def prepare(url: str) -> None:
    """Prepare this process for waits."""
    from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskStatusTrigger  # noqa: F401

    quiet_logs()
    connect(url)
    # keep this process busy, so that the pool gives the second call to the other process
    time.sleep(1)


def triggerer(ids: list[str], interval: float, seconds: float) -> None:
    """Wait for tasks in this process for some time."""

    async def run() -> None:
        began = time.monotonic()
        waits = await arrive(run_trigger(task_id, interval, {}) for task_id in ids)
        await asyncio.sleep(began + seconds - time.monotonic())
        await leave(waits)

    asyncio.run(run())


async def common(plan: Plan, control: Control, url: str, ids: list[str]) -> None:
    """Poll each task with a request of its own for one round, as providers commonly do.

    The waits begin evenly distributed over the round, which is the best case.
    """
    headers = {"Authorization": f"Bearer {demo.ACCESS_TOKEN}"}
    answers: Counter[int] = Counter()
    # limit the queue for connections of httpx, which takes more time per request the longer it is
    free = asyncio.Semaphore(50)

    async def poll(client: httpx.AsyncClient, number: int, task_id: str) -> None:
        await asyncio.sleep(number / plan.waits * plan.interval)
        with contextlib.suppress(httpx.HTTPError):
            async with free:
                answer = await client.post(url + STATUS, json={"taskIds": [task_id]}, headers=headers)
            answers[answer.status_code] += 1

    used, since = cpu(), time.monotonic()
    async with httpx.AsyncClient(timeout=60) as client:
        await asyncio.gather(*(poll(client, *pair) for pair in enumerate(ids)))
    seconds = time.monotonic() - since
    rows = [
        ("requests", f"{sum(control.counters().get(STATUS, {}).values())}"),
        ("answers 429", f"{answers[429]}"),
        ("waits answered", f"{answers[200]} of {plan.waits} in {seconds:.0f} s"),
        ("time to answer all at that rate", f"{plan.waits / max(1, answers[200]) * seconds / 60:.0f} min"),
        ("CPU, of one core", f"{(cpu() - used) / seconds:.2%}"),
    ]
    print_table("a request for each wait and poll", [(name, "", value, None) for name, value in rows])


def print_table(title: str, rows: Iterable[Row]) -> None:
    """Print a table of the targets and the measured values."""
    said = {None: "", True: "met", False: "**missed**"}
    table(f"{title} | target | measured | ", ((*cells, said[met]) for *cells, met in rows))


if __name__ == "__main__":
    main()
