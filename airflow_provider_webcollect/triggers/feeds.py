"""The status feeds of a process: one for each event loop and connection, shared by all triggers that wait on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from airflow_provider_webcollect.service.status_feed import StatusFeed


class _Shared:
    """A feed, being opened or open, and how many use it."""

    def __init__(self, conn_id: str) -> None:
        self.users = 0
        self.opening = asyncio.create_task(_open(conn_id))


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def status_feed(conn_id: str) -> AsyncIterator[StatusFeed]:
    """Give the feed of a connection; the first user opens it, the last one closes it.

    :raises WebCollectError: if the connection is not as it should be.
    """
    feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
    shared = feeds.get(conn_id)
    if shared is None:
        shared = feeds[conn_id] = _Shared(conn_id)
    shared.users += 1
    try:
        # a user that is cancelled must not end the opening for the others
        yield await asyncio.shield(shared.opening)
    finally:
        shared.users -= 1
        if not shared.users:
            if feeds.get(conn_id) is shared:
                del feeds[conn_id]
            await _close(shared.opening)


async def _open(conn_id: str) -> StatusFeed:
    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

    hook = WebCollectHook(conn_id)
    connection = await hook.aload()
    return StatusFeed(hook.async_client(), connection.status_batch_size)


async def _close(opening: asyncio.Task[StatusFeed]) -> None:
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await (await opening).aclose()
