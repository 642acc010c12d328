"""Writing the parts of a landing, and the draft of its commit: for a retry, or for a person's decision."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.checks import Checks, ValueCounter
from airflow_provider_webcollect.landing.commits import Part, encode
from airflow_provider_webcollect.landing.copy import write_behind
from airflow_provider_webcollect.landing.errors import RowsMissing, UnreadableRow
from airflow_provider_webcollect.landing.formats.base import slices
from airflow_provider_webcollect.landing.formats.reading import part_reader
from airflow_provider_webcollect.landing.names import part_name, staged_name
from airflow_provider_webcollect.landing.profile import Profiler
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.spans import span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.commits import Commit
    from airflow_provider_webcollect.landing.copy import Page
    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.formats.base import Rows
    from airflow_provider_webcollect.landing.job import Job
    from airflow_provider_webcollect.landing.profile import Profile

#: Seconds between two writes of a draft: stores such as Google Cloud Storage take one a second of an object.
INTERVAL = 1.0


class Staging:
    """Writes the parts of one landing, and keeps the draft of its commit in a file.

    After an error in the block, the file has all finished parts; after :class:`RowsMissing`, it is deleted.

    :param draft: with which it begins.
    :param parts_before: how many parts the landing has already: names continue from there, so that their
        order is that of the rows.
    :param earlier: the files of earlier attempts of the run.
    :ivar draft: what is written.
    :ivar values: of all parts, if there are checks of columns, also of those that an earlier attempt has
        written.
    """

    def __init__(self, job: Job, draft: Commit, parts_before: int, earlier: Iterable[str]) -> None:
        self.draft = draft
        self.values = ValueCounter(job.options.checks or Checks())
        self._job = job
        self._columns = job.options.file_format.columns_after(draft.columns or ())
        self._parts_before = parts_before
        self._name = staged_name(job.run.digest(), draft.attempt_id)
        self._earlier = list(earlier)
        self._is_there = False
        self._is_saved = True
        self._saved = time.monotonic()

    def __enter__(self) -> Staging:
        if self.values.needs_values:
            for part in self.draft.parts:
                self._count_again(part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):
            if isinstance(error, RowsMissing):
                # the source has changed since, or its counts are wrong: these rows may not go together
                self.end()
            # after an interruption, such as a timeout, do not wait for the storage
            elif isinstance(error, Exception) and not self._is_saved:
                self._save()

    def write(self, pages: Iterator[Page]) -> None:
        """Write pages as parts, while the next ones come."""
        page = next(pages, None)
        while page is not None:
            with span("part", {"webcollect.offset": page.offset}) as recorded:
                left_over = self._write_part(page, pages)
                part = self.draft.parts[-1]
                recorded.set({"webcollect.rows": part.rows, "webcollect.bytes": part.bytes})
            page = left_over or next(pages, None)

    def refuse(self, outcomes: tuple[CheckOutcome, ...]) -> None:
        """Save that the rows have failed their checks: a person decides on them."""
        self.draft = msgspec.structs.replace(self.draft, checks=outcomes)
        self._save()

    def end(self) -> None:
        """Delete the drafts of the run: what they have is committed, or read again."""
        self._is_saved = True
        self._job.folder.delete([*self._earlier, *([self._name] if self._is_there else [])])

    def _save(self) -> None:
        self._job.folder.write(self._name, encode(self.draft))
        self._is_there, self._is_saved, self._saved = True, True, time.monotonic()

    def _count_again(self, part: Part) -> None:
        file_format = self._job.options.file_format
        types = getattr(file_format, "column_types", {})
        reader = part_reader(file_format.name, file_format.compression, self._columns.names, types)
        assert reader is not None
        self.values.offset = part.start_offset
        with self._job.folder.opened(part.name) as file:
            reader.inspect(file, self.values, is_sanitized=getattr(file_format, "sanitize_formulas", False))

    def _write_part(self, first: Page, others: Iterator[Page]) -> Page | None:
        """Write the next part.

        :return: the page that was read but belongs to the next part, if there is one.
        """
        options, draft = self._job.options, self.draft
        number = self._parts_before + len(draft.parts) + 1
        name = part_name(number, draft.attempt_id, options.file_format.suffix)
        if options.partition:
            name = f"{options.partition}/{name}"
        last = left_over = None
        profiler = Profiler(self.values if self.values.columns else None)
        with (
            self._job.folder.part(name) as file,
            write_behind(file) as behind,
            options.file_format.writer(behind, self._columns, profiler) as writer,
        ):
            for page in itertools.chain((first,), others):
                self.values.offset = page.offset
                if not writer.write(page.rows):
                    left_over = page
                    break
                last = page
                self._job.observer.on_progress(page.rows_so_far, page.total)
                self._job.stop.check()
                if behind.bytes >= options.max_part_bytes:
                    break
            if number == 1:
                _refuse_another_letter_case(options.file_format, profiler.profile(0), first.rows)
        # the first page of a part is always written
        assert last is not None
        rows = last.rows_so_far - (first.rows_so_far - len(first.rows))
        part = Part(
            name=name,
            rows=rows,
            bytes=file.bytes,
            sha256=file.sha256,
            start_offset=draft.next_offset,
            next_offset=last.next_offset,
            columns=None if self._columns.fixed else len(writer.columns) or None,
            profile=profiler.profile(rows),
        )
        self._job.stop.check()
        begin = draft.first_page or (draft.last_page if draft.total else first.fingerprint())
        self.draft = draft.with_part(part, self._columns.names, begin, last.fingerprint())
        self._is_saved = False
        # otherwise the next part, or an error, saves it
        if time.monotonic() - self._saved >= INTERVAL:
            self._save()
        return left_over


def _refuse_another_letter_case(file_format: FileFormat, profile: Profile, rows: Rows) -> None:
    """Refuse a named column that no row of a landing's first part has, if one has it in another letter case.

    Otherwise it would always be null. A column that is only missing may come later.

    :param profile: of the part.
    :param rows: its first page.
    """
    named = {"columns": file_format.columns or (), "column_types": getattr(file_format, "column_types", {})}
    missing = [
        (argument, name) for argument in named for name in named[argument] if name not in profile.columns
    ]
    if not missing or profile.is_cut:
        return
    keys: dict[str, str] = {}
    with contextlib.suppress(UnreadableRow):
        keys = {key.casefold(): key for row in slices(rows) for key in row}
    for argument, name in missing:
        other = keys.get(name.casefold(), name)
        if other != name and other not in named[argument]:
            rule = f"no row has it, and {other!r} is another: letter case counts"
            raise InvalidArgument(argument, name, rule)
