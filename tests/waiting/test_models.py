"""Waits and watches on simulated services of the kinds that assumptions.md allows."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.log.commits import counted
from airflow_provider_webcollect.service.models import FINAL_STATES, TaskStatus
from airflow_provider_webcollect.waiting.conditions import Outcome, TaskStates, Wait
from airflow_provider_webcollect.waiting.runs import Baseline, LastRun, follow
from tests.simulation.samples import ALL_HISTORIES
from tests.waiting.conftest import EPOCH, Clock, Log, by_id

#: Maximum age in seconds of the status that a response shows.
OLDEST = 60.0
#: Seconds between two rows of a run.
PER_ROW = 20.0
SEEDS = st.integers(0, 2**32)


class Run(NamedTuple):
    """The times at which a run began, began to extract and ended, in seconds, and its final state."""

    began: float
    extracts: float
    ended: float
    state: str


class Service:
    """Answers queries about a task with its status of some seconds ago.

    ``counts`` says when it counts a run: when it ``starts``, when it ``ends``, or, with None, never;
    ``clears`` says whether the end time is gone once the next run begins. From ``stalls_at`` on, no run has
    new rows.
    """

    stalls_at = math.inf

    def __init__(self, chance: random.Random, counts: str | None) -> None:
        self.chance = chance
        self.counts = counts
        self.clears = chance.random() < 0.5
        self.oldest = chance.choice([0.0, 20.0, OLDEST])
        self.runs: list[Run] = []

    def add_run(self, began: float, seconds: float, state: str) -> Run:
        run = Run(began, began + seconds * self.chance.random(), began + seconds, state)
        self.runs.append(run)
        return run

    def status_at(self, now: float) -> TaskStatus:
        """Return the status that one of the service's servers shows, which may be an old one."""
        now -= self.chance.choice([0.0, self.chance.uniform(0, self.oldest)])
        begun = [run for run in self.runs if run.began <= now]
        ended = [run for run in begun if run.ended <= now]
        if not begun:
            return TaskStatus(task_id="a", status="Unexecuted", executed_times=0 if self.counts else None)
        run = begun[-1]
        active = "Waiting" if now < run.extracts else "Extracting"
        is_over = run.ended <= now
        end = None if not ended or (self.clears and not is_over) else ended[-1].ended
        return TaskStatus(
            task_id="a",
            status=run.state if is_over else active,
            executed_times={"starts": len(begun), "ends": len(ended)}.get(self.counts or ""),
            start_execute_time=EPOCH.add(seconds=run.began),
            end_execute_time=None if end is None else EPOCH.add(seconds=end),
            current_total_extract_count=self.rows(run, now),
        )

    def rows(self, run: Run, now: float) -> int:
        until = min(now, run.ended, self.stalls_at)
        return int(max(0.0, until - run.extracts) / PER_ROW)


counts = pytest.mark.parametrize("counts", ["starts", "ends", None])
any_history = settings(
    max_examples=100 if ALL_HISTORIES else 12,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@counts
@any_history
@given(seed=SEEDS)
def test_a_wait_ends_soon_after_the_started_run(clock: Clock, counts: str | None, seed: int) -> None:
    chance = random.Random(seed)
    service, now = Service(chance, counts), 1000.0
    for _ in range(chance.choice([0, 1, 3])):
        now = service.add_run(now, chance.choice([1, 30, 300]), chance.choice(FINAL_STATES)).ended
        # until then, the status before the start may show the run before the last one
        now += OLDEST + chance.choice([1, 500])
    was_started = chance.random() < 0.7
    baseline = Baseline.of(service.status_at(now))
    run = service.add_run(
        now + (1 if was_started else chance.choice([1, 5000])), chance.choice([2, 30, 100, 2000]), "Finished"
    )
    condition = TaskStates(
        task_ids=("a",),
        after={"a": baseline},
        was_started=was_started,
        missing_timeout=10_000,
        # while rows come, the same number is never shown for that long
        no_new_rows_for=PER_ROW + OLDEST + 1,
    )
    began = run.began if was_started else now
    wait = Wait(condition, began, Log())
    interval, restarts = chance.choice([1, 7, 30, 60, 100]), was_started and chance.choice([0, 0.1, 1])
    clock.now = began
    while not (ended := wait.judge(by_id("a", service.status_at(clock.now)))):
        assert clock.now < run.ended + 1000
        clock.now += interval + chance.choice([0, 0, 0, 300])
        if chance.random() < restarts:
            wait = Wait(condition, began, Log())

    assert ended.outcome is Outcome.DONE
    assert clock.now >= run.ended


@counts
@any_history
@given(seed=SEEDS)
def test_a_run_without_new_rows_ends_the_wait_in_time(clock: Clock, counts: str | None, seed: int) -> None:
    chance = random.Random(seed)
    service = Service(chance, counts)
    before = service.add_run(1000.0, 300, "Finished")
    baseline = Baseline.of(service.status_at(before.ended + OLDEST))
    run = service.add_run(before.ended + 500, 9000, "Finished")
    service.stalls_at = run.extracts + (run.ended - run.extracts) * chance.random()
    run = service.runs[-1] = run._replace(ended=math.inf)
    limit = chance.choice([PER_ROW + OLDEST + 1, 600])
    condition = TaskStates(task_ids=("a",), after={"a": baseline}, no_new_rows_for=limit)
    wait = Wait(condition, run.began, Log())
    interval = chance.choice([1, 7, 30, 60, 100])
    clock.now = run.began
    while not (ended := wait.judge(by_id("a", service.status_at(clock.now)))):
        clock.now += interval + chance.choice([0, 0, 0, 300])
        assert clock.now < service.stalls_at + OLDEST + limit + 2 * (interval + 300)

    assert ended.outcome is Outcome.FAILED
    rows = counted(service.rows(run, math.inf), "row")
    assert f"Extracting, {rows}, no new ones since" in ended.reason
    assert clock.now >= service.stalls_at - PER_ROW + limit


@counts
@any_history
@given(seed=SEEDS)
def test_a_watch_reports_every_run_once_and_not_before_its_end(counts: str | None, seed: int) -> None:
    chance = random.Random(seed)
    service, now = Service(chance, counts), 1000.0
    for _ in range(chance.choice([1, 3, 6])):
        seconds = chance.choice([1, 30, 300, 900]) if counts else 900
        now = service.add_run(now, seconds, chance.choice(FINAL_STATES)).ended
        now += chance.choice([1, 61, 700]) if counts else 700
    last_run: LastRun | None = None
    previous, since = None, 0.0
    events, named = 0, Counter[int]()
    interval, restarts = chance.choice([10, 30, 60]), chance.choice([0, 0.05])
    # begin before the first run: during a run, it is unknown whether its number counts this run
    at, end = 900.0, now + 4000
    while at < end:
        status = service.status_at(at)
        if LastRun.of(status) != previous or chance.random() < restarts:
            last_run = msgspec.convert(msgspec.to_builtins(last_run), LastRun | None)
            previous, since = LastRun.of(status), at
        last_run, ended = follow(last_run, "a", status, FINAL_STATES, at - since)
        if ended:
            events += 1
            if ended.run is not None and ended.first_run is not None:
                named.update(range(ended.first_run, ended.run + 1))
                assert all(service.runs[run - 1].ended <= at for run in named)
        at += interval + (chance.choice([0, 0, 300]) if counts else 0)

    if counts:
        assert named == dict.fromkeys(range(1, len(service.runs) + 1), 1)
    else:
        assert events == len(service.runs)
