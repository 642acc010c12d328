"""Conversion of a response's bytes to a result, or to a :class:`WebCollectError`.

The contract's tables and samples disagree about the shape of ``data``, so both shapes are accepted. Records
are read as :mod:`.models` describes. An ``error`` member means a failure under any HTTP status
(assumptions.md, Errors). An error response without this member does not come from the service, but from
something in between, such as a gateway, so a retry may help.
"""

from __future__ import annotations

import codecs
import datetime
import email.message
import email.utils
import json
import logging
import math
import re
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
import pendulum

from airflow_provider_webcollect.service.errors import (
    DataAppError,
    MalformedResponse,
    NoResponse,
    ProxyUnusable,
    RequestRejected,
    ResponseTooDeep,
    ServiceError,
    ServiceUnreachable,
    TlsError,
    TokenRejected,
    TooManyRequests,
    TransportError,
    WebCollectError,
    escaped,
    quoted,
    service_error_type,
)
from airflow_provider_webcollect.service.models import (
    AnalyticsPage,
    DataPage,
    Identifier,
    Integer,
    Record,
    TaskStatus,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

log = logging.getLogger(__name__)

T = TypeVar("T", covariant=True)
D = TypeVar("D")
R = TypeVar("R", bound=Record)
#: Reads a field of a record; the second argument is the connection's time zone.
FieldReader = Callable[[Any, str | None], Any]


class Envelope(msgspec.Struct, Generic[D], rename="camel"):
    """The members of every response (contract.md, Conventions)."""

    data: D | msgspec.UnsetType = msgspec.UNSET
    error: Any = None
    request_id: Any = None


class Result(msgspec.Struct, Generic[T], frozen=True):
    """The conversion of a response's ``data`` to a ``T``.

    :param kind: the name of the type ``T``, for signatures.
    :param decode: decodes the whole response in one pass.
    :param read: converts the decoded ``data``; the second argument is the connection's time zone.
    """

    kind: str
    decode: Callable[[bytes], Envelope[Any]]
    read: Callable[[Any, str | None], T]


class _PageOnWire(msgspec.Struct, rename="camel"):
    offset: Integer
    total: Integer
    rest_total: Integer
    data: list[msgspec.Raw] | None = None


class _PageEnvelope(Envelope[_PageOnWire | list[_PageOnWire]], rename="camel"):
    """An envelope whose page is not decoded to a dict; an error counts under the key ``Error`` too."""

    pascal_error: Any = msgspec.field(default=None, name="Error")


#: A pair of surrogates, or any other escape that is kept (group 1); otherwise a lone surrogate.
_ESCAPES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}",
    re.DOTALL,
)
_PIECE_BYTES = 16 * 1024
#: Reads the first byte of a row, in half the time that a ``memoryview`` of each row takes.
_FIRST_BYTE = struct.Struct("c").unpack_from
_MEMBERS = msgspec.json.Decoder(dict[str, Any]).decode
_PAGE = msgspec.json.Decoder(_PageEnvelope, strict=False).decode


def any_data(body: bytes) -> Envelope[Any]:
    """Decode a response, with keys in any spelling."""
    members: dict[str, Any] = {}
    for key, value in _MEMBERS(body).items():
        if value is not None or spelling(key) not in members:
            members[spelling(key)] = value
    return Envelope[Any](
        data=members.get("data", msgspec.UNSET),
        error=members.get("error"),
        request_id=members.get("requestid"),
    )


def read_record(value: Any, record: type[R], timezone: str | None = None) -> R:
    """Build ``record`` from decoded JSON.

    :param timezone: the zone of times without a zone; None leaves them naive.
    :raises msgspec.ValidationError: if ``value`` is not an object, or a field does not have its type.
    :raises TypeError: if a required field is missing.
    """
    if not isinstance(value, dict):
        raise msgspec.ValidationError(f"Expected an object for {record.__name__}, got {type(value).__name__}")
    readers = _readers(record)
    fields: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for key, item in value.items():
        name, read = readers.get(spelling(key), ("", None))
        if read is None:
            unknown[key] = item
        elif item is not None:
            fields[name] = read(item, timezone)
    return record(unknown_fields=unknown, **{name: item for name, item in fields.items() if item is not None})


def spelling(key: str) -> str:
    """Return a key in a form that is the same for camelCase, PascalCase and snake_case."""
    return key.replace("_", "").lower()


