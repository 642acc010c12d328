"""The client for an event loop: the calls run in threads."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_webcollect.service.endpoints import Retry
from airflow_provider_webcollect.service.errors import OutcomeUnknown
from airflow_provider_webcollect.service.pauses import Stop
from airflow_provider_webcollect.service.sync import Client, Interruptible

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from airflow_provider_webcollect.service.call import ClientContext
    from airflow_provider_webcollect.service.endpoints import Call

T = TypeVar("T")

#: Calls of one client at once; others wait for their turn.
THREADS = 32
#: Seconds that closing waits for a renewal of the token that is in progress.
RENEWAL_PATIENCE = 10.0

#: An event loop does not keep its tasks from being garbage-collected.
_in_threads: set[asyncio.Task[Any]] = set()


def in_thread(function: Callable[[], T], threads: ThreadPoolExecutor | None = None) -> asyncio.Future[T]:
    """Run ``function`` in a thread that knows this event loop: triggerers of Airflow 3.0 to 3.2 need that.

    It runs to its end also if its caller is cancelled: these triggerers would take the response to an
    abandoned request for that to the next one.

    :param threads: where it runs; None for the threads of the event loop.
    """
    from asgiref.sync import sync_to_async

    running = asyncio.create_task(sync_to_async(function, thread_sensitive=False, executor=threads)())
    _in_threads.add(running)
    running.add_done_callback(_in_threads.discard)
    return asyncio.shield(running)


class AsyncClient:
    """Sends calls to the service from one event loop, each in a thread.

    :param context: settings, credentials, rate limiters and the token.
    :param stop: set when the client is closed.
    """

    def __init__(self, context: ClientContext, *, stop: Stop | None = None) -> None:
        self._stop = stop or Stop()
        self._client = Client(context, stop=self._stop, connections=THREADS)
        self._threads = ThreadPoolExecutor(THREADS, "webcollect")

    @property
    def context(self) -> ClientContext:
        """Settings, credentials, rate limiters and the token."""
        return self._client.context

    async def send(self, call: Call[T]) -> T:
        """Send ``call`` and return its result.

        If the caller is cancelled, what was sent goes on to its end, and nothing more is sent. Where the
        request is not safe to repeat, the cause of the ``CancelledError`` is an ``OutcomeUnknown``.

        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        try:
            return await self.run(lambda sender: sender.send(call))
        except asyncio.CancelledError as cancellation:
            if call.retry is not Retry.ONLY_IF_UNSENT:
                raise
            raise cancellation from OutcomeUnknown(
                "cancelled, and it is not known whether the service acts on it", endpoint=call.endpoint.name
            )

    async def run(self, work: Callable[[Interruptible], T]) -> T:
        """Run ``work``, which sends calls, in a thread, and return its result.

        :raises Stopped: if the client is closed.
        """
        self._stop.check()
        sender = Interruptible(self._client, self.context)
        try:
            return await in_thread(functools.partial(work, sender), self._threads)
        except asyncio.CancelledError:
            # a renewal of the token is not interrupted: other calls wait for it
            sender.interrupted.set()
            raise

    async def aclose(self) -> None:
        """Close the connections to the service, after a renewal in progress, and send nothing more."""
        await asyncio.wait([in_thread(self._client.close)], timeout=RENEWAL_PATIENCE)
        self._stop.set()
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
