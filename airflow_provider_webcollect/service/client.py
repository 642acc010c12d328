"""The client of the service, based on requests, and a client for event loops, which runs it in threads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import importlib.util
import io
import os
import socket
import ssl
import threading
import time
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from airflow_provider_webcollect.service.call import (
    ClientContext,
    Policy,
    Request,
    current_credential,
    exchange,
    is_accepted,
)
from airflow_provider_webcollect.service.endpoints import Call, Retry
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    InvalidArgument,
    OutcomeUnknown,
    ProxyUnusable,
    ResponseTooLarge,
    ServiceUnreachable,
    TlsError,
    WebCollectError,
)
from airflow_provider_webcollect.service.responses import NotConnected, Response
from airflow_provider_webcollect.service.spans import span
from airflow_provider_webcollect.service.threads import Stop, first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable

    import requests

    from airflow_provider_webcollect.service.settings import Settings
    from airflow_provider_webcollect.service.tokens import StoredToken

T = TypeVar("T")
#: An ``HTTPAdapter`` of requests, with the proxies that it uses.
_Adapter: TypeAlias = Any

#: Limits of a token call: total number of attempts, seconds after which no further attempt is made, and
#: seconds for a response. The call must end before a claim on the renewal expires.
TOKEN_LIMITS = (5, 5.0, 20.0)
#: Seconds for which an interrupted caller waits for the end of its renewal: longer than an exchange of tokens
#: and all attempts to store its outcome take.
INTERRUPTED_RENEWAL = 60.0
#: Maximum number of connections kept open to one host: two for each source that can be landed at once.
CONNECTIONS = 64
#: Maximum number of bytes of a response that one read returns.
READ_BYTES = 1024 * 1024
#: Maximum number of bytes that a caller gets from the beginning of a response before the rest has arrived.
HEAD_BYTES = 1024


class Client:
    """Sends calls to the service and waits for their results. Threads can share it.

    :param context: settings, credentials, rate limiters and the token.
    :param stop: once it is set, calls send no more requests, and their waits end; None for a new ``Stop``.
    """

    def __init__(self, context: ClientContext, *, stop: Stop | None = None) -> None:
        self.context = context
        self.stop = stop or Stop()
        self._renewing = threading.Lock()
        self._opening = threading.Lock()
        self._adapters: dict[tuple[str, float], _Adapter] = {}

    def send(self, call: Call[T]) -> T:
        """Send ``call`` and return its result.

        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        return exchange(call, self)

    def reach(self) -> None:
        """Open a connection and close it, to detect an unreachable service before a renewal begins.

        The number of attempts is the same as for a call. Behind a proxy, no attempt is made.

        :raises ServiceUnreachable: if no attempt succeeds.
        """
        settings = self.context.settings
        if proxy_for(settings.base_url) is not None:
            return
        parts = urlsplit(settings.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)

        def connect() -> None:
            try:
                socket.create_connection((parts.hostname, port), settings.connect_timeout).close()
            except OSError as error:
                address = self.context.address_of(datahub=False)
                raise ServiceUnreachable(f"no connection to {address}: {error}") from error

        Policy(settings).retrying(self.sleep)(connect)

    def renew_token(self, after_share: float = 0.0) -> StoredToken:
        """Renew the access token and store the new one (contract.md, endpoint 1).

        :param after_share: renew the token if at least this share of its lifetime has passed; 0 (default)
            renews it in any case. A younger token is tested with a call (endpoint 16), and renewed if the
            service rejects it.
        :return: the token that is valid now, new or not.
        :raises ConnectionIncomplete: if the connection has no credential to obtain a new token.
        """
        if not self.context.credentials.can_renew_tokens:
            raise ConnectionIncomplete(
                "the connection has no credential to obtain an access token: set its extra `refresh_token`, "
                "or its login and password",
                endpoint="refresh_token",
            )

        def renewal(sender: Interruptible) -> StoredToken:
            return self.context.tokens.renew(sender, after_share, lambda token: is_accepted(token, sender))

        with current_credential(self.context):
            return self._uninterrupted(renewal)

    def authorize(self, rejected: str | None) -> str:
        """Return an access token, from the store or from a renewal that no interruption cuts off.

        :param rejected: the token that the service has rejected; None if there is none.
        :raises CredentialError: if no credential of the connection leads to a token.
        :raises TokenUnavailable: if no token can be obtained for another reason.
        """
        tokens = self.context.tokens
        return self._uninterrupted(
            functools.partial(tokens.obtain, rejected=rejected, failures=tokens.failures)
        )

    def transmit(self, request: Request, on_head: Callable[[bytes], object] | None = None) -> Response:
        """Send a request and return the response.

        :param on_head: called with the first bytes of the response, decompressed, before the rest arrives.
        """
        began, settings = time.monotonic(), self.context.settings
        adapter = self._adapter(request)
        try:
            prepared = _prepared(request)
        except Exception as error:
            raise NotConnected from error
        self.stop.check()
        response = adapter.send(
            prepared,
            stream=True,
            proxies=adapter.proxies,
            timeout=(
                min(settings.connect_timeout, request.total_timeout),
                min(settings.read_timeout, request.total_timeout),
            ),
        )
        with contextlib.closing(response):
            for limiter, moment in request.moments.items():
                limiter.answered(moment, request.url.partition("?")[0])
            body = _body(response.raw, settings.max_response_bytes, on_head)
        return Response(response.status_code, response.headers, body, time.monotonic() - began)

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds; raises ``Stopped`` as soon as the client is stopped."""
        self.stop.sleep(seconds)

    def close(self) -> None:
        """Close the connections to the service, after a renewal in progress; a later call opens new ones."""
        with self._renewing:
            while self._adapters:
                self._adapters.popitem()[1].close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _uninterrupted(self, renewal: Callable[[Interruptible], T]) -> T:
        """Run a renewal to its end, even if its caller is interrupted.

        The service issues each token only once, so a new token must be stored in any case. Signals interrupt
        only the main thread. A renewal for that thread therefore runs in another thread, and the caller waits
        for it even after a signal. An exchange that has not begun when the signal arrives does not begin.
        """
        sender = Interruptible(self, self.context.short_retries(*TOKEN_LIMITS))

        def renewed() -> T:
            with self._renewing:
                # a renewal that begins after the stop would leave a claim that other processes wait for
                self.stop.check()
                with span("token", {}):
                    return renewal(sender)

        if threading.current_thread() is not threading.main_thread():
            return renewed()
        result = in_background(renewed, "webcollect-renewal")
        try:
            first_done([result])
            return result.result()
        except BaseException:
            sender.interrupted.set()
            wait([result], INTERRUPTED_RENEWAL)
            raise

    def _adapter(self, request: Request) -> _Adapter:
        """Return the adapter that sends a request; raises ``NotConnected`` if it cannot be created."""
        base = "/".join(request.url.split("/", 3)[:3])  # scheme, host and port
        key = (base, request.total_timeout)
        try:
            if key not in self._adapters:
                with self._opening:
                    if key not in self._adapters:
                        self._adapters[key] = _new_adapter(
                            base, self.context.settings, request.total_timeout, self.stop
                        )
            return self._adapters[key]
        except WebCollectError:
            raise
        except Exception as error:
            raise NotConnected from error


@dataclass(frozen=True)
class Interruptible:
    """Sends requests and waits like a client, until its caller is interrupted.

    :ivar interrupted: set when the caller is interrupted. Requests in flight then complete, and no other
        request is sent.
    """

    client: Client
    context: ClientContext
    interrupted: Stop = field(default_factory=Stop)

    def with_limits(self, attempts: int) -> Interruptible:
        """Return this sender with at most ``attempts`` attempts per call."""
        return replace(self, context=self.context.short_retries(attempts))

    def send(self, call: Call[T]) -> T:
        """Send ``call`` and return its result, as :meth:`Client.send` does."""
        return exchange(call, self)

    def transmit(self, request: Request) -> Response:
        """Send a request and return the response, as :meth:`Client.transmit` does."""
        self.interrupted.check()
        return self.client.transmit(request)

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds; raises ``Stopped`` at the end if the caller is interrupted."""
        self.client.sleep(seconds)
        self.interrupted.check()

    def authorize(self, rejected: str | None) -> str:
        """Get an access token, as :meth:`Client.authorize` does."""
        return self.client.authorize(rejected)