@cache
def _readers(record: type[Record]) -> dict[str, tuple[str, FieldReader]]:
    readers: dict[str, tuple[str, FieldReader]] = {}
    for member in msgspec.inspect.type_info(record).fields:  # type: ignore[attr-defined]
        if member.name != "unknown_fields":
            readers[spelling(member.encode_name)] = member.name, _reader(member.type)
    return readers


def _reader(kind: msgspec.inspect.Type) -> FieldReader:
    """Return the function that reads a field of the type ``kind``."""
    match kind:
        case msgspec.inspect.UnionType(types=(inner, msgspec.inspect.NoneType())):
            nested = isinstance(inner, msgspec.inspect.StructType | msgspec.inspect.VarTupleType)
            return _reader(inner) if nested else _forgiving(_reader(inner))
        case msgspec.inspect.StructType(cls=cls):
            record: type[Record] = cls  # type: ignore[assignment]  # all structs here are records
            return lambda value, timezone: read_record(value, record, timezone)
        case msgspec.inspect.VarTupleType(item_type=item):
            read = _reader(item)
            of_records = isinstance(item, msgspec.inspect.StructType)
            return lambda value, timezone: tuple(read(item, timezone) for item in _entries(value, of_records))
        case msgspec.inspect.CustomType():
            return parse_time
        case msgspec.inspect.StrType(pattern=str(pattern)):
            rule: Any = Annotated[str, msgspec.Meta(pattern=pattern)]
            return lambda value, timezone: msgspec.convert(_read_text(value, timezone).strip(), rule)
        case msgspec.inspect.StrType():
            return _read_text
        case msgspec.inspect.BoolType():
            return lambda value, _: msgspec.convert(value, bool, strict=False)
        case msgspec.inspect.IntType():
            return lambda value, _: msgspec.convert(value, Integer, strict=False)
        case msgspec.inspect.FloatType(gt=lowest, lt=highest):
            limited: Any = Annotated[float, msgspec.Meta(gt=lowest, lt=highest)]
            return lambda value, _: _finite(msgspec.convert(value, limited, strict=False))
    raise TypeError(f"no reader for {kind}")


def _forgiving(read: FieldReader) -> FieldReader:
    """Return a reader for an optional field, which reads None if ``read`` cannot read the value."""

    def read_or_none(value: Any, timezone: str | None) -> Any:
        try:
            return read(value, timezone)
        except msgspec.ValidationError:
            return None

    return read_or_none


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise msgspec.ValidationError(f"Expected a finite number, got {number}")
    return number


def _entries(value: Any, of_records: bool) -> Iterator[Any]:
    """Return the entries of a list without nulls; one object can stand for a list of one record."""
    if of_records and isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise msgspec.ValidationError(f"Expected a list, got {type(value).__name__}")
    return (item for item in value if item is not None)


def _read_text(value: Any, timezone: str | None) -> str:
    if isinstance(value, dict | list):
        raise msgspec.ValidationError(f"Expected a text, got {type(value).__name__}")
    return str(value)


def parse_time(value: Any, timezone: str | None) -> pendulum.DateTime | None:
    """Return a time that the service sent; None if ``value`` is not a time.

    A value that cannot be read is logged, once, since it makes the end of a run harder to recognize.

    :param value: ``yyyy-MM-ddTHH:mm:ss.fff``; slashes, a space instead of ``T`` and missing leading zeros are
        accepted. A zone in the text takes precedence over ``timezone``.
    :param timezone: the zone of a time without a zone; None leaves it naive.
    """
    if isinstance(value, str) and not value.strip():
        return None
    try:
        padded = _LONE_DIGIT.sub(r"0\g<0>", value.strip().replace("/", "-"))
        moment = datetime.datetime.fromisoformat(padded)
    except (AttributeError, ValueError):
        _warn_of_time(quoted(value)[:100])
        return None
    return pendulum.instance(moment, tz=timezone)


#: A number of one digit that is not a fraction of a second.
_LONE_DIGIT = re.compile(r"(?<![\d.])\d(?!\d)", re.ASCII)


@lru_cache(maxsize=1000)
def _warn_of_time(value: str) -> None:
    log.warning("The service sent a time that cannot be read: %s. It counts as absent.", value)


