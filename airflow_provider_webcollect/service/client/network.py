"""Functions of both drivers for sending a request and reading its response."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import ssl
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    ProxyUnusable,
    ResponseTooLarge,
    TlsError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from requests_toolbelt import MultipartEncoder

    from airflow_provider_webcollect.service.flow import Request
    from airflow_provider_webcollect.service.settings import Settings

#: Bytes of a file that are sent, and of a response that are read, at a time.
SENT_BYTES = 64 * 1024
READ_BYTES = 1024 * 1024
#: Bytes of a response that a caller can read before the rest has arrived.
HEAD_BYTES = 1024
_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


def base_of(url: str) -> str:
    """Return scheme, host and port of ``url``, the key for connections that are kept open."""
    return "/".join(url.split("/", 3)[:3])


def trust(url: str, settings: Settings) -> ssl.SSLContext:
    """Return the context that verifies TLS connections to ``url``; for http it trusts no certificates.

    :raises InvalidArgument: if the file or folder of certificate authorities does not exist.
    :raises TlsError: if it has no certificate authorities.
    """
    from requests.utils import DEFAULT_CA_BUNDLE_PATH

    chosen = settings.ca_file or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    bundle = Path(chosen or DEFAULT_CA_BUNDLE_PATH)
    if not bundle.exists():
        raise InvalidArgument("ca_file", chosen, "there must be such a file on this machine")
    if not url.startswith("https:"):
        # loading the certificate authorities takes tens of milliseconds
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    cafile, capath = (None, bundle) if bundle.is_dir() else (bundle, None)
    try:
        return ssl.create_default_context(cafile=cafile, capath=capath)
    except OSError as error:
        raise TlsError(f"{bundle} holds no certificate authorities: {error}") from error


def proxy_for(url: str, socks_library: str) -> str | None:
    """Return the URL of the proxy that the environment names for ``url``, or None for a direct connection.

    :param socks_library: the module that the driver's HTTP library needs for a SOCKS proxy.
    :raises ProxyUnusable: if the URL is not a proxy's address, or that of a SOCKS proxy without that module.
        The message does not show the URL, which may have a password.
    """
    import urllib3.util
    from requests.utils import get_environ_proxies, select_proxy

    given = select_proxy(url, get_environ_proxies(url))
    if not given:
        return None
    variable = f"{url.partition(':')[0].upper()}_PROXY (or ALL_PROXY)"
    scheme, _, rest = given.rpartition("://")
    proxy = f"{scheme.lower() or 'http'}://{rest}"
    try:
        parts = urllib3.util.parse_url(proxy)
        usable = parts.scheme in _PROXY_SCHEMES and bool((parts.host or "").encode("idna"))
    except ValueError:
        usable = False
    if not usable:
        rule = f"it must be a URL with a host and one of the schemes {', '.join(_PROXY_SCHEMES)}"
        raise ProxyUnusable(f"{variable} is not the address of a proxy: {rule}.")
    if proxy.startswith("socks") and importlib.util.find_spec(socks_library) is None:
        raise ProxyUnusable(
            f"{variable} names a SOCKS proxy, which takes libraries that are missing: "
            "pip install 'requests[socks]' 'httpx[socks]'."
        )
    return proxy


class Body:
    """The body of a response, decompressed while it arrives.

    :param headers: of the response, with names in lower case.
    :param most: size limit of the decompressed body, in bytes.
    """

    def __init__(self, headers: Mapping[str, str], most: int) -> None:
        packed = headers.get("content-encoding", "").strip().lower() in {"gzip", "x-gzip", "deflate"}
        # 32: detect gzip or zlib by the header
        self._unpacking = zlib.decompressobj(32 + zlib.MAX_WBITS) if packed else None
        self._most = self._left = most
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Add the next piece that was received.

        :raises ResponseTooLarge: if the body exceeds the limit.
        :raises EOFError: if more bytes follow the compressed data.
        """
        if self._unpacking:
            piece = self._unpacking.decompress(piece, self._left + 1)
            if self._unpacking.unused_data:
                raise EOFError("bytes follow the packed response")
        self._left -= len(piece)
        if self._left < 0:
            raise ResponseTooLarge(f"the response holds more than {self._most:,} bytes")
        self._pieces.append(piece)

    def so_far(self) -> bytes:
        """Return the bytes that have arrived so far."""
        return b"".join(self._pieces)

    def read(self) -> bytes:
        """Return the whole body.

        :raises EOFError: if the compressed data is incomplete.
        """
        if self._unpacking and self._pieces and not self._unpacking.eof:
            raise EOFError("the packed response is cut")
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


@contextlib.contextmanager
def content_of(request: Request) -> Iterator[tuple[dict[str, str], bytes | MultipartEncoder | None]]:
    """Yield the headers of a request's content, and the content; a file is streamed as multipart."""
    if request.file is None:
        yield {}, request.content
        return
    from requests_toolbelt import MultipartEncoder

    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(request.file.open())
        except OSError as error:
            raise InvalidArgument("file", request.file.name, f"it must be readable ({error})") from None
        form = MultipartEncoder({**(request.form or {}), "file": (request.file.name, file, "text/plain")})
        yield {"Content-Type": form.content_type, "Content-Length": str(form.len)}, form
