"""The async driver, on httpx."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_webcollect.service.call import exchange
from airflow_provider_webcollect.service.flow import (
    Authorize,
    Blocking,
    Effect,
    Flow,
    Request,
    Send,
    Sleep,
)
from airflow_provider_webcollect.service.responses import Body, NotConnected, Response, base_of
from airflow_provider_webcollect.service.sync import Client, proxy_for, trust

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    import httpx

    from airflow_provider_webcollect.service.call import ClientContext
    from airflow_provider_webcollect.service.endpoints import Call
    from airflow_provider_webcollect.service.pauses import Stop
    from airflow_provider_webcollect.service.settings import Settings

T = TypeVar("T")

#: Seconds that closing waits for a renewal of the token that is in progress.
RENEWAL_PATIENCE = 10.0


#: An event loop does not keep its tasks from being garbage-collected.
_in_threads: set[asyncio.Task[Any]] = set()


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run ``function`` in a thread that knows this event loop: triggerers of Airflow 3.0 to 3.2 need that.

    It runs to its end also if its caller is cancelled: these triggerers would take the response to an
    abandoned request for that to the next one.
    """
    from asgiref.sync import sync_to_async

    running = asyncio.create_task(sync_to_async(function, thread_sensitive=False)())
    _in_threads.add(running)
    running.add_done_callback(_in_threads.discard)
    return asyncio.shield(running)


class AsyncClient:
    """Sends calls to the service from one event loop. Blocking functions run in threads.

    :param context: settings, credentials, rate limiters and the token.
    :param sleep: waits for a number of seconds.
    :param stop: once it is set, no renewal of the token begins, and the waits of one end.
    """

    def __init__(
        self,
        context: ClientContext,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        stop: Stop | None = None,
    ) -> None:
        self.context = context
        self._sleep = sleep
        self._stop = stop
        #: For what is done in threads: renewals of the token, and uploads of files.
        self._in_threads: Client | None = None
        self._renewing = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._transports: dict[str, httpx.AsyncHTTPTransport] = {}

    async def send(self, call: Call[T]) -> T:
        """Send ``call`` and return its result.

        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        return await self.run(exchange(call, self.context))

    async def run(self, flow: Flow[T]) -> T:
        """Run a piece of client logic to its end and return its result."""
        # opened first, since the rate limit counts from when a request may be sent; sending shows a failure
        with contextlib.suppress(Exception):
            await self._transport(self.context.settings.base_url)
        try:
            effect = next(flow)
            while True:
                try:
                    outcome = await self._perform(effect)
                except BaseException as error:  # the client logic handles all errors
                    effect = flow.throw(error)
                else:
                    effect = flow.send(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    async def aclose(self) -> None:
        """Close the connections to the service; a later call opens new ones."""
        if self._in_threads is not None:
            await asyncio.wait([in_thread(self._in_threads.close)], timeout=RENEWAL_PATIENCE)
        while self._transports:
            _, transport = self._transports.popitem()
            await transport.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Send(request) if request.file:
                return await in_thread(functools.partial(self._client_in_threads().perform, effect))
            case Send(request):
                return await self._exchange_bytes(request)
            case Sleep(seconds):
                return await self._sleep(seconds)
            case Authorize():
                return await self._authorized(effect)
            case Blocking(function):
                return await in_thread(function)

    async def _authorized(self, authorize: Authorize) -> str:
        """Get an access token, in a thread.

        Even if the caller is cancelled or the loop ends, a token that the service has issued must be stored.
        """
        async with self._renewing:  # one thread for all that wait
            if token := self.context.tokens.current(authorize.rejected):
                return token
            return await in_thread(functools.partial(self._client_in_threads().authorize, authorize))

    def _client_in_threads(self) -> Client:
        self._in_threads = self._in_threads or Client(self.context, stop=self._stop, connections=1)
        return self._in_threads

    async def _exchange_bytes(self, request: Request) -> Response:
        began = time.monotonic()
        async with asyncio.timeout(request.total_timeout):
            response = await self._begun(request)
            try:
                body = Body(response.headers, self.context.settings.max_response_bytes)
                async for piece in response.aiter_raw():
                    body.add(piece)
            finally:
                await response.aclose()
        return Response(response.status_code, response.headers, body.read(), time.monotonic() - began)

    async def _begun(self, request: Request) -> httpx.Response:
        """Send a request; return the response as soon as it begins."""
        import httpx

        settings = self.context.settings
        # failures before the request is sent must be recognizable, so these timeouts are below the total one
        part = request.total_timeout * 0.45
        timeout = httpx.Timeout(
            settings.read_timeout,
            connect=min(settings.connect_timeout, part),
            pool=min(settings.read_timeout, part),
        )
        unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
        try:
            # without httpx.AsyncClient, which logs each request, keeps cookies, and takes a response whose
            # redirect names no valid address for no response
            return await (await self._transport(request.url)).handle_async_request(
                httpx.Request(
                    request.method,
                    request.url,
                    headers=request.headers,
                    content=request.content,
                    extensions={"timeout": timeout.as_dict()},
                )
            )
        except (*unsent, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise NotConnected from error

    async def _transport(self, url: str) -> httpx.AsyncHTTPTransport:
        base = base_of(url)
        if base not in self._transports:
            async with self._opening:
                if base not in self._transports:
                    self._transports[base] = await asyncio.to_thread(_transport, base, self.context.settings)
        return self._transports[base]


def _transport(base: str, settings: Settings) -> httpx.AsyncHTTPTransport:
    import httpx

    proxy = proxy_for(base, "socksio")
    proxy_trust = trust(proxy, settings) if proxy and proxy.startswith("https:") else None
    return httpx.AsyncHTTPTransport(
        verify=trust(base, settings),
        trust_env=False,
        proxy=httpx.Proxy(proxy, ssl_context=proxy_trust) if proxy else None,
        limits=httpx.Limits(max_connections=32, max_keepalive_connections=8),
    )
