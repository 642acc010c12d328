"""Deciding whether what was waited for has happened. The same code serves poking, rescheduling and triggers.

A run that has just been started may still show the state of the run before it for a minute (assumptions.md,
Status). So a wait can be given a :class:`Baseline`, what was seen before the start, and a final state counts
only if it is another run's, or once the service has had time to catch up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from airflow_provider_webcollect.service.api.records import SubTask, TaskStatus
from airflow_provider_webcollect.service.api.states import SubTaskState, TaskState

#: Seconds after which a status shows the run that was started, whatever its counters say.
SETTLE = 90.0
#: Seconds that a task may be missing from status answers, or Unexecuted, before waiting on is pointless.
MISSING_TIMEOUT = 600.0

_RUNNING = (TaskState.WAITING, TaskState.EXTRACTING)

Seen = TypeVar("Seen", contravariant=True)
_NOTHING: Mapping[str, float] = MappingProxyType({})


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What a task's status showed before a start.

    :ivar running: a run is going on, and what is started joins it: that run's end counts.
    """

    executed_times: int | None = None
    start_execute_time: str | None = None
    running: bool = False

    @classmethod
    def of(cls, status: TaskStatus | None) -> Baseline:
        """Return what to remember of ``status``; a task without one has never run."""
        if status is None:
            return cls(executed_times=0)
        started = status.start_execute_time
        return cls(
            executed_times=status.executed_times,
            start_execute_time=started.isoformat() if started else None,
            running=status.status in _RUNNING,
        )

    def precedes(self, status: TaskStatus) -> bool:
        """Return whether ``status`` is of a later run, or of the one that the start joined."""
        if self.running:
            return True
        if status.executed_times is not None and self.executed_times is not None:
            return status.executed_times > self.executed_times
        started = status.start_execute_time
        return started is not None and started.isoformat() != self.start_execute_time


class Outcome(Enum):
    """How a wait stands."""

    WAIT = "wait"
    DONE = "done"
    FAILED = "failed"


class Verdict(NamedTuple):
    """How a wait stands, and a line that says why."""

    outcome: Outcome
    reason: str


class TaskWait(msgspec.Struct, frozen=True, kw_only=True):
    """What is waited for: states of tasks.

    :ivar how_many: ``all`` of the tasks must reach a target state, or ``any``.
    :ivar after: what was seen of each task before it was started, by id; empty to take any final state.
    :ivar settle: seconds after which a final state counts whatever ``after`` says.
    :ivar missing_timeout: seconds after which a task that stays missing or Unexecuted ends the wait.
    """

    task_ids: tuple[str, ...]
    target_states: tuple[str, ...] = (TaskState.FINISHED,)
    failure_states: tuple[str, ...] = (TaskState.STOPPED,)
    how_many: Literal["all", "any"] = "all"
    after: Mapping[str, Baseline] = {}
    settle: float = SETTLE
    missing_timeout: float = MISSING_TIMEOUT

    def missing(self, statuses: Mapping[str, TaskStatus]) -> Iterable[str]:
        """Return the tasks that are missing from the answers, or Unexecuted."""
        for task_id in self.task_ids:
            status = statuses.get(task_id)
            if status is None or status.status == TaskState.UNEXECUTED:
                yield task_id

    def judge(
        self,
        statuses: Mapping[str, TaskStatus],
        waited: float,
        missing: Mapping[str, float] | None = None,
    ) -> Verdict:
        """Return how the wait stands.

        :param statuses: the latest status of each task, by id; tasks that the service left out are absent.
        :param waited: seconds since the wait began.
        :param missing: for how many seconds each missing task has been so without interruption; by default
            all of them since the wait began.
        """
        if missing is None:
            missing = dict.fromkeys(self.missing(statuses), waited)
        single = {
            task_id: self._judge_unstarted(statuses.get(task_id), missing[task_id])
            if task_id in missing
            else self._judge_one(task_id, statuses[task_id], waited)
            for task_id in self.task_ids
        }
        outcomes = [verdict.outcome for verdict in single.values()]
        reason = "; ".join(f"{task_id} {verdict.reason}" for task_id, verdict in _worth_telling(single))
        enough = all if self.how_many == "all" else any
        if enough(outcome is Outcome.DONE for outcome in outcomes):
            return Verdict(Outcome.DONE, reason)
        hopeless = any if self.how_many == "all" else all
        if hopeless(outcome is Outcome.FAILED for outcome in outcomes):
            return Verdict(Outcome.FAILED, reason)
        return Verdict(Outcome.WAIT, reason)

    def _judge_one(self, task_id: str, status: TaskStatus, waited: float) -> Verdict:
        baseline = self.after.get(task_id)
        if baseline and waited < self.settle and not baseline.precedes(status):
            return Verdict(Outcome.WAIT, f"still shows the run before ({status.status})")
        if status.status in self.target_states:
            return Verdict(Outcome.DONE, f"is {status.status}")
        if status.status in self.failure_states:
            return Verdict(Outcome.FAILED, f"is {status.status}")
        return Verdict(Outcome.WAIT, f"is {status.status}{_rows(status)}")

    def _judge_unstarted(self, status: TaskStatus | None, missing: float) -> Verdict:
        if status is not None and status.status in self.target_states:
            return Verdict(Outcome.DONE, f"is {status.status}")
        shown = "is missing from the service's answers" if status is None else f"is {status.status}"
        if missing < self.missing_timeout:
            return Verdict(Outcome.WAIT, shown)
        return Verdict(
            Outcome.FAILED,
            f"{shown} since {missing:.0f} s: check the id and that something starts the task, or raise "
            "`missing_timeout`",
        )


