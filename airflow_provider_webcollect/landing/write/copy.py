"""Reads the rows of a source to the end, and checks the counts of the service."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.errors import RowsMissing, SourceReset
from airflow_provider_webcollect.landing.log.commits import Commit, PageFingerprint
from airflow_provider_webcollect.landing.write.job import Job
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE
from airflow_provider_webcollect.service.errors import PagingError
from airflow_provider_webcollect.service.pages import RowCount
from airflow_provider_webcollect.service.spans import span
from airflow_provider_webcollect.service.threads import ThrottledLog

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.models import DataPage

log = logging.getLogger(__name__)
#: Seconds between two reads of a source that may not show all of its rows yet.
LATE_ROWS_INTERVAL = 2.0
#: How often the last landed page is read before counts that do not fit mean that the source was reset.
COUNT_READS = 4
#: Seconds between these reads.
COUNT_INTERVAL = 1.0
#: Seconds of reading or more, after which the first page is read again at the end.
LONG_READ = 10.0
#: Number of consecutive pages without a decrease of the rows left, after which the read counts as endless.
ENDLESS_PAGES = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of the source, and their position in it.

    :ivar offset: the cursor with which the rows were read; ``next_offset`` is the cursor after them.
    :ivar rows_so_far: number of the source's rows up to the end of this page.
    :ivar total: number of all rows that the service announces.
    :ivar landed: landed rows that were read again right before this page, and the cursor of that read.
    """

    rows: Sequence[msgspec.Raw]
    offset: int
    next_offset: int
    rows_so_far: int
    total: int
    landed: tuple[Sequence[msgspec.Raw], int] = ((), 0)

    def fingerprint(self) -> PageFingerprint:
        """Return the fingerprint with which a later landing checks whether the source still has this page.

        It also covers the landed rows before this page, if all fit into one page: runs may add one row each.
        """
        landed, offset = self.landed
        if not landed or len(landed) + len(self.rows) > MAX_DATA_SIZE:
            landed, offset = (), self.offset
        rows = (*landed, *self.rows)
        return PageFingerprint(offset=offset, rows=len(rows), sha256=digest_rows(rows))