def _single(data: Any) -> Any:
    """Return ``data``, or its entry if it is a list of one: the contract's tables say ``Object[]``."""
    return data[0] if isinstance(data, list) and len(data) == 1 else data


def one(record: type[R]) -> Result[R]:
    """Return the conversion of ``data`` that is one object, or a list of exactly one."""
    return Result(
        record.__name__, any_data, lambda data, timezone: read_record(_single(data), record, timezone)
    )


def many(record: type[R]) -> Result[list[R]]:
    """Return the conversion of ``data`` that is a list of objects; null counts as an empty list."""
    return Result(
        f"list[{record.__name__}]",
        any_data,
        lambda data, timezone: [read_record(item, record, timezone) for item in _listed(data)],
    )


def _listed(data: Any) -> list[Any]:
    if data is None:
        return []
    if not isinstance(data, list):
        raise msgspec.ValidationError(f"Expected a list, got {type(data).__name__}")
    return data


class _TaskId(Record, frozen=True):
    task_id: Identifier


def _status_by_task(item: Any, timezone: str | None) -> tuple[str, TaskStatus | MalformedResponse]:
    try:
        status = read_record(item, TaskStatus, timezone)
    except (msgspec.ValidationError, TypeError) as mismatch:
        unreadable = MalformedResponse(f"a record is not what the contract promises: {mismatch}")
        return read_record(item, _TaskId).task_id, unreadable
    return status.task_id, status


#: ``data`` is a list of status records; the result has them by task id. An error replaces a record of which
#: only the id can be read.
STATUSES_BY_TASK: Result[dict[str, TaskStatus | MalformedResponse]] = Result(
    "dict", any_data, lambda data, timezone: dict(_status_by_task(item, timezone) for item in _listed(data))
)


def _analytics(data: Any, timezone: str | None) -> AnalyticsPage:
    page = read_record(_single(data), AnalyticsPage, timezone)
    listed = {spelling(key) for key, value in _single(data).items() if value is not None}
    if page.total and "data" not in listed:
        raise msgspec.ValidationError(f"Expected rows in `data`, since `total` is {page.total}")
    return page


#: ``data`` is a page of analytics, whose own ``data`` has the rows; that may be absent if there are no rows.
ANALYTICS: Result[AnalyticsPage] = Result("AnalyticsPage", any_data, _analytics)


#: The operation has no result: ``data`` is null or ``[]``, and is not read.
NOTHING: Result[None] = Result("None", any_data, lambda data, timezone: None)


def _page_on_lines(body: bytes) -> Envelope[Any]:
    """Decode a page; none of its rows, which stay raw JSON, contains a line end."""
    text = body.strip()
    # searching the whole text once is cheap; searching every row is not
    if b"\n" in text or b"\r" in text:
        # pretty-printed: in JSON, raw line ends can only be white space between tokens
        text = msgspec.json.format(text, indent=-1)
    # a response without a page may be an error, with keys in any spelling
    try:
        page = _PAGE(text)
    except msgspec.ValidationError:
        envelope = any_data(text)
        if envelope.error is None:
            raise
        return envelope
    return page if page.data and not page.pascal_error else any_data(text)


def _page(data: Any, timezone: str | None) -> DataPage:
    page = _single(data)
    if not isinstance(page, _PageOnWire):
        raise msgspec.ValidationError("Expected one page")
    rows = page.data or []
    if not {*map(_FIRST_BYTE, rows)} <= {(b"{",)}:
        raise msgspec.ValidationError("Expected objects as rows")
    return DataPage(offset=page.offset, total=page.total, rest_total=page.rest_total, rows=rows)


#: ``data`` is a page of rows, kept as raw JSON slices.
PAGE: Result[DataPage] = Result("DataPage", _page_on_lines, _page)


#: The members of a page before its rows (the group); any member of the envelope may come before ``data``.
_BEFORE_ROWS = re.compile(
    rb'\s*\{\s*(?:"\w+"\s*:\s*(?:null|"[^"\\]*")\s*,\s*)*"data"\s*:\s*(?:\[\s*)?\{\s*'
    rb'((?:"\w+"\s*:\s*\d{1,18}\s*,\s*)+)"data"\s*:\s*\['
)
_COUNT = re.compile(rb'"(\w+)"\s*:\s*(\d+)')


