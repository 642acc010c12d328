"""Triggers that wait for tasks and sub-tasks without a worker, all on one shared poll."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.waiting import Outcome, SubTaskWait, TaskWait, Verdict
from airflow_provider_webcollect.triggers.feeds import status_feed

MODULE = "airflow_provider_webcollect.triggers.webcollect"


class _StatusTrigger(BaseTrigger):
    """What both triggers share: looking again and again, and telling the outcome.

    The event's payload is ``{"outcome": "done" | "failed" | "error", "reason", "records", "permanent"}``, with
    the last records seen as plain JSON; ``permanent`` says of an error that trying again is in vain.

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
        super().__init__()
        self.wait = dict(wait)
        self.poke_interval = poke_interval
        self.began = time.time() if began is None else began
        self.webcollect_conn_id = webcollect_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and the arguments; they hold no secret."""
        return f"{MODULE}.{type(self).__name__}", {
            "wait": self.wait,
            "poke_interval": self.poke_interval,
            "began": self.began,
            "webcollect_conn_id": self.webcollect_conn_id,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the wait is over, and tell how it ended, once."""
        try:
            yield TriggerEvent(await self._outcome())
        except WebCollectError as error:
            yield TriggerEvent({"outcome": "error", "reason": str(error), "permanent": error.permanent})

    async def _outcome(self) -> dict[str, Any]:
        said = ""
        async with aclosing(self._looks()) as looks:
            async for verdict, records in looks:
                if verdict.reason != said:
                    said = verdict.reason
                    self.log.info("%s", said)
                if verdict.outcome is not Outcome.WAIT:
                    return {"outcome": verdict.outcome.value, "reason": said, "records": records}
        raise AssertionError("a feed ends with an error only")

    def _looks(self) -> AsyncGenerator[tuple[Verdict, list[dict[str, Any]]], None]:
        raise NotImplementedError

    def _waited(self) -> float:
        return time.time() - self.began


class WebCollectTaskStatusTrigger(_StatusTrigger):
    """Waits until tasks reach a state. ``wait`` is a :class:`~.service.waiting.TaskWait`."""

    async def _looks(self) -> AsyncGenerator[tuple[Verdict, list[dict[str, Any]]], None]:
        wait = msgspec.convert(self.wait, TaskWait)
        async with status_feed(self.webcollect_conn_id) as feed:
            async with aclosing(feed.watch(wait.task_ids, self.poke_interval)) as looks:
                async for statuses in looks:
                    records = [
                        statuses[task_id].as_dict() for task_id in wait.task_ids if task_id in statuses
                    ]
                    yield wait.judge(statuses, self._waited()), records


class WebCollectSubTaskStatusTrigger(_StatusTrigger):
    """Waits until sub-tasks reach a state. ``wait`` is a :class:`~.service.waiting.SubTaskWait`."""

    async def _looks(self) -> AsyncGenerator[tuple[Verdict, list[dict[str, Any]]], None]:
        wait = msgspec.convert(self.wait, SubTaskWait)
        async with (
            status_feed(self.webcollect_conn_id) as feed,
            aclosing(feed.watch_subtasks(wait.task_id, self.poke_interval)) as looks,
        ):
            async for subtasks in looks:
                yield wait.judge(subtasks, self._waited()), [subtask.as_dict() for subtask in subtasks]
