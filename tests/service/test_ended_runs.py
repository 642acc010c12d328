"""Which runs of a task have ended, told from looks at it."""

from __future__ import annotations

from typing import Any

import msgspec
import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_webcollect.service.api.records import TaskStatus
from airflow_provider_webcollect.waiting.finished_runs import FINAL_STATES, EndedRun, Mark, follow

TASK = "a task"
#: What a look may show of a run that is over.
OVER = st.sampled_from(FINAL_STATES)


def shown(status: str, run: int | None = 1, started: int | None = 1, **fields: Any) -> TaskStatus:
    """Return the status of a run that began in the minute ``started``."""
    start = None if started is None else pendulum.naive(2026, 1, 1, started // 60, started % 60)
    return TaskStatus(task_id=TASK, status=status, executed_times=run, start_execute_time=start, **fields)


def told(*looks: TaskStatus | None, states: tuple[str, ...] = ("Finished",)) -> list[EndedRun]:
    """Return what is told over some looks; the first finds where the task stands."""
    mark: Mark | None = None
    found = []
    for status in looks:
        mark, ended = follow(mark, TASK, status, states)
        found += [ended] if ended else []
        mark = msgspec.convert(msgspec.to_builtins(mark), Mark)
    return found


def runs(*looks: TaskStatus | None, **options: Any) -> list[tuple[int | None, int | None, str | None]]:
    """Return the first run, the last run and the status of all that is told."""
    return [(ended.first_run, ended.run, ended.status) for ended in told(*looks, **options)]


def test_a_run_is_told_when_it_is_finished_and_only_once() -> None:
    finished = shown(
        "Finished", current_total_extract_count=30, end_execute_time=pendulum.naive(2026, 1, 1, 0, 9)
    )

    assert told(shown("Waiting"), shown("Extracting"), finished, finished) == [
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


def test_what_had_ended_before_the_first_look_is_not_told() -> None:
    assert runs(shown("Finished"), shown("Finished")) == []


@pytest.mark.parametrize("never_ran", [None, shown("Unexecuted", 0, None)], ids=["missing", "unexecuted"])
def test_the_first_run_of_a_task_is_told_though_it_was_never_seen_going_on(
    never_ran: TaskStatus | None,
) -> None:
    assert runs(never_ran, shown("Finished")) == [(1, 1, "Finished")]


def test_runs_that_passed_between_two_looks_share_the_event_of_the_one_that_is_seen() -> None:
    assert runs(shown("Finished", 3), shown("Finished", 6, 9)) == [(4, 6, "Finished")]
    assert runs(shown("Extracting", 3), shown("Finished", 6, 9)) == [(3, 6, "Finished")]


def test_an_end_that_was_missed_is_told_once_the_next_run_is_seen() -> None:
    looks = shown("Extracting", 3), shown("Waiting", 4, 9), shown("Finished", 4, 9)

    assert runs(*looks) == [(3, 3, None), (4, 4, "Finished")]
    assert runs(shown("Extracting", 3), shown("Stopped", 5, 9)) == [(3, 4, None)]


def test_only_the_states_that_are_asked_for_are_told() -> None:
    looks = shown("Extracting"), shown("Stopped"), shown("Finished", 2, 9)

    assert runs(*looks) == [(2, 2, "Finished")]
    assert runs(*looks, states=("Stopped",)) == [(1, 1, "Stopped")]
    assert runs(*looks, states=FINAL_STATES) == [(1, 1, "Stopped"), (2, 2, "Finished")]


def test_a_stopped_run_that_goes_on_is_told_when_it_is_finished() -> None:
    assert runs(shown("Stopped"), shown("Extracting"), shown("Finished")) == [(1, 1, "Finished")]


def test_a_task_that_is_missing_for_a_while_is_where_it_was() -> None:
    assert runs(shown("Finished", 5), None, shown("Finished", 5)) == []
    assert runs(shown("Extracting", 5), None, shown("Finished", 5)) == [(5, 5, "Finished")]


def test_an_answer_older_than_the_one_before_changes_nothing() -> None:
    new, old = shown("Finished", 2, 9), shown("Finished", 1, 1)

    assert runs(shown("Extracting", 1, 1), old, new, old, new) == [(1, 1, "Finished"), (2, 2, "Finished")]
    assert runs(shown("Extracting"), shown("Finished"), shown("Extracting"), shown("Finished")) == [
        (1, 1, "Finished")
    ]


def test_a_count_that_begins_anew_is_followed() -> None:
    assert runs(shown("Finished", 7, 1), shown("Finished", 1, 9)) == [(1, 1, "Finished")]
    assert runs(shown("Finished", 7, 1), shown("Extracting", 1, 9), shown("Finished", 1, 9)) == [
        (1, 1, "Finished")
    ]


def test_a_count_that_stands_still_or_is_absent_leaves_it_to_the_start() -> None:
    for run in (1, None):
        assert runs(shown("Finished", run, 1), shown("Extracting", run, 9), shown("Finished", run, 9)) == [
            (run, run, "Finished")
        ]


def test_a_start_that_is_told_late_does_not_make_another_run() -> None:
    assert runs(shown("Waiting", 2, 1), shown("Extracting", 2, 9), shown("Finished", 2, 9)) == [
        (2, 2, "Finished")
    ]


def test_the_zone_of_the_connection_does_not_make_another_run() -> None:
    there = pendulum.datetime(2026, 1, 1, 0, 1, tz="Asia/Shanghai")
    elsewhere = TaskStatus(task_id=TASK, status="Finished", executed_times=1, start_execute_time=there)

    assert runs(shown("Finished"), elsewhere) == []


@given(
    ends=st.lists(OVER, min_size=1, max_size=12),
    looks=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=40),
)
def test_every_run_is_told_once_whenever_one_looks(ends: list[str], looks: list[tuple[int, int]]) -> None:
    """Each run takes three flow: it waits, it extracts, it is over; a few answers are some steps old."""
    history = [shown("Unexecuted", 0, None)]
    for run, end in enumerate(ends, 1):
        history += [shown(status, run, run) for status in ("Waiting", "Extracting", end)]
    steps, at = [0], 0
    for step, age in sorted(looks):
        at = min(step, len(history) - 1)
        steps += [at, max(0, at - age)]
    seen = [history[step] for step in [*steps, len(history) - 1]]

    named = [run for first, last, _ in runs(*seen, states=FINAL_STATES) for run in range(first, last + 1)]  # type: ignore[arg-type,operator]
    assert named == list(range(1, len(ends) + 1))
