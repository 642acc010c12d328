"""The status feeds of a process: one for each event loop and connection, shared by all its triggers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider_webcollect.common import waits
from airflow_provider_webcollect.service.errors import TokenUnavailable, WebCollectError
from airflow_provider_webcollect.waiting.feed import StatusFeed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.service.aio import AsyncClient
    from airflow_provider_webcollect.service.sync import Interruptible

log = logging.getLogger(__name__)

T = TypeVar("T")


class SharedFeed:
    """The feed of a connection, as an async context manager; the first user opens it, the last one closes it.

    Entering raises :class:`WebCollectError` if the connection is invalid, and Airflow's error if it cannot be
    read for a minute.

    :param conn_id: the Airflow connection of the service.
    """

    __slots__ = ("_conn_id", "_opened")

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    async def __aenter__(self) -> StatusFeed:
        feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
        if self._conn_id not in feeds:
            feeds[self._conn_id] = _Opened(self._conn_id)
        self._opened = feeds[self._conn_id]
        self._opened.users += 1
        try:
            # one at a time: thousands of users resumed in one iteration of the event loop would block it
            async with self._opened.entering:
                # cancelling one user must not cancel the opening for the others
                return await asyncio.shield(self._opened.opening)
        except BaseException:
            await self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        self._opened.users -= 1
        if self._opened.users:
            return
        del _feeds[asyncio.get_running_loop()][self._conn_id]
        # a cancelled user must not leave the feed half closed
        await asyncio.shield(asyncio.create_task(self._opened.close()))


class _Opened:
    """A feed that is being opened or is open, with the number of its users."""

    def __init__(self, conn_id: str) -> None:
        self.users = 0
        self.entering = asyncio.Lock()
        self.opening = asyncio.create_task(_open(conn_id))

    async def close(self) -> None:
        self.opening.cancel()
        await asyncio.wait({self.opening})
        if not self.opening.cancelled() and not self.opening.exception():
            await self.opening.result().aclose()


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Opened]] = WeakKeyDictionary()


async def _open(conn_id: str) -> StatusFeed:
    hook = await read_with_retries(
        "The connection",
        lambda: _read(conn_id),
        waits.TIMING.read_again_after,
        is_certain=lambda error: isinstance(error, WebCollectError),  # the connection was read
    )
    return StatusFeed(_CurrentClient(hook), hook.connection.status_batch_size, waits.TIMING)


async def read_with_retries(
    what: str,
    read: Callable[[], Awaitable[T]],
    pauses: Iterable[float],
    *,
    is_certain: Callable[[Exception], bool],
) -> T:
    """Read something from Airflow, and repeat that after pauses if it fails.

    When a triggerer starts, a secrets backend, the API server or the database may be unavailable. Airflow 3
    then reports that the connection does not exist, so that error is not permanent.

    :param what: name of what is read, for the log.
    :param read: reads it.
    :param pauses: seconds before each further attempt; the error of the last attempt is raised.
    :param is_certain: returns whether another attempt would fail as well.
    """
    for pause in pauses:
        try:
            return await read()
        except Exception as error:
            if is_certain(error):
                raise
            log.warning("%s cannot be read; the next try follows in %.0f s. %s", what, pause, error)
            await asyncio.sleep(pause)
    return await read()


async def _read(conn_id: str) -> WebCollectHook:
    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

    hook = WebCollectHook(conn_id)
    await hook.aload()
    return hook


class _CurrentClient:
    """A client that reads the connection again when a request fails, and uses its new values.

    A feed may live for weeks, and the connection may get a new credential meanwhile.
    """

    def __init__(self, hook: WebCollectHook) -> None:
        self._hook = hook
        self._clients = [hook.async_client()]
        self._reading = asyncio.Lock()

    async def run(self, work: Callable[[Interruptible], T]) -> T:
        """Run ``work``, which sends calls, and return its result.

        :raises TokenUnavailable: if it failed, but the connection has changed and another attempt may
            succeed.
        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        client = self._clients[-1]
        try:
            return await client.run(work)
        except WebCollectError as error:
            if await self._has_successor(client):
                raise TokenUnavailable(f"the connection has changed meanwhile: {error.message}") from error
            raise

    async def aclose(self) -> None:
        """Close the connections to the service."""
        # older clients may have had requests in flight until now
        await asyncio.gather(*(client.aclose() for client in self._clients), return_exceptions=True)

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
