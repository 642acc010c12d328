"""A sandbox in a thread of this process."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.app import App
from airflow_provider_webcollect.sandbox.control import Control
from airflow_provider_webcollect.sandbox.operations import DATAHUB_PREFIX
from airflow_provider_webcollect.sandbox.settings import Settings
from airflow_provider_webcollect.sandbox.state import State

if TYPE_CHECKING:
    from types import TracebackType


class Sandbox:
    """
    A running sandbox, as a context manager.

    :param settings: how it behaves.
    :param port: 0 takes a free one.
    :param host: address to listen on.
    :param allow_remote: let ``host`` be other than this machine's loopback. Whoever can reach the sandbox can
        steer it, and make it serve the rows of any table on this machine.
    :raises ValueError: ``host`` is not loopback, or a setting does not fit.
    """

    username = demo.USERNAME
    password = demo.PASSWORD
    access_token = demo.ACCESS_TOKEN
    refresh_token = demo.REFRESH_TOKEN
    api_key = demo.API_KEY
    datahub_api_key = demo.DATAHUB_API_KEY

    def __init__(
        self,
        settings: Settings | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        allow_remote: bool = False,
    ) -> None:
        if not allow_remote and not _is_loopback(host):
            raise ValueError(f"{host} is not a loopback address; the sandbox has no secrets worth the name")
        self._state = State(settings or Settings())
        self._host = host
        self._port = port
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="webcollect-sandbox", daemon=True)
        self._listening = threading.Event()

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
    def control(self) -> Control:
        """What steers this sandbox."""
        return Control(self.url)

    def __enter__(self) -> Sandbox:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.create_server((self._host, self._port), family=family, backlog=1024)
        self._port = self._socket.getsockname()[1]
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        config = uvicorn.Config(
            App(self._state), log_config=None, access_log=False, lifespan="off", ws="none"
        )
        shared = ServerState()
        make = lambda: _Protocol(config, shared, {}, self._loop)  # noqa: E731
        server = self._loop.run_until_complete(self._loop.create_server(make, sock=self._socket))
        self._listening.set()
        self._loop.run_forever()
        server.close()
        for connection in list(shared.connections):
            connection.transport.abort()
        for task in list(shared.tasks):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*shared.tasks, return_exceptions=True))
        self._loop.run_until_complete(server.wait_closed())
        self._loop.close()


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which also lets the application hang up without an answer."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"webcollect.hang_up": self.transport.close}  # type: ignore[dict-item]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
