"""A sandbox in a thread of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.app import App
from airflow_provider_webcollect.sandbox.control_client import Control
from airflow_provider_webcollect.sandbox.control_server import is_loopback
from airflow_provider_webcollect.sandbox.operations import DATAHUB_PREFIX
from airflow_provider_webcollect.sandbox.settings import Settings
from airflow_provider_webcollect.sandbox.state import State

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

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
