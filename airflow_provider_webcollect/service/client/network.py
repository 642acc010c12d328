"""Functions of both drivers: certificate authorities, proxies, and the upload of a file."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    ProxyUnusable,
    TlsError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from requests_toolbelt import MultipartEncoder

    from airflow_provider_webcollect.service.flow import Request
    from airflow_provider_webcollect.service.settings import Settings

_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


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


@contextlib.contextmanager
def upload_of(request: Request) -> Iterator[tuple[dict[str, str], MultipartEncoder]]:
    """Yield the headers and the content of a request with a file, which is streamed as multipart.

    The libraries' own multipart does not do: requests reads the whole file into memory, and httpx reads it
    in the event loop and leaves out its length.
    """
    from requests_toolbelt import MultipartEncoder

    assert request.file is not None
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(request.file.open())
        except OSError as error:
            raise InvalidArgument("file", request.file.name, f"it must be readable ({error})") from None
        form = MultipartEncoder({**(request.form or {}), "file": (request.file.name, file, "text/plain")})
        yield {"Content-Type": form.content_type, "Content-Length": str(form.len)}, form