def _new_adapter(base: str, settings: Settings, total_timeout: float, stop: Stop) -> _Adapter:
    """Return the adapter that sends requests to ``base``; threads can share it.

    It is used without a session of requests, which would keep cookies, follow redirects, and take the proxy
    and the certificate authorities from the environment.
    """
    import requests

    class Adapter(requests.adapters.HTTPAdapter):
        def cert_verify(self, *_: Any) -> None:
            """Do nothing: requests would add its own certificate authorities to the context."""

    proxy = proxy_for(base)
    # requests over http use no tunnel, so the connection ends at the proxy
    end = proxy if proxy and base.startswith("http:") else base
    adapter: Any = Adapter(pool_maxsize=CONNECTIONS)
    adapter.proxies = {"all": proxy} if proxy else {}
    tls: dict[str, Any] = {"ssl_context": trust(end, settings)}
    manager: Any
    if proxy is None:
        adapter.init_poolmanager(1, CONNECTIONS, **tls)
        manager = adapter.poolmanager
    else:
        if not proxy.startswith("socks"):
            tls["proxy_ssl_context"] = trust(proxy, settings)
        manager = adapter.proxy_manager_for(proxy, **tls)
    pools, manager.pool_classes_by_scheme = manager.pool_classes_by_scheme, {}
    for scheme, pool in pools.items():
        limits = {"seconds": total_timeout, "stop": stop}
        connection = type("Connection", (_WatchedConnection, pool.ConnectionCls), limits)
        manager.pool_classes_by_scheme[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})
    return adapter


