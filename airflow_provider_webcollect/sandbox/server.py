"""The sandbox's HTTP application, and a server that runs it in a thread of this process."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import threading
from contextlib import suppress
from http.client import responses
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
import uvicorn
import uvloop
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.control import PREFIX, Control, is_loopback, run_command
from airflow_provider_webcollect.sandbox.operations import DATAHUB_PREFIX, Operation, find_operation
from airflow_provider_webcollect.sandbox.settings import Settings
from airflow_provider_webcollect.sandbox.state import (
    REPLACEMENTS,
    Entry,
    Fault,
    ServiceError,
    State,
    check_credential,
    invalid,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Message, Receive, Scope, Send

_CATEGORIES = {401: "forbidden", 404: "not_found"}
_JSON = "application/json"
_CODES = {401: "Invalid.Token", 403: "PermissionDenied", 429: "TooManyRequests"}


def error_response(error: ServiceError, data_app: bool) -> Response:
    """Return the error envelope of the main service or of the data-app service; the two differ."""
    fields: dict[str, object] = {"code": error.code, "message": error.message}
    envelope: dict[str, object] = {"error": fields}
    if data_app:
        # InvalidParameter becomes invalid-parameter
        fields["code"] = re.sub(r"(?<=[a-z])\.?(?=[A-Z])", "-", error.code).lower()
        fields["retryable"] = error.status >= 500
        fields["category"] = _CATEGORIES.get(
            error.status, "internal" if error.status >= 500 else "invalid_request"
        )
    else:
        envelope["requestId"] = secrets.token_hex(16)
    return Response(msgspec.json.encode(envelope), error.status, error.headers, _JSON)


def success_response(data: object, data_app: bool) -> Response:
    """Return a success envelope; ``bytes`` must be JSON already. Only the main service adds a request id."""
    payload = data if isinstance(data, bytes) else msgspec.json.encode(data)
    if data_app:
        return Response(b'{"data":%b}' % payload, media_type=_JSON)
    body = b"".join((b'{"data":', payload, b',"requestId":"', secrets.token_hex(16).encode(), b'"}'))
    return Response(body, media_type=_JSON)


class App:
    """The ASGI application around one :class:`State`.

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
        path = scope["raw_path"].decode("latin-1")
        if path.startswith(PREFIX):
            status, result = run_command(
                self._state, path.removeprefix(PREFIX), request, body, self._any_host
            )
            await Response(result, status, {"Allow": "POST"}, _JSON)(scope, receive, send)
            return
        # A request in flight during a reset must not be written to the new log.
        log, arrived = self._state.log, self._state.clock.now()
        operation, path_id = find_operation(path)
        endpoint = operation.path if operation else path
        fault = self._state.next_fault(endpoint)
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
                status=answer.status_code if answer else 0,
                client_port=scope["client"][1],
            )
        )
        if answer is None:
            await _hang_up(scope, receive)
        elif fault and fault.kind == "cut_body":
            await _begin(send, answer, bytes(answer.body[: len(answer.body) // 2]))
            await _hang_up(scope, receive)
        elif fault and fault.kind == "drip":
            await _drip(send, receive, answer, fault.seconds)
        else:
            await answer(scope, receive, send)

    async def _answer(
        self, request: Request, body: bytes, operation: Operation | None, path_id: str, fault: Fault | None
    ) -> Response | None:
        """Return the response; ``None`` if the connection is to be closed without one."""
        replaced = fault is not None and fault.kind in REPLACEMENTS
        if fault and replaced and not fault.done:
            return _replacement(request, fault)
        if fault and fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        answer = await self._true_answer(request, body, operation, path_id)
        if fault and replaced:
            return _replacement(request, fault)
        if fault and fault.kind == "broken_json":
            answer.body = answer.body[: len(answer.body) * 2 // 3]
            answer.headers["Content-Length"] = str(len(answer.body))
        return answer

    async def _true_answer(
        self, request: Request, body: bytes, operation: Operation | None, path_id: str
    ) -> Response:
        try:
            if operation is None:
                raise ServiceError("NotFound", "There is no such path.", status=404)
            if request.method != operation.method:
                allowed = {"Allow": operation.method}
                raise ServiceError("MethodNotAllowed", f"Use {operation.method}.", 405, allowed)
            user = self._authorize(request, operation)
            arguments = await _arguments(request, body, operation, {"app_id": path_id, "author": user})
            data = operation.handle(self._state, **arguments)
        except ServiceError as error:
            return error_response(error, _of_data_app(request))
        return success_response(data, operation.credential == "author")

    def _authorize(self, request: Request, operation: Operation) -> str:
        """Return the user who sends a request.

        :raises ServiceError: the caller is over a limit, the credential is wrong, or the plan is too low.
        """
        state, credential, tier = self._state, operation.credential, self._state.settings.tier
        if credential != "author":
            state.limits.check(state.settings, request.scope["client"][0], operation.status_limit)
        if credential == "token" and state.settings.api_key_everywhere:
            credential = "token or key"
        user = check_credential(request.headers, credential, state.tokens)
        if tier not in operation.tiers:
            raise ServiceError("PermissionDenied", f"The plan {tier} does not include this.", status=403)
        return user


def _replacement(request: Request, fault: Fault) -> Response | None:
    match fault.kind:
        case "drop":
            return None
        case "raw":
            return Response(fault.body, fault.status or 200, fault.headers)
        case "html":
            status = fault.status or 502
            page = f"<html><body><h1>{status} {responses.get(status, '')}</h1></body></html>"
            return Response(page, status, {"Content-Type": "text/html", **fault.headers})
    status = fault.status or 500
    code = fault.code or _CODES.get(status, "ServerError")
    return error_response(ServiceError(code, fault.message, status, fault.headers), _of_data_app(request))


def _of_data_app(request: Request) -> bool:
    return bool(request.scope["raw_path"].startswith(DATAHUB_PREFIX.encode() + b"/"))


async def _arguments(
    request: Request, body: bytes, operation: Operation, of_path: dict[str, str]
) -> dict[str, Any]:
    """Return the checked arguments of a request.

    :param of_path: the arguments, if the operation takes them from its path.
    :raises ServiceError: an argument is missing, invalid or unknown, or in the wrong part of the request.
    """
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = dict(pairs)
    if len(query) < len(pairs):
        raise invalid("A query parameter is given twice.")
    if operation.takes != "query" and query:
        raise invalid(f"Unknown query parameter {next(iter(query))}.")
    if operation.takes in ("query", "path") and body:
        raise invalid("This endpoint takes no body.")
    match operation.takes:
        case "query":
            return operation.parameters.check_query(query)
        case "path":
            return operation.parameters.check(of_path)
        case "form":
            return operation.parameters.check(await _form(request))
        case "json" if operation.body_may_be_empty and body.strip() in (b"", b"null"):
            return operation.parameters.check({})
        case "json":
            return operation.parameters.check(json_object(request.headers.get("content-type", ""), body))


def json_object(content_type: str, body: bytes) -> dict[str, Any]:
    """Decode a body that is a JSON object.

    :raises ServiceError: ``InvalidParameter``.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise invalid("The Content-Type must be application/json.")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"The body is not a JSON object: {error}") from error


async def _form(request: Request) -> dict[str, str | bytes]:
    """Return the fields of a multipart body.

    :raises ServiceError: the body is not multipart, or a field is given twice.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise invalid("The Content-Type must be multipart/form-data.")
    try:
        async with request.form() as form:
            # The parser returns a part without a file name as text. As `file` it is left out: it would be
            # decoded as Base64.
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
    """Return the body of a request; ``None`` if the client disconnected before sending all of it."""
    # This does the same as Request.body(), with which a whole request takes a tenth longer.
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message["body"])
        if not message["more_body"]:
            return b"".join(chunks)


async def _begin(send: Send, answer: Response, body: bytes = b"") -> None:
    """Send the head of a response and ``body``, the beginning of its body."""
    head = {"status": answer.status_code, "headers": answer.raw_headers}
    await send({"type": "http.response.start", **head})
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _drip(send: Send, receive: Receive, answer: Response, pause: float) -> None:
    """Send a response byte by byte, until it is complete or the client disconnects."""
    await _begin(send, answer)
    for at in range(len(answer.body)):
        await send({"type": "http.response.body", "body": answer.body[at : at + 1], "more_body": True})
        with suppress(TimeoutError):
            await asyncio.wait_for(receive(), pause)
            return
    await send({"type": "http.response.body", "body": b""})


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """Close the connection after the data sent so far, and wait until the server reports this."""
    scope["extensions"]["webcollect.hang_up"]()
    while (await receive())["type"] != "http.disconnect":
        pass


LAST_PORT = 65535


class Sandbox:
    """A running sandbox, as a context manager.

    :param settings: settings of the sandbox; by default their defaults.
    :param port: port to listen on; 0 for a free one.
    :param host: address to listen on.
    :param allow_remote: allow a ``host`` other than this machine's loopback; control commands then accept any
        ``Host`` header. Everyone who can reach the sandbox can then control it, and make it serve the rows of
        any table file on this machine.
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
            raise ValueError(f"{host} is not a loopback address; all who reach a sandbox control it")
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
        """A refresh token that is valid only in this sandbox; it works once."""
        return self._state.tokens.first_refresh

    @property
    def control(self) -> Control:
        """A client that controls this sandbox."""
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
