"""The sandbox's HTTP application, and a server of it in a thread of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import responses
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.bodies import ServiceError, error_body, invalid, success_body
from airflow_provider_webcollect.sandbox.control_client import Control
from airflow_provider_webcollect.sandbox.control_server import PREFIX, is_loopback, run_command
from airflow_provider_webcollect.sandbox.operations import (
    DATAHUB_PREFIX,
    Operation,
    check_arguments,
    check_method,
    check_tier,
    find_operation,
)
from airflow_provider_webcollect.sandbox.settings import Settings
from airflow_provider_webcollect.sandbox.state import (
    Call,
    Entry,
    Fault,
    Request,
    State,
    data_app_author,
    main_service_user,
    refuse_credentials,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Mapping
    from types import TracebackType

    from starlette.types import Receive, Scope, Send


_JSON = "application/json"


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = _JSON


class App:
    """
    The ASGI application around one :class:`State`.

    :param any_host: whether control commands accept any ``Host``, not only loopback ones.
    """

    def __init__(self, state: State, any_host: bool) -> None:
        self._state = state
        self._any_host = any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await _receive_request(scope, receive)
        if request is None:
            return
        if request.raw_path.startswith(PREFIX):
            status, body = run_command(self._state, request, scope["server"][1], self._any_host)
            await _send(send, Answer(status, body, {"Allow": "POST"}))
            return
        # A request in flight during a reset must not be written to the new log.
        log, arrived = self._state.log, self._state.clock.now()
        operation, path_id = find_operation(request.raw_path)
        endpoint = operation.path if operation else request.raw_path
        fault = self._state.faults.next(endpoint)
        answer = await self._answer(request, operation, path_id, fault)
        if self._state.settings.latency:
            await asyncio.sleep(self._state.settings.latency)
        log.add(Entry(arrived, request, endpoint, answer.status if answer else 0))
        if answer is None:
            await _hang_up(scope, receive)
        elif fault and fault.kind == "cut_body":
            await _send(send, answer, cut=True)
            await _hang_up(scope, receive)
        elif fault and fault.kind == "drip":
            await _drip(send, receive, answer, fault.seconds)
        else:
            await _send(send, answer)

    async def _answer(
        self, request: Request, operation: Operation | None, path_id: str, fault: Fault | None
    ) -> Answer | None:
        """The response, or ``None`` if the connection is to be closed without one."""
        if fault is None:
            return await self._true_answer(request, operation, path_id)
        if fault.kind == "drop":
            return None
        if fault.kind in ("status", "error_200", "html", "redirect", "raw"):
            if fault.done:
                await self._true_answer(request, operation, path_id)
            return _planned_answer(request, fault)
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        answer = await self._true_answer(request, operation, path_id)
        if fault.kind == "no_answer":
            return None
        if fault.kind == "broken_json":
            return replace(answer, body=answer.body[: len(answer.body) * 2 // 3])
        return answer

    async def _true_answer(self, request: Request, operation: Operation | None, path_id: str) -> Answer:
        try:
            if operation is None:
                raise ServiceError("NotFound", "There is no such path.", status=404)
            check_method(operation, request.method)
            if operation.data_app:
                user = data_app_author(request.headers)
            else:
                user = self._let_in(request, operation)
            check_arguments(operation, request.query, request.body)
            call = await _make_call(request, operation, user, path_id)
            data = operation.handle(self._state, call)
        except ServiceError as error:
            return _refusal(request, error)
        return Answer(200, success_body(data, operation.data_app))

    def _let_in(self, request: Request, operation: Operation) -> str:
        """Return the main service's user; refuse one over the limit, unknown or with too low a plan."""
        state = self._state
        state.limits.check(state.settings, request.client[0], operation.status_limit)
        if not operation.needs_token:
            refuse_credentials(request.headers)
            return ""
        takes_api_key = operation.takes_api_key or state.settings.api_key_everywhere
        user = main_service_user(request.headers, state.tokens, takes_api_key)
        check_tier(operation, state.settings.tier)
        return user


def _planned_answer(request: Request, fault: Fault) -> Answer:
    if fault.kind == "raw":
        return Answer(fault.status_or(200), fault.body, fault.headers, content_type=None)
    if fault.kind == "html":
        status = fault.status_or(502)
        page = f"<html><body><h1>{status} {responses.get(status, '')}</h1></body></html>"
        return Answer(status, page.encode(), fault.headers, "text/html")
    if fault.kind == "redirect":
        return Answer(fault.status_or(307), b"", {"Location": fault.to, **fault.headers})
    status = fault.status_or(200 if fault.kind == "error_200" else 500)
    return _refusal(request, ServiceError(fault.error_code(status), fault.message, status, fault.headers))


def _refusal(request: Request, error: ServiceError) -> Answer:
    data_app = request.raw_path.startswith(DATAHUB_PREFIX + "/")
    return Answer(error.status, error_body(error, data_app), error.headers)


async def _make_call(request: Request, operation: Operation, user: str, path_id: str) -> Call:
    content_type = request.headers.get("content-type", "")
    form = await _form(request, content_type) if operation.takes == "form" else {}
    return Call(user, request.query, content_type, request.body, path_id, form)


