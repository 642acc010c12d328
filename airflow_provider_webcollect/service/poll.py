"""One poll for all who wait: what is asked for in batches is shared by every waiter of an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from airflow_provider_webcollect.service.errors import NotFound, RequestRejected, WebCollectError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Seconds before the next question after one has failed for good; doubles with every further failure.
FIRST_BACKOFF = 2.0
LONGEST_BACKOFF = 300.0
#: A key that is due within this share of its interval goes along with those that are due now, so that batches
#: are full.
EARLY_SHARE = 0.1
#: Refusals that may be due to a single key of a batch.
_ABOUT_ONE_KEY = (NotFound, RequestRejected)


class _Waiter(Generic[T]):
    """One wait: what it is about, how often it wants to look, and what it makes of what is seen."""

    __slots__ = ("context", "future", "interval", "keys", "see", "seen")

    def __init__(
        self, keys: tuple[str, ...], interval: float, see: Callable[[Mapping[str, T | None]], Any]
    ) -> None:
        self.keys = keys
        self.interval = interval
        self.see = see
        self.seen: dict[str, T | None] = {}
        # what a waiter logs belongs to it, though it is run by the poll
        self.context = contextvars.copy_context()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def look(self, key: str, value: T | None) -> None:
        """Take note of what was seen of ``key``; once all keys were seen, judge."""
        if self.future.done():
            return
        if len(self.keys) == 1:
            seen: Mapping[str, T | None] = {key: value}
        else:
            self.seen[key] = value
            seen = self.seen
        if len(seen) < len(self.keys):
            return
        try:
            result = self.context.run(self.see, seen)
        except Exception as error:  # it is the waiter's, and ends its wait alone
            self.future.set_exception(error)
            return
        if result is not None:
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """End the wait with ``error``."""
        if not self.future.done():
            self.future.set_exception(error)


class _Watched(Generic[T]):
    """A key that somebody waits for, and when it is due."""

    __slots__ = ("due", "waiters")

    def __init__(self) -> None:
        self.waiters: list[_Waiter[T]] = []
        self.due = 0.0

    @property
    def interval(self) -> float:
        return min(waiter.interval for waiter in self.waiters)


class Poll(Generic[T]):
    """Asks about all keys that are waited for, in batches, and shows each waiter what concerns it.

    It runs while somebody waits. Waits with different intervals share their looks; the shortest decides.

    :param ask: asks about a batch of keys; what it leaves out of its answer is seen as None.
    :param batch_size: keys per question.
    """

    def __init__(self, ask: Callable[[list[str]], Awaitable[Mapping[str, T]]], batch_size: int) -> None:
        self._ask = ask
        self._batch_size = batch_size
        self._watched: dict[str, _Watched[T]] = {}
        self._due: list[tuple[float, str]] = []
        self._news = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._failures = 0

    async def until(
        self, keys: Sequence[str], interval: float, see: Callable[[Mapping[str, T | None]], R | None]
    ) -> R:
        """Look at once and then every ``interval`` seconds, until ``see`` returns something, and return that.

        :param see: called with what is known of all keys whenever one of them was looked at.
        :raises WebCollectError: if the service refuses for good (credential, plan, argument).
        """
        waiter: _Waiter[T] = _Waiter(tuple(keys), interval, see)
        for key in waiter.keys:
            self._watch(key, waiter)
        self._news.set()
        if self._runner is None or self._runner.done():
            # in a context of its own: it outlives the waiter that happened to come first
            self._runner = asyncio.create_task(self._run(), context=contextvars.Context())
        try:
            result: R = await waiter.future
            return result
        finally:
            for key in waiter.keys:
                self._leave(key, waiter)

    async def aclose(self) -> None:
        """Stop asking."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)

    def _watch(self, key: str, waiter: _Waiter[T]) -> None:
        watched = self._watched.setdefault(key, _Watched())
        watched.waiters.append(waiter)
        self._schedule(key, watched, 0.0)

    def _schedule(self, key: str, watched: _Watched[T], pause: float) -> None:
        watched.due = asyncio.get_running_loop().time() + pause
        heapq.heappush(self._due, (watched.due, key))

    def _leave(self, key: str, waiter: _Waiter[T]) -> None:
        watched = self._watched[key]
        watched.waiters.remove(waiter)
        if not watched.waiters:
            del self._watched[key]
            self._news.set()

    async def _run(self) -> None:
        try:
            while self._watched:
                self._news.clear()
                batch = self._take_due()
                if batch:
                    await self._look_at(batch)
                else:
                    await self._until_due()
        except Exception as error:
            # nobody must wait for a poll that has come to an end
            log.exception("The poll broke down.")
            for key in list(self._watched):
                self._fail(key, error)

    def _take_due(self) -> list[str]:
        """Return the keys to ask about: none before the first is due, then also those that are due soon."""
        now = asyncio.get_running_loop().time()
        batch: dict[str, None] = {}
        while self._due and len(batch) < self._batch_size:
            due, key = self._due[0]
            watched = self._watched.get(key)
            if watched is not None and watched.due == due:
                if due > now + (watched.interval * EARLY_SHARE if batch else 0.0):
                    break
                batch[key] = None
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

    async def _look_at(self, batch: list[str]) -> None:
        try:
            answer = await self._ask(batch)
        except WebCollectError as error:
            await self._failed(batch, error)
            return
        self._failures = 0
        for key in batch:
            if watched := self._watched.get(key):
                for waiter in tuple(watched.waiters):
                    waiter.look(key, answer.get(key))
                self._schedule(key, watched, watched.interval)

    async def _failed(self, batch: list[str], error: WebCollectError) -> None:
        if not error.permanent:
            await asyncio.sleep(self._backoff(error))
            for key in batch:
                if watched := self._watched.get(key):
                    self._schedule(key, watched, 0.0)
        elif len(batch) > 1 and isinstance(error, _ABOUT_ONE_KEY):
            # one bad id must not end the waits on the others
            middle = len(batch) // 2
            await self._look_at(batch[:middle])
            await self._look_at(batch[middle:])
        else:
            for key in batch:
                self._fail(key, error)

    def _backoff(self, error: WebCollectError) -> float:
        self._failures += 1
        longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**self._failures)
        asked = min(error.retry_after or 0.0, LONGEST_BACKOFF)
        pause = max(asked, random.uniform(longest / 2, longest))
        log.warning("A status query failed; the next one follows in %.0f s. %s", pause, error)
        return pause

    def _fail(self, key: str, error: Exception) -> None:
        if watched := self._watched.get(key):
            for waiter in tuple(watched.waiters):
                waiter.fail(error)
