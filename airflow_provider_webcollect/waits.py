"""Waits in a worker, waits in the triggerer through a connection's shared feed, and the end of a wait."""

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

from airflow_provider_webcollect.common import send_gauges
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.service.errors import TokenUnavailable, WebCollectError
from airflow_provider_webcollect.waiting.conditions import (
    RUNNING_COUNTS,
    SUBTASKS,
    TASK_STATUSES,
    Condition,
    Ended,
    Failures,
    Outcome,
    Query,
    Records,
    TaskStates,
    Wait,
    backoff,
)
from airflow_provider_webcollect.waiting.runs import Baseline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from airflow_provider_webcollect.service.client import AsyncClient
    from airflow_provider_webcollect.waiting.poll import Poll

log = logging.getLogger(__name__)
#: Number of retries when something is first read from Airflow; with their pauses, they take two to four
#: minutes. Airflow waits five minutes for a trigger to process a response (``[triggerer]
#: shared_stream_ack_timeout``).
READ_RETRIES = 6
#: Number of attempts at a status query: one retry, for example after a lost connection.
TRIES = 2
_CONTINUES = "The status query failed; the wait continues. %s"

T = TypeVar("T")


def default_deferrable() -> bool:
    """Return the default of ``deferrable``, from Airflow's configuration."""
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def poke_service(conn_id: str, wait: Wait, interval: float, log: Any) -> Ended | None:
    """Query the service once from a worker; return the end of the wait, or None if it continues.

    A transient error is logged, and the wait continues. If the service refuses the query, the wait ends only
    if repeated queries are refused too; each query reads the connection again.

    :param conn_id: the Airflow connection of the service.
    :param wait: the wait, which judges the responses.
    :param interval: seconds between two queries.
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
        # one wrong response must not end a wait, and a rescheduled sensor has no earlier responses to compare
        return judge() if wait.is_in_doubt else ended

    return result_or_end(judge_confirmed, interval, log)


def result_or_end(ask: Callable[[], T], interval: float, log: Any) -> T | Ended | None:
    """Return the result of a query, None after a transient error, or the end of the wait after a refusal.

    A refusal counts only if repeated queries confirm it.

    :param ask: sends the query; it reads the connection each time.
    :param interval: seconds between two queries.
    :param log: a logger.
    """
    failures = Failures()
    while True:
        try:
            return ask()
        except WebCollectError as error:
            if not error.permanent:
                log.warning(_CONTINUES, error)
                return None
            if failures.add(error, is_refusal=True):
                return Ended(outcome=Outcome.ERROR, reason=str(error), permanent=True)
            pause = backoff(failures.count, interval)
            log.warning("The service refuses the status query, which is repeated in %.0f s. %s", pause, error)
            time.sleep(pause)


def query(conn_id: str, condition: Condition) -> dict[str, Any]:
    """Return the states of a condition's keys; None for a key that is missing from the response.

    If a state cannot be read, the error is returned in its place.

    :param conn_id: the Airflow connection of the service, which each call reads again.
    :raises WebCollectError: if the service cannot be queried.
    """
    hook = WebCollectHook(conn_id)
    with contextlib.closing(hook.client) as client:
        return condition.query.ask_all(client, condition.keys, hook.connection.status_batch_size)


def readable(state: Any) -> Any:
    """Return a state that :func:`query` has returned; raise it if it is an error."""
    if isinstance(state, WebCollectError):
        raise state
    return state


def baselines(conn_id: str, task_ids: Sequence[str]) -> dict[str, Any]:
    """Return the current baselines of tasks, by id; a task missing from two responses has never run.

    If the status of a task cannot be read, the error is returned in place of the baseline.

    :param conn_id: the Airflow connection of the service.
    :raises WebCollectError: if the service cannot be queried.
    """
    tasks = TaskStates(task_ids=tuple(task_ids))
    for _ in range(2):
        seen = query(conn_id, tasks)
        shown = {task_id: state for task_id, state in seen.items() if not isinstance(state, WebCollectError)}
        if not any(tasks.absent(task_id, status) for task_id, status in shown.items()):
            break
    return seen | {task_id: Baseline.of(status) for task_id, status in shown.items()}


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
    """Return the records of a wait that ended successfully.

    :raises AirflowSensorTimeout: if the wait timed out.
    :raises AirflowFailException: if the wait failed, and a retry cannot help.
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


