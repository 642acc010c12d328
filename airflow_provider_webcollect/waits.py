"""Waiting: in a worker, and in the triggerer on a connection's shared feed; and how a wait ends its task."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout, Stats, conf

from airflow_provider_webcollect.common import metric_tags, send_gauges
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.service.errors import (
    TokenUnavailable,
    WebCollectError,
)
from airflow_provider_webcollect.service.threads import Notice
from airflow_provider_webcollect.waiting.conditions import (
    RUNNING_COUNTS,
    SUBTASKS,
    TASK_STATUSES,
    Condition,
    Ended,
    Outcome,
    Query,
    Records,
    TaskStates,
    Wait,
    backoff,
    ends_waits,
)
from airflow_provider_webcollect.waiting.runs import Baseline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Mapping
    from types import TracebackType

    from airflow_provider_webcollect.service.client import AsyncClient
    from airflow_provider_webcollect.waiting.poll import Judge, Poll

log = logging.getLogger(__name__)
#: Further attempts to read something from Airflow for the first time, in two to four minutes. Airflow waits
#: five for a trigger to process what was polled (``[triggerer] shared_stream_ack_timeout``).
READ_RETRIES = 6
#: Attempts of a status query: one retry, for example after a lost connection.
TRIES = 2
_CONTINUES = "The status query failed; the wait continues. %s"

T = TypeVar("T")


def default_deferrable() -> bool:
    """Return the default of ``deferrable``, from Airflow's configuration."""
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def poke_service(conn_id: str, wait: Wait, interval: float, log: Any) -> Ended | None:
    """Query the service once from a worker; return the end of the wait, or None if it continues.

    A transient error is logged, and the wait continues. If the service refuses the query, the wait ends only
    if repeated queries are refused too; each of them reads the connection again.

    :param conn_id: the Airflow connection of the service.
    :param interval: seconds between two polls.
    :param log: a logger.
    """

    def judge() -> Ended | None:
        readable = {}
        for key, state in query(conn_id, wait.condition).items():
            if isinstance(state, WebCollectError):
                log.warning(_CONTINUES, state)
            else:
                readable[key] = state
        return wait.judge(readable) if readable else None

    def judge_confirmed() -> Ended | None:
        ended = judge()
        # one wrong response must not end a wait, and a rescheduled sensor does not know its earlier polls
        return judge() if wait.is_in_doubt else ended

    return result_or_end(judge_confirmed, interval, log)


def result_or_end(ask: Callable[[], T], interval: float, log: Any) -> T | Ended | None:
    """Return the result of a query; None after a transient error; the end of the wait after a refusal.

    A refusal counts only if repeated queries confirm it.

    :param ask: sends the query; reads the connection each time.
    :param interval: seconds between two polls.
    :param log: a logger.
    """
    refusals = 0
    while True:
        try:
            return ask()
        except WebCollectError as error:
            if not error.permanent:
                log.warning(_CONTINUES, error)
                return None
            refusals += 1
            if ends_waits(error, refusals):
                return Ended(outcome=Outcome.ERROR, reason=str(error), permanent=True)
            pause = backoff(refusals, interval)
            log.warning("The service refuses the status query, which is repeated in %.0f s. %s", pause, error)
            time.sleep(pause)


def query(conn_id: str, condition: Condition) -> dict[str, Any]:
    """Return the states of a condition's keys; None for a key that is missing from the response.

    If a state cannot be read, the error is returned in its place.

    :param conn_id: the Airflow connection of the service, which is read again each time.
    :raises WebCollectError: if the service cannot be queried.
    """
    hook = WebCollectHook(conn_id)
    most = condition.query.batch_size(hook.connection.status_batch_size)
    seen: dict[str, Any] = dict.fromkeys(condition.keys)
    with contextlib.closing(hook.client) as client:
        for start in range(0, len(condition.keys), most):
            seen |= condition.query.ask(client, condition.keys[start : start + most])
    return seen


