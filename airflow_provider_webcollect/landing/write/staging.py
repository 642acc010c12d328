"""Writes the parts of a landing while its rows arrive, and the draft of its commit for a retry."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_provider_webcollect.landing.checks import Checks, RuleCounts
from airflow_provider_webcollect.landing.errors import RowsMissing, UnreadableRow
from airflow_provider_webcollect.landing.formats.profile import Profiler
from airflow_provider_webcollect.landing.formats.writing import SINGLE_ROWS_SUFFIX, as_lines, slices
from airflow_provider_webcollect.landing.log.commits import encode
from airflow_provider_webcollect.landing.log.names import part_name, quarantine_name, staged_name
from airflow_provider_webcollect.landing.rules import ValueRules
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.spans import span
from airflow_provider_webcollect.service.threads import drop, first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.formats.profile import Profile
    from airflow_provider_webcollect.landing.formats.writing import (
        Columns,
        Rows,
        RowWriter,
        SingleRow,
        SupportsWrite,
    )
    from airflow_provider_webcollect.landing.inputs import Inputs
    from airflow_provider_webcollect.landing.log.commits import Commit, Part
    from airflow_provider_webcollect.landing.storage.folder import PartFile
    from airflow_provider_webcollect.landing.write.copy import Page
    from airflow_provider_webcollect.landing.write.job import Job

#: Bytes that are passed to the writing thread at a time. The threads synchronize for each batch: with small
#: batches, the second thread would cost more time than it saves.
BATCH_BYTES = 1024 * 1024
#: Minimum seconds between two writes of a draft: stores such as Google Cloud Storage limit an object to one
#: write per second.
INTERVAL = 1.0


class SortedPage(NamedTuple):
    """A page whose rows the rules about values have sorted.

    :ivar rows: the rows to land.
    :ivar wrong: the wrong rows, which are quarantined as single rows.
    :ivar counts_before: the counts of the rules before this page; None if the rules do not sort rows.
    """

    page: Page
    rows: Rows
    wrong: Sequence[SingleRow] = ()
    counts_before: RuleCounts | None = None


class Staging:
    """Writes the parts of one landing, and keeps the draft of its commit in a file.

    After an error in its ``with`` block, the file lists all finished parts; after :class:`RowsMissing`, it is
    deleted.

    :param draft: the draft to continue.
    :param parts_before: number of parts that the landing already has; numbers in part names continue from
        there, so that the names sort in the order of the rows.
    :param earlier: the names of the draft files of the run's earlier attempts.
    :param inputs: judges the inputs of the rows; None if inputs are not checked.
    :ivar draft: the draft with all finished parts.
    :ivar rules: the rules about values, with their counts, including parts that an earlier attempt wrote.
    """

    def __init__(
        self,
        job: Job,
        draft: Commit,
        parts_before: int,
        earlier: Iterable[str],
        inputs: Inputs | None = None,
    ) -> None:
        options = job.options
        self.draft = draft
        self.rules = ValueRules(
            options.checks or Checks(), options.format, draft.rule_counts, inputs.see if inputs else None
        )
        self._job = job
        self._columns = options.format.columns_after(draft.columns or ())
        self._parts_before = parts_before
        self._name = staged_name(job.run.digest(), draft.attempt_id)
        self._earlier = list(earlier)
        self._is_there = False
        self._is_saved = True
        self._saved = time.monotonic()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):
            if isinstance(error, RowsMissing):
                # the source has changed, or its counts are wrong: these rows may not belong together
                self.end()
            # after an interruption, such as a timeout, do not wait for the storage
            elif isinstance(error, Exception) and not self._is_saved:
                self._save()

    def write(self, pages: Iterator[Page]) -> None:
        """Write pages as parts, as they arrive."""
        sorted_pages = map(self._sorted, pages)
        page = next(sorted_pages, None)
        while page is not None:
            with span("part", {"webcollect.offset": page.page.offset}) as recorded:
                before = self.draft
                left_over = self._write_part(page, sorted_pages)
                rows, size = self.draft.total - before.total, _bytes_of(self.draft) - _bytes_of(before)
                recorded.set({"webcollect.rows": rows, "webcollect.bytes": size})
            page = left_over or next(sorted_pages, None)

    def end(self) -> None:
        """Delete the drafts of the run: their rows are committed, or will be read again."""
        self._is_saved = True
        self._job.folder.delete([*self._earlier, *([self._name] if self._is_there else [])])

    def _save(self) -> None:
        self._job.folder.write(self._name, encode(self.draft))
        self._is_there, self._is_saved, self._saved = True, True, time.monotonic()
        # this draft continues one of the earlier drafts, and no retry needs the others
        self._job.folder.delete(self._earlier)
        self._earlier.clear()

    def _sorted(self, page: Page) -> SortedPage:
        self.rules.offset = page.offset
        if not self.rules.is_split:
            return SortedPage(page, page.rows)
        before = self.rules.counts
        return SortedPage(page, *self.rules.split(page.rows), before)

    def _write_part(self, first: SortedPage, others: Iterator[SortedPage]) -> SortedPage | None:
        """Write the next part, and a file for the wrong rows of its pages.

        :return: a page that was read but belongs to the next part; None if there is none.
        """
        options, draft, begin = self._job.options, self.draft, first.page
        last, left_over = begin, None
        with _PartFiles(self._job, draft, self._parts_before, self._columns, self.rules) as files:
            for page in itertools.chain((first,), others):
                if not files.add(page):
                    left_over = page
                    break
                last = page.page
                self._job.observer.on_progress(last.rows_so_far, last.total)
                self._job.stop.check()
                if files.bytes >= options.max_part_bytes:
                    break
            if files.number == 1 and files.rows:
                _refuse_another_letter_case(options.format, files.profiler.profile(0), begin.rows)
        self._job.stop.check()
        first_page = draft.first_page or (draft.last_page if draft.total else begin.fingerprint())
        parts, quarantined = files.finished(start_offset=draft.next_offset, next_offset=last.next_offset)
        self.draft = msgspec.structs.replace(
            draft,
            parts=(*draft.parts, *parts),
            quarantined=(*draft.quarantined, *quarantined),
            columns=self._columns.names or None,
            next_offset=last.next_offset,
            total=draft.total + files.rows + files.wrong,
            first_page=first_page,
            last_page=last.fingerprint(),
            rule_counts=(left_over and left_over.counts_before) or self.rules.counts,
        )
        self._is_saved = False
        # otherwise the draft is saved with a later part, or after an error
        if time.monotonic() - self._saved >= INTERVAL:
            self._save()
        return left_over


class _PartFiles:
    """The file of the next part, and a file for wrong rows of its pages; each is opened for its first row.

    As a context manager, it finishes both files, or drops them on an error.

    :param draft: the draft that the part is added to.
    :param parts_before: number of parts that the landing had before the draft.
    :param columns: the columns of the landing so far.
    :param rules: the rules about values.
    :ivar number: the number of the part.
    :ivar rows: number of rows in the part; ``wrong`` is the number of rows in the other file.
    :ivar profiler: counts the values of the part's rows.
    """

    def __init__(
        self, job: Job, draft: Commit, parts_before: int, columns: Columns, rules: ValueRules
    ) -> None:
        self.number = parts_before + len(draft.parts) + 1
        self.rows = self.wrong = 0
        # rules that sort rows have counted them already; of written rows, they keep examples of empty values
        self.profiler = Profiler(rules if rules.first else None)
        self._job, self._columns, self._file_format = job, columns, job.options.format
        folder = f"{job.options.partition}/" if job.options.partition else ""
        self._name = folder + part_name(self.number, draft.attempt_id, self._file_format.suffix)
        apart = part_name(len(draft.quarantined) + 1, draft.attempt_id, SINGLE_ROWS_SUFFIX)
        self._apart_name = quarantine_name(folder + apart)
        self._broke: Counter[str] = Counter()
        self._open = contextlib.ExitStack()
        self._file: PartFile | None = None
        self._apart: PartFile | None = None
        self._behind: WriteBehind | None = None
        self._writer: RowWriter | None = None

    def __enter__(self) -> _PartFiles:
        self._open.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    @property
    def bytes(self) -> int:
        """Number of bytes in both files so far."""
        return (self._behind.bytes if self._behind else 0) + (self._apart.bytes if self._apart else 0)

    def add(self, page: SortedPage) -> bool:
        """Write a page, and return whether it belongs to this part; if not, nothing is written."""
        if page.rows:
            if self._writer is None:
                self._file = self._open.enter_context(self._job.folder.part(self._name))
                self._behind = self._open.enter_context(write_behind(self._file))
                writer = self._file_format.writer(self._behind, self._columns, self.profiler)
                self._writer = self._open.enter_context(writer)
            if not self._writer.write(page.rows):
                return False
            # the size of rows in the file is only known once they are written
            if self.bytes + self._writer.held_bytes >= self._job.options.max_part_bytes:
                self._writer.flush()
        if page.wrong:
            if self._apart is None:
                self._apart = self._open.enter_context(self._job.folder.part(self._apart_name))
            self._apart.write(as_lines(page.wrong))
            self._broke.update(rule for row in page.wrong for rule in row.broke)
        self.rows += len(page.rows)
        self.wrong += len(page.wrong)
        return True

    def finished(self, **place: int) -> tuple[list[Part], list[Part]]:
        """Return the part and the file of wrong rows, each in a list, which is empty without rows.

        Both files must be finished: call this after the ``with`` block.

        :param place: the ``start_offset`` and the ``next_offset`` of both.
        """
        parts, quarantined = [], []
        if self._file is not None and self._writer is not None:
            columns = None if self._columns.fixed else len(self._writer.columns) or None
            profile = self.profiler.profile(self.rows, self._writer.misfits)
            parts = [self._file.part(self.rows, columns=columns, profile=profile, **place)]
        if self._apart is not None:
            broke = dict(self._broke)
            quarantined = [self._apart.part(self.wrong, broke=broke, **place)]
        return parts, quarantined


def _bytes_of(draft: Commit) -> int:
    return sum(part.bytes for part in draft.written)


def _refuse_another_letter_case(file_format: FileFormat, profile: Profile, rows: Rows) -> None:
    """Refuse a named column that no row of the first part has, if a row has it in another letter case.

    Otherwise the column would always be null. A column that is only missing may appear later.

    :param profile: the profile of the part.
    :param rows: the rows of the part's first page.
    """
    sources = list(dict.fromkeys(map(file_format.source_of, file_format.column_types)))
    named = {"columns": file_format.columns or (), "column_types": sources}
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
            rule = f"no row has this column, but rows have {other!r}: letter case counts"
            raise InvalidArgument(argument, name, rule)


@contextlib.contextmanager
def write_behind(sink: SupportsWrite) -> Iterator[WriteBehind]:
    """Provide a sink that writes to ``sink`` in a thread; at the end of the block, everything is written.

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
        drop(error, behind.drain)
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

    def drain(self) -> None:
        """Wait until no write is in flight, and ignore its result."""
        if self._writing is not None:
            first_done([self._writing])

    def _hand_over(self) -> None:
        self._wait()
        pieces = self._held
        self._writing = in_background(lambda: self._sink.write(b"".join(pieces)), "webcollect-write")
        self._held, self._held_bytes = [], 0

    def _wait(self) -> None:
        if self._writing is not None:
            first_done([self._writing])
            self._writing.result()
