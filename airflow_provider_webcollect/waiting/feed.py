"""The states of tasks and sub-tasks, and the running counts, for all who wait on one connection."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.api.results import STATUSES_BY_TASK
from airflow_provider_webcollect.service.client import paging
from airflow_provider_webcollect.service.client.exchange import exchange
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.waiting.poller import Poll

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_webcollect.service.api.call import Call
    from airflow_provider_webcollect.service.api.records import RunningCounts, SubTask, TaskStatus
    from airflow_provider_webcollect.service.client.context import ClientContext
    from airflow_provider_webcollect.service.flow import Flow

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
    def context(self) -> ClientContext:
        """Settings, credentials, rate limiters and the token."""

    async def run(self, flow: Flow[T]) -> T:
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
        return await self._client.run(exchange(call, self._context()))

    async def _ask_subtasks(self, task_ids: list[str]) -> dict[str, list[SubTask] | WebCollectError]:
        context = self._context()
        asked = [
            asyncio.ensure_future(self._client.run(paging.all_subtasks(context, task_id)))
            for task_id in task_ids
        ]
        # one that has failed is told when all have ended, so none goes on behind the poll's back
        await asyncio.gather(*asked, return_exceptions=True)
        answers = zip(task_ids, map(_result_or_error, asked), strict=True)
        # a batch without sub-tasks is nothing to go by, as is a task without a status
        return {task_id: answer for task_id, answer in answers if answer}

    async def _ask_counts(self, keys: list[str]) -> dict[str, RunningCounts]:
        counts = await self._client.run(exchange(endpoints.get_running_counts(), self._context()))
        return dict.fromkeys(keys, counts)

    def _context(self) -> ClientContext:
        """Return the client's context with few tries of each call: a poll repeats what fails by itself."""
        return self._client.context.short_retries(TRIES)


def _result_or_error(asked: asyncio.Future[T]) -> T | WebCollectError:
    try:
        return asked.result()
    except WebCollectError as error:
        return error
