"""Writing pages as parts: each is recorded when it is finished, and written while the next pages come."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.manifest import Part, part_name
from airflow_provider_webcollect.service.pauses import drop, first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from airflow_provider_webcollect.landing.formats.base import SupportsWrite
    from airflow_provider_webcollect.landing.job import Job
    from airflow_provider_webcollect.landing.lease import Lease
    from airflow_provider_webcollect.landing.source import Page, SourceReader

#: Bytes passed to the thread, and written, at a time. The threads synchronize for every batch: with small
#: batches the second thread costs more time than it saves.
BATCH_BYTES = 1024 * 1024


@contextlib.contextmanager
def write_behind(sink: SupportsWrite) -> Iterator[WriteBehind]:
    """Provide a sink that writes to ``sink`` in a thread; when the block ends, everything is written.

    An error of ``sink`` is raised by a later write or at the end, and nothing more is written after it. The
    context manager then waits for the write in flight, but only briefly if the task was interrupted, for
    example by a timeout.
    """
    behind = WriteBehind(sink)
    try:
        yield behind
        behind.finish()
    except BaseException as error:
        # the caller drops the sink next, which must not happen during a write
        drop(error, behind.settle)
        raise


class WriteBehind:
    """Collects one batch while the previous one is written.

    :ivar bytes: number of bytes accepted so far.
    """

    def __init__(self, sink: SupportsWrite) -> None:
        self._sink = sink
        self._writing: Future[None] | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Accept ``data``; if the batch is full, wait until the previous one is written."""
        self._held.append(data)
        self._held_bytes += len(data)
        self.bytes += len(data)
        if self._held_bytes >= BATCH_BYTES:
            self._hand_over()

    def finish(self) -> None:
        """Wait until everything is written."""
        if self._held:
            self._hand_over()
        self._wait()

    def settle(self) -> None:
        """Wait until no write is in flight, and ignore its result."""
        if self._writing is not None:
            first_done([self._writing])

    def _hand_over(self) -> None:
        self._wait()
        self._writing = in_background(functools.partial(self._write_at_once, self._held), "webcollect-write")
        self._held, self._held_bytes = [], 0

    def _wait(self) -> None:
        if self._writing is not None:
            first_done([self._writing])
            self._writing.result()

    def _write_at_once(self, pieces: Sequence[bytes]) -> None:
        self._sink.write(b"".join(pieces))


class PartsWriter:
    """Writes the parts of one landing."""

    def __init__(self, job: Job, lease: Lease, reader: SourceReader) -> None:
        self._job = job
        self._lease = lease
        self._reader = reader
        self._columns = job.options.file_format.columns_after(lease.progress.columns)

    def write(self, pages: Iterator[Page]) -> None:
        """Write the pages as parts."""
        page = next(pages, None)
        while page is not None:
            page = self._write_part(page, pages) or next(pages, None)

    def _write_part(self, first: Page, others: Iterator[Page]) -> Page | None:
        """Write the next part.

        :return: the page that was read but belongs to the next part, if there is one.
        """
        progress = self._lease.progress
        number = progress.parts_before + len(progress.parts) + 1
        name = part_name(number, progress.landing_id, self._job.options.file_format.suffix)
        if self._job.options.partition:
            name = f"{self._job.options.partition}/{name}"
        last = left_over = None
        with (
            self._job.folder.part(name) as file,
            write_behind(file) as behind,
            self._job.options.file_format.writer(behind, self._columns) as writer,
        ):
            for page in itertools.chain((first,), others):
                if not writer.write(page.rows):
                    left_over = page
                    break
                last = page
                self._job.observer.on_progress(page.rows_so_far, page.total)
                self._lease.check()
                if behind.bytes >= self._job.options.max_part_bytes:
                    break
        # the first page of a part is always written
        assert last is not None
        part = Part(
            name=name,
            rows=last.rows_so_far - (first.rows_so_far - len(first.rows)),
            bytes=file.bytes,
            sha256=file.sha256,
            start_offset=progress.next_offset,
            next_offset=last.next_offset,
            columns=None if self._columns.fixed else len(writer.columns) or None,
        )
        self._lease.save(
            progress.with_part(part, self._columns.names, self._reader.first, last.fingerprint())
        )
        return left_over
