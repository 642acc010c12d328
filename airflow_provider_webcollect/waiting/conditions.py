"""The conditions of waits. A condition has a query, judges what it returns, and makes the wait's result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from airflow_provider_webcollect.service.models import (
    RunningCounts,
    SubTask,
    SubTaskState,
    TaskState,
    TaskStatus,
)
from airflow_provider_webcollect.waiting.baseline import SETTLE, Baseline
from airflow_provider_webcollect.waiting.outcome import Outcome
from airflow_provider_webcollect.waiting.queries import (
    ACCOUNT,
    RUNNING_COUNTS,
    SUBTASKS,
    TASK_STATUSES,
)
from airflow_provider_webcollect.waiting.wait import Condition, Polls, Verdict

#: Seconds that something may be missing from the responses before the wait fails.
MISSING_TIMEOUT = 600.0


class TaskStates(Condition, frozen=True, kw_only=True):
    """A wait for the states of tasks.

    :ivar how_many: ``all`` of the tasks must reach a target state, or ``any``.
    :ivar after: the baseline of each task, by id; empty to accept any final state.
    :ivar was_started: whether the tasks were started when the wait began; otherwise the next run of each
        counts.
    :ivar settle: seconds for which a status may still be that of the previous run.
    :ivar missing_timeout: seconds after which a task that stays missing or Unexecuted ends the wait.
    """

    query = TASK_STATUSES
    task_ids: tuple[str, ...]
    target_states: tuple[str, ...] = (TaskState.FINISHED,)
    failure_states: tuple[str, ...] = (TaskState.STOPPED,)
    how_many: Literal["all", "any"] = "all"
    after: Mapping[str, Baseline] = {}
    was_started: bool = True
    settle: float = SETTLE
    missing_timeout: float = MISSING_TIMEOUT

    @property
    def keys(self) -> tuple[str, ...]:
        """The tasks."""
        return self.task_ids

    def absent(self, key: str, state: TaskStatus | None) -> Collection[str]:
        """Return the task if it is missing, or if it is Unexecuted and that state is not waited for."""
        is_there = state and (state.status != TaskState.UNEXECUTED or self._is_wanted(state))
        return () if is_there else (key,)

    def judge(self, key: str, state: TaskStatus | None, polls: Polls) -> Verdict:
        """Return the verdict on one task."""
        if state is None:
            return self._judge_absent("is missing from the service's answers", polls.seconds_absent(key))
        shown = f"is {state.status}"
        baseline = self.after.get(key)
        is_ours = baseline is None or polls.is_new_run(
            state, baseline, settle=self.settle, was_started=self.was_started
        )
        if self._is_wanted(state):
            if not is_ours:
                return Verdict(None, f"still shows the run before ({state.status})")
            return Verdict(Outcome.DONE if state.status in self.target_states else Outcome.FAILED, shown)
        if state.status == TaskState.UNEXECUTED:
            return self._judge_absent(shown, polls.seconds_absent(key))
        rows = state.current_total_extract_count
        return Verdict(None, shown if rows is None else f"{shown}, {rows} rows")

    def combine(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        """Return the verdict on the wait; it fails once the condition can no longer be met."""
        each = {task_id: verdicts.get(task_id, _NOT_POLLED) for task_id in self.task_ids}
        outcomes = [verdict.outcome for verdict in each.values()]
        reason = "; ".join(f"{task_id} {verdict.reason}" for task_id, verdict in _worst_first(each))
        enough, hopeless = (all, any) if self.how_many == "all" else (any, all)
        if enough(outcome is Outcome.DONE for outcome in outcomes):
            return Verdict(Outcome.DONE, reason)
        if hopeless(outcome is Outcome.FAILED for outcome in outcomes):
            return Verdict(Outcome.FAILED, reason)
        return Verdict(None, reason)

    def records(self, seen: Mapping[str, TaskStatus | None]) -> Iterable[TaskStatus]:
        """Return the statuses, in the order of the tasks."""
        return [status for task_id in self.task_ids if (status := seen.get(task_id))]

    def _is_wanted(self, status: TaskStatus) -> bool:
        return status.status in self.target_states or status.status in self.failure_states

    def _judge_absent(self, shown: str, seconds: float | None) -> Verdict:
        if seconds is None or seconds < self.missing_timeout:
            return Verdict(None, shown)
        return Verdict(
            Outcome.FAILED,
            f"{shown} since {seconds:.0f} s: check the id and that something starts the task, or raise "
            "`missing_timeout`",
        )


_NOT_POLLED = Verdict(None, "was not polled yet")


def _worst_first(verdicts: Mapping[str, Verdict], most: int = 5) -> Sequence[tuple[str, Verdict]]:
    """Return up to ``most`` verdicts for a log message, failures first."""
    rank = {Outcome.FAILED: 0, None: 1, Outcome.DONE: 2}
    return sorted(verdicts.items(), key=lambda item: rank[item[1].outcome])[:most]


class SubTaskStates(Condition, frozen=True, kw_only=True):
    """A wait for the states of sub-tasks of a task's latest batch.

    :ivar subtask_ids: the sub-tasks; None for all of the batch.
    :ivar missing_timeout: seconds after which a missing sub-task, or an empty batch, ends the wait.
    """

    query = SUBTASKS
    task_id: str
    subtask_ids: tuple[str, ...] | None = None
    target_states: tuple[str, ...] = (SubTaskState.FINISHED,)
    failure_states: tuple[str, ...] = (SubTaskState.STOPPED,)
    missing_timeout: float = MISSING_TIMEOUT

    @property
    def keys(self) -> tuple[str, ...]:
        """The task."""
        return (self.task_id,)

    def absent(self, key: str, state: list[SubTask] | None) -> Collection[str]:
        """Return the sub-tasks that are not in the batch, or the task's id if the batch is empty."""
        if self.subtask_ids is None:
            return () if state else (key,)
        there = {subtask.sub_task_id.lower() for subtask in state or ()}
        return [subtask_id for subtask_id in self.subtask_ids if subtask_id.lower() not in there]

    def judge(self, key: str, state: list[SubTask] | None, polls: Polls) -> Verdict:
        """Return the verdict on the wait; a failure ends it even if sub-tasks are missing."""
        states = Counter(subtask.status for subtask in self._wanted(state or ()))
        failures = set(self.failure_states).difference(self.target_states)
        done = sum(states[state] for state in self.target_states)
        absent = self.absent(key, state)
        count = states.total() + (0 if self.subtask_ids is None else len(absent))
        reason = ", ".join(
            [f"{done}/{count} {'/'.join(self.target_states)}"]
            + [f"{number} {state}" for state, number in states.items() if state not in self.target_states]
        )
        if not failures.isdisjoint(states):
            return Verdict(Outcome.FAILED, reason)
        if absent:
            return self._judge_absent(absent, polls)
        return Verdict(Outcome.DONE if done == count else None, reason)

    def records(self, seen: Mapping[str, list[SubTask] | None]) -> Iterable[SubTask]:
        """Return all sub-tasks of the batch."""
        return seen[self.task_id] or ()

    def _wanted(self, batch: Iterable[SubTask]) -> Iterator[SubTask]:
        wanted = None if self.subtask_ids is None else {each.lower() for each in self.subtask_ids}
        for subtask in batch:
            if wanted is None or subtask.sub_task_id.lower() in wanted:
                yield subtask

    def _judge_absent(self, absent: Collection[str], polls: Polls) -> Verdict:
        named = self.subtask_ids and f"not in the latest batch: {', '.join(list(absent)[:5])}"
        shown = named or "the latest batch is empty"
        confirmed = [seconds for each in absent if (seconds := polls.seconds_absent(each)) is not None]
        longest = max(confirmed, default=None)
        if longest is None or longest < self.missing_timeout:
            return Verdict(None, shown)
        return Verdict(
            Outcome.FAILED, f"{shown} since {longest:.0f} s: check the ids, or raise `missing_timeout`"
        )


