"""Landings from end to end: read the log, plan, copy, check, append a commit, publish it, mark.

A part becomes visible only when complete, under a unique name, and counts once a commit lists it. A landing
that finds that another has made the commit of its number reads the log again and plans again.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import shlex
from collections import deque
from typing import TYPE_CHECKING, TypeVar

import msgspec

from airflow_provider_webcollect.landing.checks import Checks, ValueCounter, evaluate
from airflow_provider_webcollect.landing.commits import Kind, commit_of, counted, following, missing_part
from airflow_provider_webcollect.landing.copy import PartsWriter, SourceReader, rows_missing
from airflow_provider_webcollect.landing.errors import (
    ChecksFailed,
    DestinationTaken,
    LogContended,
    SomeFailed,
    SourceReset,
)
from airflow_provider_webcollect.landing.job import Job, Landed
from airflow_provider_webcollect.landing.log import CommitLog, Conflict
from airflow_provider_webcollect.landing.plan import (
    Keep,
    can_be_set_apart,
    has_committed,
    is_mark_due,
    make_plan,
)
from airflow_provider_webcollect.landing.profile import sum_of
from airflow_provider_webcollect.landing.staging import Staging
from airflow_provider_webcollect.service.pauses import first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.commits import Manifest, Part, Staged
    from airflow_provider_webcollect.landing.copy import Page
    from airflow_provider_webcollect.landing.plan import Copy

T = TypeVar("T")
log = logging.getLogger(__name__)
#: How often the log is read again because another landing has committed meanwhile.
PLAN_TRIES = 10
#: How many failed checks a message names.
_SHOWN = 20


def run_job(job: Job) -> Landed:
    """Move the rows of a source to a folder, and return what has landed there.

    A commit of the same run stays unchanged; what an attempt of it has left unfinished is resumed. If there
    is nothing new, nothing is written (contract.md, endpoints 17, 18 and 19).

    :param job: what is landed, where and for which run, see :func:`~.landing.job.job_of`.
    :return: ``manifest``; ``new``, the parts that this run has landed; ``committed``, those that this call
        has committed; ``own``, False if another run's landing was left as it is.
    :raises DestinationTaken: if the folder holds another source, foreign files, or another run's commit that
        may not be replaced.
    :raises LogContended: if other landings have committed again and again meanwhile.
    :raises FormatChanged: if the data to continue has other format options.
    :raises SourceReset: if the source no longer begins with the data to continue.
    :raises RowsMissing: if the service returned fewer or more rows than it announced.
    :raises ChecksFailed: if a check failed, unless ``on_failed_checks`` is ``warn``.
    :raises DestinationUnreadable: if a commit is torn, missing, of a newer version, or contradicts the
        others.
    :raises CastFailed: if a value does not fit its column's type.
    :raises UnreadableRow: if a row is no JSON object.
    :raises ExtraMissing: if the format needs a package that is not installed.
    :raises StorageError: if the storage cannot be read or written.
    :raises Stopped: once the job's ``stop`` is set.
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
            return _Landing(job).run()
        except Conflict:
            log.warning(
                "Another landing has committed to %s while this one read the source, which begins again; "
                "`max_active_runs=1` spares that.",
                job.folder.root,
            )
            job.pages.forget()
    raise LogContended(f"other landings keep committing to {job.folder.root}")


