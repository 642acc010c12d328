"""How conditions judge what successive polls show."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.service.models import RunningCounts, SubTask, TaskStatus
from airflow_provider_webcollect.waiting.conditions import (
    Capacity,
    Condition,
    Outcome,
    SubTaskStates,
    TaskStates,
    Wait,
)
from airflow_provider_webcollect.waiting.runs import Baseline
from tests.waiting.conftest import Clock, Log, PolledWait, by_id, shown

DONE, FAILED = Outcome.DONE, Outcome.FAILED
BEFORE = Baseline.of(shown("Finished", began=0, ended=10))


def batch(**states: str) -> list[SubTask]:
    return [SubTask(sub_task_id=name, status=state) for name, state in states.items()]


#: Arguments of a wait for both of two tasks, and of a wait for one of them.
BOTH, EITHER = {"task_ids": ("a", "b")}, {"task_ids": ("a", "b"), "how_many": "any"}


@pytest.mark.parametrize(
    ("chosen", "states", "expected"),
    [
        ({}, "Finished", DONE),
        ({}, "Stopped", FAILED),
        *(({}, state, None) for state in ("Waiting", "Extracting", "Unexecuted", "Hibernating")),
        ({"target_states": ("Extracting",), "failure_states": ()}, "Extracting", DONE),
        ({"target_states": ("Extracting",), "failure_states": ()}, "Stopped", None),
        ({"target_states": ("Unexecuted",)}, "Unexecuted", DONE),
        ({"failure_states": ("Unexecuted",)}, "Unexecuted", FAILED),
        # a state that is both a target and a failure state counts as a target state
        ({"target_states": ("Finished", "Stopped")}, "Stopped", DONE),
        (BOTH, "Finished Extracting", None),
        (BOTH, "Finished Finished", DONE),
        (BOTH, "Extracting Stopped", FAILED),
        (BOTH, "missing Stopped", FAILED),
        (EITHER, "Finished Extracting", DONE),
        (EITHER, "Stopped Extracting", None),
        (EITHER, "Stopped Stopped", FAILED),
        # there is no response about the other task yet
        (BOTH, "Finished", None),
        (BOTH, "Stopped", FAILED),
        (EITHER, "Finished", DONE),
        (EITHER, "Stopped", None),
    ],
)
def test_target_and_failure_states_end_the_wait_others_do_not(
    clock: Clock, chosen: dict[str, Any], states: str, expected: Outcome | None
) -> None:
    polled = {
        task_id: None if state == "missing" else shown(state, task_id)
        for task_id, state in zip("ab", states.split(), strict=False)
    }
    ended = PolledWait(clock, TaskStates(**{"task_ids": ("a",), **chosen})).at(0, polled)
    assert (ended and ended.outcome) is expected


def test_the_reason_names_the_bad_ones_first(clock: Clock) -> None:
    wait = PolledWait(clock, TaskStates(task_ids=("a", "b")))
    polled = by_id("ab", shown("Finished"), shown("Stopped", "b"))
    assert wait.failure(0, polled) == "b is Stopped; a is Finished"


@pytest.mark.parametrize(
    ("chosen", "states", "expected"),
    [
        ({}, {"a": "Finished", "b": "Extracting"}, None),
        ({}, {"a": "Finished", "b": "Finished"}, DONE),
        ({}, {"a": "Finished", "b": "Stopped"}, FAILED),
        # the other named sub-task is missing
        ({"subtask_ids": ("a", "b")}, {"b": "Stopped"}, FAILED),
        ({"target_states": ("Finished", "Stopped")}, {"a": "Finished", "b": "Stopped"}, DONE),
        # only the named ones count, in whatever letter case
        ({"subtask_ids": ("A",)}, {"a": "Finished", "b": "Stopped"}, DONE),
        ({"subtask_ids": ("A",)}, {"a": "Stopped", "b": "Finished"}, FAILED),
    ],
)
def test_all_sub_tasks_or_those_that_are_named_must_finish(
    clock: Clock, chosen: dict[str, Any], states: dict[str, str], expected: Outcome | None
) -> None:
    ended = PolledWait(clock, SubTaskStates(task_id="t", **chosen)).at(0, {"t": batch(**states)})
    assert (ended and ended.outcome) is expected


def test_the_counts_of_sub_tasks_are_logged_when_they_change(clock: Clock) -> None:
    log = Log()
    wait = Wait(SubTaskStates(task_id="t"), 0.0, log)
    for states in ({"a": "Finished", "b": "Sent"}, {"a": "Finished", "b": "Sent"}, {"a": "Finished"}):
        wait.judge({"t": batch(**states)})
    assert log.lines == ["1/2 Finished, 1 Sent", "1/1 Finished"]


class TestCapacity:
    @pytest.mark.parametrize(("active", "expected"), [(4, DONE), (5, None)])
    def test_it_is_there_below_the_limit(self, clock: Clock, active: int, expected: Outcome | None) -> None:
        counts = RunningCounts(extracting_count=active - 1, waiting_count=1)
        ended = PolledWait(clock, Capacity(max_active_tasks=5)).at(0, {"account": counts})
        assert (ended and ended.outcome) is expected

    def test_both_limits_of_capacity_must_be_met(self, clock: Clock) -> None:
        log = Log()
        wait = Wait(Capacity(max_active_tasks=9, max_active_sub_tasks=6), 0.0, log)
        counts = RunningCounts(
            extracting_count=2, waiting_count=0, executing_sub_task_count=6, waiting_sub_task_count=0
        )
        assert wait.judge({"account": counts}) is None
        assert log.lines == [
            "active tasks: 2, the wait ends below 9; active sub-tasks: 6, the wait ends below 6"
        ]

    def test_a_count_that_stays_away_ends_the_wait_after_ten_minutes(self, clock: Clock) -> None:
        wait = PolledWait(clock, Capacity(max_active_tasks=5))
        odd = {"account": RunningCounts(extracting_count=1)}
        assert [wait.at(now, odd) for now in (1, 60, 599)] == [None] * 3
        assert "does not say how many tasks are active" in wait.failure(600, odd)


#: For each kind of absence: a condition, what a poll shows when something is missing, and when it is there;
#: and the explanation of the wait's end.
ABSENCES = {
    "a missing task": (
        TaskStates(task_ids=("a",), missing_timeout=100),
        {"a": None},
        {"a": shown("Extracting")},
        "a is missing from the service's responses for 100 s: check the id",
    ),
    "a task that was never run": (
        TaskStates(task_ids=("a",), missing_timeout=100),
        {"a": shown("Unexecuted")},
        {"a": shown("Extracting")},
        "a is Unexecuted for 100 s: check the id and that something starts the task",
    ),
    "a missing sub-task": (
        SubTaskStates(task_id="t", subtask_ids=("x",), missing_timeout=100),
        {"t": batch(y="Finished")},
        {"t": batch(x="Sent")},
        "not in the latest batch: x for 100 s: check the ids",
    ),
    "an empty batch": (
        SubTaskStates(task_id="t", missing_timeout=100),
        {"t": None},
        {"t": batch(x="Sent")},
        "the latest batch is empty for 100 s: check the ids",
    ),
}


@pytest.mark.parametrize(("condition", "missing", "there", "explained"), ABSENCES.values(), ids=ABSENCES)
class TestWhatIsMissing:
    def test_it_ends_the_wait_after_missing_without_interruption(
        self, condition: Condition, missing: Any, there: Any, explained: str, clock: Clock
    ) -> None:
        wait = PolledWait(clock, condition)
        for now, seen in ((5000, there), (5060, missing), (5120, missing), (5150, there), (5200, missing)):
            assert wait.at(now, seen) is None
        assert wait.at(5299, missing) is None
        reason = wait.failure(5300, missing)
        assert explained in reason
        assert "`missing_timeout`" in reason

    def test_what_never_was_there_is_missing_since_the_wait_began(
        self, condition: Condition, missing: Any, there: Any, explained: str, clock: Clock
    ) -> None:
        wait = PolledWait(clock, condition)
        assert wait.at(5000, missing) is None
        assert wait.wait.is_in_doubt
        assert wait.failure(5001, missing)


def extracting(rows: int | None, began: int = 30, task_id: str = "a") -> TaskStatus:
    return shown("Extracting", task_id, began=began, current_total_extract_count=rows)


class TestWithoutNewRows:
    """An active run whose number of rows stays the same ends the wait, if ``no_new_rows_for`` is set."""

    @pytest.fixture
    def wait(self, clock: Clock) -> PolledWait:
        return PolledWait(clock, TaskStates(task_ids=("a",), no_new_rows_for=100))

    def test_it_ends_the_wait_with_the_rows_and_their_time(self, wait: PolledWait) -> None:
        polls = ((10, 4), (60, 5), (120, 5), (159, 5))
        assert [wait.outcome(now, extracting(rows)) for now, rows in polls] == [None] * 4
        reason = wait.failure(160, {"a": extracting(5)})
        assert "a is Extracting, 5 rows, no new ones since 1970-01-01 00:01:00 UTC: look at" in reason
        assert "raise `no_new_rows_for` (100 s)" in reason

    @pytest.mark.parametrize(
        "between",
        [
            pytest.param(extracting(6), id="a new row"),
            pytest.param(extracting(4), id="a lower number"),
            pytest.param(extracting(5, began=40), id="another run"),
            pytest.param(shown("Waiting", current_total_extract_count=5), id="the queue"),
            pytest.param(extracting(None), id="no number"),
        ],
    )
    def test_the_time_restarts_after(self, wait: PolledWait, between: TaskStatus) -> None:
        for now, status in ((0, extracting(5)), (99, between), (100, extracting(5)), (199, extracting(5))):
            assert wait.outcome(now, status) is None
        assert wait.outcome(200, extracting(5)) is FAILED

    @pytest.mark.parametrize("status", [shown("Waiting", current_total_extract_count=0), extracting(None)])
    def test_it_counts_only_active_runs_with_a_number(self, wait: PolledWait, status: TaskStatus) -> None:
        assert [wait.outcome(now, status) for now in (0, 1e6)] == [None] * 2

    def test_by_default_there_is_no_limit(self, clock: Clock) -> None:
        wait = PolledWait(clock, TaskStates(task_ids=("a",)))
        assert [wait.outcome(now, extracting(5)) for now in (0, 1e6)] == [None] * 2


def test_each_task_is_missing_for_a_time_of_its_own(clock: Clock) -> None:
    wait = PolledWait(clock, TaskStates(task_ids=("a", "b"), missing_timeout=100, how_many="any"))
    assert wait.at(1, by_id("ab", shown("Extracting", "b"))) is None
    assert wait.at(200, by_id("ab")) is None
    assert wait.at(299, by_id("ab")) is None
    assert wait.failure(300, by_id("ab"))


def test_a_task_whose_run_has_ended_is_not_waited_for_again(clock: Clock) -> None:
    wait = PolledWait(clock, TaskStates(task_ids=("a", "b"), after={"a": BEFORE, "b": BEFORE}))
    runs = shown("Extracting", "b", began=20)
    first = shown("Finished", began=20, ended=30, executed_times=2)
    assert wait.outcome(1, first, runs) is None
    assert wait.outcome(60, shown("Extracting", began=40, executed_times=3), runs) is None
    stopped = shown("Stopped", began=40, ended=50, executed_times=3)
    ended = wait.at(120, by_id("ab", stopped, shown("Finished", "b", began=20, ended=45)))
    assert ended
    assert ended.outcome is DONE
    assert [record["status"] for record in ended.records or []] == ["Finished", "Finished"]


def test_a_task_is_missing_since_the_queries_began(clock: Clock) -> None:
    wait = PolledWait(clock, TaskStates(task_ids=("a",), missing_timeout=600))
    # after a restart of the triggerer, nothing is known of earlier responses
    wait.wait = Wait(wait.wait.condition, 0.0, Log(), since=3600.0)
    assert [wait.outcome(now) for now in (3600, 3660, 4199)] == [None] * 3
    assert wait.outcome(4200) is FAILED


class TestWhileOthersArePolled:
    """Polls of other tasks say nothing about a task that was not polled since, however long ago that was."""

    def test_a_status_of_the_run_before_is_not_one_of_this_run(self, clock: Clock) -> None:
        wait = PolledWait(clock, TaskStates(task_ids=("a", "b"), after={"a": BEFORE, "b": BEFORE}))
        old, other = shown("Finished", began=0, ended=10), {"b": shown("Finished", "b", began=20, ended=30)}
        assert wait.at(1, {"a": old, **other}) is None
        for now in (60, 120, 180):
            assert wait.at(now, other) is None
        assert wait.at(190, {"a": shown("Extracting", began=20)}) is None
        ended = wait.at(200, {"a": shown("Finished", began=20, ended=30)})
        assert ended
        assert ended.outcome is DONE
        assert [record["task_id"] for record in ended.records or []] == ["a", "b"]

    def test_a_missing_task_is_not_missing_for_longer(self, clock: Clock) -> None:
        wait = PolledWait(clock, TaskStates(task_ids=("a", "b"), missing_timeout=100))
        other = {"b": shown("Extracting", "b")}
        missing = {"a": None, **other}
        for now, polled in ((1, missing), (50, missing), (150, other), (250, other)):
            assert wait.at(now, polled) is None
        assert wait.failure(251, {"a": None})


def test_a_condition_survives_the_way_through_json() -> None:
    condition = TaskStates(task_ids=("a",), after={"a": Baseline(executed_times=1)}, how_many="any")
    plain = json.loads(json.dumps(condition.as_json()))
    assert msgspec.convert(plain, TaskStates) == condition
    assert set(plain) == {"task_ids", "after", "how_many"}
