"""Reading answers: the envelope, the ``data`` in it, and the errors.

An ``error`` member decides, whatever the HTTP status (field notes, Errors).
"""

from __future__ import annotations

import email.utils
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from airflow_provider_webcollect.service.call import Call, Credential
from airflow_provider_webcollect.service.errors import (
    DataAppError,
    MalformedAnswer,
    ServiceError,
    WebCollectError,
    service_error_type,
)
from airflow_provider_webcollect.service.records import DataPage, Record, TaskStatus, read_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T", covariant=True)
D = TypeVar("D")
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read to its end. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    # the answer of the token endpoint is a secret
    body: bytes = field(repr=False)


class _Envelope(msgspec.Struct, Generic[D], rename="camel"):
    data: D | msgspec.UnsetType = msgspec.UNSET
    error: Any = None
    request_id: Any = None


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """How the ``data`` of an answer becomes a ``T``.

    :param decode: decodes the whole answer in one pass.
    :param read: finishes the decoded ``data``; the second argument is the connection's time zone.
    """

    decode: Callable[[bytes], _Envelope[Any]]
    read: Callable[[Any, str | None], T]


class _PageOnWire(msgspec.Struct, rename="camel"):
    offset: int
    total: int
    rest_total: int
    data: list[msgspec.Raw] | None = None


#: A pair of surrogates, or any other escape that stands for itself (group 1); else a lone surrogate.
_ESCAPES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}",
    re.DOTALL,
)
_ANY = msgspec.json.Decoder(_Envelope[Any]).decode
_PAGE = msgspec.json.Decoder(_Envelope[_PageOnWire | list[_PageOnWire]], strict=False).decode


def _single(data: Any) -> Any:
    """Return the one object that ``data`` is, or holds, since the contract's tables say ``Object[]``."""
    return data[0] if isinstance(data, list) and len(data) == 1 else data


def one(record: type[R]) -> Result[R]:
    """``data`` is one object, or a list of just one."""
    return Result(_ANY, lambda data, timezone: read_record(_single(data), record, timezone))


def many(record: type[R]) -> Result[list[R]]:
    """``data`` is a list of objects; null counts as an empty one."""
    return Result(_ANY, lambda data, timezone: [read_record(item, record, timezone) for item in data or ()])


class _TaskId(Record, frozen=True):
    task_id: str


def _status_apart(item: Any, timezone: str | None) -> tuple[str, TaskStatus | MalformedAnswer]:
    task_id = read_record(item, _TaskId).task_id
    try:
        return task_id, read_record(item, TaskStatus, timezone)
    except (msgspec.ValidationError, TypeError) as mismatch:
        return task_id, MalformedAnswer(f"a record is not what the contract promises: {mismatch}")


def _statuses_by_task(data: Any, timezone: str | None) -> dict[str, TaskStatus | MalformedAnswer]:
    try:
        statuses = [read_record(item, TaskStatus, timezone) for item in data or ()]
    except (msgspec.ValidationError, TypeError):
        return dict(_status_apart(item, timezone) for item in data)
    return {status.task_id: status for status in statuses}


#: ``data`` is a list of status records, given by the tasks' ids. One that cannot be read, but for its id, is
#: an error in its own place.
STATUSES_BY_TASK: Result[dict[str, TaskStatus | MalformedAnswer]] = Result(_ANY, _statuses_by_task)


#: ``data`` is null or ``[]``: the operation has no result.
NOTHING: Result[None] = Result(_ANY, lambda data, timezone: None)


def _page_on_lines(body: bytes) -> _Envelope[Any]:
    """Decode a page so that none of its rows has a line end inside."""
    text = body.strip()
    # one look at the whole costs next to nothing, one at every row does not
    if b"\n" in text or b"\r" in text:
        # pretty-printed: in JSON text these can only be white space between tokens
        text = msgspec.json.format(text, indent=-1)
    return _PAGE(text)


def _page(data: Any, timezone: str | None) -> DataPage:
    page = _single(data)
    if not isinstance(page, _PageOnWire):
        raise msgspec.ValidationError("Expected one page")
    return DataPage(offset=page.offset, total=page.total, rest_total=page.rest_total, rows=page.data or [])


#: ``data`` is a page of rows, kept as raw JSON slices.
PAGE: Result[DataPage] = Result(_page_on_lines, _page)


def read_answer(call: Call[T], answer: Answer, timezone: str | None = None) -> T:
    """Return what the answer says.

    :param timezone: the zone of the service's times; None leaves them naive.
    :raises ServiceError: if the answer is an error, of the class that fits it.
    :raises MalformedAnswer: if it is not what the contract promises.
    """
    ok = 200 <= answer.status < 300
    decode = call.result.decode if ok else _ANY
    try:
        envelope = _decoded(decode, answer.body)
    except msgspec.DecodeError as undecodable:
        # an error under HTTP 200 has no rows, so the decoder for pages may stumble over it
        fallback = _envelope_or_none(answer.body)
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


def _decoded(decode: Callable[[bytes], _Envelope[Any]], body: bytes) -> _Envelope[Any]:
    try:
        return decode(body)
    except msgspec.DecodeError:
        # collected text may hold half an emoji, cut by whoever collected it; the decoder takes no such escape
        mended = _ESCAPES.sub(lambda found: found[0] if found[1] else b"\\ufffd", body)
        if mended == body:
            raise
        return decode(mended)


def _envelope_or_none(body: bytes) -> _Envelope[Any] | None:
    try:
        return _decoded(_ANY, body)
    except msgspec.DecodeError:
        return None


def _unreadable(call: Call[Any], answer: Answer, why: str) -> WebCollectError:
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


def _error(call: Call[Any], answer: Answer, envelope: _Envelope[Any]) -> ServiceError:
    error = envelope.error if isinstance(envelope.error, dict) else {"message": envelope.error}
    facts = {
        "code": _text(error.get("code")),
        "request_id": _text(envelope.request_id),
        "category": _text(error.get("category")),
    }
    return _typed(call, answer, _text(error.get("message")) or "no message", error.get("retryable"), **facts)


def _typed(
    call: Call[Any], answer: Answer, message: str, can_retry: Any = None, **facts: str | None
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


def retry_after(answer: Answer) -> float | None:
    """Return the seconds that the answer asks to wait; ``Retry-After`` may be seconds or an HTTP date."""
    value = answer.headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment.timestamp() - time.time())
