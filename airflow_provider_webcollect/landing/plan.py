"""Deciding what a landing does from the contents of the folder, without any reads or writes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.landing.errors import DestinationTaken, FormatChanged, PartsMissing
from airflow_provider_webcollect.landing.manifest import (
    Manifest,
    PageFingerprint,
    Part,
    Progress,
    RunRecord,
    counted,
    missing_part,
    now,
)
from airflow_provider_webcollect.landing.storage.folder import is_marker, is_ours

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.job import Job

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FolderState:
    """The contents of the folder.

    :ivar files: bytes by name.
    :ivar missing: a part of the manifest whose file is not there, if there is one.
    """

    manifest: Manifest | None
    manifest_version: str | None
    progress: Progress | None
    progress_version: str | None
    files: Mapping[str, int]
    missing: Part | None = None

    @property
    def history(self) -> tuple[RunRecord, ...]:
        """The records of the last runs that have committed rows."""
        return () if self.manifest is None else self.manifest.history

    @property
    def is_unreported(self) -> bool:
        """Whether the run that has committed the manifest may not have finished its report."""
        progress, manifest = self.progress, self.manifest
        return progress is not None and manifest is not None and manifest.landing_id in progress.attempt_ids

    @property
    def has_unreported_parts(self) -> bool:
        """Whether there are rows that a run before has committed and not reported."""
        return self.is_unreported and self.manifest is not None and self.manifest.new_parts > 0

    def is_given_up(self, job: Job) -> bool:
        """Return whether the progress file is of an attempt of the job's run that Airflow has given up."""
        progress = self.progress
        return progress is not None and progress.run == job.run and progress.attempt <= job.attempt

    def lacks_mark(self, job: Job) -> bool:
        """Return whether the job marks and the commit is not marked."""
        return job.options.mark_exported and self.manifest is not None and self.manifest.lacks_mark


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """The existing commit stays unchanged."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows must be copied.

    :ivar starts: possible starting points; the first one that the source still matches is used.
    """

    starts: tuple[Progress, ...]


@dataclass(frozen=True, slots=True)
class FinishReport:
    """An earlier attempt of the run has committed, and its report must be finished.

    :ivar start: the end of what is landed.
    :ivar checks: what became of the checks of the run's rows.
    """

    start: Progress
    checks: tuple[CheckOutcome, ...]


def make_plan(job: Job, found: FolderState) -> AlreadyCommitted | FinishReport | Copy:
    """Return what a landing does with the folder.

    :raises DestinationTaken: if the folder holds something that must not be changed.
    :raises PartsMissing: if parts that another run has landed are missing.
    :raises FormatChanged: if the data to continue has other format options.
    """
    committed = found.manifest
    if committed is not None and _already_committed(job, found, committed):
        if committed.run == job.run and found.is_unreported:
            return FinishReport(continuing(job, committed), committed.checks)
        return AlreadyCommitted(committed)
    _refuse_foreign_files(job, found)
    starts = _starts(job, found, committed)
    resumed = _resumed(job, found, starts)
    return Copy(tuple(starts if resumed is None else (resumed, *starts)))


def _already_committed(job: Job, found: FolderState, committed: Manifest) -> bool:
    if not (landed := committed.source).is_same_as(job.source):
        elsewhere = (
            f"; the first is of the service at {landed.host}, the second at {job.source.host}. If both are "
            "one service, change `source.host` in the manifest"
            if landed.is_same_as(msgspec.structs.replace(job.source, host=None))
            else "; give each collection task, or batch of one, a destination of its own"
        )
        raise DestinationTaken(f"{job.folder.root} holds {landed}, not {job.source}{elsewhere}")
    if committed.run == job.run:
        return not found.lacks_mark(job) and found.missing is None
    if job.options.mode == "full" and job.options.if_exists == "fail":
        raise DestinationTaken(
            f"{job.folder.root} holds what {committed.run} landed; land with mode='incremental', which adds "
            "what is new, or give every run its own destination (with {{ run_id }} in it, say), or "
            "land with if_exists='skip' or if_exists='overwrite'"
        )
    return job.options.mode == "full" and job.options.if_exists == "skip"


def _refuse_foreign_files(job: Job, found: FolderState) -> None:
    foreign = sorted(name for name in found.files if not (is_ours(name) or is_marker(name)))
    if foreign:
        raise DestinationTaken(
            f"{job.folder.root} holds files that no landing wrote ({', '.join(foreign[:5])}); "
            "give the landing a folder of its own"
        )
    progress = found.progress
    if progress is not None and progress.parts and not progress.source.is_same_as(job.source):
        raise DestinationTaken(f"{job.folder.root} holds a part of {progress.source}, not of {job.source}")


