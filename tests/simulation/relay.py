"""A relay before an object store's server: it records requests, and loses or refuses them as networks do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.storages import Storage


class Request(NamedTuple):
    """A received request.

    :param path: path of the object, with the bucket; for a listing, of the bucket alone.
    :param bytes: the number of bytes in its body.
    """

    method: str
    path: str
    bytes: int


class Relay(ThreadingHTTPServer):
    """Passes requests on to a server.

    :param server: URL of the server.
    """

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Relayed)
        self.server = server.removeprefix("http://")
        #: headers that do not arrive, as if the server did not support them
        self.removed: set[str] = set()
        #: headers whose requests are refused, as some stores do that do not support them
        self.refused: set[str] = set()
        #: what other clients do before a PUT arrives, one function for each PUT
        self.others: list[Callable[[], object]] = []
        #: responses to the next writes, instead of the server's: the status, the headers and the content
        self.refusals: list[tuple[int, dict[str, str], bytes]] = []
        #: methods of requests whose responses get lost, one request for each entry
        self.lose: list[str] = []
        #: the received requests
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def methods(self) -> list[str]:
        """The methods of the received requests."""
        return [request.method for request in self.requests]


class _Relayed(BaseHTTPRequestHandler):
    server: Relay
    # the version with answers to `Expect: 100-continue`
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self._body()
        path = urlsplit(self.path).path.strip("/")
        self.server.requests.append(Request(self.command, path, len(body)))
        removed = {"expect", "transfer-encoding", *self.server.removed}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in removed}
        if self.server.refused.intersection(map(str.lower, headers)):
            self._answer(501, {}, b"<Error><Code>NotImplemented</Code></Error>")
            return
        if self.command in {"POST", "PUT"} and self.server.refusals:
            self._answer(*self.server.refusals.pop(0))
            return
        upstream = HTTPConnection(self.server.server)
        if self.command == "PUT" and self.server.others:
            self.server.others.pop(0)()
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        self.close_connection = True
        if self.command in self.server.lose:
            self.server.lose.remove(self.command)
            return
        self._answer(answer.status, dict(answer.getheaders()), content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in {"connection", "content-length", "transfer-encoding"}:
                self.send_header(name, value)
        # a response to HEAD has no content, but the length of the file
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = _pass_on  # noqa: N815  # as the base class calls them

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def relayed(storage: Storage) -> Iterator[tuple[Storage, Relay]]:
    """Reach a storage through a relay."""
    (server,) = re.findall(r"http://127\.0\.0\.1:\d+", str(storage.options))
    with Relay(server) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        options = {name: value.replace(server, relay.url) for name, value in storage.options.items()}
        try:
            yield replace(storage, options=options), relay
        finally:
            relay.shutdown()
