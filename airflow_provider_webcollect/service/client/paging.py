"""Reads that take several calls, as client logic for both drivers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.client.exchange import exchange
from airflow_provider_webcollect.service.errors import (
    AnswerTooLarge,
    MalformedAnswer,
    NoAnswer,
    PageTooLarge,
    PagingError,
    ServiceFailure,
    WebCollectError,
)
from airflow_provider_webcollect.service.flow import Flow, Send, Sleep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider_webcollect.service.api.records import AnalyticsRow, DataPage, SubTask, TaskStatus
    from airflow_provider_webcollect.service.client.context import ClientContext
    from airflow_provider_webcollect.service.client.sync import Client

T = TypeVar("T")

#: Tries of a page that may be too large, before half of it is asked for.
TRIES_PER_SIZE = 3
#: Seconds after which such a page is not tried again: what takes so long to fail is halved at once.
LONG_FAILURE = 10.0
#: Good pages after which twice as many rows are asked for again.
GOOD_PAGES = 5
#: Times that a page is asked for again before a cursor that stands still is an error.
STUCK_TRIES = 5
#: Seconds before a page is asked for again.
STUCK_WAIT = 1.0


def read_page(
    context: ClientContext, task_id: str, lotno: str | None, offset: int, size: int
) -> Flow[DataPage]:
    """Read the page at ``offset``, of the whole history or, with ``lotno``, of one batch.

    A page after which the read could not go on (rows are left, but none came or the cursor did not move on)
    is asked for again a few times.

    :raises PagingError: if it stays like that.
    """
    for tries in range(STUCK_TRIES):
        if tries:
            yield Sleep(STUCK_WAIT)
        call = (
            endpoints.read_data(task_id, offset, size)
            if lotno is None
            else endpoints.read_batch_data(task_id, lotno, offset, size)
        )
        page = yield from exchange(call, context)
        if page.rest_total <= 0 or (page.rows and page.offset > max(offset, 0)):
            return page
    raise PagingError(
        f"reading task {task_id} stands still at offset {offset}: {page.rest_total} of {page.total} rows are "
        f"left, but {len(page.rows)} came and the next offset is {page.offset}",
        endpoint=call.endpoint.name,
    )


class PageReader:
    """Reads pages of one source: the whole history of a task or, with ``lotno``, one batch.

    :param size: rows per page at most; fewer while pages fail for their size.
    :param sent: called for every request that is sent, retries included.
    """

    def __init__(
        self,
        client: Client,
        task_id: str,
        lotno: str | None = None,
        *,
        size: int = endpoints.MAX_DATA_SIZE,
        sent: Callable[[], object] = lambda: None,
    ) -> None:
        self._client = client
        self._task_id = task_id
        self._lotno = lotno
        self._size = PageSize(size)
        self._sent = sent
        self._short = client.context.short_retries(TRIES_PER_SIZE, LONG_FAILURE)

    def read(self, offset: int) -> DataPage:
        """Return the page at ``offset``: 0, or what the page before returned as its own.

        :raises PagingError: if the cursor stands still though rows are left.
        :raises WebCollectError: if the service does not give the page, however few rows are asked for.
        """
        flow = read_fitting_page(
            self._client.context, self._short, self._task_id, self._lotno, offset, self._size
        )
        return self._client.run(_watched(flow, self._sent))

    def pages(self, offset: int = 0) -> Iterator[DataPage]:
        """Yield the pages from ``offset`` to the end, each read at the offset that the one before returned.

        Errors are those of :meth:`read`.
        """
        left = 1
        while left > 0:
            page = self.read(offset)
            yield page
            offset, left = page.offset, page.rest_total


@dataclass
class PageSize:
    """How many rows a page is asked for: fewer after failures for size, then more again.

    Finding out that more rows still fail may take a timeout, so it takes twice as many good pages each time.

    :param most: the size to return to.
    """

    most: int
    now: int = field(init=False)
    _good: int = field(init=False, default=0)
    _wanted: int = field(init=False, default=GOOD_PAGES)
    _raised: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.now = self.most

    def halve(self) -> None:
        """Ask for half as many rows."""
        self.now = max(1, self.now // 2)
        self._good = 0
        if self._raised:
            self._raised = False
            self._wanted *= 2

    def worked(self) -> None:
        """Ask for twice as many rows, once a few pages have come."""
        self._good += 1
        if self._raised and self._good >= GOOD_PAGES:
            self._raised = False
            self._wanted = GOOD_PAGES
        if self.now < self.most and self._good >= self._wanted:
            self.now = min(self.most, self.now * 2)
            self._good = 0
            self._raised = True


def read_fitting_page(
    context: ClientContext, short: ClientContext, task_id: str, lotno: str | None, offset: int, size: PageSize
) -> Flow[DataPage]:
    """Read the page at ``offset`` with as many rows as the service manages to send.

    A page that is refused or cut, or fails in the service, may be too large: half of it is asked for, after a
    few tries or at once if the failure took long. That goes down to a single row, however long it takes;
    what is tried as often as any call is that row, and a page whose failure has nothing to do with its size.

    :param short: ``context`` with fewer tries, for pages that may be too large.
    :raises WebCollectError: the last one, if nothing helps.
    """
    patient = False
    while True:
        try:
            page = yield from read_page(
                context if patient or size.now == 1 else short, task_id, lotno, offset, size.now
            )
        except WebCollectError as error:
            if _may_be_size(error) and size.now > 1:
                size.halve()
                patient = False
            elif error.retryable and size.now > 1 and not patient:
                patient = True
            else:
                raise
        else:
            size.worked()
            return page


def _may_be_size(error: WebCollectError) -> bool:
    """Return whether fewer rows may help."""
    match error:
        case NoAnswer() | AnswerTooLarge() | PageTooLarge():
            return True
        case ServiceFailure(code=str(code)) if code.lower() == "servererror":
            # the service's own failure mostly comes with HTTP 400 (assumptions.md, Errors)
            return True
        case MalformedAnswer() | ServiceFailure() if error.status in {200, 500}:
            return True
    return error.status in {413, 504}


def _watched(flow: Flow[T], sent: Callable[[], object]) -> Flow[T]:
    """Run ``flow`` and tell of every request."""
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, Send):
                sent()
            try:
                outcome = yield effect
            except Exception as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(outcome)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        flow.close()


def all_subtasks(context: ClientContext, task_id: str) -> Flow[list[SubTask]]:
    """Read all sub-tasks of the task's latest batch."""
    found: dict[str, SubTask] = {}
    page = 1
    while True:
        subtasks = yield from exchange(endpoints.get_subtasks(task_id, page), context)
        known = len(found)
        found.update((subtask.sub_task_id, subtask) for subtask in subtasks)
        # a service that ignores `page` would go on for ever
        if len(subtasks) < endpoints.MAX_SUBTASK_SIZE or len(found) == known:
            return list(found.values())
        page += 1


def all_analytics(context: ClientContext, **query: Any) -> Flow[list[AnalyticsRow]]:
    """Read all rows of an analytics query."""
    rows: list[AnalyticsRow] = []
    page = 1
    while True:
        result = yield from exchange(
            endpoints.query_analytics(**query, page=page, page_size=endpoints.MAX_ANALYTICS_SIZE), context
        )
        rows.extend(result.rows)
        if not result.rows or len(rows) >= result.total:
            return rows
        page += 1


def all_statuses(
    context: ClientContext, task_ids: Sequence[str], batch_size: int
) -> Flow[dict[str, TaskStatus]]:
    """Read the states of tasks, ``batch_size`` of them per query, by id; those left out are absent."""
    found: dict[str, TaskStatus] = {}
    for start in range(0, len(task_ids), batch_size):
        batch = task_ids[start : start + batch_size]
        statuses = yield from exchange(endpoints.get_task_statuses_v2(batch), context)
        found.update((status.task_id, status) for status in statuses)
    return found
