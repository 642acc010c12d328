"""Conversion of the ``data`` of each operation's response to its result.

The contract's tables and samples disagree about shapes, so both are accepted.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from airflow_provider_webcollect.service.errors import MalformedResponse
from airflow_provider_webcollect.service.models import (
    AnalyticsPage,
    DataPage,
    Record,
    TaskStatus,
    read_record,
    spelling,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", covariant=True)
D = TypeVar("D")
R = TypeVar("R", bound=Record)


class Envelope(msgspec.Struct, Generic[D], rename="camel"):
    """What every response holds (contract.md, Conventions)."""

    data: D | msgspec.UnsetType = msgspec.UNSET
    error: Any = None
    request_id: Any = None


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """How the ``data`` of a response is converted to a ``T``.

    :param decode: decodes the whole response in one pass.
    :param read: converts the decoded ``data``; the second argument is the connection's time zone.
    """

    decode: Callable[[bytes], Envelope[Any]]
    read: Callable[[Any, str | None], T]


class _PageOnWire(msgspec.Struct, rename="camel"):
    offset: int
    total: int
    rest_total: int
    data: list[msgspec.Raw] | None = None


#: A pair of surrogates, or any other escape that stays as it is (group 1); else a lone surrogate.
_ESCAPES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}",
    re.DOTALL,
)
_PIECE_BYTES = 16 * 1024
#: The first byte of a row.
_OBJECT = ord("{")
_MEMBERS = msgspec.json.Decoder(dict[str, Any]).decode
_PAGE = msgspec.json.Decoder(Envelope[_PageOnWire | list[_PageOnWire]], strict=False).decode


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


def _single(data: Any) -> Any:
    """Return ``data``, or its only entry if it is a list: the contract's tables say ``Object[]``."""
    return data[0] if isinstance(data, list) and len(data) == 1 else data


def one(record: type[R]) -> Result[R]:
    """``data`` is one object, or a list of exactly one."""
    return Result(any_data, lambda data, timezone: read_record(_single(data), record, timezone))


def many(record: type[R]) -> Result[list[R]]:
    """``data`` is a list of objects; null counts as an empty list."""
    return Result(
        any_data, lambda data, timezone: [read_record(item, record, timezone) for item in _listed(data)]
    )


def _listed(data: Any) -> list[Any]:
    if data is None:
        return []
    if not isinstance(data, list):
        raise msgspec.ValidationError(f"Expected a list, got {type(data).__name__}")
    return data


class _TaskId(Record, frozen=True):
    task_id: str


def _status_apart(item: Any, timezone: str | None) -> tuple[str, TaskStatus | MalformedResponse]:
    task_id = read_record(item, _TaskId).task_id
    try:
        return task_id, read_record(item, TaskStatus, timezone)
    except (msgspec.ValidationError, TypeError) as mismatch:
        return task_id, MalformedResponse(f"a record is not what the contract promises: {mismatch}")


def _statuses_by_task(data: Any, timezone: str | None) -> dict[str, TaskStatus | MalformedResponse]:
    items = _listed(data)
    try:
        statuses = [read_record(item, TaskStatus, timezone) for item in items]
    except (msgspec.ValidationError, TypeError):
        return dict(_status_apart(item, timezone) for item in items)
    return {status.task_id: status for status in statuses}


#: ``data`` is a list of status records; the result has them by task id. A record of which only the id can be
#: read is replaced by an error.
STATUSES_BY_TASK: Result[dict[str, TaskStatus | MalformedResponse]] = Result(any_data, _statuses_by_task)


def _analytics(data: Any, timezone: str | None) -> AnalyticsPage:
    page = read_record(_single(data), AnalyticsPage, timezone)
    listed = {spelling(key) for key, value in _single(data).items() if value is not None}
    if page.total and "data" not in listed:
        raise msgspec.ValidationError(f"Expected rows in `data`, since `total` is {page.total}")
    return page


#: ``data`` is a page of analytics; without any rows its own ``data`` may be absent.
ANALYTICS: Result[AnalyticsPage] = Result(any_data, _analytics)


#: ``data`` is null or ``[]``: the operation has no result.
NOTHING: Result[None] = Result(any_data, lambda data, timezone: None)


def _page_on_lines(body: bytes) -> Envelope[Any]:
    """Decode a page so that none of its rows contains a line end."""
    text = body.strip()
    # one search of the whole text is cheap; a search of every row is not
    if b"\n" in text or b"\r" in text:
        # pretty-printed: in JSON, raw line ends can only be white space between tokens
        text = msgspec.json.format(text, indent=-1)
    _check_utf_8(text)
    # what has no page may be an error, with keys in any spelling
    try:
        page = _PAGE(text)
    except msgspec.ValidationError:
        envelope = any_data(text)
        if envelope.error is None:
            raise
        return envelope
    return page if page.data else any_data(text)


def _check_utf_8(text: bytes) -> None:
    """Check the rows, which are not decoded; in pieces, which is three times as fast."""
    if text.isascii():
        return
    view, start = memoryview(text), 0
    while start < len(text):
        end = start + _PIECE_BYTES
        start += codecs.utf_8_decode(view[start:end], "strict", end >= len(text))[1]


def _page(data: Any, timezone: str | None) -> DataPage:
    page = _single(data)
    if not isinstance(page, _PageOnWire):
        raise msgspec.ValidationError("Expected one page")
    if not all(memoryview(row)[0] == _OBJECT for row in page.data or ()):
        raise msgspec.ValidationError("Expected objects as rows")
    return DataPage(offset=page.offset, total=page.total, rest_total=page.rest_total, rows=page.data or [])


#: ``data`` is a page of rows, kept as raw JSON slices.
PAGE: Result[DataPage] = Result(_page_on_lines, _page)


#: The members of a page before its rows (the group); any member of the envelope may come before ``data``.
_BEFORE_ROWS = re.compile(
    rb'\s*\{\s*(?:"\w+"\s*:\s*(?:null|"[^"\\]*")\s*,\s*)*"data"\s*:\s*(?:\[\s*)?\{\s*'
    rb'((?:"\w+"\s*:\s*\d{1,18}\s*,\s*)+)"data"\s*:\s*\['
)
_COUNT = re.compile(rb'"(\w+)"\s*:\s*(\d+)')


def offset_before_rows(head: bytes) -> int | None:
    """Return the offset of the next page, if the response has it before its rows and rows are left.

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

    :raises Exception: of several types, if it is not UTF-8 JSON of the right shape, or nested too deeply.
    """
    try:
        return decode(body)
    except msgspec.DecodeError:
        # collected text may contain half an emoji, as an escape that the decoder refuses
        if not _SURROGATE.search(body):
            raise
        mended = _ESCAPES.sub(lambda found: found[0] if found[1] else b"\\ufffd", body)
        if mended == body:
            raise
        return decode(mended)
