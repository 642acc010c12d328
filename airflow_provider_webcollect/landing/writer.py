"""Writing pages as parts, each recorded when it is finished; and rewriting parts that lack columns."""

from __future__ import annotations

import itertools
import posixpath
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.manifest import RecordedPart, new_attempt_id, part_name
from airflow_provider_webcollect.landing.write_behind import write_behind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.landing.job import Job
    from airflow_provider_webcollect.landing.lease import Lease
    from airflow_provider_webcollect.landing.source import Page


class PartsWriter:
    """Writes the parts of one landing."""

    def __init__(self, job: Job, lease: Lease) -> None:
        self._job = job
        self._lease = lease
        self._columns = job.file_format.columns_after(lease.progress.columns)

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
        name = self._name(len(progress.parts), self._job.partition, progress.landing_id)
        last = left_over = None
        with (
            self._job.folder.part(name) as file,
            write_behind(file) as behind,
            self._job.file_format.writer(behind, self._columns) as writer,
        ):
            for page in itertools.chain((first,), others):
                if not writer.write(page.rows):
                    left_over = page
                    break
                last = page
                self._job.on_progress(page.rows_so_far, page.total)
                self._lease.check()
                if behind.bytes >= self._job.max_part_bytes:
                    break
        # the first page of a part is always written
        assert last is not None
        part = RecordedPart(
            name=name,
            rows=last.rows_so_far - (first.rows_so_far - len(first.rows)),
            bytes=file.bytes,
            sha256=file.sha256,
            start_offset=progress.next_offset,
            next_offset=last.next_offset,
            page_fingerprint=last.fingerprint(),
            column_count=len(writer.columns),
        )
        self._lease.save(progress.with_part(part, self._columns.names))
        return left_over

    def widen(self) -> None:
        """Rewrite the parts that lack columns under new names, since the old ones may be committed."""
        names = self._columns.names
        narrow = [
            (number, part)
            for number, part in enumerate(self._lease.progress.parts)
            if part.column_count < len(names)
        ]
        if not narrow:
            return
        attempt_id = new_attempt_id()
        progress = self._lease.progress
        self._lease.save(msgspec.structs.replace(progress, attempt_ids=(*progress.attempt_ids, attempt_id)))
        for number, part in narrow:
            wide = self._widened(number, part, attempt_id)
            self._lease.save(self._lease.progress.with_replaced(number, wide))

    def _widened(self, number: int, part: RecordedPart, attempt_id: str) -> RecordedPart:
        names = self._columns.names
        name = self._name(number, posixpath.dirname(part.name), attempt_id)
        with self._job.folder.opened(part.name) as source, self._job.folder.part(name) as file:
            self._job.file_format.widen(source, file, names[: part.column_count], names)
        return msgspec.structs.replace(
            part, name=name, bytes=file.bytes, sha256=file.sha256, column_count=len(names)
        )

    def _name(self, number: int, partition: str | None, attempt_id: str) -> str:
        name = part_name(number + 1, attempt_id, self._job.file_format.suffix)
        return f"{partition}/{name}" if partition else name
