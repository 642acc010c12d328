"""One poll for all who wait: batched status queries that every waiter of an event loop shares."""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from airflow_provider_webcollect.service import endpoints, paging
from airflow_provider_webcollect.service.errors import NotFound, RequestRejected, WebCollectError

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.async_client import AsyncClient
    from airflow_provider_webcollect.service.records import SubTask, TaskStatus

log = logging.getLogger(__name__)

#: Seconds before the next query after one has failed for good; doubles with every further failure.
FIRST_BACKOFF = 2.0
LONGEST_BACKOFF = 300.0
#: A task that is due within this share of its interval goes along with those that are due now, so that
#: batches are full.
EARLY_SHARE = 0.1
#: Refusals that may be due to a single task of a batch.
_ABOUT_ONE_TASK = (NotFound, RequestRejected)
_Statuses = dict[str, "TaskStatus"]


class _Watched:
    """A task that somebody waits for."""

    __slots__ = ("due", "interval", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[asyncio.Future[TaskStatus | None], float] = {}
        self.due = 0.0
        self.interval = 0.0


class StatusFeed:
    """Asks for the states of all tasks that are waited for, in batches, and tells each waiter about its own.

    It runs while somebody waits. Waits with different intervals share their polls; the shortest decides.

    :param client: the client to ask with.
    :param batch_size: tasks per query.
    """

    def __init__(self, client: AsyncClient, batch_size: int) -> None:
        self._client = client
        self._batch_size = batch_size
        self._watched: dict[str, _Watched] = {}
        self._due: list[tuple[float, str]] = []
        self._news = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._subtasks: dict[str, asyncio.Task[list[SubTask]]] = {}
        self._failures = 0

    async def watch(self, task_ids: Sequence[str], interval: float) -> AsyncGenerator[_Statuses, None]:
        """Yield the latest statuses of the tasks, by id, every ``interval`` seconds; at once the first time.

        :raises WebCollectError: if the service refuses for good (credential, plan, argument).
        """
        pause = 0.0
        while True:
            futures = [self._ask(task_id, interval, pause) for task_id in task_ids]
            try:
                statuses = await asyncio.gather(*futures)
            finally:
                for task_id, future in zip(task_ids, futures, strict=True):
                    self._forget(task_id, future)
            yield {status.task_id: status for status in statuses if status is not None}
            pause = interval

    async def watch_subtasks(self, task_id: str, interval: float) -> AsyncGenerator[list[SubTask], None]:
        """Yield all sub-tasks of the task's latest batch every ``interval`` seconds; at once the first time.

        Waits on one task that ask at the same time share the answer.
        """
        while True:
            try:
                yield await self._all_subtasks(task_id)
                self._failures = 0
            except WebCollectError as error:
                if error.permanent:
                    raise
                await asyncio.sleep(self._backoff(error))
            await asyncio.sleep(interval)

    async def _all_subtasks(self, task_id: str) -> list[SubTask]:
        asked = self._subtasks.get(task_id)
        if asked is None:
            asked = asyncio.create_task(self._client.run(paging.all_subtasks(self._client.wire, task_id)))
            self._subtasks[task_id] = asked
            asked.add_done_callback(lambda _: self._subtasks.pop(task_id, None))
        # one waiter that leaves must not take the answer away from the others
        return await asyncio.shield(asked)

    async def aclose(self) -> None:
        """Stop asking and close the connections."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        await self._client.aclose()

    def _ask(self, task_id: str, interval: float, pause: float) -> asyncio.Future[TaskStatus | None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[TaskStatus | None] = loop.create_future()
        watched = self._watched.setdefault(task_id, _Watched())
        watched.waiters[future] = interval
        due = loop.time() + pause
        if len(watched.waiters) == 1 or due < watched.due:
            watched.due = due
            watched.interval = interval
            heapq.heappush(self._due, (due, task_id))
        self._news.set()
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return future

    def _forget(self, task_id: str, future: asyncio.Future[TaskStatus | None]) -> None:
        watched = self._watched.get(task_id)
        if watched is not None:
            watched.waiters.pop(future, None)
            if not watched.waiters:
                del self._watched[task_id]

    async def _run(self) -> None:
        try:
            while self._watched:
                self._news.clear()
                batch = self._take_due()
                if batch:
                    await self._query(batch)
                else:
                    await self._until_due()
        except Exception as error:
            # nobody must wait for a feed that has come to an end
            for task_id in self._watched:
                self._fail(task_id, error)
            raise

    def _take_due(self) -> list[str]:
        """Return the tasks to ask for now: none before the first is due, then also those that are due soon."""
        now = asyncio.get_running_loop().time()
        batch: dict[str, None] = {}
        while self._due and len(batch) < self._batch_size:
            due, task_id = self._due[0]
            watched = self._watched.get(task_id)
            if watched is not None and watched.due == due:
                if due > now + (watched.interval * EARLY_SHARE if batch else 0.0):
                    break
                batch[task_id] = None
            # else it is an entry of a wait that has ended or was brought forward
            heapq.heappop(self._due)
        return list(batch)

    async def _until_due(self) -> None:
        wait = max(0.0, self._due[0][0] - asyncio.get_running_loop().time()) if self._due else None
        try:
            async with asyncio.timeout(wait):
                await self._news.wait()
        except TimeoutError:
            return

    async def _query(self, batch: list[str]) -> None:
        try:
            statuses = await self._client.send(endpoints.get_task_statuses_v2(batch))
        except WebCollectError as error:
            await self._failed(batch, error)
            return
        self._failures = 0
        by_id = {status.task_id: status for status in statuses}
        for task_id in batch:
            self._tell(task_id, by_id.get(task_id))

    async def _failed(self, batch: list[str], error: WebCollectError) -> None:
        if not error.permanent:
            await asyncio.sleep(self._backoff(error))
            for task_id in batch:
                if watched := self._watched.get(task_id):
                    heapq.heappush(self._due, (watched.due, task_id))
        elif len(batch) > 1 and isinstance(error, _ABOUT_ONE_TASK):
            # one bad id must not end the waits on the others
            middle = len(batch) // 2
            await self._query(batch[:middle])
            await self._query(batch[middle:])
        else:
            for task_id in batch:
                self._fail(task_id, error)

    def _backoff(self, error: WebCollectError) -> float:
        self._failures += 1
        longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**self._failures)
        pause = max(error.retry_after or 0.0, random.uniform(longest / 2, longest))  # only spreads
        log.warning("A status query failed; the next one follows in %.0f s. %s", pause, error)
        return pause

    def _tell(self, task_id: str, status: TaskStatus | None) -> None:
        for future in self._waiters(task_id):
            future.set_result(status)

    def _fail(self, task_id: str, error: Exception) -> None:
        for future in self._waiters(task_id):
            future.set_exception(error)

    def _waiters(self, task_id: str) -> list[asyncio.Future[TaskStatus | None]]:
        watched = self._watched.get(task_id)
        return [] if watched is None else [future for future in watched.waiters if not future.done()]
