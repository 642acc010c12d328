"""One poll for all who wait: what is asked for in batches is shared by every wait of an event loop.

A trouble that passes ends no wait. It may be the whole service's or one key's, and a question that fails does
not tell whose:

- It stops the whole poll, for a pause that doubles from failure to failure. The question after a pause is
  about a single key. So a service that fails is asked once in a pause, however many keys are waited for.
- Once the service is seen to answer, the keys of the question that had failed are asked about again, half as
  many at a time; after each further failure half of those. So a key that fails on its own costs the others
  a few short pauses, once: as many as a batch can be halved. From then on it is asked about alone, with
  pauses of its own that double.
- Where the answer itself says which keys failed, beside others that did not, only these are put off.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from airflow_provider_webcollect.service.errors import NotFound, RequestRejected, WebCollectError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Half of the longest pause after a first failure, in seconds; doubles with every further failure.
FIRST_BACKOFF = 2.0
LONGEST_BACKOFF = 300.0
#: Seconds after which a key that an answer has left out is asked about again, before anybody is shown that.
CONFIRMING = 2.0
#: A key that is due within this share of its interval goes along with those that are due now, where there is
#: room: so waits that began at different times come to fill batches together.
EARLY_SHARE = 0.5
#: Seconds that a new wait is held back, so that those who come together are asked about together.
GATHERING = 0.25
#: Seconds of judging after which the rest of the event loop has its turn.
LONGEST_TURN = 0.01
#: Refusals that may be due to a single key of a batch.
_ABOUT_ONE_KEY = (NotFound, RequestRejected)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class _Wait(Generic[T]):
    """One wait: what it is about, how often it wants to look, and what it makes of what is seen.

    There may be tens of thousands, so it holds no more than it needs.
    """

    __slots__ = ("context", "future", "interval", "keys", "see", "seen")

    def __init__(
        self,
        keys: tuple[str, ...],
        interval: float,
        see: Callable[[Mapping[str, T | None], Collection[str]], Any],
    ) -> None:
        self.keys = keys
        self.interval = interval
        self.see = see
        self.seen: Mapping[str, T | None] = _NOTHING
        # what a waiter logs belongs to it, though it is run by the poll
        self.context = contextvars.copy_context()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def look(self, news: Mapping[str, T | None]) -> None:
        """Take note of what was seen of some keys; once all were seen, judge."""
        seen = {**self.seen, **news}
        if len(self.keys) > 1:  # else all there is to know comes anew each time
            self.seen = seen
        if len(seen) < len(self.keys):
            return
        try:
            result = self.context.run(self.see, seen, news.keys())
        except Exception as error:  # it is the waiter's, and ends its wait alone
            self.future.set_exception(error)
            return
        if result is not None:
            self.future.set_result(result)


@dataclass(slots=True)
class _Trouble:
    """What failed lately about a key.

    :ivar room: how many keys a question with this one may be about.
    :ivar failures: how often in a row this key has failed on its own.
    """

    room: int
    failures: int = 0


class _Watched(Generic[T]):
    """A key that somebody waits for, and when it is due; infinity while it is being asked about."""

    __slots__ = ("due", "waits")

    def __init__(self) -> None:
        self.waits: list[_Wait[T]] = []
        self.due = math.inf

    @property
    def interval(self) -> float:
        return min(wait.interval for wait in self.waits)


#: The keys of a question, each with the waits that were there when it was asked: an answer to an older
#: question says nothing of what happened before a wait began.
_Batch: TypeAlias = dict[str, tuple[_Wait[T], ...]]


class Poll(Generic[T]):
    """Asks about all keys that are waited for, in batches, and shows each waiter what concerns it.

    It runs while somebody waits. Waits with different intervals share their looks; the shortest decides.

    :param ask: asks about a batch of keys. What it leaves out of its answer twice in a row is seen as None;
        an error in place of an answer counts against that key alone.
    :param batch_size: keys per question.
    """

    def __init__(
        self, ask: Callable[[list[str]], Awaitable[Mapping[str, T | WebCollectError]]], batch_size: int
    ) -> None:
        self._ask = ask
        self._batch_size = batch_size
        self._watched: dict[str, _Watched[T]] = {}
        self._due: list[tuple[float, str]] = []
        self._news = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._pauses = 0
        self._troubles: dict[str, _Trouble] = {}
        self._left_out: set[str] = set()

    async def until(
        self,
        keys: Sequence[str],
        interval: float,
        see: Callable[[Mapping[str, T | None], Collection[str]], R | None],
    ) -> R:
        """Look in a moment and then every ``interval`` seconds, until ``see`` returns something; return that.

        :param see: called with what is known of all keys, and with those just polled, whenever some were.
        :raises WebCollectError: if the service refuses for good (credential, plan, argument).
        :raises ValueError: if there is no key.
        """
        if not keys:
            raise ValueError("`keys` is empty: there is nothing to wait for")
        wait: _Wait[T] = _Wait(tuple(dict.fromkeys(keys)), interval, see)
        for key in wait.keys:
            self._watch(key, wait)
        if self._runner is None or self._runner.done():
            # in a context of its own: it outlives the waiter that happened to come first
            self._runner = asyncio.create_task(self._run(), context=contextvars.Context())
        try:
            result: R = await wait.future
            return result
        finally:
            for key in wait.keys:
                self._leave(key, wait)

    async def aclose(self) -> None:
        """Stop asking."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)

    def _watch(self, key: str, wait: _Wait[T]) -> None:
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched()
        watched.waits.append(wait)
        self._schedule(key, watched, _now() + min(GATHERING, wait.interval * EARLY_SHARE))

    def _schedule(self, key: str, watched: _Watched[T], due: float) -> None:
        """Plan to ask about ``key``; an earlier plan stays."""
        if due >= watched.due:
            return
        watched.due = due
        entry = (due, key)
        heapq.heappush(self._due, entry)
        if self._due[0] is entry:
            self._news.set()

    def _leave(self, key: str, wait: _Wait[T]) -> None:
        watched = self._watched[key]
        watched.waits.remove(wait)
        if not watched.waits:
            del self._watched[key]
            self._troubles.pop(key, None)
            self._left_out.discard(key)
            if not self._watched:
                self._news.set()

    async def _run(self) -> None:
        while self._watched:
            self._news.clear()
            try:
                if batch := self._take_due():
                    await self._look_at(batch)
                else:
                    await self._until_due()
            except Exception as error:
                # nobody must wait for what is not asked any more; who comes meanwhile is asked about next
                log.exception("A status query broke down.")
                await _fail([wait for watched in self._watched.values() for wait in watched.waits], error)
        self._due.clear()

    def _take_due(self) -> _Batch[T]:
        """Return what to ask about: nothing before a key is due, and then also those that are due soon."""
        now = _now()
        batch: _Batch[T] = {}
        room = 1 if self._pauses else self._batch_size
        while self._due and len(batch) < room:
            due, key = self._due[0]
            watched = self._watched.get(key)
            if watched is not None and watched.due == due:
                if due > now + (watched.interval * EARLY_SHARE if batch else 0.0):
                    break
                room = min(room, self._room(key))
                if len(batch) >= room:
                    break
                batch[key] = tuple(watched.waits)
                watched.due = math.inf
            # else it is an entry of a wait that has ended or was brought forward
            heapq.heappop(self._due)
        return batch

    def _room(self, key: str) -> int:
        trouble = self._troubles.get(key)
        return trouble.room if trouble else self._batch_size

    async def _until_due(self) -> None:
        wait = max(0.0, self._due[0][0] - _now()) if self._due else None
        try:
            async with asyncio.timeout(wait):
                await self._news.wait()
        except TimeoutError:
            return

    async def _look_at(self, batch: _Batch[T]) -> None:
        try:
            answer = await self._ask(list(batch))
        except WebCollectError as error:
            await self._failed(batch, error)
            return
        errors: dict[str, WebCollectError] = {}
        seen: dict[str, T | None] = {}
        for key in batch:
            told = answer.get(key)
            if isinstance(told, WebCollectError):
                errors[key] = told
            else:
                seen[key] = told
        if seen:
            self._pauses = 0
            await self._show(batch, seen)
        if errors:
            await self._partly_failed(batch, errors)

    async def _show(self, batch: _Batch[T], seen: Mapping[str, T | None]) -> None:
        now = _now()
        news: defaultdict[_Wait[T], dict[str, T | None]] = defaultdict(dict)
        for key, state in seen.items():
            watched = self._watched.get(key)
            self._troubles.pop(key, None)
            if watched and state is None and key not in self._left_out:
                # an odd answer now and then must not pass for a task that is not there
                self._left_out.add(key)
                self._schedule(key, watched, now + min(CONFIRMING, watched.interval))
                continue
            if watched:
                self._schedule(key, watched, now + watched.interval)
            if state is not None:
                self._left_out.discard(key)
            for wait in batch[key]:
                news[wait][key] = state
        await _each(news, lambda wait: wait.look(news[wait]))

    async def _partly_failed(self, batch: _Batch[T], errors: dict[str, WebCollectError]) -> None:
        """Deal with an answer that has errors in place of answers."""
        passing: dict[str, WebCollectError] = {}
        for key, error in errors.items():
            if error.permanent:
                await _fail(batch[key], error)
            else:
                passing[key] = error
        # a limit, or no connection, is not about a key
        common = next((error for error in passing.values() if error.unsent), None)
        if common is None and len(errors) == len(batch) and not self._fail_on_their_own(passing):
            common = next(iter(passing.values()))
        if common:
            await self._failed({key: batch[key] for key in passing}, common)
        else:
            for key, error in passing.items():
                self._put_off(key, error)

    async def _failed(self, batch: _Batch[T], error: WebCollectError) -> None:
        """Deal with a question that was not answered."""
        if error.permanent:
            await self._refused(batch, error)
        elif not error.unsent and self._fail_on_their_own(batch):
            for key in batch:
                self._put_off(key, error)
        else:
            if not error.unsent and not self._pauses:
                # the service worked just before
                for key in self._watched.keys() & batch:
                    self._troubles[key] = _Trouble(max(1, len(batch) // 2))
            await self._pause(error)
            now = _now()
            for key in batch:
                if watched := self._watched.get(key):
                    self._schedule(key, watched, now)

    async def _refused(self, batch: _Batch[T], error: WebCollectError) -> None:
        if len(batch) > 1 and isinstance(error, _ABOUT_ONE_KEY):
            # one bad id must not end the waits on the others
            keys = list(batch)
            middle = len(keys) // 2
            for half in (keys[:middle], keys[middle:]):
                await self._look_at({key: batch[key] for key in half})
        else:
            await _fail([wait for waits in batch.values() for wait in waits], error)

    def _fail_on_their_own(self, keys: Collection[str]) -> bool:
        """Return whether the failure of a question about ``keys`` is theirs, by what has failed before."""
        troubles = [self._troubles.get(key) for key in keys]
        return all(each and (each.failures or each.room == len(keys) == 1) for each in troubles)

    def _put_off(self, key: str, error: WebCollectError) -> None:
        """Back off from one key."""
        if watched := self._watched.get(key):
            trouble = self._troubles.setdefault(key, _Trouble(self._batch_size))
            trouble.failures += 1
            pause = _backoff(trouble.failures, error)
            log.warning("%s: a status query failed; the next one follows in %.0f s. %s", key, pause, error)
            self._schedule(key, watched, _now() + pause)

    async def _pause(self, error: WebCollectError) -> None:
        """Back off from the service."""
        self._pauses += 1
        pause = _backoff(self._pauses, error)
        log.warning("A status query failed; the next one follows in %.0f s. %s", pause, error)
        await asyncio.sleep(pause)


def _backoff(failures: int, error: WebCollectError) -> float:
    # the exponent has a bound, since a service may fail for weeks
    longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** min(failures, 30))
    asked = min(error.retry_after or 0.0, LONGEST_BACKOFF)
    return max(asked, random.uniform(longest / 2, longest))


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _fail(waits: Iterable[_Wait[Any]], error: Exception) -> None:
    """End waits with ``error``."""
    await _each(waits, lambda wait: wait.future.set_exception(error))


async def _each(waits: Iterable[_Wait[T]], act: Callable[[_Wait[T]], None]) -> None:
    """Do something about each wait that has not ended, and let others of the event loop have their turns."""
    turn_ends = _now() + LONGEST_TURN
    for wait in waits:
        if wait.future.done():
            continue
        act(wait)
        # who has ended goes on at once: thousands of them in one turn would make it a long one
        if wait.future.done() or _now() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = _now() + LONGEST_TURN