def _rows(status: TaskStatus) -> str:
    count = status.current_total_extract_count
    return "" if count is None else f", {count} rows"


def _worth_telling(verdicts: Mapping[str, Verdict], most: int = 5) -> Iterable[tuple[str, Verdict]]:
    """Return the verdicts that a line of log has room for, the bad ones first."""
    rank = {Outcome.FAILED: 0, Outcome.WAIT: 1, Outcome.DONE: 2}
    return sorted(verdicts.items(), key=lambda item: rank[item[1].outcome])[:most]


class SubTaskWait(msgspec.Struct, frozen=True, kw_only=True):
    """What is waited for: states of sub-tasks of a task's latest batch.

    :ivar subtask_ids: the sub-tasks; None for all of the batch.
    :ivar missing_timeout: seconds after which a missing sub-task, or an empty batch, ends the wait.
    """

    task_id: str
    subtask_ids: tuple[str, ...] | None = None
    target_states: tuple[str, ...] = (SubTaskState.FINISHED,)
    failure_states: tuple[str, ...] = (SubTaskState.STOPPED,)
    missing_timeout: float = MISSING_TIMEOUT

    def missing(self, subtasks: Collection[SubTask]) -> Iterable[str]:
        """Return the sub-tasks that are not in the batch, or the task's id if the batch is empty."""
        if self.subtask_ids is None:
            return () if subtasks else (self.task_id,)
        return set(self.subtask_ids).difference(subtask.sub_task_id for subtask in subtasks)

    def judge(
        self, subtasks: Collection[SubTask], waited: float, missing: Mapping[str, float] | None = None
    ) -> Verdict:
        """Return how the wait stands.

        :param subtasks: all sub-tasks of the latest batch.
        :param waited: seconds since the wait began.
        :param missing: for how many seconds each missing one has been so without interruption; by default all
            of them since the wait began.
        """
        if missing is None:
            missing = dict.fromkeys(self.missing(subtasks), waited)
        if missing:
            return self._judge_missing(missing)
        states = {subtask.sub_task_id: subtask.status for subtask in subtasks}
        wanted = tuple(states) if self.subtask_ids is None else self.subtask_ids
        counts = Counter(states[subtask_id] for subtask_id in wanted)
        reason = (
            f"{_count(counts, self.target_states)}/{len(wanted)} {'/'.join(self.target_states)}"
            + "".join(
                f", {count} {state}" for state, count in counts.items() if state not in self.target_states
            )
        )
        if _count(counts, set(self.failure_states).difference(self.target_states)):
            return Verdict(Outcome.FAILED, reason)
        if _count(counts, self.target_states) == len(wanted):
            return Verdict(Outcome.DONE, reason)
        return Verdict(Outcome.WAIT, reason)

    def _judge_missing(self, missing: Mapping[str, float]) -> Verdict:
        named = [subtask_id for subtask_id in self.subtask_ids or () if subtask_id in missing]
        shown = f"not in the latest batch: {', '.join(named[:5])}" if named else "the latest batch is empty"
        longest = max(missing.values())
        if longest < self.missing_timeout:
            return Verdict(Outcome.WAIT, shown)
        return Verdict(
            Outcome.FAILED, f"{shown} since {longest:.0f} s: check the ids, or raise `missing_timeout`"
        )


class Wait(Protocol[Seen]):
    """What is waited for."""

    def judge(self, seen: Seen, waited: float, /) -> Verdict:
        """Return how the wait stands."""
        ...


class Watch(Generic[Seen]):
    """A wait that is going on. It logs changes only.

    What is missing at the first poll counts as missing since the wait began: earlier polls may have been made
    by another process.

    :param began: Unix time at which the wait began.
    :param log: a logger.
    """

    __slots__ = ("_began", "_log", "_missing_since", "_said", "_wait")

    def __init__(self, wait: Wait[Seen], began: float, log: Any) -> None:
        self._wait = wait
        self._began = began
        self._missing_since: Mapping[str, float] | None = None
        self._log = log
        self._said = ""

    def judge(self, seen: Seen) -> Verdict:
        """Return the verdict on what a poll has shown."""
        verdict = self._judge(seen, time.time())
        if verdict.reason != self._said:
            self._said = verdict.reason
            self._log.info("%s", verdict.reason)
        return verdict

    def _judge(self, seen: Any, now: float) -> Verdict:
        wait: Any = self._wait
        if not isinstance(wait, TaskWait | SubTaskWait):
            return wait.judge(seen, now - self._began)  # type: ignore[no-any-return]
        before = self._missing_since
        since = {
            each: self._began if before is None else before.get(each, now) for each in wait.missing(seen)
        }
        # most waits miss nothing, and share this
        self._missing_since = since or _NOTHING
        return wait.judge(seen, now - self._began, {each: now - start for each, start in since.items()})


def _count(counts: Mapping[str, int], states: Iterable[str]) -> int:
    return sum(counts.get(state, 0) for state in states)


def as_json(wait: TaskWait | SubTaskWait) -> dict[str, Any]:
    """Return a wait as plain JSON, for a trigger's arguments; what has its default is left out."""
    defaults = {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(wait)
    }
    plain: dict[str, Any] = msgspec.to_builtins(wait)
    return {name: value for name, value in plain.items() if getattr(wait, name) != defaults[name]}
