"""Writing pages as parts, each recorded when it is finished."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.manifest import Part, part_name
from airflow_provider_webcollect.landing.write_behind import write_behind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.landing.job import Job
    from airflow_provider_webcollect.landing.lease import Lease
    from airflow_provider_webcollect.landing.source import Page, SourceReader


class PartsWriter:
    """Writes the parts of one landing."""

    def __init__(self, job: Job, lease: Lease, reader: SourceReader) -> None:
        self._job = job
        self._lease = lease
        self._reader = reader
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
        number = progress.parts_before + len(progress.parts) + 1
        name = part_name(number, progress.landing_id, self._job.file_format.suffix)
        if self._job.partition:
            name = f"{self._job.partition}/{name}"
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
