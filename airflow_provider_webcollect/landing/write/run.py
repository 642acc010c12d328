"""Landings from end to end: read the log, plan, copy, check, append a commit, publish it, mark.

A part becomes visible only when complete, under a unique name, and counts once a commit lists it. If another
landing has taken the number of its commit, a landing reads the log and plans again.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.checks import NOTHING_WRONG
from airflow_provider_webcollect.landing.errors import (
    ChecksFailed,
    DestinationTaken,
    DestinationUnreadable,
    SomeFailed,
    SourceReset,
)
from airflow_provider_webcollect.landing.formats.profile import sum_of
from airflow_provider_webcollect.landing.inputs import Inputs
from airflow_provider_webcollect.landing.log.commits import counted, missing_part, now
from airflow_provider_webcollect.landing.log.fold import following
from airflow_provider_webcollect.landing.rules import READABLE, evaluate
from airflow_provider_webcollect.landing.storage.commit_log import (
    TRIES,
    CommitLog,
    Conflict,
    contended,
    suppress_conflict,
)
from airflow_provider_webcollect.landing.write.copy import SourceScan, rows_missing
from airflow_provider_webcollect.landing.write.job import Job, Landed, is_mark_due, make_plan
from airflow_provider_webcollect.landing.write.staging import Staging
from airflow_provider_webcollect.service.spans import span
from airflow_provider_webcollect.service.threads import first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from airflow_provider_webcollect.landing.checks import CheckOutcome, RuleCounts
    from airflow_provider_webcollect.landing.log.commits import Commit, Manifest, MissingInputs, SetApart
    from airflow_provider_webcollect.landing.write.copy import Page

log = logging.getLogger(__name__)
#: Maximum number of failed checks that a message names.
_SHOWN = 20


def run_job(job: Job) -> Landed:
    """Move the rows of a source to a folder, and return what has landed there.

    A commit of the same run stays unchanged; the unfinished work of an earlier attempt is resumed. If there
    is nothing new, no rows are written (contract.md, endpoints 17, 18 and 19).

    :param job: the source, the folder, the run and the options, see :func:`~.landing.write.job.job_of`.
    :return: the result: ``manifest``; ``new``, the parts that this run has landed; ``committed``, the parts
        that this call has committed.
    :raises DestinationTaken: if the folder holds another source, foreign files, or another run's commit that
        may not be replaced.
    :raises LogContended: if other landings keep committing meanwhile.
    :raises FormatChanged: if the data to continue has other format options.
    :raises SourceReset: if the source no longer begins with the data to continue.
    :raises RowsMissing: if the service returned fewer or more rows than it announced, or its rows have
        changed since they were read; the export is not marked then.
    :raises ChecksFailed: if a check failed, and ``on_failed_checks`` is ``fail``, or there are no rows to
        quarantine; also if an earlier attempt has quarantined the run's rows, and nobody has decided on them.
    :raises DestinationUnreadable: if a commit is torn, missing, of a newer version, or contradicts the
        others.
    :raises CastFailed: if a value does not fit its column's type.
    :raises UnreadableRow: if a row is not a JSON object.
    :raises ExtraMissing: if the format needs a package that is not installed.
    :raises StorageError: if the storage cannot be read or written.
    :raises Stopped: once the job's ``stop`` is set.
    :raises WebCollectError: if the service refuses a request, or cannot be reached.
    """
    job.options.format.require_extras()
    if outer := job.folder.enclosing():
        raise DestinationTaken(
            f"{job.folder.root} is inside the landing at {outer.root}; give each landing a folder of its own"
        )
    job.folder.check_partition(job.options.partition)
    source = {
        "webcollect.collection_task_id": job.source.collection_task_id,
        "webcollect.lotno": job.source.lotno,
    }
    with span("landing", source) as recorded:
        for _ in range(TRIES):
            with suppress_conflict(job.folder):
                landed = _Landing(job).run()
                recorded.set({"webcollect.rows": sum(part.rows for part in landed.new)})
                return landed
        raise contended(job.folder)


class _Landing:
    """One try of a landing, based on the current state of the log.

    Its methods raise :class:`Conflict` if another landing has committed since.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        # a page that an earlier try has read ahead may be outdated
        job.pages.forget()
        self._log = CommitLog(job.folder)
        self._state = state = self._log.read()
        #: The commits of the run's earlier attempts; then their parts that have not been replaced, and the
        #: outcomes of their latest checks.
        self._own = self._log.commits_of(state, job.run, job.run_began) if state else ()
        landed = [commit for commit in self._own if state and commit.number >= state.first_commit]
        self._own_parts = tuple(part for commit in landed for part in commit.parts)
        self._own_checks = self._own[-1].checks if self._own else ()
        self._inputs: Inputs | None = None
        #: The missing inputs of the run's rows; later runs may have collected some of these inputs since.
        self._missing = self._own[-1].missing_inputs if self._own else None
        if self._missing and self._last_missed and self._missing.run == self._last_missed.run:
            self._missing = self._last_missed

    def run(self) -> Landed:
        job, state = self._job, self._state
        if state is None:
            self._refuse_foreign_files()
        drafts = self._log.staged(job.run)
        complete = drafts
        if drafts:
            files = job.folder.files()
            complete = {
                name: draft for name, draft in drafts.items() if not missing_part(draft.written, files)
            }
        checks = job.options.checks
        resumable = complete.values() if checks is None or checks.is_resumable else ()
        starts = make_plan(job, state, resumable, has_committed=bool(self._own))
        if state is not None and not starts:
            return self._kept(state)
        scan = SourceScan(job)
        draft = _confirmed_start(job, scan, starts)
        if checks and checks.inputs:
            before = None if draft.replaces else self._last_missed
            is_own = before is not None and self._missing is before
            self._inputs = Inputs(checks.inputs, job.loops, job.run, before, is_own=is_own)
        pages = self._pages(scan, draft)
        if state is not None and pages is None:
            return self._nothing_new(state, draft, scan)
        parts_before = 0 if state is None or draft.replaces else state.part_count
        if draft.written:
            count = counted(parts_before + len(draft.parts), "part")
            log.info("Resuming after %s in %s.", counted(draft.total, "row"), count)
        with Staging(job, draft, parts_before, drafts, self._inputs) as staging:
            staging.write(pages or iter(()))
            _complete(job, staging, scan)
            return self._commit(staging, scan, self._check(staging.draft, staging.rules.counts))

    @property
    def _last_missed(self) -> MissingInputs | None:
        """The missing inputs of the last run that read rows; None if it was in another DAG run."""
        missed = self._state.missing_inputs if self._state else None
        return missed if missed and missed.run.is_beside(self._job.run) else None

    def _refuse_foreign_files(self) -> None:
        """Refuse foreign files in the folder of a landing without commits.

        :raises Conflict: if another landing has begun there since the log was read.
        """
        try:
            self._job.folder.refuse_foreign_files()
        except (DestinationTaken, DestinationUnreadable):
            if self._log.read() is None:
                raise
            raise Conflict from None

    def _pages(self, scan: SourceScan, draft: Commit) -> Iterator[Page] | None:
        """Return the pages after a draft; None if a landing that continues there finds nothing new.

        :raises SourceReset: if a source without rows would replace landed rows.
        """
        state, pages = self._state, scan.pages()
        first = next(pages, None)
        if first is None and state is not None and not draft.written:
            if draft.replaces and state.rows:
                raise SourceReset(
                    f"{self._job.called} has no rows now, and what has landed at {self._job.folder.root} is "
                    f"kept ({counted(state.rows, 'row')}): only rows replace a landing"
                )
            if draft.total:
                # before a mark, which covers all rows that have arrived by now, the wait begins now
                pages = scan.late_pages(None if is_mark_due(self._job, state) else self._job.began)
                first = next(pages, None)
            if first is None and not draft.replaces:
                return None
        return itertools.chain(() if first is None else (first,), pages)

    def _kept(self, state: Manifest) -> Landed:
        """Return the result of a landing that stays as it is.

        :raises ChecksFailed: if failed checks have quarantined rows of this run, and ``on_failed_checks`` is
            ``fail``.
        """
        job = self._job
        if self._own:
            log.info("%s has landed already.", job.run)
        latest = self._log.publish(state)
        waiting = [apart for apart in latest.quarantined if apart.run == job.run and apart.has_failed]
        if waiting and job.options.on_failed_checks == "fail":
            raise _quarantined(job, waiting[-1])
        return Landed(latest, self._own_parts, checks=self._own_checks, missing_inputs=self._missing)

    def _nothing_new(self, state: Manifest, draft: Commit, scan: SourceScan) -> Landed:
        """Return the result of a landing that has found nothing new; mark the export if that is due."""
        outcomes = self._check(None, NOTHING_WRONG)
        # the run's own rows were checked before their commit, or accepted by a person
        if not self._own and (failed := self._failed(outcomes)):
            raise _refusal(self._job, failed, "Nothing was committed or marked")
        log.info("%s has nothing new for %s.", self._job.called, self._job.folder.root)
        manifest = self._published(state, draft, scan)
        return Landed(manifest, new=self._own_parts, checks=outcomes, missing_inputs=self._missing)

    def _commit(self, staging: Staging, scan: SourceScan, outcomes: tuple[CheckOutcome, ...]) -> Landed:
        """Commit the rows, quarantined if their checks failed; then mark the export, if that is due."""
        job, draft = self._job, staging.draft
        commit = msgspec.structs.replace(
            draft,
            checks=outcomes,
            missing_inputs=self._missing,
            finished_at=now(),
            rules="",
            rule_counts=NOTHING_WRONG,
        )
        if failed := self._failed(outcomes):
            if not commit.written:
                raise _refusal(job, failed, "Nothing was committed or marked")
            waiting = (*job.folder.set_aside(commit.parts), *commit.quarantined)
            commit = msgspec.structs.replace(commit, parts=(), quarantined=waiting)
        job.stop.check()
        state = self._log.append(self._state, commit)
        raises = failed and job.options.on_failed_checks == "fail"
        if commit.quarantined and not raises:
            apart = state.set_apart[-1]
            rows, checks = counted(apart.rows, "row"), "; ".join(map(str, apart.checks[:_SHOWN]))
            message = "%s of %s are quarantined by commit %d: %s. %s."
            log.warning(message, rows, job.called, apart.commit, checks, _ways(job, apart))
        new = commit.parts if commit.replaces and commit.parts else (*self._own_parts, *commit.parts)
        landed = Landed(state, new=new, committed=commit.parts, checks=outcomes, missing_inputs=self._missing)
        job.observer.on_commit(landed)
        staging.end()
        landed = dataclasses.replace(landed, manifest=self._published(state, draft, scan))
        if raises:
            raise _quarantined(job, state.set_apart[-1])
        return landed

    def _published(self, state: Manifest, draft: Commit, scan: SourceScan) -> Manifest:
        """Publish the state, mark the export if that is due, and return the latest state.

        A mark covers all rows of the source: if another landing has committed meanwhile, the next run marks.

        :param draft: the draft with the rows that were read.
        :raises RowsMissing: if the source's rows have changed; the export is not marked then.
        """
        job, latest = self._job, self._log.publish(state)
        if not is_mark_due(job, latest) or latest.commit != state.commit:
            return latest
        _confirm(job, draft, scan)
        if scan.latest_total > draft.total:
            log.info("%s has more rows by now: the next run lands them, and marks the export.", job.called)
            return latest
        job.stop.check()
        with span("mark", {}):
            job.mark()
        try:
            latest = self._log.append(latest, following(latest, "exported", job.run))
        except Conflict:
            log.warning("Another landing has committed to %s while the export was marked.", job.folder.root)
        return self._log.publish(latest)

    def _check(self, draft: Commit | None, counts: RuleCounts) -> tuple[CheckOutcome, ...]:
        """Return the outcomes of the checks of a run's rows.

        :param draft: the draft with the rows that no earlier attempt has committed; None if there are none.
        :param counts: the counts of the rules about values for these rows.
        """
        job, state = self._job, self._state
        if (checks := job.options.checks) is None:
            return ()
        parts, written = (draft.parts, draft.written) if draft else ((), ())
        if self._own and not written:
            # only the mark is left to do: the rows were checked before
            return self._own_checks
        before = self._inputs.before if self._inputs else None
        record = state.record_of(before.run if before else job.run) if state else None
        with span("check", {}) as recorded:
            rows, profile = sum(part.rows for part in written), sum_of(part.profile for part in parts)
            outcomes = evaluate(
                checks,
                rows,
                profile,
                counts,
                [past for past in (state.history if state else ()) if past is not record],
                before=record if job.options.mode == "incremental" else None,
                source_of=job.options.format.source_of,
            )
            if self._inputs:
                unread = profile.unread + counts.broken.get(READABLE, 0)
                outcome, self._missing = self._inputs.judge(rows, unread)
                outcomes = (*outcomes, outcome)
            failed = sum(outcome.state == "failed" for outcome in outcomes)
            recorded.set({"webcollect.checks.count": len(outcomes), "webcollect.checks.failed": failed})
        for outcome in outcomes:
            if outcome.state in ("failed", "warning"):
                log.warning("Check of %s, %s", job.called, outcome)
        job.observer.on_checks(outcomes)
        return outcomes

    def _failed(self, outcomes: Sequence[CheckOutcome]) -> tuple[CheckOutcome, ...]:
        """Return the failed checks that keep the rows from landing; none if failures only warn."""
        if self._job.options.on_failed_checks == "warn":
            return ()
        return tuple(outcome for outcome in outcomes if outcome.state == "failed")


