"""The async driver, on httpx."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_webcollect.service.answers import Answer
from airflow_provider_webcollect.service.effects import (
    Authorize,
    Effect,
    Load,
    Request,
    Save,
    Send,
    Sleep,
    Steps,
)
from airflow_provider_webcollect.service.errors import NoAnswer, ServiceUnreachable, TlsError, TransportError
from airflow_provider_webcollect.service.exchange import exchange
from airflow_provider_webcollect.service.transport import ca_bundle, multipart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    import httpx

    from airflow_provider_webcollect.service.call import Call
    from airflow_provider_webcollect.service.tokens import TokenStore
    from airflow_provider_webcollect.service.wire import Wire

T = TypeVar("T")


class AsyncClient:
    """Sends calls to the service from one event loop. What could block the loop runs in a thread.

    :param wire: settings, credentials, paces and tokens.
    :param store: where the token is shared.
    :param sleep: waits so many seconds.
    """

    def __init__(
        self, wire: Wire, store: TokenStore, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.wire = wire
        self._store = store
        self._sleep = sleep
        self._renewing = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._http: httpx.AsyncClient | None = None

    async def send(self, call: Call[T]) -> T:
        """Carry ``call`` out and return its result.

        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        return await self.run(exchange(call, self.wire))

    async def run(self, steps: Steps[T]) -> T:
        """Run a piece of client logic to its end and return its result."""
        try:
            effect = next(steps)
            while True:
                try:
                    outcome = await self._perform(effect)
                except Exception as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    async def aclose(self) -> None:
        """Close the connections to the service; a later call opens new ones."""
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
                async with self._renewing:
                    return await self.run(
                        self.wire.tokens.obtain(rejected, lambda call: exchange(call, self.wire))
                    )
            case Load():
                return await asyncio.to_thread(self._store.load)
            case Save(token):
                return await asyncio.to_thread(self._store.save, token)

    async def _exchange_bytes(self, request: Request) -> Answer:
        import httpx

        http = self._http or await self._open()
        try:
            with multipart(request) as (headers, content):
                response = await http.request(
                    request.method,
                    request.url,
                    headers={**request.headers, **headers},
                    content=_aiter(content) if request.file else content,
                )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise _transport_error(error) from error
        return Answer(
            response.status_code, {k.lower(): v for k, v in response.headers.items()}, response.content
        )

    async def _open(self) -> httpx.AsyncClient:
        async with self._opening:
            if self._http is None:
                # loading the certificate authorities takes tens of milliseconds
                self._http = await asyncio.to_thread(functools.partial(_http_client, self.wire))
            return self._http


async def _aiter(content: Any) -> Any:
    for piece in content:
        yield piece


def _http_client(wire: Wire) -> httpx.AsyncClient:
    import ssl

    import httpx

    bundle = ca_bundle(wire.settings)
    settings = wire.settings
    return httpx.AsyncClient(
        verify=ssl.create_default_context(cafile=bundle) if bundle else True,
        follow_redirects=False,
        timeout=httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout),
        limits=httpx.Limits(max_connections=32, max_keepalive_connections=8),
    )


def _transport_error(error: Exception) -> TransportError:
    """Say whether the request surely did not reach the service."""
    import ssl

    import httpx

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return TlsError(f"no trusted connection: {cause}")
        cause = cause.__cause__ or cause.__context__
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.InvalidURL)
    if isinstance(error, (*unsent, httpx.UnsupportedProtocol)):
        return ServiceUnreachable(f"no connection: {error or type(error).__name__}")
    return NoAnswer(f"no complete answer: {str(error) or type(error).__name__}")
