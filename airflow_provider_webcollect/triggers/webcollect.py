"""Triggers that wait for tasks and sub-tasks without a worker, all with one shared poll."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.triggers.feeds import SharedFeed
from airflow_provider_webcollect.triggers.finished import (
    WebCollectTaskFinishedTrigger as WebCollectTaskFinishedTrigger,  # a public name of this module
)
from airflow_provider_webcollect.waiting.conditions import SubTaskStates, TaskStates
from airflow_provider_webcollect.waiting.outcome import Ended, Outcome
from airflow_provider_webcollect.waiting.wait import Condition, Wait


async def end_of(
    condition: Condition, *, began: float, poke_interval: float, conn_id: str, log: Any
) -> Ended:
    """Wait in the triggerer, on the connection's shared poll, and return how the wait ended.

    :param began: Unix time at which the wait began.
    :param poke_interval: seconds between two polls.
    :param conn_id: the Airflow connection of the service.
    :param log: a logger.
    """
    wait = Wait(condition, began, log)
    try:
        async with SharedFeed(conn_id) as feed:
            return await feed.until(condition.query, condition.keys, poke_interval, wait.judge)
    except WebCollectError as error:
        return Ended(outcome=Outcome.ERROR, reason=str(error), permanent=error.permanent)


class WaitTrigger(BaseTrigger):
    """Base of the triggers that wait until a condition is met, and then let a worker continue.

    The event's payload is an :class:`~airflow_provider_webcollect.waiting.outcome.Ended` as plain JSON.

    :param wait: the condition, as plain JSON.
    :param poke_interval: seconds between two polls.
    :param began: Unix time at which the wait began; it stays the same after a restart of the triggerer.
    :param webcollect_conn_id: the Airflow connection of the service.
    """

    _condition: ClassVar[type[Condition]]

    def __init__(
        self,
        *,
        wait: Mapping[str, Any],
        webcollect_conn_id: str,
        poke_interval: float = 60.0,
        began: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no annotations
        self.wait = dict(wait)
        self.poke_interval = poke_interval
        self.began = time.time() if began is None else began
        self.webcollect_conn_id = webcollect_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and the arguments; they hold no secret."""
        return f"{type(self).__module__}.{type(self).__name__}", {
            "wait": self.wait,
            "poke_interval": self.poke_interval,
            "began": self.began,
            "webcollect_conn_id": self.webcollect_conn_id,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield an event when the wait has ended."""
        ended = await end_of(
            self._condition.from_json(self.wait),
            began=self.began,
            poke_interval=self.poke_interval,
            conn_id=self.webcollect_conn_id,
            # the class's logger: a logger per instance would make each of ten thousand waits a quarter larger
            log=self.logger(),
        )
        yield TriggerEvent(ended.as_event())


class WebCollectTaskStatusTrigger(WaitTrigger):
    """Waits until tasks reach a state. ``wait`` is a :class:`~.waiting.conditions.TaskStates`."""

    _condition = TaskStates


class WebCollectSubTaskStatusTrigger(WaitTrigger):
    """Waits until sub-tasks reach a state. ``wait`` is a :class:`~.waiting.conditions.SubTaskStates`."""

    _condition = SubTaskStates