def _prepared(request: Request) -> requests.PreparedRequest:
    """Return the request in the form of the requests library, with its file if it has one."""
    import requests

    file = request.file
    return requests.Request(
        request.method,
        request.url,
        request.headers,
        files=file and {"file": (file.name, file.content, "text/plain")},
        data=request.form if file else request.content,
    ).prepare()


def _body(raw: Any, most: int, on_head: Callable[[bytes], object] | None) -> bytes:
    """Return the body of a response, decompressed while it arrives.

    :param raw: the response of urllib3.
    :param most: maximum size of the decompressed body, in bytes.
    :param on_head: called with the first bytes of the body, decompressed; None if they are not needed early.
    :raises ResponseTooLarge: if the body exceeds the limit.
    """
    codings = [coding.strip() for coding in raw.headers.get("content-encoding", "").lower().split(",")]
    # urllib3 would take an empty entry or "identity" for a coding (RFC 9110, sections 5.6.1 and 8.4)
    raw.headers["content-encoding"] = ", ".join(name for name in codings if name not in {"", "identity"})
    pieces: list[bytes] = []
    left = most
    while piece := raw.read(HEAD_BYTES if on_head and not pieces else READ_BYTES, decode_content=True):
        left -= len(piece)
        if left < 0:
            raise ResponseTooLarge(f"the response holds more than {most:,} bytes")
        if on_head and not pieces:
            on_head(piece)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _WatchedConnection(http.client.HTTPConnection):
    """Adds a time limit for responses to a connection of urllib3.

    It raises :class:`NotConnected` if no connection was made, and so nothing was sent. The errors of requests
    do not distinguish these cases: it raises ``SSLError`` for an interrupted TLS handshake and for an
    interrupted response.

    :cvar seconds: maximum number of seconds for a response, from the moment at which its request was sent.
    :cvar stop: once it is set, no request is sent over a new connection.
    """

    seconds: float
    stop: Stop

    def connect(self) -> None:
        try:
            super().connect()
        except Exception as error:
            raise NotConnected from error
        self.stop.check()

    def response_class(self, sock: Any, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        timed: Any = _TimedReader(sock, self.seconds)
        return _FinalResponse(timed, *args, **kwargs)


class _FinalResponse(http.client.HTTPResponse):
    """Skips interim responses (such as 102 and 103); http.client itself skips only 100."""

    def begin(self) -> None:
        super().begin()
        while 100 <= self.status < 200 and self.status != 101:
            self.headers = self.msg = None  # type: ignore[assignment]  # lets begin() read the next one
            super().begin()


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a deadline; a socket's own timeout starts again with every read."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._ends = time.monotonic() + seconds

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the response takes too long")
        if left < (self._sock.gettimeout() or left):
            self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


#: The environment variables that name certificate authorities, as requests and OpenSSL read them.
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


def trust(url: str, settings: Settings) -> ssl.SSLContext:
    """Return the context that verifies TLS connections to ``url``; for http it trusts no certificates.

    :raises InvalidArgument: if the file or folder of certificate authorities does not exist; the error names
        the setting or the environment variable.
    :raises TlsError: if the file or folder has no certificate authorities.
    """
    from requests.utils import DEFAULT_CA_BUNDLE_PATH

    named = {"ca_file": settings.ca_file, **{name: os.environ.get(name) for name in _CA_VARIABLES}}
    source, chosen = next(((name, path) for name, path in named.items() if path), ("", None))
    bundle = Path(chosen or DEFAULT_CA_BUNDLE_PATH)
    if not bundle.exists():
        raise InvalidArgument(source, chosen, "this file does not exist on this machine")
    if not url.startswith("https:"):
        # loading the certificate authorities takes tens of milliseconds
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    cafile, capath = (None, bundle) if bundle.is_dir() else (bundle, None)
    try:
        return ssl.create_default_context(cafile=cafile, capath=capath)
    except OSError as error:
        raise TlsError(f"{bundle} holds no certificate authorities: {error}") from error


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy that the environment names for ``url``, or None for a direct connection.

    :raises ProxyUnusable: if the URL is not the address of a proxy, or if it names a SOCKS proxy and the
        library for SOCKS is missing. The message does not show the URL, which may have a password.
    """
    import urllib3.util
    from requests.utils import get_environ_proxies, select_proxy

    chosen = select_proxy(url, get_environ_proxies(url))
    if not chosen:
        return None
    variable = f"{url.partition(':')[0].upper()}_PROXY (or ALL_PROXY)"
    scheme, _, rest = chosen.rpartition("://")
    proxy = f"{scheme.lower() or 'http'}://{rest}"
    try:
        parts = urllib3.util.parse_url(proxy)
        usable = parts.scheme in _PROXY_SCHEMES and bool((parts.host or "").encode("idna"))
    except ValueError:
        usable = False
    if not usable:
        rule = f"it must be a URL with a host and one of the schemes {', '.join(_PROXY_SCHEMES)}"
        raise ProxyUnusable(f"{variable} is not the address of a proxy: {rule}.")
    if proxy.startswith("socks") and importlib.util.find_spec("socks") is None:
        raise ProxyUnusable(
            f"{variable} names a SOCKS proxy, which needs libraries that are missing: "
            "pip install 'requests[socks]'."
        )
    return proxy


#: Maximum number of simultaneous calls of one client; further calls wait for their turn.
THREADS = 32
#: Maximum number of seconds for which closing a client waits for a token renewal in progress.
RENEWAL_PATIENCE = 10.0

#: The running tasks: an event loop has only weak references to them.
_in_threads: set[asyncio.Task[Any]] = set()


class _Threads(Executor):
    """Runs each call in a thread of its own: a process does not end before the threads of a pool have."""

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return in_background(functools.partial(function, *args, **kwargs), "webcollect-call")


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run ``function`` in a thread that knows this event loop; triggerers of Airflow 3.0 to 3.2 need that.

    The function runs to its end even if the caller is cancelled: these triggerers would take the response to
    an abandoned request for the response to the next one. The process can end before the function does.
    """
    from asgiref.sync import sync_to_async

    threads: Any = _Threads()
    running = asyncio.create_task(sync_to_async(function, thread_sensitive=False, executor=threads)())
    _in_threads.add(running)
    running.add_done_callback(_in_threads.discard)
    return asyncio.shield(running)


class AsyncClient:
    """Sends calls to the service from one event loop, each call in a thread.

    :param context: settings, credentials, rate limiters and the token.
    :param stop: set when the client is closed; None for a new ``Stop``.
    """

    def __init__(self, context: ClientContext, *, stop: Stop | None = None) -> None:
        self.context = context
        self._stop = stop or Stop()
        self._client = Client(context, stop=self._stop)
        self._turns = asyncio.Semaphore(THREADS)

    async def send(self, call: Call[T]) -> T:
        """Send ``call`` and return its result.

        If the caller is cancelled, the request in flight completes, and no other request is sent. If the call
        is not safe to repeat, the cause of the ``CancelledError`` is an ``OutcomeUnknown``.

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
        """Run ``work`` in a thread, and return its result.

        :param work: sends calls with the sender that it is given.
        :raises Stopped: if the client is closed.
        """
        self._stop.check()
        sender = Interruptible(self._client, self.context)
        try:
            async with self._turns:
                return await in_thread(functools.partial(work, sender))
        except asyncio.CancelledError:
            # this does not interrupt a renewal of the token, which other calls wait for
            sender.interrupted.set()
            raise

    async def aclose(self) -> None:
        """Close the connections to the service after a renewal in progress; no request is sent afterwards."""
        await asyncio.wait([in_thread(self._client.close)], timeout=RENEWAL_PATIENCE)
        self._stop.set()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
