"""What both drivers need to put a request on the wire."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.service.effects import Request
    from airflow_provider_webcollect.service.settings import Settings


def ca_bundle(settings: Settings) -> str | None:
    """Return the file of certificate authorities to trust, or None for the usual ones."""
    return settings.ca_file or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")


class _Pieces:
    """A streamed body that knows its length, which requests needs to send ``Content-Length``."""

    def __init__(self, pieces: Any, length: int) -> None:
        self._pieces = pieces
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


@contextlib.contextmanager
def multipart(request: Request) -> Iterator[tuple[dict[str, str], Any]]:
    """Give the extra headers and the content of a request; a file is streamed as multipart, encoded by httpx."""
    if request.file is None:
        yield {}, request.content
        return
    import httpx

    with request.file.open() as file:
        form = httpx.Request(
            request.method,
            request.url,
            data=request.form,
            files={"file": (request.file.name, file, "text/plain")},
        )
        headers = {name: form.headers[name] for name in ("Content-Type", "Content-Length")}
        yield headers, _Pieces(form.stream, int(headers["Content-Length"]))