def offset_before_rows(head: bytes) -> int | None:
    """Return the offset of the next page; None if it does not come before the rows, or no rows are left.

    See assumptions.md, Reading data.

    :param head: the first bytes of the response.
    """
    before_rows = _BEFORE_ROWS.match(head)
    if before_rows is None:
        return None
    counts = {name: int(count) for name, count in _COUNT.findall(before_rows[1])}
    return counts.get(b"offset") if counts.get(b"restTotal") else None


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def decoded(decode: Callable[[bytes], Envelope[Any]], body: bytes) -> Envelope[Any]:
    """Decode a response.

    :raises Exception: an exception of one of several types, if the body is not UTF-8 JSON of the right shape,
        or is nested too deeply.
    """
    try:
        return decode(body)
    except msgspec.DecodeError:
        # collected text may contain half an emoji: a lone surrogate, whose escape the decoder refuses
        if not _SURROGATE.search(body):
            raise
        mended = _ESCAPES.sub(lambda escape: escape[0] if escape[1] else b"\\ufffd", body)
        if mended == body:
            raise
        return decode(mended)


#: Maximum number of seconds that ``Retry-After`` can ask for: a day.
LONGEST_RETRY_AFTER = 86_400.0
#: Maximum number of details in an error's message, and maximum number of bytes that a message shows of a body
#: without an error envelope.
MOST_DETAILS, MOST_SHOWN = 10, 300
#: The message of both HTTP libraries about a proxy that requires a login.
_LOGIN_WANTED = re.compile(r"(^|Tunnel connection failed: )407\b")


class NotConnected(Exception):
    """No connection was made, so the request was not sent; ``__cause__`` is the reason."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response, read to its end. ``headers`` accepts names in lower case.

    :ivar seconds: the time from sending the request to the end of the response.
    """

    status: int
    headers: Mapping[str, str]
    # the response of the token endpoint is a secret
    body: bytes = field(repr=False)
    seconds: float = 0.0


def read_response(
    result: Result[T], response: Response, timezone: str | None = None, *, of_data_app: bool = False
) -> T:
    """Return the result in a response.

    :param result: the conversion of the operation's ``data``.
    :param timezone: the zone of the service's times; None leaves them naive.
    :param of_data_app: whether the response is from the data-app service, whose errors say if a retry helps.
    :raises WebCollectError: an error of the matching class, if there is no result.
    """
    ok = 200 <= response.status < 300
    if response.status == 204 and result is NOTHING:
        return None  # type: ignore[return-value]  # which is the T of NOTHING
    envelope = _envelope(result, response, ok)
    if envelope.error is not None and (envelope.error or not ok):
        raise _service_error(response, envelope, of_data_app=of_data_app)
    if not ok:
        raise _no_envelope(response, of_data_app=of_data_app)
    if envelope.data is msgspec.UNSET and result is not NOTHING:
        raise _malformed(response, "`data` is missing")
    try:
        return result.read(envelope.data, timezone)
    except Exception as mismatch:
        raise _malformed(response, str(mismatch)) from mismatch


def _envelope(result: Result[Any], response: Response, ok: bool) -> Envelope[Any]:
    """Return the response's envelope; an empty one if an error response has none.

    :param ok: whether the status is a success.
    """
    try:
        return decoded(result.decode if ok else any_data, _in_utf_8(response))
    except RecursionError as too_deep:
        if ok:
            raise ResponseTooDeep(
                "the JSON is nested too deeply to be read", **_facts(response)
            ) from too_deep
    except Exception as undecodable:
        if ok:
            raise _malformed(response, str(undecodable)) from undecodable
    return Envelope()


def _in_utf_8(response: Response) -> bytes:
    """Return the body in UTF-8, without a BOM.

    As JSON, it may arrive in UTF-16 or UTF-32, or in the charset of its ``Content-Type``. The charset counts
    only if the body is not UTF-8: JSON has none, and servers may name a wrong one.
    """
    body = response.body
    encoding: str = json.detect_encoding(body)
    if encoding == "utf-8":
        try:
            _check_utf_8(body)
            return body
        except UnicodeDecodeError:
            header = email.message.Message()
            header["content-type"] = response.headers.get("content-type", "")
            encoding = header.get_content_charset("utf-8")
    return body.decode(encoding).encode()


