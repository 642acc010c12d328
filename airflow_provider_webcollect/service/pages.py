"""Reading the rows of a source page by page."""

from __future__ import annotations

import contextlib
import functools
import logging
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_webcollect.service import arguments, endpoints
from airflow_provider_webcollect.service.call import (
    ClientContext,
    Policy,
    Request,
    Sender,
    call_span,
    exchange,
    may_be_size,
    request_now,
    result_of,
)
from airflow_provider_webcollect.service.errors import PagingError, TokenRejected, WebCollectError
from airflow_provider_webcollect.service.responses import Response, offset_before_rows
from airflow_provider_webcollect.service.spans import span
from airflow_provider_webcollect.service.threads import ThrottledLog, first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.service.client import Client
    from airflow_provider_webcollect.service.endpoints import Call
    from airflow_provider_webcollect.service.models import AnalyticsRow, DataPage, SubTask

log = logging.getLogger(__name__)

#: Number of successful pages after which twice as many rows are requested again.
GOOD_PAGES = 5
#: From the page with this number on, only one out of this many pages of a source has a span.
SAMPLED_PAGES = 100


def _can_continue_after(page: DataPage, offset: int) -> bool:
    """Return whether the page at ``offset`` is the last one, or shows where the next one begins."""
    return page.rest_total <= 0 or (bool(page.rows) and page.offset > max(offset, 0))