def shared_feed(conn_id: str, interval: float) -> StatusFeed:
    """Return the feed of a connection, for an ``async with``; all users in the event loop get the same feed.

    :param conn_id: the Airflow connection of the service.
    :param interval: seconds between two queries of the caller's wait.
    """
    feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in feeds:
        feeds[conn_id] = StatusFeed(conn_id, interval)
    return feeds[conn_id]


class StatusFeed:
    """A connection's polls, one for each query; the first user opens the feed, and the last one closes it.

    Entering raises :class:`WebCollectError` if the connection is invalid, and Airflow's error if the
    connection still cannot be read after :data:`READ_RETRIES` retries.

    A feed may live for weeks, and the connection may get a new credential meanwhile. So when a request fails,
    the connection is read again, and its new values are used.

    :param conn_id: the Airflow connection of the service.
    :param interval: seconds between two queries of the first user's wait.
    :ivar polls: the polls by query.
    """

    def __init__(self, conn_id: str, interval: float) -> None:
        self._hook = WebCollectHook(conn_id)
        self._users = 0
        self._entering = asyncio.Lock()
        self._opening = asyncio.create_task(self._open(interval))
        self._reading = asyncio.Lock()
        self._clients: list[AsyncClient] = []
        self.polls: dict[Query, Poll[Any]] = {}

    async def __aenter__(self) -> StatusFeed:
        self._users += 1
        try:
            # one user at a time: thousands that continue in one iteration of the event loop would block it
            async with self._entering:
                # cancelling one user must not cancel the opening for the others
                await asyncio.shield(self._opening)
            return self
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            del _feeds[asyncio.get_running_loop()][self._hook.webcollect_conn_id]
            # a cancelled user must not leave the feed half closed
            await asyncio.shield(asyncio.create_task(self._close()))

    async def _open(self, interval: float) -> None:
        from airflow_provider_webcollect.waiting.poll import Poll

        await read_with_retries(
            "The connection",
            self._hook.aload,
            interval,
            is_certain=lambda error: isinstance(error, WebCollectError),  # the connection was read
        )
        self._clients.append(self._hook.async_client())
        most = self._hook.connection.status_batch_size
        for query in (TASK_STATUSES, SUBTASKS, RUNNING_COUNTS):
            self.polls[query] = Poll(functools.partial(self._ask, query), min(query.most, most))

    async def _close(self) -> None:
        """Stop polling and close the connections to the service."""
        self._opening.cancel()
        await asyncio.wait({self._opening})
        if self._clients:
            self._send_gauges()
        for poll in self.polls.values():
            await poll.aclose()
        # older clients may have had requests in flight until now
        await asyncio.gather(*(client.aclose() for client in self._clients), return_exceptions=True)

    def _send_gauges(self) -> None:
        tags = {"connection": self._hook.webcollect_conn_id}
        # with the host name, like Airflow's own metrics of a triggerer: each triggerer has its own waits
        own = {**tags, "hostname": socket.gethostname()}
        Stats.gauge("webcollect.waits.running", self._users, tags=own)
        send_gauges(self._clients[-1].context, tags)

    async def _ask(self, query: Query, keys: Sequence[str]) -> Mapping[str, Any]:
        """Query the states of some keys.

        :raises TokenUnavailable: if the query failed, but the connection has changed, so another attempt may
            succeed.
        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        from airflow_provider_webcollect.service.client import in_thread

        client = self._clients[-1]
        self._send_gauges()
        try:
            # few attempts are enough, since a poll repeats a failed query later
            return await client.run(lambda sender: query.ask(sender.with_limits(TRIES), keys))
        except WebCollectError as error:
            async with self._reading:
                if client is self._clients[-1] and (hook := await in_thread(self._hook.successor)):
                    self._hook = hook
                    self._clients.append(hook.async_client())
            if client is self._clients[-1]:
                raise
            raise TokenUnavailable(f"the connection has changed meanwhile: {error.message}") from error


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, StatusFeed]] = WeakKeyDictionary()


async def read_with_retries(
    what: str,
    read: Callable[[], Awaitable[T]],
    interval: float,
    *,
    is_certain: Callable[[Exception], bool],
) -> T:
    """Read something from Airflow; if that fails, try again after growing pauses.

    When a triggerer starts, a secrets backend, the API server or the database may be unavailable. Airflow 3
    then reports that the connection does not exist, so that error does not count as permanent.

    :param what: the name of the object to read, for the log.
    :param read: reads the object.
    :param interval: seconds between two queries of the wait; a short interval shortens the pauses.
    :param is_certain: returns whether another attempt would fail with the same error.
    :raises Exception: the error of the last attempt, after :data:`READ_RETRIES` retries.
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