class Capacity(Condition, frozen=True, kw_only=True):
    """A wait until the account has capacity for more runs, by its running counts (contract.md, endpoint 16).

    :ivar max_active_tasks: the wait ends once fewer tasks than this are extracting or waiting; None for no
        limit.
    :ivar max_active_sub_tasks: the same for sub-tasks. The meaning of the service's two counts is ambiguous
        (contract.md, Task running counts), but that of their sum is not.
    """

    query = RUNNING_COUNTS
    max_active_tasks: int | None = None
    max_active_sub_tasks: int | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The account."""
        return (ACCOUNT,)

    def absent(self, key: str, state: RunningCounts | None) -> Collection[str]:
        """Return the limited things ("tasks", "sub-tasks") whose count is missing."""
        return [what for what, active, _ in self._limits(state) if active is None]

    def judge(self, key: str, state: RunningCounts | None, polls: Polls) -> Verdict:
        """Return the verdict on the wait."""
        verdicts = [self._judge_one(*each, polls) for each in self._limits(state)]
        outcomes = {verdict.outcome for verdict in verdicts}
        worst = next((each for each in (Outcome.FAILED, None) if each in outcomes), Outcome.DONE)
        return Verdict(worst, ", ".join(verdict.reason for verdict in verdicts))

    def records(self, seen: Mapping[str, RunningCounts | None]) -> Iterable[RunningCounts]:
        """Return the counts."""
        return [counts for counts in seen.values() if counts]

    def _limits(self, counts: RunningCounts | None) -> Iterator[tuple[str, int | None, int]]:
        """Yield the name of each limited thing, the active number, and the limit."""
        counts = counts or RunningCounts()
        if self.max_active_tasks is not None:
            yield "tasks", _sum(counts.extracting_count, counts.waiting_count), self.max_active_tasks
        if self.max_active_sub_tasks is not None:
            active = _sum(counts.executing_sub_task_count, counts.waiting_sub_task_count)
            yield "sub-tasks", active, self.max_active_sub_tasks

    def _judge_one(self, what: str, active: int | None, limit: int, polls: Polls) -> Verdict:
        if active is None:
            seconds = polls.seconds_absent(what)
            is_lasting = seconds is not None and seconds >= MISSING_TIMEOUT
            return Verdict(
                Outcome.FAILED if is_lasting else None, f"the service does not say how many {what} are active"
            )
        reason = f"{active} {what} are active, there is capacity below {limit}"
        return Verdict(Outcome.DONE if active < limit else None, reason)


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
