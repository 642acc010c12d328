"""Small servers for what the sandbox cannot do: other hosts, TLS, proxies, and responses byte by byte."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.settings import TIMING, ClientTiming, Credentials, Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore
from tests.interruption import PATIENCE


def refusal(code: str, status: int = 400) -> bytes:
    """Return the bytes of an error response of the service."""
    error = {"error": {"code": code, "message": "m"}, "requestId": "r"}
    return answer(json.dumps(error).encode(), status)


def answer(body: bytes | dict[str, object] | list[object], status: int = 200, **headers: str) -> bytes:
    """Return the bytes of an HTTP response; a dict or list is the ``data`` of a success."""
    content = body if isinstance(body, bytes) else json.dumps({"data": body, "requestId": "r"}).encode()
    fields = {
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Connection": "close",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + content


@dataclass
class Server:
    """A server on loopback that answers one request per connection, several connections at once.

    :param respond: takes the request's bytes, and returns the response's bytes or pieces; with None, the
        caller gets no response.
    :param context: TLS context of a server that speaks TLS.
    :param tunnel: TLS context of a proxy that accepts every CONNECT and itself is the server behind it.
    """

    respond: Callable[[bytes], bytes | Iterator[bytes] | None]
    context: ssl.SSLContext | None = None
    tunnel: ssl.SSLContext | None = None
    received: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    open_ends: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                break
            self.connections += 1
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()
        for connection in self.open_ends:
            connection.close()

    def _serve_one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.context:
                connection = self.context.wrap_socket(connection, server_side=True)
            connection.settimeout(PATIENCE)
            if self.tunnel:
                self._request(connection)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                connection = self.tunnel.wrap_socket(connection, server_side=True)
            said = self.respond(self._request(connection))
            if said is None:
                self.open_ends.append(connection)
                return
            for piece in (said,) if isinstance(said, bytes) else said:
                connection.sendall(piece)
        connection.close()

    def _request(self, connection: socket.socket) -> bytes:
        request = b""
        while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
            request += piece
        head, _, body = request.partition(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                while len(body) < int(line[15:]):
                    body += connection.recv(65536)
        self.received.append(head + b"\r\n\r\n" + body)
        return self.received[-1]


@contextlib.contextmanager
def serving(
    respond: Callable[[bytes], bytes | Iterator[bytes] | None],
    context: ssl.SSLContext | None = None,
    tunnel: ssl.SSLContext | None = None,
    port: int = 0,
) -> Iterator[Server]:
    """Run a server while the block runs."""
    server = Server(respond, context, tunnel)
    with socket.create_server(("127.0.0.1", port)) as listener:
        server.port = listener.getsockname()[1]
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)


def make_authority(folder: Path, name: str = "127.0.0.1") -> tuple[Path, ssl.SSLContext]:
    """Make a certificate for ``name`` that is its own authority.

    :return: the authority's file, and the server's TLS context.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")])
    own = x509.CertificateBuilder(
        subject, subject, key.public_key(), x509.random_serial_number(), now - day, now + day
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))])
    own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = own.add_extension(names, critical=False).sign(key, hashes.SHA256())
    text, encoding = certificate.public_bytes(serialization.Encoding.PEM), serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    authority_file, server_file = folder / "authority.pem", folder / "server.pem"
    authority_file.write_bytes(text)
    server_file.write_bytes(secret + text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_file)
    return authority_file, context


def query_number(request: bytes, name: bytes = b"offset") -> int:
    """Return the number in a request's query parameter."""
    match = re.search(rb"[?&]%s=(\d+)" % name, request)
    assert match
    return int(match[1])


def client_of(server: Server, timing: ClientTiming = TIMING, **more: Any) -> Client:
    """Return a client of a server, without a rate limit, with ``more`` settings."""
    settings = Settings(base_url=server.url, requests_per_second=0, timing=timing, **more)
    name = f"pages:{server.url}"
    return Client(make_context(settings, Credentials(access_token="t"), name, MemoryTokenStore(name)))
