"""The conditions of waits: their queries, their verdicts on the responses, and the end of a wait."""

from __future__ import annotations

import dataclasses
import datetime
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import msgspec

from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    InvalidArgument,
    MalformedResponse,
    WebCollectError,
)
from airflow_provider_webcollect.service.models import (
    Record,
    RunningCounts,
    SubTask,
    SubTaskState,
    TaskState,
    TaskStatus,
)
from airflow_provider_webcollect.service.responses import STATUSES_BY_TASK
from airflow_provider_webcollect.waiting.runs import STATUS_DELAY, Baseline, RunEnd

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.call import Sender
    from airflow_provider_webcollect.service.endpoints import Call


#: Seconds. The longest pause after the first failure of a query is twice this value; each failure doubles it.
FIRST_BACKOFF = 2.0
#: The longest pause after any number of failures, in seconds.
LONGEST_BACKOFF = 300.0


def backoff(failures: int, interval: float, error: WebCollectError | None = None) -> float:
    """Return the pause in seconds after a number of failures in a row, with jitter.

    :param failures: the number of failures in a row.
    :param interval: seconds between two queries; an interval below :data:`FIRST_BACKOFF` shortens the pauses.
    :param error: the last failure, whose ``Retry-After`` counts; None to ignore that in a worker, which holds
        a slot while it waits.
    """
    # the exponent is limited, since a service may fail for weeks
    longest = min(LONGEST_BACKOFF, min(FIRST_BACKOFF, interval) * 2 ** min(failures, 30))
    requested = (error.retry_after if error else None) or 0.0
    return max(min(requested, LONGEST_BACKOFF), random.uniform(longest / 2, longest))


#: Number of refusals in a row, with pauses between them, that end waits. One wrong response must not do so.
REFUSALS = 3


@dataclasses.dataclass(slots=True)
class Failures:
    """A row of failures, of all queries or of one key; ``refusals`` counts the refusals at its end."""

    count: int = 0
    refusals: int = 0

    def add(self, error: WebCollectError, *, is_refusal: bool) -> bool:
        """Count a failure; return whether it ends waits.

        A permanent refusal ends waits if it is the third in a row. A refusal by the client itself, which
        sends nothing then, ends them at once.

        :param error: the error of the query.
        :param is_refusal: whether the error is a permanent refusal.
        """
        self.count += 1
        self.refusals = self.refusals + 1 if is_refusal else 0
        is_certain = isinstance(error, InvalidArgument | ConnectionIncomplete)
        return is_refusal and (is_certain or self.refusals >= REFUSALS)


class Outcome(StrEnum):
    """The outcome of a wait. The values are stored in trigger events, so an upgrade must not change them."""

    #: The condition is met.
    DONE = "done"
    #: The condition cannot be met any more, because of a failure state, or of something missing for too long.
    FAILED = "failed"
    #: The wait has timed out.
    TIMEOUT = "timeout"
    #: The service refuses the queries, or the connection cannot be used.
    ERROR = "error"


