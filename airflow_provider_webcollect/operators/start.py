"""The operator that starts sub-tasks of one or several collection tasks, and optionally waits for a run."""

from __future__ import annotations

import hashlib
import time
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_provider_webcollect.assets import storable
from airflow_provider_webcollect.collection_tasks import (
    check_names,
    described_tasks,
    one_or_many,
)
from airflow_provider_webcollect.common import (
    ABOUT_ONE_TASK,
    WebCollectTaskOperator,
    as_lists,
    check_at_parse,
    for_each,
    replace_iterators,
)
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    OutcomeUnknown,
    WebCollectError,
    only_a_key,
    unknown_outcome,
)
from airflow_provider_webcollect.service.models import SubTask, TaskState, active_subtask_ids
from airflow_provider_webcollect.service.threads import ThrottledLog
from airflow_provider_webcollect.waiting.conditions import Ended, Outcome, TaskStates, Wait
from airflow_provider_webcollect.waiting.runs import STATUS_DELAY, Baseline
from airflow_provider_webcollect.waits import (
    baselines,
    default_deferrable,
    end_of_event,
    poke_service,
    query,
    readable,
    result_of,
)

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow.providers.common.compat.sdk import Context

ALL = "all"
#: Seconds between two checks of whether an earlier attempt has started the run.
CHECK_INTERVAL = 10.0
#: Maximum number of tasks whose statuses are queried at once, right before their starts. With more tasks, a
#: run that somebody else starts could begin and end between the query and the start.
MOST_AT_ONCE = 20


