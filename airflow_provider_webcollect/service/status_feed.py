"""The states of tasks and sub-tasks, and the running counts, for all who wait on one connection."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow_provider_webcollect.service import endpoints, paging
from airflow_provider_webcollect.service.answers import STATUSES_BY_TASK
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.exchange import exchange
from airflow_provider_webcollect.service.poll import Poll

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_webcollect.service.call import Call
    from airflow_provider_webcollect.service.effects import Steps
    from airflow_provider_webcollect.service.records import RunningCounts, SubTask, TaskStatus
    from airflow_provider_webcollect.service.wire import Wire

T = TypeVar("T")

#: Tasks whose sub-tasks are asked for at the same time.
SUBTASKS_AT_ONCE = 4
#: Tries of a call: one more, for the lost connection that the next try does not have.
TRIES = 2
#: The one key of the account's running counts.
ACCOUNT = "account"


class FeedClient(Protocol):
    """What a feed needs of an ``AsyncClient``."""

    @property
    def wire(self) -> Wire:
        """Settings, credentials, paces and tokens."""

    async def run(self, steps: Steps[T]) -> T:
        """Run a piece of client logic to its end and return its result."""

    async def aclose(self) -> None:
        """Close the connections to the service."""


class StatusFeed:
    """The polls on one client: states of tasks, many per query, sub-tasks, task by task, and running counts.

    :param client: the client to ask with; the feed closes it.
    :param batch_size: tasks per status query.
    :ivar tasks: shows a waiter the :class:`TaskStatus` of each of its tasks, None for one that is left out.
    :ivar subtasks: shows a waiter all sub-tasks of the latest batch of its task.
    :ivar counts: shows a waiter the account's :class:`RunningCounts`, under the key :data:`ACCOUNT`.
    """

    def __init__(self, client: FeedClient, batch_size: int) -> None:
        self._client = client
        self.tasks: Poll[TaskStatus] = Poll(self._ask_tasks, batch_size)
        self.subtasks: Poll[list[SubTask]] = Poll(self._ask_subtasks, SUBTASKS_AT_ONCE)
        self.counts: Poll[RunningCounts] = Poll(self._ask_counts, batch_size=1)

    async def aclose(self) -> None:
        """Stop asking and close the connections."""
        await self.tasks.aclose()
        await self.subtasks.aclose()
        await self.counts.aclose()
        await self._client.aclose()

    async def _ask_tasks(self, task_ids: list[str]) -> Mapping[str, TaskStatus | WebCollectError]:
        call: Call[Any] = endpoints.get_task_statuses_v2(task_ids)
        call = dataclasses.replace(call, result=STATUSES_BY_TASK)
        return await self._client.run(exchange(call, self._wire()))

    async def _ask_subtasks(self, task_ids: list[str]) -> dict[str, list[SubTask] | WebCollectError]:
        wire = self._wire()
        asked = [
            asyncio.ensure_future(self._client.run(paging.all_subtasks(wire, task_id)))
            for task_id in task_ids
        ]
        # one that has failed is told when all have ended, so none goes on behind the poll's back
        await asyncio.gather(*asked, return_exceptions=True)
        answers = zip(task_ids, map(_result_or_error, asked), strict=True)
        # a batch without sub-tasks is nothing to go by, as is a task without a status
        return {task_id: answer for task_id, answer in answers if answer}

    async def _ask_counts(self, keys: list[str]) -> dict[str, RunningCounts]:
        counts = await self._client.run(exchange(endpoints.get_running_counts(), self._wire()))
        return dict.fromkeys(keys, counts)

    def _wire(self) -> Wire:
        """Return the client's wire, with few tries of each call: a poll repeats what fails by itself."""
        wire = self._client.wire
        retries = dataclasses.replace(
            wire.settings.retries, attempts=min(TRIES, wire.settings.retries.attempts)
        )
        return dataclasses.replace(wire, settings=dataclasses.replace(wire.settings, retries=retries))


def _result_or_error(asked: asyncio.Future[T]) -> T | WebCollectError:
    try:
        return asked.result()
    except WebCollectError as error:
        return error
