"""Deciding whether what is waited for has happened."""

from __future__ import annotations

import json
import logging

import msgspec
import pendulum
import pytest

from airflow_provider_webcollect.service.api.records import SubTask, TaskStatus
from airflow_provider_webcollect.waiting import conditions
from airflow_provider_webcollect.waiting.conditions import (
    Baseline,
    Outcome,
    SubTaskWait,
    TaskWait,
    Verdict,
    Watch,
    as_json,
)

WAIT, DONE, FAILED = Outcome.WAIT, Outcome.DONE, Outcome.FAILED
MONDAY = pendulum.datetime(2026, 11, 16, 8)


class Clock:
    """Tells the time that it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def status(state: str, task_id: str = "a", **more: object) -> TaskStatus:
    return TaskStatus(task_id=task_id, status=state, **more)  # type: ignore[arg-type]


def outcome(wait: TaskWait, *statuses: TaskStatus, waited: float = 0.0) -> Outcome:
    return wait.judge({status.task_id: status for status in statuses}, waited).outcome


class TestOneTask:
    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            ("Finished", DONE),
            ("Stopped", FAILED),
            ("Waiting", WAIT),
            ("Extracting", WAIT),
            ("Unexecuted", WAIT),
            ("Hibernating", WAIT),
        ],
    )
    def test_a_final_state_ends_the_wait_and_any_other_word_goes_on(
        self, state: str, expected: Outcome
    ) -> None:
        assert outcome(TaskWait(task_ids=("a",)), status(state)) is expected

    def test_target_and_failure_states_can_be_chosen(self) -> None:
        wait = TaskWait(task_ids=("a",), target_states=("Extracting",), failure_states=())
        assert outcome(wait, status("Extracting")) is DONE
        assert outcome(wait, status("Stopped")) is WAIT

    @pytest.mark.parametrize("statuses", [(), (status("Unexecuted"),)])
    def test_a_missing_or_unexecuted_task_is_explained_after_the_stated_time(
        self, statuses: tuple[TaskStatus, ...]
    ) -> None:
        wait = TaskWait(task_ids=("a",), missing_timeout=100)
        assert outcome(wait, *statuses, waited=99) is WAIT
        verdict = wait.judge({status.task_id: status for status in statuses}, 100)
        assert verdict.outcome is FAILED
        assert "check the id" in verdict.reason

    def test_how_long_it_has_been_missing_is_what_counts(self) -> None:
        wait = TaskWait(task_ids=("a",), missing_timeout=100)
        assert wait.judge({}, 1000, {"a": 99}).outcome is WAIT
        assert wait.judge({}, 1000, {"a": 100}).outcome is FAILED

    def test_unexecuted_can_be_what_is_waited_for(self) -> None:
        assert outcome(TaskWait(task_ids=("a",), target_states=("Unexecuted",)), status("Unexecuted")) is DONE


class TestManyTasks:
    def test_all_must_reach_the_state_and_one_failure_fails_the_wait(self) -> None:
        wait = TaskWait(task_ids=("a", "b"))
        assert outcome(wait, status("Finished"), status("Extracting", "b")) is WAIT
        assert outcome(wait, status("Finished"), status("Finished", "b")) is DONE
        assert outcome(wait, status("Extracting"), status("Stopped", "b")) is FAILED

    def test_any_is_enough_and_only_all_failures_fail_the_wait(self) -> None:
        wait = TaskWait(task_ids=("a", "b"), how_many="any")
        assert outcome(wait, status("Finished"), status("Extracting", "b")) is DONE
        assert outcome(wait, status("Stopped"), status("Extracting", "b")) is WAIT
        assert outcome(wait, status("Stopped"), status("Stopped", "b")) is FAILED

    def test_the_reason_names_the_bad_ones_first(self) -> None:
        verdict = TaskWait(task_ids=("a", "b")).judge(
            {"a": status("Finished"), "b": status("Stopped", "b")}, 0
        )
        assert verdict.reason == "b is Stopped; a is Finished"


class TestAfter:
    def test_the_run_before_does_not_count_until_the_service_has_had_time(self) -> None:
        wait = TaskWait(task_ids=("a",), after={"a": Baseline(executed_times=3)}, settle=90)
        assert outcome(wait, status("Finished", executed_times=3), waited=89) is WAIT
        assert outcome(wait, status("Stopped", executed_times=3), waited=89) is WAIT
        assert outcome(wait, status("Finished", executed_times=4), waited=1) is DONE
        assert outcome(wait, status("Stopped", executed_times=4), waited=1) is FAILED
        assert outcome(wait, status("Finished", executed_times=3), waited=90) is DONE

    def test_without_a_count_the_start_time_tells_the_runs_apart(self) -> None:
        before = Baseline.of(status("Finished", start_execute_time=MONDAY))
        wait = TaskWait(task_ids=("a",), after={"a": before})
        assert outcome(wait, status("Finished", start_execute_time=MONDAY)) is WAIT
        assert outcome(wait, status("Finished", start_execute_time=MONDAY.add(hours=1))) is DONE
        assert outcome(wait, status("Finished")) is WAIT

    @pytest.mark.parametrize("state", ["Waiting", "Extracting"])
    def test_a_start_that_joined_a_running_run_waits_for_that_run(self, state: str) -> None:
        before = Baseline.of(status(state, executed_times=3))
        assert (
            outcome(TaskWait(task_ids=("a",), after={"a": before}), status("Finished", executed_times=3))
            is DONE
        )

    def test_a_task_that_never_ran_has_a_baseline_too(self) -> None:
        before = Baseline.of(None)
        wait = TaskWait(task_ids=("a",), after={"a": before})
        assert outcome(wait, status("Finished", executed_times=1)) is DONE


class TestSubTasks:
    def judge(self, wait: SubTaskWait, waited: float = 0.0, **states: str) -> tuple[Outcome, str]:
        subtasks = [SubTask(sub_task_id=name, status=state) for name, state in states.items()]
        return tuple(wait.judge(subtasks, waited))  # type: ignore[return-value]

    def test_all_of_the_batch_must_finish_and_the_counts_are_told(self) -> None:
        wait = SubTaskWait(task_id="t")
        assert self.judge(wait, a="Finished", b="Extracting", c="Extracting") == (
            WAIT,
            "1/3 Finished, 2 Extracting",
        )
        assert self.judge(wait, a="Finished", b="Finished") == (DONE, "2/2 Finished")

    def test_a_stopped_one_fails_the_wait(self) -> None:
        assert self.judge(SubTaskWait(task_id="t"), a="Finished", b="Stopped")[0] is FAILED

    def test_a_target_state_is_no_failure_whatever_the_failure_states_are(self) -> None:
        either = ("Finished", "Stopped")
        assert (
            self.judge(SubTaskWait(task_id="t", target_states=either), a="Finished", b="Stopped")[0] is DONE
        )
        assert outcome(TaskWait(task_ids=("a",), target_states=either), status("Stopped")) is DONE

    def test_only_the_named_ones_count(self) -> None:
        wait = SubTaskWait(task_id="t", subtask_ids=("a",))
        assert self.judge(wait, a="Finished", b="Stopped")[0] is DONE

    @pytest.mark.parametrize("ids", [("x",), None])
    def test_missing_ones_and_an_empty_batch_are_explained_after_the_stated_time(
        self, ids: tuple[str, ...] | None
    ) -> None:
        wait = SubTaskWait(task_id="t", subtask_ids=ids, missing_timeout=10)
        states = {"a": "Finished"} if ids else {}
        assert self.judge(wait, 9, **states)[0] is WAIT
        assert self.judge(wait, 10, **states)[0] is FAILED


class TestWatching:
    """A watch remembers since when something is missing."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(conditions.time, "time", clock)
        return clock

    def test_a_task_is_missing_since_it_was_last_there(self, clock: Clock) -> None:
        watch = Watch(TaskWait(task_ids=("a",), missing_timeout=100), 0.0, logging.getLogger())
        there = {"a": status("Extracting")}
        for now, seen in ((5000, there), (5060, {}), (5120, {}), (5180, there), (5240, {}), (5330, {})):
            clock.now = now
            assert watch.judge(seen).outcome is WAIT
        clock.now = 5340
        assert watch.judge({"a": status("Unexecuted")}) == Verdict(
            FAILED,
            "a is Unexecuted since 100 s: check the id and that something starts the task, or raise "
            "`missing_timeout`",
        )

    def test_each_task_is_missing_for_a_time_of_its_own(self, clock: Clock) -> None:
        wait = TaskWait(task_ids=("a", "b"), missing_timeout=100, how_many="any")
        watch = Watch(wait, 0.0, logging.getLogger())
        for now, seen in ((1, {"b": status("Extracting", "b")}), (200, {})):
            clock.now = now
            assert watch.judge(seen).outcome is WAIT
        clock.now = 300
        assert watch.judge({}).outcome is FAILED

    def test_subtasks_are_missing_since_they_were_last_there(self, clock: Clock) -> None:
        watch = Watch(SubTaskWait(task_id="t", missing_timeout=100), 0.0, logging.getLogger())
        there = [SubTask(sub_task_id="x", status="Extracting")]
        for now, seen in ((5000, there), (5060, []), (5159, [])):
            clock.now = now
            assert watch.judge(seen).outcome is WAIT
        clock.now = 5160
        assert watch.judge([]).reason.startswith("the latest batch is empty since 100 s")

    def test_what_is_missing_at_the_first_look_is_missing_since_the_wait_began(self, clock: Clock) -> None:
        clock.now = 101
        watch = Watch(TaskWait(task_ids=("a",), missing_timeout=100), 1.0, logging.getLogger())
        assert watch.judge({}).outcome is FAILED


def test_a_wait_survives_the_way_through_json() -> None:
    wait = TaskWait(task_ids=("a",), after={"a": Baseline(executed_times=1)}, how_many="any")
    plain = json.loads(json.dumps(as_json(wait)))
    assert msgspec.convert(plain, TaskWait) == wait
    assert set(plain) == {"task_ids", "after", "how_many"}
