"""Reading the rows of a source page by page: the logic for both drivers, and a reader on the sync driver."""

from __future__ import annotations

import contextlib
import functools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.call import Policy, exchange, may_be_size
from airflow_provider_webcollect.service.errors import PagingError, WebCollectError
from airflow_provider_webcollect.service.flow import Blocking, Effect, Flow, Request, Send, Sleep
from airflow_provider_webcollect.service.pauses import Notice, first_done
from airflow_provider_webcollect.service.responses import Response, offset_before_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.service.call import ClientContext
    from airflow_provider_webcollect.service.endpoints import Call
    from airflow_provider_webcollect.service.flow import Flow
    from airflow_provider_webcollect.service.models import AnalyticsRow, DataPage, SubTask
    from airflow_provider_webcollect.service.sync import Client, Receiving

log = logging.getLogger(__name__)

#: Successful pages after which twice as many rows are requested again.
GOOD_PAGES = 5


def read_page(
    context: ClientContext,
    task_id: str,
    lotno: str | None,
    offset: int,
    size: int,
    *,
    can_halve: bool = False,
) -> Flow[DataPage]:
    """Read the page at ``offset``, of the whole history or, with ``lotno``, of one batch.

    A page after which the read could not continue (rows are left, but none came or the cursor did not
    advance) is requested again a few times.

    :param can_halve: whether half of the rows can be requested, so that an error which fewer rows may help is
        raised sooner.
    :raises PagingError: if the read still cannot continue.
    """
    call = _page_call(task_id, lotno, offset, size)

    def check(page: DataPage) -> None:
        if not _can_go_on_after(page, offset):
            raise PagingError(
                f"reading task {task_id} stands still at offset {offset}: {page.rest_total} of {page.total} "
                f"rows are left, but {len(page.rows)} came and the next offset is {page.offset}",
                endpoint=call.endpoint.name,
            )

    return (yield from exchange(call, context, check=check, can_halve=can_halve))


def _page_call(task_id: str, lotno: str | None, offset: int, size: int) -> Call[DataPage]:
    if lotno is None:
        return endpoints.read_data(task_id, offset, size)
    return endpoints.read_batch_data(task_id, lotno, offset, size)


def _can_go_on_after(page: DataPage, offset: int) -> bool:
    """Return whether the read can continue, or end, after the page at ``offset``."""
    return page.rest_total <= 0 or (bool(page.rows) and page.offset > max(offset, 0))


class PageReader:
    """Reads pages of one source: the whole history of a task or, with ``lotno``, one batch.

    If responses are slow, the next page is prefetched, since a response usually has the next offset before
    its rows. A thread receives the prefetched response; the caller's thread does everything else, when it
    reads that page. If prefetching fails, the page is read as if it had not been prefetched.

    :param size: rows per page at most; fewer while pages fail because of their size.
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
        self._client = client
        self._task_id = task_id
        self._lotno = lotno
        self._size = PageSize(size)
        self._sent = sent
        self._once = client.context.short_retries(1)
        self._prefetched: _Prefetched | None = None
        self._pages_without = 0
        self._seconds = 0.0

    def read(self, offset: int) -> DataPage:
        """Return the page at ``offset``: 0, or the ``offset`` of the page before.

        :raises PagingError: if the cursor does not advance although rows are left.
        :raises WebCollectError: if the service does not return the page, however few rows are requested.
        """
        page = self._take_prefetched(offset)
        if page is None:
            context = self._client.context
            flow = read_fitting_page(context, self._task_id, self._lotno, offset, self._size)
            page = self._client.run(flow, perform=self._perform)
        else:
            self._size.worked()
        self._pages_without = max(0, self._pages_without - 1)
        return page

    def forget(self) -> None:
        """Drop a prefetched page, so that it is requested again."""
        if self._prefetched is not None:
            self._drop(self._prefetched)
            self._prefetched = None

    def pages(self, offset: int = 0) -> Iterator[DataPage]:
        """Yield the pages from ``offset`` to the end; each is read at the offset in the page before.

        :raises PagingError: also if the service's counts contradict the rows. From an ``offset`` above 0, it
            is not known how many rows are before it; then only the rows said to be left are checked.
        :raises WebCollectError: as :meth:`read` does.
        """
        endpoint = _page_call(self._task_id, self._lotno, 0, 1).endpoint.name
        count, is_from_start = RowCount(endpoint=endpoint), offset <= 0
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

    def _take_prefetched(self, offset: int) -> DataPage | None:
        """Return the page if it was prefetched and the read can continue after it.

        :raises WebCollectError: if it failed and another request cannot help.
        """
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is None:
            return None
        if prefetched.offset == offset:
            try:
                page = self._client.run(prefetched.flow, prefetched.effect, self._perform)
            except WebCollectError as error:
                if not (error.retryable or may_be_size(error)):
                    raise
                self._client.run(_pause(error, self._client.context))
            else:
                if _can_go_on_after(page, offset):
                    return page
        self._drop(prefetched)
        return None

    def _drop(self, prefetched: _Prefetched) -> None:
        """Drop a page, and prefetch none for a while, to spare a connection in trouble."""
        prefetched.flow.close()
        self._pages_without = GOOD_PAGES

    def _perform(self, effect: Effect) -> Any:
        """Perform an effect as the client does; count the requests, and prefetch while responses arrive."""
        outcome = self._client.perform(self._begun(effect.request) if isinstance(effect, Send) else effect)
        if isinstance(outcome, Response):
            self._seconds = outcome.seconds
        return outcome

    def _begun(self, request: Request) -> Effect:
        """Return the effect that yields the response to a request; a request that may be slow is sent now."""
        # if this page is requested again, the next one may have another offset
        self.forget()
        self._sent()
        if self._seconds < self._client.context.settings.timing.slow_response:
            return Send(request)
        return Blocking(functools.partial(self._received, self._client.begin(request)))

    def _received(self, receiving: Receiving) -> Response:
        first_done([receiving.head])
        self._prefetch(offset_before_rows(receiving.head.result()))
        first_done([receiving.response])
        return receiving.response.result()

    def _prefetch(self, offset: int | None) -> None:
        """Prefetch the page at ``offset``, if the rate limit allows it now."""
        if offset is None or self._pages_without:
            return
        with contextlib.suppress(WebCollectError):
            call = _page_call(self._task_id, self._lotno, offset, self._size.now)
            limiters = self._client.context.rate_limiters.of(call.endpoint.rate_limit)
            # a turn that is reserved now, but used later, could exceed the rate limit
            if all(limiter.is_free() for limiter in limiters):
                flow = exchange(call, self._once)
                effect = next(flow)
                if isinstance(effect, Sleep):
                    # another thread has taken the turn in between
                    flow.close()
                else:
                    begun = self._begun(effect.request) if isinstance(effect, Send) else effect
                    self._prefetched = _Prefetched(offset, flow, begun)


def _pause(error: WebCollectError, context: ClientContext) -> Flow[None]:
    """Wait as long as the service asks, up to the connection's limit."""
    pause = Policy(context.settings).requested_pause(error)
    Notice(log).give(pause, "The next page follows in %.0f s, as the service asks.", pause)
    yield Sleep(pause)