async def _form(request: Request, content_type: str) -> dict[str, str | bytes]:
    """
    The fields of a multipart body.

    :raises ServiceError: the body is not multipart, or a field is given twice.
    """
    if not content_type.lower().startswith("multipart/form-data"):
        raise invalid("The Content-Type must be multipart/form-data.")

    async def body() -> AsyncGenerator[bytes, None]:
        yield request.body

    try:
        form = await MultiPartParser(Headers(dict(request.headers)), body()).parse()
    except (MultiPartException, ValueError) as error:
        raise invalid(f"The form cannot be read: {error}") from error
    try:
        fields = form.multi_items()
        if len(form) < len(fields):
            raise invalid("A form field is given twice.")
        return {
            name: await value.read() if isinstance(value, UploadFile) else value for name, value in fields
        }
    finally:
        await form.close()


async def _receive_request(scope: Scope, receive: Receive) -> Request | None:
    """The request, or ``None`` if the client disconnected before sending all of it."""
    chunks: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message["body"])
        more = message["more_body"]
    return Request(
        method=scope["method"],
        raw_path=scope["raw_path"].decode("latin-1"),
        query=scope["query_string"],
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        body=b"".join(chunks),
        client=scope["client"],
    )


async def _send(send: Send, answer: Answer, cut: bool = False) -> None:
    await _send_head(send, answer)
    sent = answer.body[: len(answer.body) // 2] if cut else answer.body
    await send({"type": "http.response.body", "body": sent, "more_body": cut})


async def _drip(send: Send, receive: Receive, answer: Answer, pause: float) -> None:
    """Send the body byte by byte, until it is complete or the client disconnects."""
    await _send_head(send, answer)
    for at in range(len(answer.body)):
        await send({"type": "http.response.body", "body": answer.body[at : at + 1], "more_body": True})
        with suppress(TimeoutError):
            await asyncio.wait_for(receive(), pause)
            return
    await send({"type": "http.response.body", "body": b""})


async def _send_head(send: Send, answer: Answer) -> None:
    headers = {"content-length": str(len(answer.body))}
    if answer.content_type is not None:
        headers["content-type"] = answer.content_type
    headers |= {name.lower(): value for name, value in answer.headers.items()}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """Close the connection after what was sent so far, and wait until the server has noticed."""
    scope["extensions"]["webcollect.hang_up"]()
    while (await receive())["type"] != "http.disconnect":
        pass


LAST_PORT = 65535


class Sandbox:
    """
    A running sandbox, as a context manager.

    :param settings: its behaviour.
    :param port: 0 for a free one.
    :param host: address to listen on.
    :param allow_remote: allow a ``host`` other than this machine's loopback; control commands then accept any
        ``Host``. Everyone who can reach the sandbox can control it, and make it serve the rows of any table
        on this machine.
    :raises ValueError: ``host`` is not loopback, ``port`` is out of range, or a setting is invalid.
    """

    username = demo.USERNAME
    password = demo.PASSWORD
    access_token = demo.ACCESS_TOKEN
    api_key = demo.API_KEY
    datahub_api_key = demo.DATAHUB_API_KEY

    def __init__(
        self,
        settings: Settings | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        allow_remote: bool = False,
    ) -> None:
        if not allow_remote and not is_loopback(host):
            raise ValueError(f"{host} is not a loopback address; the sandbox has no secrets worth the name")
        if not 0 <= port <= LAST_PORT:
            raise ValueError(f"port {port} is not from 0 to {LAST_PORT}")
        self._state = State(settings or Settings())
        self._host = host
        self._port = port
        self._any_host = allow_remote

    @property
    def url(self) -> str:
        """Base URL of the main service."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def datahub_url(self) -> str:
        """Base URL of the data-app service."""
        return self.url + DATAHUB_PREFIX

    @property
    def refresh_token(self) -> str:
        """A refresh token that no other sandbox has; it works once."""
        return self._state.tokens.first_refresh

    @property
    def control(self) -> Control:
        """The client that controls this sandbox."""
        return Control(self.url)

    def __enter__(self) -> Sandbox:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family, backlog=1024)
        self._port = listener.getsockname()[1]
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="webcollect-sandbox", daemon=True)
        self._thread.start()
        self._run(self._open(listener))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, listener: socket.socket) -> None:
        app = App(self._state, self._any_host)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", proxy_headers=False
        )
        self._shared = ServerState()
        self._server = await self._loop.create_server(
            lambda: _Protocol(config, self._shared, {}, self._loop), sock=listener
        )

    async def _close(self) -> None:
        """Stop immediately: requests in flight get no response."""
        self._server.close()
        for connection in list(self._shared.connections):
            connection.transport.abort()
        for task in list(self._shared.tasks):
            task.cancel()
        await asyncio.gather(*self._shared.tasks, return_exceptions=True)
        await self._server.wait_closed()


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, extended so that the application can close a connection without a response."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"webcollect.hang_up": self.transport.close}  # type: ignore[dict-item]
