"""Conversion of a response, or of a failed request, to a result or a :class:`WebCollectError`.

An ``error`` member means failure under any HTTP status (assumptions.md, Errors). An error response without
one did not come from the service, but from something in between, such as a gateway, so a retry may help.
"""

from __future__ import annotations

import email.utils
import re
import ssl
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from airflow_provider_webcollect.service.endpoints import Call, Credential
from airflow_provider_webcollect.service.errors import (
    DataAppError,
    MalformedResponse,
    NoResponse,
    ProxyUnusable,
    ResponseTooDeep,
    ResponseTooLarge,
    ServiceError,
    ServiceUnreachable,
    TlsError,
    TokenRejected,
    TooManyRequests,
    TransportError,
    WebCollectError,
    service_error_type,
)
from airflow_provider_webcollect.service.models import spelling
from airflow_provider_webcollect.service.results import NOTHING, Envelope, any_data, decoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T", covariant=True)

#: Upper bound of ``Retry-After`` in seconds: a day.
LONGEST_RETRY_AFTER = 86_400.0
#: The message of both libraries about a proxy that requires a login.
_LOGIN_WANTED = re.compile(r"(^|Tunnel connection failed: )407\b")


class NotConnected(Exception):
    """Raised by a driver, from the cause, if there was no connection to send the request over."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response, read to its end. Header names are in lower case.

    :ivar seconds: from sending the request to the end of the response.
    """

    status: int
    headers: Mapping[str, str]
    # the response of the token endpoint is a secret
    body: bytes = field(repr=False)
    seconds: float = 0.0


def base_of(url: str) -> str:
    """Return scheme, host and port of ``url``, the key for connections that are kept open."""
    return "/".join(url.split("/", 3)[:3])


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


def read_response(call: Call[T], response: Response, timezone: str | None = None) -> T:
    """Return the result in a response.

    :param timezone: the zone of the service's times; None leaves them naive.
    :raises WebCollectError: of the matching class, if there is no result.
    """
    ok = 200 <= response.status < 300
    if response.status == 204 and call.result is NOTHING:
        return None  # type: ignore[return-value]  # which is the T of NOTHING
    envelope = _envelope(call, response, ok)
    if envelope.error is not None and (envelope.error or not ok):
        raise _service_error(call, response, envelope)
    if not ok:
        raise _no_envelope(response)
    if envelope.data is msgspec.UNSET and call.result is not NOTHING:
        raise _malformed(response, "`data` is missing")
    try:
        return call.result.read(envelope.data, timezone)
    except Exception as mismatch:
        raise _malformed(response, str(mismatch)) from mismatch


def _envelope(call: Call[Any], response: Response, ok: bool) -> Envelope[Any]:
    """Return the response's envelope; an empty one if there is none and the status is an error."""
    try:
        return decoded(call.result.decode if ok else any_data, response.body)
    except RecursionError as too_deep:
        if ok:
            raise ResponseTooDeep(
                "the JSON is nested too deeply to be read", **_facts(response)
            ) from too_deep
    except Exception as undecodable:
        if ok:
            raise _malformed(response, str(undecodable)) from undecodable
    return Envelope()


def _malformed(response: Response, why: str) -> MalformedResponse:
    kind = response.headers.get("content-type", "no content type")
    return MalformedResponse(
        f"the response is not what the contract promises ({kind}, {len(response.body)} bytes): {why}",
        **_facts(response),
    )


def _no_envelope(response: Response) -> WebCollectError:
    """Return the error for an error response without the service's envelope."""
    challenge = response.headers.get("www-authenticate", "").lower()
    if response.status == 407:
        return ProxyUnusable("the proxy wants a login, or another one", **_facts(response))
    if response.status == 429:
        return TooManyRequests("there is no error envelope", **_facts(response))
    if response.status == 401 and challenge.startswith("bearer") and not response.body.strip():
        return TokenRejected("the credential is rejected, without a word", **_facts(response))
    return _malformed(response, "there is no error envelope")


def _service_error(call: Call[Any], response: Response, envelope: Envelope[Any]) -> ServiceError:
    error = {"message": envelope.error}
    if isinstance(envelope.error, dict):
        error = {spelling(key): value for key, value in envelope.error.items()}
    code, can_retry = _text(error.get("code")), error.get("retryable")
    message = _text(error.get("message")) or "no message"
    facts = {
        **_facts(response),
        "code": code,
        "request_id": _text(envelope.request_id),
        "category": _text(error.get("category")),
    }
    if call.endpoint.credential is Credential.DATAHUB_KEY:
        if response.status == 404:
            message = f"{message} (the caller is not the author, or there is no such app)"
        elif isinstance(can_retry, bool) and response.status not in {401, 429}:
            return DataAppError(message, can_retry=can_retry, **facts)
    return service_error_type(response.status, code)(message, **facts)


def _facts(response: Response) -> dict[str, Any]:
    return {"status": response.status, "retry_after": retry_after(response)}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def retry_after(response: Response) -> float | None:
    """Return ``Retry-After`` in seconds; the header may have seconds or an HTTP date."""
    value = response.headers.get("retry-after", "").strip()
    try:
        if value.isdecimal():
            return min(float(value), LONGEST_RETRY_AFTER)
        seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER)


def no_response(error: Exception, address: str) -> TransportError:
    """Return the error for a request without a response; its class says whether the request was sent."""
    if not isinstance(error, NotConnected):
        return NoResponse(f"no complete response: {str(error) or type(error).__name__}")
    causes = list(_causes(error))
    said = str(error.__cause__) or type(error.__cause__).__name__
    if any(_is_untrusted(each) for each in causes):
        return TlsError(f"no trusted connection: {said}")
    if any(_LOGIN_WANTED.search(str(each)) for each in causes):
        return ProxyUnusable(f"the proxy wants a login, or another one: {said}")
    return ServiceUnreachable(f"no connection to {address}: {said}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of ``error``; urllib3 has some of them only in the exception's arguments."""
    for cause in (*error.args, error.__cause__):
        if isinstance(cause, BaseException):
            yield cause
            yield from _causes(cause)


def _is_untrusted(error: BaseException) -> bool:
    """Return whether TLS itself failed; a connection that is closed too early also raises an SSL error."""
    broken = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, broken)