def _check_utf_8(text: bytes) -> None:
    """Check that the whole text is UTF-8, since rows are not decoded; pieces make it three times as fast."""
    if text.isascii():
        return
    view, start = memoryview(text), 0
    while start < len(text):
        end = start + _PIECE_BYTES
        start += codecs.utf_8_decode(view[start:end], "strict", end >= len(text))[1]


def _malformed(response: Response, why: str) -> MalformedResponse:
    kind = escaped(response.headers.get("content-type", "no content type"))
    return MalformedResponse(
        f"the response is not what the contract promises ({kind}, {len(response.body)} bytes): {why}",
        **_facts(response),
    )


def _no_envelope(response: Response, *, of_data_app: bool) -> WebCollectError:
    """Return the error for an error response without the service's envelope."""
    challenge = response.headers.get("www-authenticate", "").lower()
    if response.status == 407:
        return ProxyUnusable(
            "the proxy requires a login, or refuses the one in its address", **_facts(response)
        )
    if response.status == 429:
        return TooManyRequests("there were too many requests", **_facts(response))
    # the page of a gateway may come with any challenge
    is_page = response.body.lstrip().startswith(b"<")
    if response.status == 401 and challenge.startswith("bearer") and not is_page:
        return TokenRejected("the service rejected the credential and gave no reason", **_facts(response))
    if response.status == 422 and of_data_app:
        text = response.body[:MOST_SHOWN].decode(errors="replace")
        return RequestRejected(f"the request is refused: {text!r}", **_facts(response))
    return _malformed(response, "there is no error envelope")


def _service_error(response: Response, envelope: Envelope[Any], *, of_data_app: bool) -> ServiceError:
    error = {"message": envelope.error}
    if isinstance(envelope.error, dict):
        error = {spelling(key): value for key, value in envelope.error.items()}
    code, can_retry, details = _on_one_line(error.get("code")), error.get("retryable"), error.get("details")
    message = _on_one_line(error.get("message")) or "no message"
    # the data-app service's messages about parts of the request
    problems = [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
    if named := [f"{detail.get('path')}: {detail.get('message')}" for detail in problems[:MOST_DETAILS]]:
        message += escaped(f" ({'; '.join(named)})")
    facts = {
        **_facts(response),
        "code": code,
        "request_id": _on_one_line(envelope.request_id),
        "category": _on_one_line(error.get("category")),
    }
    if of_data_app:
        if response.status == 404:
            message = f"{message} (the caller is not the author, or there is no such app)"
        elif isinstance(can_retry, bool) and response.status not in {401, 429}:
            return DataAppError(message, can_retry=can_retry, **facts)
    return service_error_type(response.status, code)(message, **facts)


def _facts(response: Response) -> dict[str, Any]:
    return {"status": response.status, "retry_after": retry_after(response)}


def _on_one_line(value: Any) -> str | None:
    return None if value is None else escaped(" ".join(str(value).split()))


def retry_after(response: Response) -> float | None:
    """Return ``Retry-After`` in seconds, from a number of seconds or an HTTP date (UTC); None without it."""
    value = response.headers.get("retry-after", "").strip()
    try:
        if value.isdecimal():
            return min(float(value), LONGEST_RETRY_AFTER)
        moment = email.utils.parsedate_to_datetime(value)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER)


def no_response(error: Exception, address: str) -> TransportError:
    """Return the error for a request without a response; its class says whether the request was sent."""
    if not isinstance(error, NotConnected):
        return NoResponse(f"no complete response: {str(error) or type(error).__name__}")
    causes = list(_causes(error))
    reason = str(error.__cause__) or type(error.__cause__).__name__
    # a connection that is closed too early also raises an SSL error
    closed = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    if any(isinstance(cause, ssl.SSLError) and not isinstance(cause, closed) for cause in causes):
        if any("WRONG_VERSION_NUMBER" in str(cause) for cause in causes):
            without = TlsError(f"the server at {address} does not use TLS ({reason})")
            without.advice = "Its address may begin with http://."
            return without
        return TlsError(f"no trusted connection: {reason}")
    if any(_LOGIN_WANTED.search(str(cause)) for cause in causes):
        return ProxyUnusable(f"the proxy requires a login, or refuses the one in its address: {reason}")
    return ServiceUnreachable(f"no connection to {address}: {reason}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of ``error``; urllib3 has some of them only in the exception's arguments."""
    for cause in (*error.args, error.__cause__):
        if isinstance(cause, BaseException):
            yield cause
            yield from _causes(cause)
