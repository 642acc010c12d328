"""A proxy in front of the sandbox, for odd answers that the sandbox itself does not give."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Forwarding(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: str
    edit: Any

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        request = urllib.request.Request(
            self.target + self.path,
            data=self.rfile.read(length) if length else None,
            method=self.command,
            headers={name: value for name, value in self.headers.items() if name.lower() != "host"},
        )
        try:
            with urllib.request.urlopen(request) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        status, changed = self.edit(self.path, status, json.loads(body))
        body = json.dumps(changed).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # whoever was interrupted does not read it
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  # as http.server wants it

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def proxy(target: str, edit: Callable[[str, int, Any], tuple[int, Any]]) -> Iterator[str]:
    """Pass requests on to ``target`` and their answers through ``edit``, and give the URL to send them to.

    :param edit: takes the request's path and the answer's status and JSON, and returns the latter two.
    """
    handler = type("Handler", (_Forwarding,), {"target": target, "edit": staticmethod(edit)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
