"""A landing from end to end: plan, lease, copy, commit, mark.

The order of the writes guarantees exactly-once. A part becomes visible only when complete, under a unique
name. It counts after the record lists it; the landing counts after the manifest lists it. Record and manifest
are replaced only if they are unchanged since they were read, so if two landings run at once, one continues
and the other fails.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from typing import TYPE_CHECKING, NoReturn

import msgspec

from airflow_provider_webcollect.landing.commit import check_complete, make_manifest
from airflow_provider_webcollect.landing.errors import (
    DestinationBusy,
    DestinationTaken,
    PartsMissing,
    SourceReset,
)
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.lease import Lease, wait_until_free
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    PROGRESS,
    decode_found_progress,
    decode_manifest,
    encode,
    is_torn,
    now,
)
from airflow_provider_webcollect.landing.plan import AlreadyCommitted, Copy, FolderState, make_plan
from airflow_provider_webcollect.landing.source import SourceReader
from airflow_provider_webcollect.landing.storage.conditional import Changed
from airflow_provider_webcollect.landing.writer import PartsWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.landing.job import Job
    from airflow_provider_webcollect.landing.manifest import Manifest, Progress
    from airflow_provider_webcollect.landing.source import Page
    from airflow_provider_webcollect.landing.storage.conditional import Stored
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
#: How often the folder is read again because another landing has changed it meanwhile.
PLAN_TRIES = 10


def land(job: Job) -> Landed:
    """Move the rows of the source to the folder and return the manifest that commits them.

    A commit of the same run stays unchanged; an unfinished landing of the same source is resumed.

    :raises DestinationTaken: if the folder holds another source, foreign files, or another run's commit that
        may not be replaced.
    :raises DestinationBusy: if another landing is writing there, or has taken over the folder.
    :raises FormatChanged: if the data to continue has other format options.
    :raises SourceReset: if the source no longer begins with the data to continue.
    :raises RowsMissing: if the service returned fewer or more rows than it announced.
    :raises PartsMissing: if parts vanish during the landing, or those of another run are already missing.
    :raises StorageError: if the storage cannot be read or written.
    :raises Stopped: once ``job.stop`` is set.
    """
    job.file_format.require_extras()
    job.folder.try_out()
    if outer := job.folder.enclosing():
        raise DestinationTaken(
            f"{job.folder.root} is inside the landing at {outer.root}; give each landing a folder of its own"
        )
    for _ in range(PLAN_TRIES):
        try:
            return _land_on(job, _read_folder(job.folder))
        except Changed:
            log.info("Another landing has written to %s; the folder is read again.", job.folder.root)
            job.on_replan()
    raise DestinationBusy(f"other landings keep writing to {job.folder.root}")


def _read_folder(folder: Folder) -> FolderState:
    # the record first: it announces each change of the manifest
    stored = folder.read(PROGRESS)
    manifest = folder.read(MANIFEST)
    record = stored and decode_found_progress(stored.content, f"{folder.root}/{PROGRESS}")
    return FolderState(
        manifest=_manifest_in(folder, manifest, record),
        manifest_version=manifest and manifest.version,
        record=record,
        record_version=stored and stored.version,
        files=folder.files(),
    )


def _manifest_in(folder: Folder, stored: Stored | None, record: Progress | None) -> Manifest | None:
    """Return the manifest; None if there is none, or if an unfinished commit has written only part of it."""
    if stored is None or (record is not None and record.commit is not None and is_torn(stored.content)):
        return None
    return decode_manifest(stored.content, f"{folder.root}/{MANIFEST}")


def _land_on(job: Job, found: FolderState) -> Landed:
    if found.announced is not None and found.is_given_up(job):
        _finish_commit(job, found)
    plan = _planned(job, found)
    if isinstance(plan, AlreadyCommitted):
        committed = plan.manifest
        log.info("Run %s has landed %d rows already.", committed.run.run_id, committed.rows)
        return Landed(committed, own=committed.run == job.run, new=committed.added_by(job.run))
    wait_until_free(job, found)
    if found.announced is not None:
        _finish_commit(job, found)
    reader = SourceReader(job)
    start, pages = _first_page(job, reader, plan, found)
    lease = Lease.acquire(job, start, found)
    with lease.held():
        _refuse_stale_plan(job, found)
        return _copy_and_commit(job, found, lease, reader, pages)


def _planned(job: Job, found: FolderState) -> AlreadyCommitted | Copy:
    try:
        return make_plan(job, found)
    except PartsMissing:
        # another commit may have deleted them between the reading of the manifest and the listing
        _refuse_stale_plan(job, found)
        if found.announced is not None:
            # the announced commit may restore them
            wait_until_free(job, found)
            _finish_commit(job, found)
        raise


def _finish_commit(job: Job, found: FolderState) -> NoReturn:
    """Complete a commit that another landing has begun and not completed.

    :raises Changed: always at the end, since the folder must be read again.
    """
    commit = found.announced
    assert found.record is not None
    assert commit is not None
    lease = Lease.acquire(job, found.record, found)
    with lease.held():
        there = job.folder.read(MANIFEST)
        known = _manifest_in(job.folder, there, found.record)
        if known is not None and known.landing_id not in {found.record.base, commit.landing_id}:
            # only where a storage has no conditional writes, or something else has written there
            lease.save(msgspec.structs.replace(lease.progress, commit=None))
            raise Changed(MANIFEST)
        if there is None or there.content != encode(commit):
            lease.write_manifest(there and there.version)
            # the commit that records a mark adds no rows: they were reported with the commit before it
            if commit.run == job.run and commit.exported_at is None:
                job.on_commit(_committed(job, commit, known if lease.progress.continues else None))
        lease.finish(job.folder.files())
    raise Changed(MANIFEST)


def _first_page(
    job: Job, reader: SourceReader, plan: Copy, found: FolderState
) -> tuple[Progress, Iterator[Page]]:
    """Return the starting point and the pages from it, after reading the first page and before any write."""
    start = _confirmed_start(job, reader, plan)
    pages = reader.pages()
    first = next(pages, None)
    if first is None:
        _keep_landed(job, start, found)
    committed = len(found.manifest.parts) if found.manifest is not None else 0
    if first is None and start.continues and start.rows and len(start.parts) == committed:
        pages = reader.late_pages()
        first = next(pages, None)
    return start, itertools.chain(() if first is None else (first,), pages)


def _keep_landed(job: Job, start: Progress, found: FolderState) -> None:
    """Raise :class:`SourceReset` if a source without rows would replace the rows that earlier runs landed."""
    landed = found.manifest.rows if found.manifest is not None else 0
    if job.mode == "incremental" and landed and not start.rows:
        raise SourceReset(
            f"{job.source} has no rows now, and the {landed} rows at {job.folder.root} are kept: "
            "on_reset='full' replaces them only by rows"
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
    remedy = "on_reset='full'" if job.mode == "incremental" else "another run with if_exists='overwrite'"
    raise SourceReset(
        f"{reset}. Nothing was changed; {remedy} lands all of it again, and another destination keeps what "
        "is there"
    )


def _refuse_stale_plan(job: Job, found: FolderState) -> None:
    """Raise :class:`Changed` if another landing has committed and finished since the folder was read."""
    there = job.folder.read(MANIFEST)
    if (there and there.version) != found.manifest_version:
        raise Changed(MANIFEST)


def _copy_and_commit(
    job: Job, found: FolderState, lease: Lease, reader: SourceReader, pages: Iterator[Page]
) -> Landed:
    writer = PartsWriter(job, lease)
    writer.write(pages)
    if job.mark is not None and lease.progress.rows and not reader.settled:
        # the mark covers the whole task, so rows that arrived while the last part was written must land first
        writer.write(reader.pages())
        writer.write(reader.late_pages())
    reader.check_unchanged()
    files = check_complete(job, lease.progress, reader.count.total)
    writer.widen()
    manifest = make_manifest(job, lease.progress, found, reader.count.total)
    version = lease.commit(manifest, found.manifest_version)
    landed = _committed(job, manifest, found.manifest if lease.progress.continues else None)
    job.on_commit(landed)
    if job.mark is not None:
        landed = dataclasses.replace(landed, manifest=_marked(job, lease, manifest, version))
    lease.finish(files)
    return landed


def _committed(job: Job, manifest: Manifest, before: Manifest | None) -> Landed:
    """Return the result of this run's commit.

    :param before: the manifest that it continues; None if it begins with the first row.
    """
    done = before.next_offset if before is not None else -1
    # parts that vanished and were read again end at or before this cursor
    newly_committed = tuple(part for part in manifest.added() if part.next_offset > done)
    return Landed(manifest, own=True, new=manifest.added_by(job.run), newly_committed=newly_committed)


def _marked(job: Job, lease: Lease, manifest: Manifest, version: str) -> Manifest:
    """Confirm the export and record it in the manifest."""
    assert job.mark is not None
    # a landing that was taken over must not mark rows that its successor has not landed yet
    lease.renew()
    job.mark()
    marked = msgspec.structs.replace(manifest, exported_at=now())
    lease.commit(marked, version)
    return marked
