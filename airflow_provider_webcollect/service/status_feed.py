"""The states of tasks and sub-tasks, and the running counts, for all who wait on one connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_provider_webcollect.service import endpoints, paging
from airflow_provider_webcollect.service.poll import Poll

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.async_client import AsyncClient
    from airflow_provider_webcollect.service.records import RunningCounts, SubTask, TaskStatus

#: Tasks whose sub-tasks are asked for at the same time.
SUBTASKS_AT_ONCE = 4
#: The one key of the account's running counts.
ACCOUNT = "account"


class StatusFeed:
    """The polls on one client: states of tasks, many per query, sub-tasks, task by task, and running counts.

    :param client: the client to ask with; the feed closes it.
    :param batch_size: tasks per status query.
    :ivar tasks: shows a waiter the :class:`TaskStatus` of each of its tasks, None for one that is left out.
    :ivar subtasks: shows a waiter all sub-tasks of the latest batch of its task.
    :ivar counts: shows a waiter the account's :class:`RunningCounts`, under the key :data:`ACCOUNT`.
    """

    def __init__(self, client: AsyncClient, batch_size: int) -> None:
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

    async def _ask_tasks(self, task_ids: list[str]) -> dict[str, TaskStatus]:
        statuses = await self._client.send(endpoints.get_task_statuses_v2(task_ids))
        return {status.task_id: status for status in statuses}

    async def _ask_subtasks(self, task_ids: list[str]) -> dict[str, list[SubTask]]:
        wire = self._client.wire
        asked = [
            asyncio.ensure_future(self._client.run(paging.all_subtasks(wire, task_id)))
            for task_id in task_ids
        ]
        # one that has failed is told when all have ended, so none goes on behind the poll's back
        await asyncio.gather(*asked, return_exceptions=True)
        return {task_id: answer.result() for task_id, answer in zip(task_ids, asked, strict=True)}

    async def _ask_counts(self, keys: list[str]) -> dict[str, RunningCounts]:
        counts = await self._client.send(endpoints.get_running_counts())
        return dict.fromkeys(keys, counts)
