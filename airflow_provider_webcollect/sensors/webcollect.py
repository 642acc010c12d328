"""Sensors on the states of tasks and sub-tasks: poking, rescheduling or deferred, with the same decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.common.arguments import check_now, kept
from airflow_provider_webcollect.common.waits import baselines, patiently
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.links import WebCollectTaskLink, store_task_link
from airflow_provider_webcollect.sensors.base import WaitSensor
from airflow_provider_webcollect.sensors.capacity import (
    WebCollectCapacitySensor as WebCollectCapacitySensor,  # a public name of this module
)
from airflow_provider_webcollect.sensors.from_trigger import NotFromTrigger, start_trigger_args
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import SubTaskState, TaskState
from airflow_provider_webcollect.waiting.arguments import (
    NOW,
    one_or_all,
    refuse_none,
    subtask_states,
    task_states,
)
from airflow_provider_webcollect.waiting.baseline import SETTLE
from airflow_provider_webcollect.waiting.conditions import MISSING_TIMEOUT, SubTaskStates, TaskStates
from airflow_provider_webcollect.waiting.outcome import Ended, Outcome, Records

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.triggers.webcollect import (
        WebCollectSubTaskStatusTrigger,
        WebCollectTaskStatusTrigger,
    )
    from airflow_provider_webcollect.waiting.wait import Condition

END_TRIGGERS = "airflow_provider_webcollect.triggers.end_from_trigger"


class _StatusSensor(WaitSensor):
    """Base of both status sensors.

    A target state ends the wait with success; a failure state fails the task without retries.
    """

    operator_extra_links = (WebCollectTaskLink(),)
    #: The names of the arguments that define the condition.
    _names: Sequence[str]
    #: The path of the trigger's class that runs the whole wait.
    _end_trigger: str

    collection_task_id: str | None

    def __init__(
        self,
        *,
        target_states: Sequence[str],
        failure_states: Sequence[str],
        missing_timeout: float = MISSING_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target_states = kept(target_states)
        self.failure_states = kept(failure_states)
        self.missing_timeout = missing_timeout
        self._given: tuple[str, ...] = ()
        self._why_from_worker = ""

    def _check(self) -> None:
        """Check the literal arguments, and store which were given."""
        check_now(self, self._condition)
        names = ("webcollect_conn_id", *self._names)
        self._given = tuple(name for name in names if getattr(self, name) is not None)

    def _start_from_trigger(self) -> None:
        """Let Airflow start the wait in the triggerer; if it cannot, the task is deferred by a worker."""
        self.deferrable = True
        try:
            self.start_trigger_args = start_trigger_args(self, self._end_trigger, self._names)
        except NotFromTrigger as why:
            self._why_from_worker = str(why)
        else:
            self.start_from_trigger = True

    def execute(self, context: Context) -> Any:
        """Wait: poke, reschedule or defer."""
        if self._why_from_worker:
            self.log.info("A worker begins this wait, and then defers it: %s.", self._why_from_worker)
        return super().execute(context)

    def _checked(self) -> Condition:
        refuse_none({name: getattr(self, name) for name in self._given})
        return super()._checked()

    def _store_link(self, context: Context) -> None:
        store_task_link(context, WebCollectHook(self.webcollect_conn_id), self.collection_task_id)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the wait in the triggerer, or begin a wait that only a worker can begin."""
        match next_kwargs:
            case {"event": {"outcome": Outcome.NEEDS_WORKER, "reason": str(reason)}}:
                self._why_from_worker = reason
                return self.execute(context)
            case {"event": {"outcome": Outcome.INVALID_ARGUMENT, "reason": reason}}:
                # `soft_fail` and `never_fail` do not apply to wrong arguments
                raise AirflowFailException(reason)
        return super().resume_execution(next_method, next_kwargs, context)

    @property
    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}


