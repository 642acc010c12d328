"""Deciding what a landing does from the contents of the folder, without any reads or writes."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from airflow_provider_webcollect.landing.errors import DestinationTaken, FormatChanged, PartsMissing
from airflow_provider_webcollect.landing.manifest import Progress, RecordedPart, now
from airflow_provider_webcollect.landing.storage.folder import is_marker, is_ours

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.job import Job
    from airflow_provider_webcollect.landing.manifest import Manifest, Part

log = logging.getLogger(__name__)
P = TypeVar("P", bound="Part")


@dataclass(frozen=True, slots=True)
class FolderState:
    """The contents of the folder.

    :ivar files: bytes by name.
    """

    manifest: Manifest | None
    manifest_version: str | None
    record: Progress | None
    record_version: str | None
    files: Mapping[str, int]

    @property
    def announced(self) -> Manifest | None:
        """The commit in the progress record, completed or not."""
        return self.record.commit if self.record is not None else None

    def is_given_up(self, job: Job) -> bool:
        """Return whether the record is of an attempt of the job's run that Airflow has given up."""
        record = self.record
        return record is not None and record.run == job.run and record.attempt <= job.attempt

    def intact(self, parts: Sequence[P]) -> tuple[P, ...]:
        """Return the parts up to the first that is missing or has another size."""
        return tuple(itertools.takewhile(lambda part: self.files.get(part.name) == part.bytes, parts))


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


def make_plan(job: Job, found: FolderState) -> AlreadyCommitted | Copy:
    """Return what a landing does with the folder.

    :raises DestinationTaken: if the folder holds something that must not be changed.
    :raises PartsMissing: if parts that another run has landed are missing.
    :raises FormatChanged: if the data to continue has other format options.
    """
    committed = found.manifest
    if committed is not None and _already_committed(job, found, committed):
        return AlreadyCommitted(committed)
    _refuse_foreign_files(job, found)
    starts = _starts(job, found, committed)
    resumed = _resumed(job, found, starts)
    return Copy(tuple(starts if resumed is None else (resumed, *starts)))


def _already_committed(job: Job, found: FolderState, committed: Manifest) -> bool:
    if not committed.source.is_same_as(job.source):
        raise DestinationTaken(f"{job.folder.root} holds {committed.source}, not {job.source}")
    if committed.run == job.run:
        lacks_mark = job.mark is not None and committed.exported_at is None
        return found.intact(committed.parts) == committed.parts and not lacks_mark
    if job.mode == "full" and job.if_exists == "fail":
        raise DestinationTaken(
            f"{job.folder.root} holds what run {committed.run.run_id} landed; land with mode='incremental', "
            "which adds what is new, or give every run its own destination (with {{ run_id }} in it, say), "
            "or set if_exists"
        )
    return job.mode == "full" and job.if_exists == "skip"


def _refuse_foreign_files(job: Job, found: FolderState) -> None:
    foreign = sorted(name for name in found.files if not (is_ours(name) or is_marker(name)))
    if foreign:
        raise DestinationTaken(
            f"{job.folder.root} holds files that no landing wrote ({', '.join(foreign[:5])}); "
            "give the landing a folder of its own"
        )
    record = found.record
    if record is not None and record.parts and not record.source.is_same_as(job.source):
        raise DestinationTaken(f"{job.folder.root} holds a part of {record.source}, not of {job.source}")


def _starts(job: Job, found: FolderState, committed: Manifest | None) -> list[Progress]:
    """Return the possible starting points besides an unfinished landing, the best first.

    :raises PartsMissing: if another run's rows are missing: read again, they would count as new.
    """
    first_row = _first_row(job, committed)
    if committed is None or not (committed.run == job.run or job.mode == "incremental"):
        return [first_row]
    or_all = [first_row] if job.mode == "incremental" and job.on_reset == "full" else []
    missing = committed.parts[len(found.intact(committed.parts)) :]
    own = committed.added() if committed.run == job.run else ()
    if len(missing) <= len(own):
        return [_continuing(job, found, committed), *or_all]
    if or_all:
        return or_all
    raise PartsMissing(
        f"{missing[0].name} is not at {job.folder.root} any more, or is not as long as it was; a landing "
        "needs all of its parts. Put it back; or land all rows again, with on_reset='full' (all of them "
        "count as new then) or at another destination"
    )


def _first_row(job: Job, committed: Manifest | None) -> Progress:
    """Return the progress of a landing that begins with the first row."""
    return Progress(
        source=job.source,
        mode=job.mode,
        encoding=encoding_of(job.file_format),
        base=None if committed is None else committed.landing_id,
        started_at=now(),
    )


def _continuing(job: Job, found: FolderState, committed: Manifest) -> Progress:
    """Return the progress of a landing that adds to the commit, or to what remains of it."""
    encoding = {**committed.encoding, "file_format": committed.format, "compression": committed.compression}
    _refuse_another_format(job, encoding)
    columns = committed.columns or ()
    intact = found.intact(committed.parts)
    if len(intact) < len(committed.parts):
        log.warning("%s has vanished from the destination.", committed.parts[len(intact)].name)
    parts = tuple(
        RecordedPart(
            **{name: getattr(part, name) for name in part.__struct_fields__}, column_count=len(columns)
        )
        for part in intact
    )
    return msgspec.structs.replace(_first_row(job, committed), columns=columns, parts=parts, continues=True)


def _resumed(job: Job, found: FolderState, starts: Sequence[Progress]) -> Progress | None:
    """Return the progress of the unfinished landing, if it has more than the commit."""
    record = found.record
    if record is None or record.commit is not None or record.source != job.source:
        return None
    # a landing that restarted from the first row after a reset of the source still needs `on_reset`
    like = next((start for start in starts if start.continues == record.continues), None)
    if like is None or (record.base, record.mode) != (like.base, like.mode):
        return None
    parts = found.intact(record.parts)
    if len(parts) <= len(like.parts):
        # it has nothing more than the commit
        return None
    if record.encoding != like.encoding:
        log.warning("%d rows were written with other format options; they are read again.", record.rows)
        return None
    if len(parts) < len(record.parts):
        log.warning("%s has vanished from the destination.", record.parts[len(parts)].name)
    resumed = msgspec.structs.replace(record, parts=parts)
    log.info("Going on after %d rows in %d parts.", resumed.rows, len(parts))
    return resumed


def encoding_of(file_format: FileFormat) -> dict[str, Any]:
    """Return the format with all its options, as plain JSON."""
    # every format is a dataclass of its options
    names = [field.name for field in dataclasses.fields(file_format)]  # type: ignore[arg-type]
    options = {name: getattr(file_format, name) for name in names}
    encoding: dict[str, Any] = msgspec.to_builtins({"file_format": file_format.name, **options})
    # as it will be when read back: without tuples
    return {name: list(value) if isinstance(value, tuple) else value for name, value in encoding.items()}


def _refuse_another_format(job: Job, found: dict[str, Any]) -> None:
    wanted = encoding_of(job.file_format)
    differing = [
        f"{name} is {wanted.get(name)!r} and was {found.get(name)!r}"
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