def _refusal(job: Job, outcomes: Sequence[CheckOutcome], what: str) -> ChecksFailed:
    """Return the error for failed checks.

    :param outcomes: the outcomes to name, failed checks first.
    :param what: the text about the state of the rows, and what to do.
    """
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    more = f"; and {len(outcomes) - _SHOWN} more" if len(outcomes) > _SHOWN else ""
    return ChecksFailed(
        f"{counted(len(failed), 'check')} failed for {job.called} at {job.folder.url}: "
        f"{'; '.join(map(str, outcomes[:_SHOWN]))}{more}. {what}",
        failed,
    )


def _quarantined(job: Job, apart: SetApart) -> ChecksFailed:
    """Return the error for a run whose rows are quarantined because checks failed."""
    # failed checks first, then the rules that single rows have broken
    outcomes = sorted(apart.checks, key=lambda outcome: outcome.state != "failed")
    rows = f"{counted(apart.rows, 'row')} of commit {apart.commit}"
    verb = "is" if apart.rows == 1 else "are"
    return _refusal(job, outcomes, f"{rows} {verb} quarantined. {_ways(job, apart)}")


def _ways(job: Job, apart: SetApart) -> str:
    """Return what a person can do about quarantined rows."""
    where = job.folder.as_argument
    if not where.isprintable():
        # control characters in a pasted command would act on the terminal
        return "Accept or discard them"
    return (
        f"`webcollect landing cat {where} --quarantined {apart.commit} --reasons` shows them, "
        f"`webcollect landing accept {where} --commit {apart.commit}` lands them, and "
        f"`webcollect landing discard {where} --commit {apart.commit}` deletes them"
    )


