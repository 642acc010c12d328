"""Triggers that wait for tasks and sub-tasks without a worker, all on one shared poll."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.triggers.feeds import SharedFeed
from airflow_provider_webcollect.triggers.finished import (
    WebCollectTaskFinishedTrigger as WebCollectTaskFinishedTrigger,  # it is public here, beside the others
)
from airflow_provider_webcollect.waiting.conditions import Outcome, SubTaskWait, TaskWait, Verdict, Watch

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.api.records import Record, SubTask, TaskStatus
    from airflow_provider_webcollect.waiting.feed import StatusFeed


class _StatusTrigger(BaseTrigger):
    """What both triggers share: being shown states until the wait is over, and telling how it ended.

    The event's payload is ``{"outcome": "done" | "failed" | "error", "reason", "records", "permanent"}``,
    with the last records seen as plain JSON; ``permanent`` says of an error that trying again is in vain.

    :param wait: what is waited for, as plain JSON.
    :param poke_interval: seconds between two looks.
    :param began: Unix time at which the wait began; a restart of the triggerer does not begin it anew.
    :param webcollect_conn_id: the Airflow connection of the service.
    """

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
        """Wait, and tell how it ended, once."""
        yield TriggerEvent(await self.ended())

    async def ended(self) -> dict[str, Any]:
        """Wait, and return the event's payload."""
        try:
            async with SharedFeed(self.webcollect_conn_id) as feed:
                return await self._outcome(feed)
        except WebCollectError as error:
            return {"outcome": "error", "reason": str(error), "permanent": error.permanent}

    def _outcome(self, feed: StatusFeed) -> Awaitable[dict[str, Any]]:
        """Begin to wait, and return an awaitable of the event's payload."""
        raise NotImplementedError


class WebCollectTaskStatusTrigger(_StatusTrigger):
    """Waits until tasks reach a state. ``wait`` is a :class:`~.waiting.conditions.TaskWait`."""

    def _outcome(self, feed: StatusFeed) -> Awaitable[dict[str, Any]]:
        wait = msgspec.convert(self.wait, TaskWait)
        # the class's log: with one of its own, each of ten thousand waits would be a quarter larger
        watch = Watch(wait, self.began, self.logger())

        def see(seen: Mapping[str, TaskStatus | None]) -> dict[str, Any] | None:
            statuses = {task_id: status for task_id in wait.task_ids if (status := seen[task_id])}
            return _payload(watch.judge(statuses), statuses.values())

        return feed.tasks.until(wait.task_ids, self.poke_interval, see)


class WebCollectSubTaskStatusTrigger(_StatusTrigger):
    """Waits until sub-tasks reach a state. ``wait`` is a :class:`~.waiting.conditions.SubTaskWait`."""

    def _outcome(self, feed: StatusFeed) -> Awaitable[dict[str, Any]]:
        wait = msgspec.convert(self.wait, SubTaskWait)
        watch = Watch(wait, self.began, self.logger())

        def see(seen: Mapping[str, list[SubTask] | None]) -> dict[str, Any] | None:
            subtasks = seen[wait.task_id] or []
            return _payload(watch.judge(subtasks), subtasks)

        return feed.subtasks.until((wait.task_id,), self.poke_interval, see)


def _payload(verdict: Verdict, records: Iterable[Record]) -> dict[str, Any] | None:
    """Return the event's payload if the wait is over."""
    if verdict.outcome is Outcome.WAIT:
        return None
    return {
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "records": [record.as_dict() for record in records],
    }