def _starts(job: Job, found: FolderState, committed: Manifest | None) -> list[Progress]:
    """Return the possible starting points besides an unfinished landing, the best first.

    :raises PartsMissing: if another run's rows are missing: read again, they would count as new.
    """
    first_row = _first_row(job, committed)
    goes_on = committed is not None and (committed.run == job.run or job.options.mode == "incremental")
    if committed is None or not goes_on:
        return [first_row]
    if missing := found.missing:
        log.warning("%s has vanished from the destination.", missing.name)
        if committed.new(job.run) == committed.parts or job.options.on_reset == "full":
            return [first_row]
        raise PartsMissing(
            f"{missing.name} is not at {job.folder.root} any more, or is not as long as it was; a landing "
            "needs all of its parts. Put it back; or land all rows again, with on_reset='full' (all of them "
            "count as new then) or at another destination"
        )
    end = continuing(job, committed)
    match job.options.on_reset:
        case "full":
            return [end, first_row]
        case "append":
            return [end, _after_reset(end, committed)]
    return [end]


def _first_row(job: Job, committed: Manifest | None) -> Progress:
    """Return the progress of a landing that begins with the first row."""
    return Progress(
        source=job.source,
        mode=job.options.mode,
        encoding=encoding_of(job.options.file_format),
        table_format=job.folder.table_format,
        base=None if committed is None else committed.landing_id,
        started_at=now(),
    )


def encoding_of_manifest(committed: Manifest) -> dict[str, Any]:
    """Return the format of a landing with all its options, as :func:`encoding_of` does."""
    return {**committed.encoding, "file_format": committed.format, "compression": committed.compression}


def continuing(job: Job, committed: Manifest) -> Progress:
    """Return the progress of a landing that adds to the commit.

    :raises FormatChanged: if the job has other format options.
    """
    _refuse_another_format(job, encoding_of_manifest(committed))
    return msgspec.structs.replace(
        _first_row(job, committed),
        columns=committed.columns or (),
        continues=True,
        rows_before=committed.source_rows,
        # names go on from there, so that their order is that of the rows
        parts_before=len(committed.parts),
        offset_before=committed.next_offset,
        earlier_rows=committed.earlier_rows,
        last_page=committed.last_page,
    )


def _after_reset(end: Progress, committed: Manifest) -> Progress:
    """Return the progress of a landing that adds the source's rows, from the first, to the commit."""
    return msgspec.structs.replace(
        end, rows_before=0, offset_before=0, earlier_rows=committed.rows, last_page=PageFingerprint()
    )


def _resumed(job: Job, found: FolderState, starts: Sequence[Progress]) -> Progress | None:
    """Return the progress of the unfinished landing, if it has rows that can be used."""
    progress = found.progress
    if progress is None or not progress.parts or progress.source != job.source:
        return None
    # a landing that restarted from the first row after a reset of the source still needs `on_reset`
    if (start := next((start for start in starts if _begins(start) == _begins(progress)), None)) is None:
        return None
    if progress.encoding != start.encoding:
        log.warning("%d rows were written with other format options; they are read again.", progress.rows)
        return None
    if missing := missing_part(progress.parts, found.files):
        log.warning("%s has vanished from the destination; its rows are read again.", missing.name)
        return None
    log.info(
        "Going on after %d rows in %s.",
        progress.rows,
        counted(progress.parts_before + len(progress.parts), "part"),
    )
    return msgspec.structs.replace(progress, refused=())


def _begins(progress: Progress) -> tuple[object, ...]:
    return (
        progress.base,
        progress.mode,
        progress.continues,
        progress.rows_before,
        progress.earlier_rows,
    )


def encoding_of(file_format: FileFormat) -> dict[str, Any]:
    """Return the format with all its options, as plain JSON."""
    options = msgspec.structs.asdict(file_format)
    encoding: dict[str, Any] = msgspec.to_builtins({"file_format": file_format.name, **options})
    # as it will be when read back: without tuples
    return {name: list(value) if isinstance(value, tuple) else value for name, value in encoding.items()}


def _in_words(option: Any) -> str:
    return "not set" if option is None else ", ".join(option) if isinstance(option, list) else str(option)


def _refuse_another_format(job: Job, found: dict[str, Any]) -> None:
    wanted = encoding_of(job.options.file_format)
    differing = [
        f"`{name}` is {_in_words(wanted.get(name))} and was {_in_words(found.get(name))}"
        for name in {**wanted, **found}
        if wanted.get(name) != found.get(name)
    ]
    if differing:
        if wanted["file_format"] != found.get("file_format"):
            # the other differences only follow from the format
            del differing[1:]
        raise FormatChanged(
            f"the landing at {job.folder.root} was written with other options: {'; '.join(differing)}. "
            "Use the same options, or give the landing another destination"
        )
