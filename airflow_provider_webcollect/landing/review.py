"""Rows that have failed their checks: set apart by the landing, accepted or discarded by a person.

They are staged (finished parts that the progress file lists) or quarantined (a landing of its own inside the
folder, which the manifest lists as set apart). In each case one compare-and-swap of the manifest decides;
files are written before it and deleted after it.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import msgspec

from airflow_provider_webcollect.landing.commit import commit, make_manifest, obsolete, read_folder
from airflow_provider_webcollect.landing.errors import (
    DestinationBusy,
    FormatChanged,
    NothingToReview,
    PartsMissing,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Job, Landed, LeaseTiming, Observer
from airflow_provider_webcollect.landing.lease import Lease, wait_until_free
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    Manifest,
    Mode,
    Part,
    Progress,
    Run,
    SetApart,
    Source,
    counted,
    decode,
    encode,
    missing_part,
    now,
    part_name,
    quarantine_folder,
)
from airflow_provider_webcollect.landing.options import OnReset, landing_at, make_options
from airflow_provider_webcollect.landing.plan import FolderState, continuing, encoding_of_manifest
from airflow_provider_webcollect.landing.storage import Changed
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.service.pauses import Stop

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.checks import CheckOutcome

log = logging.getLogger(__name__)
#: Bytes of a part that are copied at a time.
_CHUNK_BYTES = 4 * 1024 * 1024
#: How often a decision is carried out again because the folder has changed meanwhile.
_TRIES = 5


class InReview(NamedTuple):
    """Rows that wait for a person's decision.

    :ivar state: ``staged`` or ``quarantined``.
    :ivar folder: of the quarantined rows, relative to the landing's; None for staged ones.
    :ivar checks: that they have failed.
    """

    state: str
    run: Run
    rows: int
    folder: str | None
    checks: tuple[CheckOutcome, ...]

    def __str__(self) -> str:
        return f"{counted(self.rows, 'row')} of {self.run.run_id} ({self.state})"


def in_review(path: Any) -> tuple[InReview, ...]:
    """Return the rows of a landing that wait for a decision, the staged ones first.

    :param path: the landing's folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    """
    return _waiting(_read(landing_at(path)))


def accept(
    path: Any,
    run_id: str | None = None,
    *,
    observer: Observer | None = None,
) -> InReview:
    """Commit rows that have failed their checks to the landing, each once; the next run reports them.

    Staged rows are committed as they are. Quarantined ones are copied into the landing's own parts; the
    folder that they were in is then deleted. The export is not marked; the next run marks it if it is to.

    :param path: as for :func:`in_review`.
    :param run_id: the Airflow run that has read them; None if there are those of one run only.
    :param observer: hears of a wait for another landing.
    :return: what was accepted.
    :raises NothingToReview: if no such rows wait for a decision.
    :raises DestinationBusy: if a landing is at work, or unfinished, in the folder.
    :raises PartsMissing: if parts of these rows are missing or damaged; nothing is committed then.
    :raises FormatChanged: if quarantined rows have another format or other columns than the landing now.
    """
    review = Review(landing_at(path), run_id, observer)
    review.accept()
    return review.chosen


def discard(
    path: Any,
    run_id: str,
    *,
    observer: Observer | None = None,
) -> InReview:
    """Leave out rows that have failed their checks for good; the landing counts them and goes on behind them.

    Staged rows of a landing that begins with the first row (``mode="full"``, or after a reset) are only
    dropped: the next run reads the source again, and deletes their files.

    :param path: as for :func:`in_review`.
    :param run_id: the Airflow run that has read them.
    :param observer: hears of a wait for another landing.
    :return: what was discarded.
    :raises NothingToReview: if no such rows wait for a decision.
    :raises DestinationBusy: if a landing is at work, or unfinished, in the folder.
    """
    review = Review(landing_at(path), run_id, observer)
    review.discard()
    return review.chosen


def can_be_set_apart(progress: Progress) -> bool:
    """Return whether a landing can go on behind rows without having them; else it begins with them."""
    return progress.mode == "incremental" and (progress.continues or progress.base is None)


