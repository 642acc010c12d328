"""Which runs of a task are reported as ended, by what polls show."""

from __future__ import annotations

from typing import Any

import msgspec
import pendulum
import pytest

from airflow_provider_webcollect.service.models import FINAL_STATES, TaskStatus
from airflow_provider_webcollect.waiting.runs import EndedRun, LastRun, follow

TASK = "a task"


def shown(status: str, run: int | None = 1, started: int | None = 1, **fields: Any) -> TaskStatus:
    """Return the status of a run that began in the minute ``started``, and ends half a minute later."""
    start = None if started is None else pendulum.naive(2026, 1, 1, started // 60, started % 60)
    end = start.add(seconds=30) if start and status in FINAL_STATES else None
    usual = {"executed_times": run, "start_execute_time": start, "end_execute_time": end}
    return TaskStatus(task_id=TASK, status=status, **{**usual, **fields})


def reported(*statuses: TaskStatus | None, states: tuple[str, ...] = ("Finished",)) -> list[EndedRun]:
    """Return the runs reported over some polls; the first poll is the starting point."""
    last_run: LastRun | None = None
    ended_runs = []
    for status in statuses:
        last_run, ended = follow(last_run, TASK, status, states)
        ended_runs += [ended] if ended else []
        last_run = msgspec.convert(msgspec.to_builtins(last_run), LastRun)
    return ended_runs


def runs(*statuses: TaskStatus | None, **options: Any) -> list[tuple[int | None, int | None, str | None]]:
    """Return the first run, the last run and the status of each report."""
    return [(ended.first_run, ended.run, ended.status) for ended in reported(*statuses, **options)]


def test_a_run_is_reported_when_it_is_finished_and_only_once() -> None:
    finished = shown(
        "Finished", current_total_extract_count=30, end_execute_time=pendulum.naive(2026, 1, 1, 0, 9)
    )
    assert reported(shown("Waiting"), shown("Extracting"), finished, finished) == [
        EndedRun(
            collection_task_id=TASK,
            run=1,
            first_run=1,
            status="Finished",
            rows=30,
            started_at="2026-01-01T00:01:00",
            finished_at="2026-01-01T00:09:00",
        )
    ]


MINUTE_9 = pendulum.naive(2026, 1, 1, 0, 9)
NEVER_RAN = shown("Unexecuted", 0, None)
NEW, OLD = shown("Finished", 2, 9), shown("Finished", 1, 1)
#: The first run's end while the next run is already counted, by the start that is shown with it.
STALE = {
    started: shown("Finished", 2, started, end_execute_time=OLD.end_execute_time) for started in (1, 9, None)
}
#: What successive polls show, and what is reported.
CASES: dict[str, tuple[list[TaskStatus | None], list[tuple[int | None, int | None, str | None]]]] = {
    "what had ended before the first poll is not": ([OLD, OLD], []),
    "a first run that was missing before": ([None, OLD], [(1, 1, "Finished")]),
    "a first run that was never seen going on": ([NEVER_RAN, OLD], [(1, 1, "Finished")]),
    "runs between two polls share the event of the one that is seen": (
        [shown("Finished", 3), shown("Finished", 6, 9)],
        [(4, 6, "Finished")],
    ),
    "ends that were missed are, once a later run is seen": (
        [shown("Extracting", 3), shown("Stopped", 5, 9)],
        [(3, 4, None)],
    ),
    "a stopped run that goes on is when it is finished": (
        [shown("Stopped"), shown("Extracting"), shown("Finished", end_execute_time=MINUTE_9)],
        [(1, 1, "Finished")],
    ),
    "a task that is missing while it runs": (
        [shown("Extracting", 5), None, shown("Finished", 5)],
        [(5, 5, "Finished")],
    ),
    "a response older than the one before changes nothing": (
        [shown("Extracting", 1, 1), OLD, NEW, OLD, NEW],
        [(1, 1, "Finished"), (2, 2, "Finished")],
    ),
    "nor does one with a lower number, though there are no times": (
        [
            *(shown("Extracting", 5, None), shown("Finished", 4, None)),
            *(shown("Extracting", 5, None), shown("Finished", 5, None)),
        ],
        [(5, 5, "Finished")],
    ),
    "a count that begins again is followed": (
        [shown("Finished", 7, 1), shown("Finished", 1, 9)],
        [(1, 1, "Finished")],
    ),
    **{
        f"a count that stands still or is absent leaves it to the start: {run}": (
            [shown("Finished", run, 1), shown("Extracting", run, 9), shown("Finished", run, 9)],
            [(run, run, "Finished")],
        )
        for run in (1, None)
    },
    "a count of ended runs names each run once": (
        [
            *(shown("Finished", 1, 1), shown("Extracting", 1, 9), shown("Finished", 2, 9)),
            *(shown("Extracting", 2, 20), shown("Finished", 3, 20)),
        ],
        [(2, 2, "Finished"), (3, 3, "Finished")],
    ),
    **{
        f"a run that is counted when it starts is when it ends: {started}": (
            [OLD, STALE[started], STALE[started], shown("Extracting", 2, 9), STALE[started], NEW],
            [(2, 2, "Finished")],
        )
        for started in (1, 9)
    },
    # while a run goes on, some services show no end
    **{
        f"an older response does not end a run whose times are not there: {started}": (
            [OLD, shown("Waiting", 2, started), STALE[None], NEW],
            [(2, 2, "Finished")],
        )
        for started in (None, 9)
    },
    "nor one whose times are those of the run before": (
        [
            *(OLD, shown("Extracting", 2, 9), shown("Extracting", 2, 1)),
            *(shown("Finished", 2, 1, end_execute_time=None), NEW),
        ],
        [(2, 2, "Finished")],
    ),
    "an end is under its own number though the next run is counted already": (
        [shown("Extracting", 1, 1), shown("Finished", 2, 1), shown("Extracting", 2, 9), NEW],
        [(1, 1, "Finished"), (2, 2, "Finished")],
    ),
    "the zone of the connection does not make another run": (
        [OLD, shown("Finished", start_execute_time=pendulum.datetime(2026, 1, 1, 0, 1, tz="Asia/Shanghai"))],
        [],
    ),
}


@pytest.mark.parametrize(("polls", "expected"), CASES.values(), ids=CASES)
def test_what_polls_show_is_reported(
    polls: list[TaskStatus | None], expected: list[tuple[int | None, int | None, str | None]]
) -> None:
    assert runs(*polls) == expected


def test_only_the_states_that_are_asked_for_are_reported() -> None:
    polls = shown("Extracting"), shown("Stopped"), shown("Finished", 2, 9)
    assert runs(*polls) == [(2, 2, "Finished")]
    assert runs(*polls, states=("Stopped",)) == [(1, 1, "Stopped")]
    assert runs(*polls, states=FINAL_STATES) == [(1, 1, "Stopped"), (2, 2, "Finished")]


@pytest.mark.parametrize("count", [0, 4], ids=["the first run", "a later run"])
def test_a_watch_that_begins_during_a_run_names_each_run_once(count: int) -> None:
    last_run, named = None, []
    statuses = (
        (shown("Extracting", count, 1), 0),
        *((shown("Finished", count + 1, 1), unchanged_for) for unchanged_for in (0, 60, 120)),
        (shown("Extracting", count + 1, 9), 0),
        *((shown("Finished", count + 2, 9), unchanged_for) for unchanged_for in (0, 60, 120)),
    )
    for status, unchanged_for in statuses:
        last_run, ended = follow(last_run, TASK, status, FINAL_STATES, unchanged_for)
        named += [ended.started_at] if ended else []
    assert named == ["2026-01-01T00:01:00", "2026-01-01T00:09:00"]
    assert last_run
    assert last_run.run == count + 2
