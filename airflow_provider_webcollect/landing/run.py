"""Landings from end to end: plan, lease, copy, commit, mark, report.

The commit is one write of the manifest, on the condition that it still is the one that was read. A part
becomes visible only when complete, under a unique name, and counts once the manifest lists it. Who loses the
compare-and-swap reads the folder again and plans again.
"""

from __future__ import annotations

import functools
import itertools
import logging
import shlex
from collections import deque
from concurrent.futures import wait
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from airflow_provider_webcollect.landing.checks import CheckOutcome, Checks, ValueCounter, evaluate
from airflow_provider_webcollect.landing.commit import commit, is_commit_due, read_folder
from airflow_provider_webcollect.landing.copy import Page, PartsWriter, SourceReader, rows_missing
from airflow_provider_webcollect.landing.errors import (
    ChecksFailed,
    DestinationBusy,
    DestinationTaken,
    SomeFailed,
    SourceReset,
)
from airflow_provider_webcollect.landing.job import Job, Landed, Report
from airflow_provider_webcollect.landing.lease import Lease, wait_until_free
from airflow_provider_webcollect.landing.manifest import (
    PROGRESS,
    Manifest,
    Part,
    Progress,
    counted,
)
from airflow_provider_webcollect.landing.plan import (
    AlreadyCommitted,
    Copy,
    FinishReport,
    FolderState,
    make_plan,
)
from airflow_provider_webcollect.landing.profile import sum_of
from airflow_provider_webcollect.landing.review import can_be_set_apart, quarantine
from airflow_provider_webcollect.landing.storage import Changed
from airflow_provider_webcollect.service.pauses import LONGEST_WAIT, first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType


T = TypeVar("T")
log = logging.getLogger(__name__)
#: How often the folder is read again because another landing has changed it meanwhile.
PLAN_TRIES = 10
#: How many failed checks a message names.
_SHOWN = 20


def run_job(job: Job, *, finish: bool = True) -> Landed:
    """Move the rows of a source to a folder, and return the manifest that commits them.

    A commit of the same run stays unchanged; an unfinished landing of the same source is resumed. If there is
    nothing new, nothing is written (contract.md, endpoints 17, 18 and 19).

    :param job: what is landed, where and for which run, see :func:`~.landing.job.job_of`.
    :param finish: whether the result counts as reported when this returns; else the caller adds it to an
        :class:`.Unreported`. A run that never does so leaves its parts to the next run, which reports them
        with its own.
    :return: ``manifest``; ``new``, the parts whose rows this run reports; ``committed``, those with the rows
        that this call has committed; ``own``, False if another run's landing was left as it is.
    :raises DestinationTaken: if the folder holds another source, foreign files, or another run's commit that
        may not be replaced.
    :raises DestinationBusy: if another landing is writing there, or has taken over the folder.
    :raises FormatChanged: if the data to continue has other format options.
    :raises SourceReset: if the source no longer begins with the data to continue.
    :raises RowsMissing: if the service returned fewer or more rows than it announced.
    :raises ChecksFailed: if a check failed, unless ``on_failed_checks`` is ``warn``.
    :raises PartsMissing: if parts of another run are missing.
    :raises DestinationUnreadable: if the manifest is torn, or of a newer version.
    :raises CastFailed: if a value does not fit its column's type.
    :raises UnreadableRow: if a row is no JSON object.
    :raises ExtraMissing: if the format needs a package that is not installed.
    :raises StorageError: if the storage cannot be read or written.
    :raises Stopped: once the job's ``stop`` is set; what was committed just before, the next run reports.
    :raises WebCollectError: if the service refuses a request, or cannot be reached.
    """
    job.options.file_format.require_extras()
    if outer := job.folder.enclosing():
        raise DestinationTaken(
            f"{job.folder.root} is inside the landing at {outer.root}; give each landing a folder of its own"
        )
    job.folder.check_partition(job.options.partition)
    for _ in range(PLAN_TRIES):
        try:
            landed = _land_on(job, read_folder(job.folder))
        except Changed:
            log.info("Another landing has written to %s; the folder is read again.", job.folder.root)
            job.pages.forget()
        else:
            if finish:
                with Unreported() as unreported:
                    unreported.add(landed)
            return landed
    raise DestinationBusy(f"other landings keep writing to {job.folder.root}")


