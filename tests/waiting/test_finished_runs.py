"""Which runs of a task have ended, as polls of it show."""

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
    return TaskStatus(task_id=TASK, status=status, **{**usual, **fields})  # type: ignore[arg-type]


def reported(
    *statuses: TaskStatus | None, states: tuple[str, ...] = ("Finished",), unchanged_for: float = 0.0
) -> list[EndedRun]:
    """Return what is reported over some polls; the first finds where the task stands."""
    last_run: LastRun | None = None
    found = []
    for status in statuses:
        last_run, ended = follow(last_run, TASK, status, states, unchanged_for)
        found += [ended] if ended else []
        last_run = msgspec.convert(msgspec.to_builtins(last_run), LastRun)
    return found


def runs(*statuses: TaskStatus | None, **options: Any) -> list[tuple[int | None, int | None, str | None]]:
    """Return the first run, the last run and the status of all that is reported."""
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


def test_what_had_ended_before_the_first_poll_is_not_reported() -> None:
    assert runs(shown("Finished"), shown("Finished")) == []


@pytest.mark.parametrize("never_ran", [None, shown("Unexecuted", 0, None)], ids=["missing", "unexecuted"])
def test_the_first_run_of_a_task_is_reported_though_it_was_never_seen_going_on(
    never_ran: TaskStatus | None,
) -> None:
    assert runs(never_ran, shown("Finished")) == [(1, 1, "Finished")]


def test_runs_that_passed_between_two_polls_share_the_event_of_the_one_that_is_seen() -> None:
    assert runs(shown("Finished", 3), shown("Finished", 6, 9)) == [(4, 6, "Finished")]
    assert runs(shown("Extracting", 3), shown("Finished", 6, 9)) == [(3, 6, "Finished")]


def test_an_end_that_was_missed_is_reported_once_the_next_run_is_seen() -> None:
    polls = shown("Extracting", 3), shown("Waiting", 4, 9), shown("Finished", 4, 9)

    assert runs(*polls) == [(3, 3, None), (4, 4, "Finished")]
    assert runs(shown("Extracting", 3), shown("Stopped", 5, 9)) == [(3, 4, None)]


def test_only_the_states_that_are_asked_for_are_reported() -> None:
    polls = shown("Extracting"), shown("Stopped"), shown("Finished", 2, 9)

    assert runs(*polls) == [(2, 2, "Finished")]
    assert runs(*polls, states=("Stopped",)) == [(1, 1, "Stopped")]
    assert runs(*polls, states=FINAL_STATES) == [(1, 1, "Stopped"), (2, 2, "Finished")]


def test_a_stopped_run_that_goes_on_is_reported_when_it_is_finished() -> None:
    later = shown("Finished", end_execute_time=pendulum.naive(2026, 1, 1, 0, 9))

    assert runs(shown("Stopped"), shown("Extracting"), later) == [(1, 1, "Finished")]
    # with no end to tell it from an old answer, once the answers stay the same
    assert runs(shown("Stopped"), shown("Extracting"), shown("Finished"), unchanged_for=90) == [
        (1, 1, "Finished")
    ]


def test_a_task_that_is_missing_for_a_while_is_where_it_was() -> None:
    assert runs(shown("Finished", 5), None, shown("Finished", 5)) == []
    assert runs(shown("Extracting", 5), None, shown("Finished", 5)) == [(5, 5, "Finished")]


def test_an_answer_older_than_the_one_before_changes_nothing() -> None:
    new, old = shown("Finished", 2, 9), shown("Finished", 1, 1)

    assert runs(shown("Extracting", 1, 1), old, new, old, new) == [(1, 1, "Finished"), (2, 2, "Finished")]
    assert runs(shown("Extracting"), shown("Finished"), shown("Extracting"), shown("Finished")) == [
        (1, 1, "Finished")
    ]


def test_a_count_that_begins_again_is_followed() -> None:
    assert runs(shown("Finished", 7, 1), shown("Finished", 1, 9)) == [(1, 1, "Finished")]
    assert runs(shown("Finished", 7, 1), shown("Extracting", 1, 9), shown("Finished", 1, 9)) == [
        (1, 1, "Finished")
    ]


def test_a_count_that_stands_still_or_is_absent_leaves_it_to_the_start() -> None:
    for run in (1, None):
        assert runs(shown("Finished", run, 1), shown("Extracting", run, 9), shown("Finished", run, 9)) == [
            (run, run, "Finished")
        ]


def test_a_count_of_ended_runs_names_each_run_once() -> None:
    statuses = (
        shown("Finished", 1, 1),
        shown("Extracting", 1, 9),
        shown("Finished", 2, 9),
        shown("Extracting", 2, 20),
        shown("Finished", 3, 20),
    )

    assert runs(*statuses) == [(2, 2, "Finished"), (3, 3, "Finished")]


@pytest.mark.parametrize("count", [0, 4], ids=["the first run", "a later run"])
def test_a_count_of_ended_runs_names_each_run_once_though_the_watch_began_during_one(count: int) -> None:
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


@pytest.mark.parametrize("lagging", [1, 9], ids=["old start", "new start"])
def test_a_run_that_is_counted_when_it_starts_is_reported_when_it_ends(lagging: int) -> None:
    before = shown("Finished", 1, 1)
    stale = shown("Finished", 2, lagging, end_execute_time=before.end_execute_time)

    assert runs(before, stale, stale) == []
    assert runs(before, stale, shown("Extracting", 2, 9), stale, shown("Finished", 2, 9)) == [
        (2, 2, "Finished")
    ]


def test_an_older_answer_does_not_end_the_run_that_the_times_are_not_yet_or_no_more_of() -> None:
    before = shown("Finished", 1, 1)
    # while a run goes on, some services show no end
    for active in (shown("Waiting", 2, None), shown("Waiting", 2, 9)):
        stale = shown("Finished", 2, None, end_execute_time=before.end_execute_time)
        assert runs(before, active, stale, shown("Finished", 2, 9)) == [(2, 2, "Finished")]
    # an active state with the start of the run before
    late = (
        shown("Extracting", 2, 9),
        shown("Extracting", 2, 1),
        shown("Finished", 2, 1, end_execute_time=None),
    )
    assert runs(before, *late, shown("Finished", 2, 9)) == [(2, 2, "Finished")]


def test_the_end_of_a_run_is_reported_under_its_own_number_though_the_next_one_is_counted_already() -> None:
    stale = shown("Finished", 2, 1)

    assert runs(shown("Extracting", 1, 1), stale, shown("Extracting", 2, 9), shown("Finished", 2, 9)) == [
        (1, 1, "Finished"),
        (2, 2, "Finished"),
    ]


def test_a_start_that_is_shown_late_does_not_make_another_run() -> None:
    assert runs(shown("Waiting", 2, 1), shown("Extracting", 2, 9), shown("Finished", 2, 9)) == [
        (2, 2, "Finished")
    ]


def test_the_zone_of_the_connection_does_not_make_another_run() -> None:
    there = pendulum.datetime(2026, 1, 1, 0, 1, tz="Asia/Shanghai")
    elsewhere = TaskStatus(task_id=TASK, status="Finished", executed_times=1, start_execute_time=there)

    assert runs(shown("Finished"), elsewhere) == []
