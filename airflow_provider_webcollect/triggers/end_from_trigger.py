"""Waits that run in the triggerer from beginning to end, on Airflow 3.3 and later.

They need no worker, with three exceptions: to fail a task that has retries without retrying it, to store a
result that other tasks are mapped over (in Airflow only a worker can do these), and to begin a wait whose
template of ``after`` renders to "now".
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XCOM_RETURN_KEY, XCom
from airflow.triggers.base import (
    BaseTrigger,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
    TriggerEvent,
)

from airflow_provider_webcollect import waits
from airflow_provider_webcollect.common import GRACE, NOW_NEEDS_WORKER, XCOM_PULL
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.triggers.webcollect import end_of
from airflow_provider_webcollect.waiting.arguments import (
    NOW,
    one_or_all,
    refuse_none,
    subtask_states,
    task_states,
)
from airflow_provider_webcollect.waiting.conditions import Condition, Ended, Outcome, Records

if TYPE_CHECKING:
    from collections.abc import Callable

    import jinja2
    from airflow.providers.common.compat.sdk import DAG, Context


#: Maximum difference in seconds between the clocks of the triggerer and the scheduler.
CLOCKS_DIFFER = 60.0


class _EndTrigger(BaseTrigger):
    """Base of the waits for tasks and for sub-tasks.

    :param timeout: seconds after which the wait fails.
    :param execution_timeout: seconds of the task's execution timeout, if it has one.
    :param soft_fail: skip the task if the wait fails.
    :param never_fail: also skip the task if any error ends the wait.
    :param arguments: the condition: those of the sensor's arguments that are not None. The triggerer renders
        those with the names of the sensor's template fields.
    """

    #: When Airflow will end the wait itself; set by the triggerer.
    timeout_after: datetime.datetime
    _condition: Callable[..., Condition]

    def __init__(
        self,
        *,
        webcollect_conn_id: str,
        poke_interval: float,
        timeout: float,
        soft_fail: bool,
        never_fail: bool,
        execution_timeout: float | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no annotations
        self.webcollect_conn_id = webcollect_conn_id
        self.poke_interval = poke_interval
        self.timeout = timeout
        self.execution_timeout = execution_timeout
        self.soft_fail = soft_fail
        self.never_fail = never_fail
        # Airflow renders attributes with the names of the sensor's template fields
        for name, value in arguments.items():
            setattr(self, name, value)
        self._names = tuple(arguments)

    @property
    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and the arguments; they hold no secret."""
        return f"{__name__}.{type(self).__name__}", {
            "webcollect_conn_id": self.webcollect_conn_id,
            "poke_interval": self.poke_interval,
            "timeout": self.timeout,
            "execution_timeout": self.execution_timeout,
            "soft_fail": self.soft_fail,
            "never_fail": self.never_fail,
            **self._arguments,
        }

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        """Return an environment that renders templates as a worker does."""
        from jinja2 import StrictUndefined

        environment: jinja2.Environment = super().get_template_env(dag)
        # by default an undefined name would render as an empty string here
        environment.undefined = StrictUndefined
        environment.add_extension("jinja2.ext.do")
        return environment

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render templates; return results of other tasks unchanged, since rendering could change strings."""
        if isinstance(content, dict) and XCOM_PULL in content:
            return context["ti"].xcom_pull(**content[XCOM_PULL])
        return super().render_template(content, context, jinja_env, seen_oids)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and end the task or pass it to a worker."""
        arguments = self._arguments
        if arguments.get("after") == NOW:
            yield TriggerEvent(Ended(outcome=Outcome.NEEDS_WORKER, reason=NOW_NEEDS_WORKER).as_event())
            return
        try:
            refuse_none({"webcollect_conn_id": self.webcollect_conn_id, **arguments})
            condition = self._condition(**arguments)
        except InvalidArgument as error:
            yield await self._fail(Ended(outcome=Outcome.INVALID_ARGUMENT, reason=str(error)))
            return
        ended = await self._wait(condition)
        if ended.outcome is Outcome.DONE:
            yield await self._succeed(ended)
        else:
            yield await self._fail(ended)

    async def _wait(self, condition: Condition) -> Ended:
        return await end_of(
            condition,
            began=self._began(),
            timeout=self.timeout,
            poke_interval=self.poke_interval,
            conn_id=self.webcollect_conn_id,
            log=self.log,
        )

    async def _fail(self, ended: Ended) -> TriggerEvent:
        """Return the event that fails or skips the task, or that passes it to a worker."""
        match ended.outcome:
            case Outcome.INVALID_ARGUMENT:
                is_skipped = False
            case Outcome.TIMEOUT:
                is_skipped = self.soft_fail
            case Outcome.ERROR if not ended.permanent:
                is_skipped = self.never_fail
            case _:
                is_skipped = self.soft_fail or self.never_fail
        if is_skipped:
            self.log.warning("Skipping the task: %s", ended.reason)
        else:
            self.log.error("%s", ended.reason)
        # the last lines before a trigger ends can be lost: the triggerer may notice the end first
        await asyncio.sleep(waits.TIMING.log_seconds)
        if is_skipped:
            return TaskSkippedEvent()
        task: Any = self.task
        may_be_retried = ended.outcome is Outcome.ERROR and not ended.permanent
        return TriggerEvent(ended.as_event()) if task.retries and not may_be_retried else TaskFailedEvent()

    async def _succeed(self, ended: Ended) -> TriggerEvent:
        """Store the result, and return the event that ends the task with success or passes it to a worker."""
        instance: Any = self.task_instance
        if next(instance.task.iter_mapped_dependants(), None) is not None:
            return TriggerEvent(ended.as_event())
        result = self._result(ended.records or [])
        if instance.task.do_xcom_push and result is not None:
            # a result in the end event itself would be stored as a string of JSON
            await XCom.aset(
                XCOM_RETURN_KEY,
                result,
                dag_id=instance.dag_id,
                task_id=instance.task_id,
                run_id=instance.run_id,
                map_index=instance.map_index,
            )
        return TaskSuccessEvent()

    def _began(self) -> float:
        """Return when Airflow began the wait; the triggerer knows only when Airflow will end it."""
        task: Any = self.task
        now, ends = time.time(), self.timeout_after.timestamp()
        # Two candidates: the timeout stored at the start, wrong if a cluster policy has changed it since, and
        # the DAG's current one, wrong if the DAG was edited. A beginning in the future is wrong.
        limits = (self.execution_timeout, task.execution_timeout and task.execution_timeout.total_seconds())
        timeout = self.timeout + GRACE.total_seconds()
        begins = [ends - min(limit or timeout, timeout) for limit in limits]
        return min(now, max((begin for begin in begins if begin <= now + CLOCKS_DIFFER), default=now))

    def _result(self, records: Records) -> Any:
        return records


class TaskStatusEndTrigger(_EndTrigger):
    """Runs the whole wait of a ``WebCollectTaskStatusSensor``."""

    _condition = staticmethod(task_states)

    def _result(self, records: Records) -> Any:
        return one_or_all(self._arguments.get("collection_task_ids"), records)


class SubTaskStatusEndTrigger(_EndTrigger):
    """Runs the whole wait of a ``WebCollectSubTaskStatusSensor``."""

    _condition = staticmethod(subtask_states)
