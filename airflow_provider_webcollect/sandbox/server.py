"""The sandbox's HTTP application, and a server of it in a thread of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import responses
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.bodies import (
    ServiceError,
    error_body,
    invalid,
    json_object,
    query_values,
    raw_path,
    success_body,
)
from airflow_provider_webcollect.sandbox.commands import PREFIX, is_loopback, run_command
from airflow_provider_webcollect.sandbox.control import Control
from airflow_provider_webcollect.sandbox.operations import DATAHUB_PREFIX, Operation, find_operation
from airflow_provider_webcollect.sandbox.settings import Settings
from airflow_provider_webcollect.sandbox.state import (
    Entry,
    Fault,
    State,
    check_credential,
    data_app_author,
    refuse_credentials,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from starlette.types import Message, Receive, Scope, Send

_CODES = {401: "Invalid.Token", 403: "PermissionDenied", 429: "TooManyRequests"}


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = "application/json"


class App:
    """
    The ASGI application around one :class:`State`.

    :param any_host: whether control commands accept any ``Host``, not only loopback ones.
    """

    def __init__(self, state: State, any_host: bool) -> None:
        self._state = state
        self._any_host = any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            return

        async def replay() -> Message:
            return {"type": "http.request", "body": body}

        request = Request(scope, replay)
        path = raw_path(request)
        if path.startswith(PREFIX):
            status, body = run_command(self._state, request, body, self._any_host)
            await _send(send, Answer(status, body, {"Allow": "POST"}))
            return
        # A request in flight during a reset must not be written to the new log.
        log, arrived = self._state.log, self._state.clock.now()
        operation, path_id = find_operation(path)
        endpoint = operation.path if operation else path
        fault = self._state.faults.next(endpoint)
        answer = await self._answer(request, body, operation, path_id, fault)
        if self._state.settings.latency:
            await asyncio.sleep(self._state.settings.latency)
        log.add(
            Entry(
                time=arrived,
                method=request.method,
                path=path,
                endpoint=endpoint,
                query_string=scope["query_string"].decode("latin-1"),
                headers=request.headers,
                body=body,
                status=answer.status if answer else 0,
                client_port=scope["client"][1],
            )
        )
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
        self, request: Request, body: bytes, operation: Operation | None, path_id: str, fault: Fault | None
    ) -> Answer | None:
        """The response, or ``None`` if the connection is to be closed without one."""
        if fault is None:
            return await self._true_answer(request, body, operation, path_id)
        if fault.kind == "drop":
            return None
        if fault.kind in _PLANNED_STATUSES and not fault.done:
            return _planned_answer(request, fault)
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        answer = await self._true_answer(request, body, operation, path_id)
        match fault.kind:
            case "no_answer":
                return None
            case "broken_json":
                return replace(answer, body=answer.body[: len(answer.body) * 2 // 3])
            case "slow" | "drip" | "cut_body":
                return answer
        return _planned_answer(request, fault)

    async def _true_answer(
        self, request: Request, body: bytes, operation: Operation | None, path_id: str
    ) -> Answer:
        try:
            if operation is None:
                raise ServiceError("NotFound", "There is no such path.", status=404)
            if request.method != operation.method:
                allowed = {"Allow": operation.method}
                raise ServiceError("MethodNotAllowed", f"Use {operation.method}.", 405, allowed)
            self._let_in(request, operation)
            arguments = await _arguments(request, body, operation, path_id)
            data = operation.handle(self._state, **arguments)
        except ServiceError as error:
            return _refusal(request, error)
        return Answer(200, success_body(data, operation.data_app))

    def _let_in(self, request: Request, operation: Operation) -> None:
        """Refuse a caller who is over the limit or unknown, or whose plan is too low."""
        state, tier = self._state, self._state.settings.tier
        if operation.data_app:
            data_app_author(request.headers)
            return
        state.limits.check(state.settings, request.scope["client"][0], operation.status_limit)
        if not operation.needs_token:
            refuse_credentials(request.headers)
            return
        takes_api_key = operation.takes_api_key or state.settings.api_key_everywhere
        check_credential(request.headers, state.tokens, takes_api_key)
        if tier not in operation.tiers:
            raise ServiceError("PermissionDenied", f"The plan {tier} does not include this.", status=403)


#: Of the failures with a response of their own.
_PLANNED_STATUSES = {"status": 500, "error_200": 200, "html": 502, "redirect": 307, "raw": 200}


def _planned_answer(request: Request, fault: Fault) -> Answer:
    status = fault.status or _PLANNED_STATUSES[fault.kind]
    match fault.kind:
        case "raw":
            return Answer(status, fault.body, fault.headers, content_type=None)
        case "html":
            page = f"<html><body><h1>{status} {responses.get(status, '')}</h1></body></html>"
            return Answer(status, page.encode(), fault.headers, "text/html")
        case "redirect":
            return Answer(status, b"", {"Location": fault.to, **fault.headers})
    code = fault.code or _CODES.get(status, "ServerError")
    return _refusal(request, ServiceError(code, fault.message, status, fault.headers))


def _refusal(request: Request, error: ServiceError) -> Answer:
    data_app = raw_path(request).startswith(DATAHUB_PREFIX + "/")
    return Answer(error.status, error_body(error, data_app), error.headers)


async def _arguments(request: Request, body: bytes, operation: Operation, path_id: str) -> dict[str, Any]:
    """
    The arguments of a call, checked.

    :raises ServiceError: one is missing, invalid or unknown, or not where the operation takes it.
    """
    query = query_values(request.scope["query_string"].decode("latin-1"))
    if operation.takes != "query" and query:
        raise invalid(f"Unknown query parameter {next(iter(query))}.")
    if operation.takes in ("query", "path") and body:
        raise invalid("This endpoint takes no body.")
    match operation.takes:
        case "query":
            return operation.parameters.check_query(query)
        case "path":
            author = data_app_author(request.headers)
            return operation.parameters.check({"app_id": path_id, "author": author})
        case "form":
            return operation.parameters.check(await _form(request))
        case "json" if operation.body_may_be_empty and body.strip() in (b"", b"null"):
            return operation.parameters.check({})
        case "json":
            return operation.parameters.check(json_object(request.headers.get("content-type", ""), body))


async def _form(request: Request) -> dict[str, str | bytes]:
    """
    The fields of a multipart body.

    :raises ServiceError: the body is not multipart, or a field is given twice.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise invalid("The Content-Type must be multipart/form-data.")
    try:
        async with request.form() as form:
            # A file without a name counts as a text, which is no file, and must not be taken for base64.
            fields = [
                (name, await value.read() if isinstance(value, UploadFile) else value)
                for name, value in form.multi_items()
                if isinstance(value, UploadFile) or name != "file"
            ]
    except (MultiPartException, ValueError) as error:
        raise invalid(f"The form cannot be read: {error}") from error
    if len(dict(fields)) < len(fields):
        raise invalid("A form field is given twice.")
    return dict(fields)


async def _body(receive: Receive) -> bytes | None:
    """The body of a request, or ``None`` if the client disconnected before sending all of it."""
    # The same as Request.body(), which takes a tenth more time for a request.
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message["body"])
        if not message["more_body"]:
            return b"".join(chunks)


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

    def __exit__(self, *error: object) -> None:
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