def _land_on(job: Job, found: FolderState) -> Landed:
    plan = make_plan(job, found)
    if isinstance(plan, AlreadyCommitted):
        committed = plan.manifest
        log.info("Run %s has landed %d rows already.", committed.run.run_id, committed.rows)
        return _unwritten(job, found, committed, committed.checks if committed.run == job.run else ())
    wait_until_free(job, found)
    if isinstance(plan, FinishReport):
        lease = Lease.acquire(job, plan.start, found)
        with lease.held():
            return commit(job, found, lease, plan.start.rows, plan.checks)
    reader = SourceReader(job)
    start, first, others = _first_page(job, reader, plan, found)
    is_write_due = is_commit_due(found, start) or found.lacks_mark(job)
    if first is None and found.manifest is not None and not is_write_due:
        log.info("%s has nothing new for %s.", job.source, job.folder.root)
        checked = _check(job, found, (), ValueCounter(Checks()))
        if checked.failed:
            raise _refusal(job, (), checked.failed)
        return _unwritten(job, found, found.manifest, checked.outcomes)
    lease = Lease.acquire(job, start, found)
    with lease.held():
        writer = PartsWriter(job, lease, reader)
        writer.write(itertools.chain(() if first is None else (first,), others))
        _complete(job, lease, reader, writer)
        checked = _check(job, found, lease.progress.parts, writer.values)
        if checked.failed:
            return _set_apart(job, found, lease, checked)
        return commit(job, found, lease, reader.count.total, checked.outcomes)


def _set_apart(job: Job, found: FolderState, lease: Lease, checked: _Checked) -> Landed:
    """Do what is to be done with rows that have failed their checks.

    :raises ChecksFailed: unless they are quarantined; they are staged then.
    """
    progress = lease.progress
    if not progress.parts:
        raise _refusal(job, (), checked.failed)
    if job.options.on_failed_checks == "quarantine" and can_be_set_apart(progress):
        return quarantine(job, found, lease, checked.outcomes)
    lease.save(msgspec.structs.replace(progress, refused=checked.failed))
    raise _refusal(job, progress.parts, checked.failed)


def _unwritten(
    job: Job, found: FolderState, manifest: Manifest, outcomes: tuple[CheckOutcome, ...]
) -> Landed:
    """Return the result of a landing that leaves the commit as it is.

    :raises Changed: if others have worked in the folder while it was read: what the manifest says of this
        run's parts may not hold any more. A landing that writes the progress file learns this from its
        condition.
    """
    progress = job.folder.read(PROGRESS)
    if (progress and progress.version) != found.progress_version:
        raise Changed(PROGRESS)
    own = manifest.run == job.run or job.options.mode == "incremental"
    return Landed(manifest, own, manifest.new(job.run), checks=outcomes)


class _Checked(NamedTuple):
    """What became of the checks of a run's rows.

    :ivar outcomes: of all of them.
    :ivar failed: those for which nothing may be committed.
    """

    outcomes: tuple[CheckOutcome, ...] = ()
    failed: tuple[CheckOutcome, ...] = ()


def _check(job: Job, found: FolderState, parts: Sequence[Part], values: ValueCounter) -> _Checked:
    """Check a run's rows.

    :param parts: that have the rows, besides those that an earlier attempt has committed.
    """
    checks, committed = job.options.checks, found.manifest
    if checks is None:
        return _Checked()
    if committed is not None and not parts and (committed.run == job.run or found.has_unreported_parts):
        # there is only a report or a mark to finish, of rows that were checked before
        return _Checked(committed.checks if committed.run == job.run else ())
    outcomes = evaluate(
        checks,
        sum(part.rows for part in parts),
        sum_of(part.profile for part in parts),
        values,
        [record for record in found.history if record.run != job.run],
        rows_before=_rows_before(job, found),
    )
    for outcome in outcomes:
        if outcome.state in ("failed", "warning"):
            log.warning("Check of %s, %s", job.source, outcome)
    job.observer.on_checks(outcomes)
    if job.options.on_failed_checks == "warn":
        return _Checked(outcomes)
    return _Checked(outcomes, tuple(outcome for outcome in outcomes if outcome.state == "failed"))


def _rows_before(job: Job, found: FolderState) -> int:
    """Return how many rows an earlier attempt of an incremental run has committed."""
    if job.options.mode == "full":
        return 0
    return sum(record.rows for record in found.history if record.run == job.run)


def _refusal(job: Job, parts: Sequence[Part], failed: Sequence[CheckOutcome]) -> ChecksFailed:
    """Return the error for failed checks.

    :param parts: those that are staged.
    """
    where, run_id = job.folder.as_argument, shlex.quote(job.run.run_id)
    rows = sum(part.rows for part in parts)
    ways = (
        f"; the {counted(rows, 'row')} that were read stay staged there. `webcollect landing accept {where}` "
        f"lands them as they are, `webcollect landing discard {where} {run_id}` leaves them out; or change "
        "`checks` and clear the task"
        if rows
        else ""
    )
    more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    return ChecksFailed(
        f"{counted(len(failed), 'check')} failed for {job.source} at {job.folder.url}: "
        f"{'; '.join(map(str, failed[:_SHOWN]))}{more}. Nothing was committed or marked{ways}",
        failed,
    )


