"""Processes that share one rate limit: ``python -m benchmarks.rate_limits [--minutes N] [--no-simulation]``.

- A simulation in virtual time, with the client's RateLimiter and the sandbox's counting: each process reads
  with four threads that repeat refused requests as the client does. In further simulations, half of the
  processes leave, or one process joins; others vary the number of processes, the latency, and the service's
  way of counting.
- Real processes: each is a client with four threads that read pages from one sandbox on loopback.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import logging
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TypeVar

from airflow_provider_webcollect.sandbox import Control, demo
from airflow_provider_webcollect.sandbox import Settings as SandboxSettings
from airflow_provider_webcollect.sandbox.state import Limits, ServiceError
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.rate_limit import RateLimiter
from airflow_provider_webcollect.service.settings import GENERAL_RATE, Credentials, Retries, Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore
from benchmarks.report import machine, table
from benchmarks.server import sandbox

T = TypeVar("T")

PROCESSES = (1, 2, 10, 50)
THREADS = 4
RETRIES = Retries()
#: Seconds of a window in which shares are compared, until the shares have settled, and of the measurement
#: from then on.
WINDOW, SETTLING, SETTLED = 600, 1800, 3600
#: Number of simulations of each kind.
SEEDS = 5
#: Minimum one-way latency in seconds; on average, the random part adds the same time again.
LATENCY = 0.01
#: Further numbers of processes, and latencies, for which fewer figures are printed.
MORE_PROCESSES, LATENCIES = (3, 5, 7, 13, 20, 30), (0.0025, LATENCY, 0.04)
#: Maximum number of seconds to wait until freed capacity is used again, and the share of the earlier
#: throughput at which it counts as used again.
LONGEST_TAKEOVER, TAKEN_OVER = 7200, 0.9


@dataclass
class Answers:
    """The service's answers to the requests of all processes; moments are in virtual seconds.

    :ivar accepted: process and moment of each accepted request.
    :ivar refused: moment of each request that was refused with HTTP 429.
    :ivar failed: number of calls whose last attempt was refused.
    :ivar paused: seconds for which threads waited before another attempt, in total.
    """

    accepted: list[tuple[int, float]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    failed: int = 0
    paused: float = 0.0

    def rate(self, begin: float, end: float) -> float:
        """Return the number of accepted requests per second."""
        return sum(begin <= moment < end for _, moment in self.accepted) / (end - begin)

    def refusals(self, begin: float, end: float) -> float:
        """Return the share of the answers with HTTP 429, 0 to 1."""
        refused = sum(begin <= moment < end for moment in self.refused)
        return refused / max(1.0, refused + self.rate(begin, end) * (end - begin))

    def shares(self, processes: Iterable[int], begin: float, end: float) -> list[float]:
        """Return the share of each of these processes, as a multiple of a fair share."""
        counts = Counter(process for process, moment in self.accepted if begin <= moment < end)
        numbers = [counts[process] for process in processes]
        return [count / (sum(numbers) / len(numbers)) for count in numbers]


def sliding_second() -> Callable[[float], bool]:
    """Return a function that accepts requests as the sandbox does: 20 in any second."""
    time_now = 0.0
    service, settings = Limits(lambda: time_now), SandboxSettings()

    def accept(now: float) -> bool:
        nonlocal time_now
        time_now = now
        try:
            service.check(settings, "one address", None)
        except ServiceError:
            return False
        return True

    return accept


def fixed_seconds() -> Callable[[float], bool]:
    """Return a function that accepts 20 requests in each full second."""
    counts = Counter[int]()

    def accept(now: float) -> bool:
        counts[int(now)] += 1
        return counts[int(now)] <= GENERAL_RATE

    return accept


def bucket(seconds: int) -> Callable[[float], bool]:
    """Return a function that accepts 20 requests per second on average, as a token bucket.

    :param seconds: size of the bucket, in seconds' worth of requests.
    """
    capacity = seconds * GENERAL_RATE
    tokens, filled = capacity, 0.0

    def accept(now: float) -> bool:
        nonlocal tokens, filled
        tokens, filled = min(capacity, tokens + GENERAL_RATE * (now - filled)), now
        if tokens < 1:
            return False
        tokens -= 1
        return True

    return accept


#: The ways in which the service may count requests; the contract leaves this open.
COUNTINGS: dict[str, Callable[[], Callable[[float], bool]]] = {
    "any second": sliding_second,
    "full seconds": fixed_seconds,
    "bucket of 1 s": functools.partial(bucket, 1),
    "bucket of 5 s": functools.partial(bucket, 5),
}


class Simulation:
    """Processes that read in virtual time.

    :param processes: number of processes.
    :param seed: seed of the random numbers.
    :param lives: returns whether a process reads at a moment.
    :param latency: see :data:`LATENCY`.
    :param counting: one of :data:`COUNTINGS`.
    """

    def __init__(
        self,
        processes: int,
        seed: int,
        lives: Callable[[int, float], bool] = lambda process, now: True,
        latency: float = LATENCY,
        counting: str = "any second",
    ) -> None:
        random.seed(seed)
        self._lives = lives
        self._latency = latency
        self._accepts = COUNTINGS[counting]()
        self._time = 0.0
        self._limiters: dict[int, RateLimiter] = {}
        self._answers = Answers()
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[int, int, float], None], int, int, float]] = []
        for process in range(processes):
            for _ in range(THREADS):
                self._follow(random.uniform(0, 0.3), self._reserve, process)

    def run(self, seconds: float) -> Answers:
        """Simulate this number of seconds, and return the answers."""
        while self._events[0][0] < seconds:
            self._time, _, event, process, attempt, moment = heapq.heappop(self._events)
            if self._lives(process, self._time):
                event(process, attempt, moment)
            else:
                # check every second whether the process reads now
                self._follow(1.0, self._reserve, process)
        return self._answers

    def _now(self) -> float:
        return self._time

    def _follow(
        self,
        after: float,
        event: Callable[[int, int, float], None],
        process: int,
        attempt: int = 1,
        moment: float = 0.0,
    ) -> None:
        entry = self._time + after, next(self._numbers), event, process, attempt, moment
        heapq.heappush(self._events, entry)

    def _way(self) -> float:
        return self._latency + random.expovariate(1 / self._latency)

    def _reserve(self, process: int, attempt: int, _: float) -> None:
        if process not in self._limiters:
            self._limiters[process] = RateLimiter(1 / GENERAL_RATE, self._now)
        moment, wait = self._limiters[process].reserve()
        self._follow(wait + self._way(), self._arrive, process, attempt, moment)

    def _arrive(self, process: int, attempt: int, moment: float) -> None:
        if self._accepts(self._time):
            self._answers.accepted.append((process, self._time))
            self._follow(self._way(), self._accepted, process, 1, moment)
        else:
            self._answers.refused.append(self._time)
            self._follow(self._way(), self._refused, process, attempt, moment)

    def _accepted(self, process: int, attempt: int, moment: float) -> None:
        self._limiters[process].answered(moment, "page")
        self._reserve(process, attempt, moment)

    def _refused(self, process: int, attempt: int, moment: float) -> None:
        self._limiters[process].answered(moment, "page")
        self._limiters[process].slow_down(moment=moment)
        longest = min(RETRIES.longest_wait, RETRIES.first_wait * 2 ** (attempt - 1))
        if attempt == RETRIES.attempts:
            self._answers.failed += 1
            attempt, longest = 0, 0.0
        pause = random.uniform(0, longest)
        self._answers.paused += pause
        self._follow(pause, self._reserve, process, attempt + 1)


def settled(processes: int, seed: int, latency: float = LATENCY, counting: str = "any second") -> Answers:
    """Simulate processes that all begin at the same time, until long after their shares have settled."""
    return Simulation(processes, seed, latency=latency, counting=counting).run(SETTLING + SETTLED)


def takeover(processes: int, seed: int) -> float:
    """Return the seconds from the end of half of the processes until the others use most of the capacity."""
    left = float(SETTLING + WINDOW)

    def lives(process: int, now: float) -> bool:
        return now < left or process >= processes // 2

    answers = Simulation(processes, seed, lives).run(left + LONGEST_TAKEOVER)
    before = answers.rate(left - WINDOW, left)
    per_minute = Counter(int((moment - left) // 60) for _, moment in answers.accepted)
    for minute in range(LONGEST_TAKEOVER // 60):
        if per_minute[minute] / 60 >= TAKEN_OVER * before:
            return 60.0 * (minute + 1)
    return float(LONGEST_TAKEOVER)


def joining(processes: int, seed: int) -> tuple[float, float]:
    """Let one more process begin.

    :return: the new process's share in its second ten minutes, and the share of all answers that were 429 in
        its first ten minutes.
    """
    begins = float(SETTLING)

    def lives(process: int, now: float) -> bool:
        return process > 0 or now >= begins

    answers = Simulation(processes, seed, lives).run(begins + 2 * WINDOW)
    span = begins + WINDOW, begins + 2 * WINDOW
    return answers.shares(range(processes), *span)[0], answers.refusals(begins, begins + WINDOW)


def simulations() -> None:
    """Run the simulations, and print tables."""
    print(f"\nSimulation, means of {SEEDS} runs. All begin at once.", flush=True)
    with ProcessPoolExecutor(2) as pool:
        runs = {processes: simulated(pool, settled, processes) for processes in PROCESSES}
        table(
            "processes | accepted/s | 429s | least and largest share in 10 minutes | in the hour",
            (in_the_end(*item) for item in runs.items()),
        )
        table(
            "processes | 429s in minute 1 | 2 to 5 | 6 to 15 | 16 to 30 | calls that failed | pauses",
            (at_the_beginning(*item) for item in runs.items()),
        )
        table(
            "processes | half leave: 90 % again after | one joins: its share | 429s of all",
            (after_changes(pool, processes) for processes in PROCESSES[1:]),
        )
        table(
            "processes | accepted/s | 429s | least and largest share in 10 minutes | in the hour",
            (in_the_end(processes, simulated(pool, settled, processes)) for processes in MORE_PROCESSES),
        )
        table(
            "counted in | on the way | processes | accepted/s | 429s | least and largest share in 10 minutes",
            (
                (counting, f"{2000 * latency:g} ms", *in_the_end(processes, answers)[:4])
                for counting in COUNTINGS
                for latency in LATENCIES
                for processes in PROCESSES
                if (answers := simulated(pool, settled, processes, latency, counting, seeds=1))
            ),
        )


def simulated(
    pool: Executor, simulate: Callable[..., T], processes: int, *given: object, seeds: int = SEEDS
) -> list[T]:
    """Return the results of one simulation with several seeds."""
    runs = [pool.submit(simulate, processes, seed, *given) for seed in range(seeds)]
    return [run.result() for run in runs]


def in_the_end(processes: int, runs: Sequence[Answers]) -> tuple[object, ...]:
    """Return a row about the hour after the processes have settled."""
    end = SETTLING + SETTLED
    everyone = range(processes)
    windows = [
        run.shares(everyone, begin, begin + WINDOW) for run in runs for begin in range(SETTLING, end, WINDOW)
    ]
    rate = statistics.mean(run.rate(SETTLING, end) for run in runs)
    refusals = statistics.mean(run.refusals(SETTLING, end) for run in runs)
    hours = [run.shares(everyone, SETTLING, end) for run in runs]
    return processes, f"{rate:.1f}", f"{refusals:.2%}", extremes(windows), extremes(hours)


def at_the_beginning(processes: int, runs: Sequence[Answers]) -> tuple[object, ...]:
    """Return a row about the half hour in which the shares settle, with failed calls and pauses in total."""
    spans = (0, 60), (60, 300), (300, 900), (900, SETTLING)
    refusals = [f"{statistics.mean(run.refusals(*span) for run in runs):.1%}" for span in spans]
    failed = statistics.mean(run.failed for run in runs)
    paused = statistics.mean(run.paused for run in runs) / (processes * THREADS * (SETTLING + SETTLED))
    return processes, *refusals, f"{failed:.0f}", f"{paused:.1%}"


def after_changes(pool: Executor, processes: int) -> tuple[object, ...]:
    """Return a row about processes that end and one that begins."""
    minutes = statistics.mean(simulated(pool, takeover, processes)) / 60
    joined = simulated(pool, joining, processes)
    share, refused = (statistics.mean(column) for column in zip(*joined, strict=True))
    return processes, f"{minutes:.0f} min", f"{share:.2f}", f"{refused:.1%}"


def extremes(windows: list[list[float]]) -> str:
    """Return the least and the largest share in a window, averaged over all windows, as text."""
    least, largest = (statistics.mean(map(pick, windows)) for pick in (min, max))
    return f"{least:.2f} to {largest:.2f}"


def reader(url: str, begin: float, minutes: int) -> tuple[list[int], int]:
    """Read in this process; return the number of pages in each minute, and the number of failed calls."""
    logging.disable()
    context = make_context(
        Settings(base_url=url),
        Credentials(access_token=demo.ACCESS_TOKEN),
        "reader",
        MemoryTokenStore("reader"),
    )
    counts: Counter[int] = Counter()
    end = begin + 60 * minutes
    time.sleep(max(0.0, begin - time.time()))

    def read(client: Client) -> int:
        failed = 0
        while time.time() < end:
            try:
                client.send(endpoints.read_data(demo.FINISHED_TASK_ID, 0, 1))
            except WebCollectError:
                failed += 1
            else:
                counts[int((time.time() - begin) // 60)] += 1
        return failed

    with Client(context) as client, ThreadPoolExecutor(THREADS) as threads:
        failed = sum(threads.map(read, [client] * THREADS))
    return [counts[minute] for minute in range(minutes)], failed


def real(processes: int, minutes: int) -> Iterator[tuple[object, ...]]:
    """Let real processes read from a sandbox; yield rows with the sandbox's counts for some minutes."""
    context = get_context("spawn")
    everyone_is_there = context.Barrier(processes).wait
    with sandbox() as server, ProcessPoolExecutor(processes, context, everyone_is_there) as pool:
        control = Control(server.url)
        # imports take a second of processor time in each process
        list(pool.map(abs, range(processes)))
        begin = time.time() + 2
        moments = [begin]
        readers = [pool.submit(reader, server.url, begin, minutes) for _ in range(processes)]
        counted = [Counter[int]()]
        for minute in range(1, minutes + 1):
            time.sleep(max(0.0, begin + 60 * minute - time.time()))
            counted.append(sum(map(Counter, control.counters().values()), Counter[int]()))
            moments.append(time.time())
        results = [reader.result() for reader in readers]
    failed = sum(failures for _, failures in results)
    for minute in sorted({0, *range(4, minutes, 5), minutes - 1}):
        answered = counted[minute + 1] - counted[minute]
        rate = answered[200] / (moments[minute + 1] - moments[minute])
        refusals = answered[429] / answered.total()
        counts = [by_minute[minute] for by_minute, _ in results]
        shares = extremes([[count * processes / sum(counts) for count in counts]])
        yield processes, minute + 1, f"{rate:.1f}", f"{refusals:.2%}", shares, failed


def main() -> None:
    """Simulate, then measure real processes, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes", type=int, default=5, help="of each run of real processes; 0 for none (default: 5)"
    )
    parser.add_argument("--processes", type=int, nargs="+", default=PROCESSES, help="in the real runs")
    parser.add_argument("--no-simulation", action="store_true", help="only real processes")
    arguments = parser.parse_args()
    print(machine(), flush=True)
    if not arguments.no_simulation:
        simulations()
    if arguments.minutes:
        table(
            "real processes | minute | accepted/s | 429s | least and largest share | calls that failed",
            itertools.chain.from_iterable(
                real(processes, arguments.minutes) for processes in arguments.processes
            ),
        )


if __name__ == "__main__":
    main()
