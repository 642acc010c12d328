"""Sensors on the states of tasks and sub-tasks: poking, rescheduling or deferred, with the same decisions."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.base import airflow_errors, check_now
from airflow_provider_webcollect.service import checks, paging
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError
from airflow_provider_webcollect.service.states import SubTaskState, TaskState
from airflow_provider_webcollect.service.waiting import (
    MISSING_TIMEOUT,
    SETTLE,
    Baseline,
    Outcome,
    SubTaskWait,
    TaskWait,
    Verdict,
    as_json,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.triggers.webcollect import _StatusTrigger

Records = list[dict[str, Any]]


class _StatusSensor(BaseSensorOperator):
    """What both sensors share.

    A target state ends the wait well, a failure state fails the task without retries. XCom gets the last
    record.
    """

    ui_color = "#d7ecdf"

    def __init__(
        self,
        *,
        target_states: Sequence[str],
        failure_states: Sequence[str],
        missing_timeout: float = MISSING_TIMEOUT,
        deferrable: bool | None = None,
        webcollect_conn_id: str = WebCollectHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target_states = target_states
        self.failure_states = failure_states
        self.missing_timeout = missing_timeout
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False)
            if deferrable is None
            else deferrable
        )
        self.webcollect_conn_id = webcollect_conn_id
        self._said = ""
        self._began = 0.0

    def execute(self, context: Context) -> Any:
        """Wait, in the way that was asked for."""
        self._began = _began(self, context)
        with airflow_errors():
            self._wait()
        if self.deferrable:
            self._defer()
        return super().execute(context)

    def _defer(self) -> NoReturn:
        self.defer(
            trigger=self._trigger(),
            method_name="execute_complete",
            timeout=datetime.timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        with airflow_errors():
            verdict, records = self._look(WebCollectHook(self.webcollect_conn_id), time.time() - self._began)
        if verdict.reason != self._said:
            self._said = verdict.reason
            self.log.info("%s", verdict.reason)
        if verdict.outcome is Outcome.FAILED:
            raise AirflowFailException(verdict.reason)
        return PokeReturnValue(verdict.outcome is Outcome.DONE, self._xcom(records))

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Take the trigger's word for how the wait ended; without a word, it has not ended well."""
        match event:
            case {"outcome": "done", "reason": reason, "records": records}:
                self.log.info("%s", reason)
                return self._xcom(records)
            case {"outcome": "failed", "reason": reason} | {
                "outcome": "error",
                "reason": reason,
                "permanent": True,
            }:
                raise AirflowFailException(reason)
            case {"outcome": "error", "reason": reason}:
                raise WebCollectError(reason)
        raise WebCollectError(f"the trigger ended without an outcome: {event!r}")

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after the wait in the triggerer, with a timeout and ``never_fail`` as when poking.

        Airflow before 3.3 takes a timeout for an error that may be retried, and does not know ``never_fail``
        here.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSkipException:
            raise
        except Exception as error:
            timed_out = next_method == "__fail__" and "timeout" in str((next_kwargs or {}).get("error"))
            if self.soft_fail if timed_out else self.never_fail:
                raise AirflowSkipException(str(error)) from error
            if timed_out:
                raise AirflowSensorTimeout(str(error)) from error
            raise

    def _wait(self) -> TaskWait | SubTaskWait:
        raise NotImplementedError

    def _look(self, hook: WebCollectHook, waited: float) -> tuple[Verdict, Records]:
        raise NotImplementedError

    def _trigger(self) -> _StatusTrigger:
        raise NotImplementedError

    def _xcom(self, records: Records) -> Any:
        raise NotImplementedError