def _first_page(
    job: Job, reader: SourceReader, plan: Copy, found: FolderState
) -> tuple[Progress, Page | None, Iterator[Page]]:
    """Return the starting point, the first page from it, and those after it; nothing is written yet.

    The first page is None if there are no rows.
    """
    start = _confirmed_start(job, reader, plan)
    pages = reader.pages()
    first = next(pages, None)
    if first is None:
        _keep_landed(job, start, found)
        if start.continues and start.rows and not start.parts:
            # before a mark, which covers what has arrived by now, the wait begins now
            pages = reader.late_pages(None if found.lacks_mark(job) else job.began)
            first = next(pages, None)
    return start, first, pages


def _keep_landed(job: Job, start: Progress, found: FolderState) -> None:
    """Raise :class:`SourceReset` if a source without rows would replace rows that are landed."""
    landed = found.manifest.rows if found.manifest is not None else 0
    if landed and not start.continues and not start.rows:
        raise SourceReset(
            f"{job.source} has no rows now, and the {landed} rows at {job.folder.root} are kept: a landing "
            "is replaced only by rows"
        )


def _confirmed_start(job: Job, reader: SourceReader, plan: Copy) -> Progress:
    """Return the first starting point that the source still matches."""
    for start in plan.starts:
        try:
            reader.go_to(start)
        except SourceReset as error:
            reset = error
            log.warning("%s.", error)
        else:
            return start
    remedy = (
        "on_reset='full' lands all of it again, and on_reset='append' adds all of it to what is there"
        if job.options.mode == "incremental"
        else "another run with if_exists='overwrite' lands all of it again"
    )
    raise SourceReset(f"{reset}. Nothing was changed; {remedy}; another destination keeps what is there")


def _complete(job: Job, lease: Lease, reader: SourceReader, writer: PartsWriter) -> None:
    """Write rows that have come late, and check that there are as many as the service has announced."""
    if job.options.mark_exported and lease.progress.rows and not reader.no_late_rows:
        # the mark covers the whole task, so rows that arrived while the last part was written must land first
        writer.write(reader.pages())
        writer.write(reader.late_pages())
    reader.check_unchanged()
    rows, total = lease.progress.rows, reader.count.total
    if rows != total:
        raise rows_missing(job.source, f"the service announced {total} rows, and {rows} came")


class Unreported:
    """The landings of a task that are committed and not reported yet.

    Until the end of the ``with`` block, heartbeats keep them from other runs. If the block ends well, the
    result of each is reported from then on; after an error the next run reports them, and need not wait.
    After an interruption, such as a timeout, no storage is waited for: another run watches the folder first.

    :raises LeaseLost: at the end of the block, if another run has taken one of them over.
    """

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def add(self, landed: Landed) -> Landed:
        """Keep a landing whose report was not finished.

        :param landed: the landing.
        :return: the same.
        """
        if landed.report is not None:
            landed.report.keep()
            self._reports.append(landed.report)
        return landed

    def __enter__(self) -> Unreported:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
            elif isinstance(error, Exception):
                self._release(error)
        except Exception as failure:
            self._release(failure)
            raise
        finally:
            for report in self._reports:
                report.rest()

    def _finish(self) -> None:
        # what takes long comes first: an error of it, or a lease that is lost, ends no report
        for report in self._reports:
            report.tidy()
        if len(self._reports) > 1:
            for report in self._reports:
                report.renew()
        for report in self._reports:
            report.finish()

    def _release(self, error: Exception) -> None:
        """Give all of them up, at once, since a storage that is down may take long to say so."""
        released = [
            in_background(functools.partial(report.release, error), "webcollect-release")
            for report in self._reports
        ]
        wait(released, LONGEST_WAIT)


def land_all(jobs: Mapping[str, Callable[[], T]], at_once: int) -> dict[str, T]:
    """Run ``jobs`` in threads and return their results by name, in the order of the jobs.

    If one fails, the others continue. If this is interrupted, for example by a timeout of the task, jobs that
    have not begun are not run; running ones are not waited for, and end when their ``stop`` is set.

    :param jobs: the jobs by the name of what they land.
    :raises SomeFailed: at the end, with all errors, if any have failed.
    """
    results: dict[str, T] = {}
    errors: dict[str, Exception] = {}
    waiting = deque(jobs)
    running: dict[Future[T], str] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.popleft()
            running[in_background(jobs[name], "webcollect-land")] = name
        for future in first_done(running):
            name = running.pop(future)
            try:
                results[name] = future.result()
            except Exception as error:
                log.exception("%s did not land.", name)
                errors[name] = error
    if errors:
        raise SomeFailed({name: errors[name] for name in jobs if name in errors}, len(jobs))
    return {name: results[name] for name in jobs}