class _Landing:
    """A landing on what has landed by now.

    All methods raise :class:`Conflict` if another landing has committed since.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._log = CommitLog(job.folder)
        self._state = state = self._log.read()
        #: Of earlier attempts of the run.
        self._own = self._log.commits_of(state, job.run) if state else ()

    def run(self) -> Landed:
        job, state = self._job, self._state
        if state is None:
            job.folder.refuse_foreign_files()
        staged = self._log.staged(job.run)
        if staged:
            files = job.folder.files()
            staged = {name: each for name, each in staged.items() if not missing_part(each.parts, files)}
        plan = make_plan(job, state, staged.values())
        if isinstance(plan, Keep):
            return self._kept(plan.state)
        reader = SourceReader(job)
        start, first, others = self._first_page(reader, plan)
        if first is None and state is not None and start.continues and not start.parts:
            return self._nothing_new(state)
        if start.parts:
            count = counted(start.parts_before + len(start.parts), "part")
            log.info("Going on after %d rows in %s.", start.rows, count)
        with Staging(job, start, staged) as staging:
            writer = PartsWriter(job, staging, reader)
            writer.write(itertools.chain(() if first is None else (first,), others))
            _complete(job, staging, reader, writer)
            outcomes = self._check(staging.staged.parts, writer.values)
            return self._commit(staging, reader.count.total, outcomes)

    def _kept(self, state: Manifest) -> Landed:
        """Return the result of a landing that leaves what has landed as it is."""
        is_own = has_committed(self._job.run, state)
        if is_own:
            log.info("%s has landed already.", self._job.run)
        latest = self._log.publish(state)
        return Landed(latest, is_own, self._earlier_parts(), checks=self._earlier_checks())

    def _nothing_new(self, state: Manifest) -> Landed:
        """Return the result of a landing that has found nothing new; mark what is to be marked."""
        outcomes = self._check((), ValueCounter(Checks()))
        # rows of its own were checked before their commit, or a person has accepted them
        if not self._own and (failed := self._failed(outcomes)):
            raise _refusal(self._job, (), failed)
        log.info("%s has nothing new for %s.", self._job.source, self._job.folder.root)
        return Landed(self._published(state), new=self._earlier_parts(), checks=outcomes)

    def _commit(self, staging: Staging, total: int, outcomes: tuple[CheckOutcome, ...]) -> Landed:
        """Commit what was read, unless its rows have failed their checks; then mark the export."""
        job, staged = self._job, staging.staged
        kind: Kind = "landed"
        if failed := self._failed(outcomes):
            if not staged.parts:
                raise _refusal(job, (), failed)
            if job.options.on_failed_checks != "quarantine" or not can_be_set_apart(staged):
                staging.refuse(outcomes)
                raise _refusal(job, staged.parts, failed)
            kind = "quarantined"
            staged = msgspec.structs.replace(staged, parts=job.folder.set_aside(staged.parts))
        job.stop.check()
        state = self._log.append(self._state, commit_of(kind, staged, total, outcomes))
        if kind == "quarantined":
            rows = sum(part.rows for part in staged.parts)
            log.warning("%s of %s are quarantined.", counted(rows, "row"), job.source)
        committed = staged.parts if kind == "landed" else ()
        new = (*self._earlier_parts(), *committed) if staged.continues else committed
        landed = Landed(state, new=new, committed=committed, checks=outcomes)
        staging.end()
        job.observer.on_commit(landed)
        landed = dataclasses.replace(landed, manifest=self._published(state))
        # a table's are copied when they are quarantined
        job.folder.delete(part.name for part in staging.staged.parts if part not in staged.parts)
        if self._state is not None and not staged.continues:
            # one generation is kept, for those who read it, and to be put back
            job.folder.delete(self._state.replaced)
        return landed

    def _published(self, state: Manifest) -> Manifest:
        """Show readers what has landed, and mark the export, if that is due; return what has landed then.

        A mark covers all rows of the source: if another landing has committed meanwhile, the next run marks.
        """
        job, latest = self._job, self._log.publish(state)
        if not is_mark_due(job, latest) or latest.commit != state.commit:
            return latest
        job.stop.check()
        job.mark()
        try:
            return self._log.publish(self._log.append(latest, following(latest, "exported", job.run)))
        except Conflict:
            log.warning("Another landing has committed to %s while the export was marked.", job.folder.root)
            return self._log.publish(latest)

    def _first_page(self, reader: SourceReader, plan: Copy) -> tuple[Staged, Page | None, Iterator[Page]]:
        """Return the starting point, the first page from it, and those after it; nothing is written yet.

        The first page is None if there are no rows.
        """
        job, state = self._job, self._state
        start = _confirmed_start(job, reader, plan)
        pages = reader.pages()
        first = next(pages, None)
        if first is None:
            _keep_landed(job, start, state)
            if start.continues and start.rows and not start.parts:
                # before a mark, which covers what has arrived by now, the wait begins now
                pages = reader.late_pages(None if is_mark_due(job, state) else job.began)
                first = next(pages, None)
        return start, first, pages

    def _check(self, parts: Sequence[Part], values: ValueCounter) -> tuple[CheckOutcome, ...]:
        """Return what becomes of the checks of a run's rows.

        :param parts: that have the rows, besides those that an earlier attempt has committed.
        """
        job, state = self._job, self._state
        if (checks := job.options.checks) is None:
            return ()
        record = state and state.record_of(job.run)
        if state is not None and record is not None and not parts:
            # only the mark is left to do, of rows that were checked before
            return self._earlier_checks()
        before = [each for each in (state.history if state else ()) if each.run != job.run]
        outcomes = evaluate(
            checks,
            sum(part.rows for part in parts),
            sum_of(part.profile for part in parts),
            values,
            before,
            rows_before=record.rows if record and job.options.mode == "incremental" else 0,
        )
        for outcome in outcomes:
            if outcome.state in ("failed", "warning"):
                log.warning("Check of %s, %s", job.source, outcome)
        job.observer.on_checks(outcomes)
        return outcomes

    def _earlier_parts(self) -> tuple[Part, ...]:
        """Return the parts that earlier attempts of the run have landed."""
        landed = [commit for commit in self._own if commit.kind in ("landed", "accepted")]
        return tuple(part for commit in landed for part in commit.parts)

    def _earlier_checks(self) -> tuple[CheckOutcome, ...]:
        """Return what became of the checks of the run's rows in its last commit."""
        return self._own[-1].checks if self._own else ()

    def _failed(self, outcomes: Sequence[CheckOutcome]) -> tuple[CheckOutcome, ...]:
        """Return the checks for which nothing may be committed."""
        if self._job.options.on_failed_checks == "warn":
            return ()
        return tuple(outcome for outcome in outcomes if outcome.state == "failed")


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


def _keep_landed(job: Job, start: Staged, state: Manifest | None) -> None:
    """Raise :class:`SourceReset` if a source without rows would replace rows that are landed."""
    landed = 0 if state is None else state.rows
    if landed and not start.continues and not start.rows:
        raise SourceReset(
            f"{job.source} has no rows now, and the {landed} rows at {job.folder.root} are kept: a landing "
            "is replaced only by rows"
        )


def _confirmed_start(job: Job, reader: SourceReader, plan: Copy) -> Staged:
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


def _complete(job: Job, staging: Staging, reader: SourceReader, writer: PartsWriter) -> None:
    """Write rows that have come late, and check that there are as many as the service has announced."""
    if job.options.mark_exported and staging.staged.rows and not reader.no_late_rows:
        # the mark covers the whole task, so rows that arrived while the last part was written must land first
        writer.write(reader.pages())
        writer.write(reader.late_pages())
    reader.check_unchanged()
    rows, total = staging.staged.rows, reader.count.total
    if rows != total:
        raise rows_missing(job.source, f"the service announced {total} rows, and {rows} came")


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