class PageReader:
    """Reads pages of one source: the whole history of a task or, with ``lotno``, one batch.

    If responses are slow, the next page is prefetched, see :class:`_Prefetching`. If prefetching fails, the
    page is requested as usual.

    :param size: maximum number of rows per page; fewer are requested while pages fail because of their size.
    :param sent: called for every request that is sent, including retries.
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
        self._task_id = task_id
        self._lotno = lotno
        self._endpoint = (endpoints.read_data if lotno is None else endpoints.read_batch_data).endpoint
        self._first: Call[DataPage] | None = None
        self._size = PageSize(size)
        self._offset = 0
        self._reads = 0
        self._sender = _Prefetching(client, self._call, sent)

    def read(self, offset: int) -> DataPage:
        """Return the page at ``offset``: 0, or the ``offset`` of the previous page.

        A page that is refused, cut off, or fails in the service may be too large. After a few attempts, or at
        once if the failure took long, half as many rows are requested, and so on down to a single row. A
        single row gets the full number of attempts of a call, as does a page whose failure is not related to
        its size. If rows are left, but none came or the cursor did not advance, the page is requested again a
        few times.

        :raises PagingError: if the cursor does not advance although rows are left.
        :raises WebCollectError: if the service does not return the page, however few rows are requested.
        """
        # when an earlier page is read again, any page may be read next
        self._sender.is_sequential, self._offset = offset >= self._offset, offset
        self._reads += 1
        is_traced = self._reads < SAMPLED_PAGES or self._reads % SAMPLED_PAGES == 0
        with span("page", {"webcollect.offset": offset}, is_sampled=is_traced) as recorded:
            page = self._sender.take(offset, is_traced=is_traced)
            while page is None:
                can_halve = self._size.now > 1
                try:
                    page = exchange(
                        self._call(offset),
                        self._sender,
                        check=functools.partial(self._check, offset),
                        can_halve=can_halve,
                        is_traced=is_traced,
                    )
                except WebCollectError as error:
                    if not (can_halve and may_be_size(error)):
                        raise
                    self._size.halve()
            recorded.set({"webcollect.rows": len(page.rows)})
        self._size.worked()
        return page

    def forget(self) -> None:
        """Drop a prefetched page, so that it is requested again."""
        self._sender.forget()

    def pages(self, offset: int = 0) -> Iterator[DataPage]:
        """Yield the pages from ``offset`` to the end; the offset of each comes with the previous page.

        :raises PagingError: as :meth:`read` does, and if the service's counts contradict the rows. With an
            ``offset`` above 0, the number of rows before it is not known, so only the counts of rows that are
            left are checked.
        :raises WebCollectError: as :meth:`read` does.
        """
        count, is_from_start = RowCount(endpoint=self._endpoint.name), offset <= 0
        more, left = True, 0
        while more:
            page = self.read(offset)
            more = page.rest_total > 0
            if is_from_start:
                count.add(len(page.rows), page.total, more=more)
            else:
                count.check_left(left, len(page.rows), page.rest_total)
            yield page
            offset, left = page.offset, page.rest_total
        if is_from_start:
            count.check_end()

    def _call(self, offset: int) -> Call[DataPage]:
        size = self._size.now
        if self._first is None:
            # the arguments are checked only once: all later offsets come from the service
            self._first = (
                endpoints.read_data(self._task_id, offset, size)
                if self._lotno is None
                else endpoints.read_batch_data(self._task_id, self._lotno, offset, size)
            )
        return replace(self._first, query={**self._first.query, "offset": offset, "size": size})

    def _check(self, offset: int, page: DataPage) -> None:
        if not _can_continue_after(page, offset):
            raise PagingError(
                f"reading task {self._task_id} is stuck at offset {offset}: {page.rest_total} of "
                f"{page.total} rows are left, but {len(page.rows)} came and the next offset is {page.offset}",
                endpoint=self._endpoint.name,
            )


@dataclass(frozen=True)
class _Prefetched:
    """A page that was requested in advance; a thread receives the response.

    :ivar head: the first bytes of the response, decompressed; empty if the request fails before they arrive.
    """

    offset: int
    call: Call[DataPage]
    request: Request
    response: Future[Response]
    head: Future[bytes]


class _Prefetching:
    """Sends the requests for pages of one source, and prefetches the next page while a slow one arrives.

    This is possible because a response usually has the next offset before its rows. A thread only receives
    the prefetched response; the caller's thread does everything else when it takes that page.

    :param call_at: returns the call for the page at an offset.
    :param sent: called for every request that is sent.
    """

    def __init__(
        self, client: Client, call_at: Callable[[int], Call[DataPage]], sent: Callable[[], object]
    ) -> None:
        self.context: ClientContext = client.context
        self.sleep = client.sleep
        self.authorize = client.authorize
        self._client = client
        self._call_at = call_at
        self._sent = sent
        self._prefetched: _Prefetched | None = None
        #: The number of pages to read before prefetching begins again, to spare a connection in trouble.
        self._pages_without = 0
        #: Whether the pages are read in order, so that the prefetched page is needed next.
        self.is_sequential = True
        #: The duration of the last response.
        self._seconds = 0.0

    def transmit(self, request: Request) -> Response:
        """Send a request and return the response; prefetch the next page meanwhile."""
        # if this request repeats a page, the next page may have another offset than before
        self.forget()
        self._sent()
        on_head = self._prefetch if self._is_slow() else None
        response = self._client.transmit(request, on_head)
        self._seconds = response.seconds
        return response

    def take(self, offset: int, *, is_traced: bool) -> DataPage | None:
        """Return the page at ``offset`` if it was prefetched and the read can continue after it.

        :param is_traced: whether the wait for the call has a span.
        :raises WebCollectError: if the prefetched request failed, and another request cannot help.
        """
        self._pages_without = max(0, self._pages_without - 1)
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is None:
            return None
        if prefetched.offset == offset:
            receive = functools.partial(self._received, prefetched)
            try:
                with call_span(prefetched.call, self.context, is_sampled=is_traced) as recorded:
                    recorded.set({"webcollect.is_prefetched": True})
                    page = result_of(prefetched.call, self, prefetched.request, receive, recorded)
            except TokenRejected:
                pass  # the call that follows replaces the token
            except WebCollectError as error:
                if not (error.retryable or may_be_size(error)):
                    raise
                pause = Policy(self.context.settings).requested_pause(error)
                ThrottledLog(log).log(pause, "The next page follows in %.0f s, as the service asks.", pause)
                self.sleep(pause)
            else:
                if _can_continue_after(page, offset):
                    return page
        self.forget()
        self._pages_without = GOOD_PAGES
        return None

    def forget(self) -> None:
        """Drop the prefetched page, if there is one."""
        if self._prefetched is not None:
            self._prefetched = None
            self._pages_without = GOOD_PAGES

    def _is_slow(self) -> bool:
        return self._seconds >= self.context.settings.timing.slow_response

    def _prefetch(self, head: bytes) -> None:
        """Prefetch the page after the one that begins with ``head``, if it may be requested now."""
        offset = offset_before_rows(head)
        if offset is None or offset > arguments.HIGHEST or self._pages_without or not self.is_sequential:
            return
        with contextlib.suppress(WebCollectError):
            call = self._call_at(offset)
            if request := request_now(call, self.context):
                self._sent()
                next_head: Future[bytes] = Future()

                def receive() -> Response:
                    try:
                        return self._client.transmit(request, next_head.set_result)
                    finally:
                        if not next_head.done():
                            next_head.set_result(b"")

                response = in_background(receive, "webcollect-prefetch")
                self._prefetched = _Prefetched(offset, call, request, response, next_head)

    def _received(self, prefetched: _Prefetched, request: Request) -> Response:
        first_done([prefetched.head])
        if self._is_slow():
            self._prefetch(prefetched.head.result())
        first_done([prefetched.response])
        response = prefetched.response.result()
        self._seconds = response.seconds
        return response


@dataclass
class PageSize:
    """The number of rows to request: fewer after failures because of size, then more again.

    An attempt with more rows may fail after a whole timeout, so each such failure doubles the number of
    successful pages before the next attempt.

    :param most: maximum number of rows, which is requested first, and again after enough successful pages.
    """

    most: int
    now: int = field(init=False)
    _good: int = field(init=False, default=0)
    _wanted: int = field(init=False, default=GOOD_PAGES)
    _raised: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.now = self.most

    def halve(self) -> None:
        """Request half as many rows."""
        self.now = max(1, self.now // 2)
        self._good = 0
        if self._raised:
            self._raised = False
            self._wanted *= 2

    def worked(self) -> None:
        """Count a successful page; after enough of them, request twice as many rows."""
        self._good += 1
        if self._raised and self._good >= GOOD_PAGES:
            self._raised = False
            self._wanted = GOOD_PAGES
        if self.now < self.most and self._good >= self._wanted:
            self.now = min(self.most, self.now * 2)
            self._good = 0
            self._raised = True


@dataclass
class RowCount:
    """Compares the rows of consecutive pages, from the first row on, with the counts that the service sends.

    :param rows: number of rows counted so far.
    :param total: number of all rows, as the service announced it last.
    :param endpoint: the operation, for messages.
    """

    rows: int = 0
    total: int = 0
    endpoint: str | None = None

    def add(self, rows: int, total: int, *, more: bool) -> None:
        """Count the rows of a page.

        :param rows: number of rows in the page.
        :param total: number of all rows, as the page announces it.
        :param more: whether the service says that rows are left after the page.
        :raises PagingError: if the service's counts contradict the rows or each other.
        """
        rows_so_far = self.rows + rows
        if total < self.total:
            self._refuse(f"announced {self.total} rows, and then {total}")
        if more and rows_so_far > total:
            self._refuse(f"announced {total} rows, {rows_so_far} came, and more are said to be left")
        self.rows, self.total = rows_so_far, total

    def check_end(self) -> None:
        """Check that the number of rows is the announced one.

        :raises PagingError: if it is not.
        """
        if self.rows != self.total:
            self._refuse(f"announced {self.total} rows, and {self.rows} came")

    def check_left(self, before: int, rows: int, left: int) -> None:
        """Check that a page has all rows that are no longer left; the service may also have added rows.

        :param before: the number of rows left before the page.
        :param rows: the number of rows in the page.
        :param left: the number of rows left after the page.
        :raises PagingError: if rows are missing.
        """
        if rows + max(left, 0) < before:
            self._refuse(f"had {before} rows left; {rows} came, and {left} are said to be left")

    def _refuse(self, what: str) -> NoReturn:
        raise PagingError(f"the service {what}", endpoint=self.endpoint)


def all_subtasks(sender: Sender, task_id: str) -> list[SubTask]:
    """Read all sub-tasks of the task's latest batch."""
    by_id: dict[str, SubTask] = {}
    page = 1
    while True:
        subtasks = exchange(endpoints.get_subtasks(task_id, page), sender)
        count_before = len(by_id)
        by_id.update((subtask.sub_task_id, subtask) for subtask in subtasks)
        # the second condition ends the loop if the service ignores `page`
        if len(subtasks) < endpoints.MAX_SUBTASK_SIZE or len(by_id) == count_before:
            return list(by_id.values())
        page += 1


def all_analytics(sender: Sender, **query: Any) -> list[AnalyticsRow]:
    """Read all rows of an analytics query.

    :param query: arguments of the query, without the page.
    :raises PagingError: if the service sends fewer or more rows than it announces.
    """
    rows: list[AnalyticsRow] = []
    count = RowCount(endpoint=endpoints.query_analytics.endpoint.name)
    page = 1
    while True:
        call = endpoints.query_analytics(**query, page=page, page_size=endpoints.MAX_ANALYTICS_SIZE)
        result = exchange(call, sender)
        rows.extend(result.rows)
        count.add(len(result.rows), result.total, more=False)
        if not result.rows or len(rows) >= result.total:
            count.check_end()
            return rows
        page += 1
