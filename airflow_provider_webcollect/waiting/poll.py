"""One poll for all waits of an event loop, which queries their keys together, in batches.

When a query fails, the cause may be the service or one of the query's keys:

- The keys of the query are postponed, while other queries continue. Then half as many keys are queried at a
  time, until the key that fails on its own is found. That key is queried alone, with pauses that double.
- If two queries in a row fail, or one query exceeds a rate limit or gets no connection, the whole poll
  pauses. After the pause, a single key is queried. If that query fails, the pause doubles.
- Permanent refusals end waits only after three in a row, with a pause before each repetition. They end the
  waits for a key that was refused when it was queried alone, otherwise all waits of the poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import logging
import math
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RequestRejected,
    WebCollectError,
)
from airflow_provider_webcollect.service.spans import current_span, span
from airflow_provider_webcollect.waiting.conditions import Failures, backoff

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Maximum number of queries in flight: with several, a slow response does not delay the others.
QUERIES_AT_ONCE = 4
#: Seconds between two queries. The service allows 5 status queries per second from one address. With 0.7 s,
#: at most 2 queries fall into any second, even if one is late by 0.4 s, so two triggerers together stay below
#: the limit.
SPACING = 0.7
#: Share of the interval over which queries are spread if a shorter spacing than :data:`SPACING` is necessary;
#: the rest of the interval is left for repeated queries.
SPREAD = 0.8
#: Seconds by which the first query of a new wait is delayed, so that waits that begin together share a query.
GATHERING = 0.25
#: Seconds for which the poll evaluates responses before it lets other tasks of the event loop run.
LONGEST_TURN = 0.01
#: A key that is due within this share of its interval is queried together with keys that are due now, up to
#: the batch size. So waits that began at different times share batches.
EARLY_SHARE = 0.5
#: Maximum number of waits to which the span of a query is linked: by default, OpenTelemetry keeps this number
#: of links.
MOST_LINKS = 128
#: Refusals whose cause is always, or possibly, a key of the query.
_ABOUT_KEYS = (NotFound, RequestRejected, InvalidArgument)
_MAYBE_ABOUT_KEYS = (*_ABOUT_KEYS, PermissionDenied)

Judge: TypeAlias = Callable[[Mapping[str, T | None]], R | None]


class _Waiter(Generic[T]):
    """One wait. There may be tens of thousands of waits, so each stores as little as possible."""

    __slots__ = ("context", "future", "interval", "judge", "keys")

    def __init__(self, keys: tuple[str, ...], interval: float, judge: Judge[T, Any]):
        self.keys = keys
        self.interval = interval
        self.judge = judge
        # the poll runs `judge`, but its log messages belong to the waiter's context
        self.context = contextvars.copy_context()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def show(self, states: Mapping[str, T | None]) -> None:
        """Pass the states of some keys to ``judge``."""
        try:
            if (result := self.context.run(self.judge, states)) is not None:
                self.future.set_result(result)
        except Exception as error:  # an error of `judge` ends only this wait
            self.future.set_exception(error)


class _Watched(Generic[T]):
    """A key that at least one wait needs.

    :ivar due: when to query the key, by the event loop's clock; infinity while no query is planned.
    :ivar in_flight: while a query of the key is in flight, the waits that existed when the query was sent.
        Its response may be too old for a later wait.
    :ivar has_succeeded: whether a query of the key has succeeded before, so the key belongs to this account.
    :ivar failures: the failures since the last success; None if there were none.
    :ivar batch_size: after failures, the maximum number of keys in a query with this key.
    """

    __slots__ = ("batch_size", "due", "failures", "has_succeeded", "in_flight", "waits")

    def __init__(self) -> None:
        self.waits: list[_Waiter[T]] = []
        self.in_flight: tuple[_Waiter[T], ...] = ()
        self.due = math.inf
        self.has_succeeded = False
        self.failures: Failures | None = None
        self.batch_size = sys.maxsize

    @property
    def interval(self) -> float:
        return min((wait.interval for wait in self.waits), default=math.inf)


_Batch: TypeAlias = dict[str, _Watched[T]]


class Poll(Generic[T]):
    """Queries the keys of all waits in batches, and passes the states to the waits.

    It runs while there are waits. If waits for a key have different intervals, the shortest is used.

    :param query: queries a batch of keys. A key that the response leaves out has the state None; an error in
        place of a state affects only that key.
    :param batch_size: maximum number of keys per query.
    """

    def __init__(
        self,
        query: Callable[[list[str]], Awaitable[Mapping[str, T | WebCollectError]]],
        batch_size: int,
    ) -> None:
        self._send = query
        self._batch_size = batch_size
        self._watched: defaultdict[str, _Watched[T]] = defaultdict(_Watched)
        self._due: list[tuple[float, str]] = []
        self._changed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._queries: set[asyncio.Task[None]] = set()
        self._earliest = 0.0
        self._probe: str | None = None
        self._reset()

    async def until(self, keys: Sequence[str], interval: float, judge: Judge[T, R]) -> R:
        """Query soon, and then every ``interval`` seconds, until ``judge`` returns a result; return that.

        :param judge: called with the states of the keys in the latest response; returns None to continue.
        :raises WebCollectError: after a confirmed permanent refusal (credential, plan, id).
        :raises ValueError: if there is no key.
        """
        if not keys:
            raise ValueError("`keys` is empty: there is nothing to wait for")
        wait: _Waiter[T] = _Waiter(tuple(dict.fromkeys(keys)), interval, judge)
        for key in wait.keys:
            watched = self._watched[key]
            watched.waits.append(wait)
            if watched.in_flight or not watched.failures:
                self._schedule(key, watched, _now() + min(GATHERING, wait.interval * EARLY_SHARE))
        if self._runner is None or self._runner.done():
            # in a new context, since the poll may outlive the wait that started it
            self._runner = asyncio.create_task(self._run(), context=contextvars.Context())
        try:
            return await wait.future  # type: ignore[no-any-return]
        finally:
            for key in wait.keys:
                self._watched[key].waits.remove(wait)
                if not self._watched[key].waits:
                    del self._watched[key]
            if not self._watched:
                self._changed.set()

    async def aclose(self) -> None:
        """Stop querying."""
        tasks = [task for task in (self._runner, *self._queries) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule(self, key: str, watched: _Watched[T], due: float) -> None:
        """Plan a query of ``key``, unless an earlier one is planned."""
        if due >= watched.due:
            return
        watched.due = due
        if not watched.in_flight:  # responses to two queries of one key could arrive in the wrong order
            heapq.heappush(self._due, (due, key))
            if self._due[0] == (due, key):
                self._changed.set()

    def _plan_next(self, key: str, watched: _Watched[T], due: float) -> None:
        """Plan the next query of ``key`` after one that has ended."""
        watched.in_flight, watched.due = (), math.inf
        if watched.waits:
            self._schedule(key, watched, due)

    async def _run(self) -> None:
        """Send the queries that are due, while there are waits."""
        while self._watched or self._queries:
            try:
                await self._query_next()
            except Exception as error:
                # a wait must not continue if the poll sends no more queries for it
                log.exception("The poll failed unexpectedly, and its waits end.")
                self._due.clear()
                self._reset()
                for watched in self._watched.values():
                    watched.due, watched.failures, watched.batch_size = math.inf, None, sys.maxsize
                await self._end_with(self._waits(), error)
                await asyncio.sleep(0)  # lets the waits end
        self._due.clear()
        self._reset()

    async def _query_next(self) -> None:
        """Send a query, or wait until it is time for one."""
        self._changed.clear()
        moment = self._next_moment()
        if moment <= _now():
            self._begin(self._take_probe() if self._paused else self._take_due())
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(moment if math.isfinite(moment) else None):
                await self._changed.wait()

    def _next_moment(self) -> float:
        """Return the time at which to send the next query; infinity if another event must happen first."""
        first = self._first_due()
        if first is None or len(self._queries) >= QUERIES_AT_ONCE or self._probe:
            return math.inf
        return max(self._earliest, self._pause_ends if self._paused else first[0])

    def _first_due(self) -> tuple[float, str] | None:
        """Return the earliest planned query, after dropping outdated ones."""
        while self._due:
            due, key = self._due[0]
            if key in self._watched and self._watched[key].due == due:
                return due, key
            heapq.heappop(self._due)
        return None

    def _take_due(self) -> _Batch[T]:
        """Return the next batch: the key that is due first, and other keys that are due now or soon."""
        now = _now()
        batch: _Batch[T] = {}
        size = self._batch_size
        while len(batch) < size and (first := self._first_due()):
            due, key = first
            watched = self._watched[key]
            early = 0.0 if watched.failures or not batch else watched.interval * EARLY_SHARE
            size = min(size, watched.batch_size)
            if due > now + early or len(batch) >= size:
                break
            batch[key] = watched
            heapq.heappop(self._due)
        return batch

    def _take_probe(self) -> _Batch[T]:
        """Return a batch with one key to query after a pause, due or not; one that succeeded is preferred."""
        *_, self._probe = min(
            (not watched.has_succeeded, watched.failures.count if watched.failures else 0, watched.due, key)
            for key, watched in self._watched.items()
            if not watched.in_flight
        )
        return {self._probe: self._watched[self._probe]}

    def _begin(self, batch: _Batch[T]) -> None:
        """Send a query, and set the earliest time for the next one."""
        interval = min(watched.interval for watched in batch.values())
        batches = math.ceil(len(self._watched) / self._batch_size)
        self._earliest = _now() + min(SPACING, SPREAD * interval / batches)
        for watched in batch.values():
            watched.in_flight, watched.due = tuple(watched.waits), math.inf
        query = asyncio.create_task(self._query(batch))
        self._queries.add(query)
        query.add_done_callback(self._queries.discard)
        query.add_done_callback(lambda _: self._changed.set())

    async def _query(self, batch: _Batch[T]) -> None:
        sent_at = _now()
        try:
            waits = dict.fromkeys(wait for watched in batch.values() for wait in watched.in_flight)
            facts = {"webcollect.keys": len(batch), "webcollect.waits": len(waits)}
            causes = [wait.context.run(current_span) for wait in itertools.islice(waits, MOST_LINKS)]
            with span("poll", facts, causes=causes):
                response = await self._send(list(batch))
            errors = {key: state for key in batch if isinstance(state := response.get(key), WebCollectError)}
        except WebCollectError as error:
            await self._on_failure(batch, error, sent_at)
        except (Exception, asyncio.CancelledError) as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise  # the poll is being closed; in the other case, something inside the query was cancelled
            log.exception("A status query failed unexpectedly.")
            await self._on_failure(batch, WebCollectError(type(error).__name__), sent_at)
        else:
            self._on_success(sent_at)
            for key, unreadable in errors.items():
                await self._plan_again({key: batch.pop(key)}, unreadable)
            await self._show(batch, response)

    async def _show(self, batch: _Batch[T], response: Mapping[str, Any]) -> None:
        now = _now()
        if self._probe in batch:
            self._probe = None
        states: defaultdict[_Waiter[T], dict[str, T | None]] = defaultdict(dict)
        for key, watched in batch.items():
            for wait in watched.in_flight:
                states[wait][key] = response.get(key)
            watched.has_succeeded, watched.failures, watched.batch_size = True, None, sys.maxsize
            self._plan_next(key, watched, min(watched.due, now + watched.interval))
        await self._each(states, lambda wait: wait.show(states[wait]))

    def _on_success(self, sent_at: float) -> None:
        """Forget failures after a success, unless the service has failed since the query was sent."""
        if sent_at >= self._failed_at:
            self._reset()

    def _reset(self) -> None:
        """Forget failures."""
        self._failed_at = -math.inf
        self._failures = Failures()
        self._paused = False
        self._pause_ends = 0.0
        self._probe = None

    async def _on_failure(self, batch: _Batch[T], error: WebCollectError, sent_at: float) -> None:
        """Handle a failed query: decide whether the poll pauses, and whether all waits end."""
        ends_all = False
        # a key that never succeeded may belong to another account; otherwise the plan has become too low
        has_new_key = not all(watched.has_succeeded for watched in batch.values())
        is_about_keys = isinstance(error, _ABOUT_KEYS) or (
            isinstance(error, PermissionDenied) and has_new_key
        )
        if is_about_keys:
            self._on_success(sent_at)
        elif sent_at < self._pause_ends:
            self._paused = True  # two failures in a row, but this query is too early to confirm a refusal
        else:
            self._failed_at = _now()
            # a batch may be denied because one of its keys now belongs to another account
            is_refusal = error.permanent and (len(batch) == 1 or not isinstance(error, PermissionDenied))
            ends_all = self._failures.add(error, is_refusal=is_refusal)
            self._paused = self._failures.count > 1 or (error.unsent and not error.permanent)
            interval = min(watched.interval for watched in batch.values())
            self._pause_ends = _now() + backoff(self._failures.count, interval, error)
        await self._plan_again(batch, error, ends_all=ends_all)

    async def _plan_again(self, batch: _Batch[T], error: WebCollectError, *, ends_all: bool = False) -> None:
        """Plan the next query of the keys of a failed query; end the waits that are refused."""
        due = max(now := _now(), self._pause_ends)
        alone, probed = len(batch) == 1, self._probe in batch
        refused: list[_Waiter[T]] = []
        for key, watched in batch.items():
            failures = watched.failures = watched.failures or Failures()
            if alone and failures.add(error, is_refusal=isinstance(error, _MAYBE_ABOUT_KEYS)):
                refused.extend(watched.in_flight)
            if not probed and (error.permanent or not error.unsent):
                watched.batch_size = max(1, len(batch) // 2)
                due = max(due, now + backoff(failures.count, watched.interval, error)) if alone else due
            self._plan_next(key, watched, due)
        if probed:
            self._probe = None
        about = "" if self._paused else f" about {key if alone else f'these {len(batch)} tasks'}"
        log.warning("A status query failed; the next one%s follows in %.0f s. %s", about, due - now, error)
        if ends_all and not refused:
            refused = self._waits()
        await self._end_with(refused, error)

    def _waits(self) -> list[_Waiter[T]]:
        return [wait for watched in self._watched.values() for wait in watched.waits]

    async def _end_with(self, waits: Iterable[_Waiter[Any]], error: Exception) -> None:
        """End waits with ``error``."""
        await self._each(waits, lambda wait: wait.future.set_exception(error))

    async def _each(self, waits: Iterable[_Waiter[T]], act: Callable[[_Waiter[T]], None]) -> None:
        """Call ``act`` for each wait that has not ended, and let other tasks run in between."""
        turn_ends = _now() + LONGEST_TURN
        for wait in waits:
            if wait.future.done():
                continue
            act(wait)
            # a wait that has ended continues at once; thousands in one turn would block the event loop
            if wait.future.done() or _now() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = _now() + LONGEST_TURN


def _now() -> float:
    return asyncio.get_running_loop().time()
