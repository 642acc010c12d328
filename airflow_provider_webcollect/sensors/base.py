"""What all sensors share: polling from a worker or waiting in the triggerer, with the same decisions."""

from __future__ import annotations

import contextlib
import datetime
import time
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    BaseSensorOperator,
    PokeReturnValue,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.common.errors import airflow_errors
from airflow_provider_webcollect.common.operator import ProviderOperator
from airflow_provider_webcollect.common.waits import default_deferrable, end_of_event, poll, result_of
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.pauses import Notice
from airflow_provider_webcollect.waiting.wait import Wait

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.triggers.webcollect import WaitTrigger
    from airflow_provider_webcollect.waiting.outcome import Records
    from airflow_provider_webcollect.waiting.wait import Condition


class WaitSensor(ProviderOperator, BaseSensorOperator):
    """Base of the sensors: waits for a state of the service.

    :param deferrable: wait in the triggerer; by default as ``[operators] default_deferrable`` says.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :param retry_policy: Airflow's argument, available from Airflow 3.3; by default a retry waits at least as
        long as the service requests (``Retry-After``), see
        :class:`~airflow_provider_webcollect.common.operator.ProviderOperator`.
    """

    ui_color = "#d7ecdf"

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
        self._waited_for: Condition | None = None
        self._wait: Wait | None = None

    def execute(self, context: Context) -> Any:
        """Wait: poke, reschedule or defer."""
        try:
            with airflow_errors():
                # `dag.test()` reuses the operator for further attempts and pokes
                self._waited_for, self._wait = self._checked(), None
                # errors of the connection are left to the wait, which handles them
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
        return super().execute(context)

    def _checked(self) -> Condition:
        """Check the rendered arguments and return the condition to wait for."""
        return self._condition()

    def _begun(self, condition: Condition) -> Condition | None:
        """Return the condition with its initial state; None if the wait cannot begin yet.

        :raises AirflowFailException: if the service refuses to give the initial state.
        """
        return condition

    def _store_link(self, context: Context) -> None:
        """Store the link to the service's page of the task; by default there is none."""

    def _defer(self, condition: Condition) -> NoReturn:
        now = time.monotonic()
        notice, waited = Notice(self.log), 0.0
        try:
            while (begun := self._begun(condition)) is None:
                pause = min(self.poke_interval, self.timeout - waited)
                notice.give(pause, "The first status query is repeated in %.0f s.", pause)
                time.sleep(pause)
                waited = time.monotonic() - now
                if waited >= self.timeout:
                    raise self._timed_out()
        except AirflowFailException as refused:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(refused)) from refused
            raise
        limit = datetime.timedelta(seconds=self.timeout - waited)
        self.defer(
            trigger=self._trigger_class()(
                wait=begun.as_json(),
                poke_interval=self.poke_interval,
                webcollect_conn_id=self.webcollect_conn_id,
            ),
            method_name="execute_complete",
            # Airflow 3 does not count an execution timeout while a task is deferred
            timeout=min(limit, self.execution_timeout or limit),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once.

        :raises AirflowFailException: for a failure state, and if a retry cannot help.
        """
        if self._waited_for is None:
            # called without `execute`, for example by unit tests of DAGs
            with airflow_errors():
                self._waited_for = self._checked()
        if self._wait is None:
            begun = self._begun(self._waited_for)
            if begun is None:
                return PokeReturnValue(False)
            self._wait = Wait(begun, _began(self, context), self.log)
        ended = poll(self.webcollect_conn_id, self._wait, self.log)
        return PokeReturnValue(ended is not None, ended and self._result(result_of(ended)))

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Return the result from the trigger's event; an event without an outcome is an error."""
        ended = end_of_event(event)
        self.log.info("%s", ended.reason)
        return self._result(result_of(ended))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after the wait in the triggerer, with timeouts and ``never_fail`` as when poking.

        Airflow before 3.3 retries after a timeout, and ignores ``never_fail`` here.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except Exception as error:
            # Airflow's `soft_fail` skips for any failure of a trigger; when poking, errors are retried
            skipped = error.__cause__ if isinstance(error, AirflowSkipException) else None
            ended = skipped or error
            if _is_timeout(ended):
                raise self._timed_out() from ended
            if self.never_fail or (self.soft_fail and isinstance(ended, AirflowFailException)):
                raise AirflowSkipException(str(ended)) from ended
            raise ended from ended.__cause__

    def _timed_out(self) -> BaseException:
        if self.execution_timeout and self.execution_timeout.total_seconds() < self.timeout:
            return AirflowTaskTimeout(f"not over after the execution timeout, {self.execution_timeout}")
        reason = f"the wait was not over after {self.timeout:.0f} s"
        return AirflowSkipException(reason) if self.soft_fail else AirflowSensorTimeout(reason)

    def _condition(self) -> Condition:
        """Check the arguments and return the condition that they define."""
        raise NotImplementedError

    def _trigger_class(self) -> type[WaitTrigger]:
        """Return the trigger's class, which is not imported while DAGs are parsed."""
        raise NotImplementedError

    def _result(self, records: Records) -> Any:
        """Return the task's result from the last records."""
        return records


def _is_timeout(error: BaseException) -> bool:
    """Return whether Airflow has ended the deferral because it timed out."""
    if AIRFLOW_V_3_0_PLUS:
        return isinstance(error, AirflowSensorTimeout)
    # Airflow 2 has no error class for it, only the message of its scheduler (`check_trigger_timeouts`)
    return str(error) == "Trigger/execution timeout"


def _began(sensor: BaseSensorOperator, context: Context) -> float:
    """Return the Unix time at which the wait began; in reschedule mode, the time of the first poke."""
    began = None
    if sensor.reschedule:
        ti = context["ti"]
        began = ti.get_first_reschedule_date(context) if AIRFLOW_V_3_0_PLUS else _first_poke(ti)
    return began.timestamp() if began else time.time()


def _first_poke(ti: Any) -> datetime.datetime | None:
    """Return when Airflow 2 first poked in this attempt; None if it has not yet.

    The task instance's ``start_date`` is that of the current poke, since the scheduler queues each poke.
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
