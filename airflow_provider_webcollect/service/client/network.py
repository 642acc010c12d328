"""What both drivers need to put a request on the wire."""

from __future__ import annotations

import contextlib
import os
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.service.flow import Request
    from airflow_provider_webcollect.service.settings import Settings

#: Bytes of a file that are sent at a time.
PIECE_BYTES = 64 * 1024


def ca_bundle(settings: Settings) -> str | None:
    """Return the file, or folder, of certificate authorities to trust, or None for the usual ones.

    :raises InvalidArgument: if it is not there.
    """
    chosen = settings.ca_file or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    if chosen and not Path(chosen).exists():
        raise InvalidArgument("ca_file", chosen, "there must be such a file on this machine")
    return chosen or None


def is_untrusted(error: BaseException) -> bool:
    """Return whether ``error`` comes from TLS itself: a certificate, or no common version.

    An encrypted connection that just breaks off shows as an SSL error too.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
        cause = cause.__cause__ or cause.__context__
    return False


@dataclass(frozen=True)
class Form:
    """A multipart body that is streamed; its length is known beforehand, for ``Content-Length``."""

    head: bytes
    file: BinaryIO
    file_bytes: int
    tail: bytes

    def __len__(self) -> int:
        return len(self.head) + self.file_bytes + len(self.tail)

    def __iter__(self) -> Iterator[bytes]:
        yield self.head
        while piece := self.file.read(PIECE_BYTES):
            yield piece
        yield self.tail


@contextlib.contextmanager
def content_of(request: Request) -> Iterator[tuple[dict[str, str], bytes | Form | None]]:
    """Give the content of a request and the headers that go with it; a file is streamed as multipart."""
    if request.file is None:
        yield {}, request.content
        return
    boundary = secrets.token_hex(16)
    fields = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in (request.form or {}).items()
    )
    head = (
        f'{fields}--{boundary}\r\nContent-Disposition: form-data; name="file"; '
        f'filename="{_quoted(request.file.name)}"\r\nContent-Type: text/plain\r\n\r\n'
    )
    with request.file.open() as file:
        form = Form(head.encode(), file, request.file.size, f"\r\n--{boundary}--\r\n".encode())
        headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(form)),
        }
        yield headers, form


def _quoted(name: str) -> str:
    """Return a file name as forms spell it (WHATWG, multipart/form-data encoding)."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