def baselines(conn_id: str, task_ids: Sequence[str]) -> dict[str, Baseline]:
    """Return the current status of tasks, by id; a task missing from two responses has never run.

    :param conn_id: the Airflow connection of the service.
    :raises WebCollectError: if the service cannot be queried, or a response cannot be read.
    """
    tasks = TaskStates(task_ids=tuple(task_ids))
    for _ in range(2):
        seen = query(conn_id, tasks)
        for status in seen.values():
            if isinstance(status, WebCollectError):
                raise status
        if not any(tasks.absent(task_id, status) for task_id, status in seen.items()):
            break
    return {task_id: Baseline.of(status) for task_id, status in seen.items()}


def wait_in_worker(conn_id: str, wait: Wait, *, poll_interval: float, log: Any) -> Ended:
    """Poll every ``poll_interval`` seconds until the wait has ended, and return how it ended."""
    notice = Notice(log)
    while (ended := poke_service(conn_id, wait, poll_interval, log)) is None:
        notice.give(poll_interval, "The next status query follows in %.0f s.", poll_interval)
        time.sleep(poll_interval)
    return ended


def end_of_event(event: Any) -> Ended:
    """Return the end of a wait from the payload of a trigger's event.

    :raises WebCollectError: if the payload is not an :class:`Ended`.
    """
    try:
        ended = msgspec.convert(event, Ended)
    except msgspec.ValidationError:
        ended = None
    if ended is None or (ended.outcome is Outcome.DONE and ended.records is None):
        raise WebCollectError(f"the trigger ended without an outcome: {event!r}")
    return ended


def result_of(ended: Ended) -> Records:
    """Return the last records of a wait that ended with success.

    :raises AirflowSensorTimeout: if the wait timed out.
    :raises AirflowFailException: if a retry cannot help.
    :raises WebCollectError: if another attempt may help.
    """
    match ended.outcome:
        case Outcome.DONE:
            return ended.records or []
        case Outcome.TIMEOUT:
            raise AirflowSensorTimeout(ended.reason)
        case Outcome.ERROR if not ended.permanent:
            raise WebCollectError(ended.reason)
    raise AirflowFailException(ended.reason)


class SharedFeed:
    """The feed of a connection, as an async context manager; the first user opens it, the last one closes it.

    Entering raises :class:`WebCollectError` if the connection is invalid, and Airflow's error if it cannot be
    read for two minutes.

    :param conn_id: the Airflow connection of the service.
    :param interval: seconds between two polls of this user.
    """

    __slots__ = ("_conn_id", "_feed", "_interval")

    def __init__(self, conn_id: str, interval: float) -> None:
        self._conn_id = conn_id
        self._interval = interval

    async def __aenter__(self) -> StatusFeed:
        feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
        if self._conn_id not in feeds:
            feeds[self._conn_id] = StatusFeed(self._conn_id, self._interval)
        self._feed = feeds[self._conn_id]
        self._feed.users += 1
        try:
            # one at a time: thousands of users resumed in one iteration of the event loop would block it
            async with self._feed.entering:
                # cancelling one user must not cancel the opening for the others
                await asyncio.shield(self._feed.opening)
            return self._feed
        except BaseException:
            await self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        self._feed.users -= 1
        if self._feed.users:
            return
        del _feeds[asyncio.get_running_loop()][self._conn_id]
        # a cancelled user must not leave the feed half closed
        await asyncio.shield(asyncio.create_task(self._feed.aclose()))


