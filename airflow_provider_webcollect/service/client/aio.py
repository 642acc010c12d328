"""The async driver, on httpx."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_webcollect.service.client.exchange import exchange
from airflow_provider_webcollect.service.client.network import Form, ca_bundle, content_of, is_untrusted
from airflow_provider_webcollect.service.client.quiet import quiet_request
from airflow_provider_webcollect.service.client.responses import Response
from airflow_provider_webcollect.service.errors import NoAnswer, ServiceUnreachable, TlsError, TransportError
from airflow_provider_webcollect.service.flow import (
    Authorize,
    Blocking,
    Effect,
    Flow,
    Request,
    Send,
    Sleep,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    import httpx

    from airflow_provider_webcollect.service.api.call import Call
    from airflow_provider_webcollect.service.client.context import ClientContext

T = TypeVar("T")

#: Seconds that closing waits for a renewal of the token that is under way.
RENEWAL_PATIENCE = 10.0


class AsyncClient:
    """Sends calls to the service from one event loop. What could block the loop runs in a thread.

    :param context: settings, credentials, rate limiters and the token.
    :param sleep: waits so many seconds.
    """

    def __init__(
        self,
        context: ClientContext,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.context = context
        self._sleep = sleep
        self._renewing = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._http: httpx.AsyncClient | None = None
        self._renewals: set[asyncio.Task[str]] = set()

    async def send(self, call: Call[T]) -> T:
        """Carry ``call`` out and return its result.

        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        return await self.run(exchange(call, self.context))

    async def run(self, flow: Flow[T]) -> T:
        """Run a piece of client logic to its end and return its result."""
        # first, since the rate limit counts from when a request may leave
        await self._ready()
        try:
            effect = next(flow)
            while True:
                try:
                    outcome = await self._perform(effect)
                except BaseException as error:  # whatever happens is the logic's to judge
                    effect = flow.throw(error)
                else:
                    effect = flow.send(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    async def aclose(self) -> None:
        """Close the connections to the service; a later call opens new ones."""
        if self._renewals:
            await asyncio.wait(self._renewals, timeout=RENEWAL_PATIENCE)
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return await self._exchange_bytes(request)
            case Sleep(seconds):
                return await self._sleep(seconds)
            case Authorize(rejected):
                return await self._authorized(rejected)
            case Blocking(function):
                return await asyncio.to_thread(function)

    async def _authorized(self, rejected: str | None) -> str:
        """Get an access token, in a task of its own.

        Whoever asked may be cancelled; a renewal that the service has carried out must still be stored.
        """
        renewal = asyncio.create_task(self._renewal(rejected))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)
        return await asyncio.shield(renewal)

    async def _renewal(self, rejected: str | None) -> str:
        async with self._renewing:
            return await self.run(
                self.context.tokens.obtain(rejected, lambda call: exchange(call, self.context))
            )

    async def _exchange_bytes(self, request: Request) -> Response:
        import httpx

        http = await self._ready()
        try:
            async with _content_of(request) as (headers, content):
                with quiet_request():
                    response = await http.request(
                        request.method,
                        request.url,
                        headers={**request.headers, **headers},
                        content=_pieces(content) if isinstance(content, Form) else content,
                    )
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _transport_error(error) from error
        # a cookie is state that the contract does not know
        http.cookies.clear()
        return Response(
            response.status_code, {k.lower(): v for k, v in response.headers.items()}, response.content
        )

    async def _ready(self) -> httpx.AsyncClient:
        if self._http is None:
            async with self._opening:
                if self._http is None:
                    # loading the certificate authorities takes tens of milliseconds
                    self._http = await asyncio.to_thread(functools.partial(_http_client, self.context))
        return self._http


@contextlib.asynccontextmanager
async def _content_of(request: Request) -> AsyncIterator[tuple[dict[str, str], bytes | Form | None]]:
    """Do what :func:`content_of` does, in a thread where there is a file to open."""
    if request.file is None:
        yield {}, request.content
        return
    content = content_of(request)
    given = await asyncio.to_thread(content.__enter__)
    try:
        yield given
    finally:
        await asyncio.to_thread(content.__exit__, None, None, None)


async def _pieces(form: Form) -> AsyncIterator[bytes]:
    pieces = iter(form)
    while piece := await asyncio.to_thread(next, pieces, b""):
        yield piece


def _http_client(context: ClientContext) -> httpx.AsyncClient:
    import httpx

    settings = context.settings
    bundle = ca_bundle(settings)
    return httpx.AsyncClient(
        verify=_trust(bundle) if bundle else True,
        follow_redirects=False,
        timeout=httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout),
        limits=httpx.Limits(max_connections=32, max_keepalive_connections=8),
    )


def _trust(bundle: str) -> ssl.SSLContext:
    import ssl

    cafile, capath = (None, bundle) if Path(bundle).is_dir() else (bundle, None)
    try:
        return ssl.create_default_context(cafile=cafile, capath=capath)
    except ssl.SSLError as error:
        raise TlsError(f"{bundle} holds no certificate authorities: {error}") from error


def _transport_error(error: Exception) -> TransportError:
    """Say whether the request surely did not reach the service."""
    import httpx

    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.InvalidURL)
    said = str(error) or type(error).__name__
    if is_untrusted(error):
        return TlsError(f"no trusted connection: {said}")
    if isinstance(error, (*unsent, httpx.UnsupportedProtocol)):
        return ServiceUnreachable(f"no connection: {said}")
    return NoAnswer(f"no complete answer: {said}")