class SourceScan:
    """Reads a source once, from the first row or from the end of the landed rows.

    :ivar count: the number of the source's rows up to the end of the last page, and the total announced with
        it.
    :ivar latest_total: the total that was announced last, also by a page that was only read to confirm it.
    :ivar no_late_rows: whether ``late_rows_delay`` seconds have passed without new rows.
    """

    def __init__(self, job: Job) -> None:
        self.count = RowCount()
        self.latest_total = 0
        self.no_late_rows = False
        self._job = job
        self._offset = 0
        self._ahead: DataPage | None = None
        self._landed: tuple[Sequence[msgspec.Raw], int] = ((), 0)
        self._began = self._confirmed = time.monotonic()
        self._waited = False
        self._pages = 0
        self._least_left: int | None = None
        self._pages_since = 0

    def go_to(self, landed: Commit) -> None:
        """Check that the source still begins with the landed rows, and move the cursor to their end.

        The last landed page is read again, and its rows must have the same content: counts alone do not show
        that a source was emptied and filled again. If there are fewer rows than have landed, the read is
        repeated, since a source may not show all rows right after a run (assumptions.md, Reading data). While
        rows arrive, a service may count the total and the remaining rows at different moments: if the rows
        are the same and only the counts differ, the page is read up to :data:`COUNT_READS` times.

        :param landed: the draft to continue, with the last landed page.
        :raises SourceReset: if the source does not continue after these rows.
        """
        if not landed.total:
            return
        waits = self._waits("all rows to be shown: there are fewer than were landed")
        count_waits = iter([COUNT_INTERVAL] * (COUNT_READS - 1))
        while True:
            fingerprint = landed.last_page
            page, rows, counts_fit = self._read_again(fingerprint, landed.total)
            if page.total < landed.total:
                wait = next(waits, None)
            elif digest_rows(rows[: fingerprint.rows]) != fingerprint.sha256:
                wait = None
            elif counts_fit:
                self._offset, self.count.rows = landed.next_offset, landed.total
                self._ahead = msgspec.structs.replace(page, rows=rows[fingerprint.rows :])
                self._landed = (rows[: fingerprint.rows], fingerprint.offset)
                # an earlier attempt read the parts of this draft some time ago
                self._waited = self._waited or bool(landed.parts)
                return
            else:
                log.info("%s: the counts do not fit the rows: %d in all.", self._job.called, page.total)
                wait = next(count_waits, None)
            if wait is None:
                raise SourceReset(
                    f"{self._job.called} has {page.total} rows now, and {landed.total} have landed. The "
                    "source does not continue after these: it was emptied, or rows were removed or changed"
                )
            self._wait(wait)

    def pages(self) -> Iterator[Page]:
        """Yield the pages up to the end of the source, including rows that are added meanwhile.

        A source that shows no rows, or fewer than were read, is read again for ``late_rows_delay`` seconds.

        :raises RowsMissing: if the service's counts contradict each other.
        """
        return self._to_the_end(
            self._waits("the service to show all rows: it shows none, or fewer than were read")
        )

    def late_pages(self, since: float | None = None) -> Iterator[Page]:
        """Wait ``late_rows_delay`` seconds, and yield the pages of rows that have appeared meanwhile.

        The source may show older batches while rows of a run that has just finished are still missing; its
        total does not count these rows.

        :param since: a time before this scan began, by ``time.monotonic()``; the wait is shorter by the
            seconds between the two. None for the whole wait.
        """
        before, wait = self.count.rows, self._job.options.late_rows_delay
        if since is not None:
            wait = max(0.0, wait - (self._began - since))
        if wait:
            ThrottledLog(log).log(
                wait, "Waiting %.0f s for rows that a run which has just finished may still add.", wait
            )
            self._job.observer.on_late_rows_wait(wait)
            self._wait(wait)
            yield from self._to_the_end(iter(()), late=True)
        self.no_late_rows = self.count.rows == before

    def check_unchanged(self, first: PageFingerprint) -> None:
        """Read the first page again, if there was time for the rows to change since they were last confirmed.

        Before a mark, which covers all rows of the source, reading more than one page counts as enough time.
        A source that shows fewer rows than were read is read again for ``late_rows_delay`` seconds.

        :param first: the fingerprint of the first page; of no rows if the source had none.
        :raises RowsMissing: if the rows of the page have changed: the rows read may not belong together.
        """
        may_have_changed = self._waited or time.monotonic() - self._confirmed >= LONG_READ
        may_have_changed = may_have_changed or (self._job.options.mark_exported and self._pages > 1)
        if not may_have_changed:
            return
        waits = self._waits("the service to show all rows: it shows fewer than were read")
        while True:
            page, rows, _ = self._read_again(first, first.rows)
            if digest_rows(rows[: first.rows or 1]) == first.sha256:
                self._confirmed, self._waited, self._pages = time.monotonic(), False, 0
                self.latest_total = page.total
                return
            wait = next(waits, None) if page.total < self.count.rows else None
            if wait is None:
                raise rows_missing(self._job.called, "the first rows have changed since they were read")
            self._wait(wait)

    @span("wait", {})
    def _wait(self, seconds: float) -> None:
        self._waited = True
        self._job.stop.sleep(seconds)

    def _to_the_end(self, waits: Iterator[float], *, late: bool = False) -> Iterator[Page]:
        while True:
            response, self._ahead = self._ahead, None
            if response is None:
                response = self._job.pages.read(self._offset)
                self._job.observer.on_page()
            self._pages += 1
            if not response.rows and response.total < max(self.count.rows, 1):
                # not all rows are shown yet, so the counts are ignored
                if late:
                    return
                if wait := next(waits, None):
                    self._wait(wait)
                    continue
            page = self._counted(response)
            if page.rows:
                yield page
            all_read = not page.rows or page.rows_so_far >= page.total
            if response.rest_total <= 0 and all_read:
                return

    def _counted(self, response: DataPage) -> Page:
        """Return the rows of a response with their position in the source.

        :raises RowsMissing: if the counts contradict earlier ones, or the rows seem to have no end.
        """
        total, left = response.total, response.rest_total
        if total < self.count.total:
            # only later rows may have been removed, or all rows: the first page, read again, shows which
            log.info("%s had %d rows, and now %d.", self._job.called, self.count.total, total)
            self.count.total, self._waited = total, True
        try:
            self.count.add(len(response.rows), total, more=left > 0)
        except PagingError as contradiction:
            raise rows_missing(self._job.called, contradiction.message) from contradiction
        self.latest_total = total
        if left <= 0 or self._least_left is None or left < self._least_left:
            self._least_left, self._pages_since = (left if left > 0 else None), 0
        else:
            self._pages_since += 1
            if self._pages_since >= ENDLESS_PAGES:
                what = f"the service has had {self._least_left} rows or more left for {ENDLESS_PAGES} pages"
                raise rows_missing(self._job.called, what)
        page = Page(response.rows, self._offset, response.offset, self.count.rows, total, self._landed)
        self._offset, self._landed = response.offset, ((), 0)
        return page

    def _read_again(
        self, last: PageFingerprint, rows_so_far: int
    ) -> tuple[DataPage, list[msgspec.Raw], bool]:
        """Read at least as many rows as a page had, from its cursor.

        :param last: the fingerprint of the page.
        :param rows_so_far: number of the source's rows up to the end of the page.
        :return: the last response, all rows read, and whether their position in the source fits the counts.
        """
        offset, counts_fit = last.offset, True
        rows: list[msgspec.Raw] = []
        while True:
            page = self._job.pages.read(offset)
            self._job.observer.on_page()
            before = page.total - page.rest_total - len(page.rows)
            counts_fit = counts_fit and before == rows_so_far - last.rows + len(rows)
            rows += page.rows
            offset = page.offset
            if len(rows) >= last.rows or not page.rows or page.rest_total <= 0:
                return page, rows, counts_fit

    def _waits(self, purpose: str) -> Iterator[float]:
        wait_log, rest = ThrottledLog(log), self._job.options.late_rows_delay
        if rest:
            self._job.observer.on_late_rows_wait(rest)
        while rest > 0:
            wait_log.log(rest, "Waiting up to %.0f s for %s.", rest, purpose)
            yield (wait := min(rest, LATE_ROWS_INTERVAL))
            rest -= wait


def rows_missing(source: str, what: str) -> RowsMissing:
    """Return the error for rows that contradict the service's counts, or have changed.

    :param source: the name of the source for messages.
    :param what: the contradiction.
    """
    return RowsMissing(
        f"{source}: {what}; committed rows stay, and the next attempt reads the other rows again"
    )


def digest_rows(rows: Sequence[msgspec.Raw]) -> str:
    """Return a digest of the rows that does not depend on the layout of their JSON."""
    digest = hashlib.sha256()
    encode = msgspec.json.Encoder(order="sorted").encode
    decode = msgspec.json.Decoder().decode
    for row in rows:
        try:
            digest.update(encode(decode(row)))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # a long number, an invalid character or deep nesting must not prevent the landing
            digest.update(row)
    return digest.hexdigest()