def _confirmed_start(job: Job, scan: SourceScan, starts: Sequence[Commit]) -> Commit:
    """Return the first draft that the source still matches.

    :raises SourceReset: if the source matches no draft.
    """
    for start in starts:
        try:
            scan.go_to(start)
        except SourceReset as error:
            reset = error
            log.warning("%s.", error)
        else:
            return start
    remedy = (
        "on_reset='full' lands all rows again, and on_reset='append' adds all rows to the landing"
        if job.options.mode == "incremental"
        else "another run with if_exists='overwrite' lands all rows again"
    )
    raise SourceReset(f"{reset}. Nothing was changed; {remedy}; another destination keeps this landing")


def _complete(job: Job, staging: Staging, scan: SourceScan) -> None:
    """Write late rows if a mark follows, and check that all rows of the source were read."""
    if job.options.mark_exported and staging.draft.total and not scan.no_late_rows:
        # the mark covers the whole task, so rows that arrived while the last part was written must land first
        staging.write(scan.pages())
        staging.write(scan.late_pages())
    _confirm(job, staging.draft, scan)


def _confirm(job: Job, draft: Commit, scan: SourceScan) -> None:
    """Check that the source still has the rows that were read, and that it announced no other number of rows.

    This runs before each commit and, since a commit may take long, again before each mark.
    """
    scan.check_unchanged(draft.first_page or draft.last_page)
    rows, total = draft.total, scan.count.total
    if rows != total:
        raise rows_missing(job.called, f"the service announced {total} rows, and {rows} came")


def land_all(jobs: Mapping[str, Callable[[], object]], at_once: int) -> None:
    """Run ``jobs`` in threads.

    If a job fails, the others continue. After an interruption, such as a timeout of the task, no further job
    begins; this function does not wait for running jobs, which end when their ``stop`` is set.

    :param jobs: the jobs by the name of their landing.
    :param at_once: maximum number of jobs that run at the same time.
    :raises SomeFailed: after all jobs have ended, with all errors, if any job has failed.
    """
    errors: dict[str, Exception] = {}
    waiting = deque(jobs)
    running: dict[Future[object], str] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.popleft()
            running[in_background(jobs[name], "webcollect-land")] = name
        for future in first_done(running):
            name = running.pop(future)
            try:
                future.result()
            except Exception as error:
                log.exception("%s did not land.", name)
                errors[name] = error
    if errors:
        raise SomeFailed({name: errors[name] for name in jobs if name in errors}, len(jobs))
