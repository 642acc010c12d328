"""The status feeds of a process: one for each event loop and connection, shared by all triggers on it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_provider_webcollect.service.status_feed import StatusFeed

if TYPE_CHECKING:
    from types import TracebackType


class SharedFeed:
    """The feed of a connection, as an async context manager; the first user opens it, the last one closes it.

    Entering raises :class:`WebCollectError` if the connection is not as it should be.

    :param conn_id: the Airflow connection of the service.
    """

    __slots__ = ("_conn_id", "_opened")

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    async def __aenter__(self) -> StatusFeed:
        feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
        self._opened = feeds.get(self._conn_id) or feeds.setdefault(self._conn_id, _Opened(self._conn_id))
        self._opened.users += 1
        try:
            # one after the other: thousands who go on in one turn of the event loop would make it a long one
            async with self._opened.entering:
                # a user that is cancelled must not end the opening for the others
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
        feeds = _feeds[asyncio.get_running_loop()]
        if feeds.get(self._conn_id) is self._opened:
            del feeds[self._conn_id]
        await self._opened.close()


class _Opened:
    """A feed that is being opened or is open, and how many use it."""

    def __init__(self, conn_id: str) -> None:
        self.users = 0
        self.entering = asyncio.Lock()
        self.opening = asyncio.create_task(_open(conn_id))

    async def close(self) -> None:
        self.opening.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await (await self.opening).aclose()


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Opened]] = WeakKeyDictionary()


async def _open(conn_id: str) -> StatusFeed:
    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

    hook = WebCollectHook(conn_id)
    connection = await hook.aload()
    return StatusFeed(hook.async_client(), connection.status_batch_size)