class Clock(NamedTuple):
    """Functions that return the Unix time and that sleep for a number of seconds."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


SYSTEM_CLOCK = Clock()


class WebCollectStartSubTasksOperator(WebCollectTaskOperator):
    """Starts sub-tasks of a task's latest batch (contract.md, endpoint 15), and optionally waits for the run.

    With ``collection_task_ids``, it starts all sub-tasks of several tasks, one task after another, within the
    connection's rate limit. If a start fails, the other tasks are still started; then an error names each
    failed task with the reason. After three consecutive failures that are not about a single task, such as
    network errors, the remaining tasks are left to a retry. A retry joins the runs that were started.
    Everything below applies to each of the tasks.

    Sub-tasks that are already active (contract.md, endpoint 14) are not started again, so a retry starts no
    sub-task twice. On Airflow 3.3 and later, the start is also stored: a retry after a crash joins that run,
    even if the run has already ended; a cleared task starts the sub-tasks again. If it is unknown whether the
    start was sent, the retry first checks for 90 seconds whether the run appears, and only then sends a new
    start. On earlier versions, a retry joins the run only if the run is still active.

    The status query (contract.md, endpoint 13) needs an access token. With an API key alone, the given
    ``sub_task_ids`` are started without that query, even active ones; ``"all"`` and ``wait_for_completion``
    are refused. ``after`` in the result is then None, since nothing distinguishes this run from others. If an
    attempt was killed during the start, a retry cannot know whether the sub-tasks were started: on Airflow
    3.3 and later, it fails the task, unless ``retry_unknown_outcome`` is set; on earlier versions, it starts
    them again. The same applies to a start during an active run, if the sub-tasks that were started are no
    longer active.

    Returns ``{"collection_task_id", "collection_task_name", "started", "already_active", "after"}``: the
    task's id and name (None if not known), the ids of the sub-tasks that were started and of those that were
    already active, and the task's status before the start, for a sensor's ``after``. After a wait, the dict
    also has ``"status"``, the last status record. With ``collection_task_ids``, returns a list of such dicts,
    in the order of the tasks.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param collection_task_ids: several tasks instead of one, by id or name; each is started once. (templated)
    :param collection_task_names: names of tasks by id, for logs, errors and the result; they take precedence
        over the names in the file. (templated)
    :param sub_task_ids: ids of sub-tasks, or ``"all"`` (default) for all sub-tasks of the latest batch. With
        ``collection_task_ids``, only ``"all"`` is accepted. (templated)
    :param wait_for_completion: wait until the run is Finished; False by default. For several tasks, use
        :class:`.WebCollectTaskStatusSensor` instead.
    :param poll_interval: seconds between two status queries, 60 by default.
    :param deferrable: wait in the triggerer; by default the value of ``[operators] default_deferrable``.
    :param failure_states: states of the task that fail the wait, without retries; by default Stopped.
    :param no_new_rows_for: seconds or a ``timedelta`` after which the wait fails, without retries, if the run
        is Extracting and has no new rows (``currentTotalExtractCount``); None (default) for no limit. A
        restart of the triggerer or a retry resets this time.
    :param clock: functions that return the time and sleep; by default the system's clock.
    :param retry_unknown_outcome: also retry if it is unknown whether the start took effect; False by default.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help (with several tasks: if it helps none of them); if
        the run ends in a failure state, or has no new rows for too long; and if it is unknown whether a
        start took effect, unless ``retry_unknown_outcome`` is set.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    _own_fields = ("collection_task_ids", "collection_task_names", "sub_task_ids")
    template_fields = (*WebCollectTaskOperator.template_fields, *_own_fields)
    template_fields_renderers = dict.fromkeys(_own_fields, "json")
    _takes_several = True

    def __init__(
        self,
        *,
        collection_task_id: str | None = None,
        collection_task_ids: Sequence[str] | None = None,
        collection_task_names: Mapping[str, str] | None = None,
        sub_task_ids: Sequence[str] | str = ALL,
        wait_for_completion: bool = False,
        poll_interval: float = 60.0,
        deferrable: bool | None = None,
        failure_states: Sequence[str] = (TaskState.STOPPED,),
        no_new_rows_for: float | datetime.timedelta | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **kwargs: Any,
    ) -> None:
        super().__init__(collection_task_id=collection_task_id, **kwargs)
        self.collection_task_ids = collection_task_ids
        self.collection_task_names = collection_task_names
        self.sub_task_ids = sub_task_ids
        self.wait_for_completion = wait_for_completion
        self.poll_interval = poll_interval
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self.failure_states = as_lists(failure_states)
        self.no_new_rows_for: Any = no_new_rows_for
        self._clock = clock
        check_at_parse(self, self._check_limits, ())
        check_at_parse(self, self._check)

    def _ids(self) -> tuple[str, ...]:
        return one_or_many(self.collection_task_id, self.collection_task_ids)

    def _check(self) -> None:
        self._ids()
        check_names(self.collection_task_names)
        if self.collection_task_ids is not None:
            if self.sub_task_ids != ALL:
                rule = "with `collection_task_ids`, it can only be 'all'"
                raise InvalidArgument("sub_task_ids", self.sub_task_ids, rule)
            if self.wait_for_completion:
                rule = "for several tasks, use WebCollectTaskStatusSensor(collection_task_ids=…)"
                raise InvalidArgument("wait_for_completion", True, rule)
        if self.sub_task_ids != ALL:
            self.sub_task_ids = arguments.texts("sub_task_ids", arguments.decoded(self.sub_task_ids))
        self._check_limits()

    def _check_limits(self) -> None:
        self.failure_states = arguments.items(
            "failure_states", self.failure_states, arguments.Word(TaskState), may_be_empty=True
        )
        if (limit := self.no_new_rows_for) is not None:
            if not self.wait_for_completion:
                raise InvalidArgument("no_new_rows_for", limit, "it needs wait_for_completion=True")
            self.no_new_rows_for = arguments.seconds("no_new_rows_for", limit, may_be_timedelta=True)
        arguments.seconds("poll_interval", self.poll_interval)

    def open_hook(self, context: Context) -> WebCollectHook:
        """Check the arguments and the credentials, and return the connection's hook."""
        self._check()
        hook = super().open_hook(context)
        # without a token, the status cannot be queried
        if hook.connection.credentials.key_only and self.sub_task_ids == ALL:
            raise only_a_key('`sub_task_ids="all"`', "start_subtasks", "list their ids")
        if hook.connection.credentials.key_only and self.wait_for_completion:
            raise only_a_key("`wait_for_completion=True`", "start_subtasks", "leave it out")
        return hook

    def execute(self, context: Context) -> dict[str, Any] | list[dict[str, Any]]:
        """Start the idle sub-tasks, or join the runs of an earlier attempt; then wait if requested."""
        with self.errors():
            replace_iterators(self)
            hook = self.open_hook(context)
            memories = {task_id: _Memory(context, self, task_id) for task_id in self._ids()}
            self._resolve_unclear_starts(hook, memories.values())
            known = dict.fromkeys(
                task_id for task_id, memory in memories.items() if memory.step is not Step.JOIN
            )

            def start_one(task_id: str) -> _Start:
                memory = memories[task_id]
                return self._joined(memory) or self._start(hook, memory, known)

            if self.collection_task_ids is not None:
                starts = for_each(memories, start_one, self.collection_task_names)
                return [start.result for start in starts]
            (memory,) = memories.values()
            start = start_one(memory.task_id)
            if not self.wait_for_completion:
                return start.result
            return self._finished(self._wait(start), start.result, memory)

    def execute_complete(
        self, context: Context, event: Any = None, result: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the result after the trigger has reported how the run ended.

        :param result: the result of the start; None if ``dag.test()`` does not pass it on, as in some
            versions of Airflow.
        """
        with self.errors():
            self._check()
            memory = _Memory(context, self, self.collection_task_id)
            if result is None:
                result = memory.start.result if memory.start else {"collection_task_id": memory.task_id}
            ended = end_of_event(event)
            self.log.info("%s", ended.reason)
            return self._finished(ended, result, memory)

    def _finished(self, ended: Ended, result: dict[str, Any], memory: _Memory) -> dict[str, Any]:
        """Return the operator's result, and delete the stored start if the run has failed.

        After a success the start stays stored, since Airflow may fail to store the result and retry the task.
        """
        if ended.outcome is Outcome.FAILED:
            memory.forget()
        return {**result, "status": storable(next(iter(result_of(ended)), None))}

    def what_to_check(self) -> str:
        if self.collection_task_id is None:
            return "The status of each task shows whether its sub-tasks run."
        name = self._display_name(self.collection_task_id)
        return f"The status of task {name} shows whether its sub-tasks run."

    def _resolve_unclear_starts(self, hook: WebCollectHook, memories: Collection[_Memory]) -> None:
        """Find out whether the starts that may have been sent took effect.

        If the earlier attempt ended only a moment ago, the service may not show the run yet. So the service
        is queried for as long as it may still show the previous run.

        Afterwards, the ``step`` of each memory is the next step, or the error that left the step unknown.
        """
        wait_log, until = ThrottledLog(self.log), self._clock.now() + STATUS_DELAY
        while unclear := {memory.task_id: memory for memory in memories if memory.step is Step.QUERY}:
            rest = until - self._clock.now()
            statuses = query(self.webcollect_conn_id, TaskStates(task_ids=tuple(unclear)))
            for task_id, memory in unclear.items():
                assert memory.start
                try:
                    has_begun = self._has_taken_effect(hook, task_id, memory.start, statuses[task_id])
                except WebCollectError as error:
                    memory.step = error
                else:
                    if has_begun or rest <= 0:
                        memory.step = next_step(memory.start, has_begun=has_begun)
            if left := sum(memory.step is Step.QUERY for memory in unclear.values()):
                message = "An earlier attempt may have started %d runs; checking for %.0f s more."
                wait_log.log(rest, message, left, rest)
                self._clock.sleep(min(CHECK_INTERVAL, rest))

    def _has_taken_effect(self, hook: WebCollectHook, task_id: str, start: _Start, status: Any) -> bool:
        before = start.after
        # if a run was active before this start, a newer status may only show the end of that run
        if readable(status) and before and not before.running and before.is_before(status):
            return True
        active = active_subtask_ids(hook.get_all_subtasks(task_id))
        return any(subtask_id.lower() in active for subtask_id in start.result["started"])

    def _joined(self, memory: _Memory) -> _Start | None:
        """Return the start of an earlier attempt; None if a new start must be sent.

        :raises OutcomeUnknown: if it cannot be known whether a start was sent, unless
            ``retry_unknown_outcome`` is set.
        """
        start, step = memory.start, readable(memory.step)
        if step is Step.REFUSE and not self.retry_unknown_outcome:
            memory.forget()
            raise OutcomeUnknown(
                "an earlier attempt was about to start the sub-tasks. Whether it did cannot be known if "
                "another run was active, or if the status before is unknown (with an API key alone).",
                endpoint="start_subtasks",
            )
        if start is None or step is not Step.JOIN:
            return None
        self.log.info(
            "An earlier attempt has already started the run of task %s.", self._display_name(memory.task_id)
        )
        return start if start.sent else memory.confirm(start, self._clock.now())

    def _before(self, task_id: str, known: dict[str, Any]) -> Baseline:
        """Return a task's status before its start; also query the statuses of the next tasks.

        :param known: the statuses of the tasks to start, by task id and in order; None for a task that was
            not queried yet. The method adds the new statuses.
        """
        if known[task_id] is None:
            waiting = [*known]
            first = waiting.index(task_id)
            batch = waiting[first : first + MOST_AT_ONCE]
            try:
                known |= baselines(self.webcollect_conn_id, batch)
            except ABOUT_ONE_TASK:
                if len(batch) == 1:
                    raise
                # the error does not show which of the tasks it is about
                known |= baselines(self.webcollect_conn_id, [task_id])
        before: Baseline = readable(known[task_id])
        return before

    def _query_state(
        self, hook: WebCollectHook, task_id: str, known: dict[str, Any]
    ) -> tuple[Baseline | None, list[SubTask]]:
        """Return the task's status and its sub-tasks; with an API key alone, None and an empty list."""
        if hook.connection.credentials.key_only:
            self.log.warning(
                "The connection has only an API key, so the status of task %s was not queried: "
                "active sub-tasks are started too, and nothing distinguishes their run from others.",
                self._display_name(task_id),
            )
            return None, []
        before = self._before(task_id, known)
        subtasks = hook.get_all_subtasks(task_id)
        # a run that has ended since the status query cannot be joined
        is_active = before.running and bool(active_subtask_ids(subtasks))
        return msgspec.structs.replace(before, running=is_active), subtasks

    def _start(self, hook: WebCollectHook, memory: _Memory, known: dict[str, Any]) -> _Start:
        """Start the idle sub-tasks of one task.

        :param known: the statuses of the tasks to start, see :meth:`_before`.
        """
        from airflow_provider_webcollect.landing.log.commits import counted

        task_id = memory.task_id
        after, subtasks = self._query_state(hook, task_id, known)
        all_ids = [subtask.sub_task_id for subtask in subtasks]
        chosen = all_ids if self.sub_task_ids == ALL else list(dict.fromkeys(self.sub_task_ids))
        if not chosen:
            raise InvalidArgument(
                "sub_task_ids", ALL, f"task {self._display_name(task_id)} has no sub-tasks to start"
            )
        active = [subtask_id for subtask_id in chosen if subtask_id.lower() in active_subtask_ids(subtasks)]
        idle = [subtask_id for subtask_id in chosen if subtask_id not in active]
        start = _Start(
            began=self._clock.now(),
            result=storable(
                {
                    **self._named(task_id),
                    "started": idle,
                    "already_active": active,
                    "after": msgspec.to_builtins(after),
                }
            ),
        )
        if idle:
            memory.keep(start)
            try:
                hook.start_subtasks(task_id, idle)
            except BaseException as error:
                if not (self.retry_unknown_outcome and unknown_outcome(error)):
                    # a retry must not mistake a later run for the run of this start
                    memory.forget()
                raise
        start = memory.confirm(start, self._clock.now())
        self.log.info(
            "Started %s of task %s; %d already active.",
            counted(len(idle), "sub-task"),
            self._display_name(task_id),
            len(active),
        )
        return start

    def _wait(self, start: _Start) -> Ended:
        """Wait for the run and return how the wait has ended, or defer the task."""
        condition = TaskStates(
            task_ids=(self.collection_task_id,),
            names=described_tasks([self.collection_task_id], self.collection_task_names),
            failure_states=tuple(self.failure_states),
            after={self.collection_task_id: start.after} if start.after else {},
            no_new_rows_for=self.no_new_rows_for,
        )
        interval, conn_id = self.poll_interval, self.webcollect_conn_id
        if self.deferrable:
            from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskStatusTrigger

            self.defer(
                trigger=WebCollectTaskStatusTrigger(
                    condition=storable(condition.as_json()),
                    poke_interval=interval,
                    began=start.began,
                    webcollect_conn_id=conn_id,
                ),
                method_name="execute_complete",
                kwargs={"result": start.result},
                timeout=self.execution_timeout,
            )
        wait, wait_log = Wait(condition, start.began, self.log), ThrottledLog(self.log)
        while (ended := poke_service(conn_id, wait, interval, self.log)) is None:
            wait_log.log(interval, "The next status query follows in %.0f s.", interval)
            time.sleep(interval)
        return ended


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """A start of sub-tasks.

    :ivar began: Unix time at which the wait begins: right before the start is sent or, once the start is
        confirmed, the time of the confirmation.
    :ivar result: the operator's result, without the status after a wait.
    :ivar sent: whether the response or the status shows that the start took effect.
    :ivar stored_for: digest of the arguments and tries for which the start was stored, see :class:`_Memory`.
    """

    began: float
    result: dict[str, Any]
    sent: bool = False
    stored_for: str = ""

    @property
    def after(self) -> Baseline | None:
        """The task's status before the start; None if it was not queried."""
        return msgspec.convert(self.result["after"], Baseline | None)


class Step(Enum):
    """The next step of an attempt, given the start that an earlier attempt has stored."""

    JOIN = "take its run"
    QUERY = "look whether its run has begun"
    START = "send a new start"
    REFUSE = "fail, since nobody can know"


def next_step(start: _Start, *, needs_status: bool = False, has_begun: bool | None = None) -> Step:
    """Return the next step for a stored start, by this table.

    ========= ==================== ============= ======
    response  status before        run           step
    ========= ==================== ============= ======
    received  known, or not needed               JOIN
    received  unknown, but needed                REFUSE
    not known unknown                            REFUSE
    not known known                not queried   QUERY
    not known known                has begun     JOIN
    not known no run was active    has not begun START
    not known a run was active     was not seen  REFUSE
    ========= ==================== ============= ======

    In the last row, the sub-tasks of the start may have begun and ended within the active run.

    :param needs_status: whether the attempt waits for the run, which requires the status before the start.
    :param has_begun: whether the service shows the run of this start; None if it was not queried yet.
    """
    if start.after is None:
        return Step.JOIN if start.sent and not needs_status else Step.REFUSE
    if start.sent or has_begun:
        return Step.JOIN
    if has_begun is None:
        return Step.QUERY
    return Step.REFUSE if start.after.running else Step.START


class _Memory:
    """Stores the start for later attempts of the task, from Airflow 3.3 on; earlier versions store nothing.

    Some versions of Airflow keep the stored start when a task is cleared. The cleared task must still start
    again, and so must a mapped task whose index another mapped task had before. So a stored start counts only
    for the same arguments and the same ``max_tries``, which clearing increases.

    :param context: Airflow's context of the attempt.
    :param operator: the operator, whose arguments must have been checked.
    :param task_id: the collection task's id. Each of several tasks has a key of its own, so that each value
        stays small.
    :ivar start: the start that an earlier attempt has stored; None if there is none.
    :ivar step: the next step of this attempt, or the error that left the step unknown.
    """

    key = "webcollect_start"

    def __init__(self, context: Context, operator: WebCollectStartSubTasksOperator, task_id: str) -> None:
        self.task_id = task_id
        if operator.collection_task_ids is not None:
            self.key = f"{self.key}_{hashlib.sha256(task_id.encode()).hexdigest()[:16]}"
        self._store: Any = context.get("task_state_store")
        self._max_tries: int = context["ti"].max_tries
        self._operator = operator
        self.start = self._recalled()
        self.step: Step | WebCollectError = Step.START
        if self.start:
            self.step = next_step(self.start, needs_status=operator.wait_for_completion)

    @property
    def _stored_for(self) -> str:
        operator = self._operator
        arguments = (operator.webcollect_conn_id, self.task_id, operator.sub_task_ids)
        # clearing computes `max_tries` from `retries`, which an edit of the DAG may have changed
        tries = (self._max_tries, operator.retries)
        return hashlib.sha256(msgspec.json.encode((*tries, *arguments))).hexdigest()[:16]

    def _recalled(self) -> _Start | None:
        """Return the stored start; None if there is none for this task with these arguments."""
        stored = None if self._store is None else self._store.get(self.key)
        try:
            start = None if stored is None else msgspec.convert(stored, _Start)
        except msgspec.ValidationError:
            # another version of this provider has stored it
            return None
        return start if start and start.stored_for == self._stored_for else None

    def keep(self, start: _Start) -> None:
        """Store ``start`` for later attempts."""
        if self._store is not None:
            stored = msgspec.structs.replace(start, stored_for=self._stored_for)
            self._store.set(self.key, msgspec.to_builtins(stored))

    def confirm(self, start: _Start, now: float) -> _Start:
        """Store that ``start`` took effect, and return it with the new time, since sending may take minutes.

        :param now: Unix time at which the wait begins.
        """
        confirmed = msgspec.structs.replace(start, sent=True, began=now)
        self.keep(confirmed)
        return confirmed

    def forget(self) -> None:
        """Delete the stored start, so that the next attempt starts again."""
        if self._store is not None:
            self._store.delete(self.key)
