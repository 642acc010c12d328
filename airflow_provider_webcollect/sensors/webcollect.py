"""Sensors for the states of tasks and sub-tasks, and for the account's capacity.

Their common base pokes, reschedules or defers; all three modes decide in the same way.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    BaseSensorOperator,
    PokeReturnValue,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.assets import storable
from airflow_provider_webcollect.collection_tasks import (
    check_names,
    described_tasks,
    hint_at_names,
    one_or_many,
    task_id_of,
)
from airflow_provider_webcollect.common import (
    GRACE,
    airflow_errors,
    as_lists,
    check_at_parse,
    refuse_none_at_runtime,
    replace_iterators,
)
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.links import WebCollectTaskLink, store_task_link
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError
from airflow_provider_webcollect.service.models import SubTaskState, TaskState
from airflow_provider_webcollect.triggers.webcollect import (
    WaitTrigger,
    WebCollectCapacityTrigger,
    WebCollectSubTaskStatusTrigger,
    WebCollectTaskStatusTrigger,
)
from airflow_provider_webcollect.waiting.conditions import (
    MISSING_TIMEOUT,
    Capacity,
    Condition,
    Ended,
    Records,
    SubTaskStates,
    TaskStates,
    Wait,
)
from airflow_provider_webcollect.waiting.runs import STATUS_DELAY, Baseline
from airflow_provider_webcollect.waits import (
    baselines,
    default_deferrable,
    end_of_event,
    poke_service,
    readable,
    result_of,
    result_or_end,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["WebCollectCapacitySensor", "WebCollectSubTaskStatusSensor", "WebCollectTaskStatusSensor"]

#: The arguments that name collection tasks.
_IDS = ("collection_task_id", "collection_task_ids")
#: The value of `after` that makes the sensor query the status when the wait begins.
NOW = "now"


class WaitSensor(BaseSensorOperator):
    """Base of the sensors: waits for a state of the service."""

    ui_color = "#d7ecdf"
    # `timeout` is always a number. It is a template field of the subclasses only because Airflow stores these
    # fields where the UI can read them.
    #: The trigger that waits in the triggerer.
    _trigger: type[WaitTrigger]

    def __init__(
        self,
        *,
        deferrable: bool | None = None,
        webcollect_conn_id: str = WebCollectHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self.webcollect_conn_id = webcollect_conn_id
        self._given: tuple[str, ...] = ()
        self._waited_for: Condition | None = None
        self._wait: Wait | None = None

    def _check_literals(self) -> None:
        """Check the literal arguments while the DAG is parsed, and record which template fields are set."""
        check_at_parse(self, self._condition)
        self._given = tuple(name for name in self.template_fields if getattr(self, name) is not None)

    def execute(self, context: Context) -> Any:
        """Wait: poke, reschedule or defer."""
        try:
            with airflow_errors():
                # `dag.test()` reuses the operator for further attempts and pokes
                self._waited_for, self._wait = self._checked(), None
                # the wait handles errors of the connection
                with contextlib.suppress(WebCollectError):
                    self._store_link(context)
            if self.deferrable:
                self._defer(self._waited_for)
        except (AirflowFailException, AirflowSensorTimeout, AirflowSkipException):
            raise
        except Exception as error:
            # Airflow's sensors respect `never_fail` only in `poke`
            if self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        return storable(super().execute(context))

    def _checked(self) -> Condition:
        """Check the rendered arguments and return the condition to wait for.

        :raises InvalidArgument: if an argument breaks a rule, or was set in the DAG but renders to None.
        """
        replace_iterators(self)
        refuse_none_at_runtime(self, self._given)
        return self._condition()

    def _with_baseline(self, condition: Condition) -> Condition | None:
        """Return the condition with its initial state; None if the wait cannot begin yet.

        :raises AirflowFailException: if the service refuses to give the initial state.
        """
        return condition

    def _store_link(self, context: Context) -> None:
        """Store the link to the service's page of the task; by default no link is stored."""

    def _defer(self, condition: Condition) -> NoReturn:
        now = time.monotonic()
        waited = 0.0
        try:
            while (begun := self._with_baseline(condition)) is None:
                pause = min(self.poke_interval, self.timeout - waited)
                self.log.info("The first status query is repeated in %.0f s.", pause)
                time.sleep(pause)
                waited = time.monotonic() - now
                if waited >= self.timeout:
                    raise self._timed_out()
        except AirflowFailException as refused:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(refused)) from refused
            raise
        limit = datetime.timedelta(seconds=self.timeout - waited)
        # Airflow 3 does not count an execution timeout while a task is deferred
        limit = min(limit, self.execution_timeout or limit)
        self.defer(
            trigger=self._trigger(
                condition=storable(begun.as_json()),
                poke_interval=self.poke_interval,
                timeout=limit.total_seconds(),
                webcollect_conn_id=self.webcollect_conn_id,
            ),
            method_name="execute_complete",
            # ends the wait if the triggerer is down; `dag.test()` ignores it
            timeout=limit + GRACE,
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Query the service once.

        :raises AirflowFailException: for a failure state, or if a retry cannot help.
        """
        if self._waited_for is None:
            # called without `execute`, for example by unit tests of DAGs
            with airflow_errors():
                self._waited_for = self._checked()
        if self._wait is None:
            begun = self._with_baseline(self._waited_for)
            if begun is None:
                return PokeReturnValue(False)
            self._wait = Wait(begun, _began(self, context), self.log)
        ended = poke_service(self.webcollect_conn_id, self._wait, self.poke_interval, self.log)
        return PokeReturnValue(ended is not None, ended and self._result(result_of(ended)))

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Return the result from the trigger's event; an event that has no outcome is an error."""
        ended = end_of_event(event)
        self.log.info("%s", ended.reason)
        return storable(self._result(result_of(ended)))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after the wait in the triggerer, treating timeouts and ``never_fail`` as in poke mode.

        By itself, Airflow before 3.3 would retry after a timeout, and ignore ``never_fail``.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except Exception as error:
            # with `soft_fail`, Airflow skips the task for any failure of a trigger; in poke mode, errors are
            # retried
            skipped = error.__cause__ if isinstance(error, AirflowSkipException) else None
            ended = skipped or error
            # Airflow ended the wait, since the triggerer was down; Airflow 2 has no error class for this, but
            # a message of its scheduler (`check_trigger_timeouts`)
            if isinstance(ended, AirflowSensorTimeout) or str(ended) == "Trigger/execution timeout":
                raise self._timed_out() from ended
            if self.never_fail or (self.soft_fail and isinstance(ended, AirflowFailException)):
                raise AirflowSkipException(str(ended)) from ended
            raise ended from ended.__cause__

    def _timed_out(self) -> BaseException:
        if self.execution_timeout and self.execution_timeout.total_seconds() < self.timeout:
            reason = f"the wait was not over after the execution timeout, {self.execution_timeout}"
            return AirflowTaskTimeout(reason)
        reason = f"the wait was not over after {self.timeout:.0f} s"
        return AirflowSkipException(reason) if self.soft_fail else AirflowSensorTimeout(reason)

    def _condition(self) -> Condition:
        """Check the arguments and return the condition that they define."""
        raise NotImplementedError

    def _result(self, records: Records) -> Any:
        """Return the task's result from the last records."""
        return records


def _began(sensor: BaseSensorOperator, context: Context) -> float:
    """Return the Unix time at which the wait began; in reschedule mode, the time of the first poke."""
    began = None
    if sensor.reschedule:
        ti = context["ti"]
        began = ti.get_first_reschedule_date(context) if AIRFLOW_V_3_0_PLUS else _first_poke(ti)
    return began.timestamp() if began else time.time()


def _first_poke(ti: Any) -> datetime.datetime | None:
    """Return when Airflow 2 first poked in this attempt; None if it has not yet.

    The task instance's ``start_date`` is the start of the current poke, since the scheduler queues each poke.
    """
    from airflow.models.taskreschedule import TaskReschedule
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    pokes = {name: getattr(ti, name) for name in ("dag_id", "task_id", "run_id", "map_index", "try_number")}
    with create_session() as session:
        first: datetime.datetime | None = session.scalar(
            select(func.min(TaskReschedule.start_date)).filter_by(**pokes)
        )
    return first


class _StatusSensor(WaitSensor):
    """Base of both status sensors.

    A target state ends the wait with success; a failure state fails the task without retries.
    """

    operator_extra_links = (WebCollectTaskLink(),)

    collection_task_id: str | None
    _states: type[StrEnum]

    def __init__(
        self,
        *,
        target_states: Sequence[str],
        failure_states: Sequence[str],
        missing_timeout: float = MISSING_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target_states = as_lists(target_states)
        self.failure_states = as_lists(failure_states)
        self.missing_timeout = missing_timeout

    def _store_link(self, context: Context) -> None:
        store_task_link(context, WebCollectHook(self.webcollect_conn_id), self.collection_task_id)

    def _check_literals(self) -> None:
        # arguments that cannot be templates are checked even if others are templates
        check_at_parse(self, self._limits, ())
        check_at_parse(self, self._ids, [name for name in _IDS if name in self.template_fields])
        super()._check_literals()

    def _ids(self) -> tuple[str, ...]:
        """Return the ids of the collection tasks."""
        return (task_id_of("collection_task_id", self.collection_task_id),)

    def _limits(self) -> dict[str, Any]:
        """Check the arguments that cannot be templates, and return them for the condition."""
        word = arguments.Word(self._states)
        failures = arguments.items("failure_states", self.failure_states, word, may_be_empty=True)
        return {
            "target_states": tuple(arguments.items("target_states", self.target_states, word)),
            "failure_states": tuple(failures),
            "missing_timeout": arguments.seconds("missing_timeout", self.missing_timeout, may_be_zero=True),
        }


class WebCollectTaskStatusSensor(_StatusSensor):
    """Waits until one or more tasks reach a state, by default Finished (contract.md, endpoint 13).

    Returns the last status record; with ``collection_task_ids``, a list of the tasks' last status records.
    ``timeout``, ``poke_interval``, ``mode`` and ``soft_fail`` work as in all Airflow sensors.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param collection_task_ids: several tasks instead of one, by id or name. (templated)
    :param collection_task_names: names of tasks by id, for logs and errors; they take precedence over the
        names in the file. (templated)
    :param wait_for: wait for ``all`` tasks (default), or for ``any`` of them.
    :param target_states: states that end the wait with success; by default Finished.
    :param failure_states: states that fail the task without retries; by default Stopped.
    :param after: the status before the run to wait for, so that an earlier run's Finished does not count: the
        result of ``WebCollectStartSubTasksOperator``, or a list of such results. The sensor does not wait for
        tasks without a result in the list; it logs the names of these tasks. With ``"now"``, the sensor
        queries the status when it starts; it then waits for the active run or, if there is none, for the next
        run, whenever that begins. None (default) for any run. (templated)
    :param status_delay: seconds for which the service may still show the previous run, 90 by default. After
        this time, a final state counts without further evidence.
    :param missing_timeout: seconds after which the sensor fails if a task is missing from the responses or is
        Unexecuted; 600 by default.
    :param no_new_rows_for: seconds or a ``timedelta`` after which the sensor fails if a run is Extracting and
        has no new rows (``currentTotalExtractCount``); None (default) for no limit. To be notified without a
        failure, use ``soft_fail`` and an ``on_skipped_callback``. A restart of the triggerer or a retry
        resets this time. In reschedule mode, every poke would reset it, so the argument is refused there.
    :param deferrable: wait in the triggerer; by default the value of ``[operators] default_deferrable``.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: for a failure state, a missing task or a run without new rows, and if a
        retry cannot help.
    :raises AirflowSensorTimeout: after ``timeout`` seconds.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = (
        "collection_task_id",
        "collection_task_ids",
        "collection_task_names",
        "after",
        "webcollect_conn_id",
        "timeout",
    )
    template_fields_renderers = dict.fromkeys(
        ("collection_task_ids", "collection_task_names", "after"), "json"
    )
    _states = TaskState
    _trigger = WebCollectTaskStatusTrigger

    def __init__(
        self,
        *,
        collection_task_id: str | None = None,
        collection_task_ids: Sequence[str] | None = None,
        collection_task_names: Mapping[str, str] | None = None,
        wait_for: Literal["all", "any"] = "all",
        target_states: Sequence[str] = (TaskState.FINISHED,),
        failure_states: Sequence[str] = (TaskState.STOPPED,),
        after: Mapping[str, Any] | Sequence[Any] | Literal["now"] | None = None,
        status_delay: float = STATUS_DELAY,
        no_new_rows_for: float | datetime.timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(target_states=target_states, failure_states=failure_states, **kwargs)
        self.collection_task_id = collection_task_id
        self.collection_task_ids = collection_task_ids
        self.collection_task_names = collection_task_names
        self.wait_for = wait_for
        self.after = after
        self.status_delay = status_delay
        self.no_new_rows_for = no_new_rows_for
        self._check_literals()

    def _ids(self) -> tuple[str, ...]:
        return one_or_many(self.collection_task_id, self.collection_task_ids)

    def _limits(self) -> dict[str, Any]:
        limit = self.no_new_rows_for
        if limit is not None:
            self._refuse_without_memory("no_new_rows_for")
            limit = arguments.seconds("no_new_rows_for", limit, may_be_timedelta=True)
        return {
            "how_many": arguments.one_of("wait_for", self.wait_for, ("all", "any")),
            "status_delay": arguments.seconds("status_delay", self.status_delay, may_be_zero=True),
            "no_new_rows_for": limit,
            **super()._limits(),
        }

    def _refuse_without_memory(self, name: str) -> None:
        if self.reschedule and not self.deferrable:
            rule = "in reschedule mode, a poke knows nothing about earlier ones: use deferrable=True"
            raise InvalidArgument(name, getattr(self, name), rule)

    def _condition(self) -> TaskStates:
        if self.after == NOW:
            self._refuse_without_memory("after")
        ids = self._ids()
        check_names(self.collection_task_names)
        after = {} if self.after in (None, NOW) else _baselines(self.after, ids)
        return TaskStates(
            # for a task without a start, the state of an earlier run would end the wait
            task_ids=tuple(task_id for task_id in ids if task_id in after) if after else ids,
            after=after,
            **self._limits(),
        )

    def _checked(self) -> Condition:
        condition = super()._checked()
        ids = self._ids()
        names = described_tasks(ids, self.collection_task_names)
        if left_out := [names.get(task_id, task_id) for task_id in ids if task_id not in condition.keys]:
            self.log.warning("Not waiting for tasks without a start in `after`: %s", ", ".join(left_out))
        return msgspec.structs.replace(condition, names=names, hint=hint_at_names(condition.keys))

    def _with_baseline(self, condition: Condition) -> Condition | None:
        if self.after != NOW:
            return condition

        def ask() -> dict[str, Baseline]:
            found = baselines(self.webcollect_conn_id, condition.keys)
            return {task_id: readable(status) for task_id, status in found.items()}

        before = result_or_end(ask, self.poke_interval, self.log)
        if isinstance(before, Ended):
            raise AirflowFailException(before.reason)
        if before is None:
            return None
        return msgspec.structs.replace(condition, after=before, was_started=False)

    def _result(self, records: Records) -> Any:
        return next(iter(records), None) if self.collection_task_ids is None else records


def _starts(decoded: Any) -> Iterator[Any]:
    """Yield the result of each start; a start of several tasks has a list of results."""
    for result in map(arguments.decoded, [decoded] if isinstance(decoded, Mapping) else decoded):
        if isinstance(result, Mapping | None):
            yield result
        else:
            yield from result


def _baselines(after: Any, task_ids: Collection[str]) -> dict[str, Baseline]:
    """Return the baselines by task.

    :param after: a result of the start operator, or a list of such results.
    :raises InvalidArgument: if it is neither, or has no start of a task in ``task_ids``.
    """
    starts: dict[str, Baseline] = {}
    decoded = arguments.decoded(after)
    try:
        for start in _starts(decoded):
            if start is None:
                continue  # the result of a start that was skipped
            task_id = arguments.text("collection_task_id", start["collection_task_id"])
            # every field of a baseline has a default, so an empty mapping would be accepted
            starts[task_id.lower()] = msgspec.convert(start["after"] or None, Baseline)
    except (KeyError, TypeError, InvalidArgument, msgspec.ValidationError):
        starts = {}
    if not starts:
        # without a baseline, the final state of any run would end the wait
        rule = "it must be a result of WebCollectStartSubTasksOperator, a list of such results, or 'now'"
        raise InvalidArgument("after", after, rule)
    ours = {task_id: starts[task_id.lower()] for task_id in task_ids if task_id.lower() in starts}
    if not ours:
        raise InvalidArgument(
            "after", after, f"it must have the start of a task of this sensor: {', '.join(task_ids)}"
        )
    return ours


class WebCollectSubTaskStatusSensor(_StatusSensor):
    """Waits until the latest batch's sub-tasks reach a state, by default Finished (contract.md, endpoint 14).

    Logs the number of sub-tasks in each state (``37/50 Finished, 3 Extracting``) when it changes. Returns a
    list with the last record of each sub-task of the batch. ``timeout``, ``poke_interval``, ``mode`` and
    ``soft_fail`` work as in all Airflow sensors.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param sub_task_ids: ids of sub-tasks; None (default) for all sub-tasks of the batch. (templated)
    :param target_states: states that end the wait with success; by default Finished.
    :param failure_states: states that fail the task without retries; by default Stopped.
    :param missing_timeout: seconds after which the sensor fails if a sub-task is missing or the batch is
        empty; 600 by default.
    :param deferrable: wait in the triggerer; by default the value of ``[operators] default_deferrable``.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: for a failure state or a missing sub-task, and if a retry cannot help.
    :raises AirflowSensorTimeout: after ``timeout`` seconds.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = ("collection_task_id", "sub_task_ids", "webcollect_conn_id", "timeout")
    template_fields_renderers = {"sub_task_ids": "json"}  # noqa: RUF012  # as in Airflow
    _states = SubTaskState
    _trigger = WebCollectSubTaskStatusTrigger

    def __init__(
        self,
        *,
        collection_task_id: str,
        sub_task_ids: Sequence[str] | None = None,
        target_states: Sequence[str] = (SubTaskState.FINISHED,),
        failure_states: Sequence[str] = (SubTaskState.STOPPED,),
        **kwargs: Any,
    ) -> None:
        super().__init__(target_states=target_states, failure_states=failure_states, **kwargs)
        self.collection_task_id = collection_task_id
        self.sub_task_ids = sub_task_ids
        self._check_literals()

    def _condition(self) -> SubTaskStates:
        ids = None
        if self.sub_task_ids is not None:
            ids = tuple(dict.fromkeys(arguments.texts("sub_task_ids", arguments.decoded(self.sub_task_ids))))
        (task_id,) = self._ids()
        return SubTaskStates(task_id=task_id, subtask_ids=ids, **self._limits())


class WebCollectCapacitySensor(WaitSensor):
    """Waits until the account has capacity for more runs (contract.md, endpoint 16).

    All waiting sensors succeed when there is capacity. Use an Airflow pool to keep their DAGs from starting
    runs all at once.

    Returns the last counts: ``{"extracting_count", "waiting_count", "finished_count",
    "waiting_sub_task_count", "executing_sub_task_count"}``.

    ``timeout``, ``poke_interval``, ``mode`` and ``soft_fail`` work as in all Airflow sensors.

    :param max_active_tasks: wait until fewer than this number of the account's tasks are Extracting or
        Waiting; None (default) for no limit. (templated)
    :param max_active_sub_tasks: the same limit for sub-tasks. At least one limit is required; if both are
        given, both apply. (templated)
    :param deferrable: wait in the triggerer; by default the value of ``[operators] default_deferrable``.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a plan below Enterprise.
    :raises AirflowSensorTimeout: after ``timeout`` seconds.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = (
        "max_active_tasks",
        "max_active_sub_tasks",
        "webcollect_conn_id",
        "timeout",
    )
    _trigger = WebCollectCapacityTrigger

    def __init__(
        self,
        *,
        max_active_tasks: int | str | None = None,
        max_active_sub_tasks: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_active_tasks = max_active_tasks
        self.max_active_sub_tasks = max_active_sub_tasks
        self._check_literals()

    def _condition(self) -> Capacity:
        limits = {
            name: arguments.integer(name, limit, 1)
            for name in ("max_active_tasks", "max_active_sub_tasks")
            if (limit := getattr(self, name)) is not None
        }
        if not limits:
            rule = "`max_active_tasks`, `max_active_sub_tasks` or both must be given"
            raise InvalidArgument("max_active_tasks", None, rule)
        return Capacity(**limits)

    def _result(self, records: Records) -> dict[str, Any]:
        return records[0]