#: The records of the last responses, as plain JSON.
Records = list[dict[str, Any]]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a wait; as plain JSON, it is the payload of a trigger's event.

    :ivar reason: one line that explains the outcome.
    :ivar records: the records of the last responses; None if there was no response.
    :ivar permanent: for :attr:`Outcome.ERROR`, whether a retry cannot help until a person acts.
    """

    outcome: Outcome
    reason: str
    records: Records | None = None
    permanent: bool = False


#: The only key of the query for the account's running counts.
ACCOUNT = "account"


class Query(msgspec.Struct, frozen=True):
    """A query for the state of keys, such as tasks.

    :ivar ask: sends the query for some keys, and returns their states; an error in place of a state affects
        only that key.
    :ivar most: the maximum number of keys per request.
    """

    ask: Callable[[Sender, Sequence[str]], Mapping[str, Any]]
    most: int = 1

    def ask_all(self, sender: Sender, keys: Sequence[str], batch_size: int) -> dict[str, Any]:
        """Return the states of any number of keys; None for a key that is missing from the response.

        :param batch_size: maximum number of keys per request, if the query allows as many.
        """
        states: dict[str, Any] = dict.fromkeys(keys)
        most = min(self.most, batch_size)
        for first in range(0, len(keys), most):
            states |= self.ask(sender, keys[first : first + most])
        return states


def _task_statuses(sender: Sender, task_ids: Sequence[str]) -> Mapping[str, TaskStatus | MalformedResponse]:
    from airflow_provider_webcollect.service.call import exchange

    call: Call[Any] = endpoints.get_task_statuses_v2(list(task_ids))
    call = dataclasses.replace(call, result=STATUSES_BY_TASK)
    statuses = exchange(call, sender)
    # the service may return an id in another letter case
    by_id = {task_id.lower(): status for task_id, status in statuses.items()}
    return {task_id: by_id[task_id.lower()] for task_id in task_ids if task_id.lower() in by_id}


def _subtasks(sender: Sender, task_ids: Sequence[str]) -> Mapping[str, list[SubTask]]:
    from airflow_provider_webcollect.service.pages import all_subtasks

    batches = {}
    for task_id in task_ids:
        # an empty batch counts as missing
        if batch := all_subtasks(sender, task_id):
            batches[task_id] = batch
    return batches


def _running_counts(sender: Sender, accounts: Sequence[str]) -> Mapping[str, RunningCounts]:
    from airflow_provider_webcollect.service.call import exchange

    counts = exchange(endpoints.get_running_counts(), sender)
    return dict.fromkeys(accounts, counts)


def all_task_statuses(sender: Sender, task_ids: Sequence[str], batch_size: int) -> dict[str, TaskStatus]:
    """Return the statuses of tasks, by id, without the tasks that are missing from the responses.

    :param task_ids: the ids of any number of tasks.
    :param batch_size: maximum number of tasks per request.
    :raises MalformedResponse: if the status of a task cannot be read.
    """
    statuses = TASK_STATUSES.ask_all(sender, task_ids, batch_size)
    for status in statuses.values():
        if isinstance(status, Exception):
            raise status
    return {task_id: status for task_id, status in statuses.items() if status}


#: The states of tasks (contract.md, endpoint 13).
TASK_STATUSES = Query(_task_statuses, most=100)
#: All sub-tasks of a task's latest batch (contract.md, endpoint 14).
SUBTASKS = Query(_subtasks)
#: The account's running counts (contract.md, endpoint 16); the key is :data:`ACCOUNT`.
RUNNING_COUNTS = Query(_running_counts)


class Verdict(NamedTuple):
    """The outcome of a wait, or None while the wait continues; and one line that explains it."""

    outcome: Outcome | None
    reason: str


class Condition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A condition that a wait is for.

    The garbage collector ignores conditions (``gc=False``): there may be tens of thousands, and none is part
    of a reference cycle.

    :cvar query: the query that shows the state of the :attr:`keys`.
    """

    query: ClassVar[Query]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the query, such as the ids of tasks."""
        raise NotImplementedError

    def absent(self, key: str, state: Any) -> Collection[str]:
        """Return the names of things that are missing from the service's response about ``key``."""
        raise NotImplementedError

    def judge(self, key: str, state: Any, history: History) -> Verdict:
        """Return the verdict for ``key``.

        :param state: the key's state in the latest response; None if the response leaves it out.
        :param history: the history of the responses about the key, including the latest one.
        """
        raise NotImplementedError

    def combine(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        """Return the verdict on the wait.

        :param verdicts: the verdicts on the keys queried so far; this implementation requires exactly one.
        """
        (verdict,) = verdicts.values()
        return verdict

    def records(self, seen: Mapping[str, Any]) -> Iterable[Record]:
        """Return the records of the wait's result.

        :param seen: the last state of each key queried so far.
        """
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        """Return the condition as plain JSON, for a trigger's arguments, without values that are defaults."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for field in msgspec.structs.fields(self):
            is_made = field.default_factory is not msgspec.NODEFAULT
            if getattr(self, field.name) == (field.default_factory() if is_made else field.default):
                del plain[field.name]
        return plain


class _Absence(NamedTuple):
    since: float
    responses: int


_NOTHING: Mapping[str, _Absence] = MappingProxyType({})


class History:
    """The history of the responses about one key.

    Something counts as absent only if two responses in a row leave it out. If the first response leaves it
    out, it counts as absent from the beginning of the queries on.

    :param began: Unix time at which the wait began.
    :param since: Unix time from which on queries were sent without interruption; None for ``began``.
    """

    __slots__ = ("_absent", "_began", "_end", "_now", "_rows", "_rows_since", "_since")

    def __init__(self, began: float, since: float | None = None) -> None:
        self._began = began
        self._since = began if since is None else since
        # number, start and rows of the active run: the first two distinguish it from other runs
        self._rows: tuple[Any, ...] = ()
        self._rows_since = began
        self._now: float | None = None
        self._absent: Mapping[str, _Absence] = _NOTHING
        self._end: RunEnd | None = None

    def note(self, absent: Collection[str]) -> None:
        """Note a response.

        :param absent: the names of things that are missing from the response.
        """
        now = time.time()
        new = _Absence(self._since if self._now is None else now, 0)
        self._now = now
        before = {name: self._absent.get(name, new) for name in absent}
        self._absent = {
            name: _Absence(since, responses + 1) for name, (since, responses) in before.items()
        } or _NOTHING

    @property
    def unconfirmed(self) -> bool:
        """Whether something is missing only from the latest response, so that another one must confirm it."""
        return any(absence.responses < 2 for absence in self._absent.values())

    def judge_absent(self, names: Collection[str], reason: str, timeout: float, advice: str) -> Verdict:
        """Return the verdict while something is absent: a failure after ``timeout`` seconds.

        :param names: the names of things that are missing from the latest response.
        :param reason: the reason of the verdict, without the duration.
        :param timeout: number of seconds of absence after which the verdict is a failure.
        :param advice: what a person should do about the failure.
        """
        absences = [self._absent[name] for name in names if name in self._absent]
        since = [absence.since for absence in absences if absence.responses >= 2]
        if not since or (longest := (self._now or self._began) - min(since)) < timeout:
            return Verdict(None, reason)
        return Verdict(Outcome.FAILED, f"{reason} for {longest:.0f} s: {advice}")

    def judge_rows(self, status: TaskStatus, reason: str, timeout: float | None) -> Verdict:
        """Return the verdict on an active run: a failure after ``timeout`` seconds without new rows.

        Time counts only while the run is Extracting, and only if the status has the number of rows.

        :param reason: the reason of the verdict, with the number of rows.
        :param timeout: number of seconds without new rows after which the verdict is a failure; None for no
            limit.
        """
        rows, now = status.current_total_extract_count, self._now or self._began
        if timeout is None or rows is None or status.status != TaskState.EXTRACTING:
            self._rows = ()
            return Verdict(None, reason)
        # a lower number may be from another run or from an outdated response: the two cannot be distinguished
        if self._rows != (seen := (status.executed_times, status.start_execute_time, rows)):
            self._rows, self._rows_since = seen, now
        if now - self._rows_since < timeout:
            return Verdict(None, reason)
        # not a number of seconds: it would log a line per response while the wait continues for other tasks
        since = datetime.datetime.fromtimestamp(self._rows_since, datetime.UTC)
        moment = since.strftime("%Y-%m-%d %H:%M:%S UTC")
        advice = f"look at the run in the service, or raise `no_new_rows_for` ({timeout:g} s)"
        return Verdict(Outcome.FAILED, f"{reason}, no new ones since {moment}: {advice}")

    def is_new_run(
        self, status: TaskStatus, baseline: Baseline, *, status_delay: float, was_started: bool
    ) -> bool:
        """Return whether ``status`` is about the run after ``baseline``; must be called with every status.

        :param status_delay: seconds for which a status may still be about the previous run.
        :param was_started: whether a run was started right before the wait; otherwise the next run counts.
        """
        if self._end is None:
            self._end = RunEnd(baseline, self._began if was_started else None)
        return self._end.belongs(status, self._now or self._began, status_delay)


class Wait:
    """Judges the responses to a wait's queries, in their order, and logs the reason when it changes.

    :param condition: the condition of the wait.
    :param began: Unix time at which the wait began.
    :param log: a logger.
    :param since: Unix time from which on this process queries the service; None for ``began``.
    """

    __slots__ = ("_began", "_histories", "_known", "_log", "_reason", "_since", "condition")

    def __init__(self, condition: Condition, began: float, log: Any, since: float | None = None) -> None:
        self.condition = condition
        self._began = began
        self._since = since
        self._histories: dict[str, History] = {}
        self._known: tuple[dict[str, Any], dict[str, Verdict]] | None = None
        self._log = log
        self._reason = ""

    def judge(self, states: Mapping[str, Any]) -> Ended | None:
        """Return the end of the wait, or None if it continues.

        A key is judged only after a query of that key. Queries of other keys do not count as time for it.

        :param states: the states of the keys that were just queried; None for a key that the response leaves
            out.
        """
        seen, verdicts = self._known or ({}, {})
        if len(self.condition.keys) > 1:  # with one key, every response is complete
            self._known = seen, verdicts
        for key, state in states.items():
            if (known := verdicts.get(key)) and known.outcome is Outcome.DONE:
                # the run that the wait is for has ended; a later run does not matter
                continue
            if (history := self._histories.get(key)) is None:
                history = self._histories[key] = History(self._began, self._since)
            history.note(self.condition.absent(key, state))
            seen[key], verdicts[key] = state, self.condition.judge(key, state, history)
        outcome, reason = self.condition.combine(verdicts)
        if reason != self._reason:
            self._reason = reason
            self._log.info("%s", reason)
        if outcome is None:
            return None
        records = [record.as_dict() for record in self.condition.records(seen)]
        return Ended(outcome=outcome, reason=reason, records=records)

    @property
    def is_in_doubt(self) -> bool:
        """Whether something is missing from a response that the next response may have."""
        return any(history.unconfirmed for history in self._histories.values())


#: Seconds that something may be missing from the responses before the wait fails.
MISSING_TIMEOUT = 600.0
#: The advice about a task that stays missing.
_ABSENT_TASK = "check the id and that something starts the task, or raise `missing_timeout`"


class TaskStates(Condition, frozen=True, kw_only=True):
    """A wait for the states of tasks.

    :ivar names: names of the tasks for messages, by id; messages name a task without a name by its id.
    :ivar hint: another sentence for people about a task that stays missing; empty for none.
    :ivar target_states: the states that meet the condition.
    :ivar failure_states: the states that end the wait as a failure, unless they are target states.
    :ivar how_many: ``all`` if all tasks must reach a target state; ``any`` if one task is enough.
    :ivar after: the baseline of each task, by id; empty to accept any final state.
    :ivar was_started: whether the tasks were started when the wait began; otherwise the next run of each
        counts.
    :ivar status_delay: seconds for which a status may still be about the previous run.
    :ivar missing_timeout: seconds after which a task that stays missing or Unexecuted ends the wait.
    :ivar no_new_rows_for: seconds after which a run that is Extracting without new rows ends the wait; None
        for no limit.
    """

    query = TASK_STATUSES
    task_ids: tuple[str, ...]
    names: Mapping[str, str] = {}
    hint: str = ""
    target_states: tuple[str, ...] = (TaskState.FINISHED,)
    failure_states: tuple[str, ...] = (TaskState.STOPPED,)
    how_many: Literal["all", "any"] = "all"
    after: Mapping[str, Baseline] = {}
    was_started: bool = True
    status_delay: float = STATUS_DELAY
    missing_timeout: float = MISSING_TIMEOUT
    no_new_rows_for: float | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return self.task_ids

    def absent(self, key: str, state: TaskStatus | None) -> Collection[str]:
        """Return the task if it is missing, or if it is Unexecuted and the wait is not for that state."""
        is_there = state and (state.status != TaskState.UNEXECUTED or self._is_wanted(state))
        return () if is_there else (key,)

    def judge(self, key: str, state: TaskStatus | None, history: History) -> Verdict:
        if state is None:
            missing = "is missing from the service's responses"
            advice = f"{_ABSENT_TASK}. {self.hint}" if self.hint else _ABSENT_TASK
            return history.judge_absent((key,), missing, self.missing_timeout, advice)
        reported = f"is {state.status}"
        baseline = self.after.get(key)
        is_ours = baseline is None or history.is_new_run(
            state, baseline, status_delay=self.status_delay, was_started=self.was_started
        )
        if self._is_wanted(state):
            if not is_ours:
                return Verdict(None, f"still shows the previous run ({state.status})")
            return Verdict(Outcome.DONE if state.status in self.target_states else Outcome.FAILED, reported)
        if state.status == TaskState.UNEXECUTED:
            return history.judge_absent((key,), reported, self.missing_timeout, _ABSENT_TASK)
        rows = state.current_total_extract_count
        reason = reported if rows is None else f"{reported}, {rows} {'row' if rows == 1 else 'rows'}"
        return history.judge_rows(state, reason, self.no_new_rows_for)

    def combine(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        """Return the verdict on the wait, which is a failure once the condition can no longer be met."""
        not_polled = Verdict(None, "was not polled yet")
        by_task = {task_id: verdicts.get(task_id, not_polled) for task_id in self.task_ids}
        outcomes = {verdict.outcome for verdict in by_task.values()}
        rank = {Outcome.FAILED: 0, None: 1, Outcome.DONE: 2}
        worst_first = sorted(by_task.items(), key=lambda item: rank[item[1].outcome])
        reason = "; ".join(f"{self.names.get(key, key)} {verdict.reason}" for key, verdict in worst_first[:5])
        # one task decides for all, or all have the same outcome
        decisive = Outcome.FAILED if self.how_many == "all" else Outcome.DONE
        if decisive in outcomes:
            return Verdict(decisive, reason)
        return Verdict(outcomes.pop() if len(outcomes) == 1 else None, reason)

    def records(self, seen: Mapping[str, TaskStatus | None]) -> Iterable[TaskStatus]:
        """Return the statuses, in the order of the tasks."""
        return [status for task_id in self.task_ids if (status := seen.get(task_id))]

    def _is_wanted(self, status: TaskStatus) -> bool:
        return status.status in self.target_states or status.status in self.failure_states


class SubTaskStates(Condition, frozen=True, kw_only=True):
    """A wait for the states of sub-tasks of a task's latest batch.

    :ivar subtask_ids: the ids of the sub-tasks; None for all sub-tasks of the batch.
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
        return (self.task_id,)

    def absent(self, key: str, state: list[SubTask] | None) -> Collection[str]:
        """Return the sub-tasks that are not in the batch, or the task's id if the batch is empty."""
        if self.subtask_ids is None:
            return () if state else (key,)
        present = {subtask.sub_task_id.lower() for subtask in state or ()}
        return [subtask_id for subtask_id in self.subtask_ids if subtask_id.lower() not in present]

    def judge(self, key: str, state: list[SubTask] | None, history: History) -> Verdict:
        """Return the verdict on the wait; a failure ends it even if sub-tasks are missing."""
        subtask_ids = self.subtask_ids and {subtask_id.lower() for subtask_id in self.subtask_ids}
        states = Counter(
            subtask.status
            for subtask in state or ()
            if subtask_ids is None or subtask.sub_task_id.lower() in subtask_ids
        )
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
            named = self.subtask_ids and f"not in the latest batch: {', '.join(list(absent)[:5])}"
            reason = named or "the latest batch is empty"
            advice = "check the ids, or raise `missing_timeout`"
            return history.judge_absent(absent, reason, self.missing_timeout, advice)
        return Verdict(Outcome.DONE if done == count else None, reason)

    def records(self, seen: Mapping[str, list[SubTask] | None]) -> Iterable[SubTask]:
        """Return all sub-tasks of the batch."""
        return seen[self.task_id] or ()


class Capacity(Condition, frozen=True, kw_only=True):
    """A wait until the account's running counts leave capacity for more runs (contract.md, endpoint 16).

    :ivar max_active_tasks: the wait ends once fewer tasks than this are extracting or waiting; None for no
        limit.
    :ivar max_active_sub_tasks: the same for sub-tasks. The meaning of the service's two counts is ambiguous
        (contract.md, Task running counts), but the meaning of their sum is not.
    """

    query = RUNNING_COUNTS
    max_active_tasks: int | None = None
    max_active_sub_tasks: int | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return (ACCOUNT,)

    def absent(self, key: str, state: RunningCounts | None) -> Collection[str]:
        """Return the limited kinds of objects ("tasks", "sub-tasks") whose count is missing."""
        return [what for what, active, _ in self._limits(state) if active is None]

    def judge(self, key: str, state: RunningCounts | None, history: History) -> Verdict:
        verdicts = []
        for what, active, limit in self._limits(state):
            if active is None:
                unknown = f"the service does not say how many {what} are active"
                verdict = history.judge_absent((what,), unknown, MISSING_TIMEOUT, "ask its support")
            else:
                reason = f"active {what}: {active}, the wait ends below {limit}"
                verdict = Verdict(Outcome.DONE if active < limit else None, reason)
            verdicts.append(verdict)
        outcomes = {verdict.outcome for verdict in verdicts}
        worst = next((outcome for outcome in (Outcome.FAILED, None) if outcome in outcomes), Outcome.DONE)
        return Verdict(worst, "; ".join(verdict.reason for verdict in verdicts))

    def records(self, seen: Mapping[str, RunningCounts | None]) -> Iterable[RunningCounts]:
        return [counts for counts in seen.values() if counts]

    def _limits(self, counts: RunningCounts | None) -> Iterator[tuple[str, int | None, int]]:
        """Yield the name of each limited kind of object, the active number, and the limit."""
        counts = counts or RunningCounts()
        if self.max_active_tasks is not None:
            yield "tasks", _sum(counts.extracting_count, counts.waiting_count), self.max_active_tasks
        if self.max_active_sub_tasks is not None:
            active = _sum(counts.executing_sub_task_count, counts.waiting_sub_task_count)
            yield "sub-tasks", active, self.max_active_sub_tasks


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
