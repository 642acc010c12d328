"""The whole wait of a sensor in the triggerer, to the end of its task, on Airflow 3.3 and later.

No worker has a part in it, with three exceptions. Airflow does two things rightly only there: failing a task
that has retries without a retry, and handing on a result that other tasks are mapped over. And if ``after``
turns out to be "now", a worker begins the wait anew.
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

from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.triggers.asked import (
    NOW,
    NOW_IS_FOR_A_WORKER,
    XCOM_PULL,
    check_given,
    subtask_wait,
    task_result,
    task_wait,
)
from airflow_provider_webcollect.triggers.webcollect import (
    WebCollectSubTaskStatusTrigger,
    WebCollectTaskStatusTrigger,
    _StatusTrigger,
)
from airflow_provider_webcollect.waiting.conditions import as_json

if TYPE_CHECKING:
    from collections.abc import Callable

    import jinja2
    from airflow.providers.common.compat.sdk import DAG, Context

    from airflow_provider_webcollect.waiting.conditions import SubTaskWait, TaskWait

Records = list[dict[str, Any]]

#: For the triggerer to take the last lines of a log.
LOG_SECONDS = 1.0


class _WholeWait(BaseTrigger):
    """What both sensors' whole waits share.

    :param timeout: seconds after which the wait has failed.
    :param soft_fail: skip the task if the wait fails.
    :param never_fail: skip the task also if the wait is ended by any error.
    :param asked: those of the sensor's arguments that were given to say what is waited for. The triggerer
        renders those that are named like template fields of the sensor.
    """

    #: When Airflow is going to end the wait itself; the triggerer sets it.
    timeout_after: datetime.datetime
    _trigger: type[_StatusTrigger]
    _wait: Callable[..., TaskWait | SubTaskWait]

    def __init__(
        self,
        *,
        webcollect_conn_id: str,
        poke_interval: float,
        timeout: float,
        soft_fail: bool,
        never_fail: bool,
        **asked: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no annotations
        self.webcollect_conn_id = webcollect_conn_id
        self.poke_interval = poke_interval
        self.timeout = timeout
        self.soft_fail = soft_fail
        self.never_fail = never_fail
        vars(self).update(asked)
        self._asked_names = tuple(asked)

    @property
    def _asked(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._asked_names}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and the arguments; they hold no secret."""
        return f"{__name__}.{type(self).__name__}", {
            "webcollect_conn_id": self.webcollect_conn_id,
            "poke_interval": self.poke_interval,
            "timeout": self.timeout,
            "soft_fail": self.soft_fail,
            "never_fail": self.never_fail,
            **self._asked,
        }

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        """Return an environment in which templates are rendered as in a worker's."""
        from jinja2 import StrictUndefined

        environment: jinja2.Environment = super().get_template_env(dag)
        # by default what a template names and is not there would be an empty text here
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
        """Render templates, and get a result of another task as it is: as a text it could be another one."""
        if isinstance(content, dict) and XCOM_PULL in content:
            return context["ti"].xcom_pull(**content[XCOM_PULL])
        return super().render_template(content, context, jinja_env, seen_oids)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and end the task."""
        if self._asked.get("after") == NOW:
            yield TriggerEvent({"outcome": "left", "reason": NOW_IS_FOR_A_WORKER})
            return
        try:
            waiting = self._waiting()
        except InvalidArgument as error:
            yield await self._failed({"outcome": "refused", "reason": str(error)}, lenient=False)
            return
        yield await self._end(await self._ended(waiting))

    async def _ended(self, waiting: _StatusTrigger) -> dict[str, Any]:
        try:
            async with asyncio.timeout(waiting.began + self.timeout - time.time()):
                return await waiting.ended()
        except TimeoutError:
            return {"outcome": "timeout", "reason": f"the wait was not over after {self.timeout:.0f} s"}

    async def _end(self, ended: dict[str, Any]) -> TriggerEvent:
        match ended:
            case {"outcome": "done", "records": records}:
                return await self._done(ended, self._result(records))
            case {"outcome": "timeout"}:
                return await self._failed(ended, lenient=self.soft_fail)
            case {"outcome": "error", "permanent": False}:
                return await self._failed(ended, lenient=self.never_fail, permanent=False)
        return await self._failed(ended, lenient=self.soft_fail or self.never_fail)

    async def _done(self, ended: dict[str, Any], result: Any) -> TriggerEvent:
        instance: Any = self.task_instance
        if next(instance.task.iter_mapped_dependants(), None) is not None:
            return TriggerEvent(ended)
        if instance.task.do_xcom_push and result is not None:
            # what an end event itself carries would be stored as a text of JSON
            await XCom.aset(
                XCOM_RETURN_KEY,
                result,
                dag_id=instance.dag_id,
                task_id=instance.task_id,
                run_id=instance.run_id,
                map_index=instance.map_index,
            )
        return TaskSuccessEvent()

    async def _failed(self, ended: dict[str, Any], *, lenient: bool, permanent: bool = True) -> TriggerEvent:
        if lenient:
            self.log.warning("Skipping the task: %s", ended["reason"])
        else:
            self.log.error("%s", ended["reason"])
        # what a trigger logs right before it ends can be lost: the triggerer may see the end first
        await asyncio.sleep(LOG_SECONDS)
        if lenient:
            return TaskSkippedEvent()
        task: Any = self.task
        if permanent and task.retries:
            return TriggerEvent(ended)
        return TaskFailedEvent()

    def _began(self) -> float:
        """Return when Airflow began the wait: it tells the triggerer only when it is going to end it."""
        task: Any = self.task
        limits = (task.start_trigger_args.timeout, task.execution_timeout)
        began: datetime.datetime = self.timeout_after - min(limit for limit in limits if limit)
        return began.timestamp()

    def _waiting(self) -> _StatusTrigger:
        check_given({"webcollect_conn_id": self.webcollect_conn_id, **self._asked})
        return self._trigger(
            wait=as_json(self._wait(**self._asked)),
            poke_interval=self.poke_interval,
            began=self._began(),
            webcollect_conn_id=self.webcollect_conn_id,
        )

    def _result(self, records: Records) -> Any:
        return records


class WholeTaskWait(_WholeWait):
    """The whole wait of a ``WebCollectTaskStatusSensor``."""

    _trigger = WebCollectTaskStatusTrigger
    _wait = staticmethod(task_wait)

    def _result(self, records: Records) -> Any:
        return task_result(records, many="collection_task_ids" in self._asked)


class WholeSubTaskWait(_WholeWait):
    """The whole wait of a ``WebCollectSubTaskStatusSensor``."""

    _trigger = WebCollectSubTaskStatusTrigger
    _wait = staticmethod(subtask_wait)