class WebCollectTaskStatusSensor(_StatusSensor):
    """Waits until one or more tasks reach a state, by default Finished (contract.md, endpoint 13).

    Returns the last status record, or the list of them for ``collection_task_ids``. ``timeout``,
    ``poke_interval``, ``mode`` and ``soft_fail`` work as in all Airflow sensors.

    :param collection_task_id: the service's task. (templated)
    :param collection_task_ids: several tasks instead of one. (templated)
    :param wait_for: ``all`` tasks (default), or ``any``.
    :param target_states: states that end the wait with success; by default Finished.
    :param failure_states: states that fail the task without retries; by default Stopped.
    :param after: the status before the run to wait for, so Finished of an earlier run does not count: the
        result of ``WebCollectStartSubTasksOperator``, or a list of them. With ``"now"`` the sensor queries
        the status when it starts; it then waits for the active run or, if there is none, for the next one,
        whenever that begins. None (default) for any run. (templated)
    :param settle: seconds, 90 by default, for which the service may still show the previous run. After that,
        a final state counts without further evidence.
    :param missing_timeout: seconds, 600 by default, after which the sensor fails if a task is missing from
        the responses or is Unexecuted.
    :param deferrable: wait in the triggerer; by default as ``[operators] default_deferrable`` says.
    :param start_from_trigger: wait only in the triggerer, without a worker at the start and the end, on
        Airflow 3.3 and later; False by default. Where Airflow cannot do that, such as for mapped tasks, the
        task is deferred by a worker, and the log says why.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: for a failure state or a missing task, and if a retry cannot help.
    :raises AirflowSensorTimeout: after ``timeout`` seconds.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = (
        "collection_task_id",
        "collection_task_ids",
        "after",
        "webcollect_conn_id",
    )
    template_fields_renderers = {"collection_task_ids": "json", "after": "json"}  # noqa: RUF012  # as in Airflow
    _names = (
        "collection_task_id",
        "collection_task_ids",
        "wait_for",
        "target_states",
        "failure_states",
        "after",
        "settle",
        "missing_timeout",
    )
    _end_trigger = f"{END_TRIGGERS}.TaskStatusEndTrigger"

    def __init__(
        self,
        *,
        collection_task_id: str | None = None,
        collection_task_ids: Sequence[str] | None = None,
        wait_for: Literal["all", "any"] = "all",
        target_states: Sequence[str] = (TaskState.FINISHED,),
        failure_states: Sequence[str] = (TaskState.STOPPED,),
        after: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Literal["now"] | None = None,
        settle: float = SETTLE,
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(target_states=target_states, failure_states=failure_states, **kwargs)
        self.collection_task_id = collection_task_id
        self.collection_task_ids = collection_task_ids
        self.wait_for = wait_for
        self.after = after
        self.settle = settle
        self._check()
        if start_from_trigger:
            self._start_from_trigger()

    def _condition(self) -> TaskStates:
        if self.after == NOW and self.reschedule and not self.deferrable:
            raise InvalidArgument("after", NOW, "rescheduled, every poke is the first: use deferrable=True")
        return task_states(**self._arguments)

    def _begun(self, condition: Condition) -> Condition | None:
        if self.after != NOW:
            return condition
        before = patiently(lambda: baselines(self.webcollect_conn_id, condition.keys), self.log)
        if isinstance(before, Ended):
            raise AirflowFailException(before.reason)
        if before is None:
            return None
        return msgspec.structs.replace(condition, after=before, was_started=False)

    def _trigger_class(self) -> type[WebCollectTaskStatusTrigger]:
        from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskStatusTrigger

        return WebCollectTaskStatusTrigger

    def _result(self, records: Records) -> Any:
        return one_or_all(self.collection_task_ids, records)


class WebCollectSubTaskStatusSensor(_StatusSensor):
    """Waits until the latest batch's sub-tasks reach a state, by default Finished (contract.md, endpoint 14).

    Logs the counts (``37/50 Finished, 3 Extracting``) when they change. Returns the last records of all
    sub-tasks of the batch. ``timeout``, ``poke_interval``, ``mode`` and ``soft_fail`` work as in all Airflow
    sensors.

    :param collection_task_id: the service's task. (templated)
    :param sub_task_ids: the sub-tasks; None for all of the batch. (templated)
    :param target_states: states that end the wait with success; by default Finished.
    :param failure_states: states that fail the task without retries; by default Stopped.
    :param missing_timeout: seconds, 600 by default, after which the sensor fails if a sub-task is missing or
        the batch is empty.
    :param deferrable: wait in the triggerer; by default as ``[operators] default_deferrable`` says.
    :param start_from_trigger: wait only in the triggerer, without a worker at the start and the end, on
        Airflow 3.3 and later; False by default. Where Airflow cannot do that, such as for mapped tasks, the
        task is deferred by a worker, and the log says why.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: for a failure state or a missing sub-task, and if a retry cannot help.
    :raises AirflowSensorTimeout: after ``timeout`` seconds.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = ("collection_task_id", "sub_task_ids", "webcollect_conn_id")
    template_fields_renderers = {"sub_task_ids": "json"}  # noqa: RUF012  # as in Airflow
    _names = (
        "collection_task_id",
        "sub_task_ids",
        "target_states",
        "failure_states",
        "missing_timeout",
    )
    _end_trigger = f"{END_TRIGGERS}.SubTaskStatusEndTrigger"

    def __init__(
        self,
        *,
        collection_task_id: str,
        sub_task_ids: Sequence[str] | None = None,
        target_states: Sequence[str] = (SubTaskState.FINISHED,),
        failure_states: Sequence[str] = (SubTaskState.STOPPED,),
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(target_states=target_states, failure_states=failure_states, **kwargs)
        self.collection_task_id = collection_task_id
        self.sub_task_ids = sub_task_ids
        self._check()
        if start_from_trigger:
            self._start_from_trigger()

    def _condition(self) -> SubTaskStates:
        return subtask_states(**self._arguments)

    def _trigger_class(self) -> type[WebCollectSubTaskStatusTrigger]:
        from airflow_provider_webcollect.triggers.webcollect import WebCollectSubTaskStatusTrigger

        return WebCollectSubTaskStatusTrigger