class WebCollectTaskStatusSensor(_StatusSensor):
    """Waits until one or many tasks reach a state, by default Finished (contract, endpoint 13).

    Returns the last status record, or the list of them for ``collection_task_ids``.

    :param collection_task_id: the service's task. (templated)
    :param collection_task_ids: many tasks instead of one. (templated)
    :param wait_for: ``all`` of them, or ``any``.
    :param target_states: states that end the wait well.
    :param failure_states: states that fail it.
    :param after: what was seen before the run that is waited for: the result of
        ``WebCollectStartSubTasksOperator`` (or a list of them), so that an earlier run's Finished does not
        pass for this one's. (templated)
    :param settle: seconds after which a final state counts whatever ``after`` says, for services that count
        runs otherwise.
    :param missing_timeout: seconds after which a task that is missing from the answers, or Unexecuted, fails
        the wait.
    :param deferrable: wait in the triggerer; by default as ``[operators] default_deferrable`` says.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    """

    template_fields: Sequence[str] = (
        "collection_task_id",
        "collection_task_ids",
        "after",
        "webcollect_conn_id",
    )
    template_fields_renderers = {"collection_task_ids": "json", "after": "json"}  # noqa: RUF012  # as in Airflow

    def __init__(
        self,
        *,
        collection_task_id: str | None = None,
        collection_task_ids: Sequence[str] | None = None,
        wait_for: Literal["all", "any"] = "all",
        target_states: Sequence[str] = (TaskState.FINISHED,),
        failure_states: Sequence[str] = (TaskState.STOPPED,),
        after: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        settle: float = SETTLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(target_states=target_states, failure_states=failure_states, **kwargs)
        self.collection_task_id = collection_task_id
        self.collection_task_ids = collection_task_ids
        self.wait_for = wait_for
        self.after = after
        self.settle = settle
        check_now(self, self._wait)

    def _wait(self) -> TaskWait:
        if (self.collection_task_id is None) == (self.collection_task_ids is None):
            raise InvalidArgument(
                "collection_task_id",
                self.collection_task_id,
                "either `collection_task_id` or `collection_task_ids` must be given",
            )
        if self.collection_task_ids is None:
            ids = [checks.text("collection_task_id", self.collection_task_id)]
        else:
            ids = checks.texts("collection_task_ids", self.collection_task_ids)
        if self.wait_for not in {"all", "any"}:
            raise InvalidArgument("wait_for", self.wait_for, "it must be one of all, any")
        return TaskWait(
            task_ids=tuple(dict.fromkeys(ids)),
            how_many=self.wait_for,
            target_states=tuple(checks.texts("target_states", self.target_states)),
            failure_states=tuple(checks.texts("failure_states", self.failure_states, may_be_empty=True)),
            after=_baselines(self.after),
            settle=self.settle,
            missing_timeout=self.missing_timeout,
        )

    def _look(self, hook: WebCollectHook, waited: float) -> tuple[Verdict, Records]:
        wait = self._wait()
        statuses = hook.client.run(
            paging.all_statuses(hook.client.wire, wait.task_ids, hook.connection.status_batch_size)
        )
        records = [statuses[task_id].as_dict() for task_id in wait.task_ids if task_id in statuses]
        return wait.judge(statuses, waited), records

    def _trigger(self) -> _StatusTrigger:
        from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskStatusTrigger

        return WebCollectTaskStatusTrigger(
            wait=as_json(self._wait()),
            poke_interval=self.poke_interval,
            began=self._began,
            webcollect_conn_id=self.webcollect_conn_id,
        )

    def _xcom(self, records: Records) -> Any:
        if self.collection_task_ids is not None:
            return records
        return records[0] if records else None


class WebCollectSubTaskStatusSensor(_StatusSensor):
    """Waits until sub-tasks of a task's latest batch reach a state, by default Finished (contract, endpoint
    14).

    The log tells the counts (``37/50 Finished, 3 Extracting``) when they change. Returns the last records of
    all sub-tasks of the batch.

    :param collection_task_id: the service's task. (templated)
    :param sub_task_ids: the sub-tasks; None for all of the batch. (templated)
    :param target_states: states that end the wait well.
    :param failure_states: states that fail it.
    :param missing_timeout: seconds after which a missing sub-task, or an empty batch, fails the wait.
    :param deferrable: wait in the triggerer; by default as ``[operators] default_deferrable`` says.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    """

    template_fields: Sequence[str] = ("collection_task_id", "sub_task_ids", "webcollect_conn_id")
    template_fields_renderers = {"sub_task_ids": "json"}  # noqa: RUF012  # as in Airflow

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
        check_now(self, self._wait)

    def _wait(self) -> SubTaskWait:
        ids = None if self.sub_task_ids is None else checks.texts("sub_task_ids", self.sub_task_ids)
        return SubTaskWait(
            task_id=checks.text("collection_task_id", self.collection_task_id),
            subtask_ids=None if ids is None else tuple(dict.fromkeys(ids)),
            target_states=tuple(checks.texts("target_states", self.target_states)),
            failure_states=tuple(checks.texts("failure_states", self.failure_states, may_be_empty=True)),
            missing_timeout=self.missing_timeout,
        )

    def _look(self, hook: WebCollectHook, waited: float) -> tuple[Verdict, Records]:
        wait = self._wait()
        subtasks = hook.get_all_subtasks(wait.task_id)
        return wait.judge(subtasks, waited), [subtask.as_dict() for subtask in subtasks]

    def _trigger(self) -> _StatusTrigger:
        from airflow_provider_webcollect.triggers.webcollect import WebCollectSubTaskStatusTrigger

        return WebCollectSubTaskStatusTrigger(
            wait=as_json(self._wait()),
            poke_interval=self.poke_interval,
            began=self._began,
            webcollect_conn_id=self.webcollect_conn_id,
        )

    def _xcom(self, records: Records) -> Records:
        return records


def _baselines(after: Any) -> dict[str, Baseline]:
    """Read ``after``: what the start operator returned, once or as a list."""
    starts = [] if after is None else [after] if isinstance(after, Mapping) else after
    try:
        return {start["collection_task_id"]: msgspec.convert(start["after"], Baseline) for start in starts}
    except (KeyError, TypeError, msgspec.ValidationError):
        raise InvalidArgument(
            "after", after, "it must be what WebCollectStartSubTasksOperator returned, or a list of that"
        ) from None


def _began(sensor: BaseSensorOperator, context: Context) -> float:
    """Return the Unix time at which the wait began; in reschedule mode that is the first look's."""
    began = None
    if sensor.reschedule:
        ti = context["ti"]
        if AIRFLOW_V_3_0_PLUS:
            began = ti.get_first_reschedule_date(context)
        else:
            from airflow.sensors.base import _orig_start_date

            began = _orig_start_date(
                dag_id=ti.dag_id,
                task_id=ti.task_id,
                run_id=ti.run_id,
                map_index=ti.map_index,
                try_number=(ti.max_tries or 0) - (sensor.retries or 0) + 1,
            )
    return began.timestamp() if began else time.time()
