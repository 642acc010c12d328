"""Reading answers: the envelope, the ``data`` in it, and the errors.

An ``error`` member decides, whatever the HTTP status (assumptions.md, Errors).
"""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from airflow_provider_webcollect.service.api.call import Call, Credential
from airflow_provider_webcollect.service.api.results import ANY_DATA, Envelope, decoded, envelope_or_none
from airflow_provider_webcollect.service.errors import (
    DataAppError,
    MalformedAnswer,
    ServiceError,
    WebCollectError,
    service_error_type,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer, read to its end. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    # the answer of the token endpoint is a secret
    body: bytes = field(repr=False)


def read_response(call: Call[T], answer: Response, timezone: str | None = None) -> T:
    """Return what the answer says.

    :param timezone: the zone of the service's times; None leaves them naive.
    :raises ServiceError: if the answer is an error, of the class that fits it.
    :raises MalformedAnswer: if it is not what the contract promises.
    """
    ok = 200 <= answer.status < 300
    decode = call.result.decode if ok else ANY_DATA
    try:
        envelope = decoded(decode, answer.body)
    except msgspec.DecodeError as undecodable:
        # an error under HTTP 200 has no rows, so the decoder for pages may stumble over it
        fallback = envelope_or_none(answer.body)
        if fallback is None or (ok and fallback.error is None):
            raise _unreadable(call, answer, str(undecodable)) from undecodable
        envelope = fallback
    if envelope.error is not None or not ok:
        raise _error(call, answer, envelope)
    if envelope.data is msgspec.UNSET:
        raise _unreadable(call, answer, "`data` is missing")
    try:
        return call.result.read(envelope.data, timezone)
    except (msgspec.ValidationError, TypeError) as mismatch:
        raise _unreadable(call, answer, str(mismatch)) from mismatch


def _unreadable(call: Call[Any], answer: Response, why: str) -> WebCollectError:
    """Return the error for an answer that is not an envelope: by its status if that says enough."""
    kind = answer.headers.get("content-type", "no content type")
    if not 200 <= answer.status < 300:
        said = f"an answer without an error envelope ({kind}); is the connection's host right?"
        error: WebCollectError = _typed(call, answer, said)
        error.enveloped = False
        return error
    message = f"the answer is not what the contract promises ({kind}, {len(answer.body)} bytes): {why}"
    error = MalformedAnswer(message, endpoint=call.endpoint.name, status=answer.status)
    error.enveloped = False
    return error


def _error(call: Call[Any], answer: Response, envelope: Envelope[Any]) -> ServiceError:
    error = envelope.error if isinstance(envelope.error, dict) else {"message": envelope.error}
    facts = {
        "code": _text(error.get("code")),
        "request_id": _text(envelope.request_id),
        "category": _text(error.get("category")),
    }
    return _typed(call, answer, _text(error.get("message")) or "no message", error.get("retryable"), **facts)


def _typed(
    call: Call[Any], answer: Response, message: str, can_retry: Any = None, **facts: str | None
) -> ServiceError:
    common: dict[str, Any] = {
        **facts,
        "endpoint": call.endpoint.name,
        "status": answer.status,
        "retry_after": retry_after(answer),
    }
    if call.endpoint.credential is Credential.DATAHUB_KEY:
        if answer.status == 404:
            message = f"{message} (the caller is not the author, or there is no such app)"
        elif isinstance(can_retry, bool) and answer.status not in {401, 429}:
            return DataAppError(message, can_retry=can_retry, **common)
    return service_error_type(answer.status, facts.get("code"))(message, **common)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def retry_after(answer: Response) -> float | None:
    """Return the seconds that the answer asks to wait; ``Retry-After`` may be seconds or an HTTP date."""
    value = answer.headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment.timestamp() - time.time())