class StatusFeed:
    """A connection's polls, one for each query; it is open once ``opening`` has ended.

    It may live for weeks, and the connection may get a new credential meanwhile. So the connection is read
    again when a request fails, and its new values are used.

    :param conn_id: the Airflow connection of the service.
    :param interval: seconds between two polls of the first user.
    :ivar users: their number; the last one closes the feed.
    """

    def __init__(self, conn_id: str, interval: float) -> None:
        self.users = 0
        self.entering = asyncio.Lock()
        self.opening = asyncio.create_task(self._open(conn_id, interval))
        self._reading = asyncio.Lock()
        self._clients: list[AsyncClient] = []
        self._polls: dict[Query, Poll[Any]] = {}

    async def _open(self, conn_id: str, interval: float) -> None:
        from airflow_provider_webcollect.waiting.poll import Poll

        self._hook = await read_with_retries(
            "The connection",
            lambda: _read(conn_id),
            interval,
            is_certain=lambda error: isinstance(error, WebCollectError),  # the connection was read
        )
        self._clients.append(self._hook.async_client())
        most = self._hook.connection.status_batch_size
        for query in (TASK_STATUSES, SUBTASKS, RUNNING_COUNTS):
            self._polls[query] = Poll(functools.partial(self._ask, query), query.batch_size(most))

    def until(
        self, query: Query, keys: Sequence[str], interval: float, judge: Judge[Any, T]
    ) -> Coroutine[Any, Any, T]:
        """Poll shortly and then every ``interval`` seconds, until ``judge`` returns a result; return it.

        See :meth:`Poll.until`.
        """
        return self._polls[query].until(keys, interval, judge)

    async def aclose(self) -> None:
        """Stop polling and close the connections to the service."""
        self.opening.cancel()
        await asyncio.wait({self.opening})
        if self._clients:
            self._send_gauges()
        for poll in self._polls.values():
            await poll.aclose()
        # older clients may have had requests in flight until now
        await asyncio.gather(*(client.aclose() for client in self._clients), return_exceptions=True)

    def _send_gauges(self) -> None:
        tags = metric_tags(self._hook.webcollect_conn_id)
        # as Airflow's own metrics of a triggerer: another one has other waits
        own = {**tags, "hostname": socket.gethostname()}
        Stats.gauge("webcollect.waits.running", self.users, tags=own)
        send_gauges(self._clients[-1].context, tags)

    async def _ask(self, query: Query, keys: Sequence[str]) -> Mapping[str, Any]:
        """Query the states of some keys.

        :raises TokenUnavailable: if it failed, but the connection has changed and another attempt may
            succeed.
        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        client = self._clients[-1]
        self._send_gauges()
        try:
            # few attempts, since a poll repeats a failed query later
            return await client.run(lambda sender: query.ask(sender.with_limits(TRIES), keys))
        except WebCollectError as error:
            if await self._has_successor(client):
                raise TokenUnavailable(f"the connection has changed meanwhile: {error.message}") from error
            raise

    async def _has_successor(self, client: AsyncClient) -> bool:
        async with self._reading:
            if client is self._clients[-1]:
                try:
                    hook = await _read(self._hook.webcollect_conn_id)
                except Exception as error:  # for example from the secrets backend
                    log.warning("The connection cannot be read again. %s", error)
                    return False
                if hook.connection != self._hook.connection:
                    self._hook = hook
                    self._clients.append(hook.async_client())
        return client is not self._clients[-1]


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, StatusFeed]] = WeakKeyDictionary()


async def read_with_retries(
    what: str,
    read: Callable[[], Awaitable[T]],
    interval: float,
    *,
    is_certain: Callable[[Exception], bool],
) -> T:
    """Read something from Airflow, and repeat that after growing pauses if it fails.

    When a triggerer starts, a secrets backend, the API server or the database may be unavailable. Airflow 3
    then reports that the connection does not exist, so that error is not permanent.

    :param what: name of what is read, for the log.
    :param read: reads it.
    :param interval: seconds between two polls of the wait.
    :param is_certain: returns whether another attempt would fail as well.
    :raises Exception: that of the last attempt, after :data:`READ_RETRIES` of them.
    """
    for failures in range(1, READ_RETRIES + 1):
        try:
            return await read()
        except Exception as error:
            if is_certain(error):
                raise
            pause = backoff(failures, interval)
            log.warning("%s cannot be read; the next attempt follows in %.0f s. %s", what, pause, error)
            await asyncio.sleep(pause)
    return await read()


async def _read(conn_id: str) -> WebCollectHook:
    hook = WebCollectHook(conn_id)
    await hook.aload()
    return hook