class _Prefetched(NamedTuple):
    """A prefetched page: its flow, and the effect that the flow waits for."""

    offset: int
    flow: Flow[DataPage]
    effect: Effect


@dataclass
class PageSize:
    """The number of rows to request: fewer after failures because of size, then more again.

    An attempt with more rows that still fails may take a whole timeout, so each such failure doubles the
    number of successful pages before the next attempt.

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


def read_fitting_page(
    context: ClientContext, task_id: str, lotno: str | None, offset: int, size: PageSize
) -> Flow[DataPage]:
    """Read the page at ``offset`` with as many rows as the service can send.

    A page that is refused, cut, or fails in the service may be too large: half as many rows are requested,
    after a few attempts, or at once if the failure took long. That continues down to a single row. A single
    row gets the full number of attempts of a call, as does a page whose failure is not related to its size.

    :raises WebCollectError: the last error, if nothing helps.
    """
    while True:
        can_halve = size.now > 1
        try:
            page = yield from read_page(context, task_id, lotno, offset, size.now, can_halve=can_halve)
        except WebCollectError as error:
            if not (can_halve and may_be_size(error)):
                raise
            size.halve()
        else:
            size.worked()
            return page


@dataclass
class RowCount:
    """Compares the rows of consecutive pages, from the first row on, with what the service announces.

    :param rows: number of rows before the next page.
    :param total: number of all rows, as announced last.
    :param endpoint: the operation, for messages.
    """

    rows: int = 0
    total: int = 0
    endpoint: str | None = None

    def add(self, rows: int, total: int, *, more: bool) -> None:
        """Count the rows of a page.

        :param more: whether the service says that rows are left after it.
        :raises PagingError: if the service's counts contradict the rows or each other.
        """
        rows_so_far = self.rows + rows
        if total < self.total:
            self._refuse(f"announced {self.total} rows, and then {total}")
        if more and rows_so_far > total:
            self._refuse(f"announced {total} rows, {rows_so_far} came, and more are said to be left")
        self.rows, self.total = rows_so_far, total

    def check_end(self) -> None:
        """Check that as many rows came as were announced.

        :raises PagingError: if not.
        """
        if self.rows != self.total:
            self._refuse(f"announced {self.total} rows, and {self.rows} came")

    def check_left(self, before: int, rows: int, left: int) -> None:
        """Check that a page has the rows that are not left any more; rows may also have been added.

        :param before: the rows that were left before the page.
        :raises PagingError: if not.
        """
        if rows + max(left, 0) < before:
            self._refuse(f"had {before} rows left; {rows} came, and {left} are said to be left")

    def _refuse(self, what: str) -> NoReturn:
        raise PagingError(f"the service {what}", endpoint=self.endpoint)


def all_subtasks(context: ClientContext, task_id: str) -> Flow[list[SubTask]]:
    """Read all sub-tasks of the task's latest batch."""
    by_id: dict[str, SubTask] = {}
    page = 1
    while True:
        subtasks = yield from exchange(endpoints.get_subtasks(task_id, page), context)
        known = len(by_id)
        by_id.update((subtask.sub_task_id, subtask) for subtask in subtasks)
        # if the service ignored `page`, the loop would not end
        if len(subtasks) < endpoints.MAX_SUBTASK_SIZE or len(by_id) == known:
            return list(by_id.values())
        page += 1


def all_analytics(context: ClientContext, **query: Any) -> Flow[list[AnalyticsRow]]:
    """Read all rows of an analytics query.

    :raises PagingError: if fewer or more rows come than the service announces.
    """
    rows: list[AnalyticsRow] = []
    count = RowCount(endpoint=endpoints.QUERY_ANALYTICS.name)
    page = 1
    while True:
        result = yield from exchange(
            endpoints.query_analytics(**query, page=page, page_size=endpoints.MAX_ANALYTICS_SIZE), context
        )
        rows.extend(result.rows)
        count.add(len(result.rows), result.total, more=False)
        if not result.rows or len(rows) >= result.total:
            count.check_end()
            return rows
        page += 1