def quarantine(job: Job, found: FolderState, lease: Lease, outcomes: tuple[CheckOutcome, ...]) -> Landed:
    """Make a landing of their own of the rows that a run has read, and let the landing go on behind them.

    The export is not marked. The parts that were copied are deleted when the result's report ends.

    :param lease: whose progress has the parts with the rows.
    :param outcomes: of the checks.
    """
    progress = lease.progress
    name = quarantine_folder(job.run.run_id, progress.landing_id)
    inside = job.folder.inside(name)
    for part in progress.parts:
        _copy(job.folder, part, inside, part.name)
        lease.check()
    with inside.part(MANIFEST) as file:
        file.write(encode(_alone(job, progress, outcomes)))
    apart = _set_apart("quarantined", progress, outcomes, job.run, name)
    manifest = _without_parts(job, found, progress, apart, outcomes)
    lease.commit(manifest, found.manifest_version)
    staged = {part.name for part in progress.parts}
    lease.obsolete = manifest.without_needed(obsolete(job, found, progress) | staged)
    landed = Landed(manifest, new=manifest.new(job.run), checks=outcomes, report=lease)
    log.warning("%s of %s are quarantined in %s.", counted(apart.rows, "row"), job.source, inside.url)
    job.observer.on_commit(landed)
    return landed


def _alone(job: Job, progress: Progress, outcomes: tuple[CheckOutcome, ...]) -> Manifest:
    """Return the manifest of a landing that has nothing but the parts."""
    alone = msgspec.structs.replace(progress, continues=False, rows_before=0, earlier_rows=0)
    nothing = FolderState(None, None, None, None, {})
    return make_manifest(job, nothing, alone, alone.rows, outcomes)


def _without_parts(
    job: Job, found: FolderState, progress: Progress, apart: SetApart, outcomes: tuple[CheckOutcome, ...]
) -> Manifest:
    """Return the manifest that goes on behind the parts of the progress, without them."""
    whole = make_manifest(job, found, progress, progress.rows, outcomes)
    parts = whole.parts[: -len(progress.parts)]
    return msgspec.structs.replace(
        whole,
        rows=sum(part.rows for part in parts),
        bytes=sum(part.bytes for part in parts),
        parts=parts,
        new_parts=whole.new_parts - len(progress.parts),
        history=found.history,
        set_apart=(*whole.set_apart, apart),
    )


def _set_apart(
    kind: Literal["quarantined", "discarded"],
    progress: Progress,
    outcomes: tuple[CheckOutcome, ...],
    run: Run,
    folder: str | None = None,
) -> SetApart:
    return SetApart(
        kind=kind,
        run=run,
        rows=sum(part.rows for part in progress.parts),
        start_offset=progress.parts[0].start_offset,
        next_offset=progress.next_offset,
        finished_at=now(),
        folder=folder,
        checks=tuple(outcome for outcome in outcomes if outcome.state == "failed"),
    )


def _copy(source: Folder, part: Part, target: Folder, name: str) -> None:
    """Copy a part to another folder.

    :raises PartsMissing: if it is not what was written.
    """
    with source.opened(part.name) as file, target.part(name) as copied:
        while chunk := file.read(_CHUNK_BYTES):
            copied.write(chunk)
        if (copied.bytes, copied.sha256) != (part.bytes, part.sha256):
            raise PartsMissing(f"{source.url}/{part.name} is not what was written; nothing was committed")


def _read(folder: Folder) -> FolderState:
    try:
        return read_folder(folder)
    except Changed as error:
        raise _busy(folder) from error


def _busy(folder: Folder) -> DestinationBusy:
    return DestinationBusy(f"another landing has written to {folder.url}; try again")


def _waiting(found: FolderState) -> tuple[InReview, ...]:
    manifest, progress = found.manifest, found.progress
    there = [
        InReview("quarantined", each.run, each.rows, each.folder, each.checks)
        for each in (manifest.quarantined if manifest else ())
    ]
    if progress is None or progress.run is None or not progress.refused:
        return tuple(there)
    # else they were committed already, or others have committed before them
    if progress.base == (manifest.landing_id if manifest else None):
        rows = sum(part.rows for part in progress.parts)
        there.insert(0, InReview("staged", progress.run, rows, None, progress.refused))
    return tuple(there)


class Review:
    """A decision about the rows of one run: see :func:`accept` and :func:`discard`.

    :param folder: of the landing.
    :param run_id: None for the only one whose rows wait.
    :param observer: hears of a wait for another landing.
    :param stop: ends such a wait.
    :param timing: of the lease.
    :ivar chosen: the rows.
    """

    def __init__(
        self,
        folder: Folder,
        run_id: str | None,
        observer: Observer | None = None,
        stop: Stop | None = None,
        timing: LeaseTiming | None = None,
    ) -> None:
        self.folder = folder
        self.found = _read(folder)
        self.chosen = self._choose(run_id)
        self._observer = observer or Observer()
        self._stop = stop or Stop()
        self._timing = timing or LeaseTiming()

    def _choose(self, run_id: str | None) -> InReview:
        there = _waiting(self.found)
        of_run = [each for each in there if run_id in (None, each.run.run_id)]
        # a run that was cleared may have failed its checks twice: those staged have to be decided on first
        if of_run and (run_id is not None or len(of_run) == 1):
            return of_run[0]
        listed = ", ".join(map(str, there))
        if of_run:
            raise NothingToReview(f"name one of the runs whose rows wait at {self.folder.url}: {listed}")
        whose = "no rows wait" if run_id is None else f"no rows of {run_id} wait"
        raise NothingToReview(f"{whose} for a decision at {self.folder.url}; there are {listed or 'none'}")

    def accept(self) -> None:
        """Commit the rows."""
        self._decide(self._accept_staged, self._accept_quarantined)

    def discard(self) -> None:
        """Leave the rows out."""
        self._decide(self._discard_staged, self._discard_quarantined)

    def quarantine(self) -> None:
        """Make a landing of their own of staged rows, as the run would have with ``quarantine``.

        :raises NothingToReview: if they are quarantined already, or a landing would begin with them.
        """
        self._decide(self._quarantine_staged, self._refuse_quarantine)

    def _decide(self, staged: Callable[[], None], quarantined: Callable[[str], None]) -> None:
        """Carry out a decision; again on what there is by then, if the folder has changed meanwhile.

        That happens also where the storage is found to ignore conditions.
        """
        for _ in range(_TRIES):
            try:
                if self.chosen.folder is None:
                    staged()
                else:
                    quarantined(self.chosen.folder)
            except Changed:
                self.found = _read(self.folder)
                self.chosen = self._choose(self.chosen.run.run_id)
            else:
                return
        raise _busy(self.folder)

    def _refuse_quarantine(self, name: str) -> NoReturn:
        raise NothingToReview(f"{self.chosen} at {self.folder.url} cannot be quarantined")

    def _quarantine_staged(self) -> None:
        job, progress = self._staged()
        if not can_be_set_apart(progress):
            self._refuse_quarantine("")
        with self._lease(job, progress) as lease:
            quarantine(job, self.found, lease, progress.refused)
        lease.tidy()
        self._end(lease)

    def _accept_staged(self) -> None:
        job, progress = self._staged()
        if missing := missing_part(progress.parts, self.found.files):
            raise PartsMissing(f"{missing.name} is not at {self.folder.url} any more; nothing was committed")
        with self._lease(job, progress) as lease:
            commit(job, self.found, lease, progress.rows, progress.refused)
        lease.tidy()
        lease.release()

    def _discard_staged(self) -> None:
        job, progress = self._staged()
        if not can_be_set_apart(progress):
            # nothing is committed, so another decision may be about to commit the parts: they stay until the
            # next run has committed
            start = msgspec.structs.replace(progress, parts=(), refused=())
            with self._lease(job, start) as lease:
                pass
            lease.release()
            return
        with self._lease(job, progress) as lease:
            apart = _set_apart("discarded", progress, progress.refused, self.chosen.run)
            manifest = _without_parts(job, self.found, lease.progress, apart, progress.refused)
            lease.commit(manifest, self.found.manifest_version)
            lease.save(msgspec.structs.replace(lease.progress, parts=(), refused=()))
        self.folder.delete(part.name for part in progress.parts)
        self._end(lease)

    def _accept_quarantined(self, name: str) -> None:
        before, apart, job, start = self._quarantined(name)
        inside = self.folder.inside(name)
        stored = decode(self._read(inside), f"{inside.url}/{MANIFEST}", Manifest)
        self._refuse_another_format(before, stored)
        with self._lease(job, start) as lease:
            # not recorded in the progress file: no run may take them for rows that are to be read next
            copied = tuple(
                self._copied(inside, part, number, lease, job.options.file_format.suffix)
                for number, part in enumerate(stored.parts, len(before.parts) + 1)
            )
            progress = msgspec.structs.replace(lease.progress, parts=copied)
            manifest = make_manifest(job, self.found, progress, before.total, apart.checks)
            manifest = msgspec.structs.replace(
                manifest,
                next_offset=before.next_offset,
                earlier_rows=before.earlier_rows + (apart.rows if apart.is_earlier else 0),
                set_apart=tuple(each for each in before.set_apart if each != apart),
            )
            lease.commit(manifest, self.found.manifest_version)
        self._delete(name)
        lease.release()

    def _refuse_another_format(self, before: Manifest, stored: Manifest) -> None:
        """Raise :class:`FormatChanged` if the parts do not fit the landing, which was put back, say."""
        names = stored.columns or ()
        if (
            encoding_of_manifest(stored) != encoding_of_manifest(before)
            or names != (before.columns or ())[: len(names)]
        ):
            raise FormatChanged(
                f"the rows in {self.chosen.folder} of {self.folder.url} have another format or other columns "
                "than the landing has now; nothing was committed. They can be read there as a landing of "
                "their own"
            )

    def _copied(self, inside: Folder, part: Part, number: int, lease: Lease, suffix: str) -> Part:
        """Return the copy of a quarantined part among those of the landing."""
        name = part_name(number, lease.progress.landing_id, suffix)
        own = msgspec.structs.replace(part, name=posixpath.join(posixpath.dirname(part.name), name))
        _copy(inside, part, self.folder, own.name)
        lease.check()
        return own

    def _discard_quarantined(self, name: str) -> None:
        before, apart, job, start = self._quarantined(name)
        counted_out = msgspec.structs.replace(apart, kind="discarded", folder=None, finished_at=now())
        with self._lease(job, start) as lease:
            manifest = msgspec.structs.replace(
                before,
                landing_id=lease.progress.landing_id,
                # else the next run would report again what is reported, if this is killed before its end
                new_parts=before.new_parts if self.found.is_unreported else 0,
                set_apart=tuple(counted_out if each == apart else each for each in before.set_apart),
                finished_at=now(),
            )
            lease.commit(manifest, self.found.manifest_version)
        self._delete(name)
        self._end(lease)

    def _staged(self) -> tuple[Job, Progress]:
        progress = self.found.progress
        assert progress is not None
        restarts = progress.mode == "incremental" and not can_be_set_apart(progress)
        on_reset: OnReset = "full" if restarts else "fail"
        return self._job(progress.source, progress.encoding, progress.mode, on_reset), progress

    def _quarantined(self, name: str) -> tuple[Manifest, SetApart, Job, Progress]:
        before, progress = self.found.manifest, self.found.progress
        assert before is not None
        if progress is not None and progress.parts and progress.base == before.landing_id:
            raise DestinationBusy(
                f"{progress.run} has not ended at {self.folder.url}: let it end, or decide on its rows, first"
            )
        apart = next(each for each in before.set_apart if each.folder == name)
        job = self._job(before.source, encoding_of_manifest(before), "incremental", "fail")
        return before, apart, job, continuing(job, before)

    def _job(self, source: Source, encoding: Mapping[str, Any], mode: Mode, on_reset: OnReset) -> Job:
        file_format = make_format(**{**encoding, "compression": encoding["compression"] or "none"})
        return Job(
            source=source,
            folder=self.folder,
            run=self.chosen.run,
            # below those of all attempts: none of them is taken for one that Airflow has given up
            attempt=0,
            options=make_options(file_format, mode=mode, on_reset=on_reset),
            pages=_NoPages(),
            mark=lambda: None,
            observer=self._observer,
            stop=self._stop,
            timing=self._timing,
        )

    @contextlib.contextmanager
    def _lease(self, job: Job, start: Progress) -> Iterator[Lease]:
        """Hold the lease of the folder.

        :raises DestinationBusy: if a landing is at work there.
        :raises Changed: if one has written there meanwhile, or the storage is found to ignore conditions.
        """
        wait_until_free(job, self.found)
        lease = Lease.acquire(job, start, self.found)
        with lease.held():
            yield lease

    def _end(self, lease: Lease) -> None:
        """End the lease; if a run has not finished its report, the next one still does."""
        if self.found.is_unreported:
            lease.release()
        else:
            lease.finish()

    def _read(self, inside: Folder) -> bytes:
        if (stored := inside.read(MANIFEST)) is None:
            raise PartsMissing(f"{inside.url}/{MANIFEST} is not there any more; nothing was committed")
        return stored.content

    def _delete(self, name: str) -> None:
        """Delete a folder of quarantined rows; without its manifest, what is left of it can be cleaned up."""
        files = [file for file in self.folder.files() if file.startswith(f"{name}/")]
        self.folder.delete(sorted(files, key=lambda file: not file.endswith(f"/{MANIFEST}")))


class _NoPages:
    """The pages of a job that reads none."""

    def read(self, offset: int) -> NoReturn:
        raise AssertionError(f"a decision reads no rows, and not those from {offset} on")

    def forget(self) -> None:
        """Nothing was read ahead."""
