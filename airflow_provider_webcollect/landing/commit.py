"""The commit: what a folder holds before it, the manifest that it writes, and the mark after it."""

from __future__ import annotations

import dataclasses
import logging
import posixpath
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.job import Job, Landed
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    MOST_RECORDS,
    PROGRESS,
    Manifest,
    Progress,
    RunRecord,
    SetApart,
    Source,
    attempt_id_in,
    decode,
    is_replaced_manifest,
    is_torn,
    now,
)
from airflow_provider_webcollect.landing.plan import FolderState
from airflow_provider_webcollect.landing.profile import sum_of
from airflow_provider_webcollect.landing.storage import Changed, Stored

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.lease import Lease
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)


def read_folder(folder: Folder) -> FolderState:
    """Return what a folder holds; its files are of one moment, see below.

    :raises Changed: if it was changed while it was read.
    """
    # both are of one moment if the progress file is still the same afterwards, see `_unwritten`
    stored = folder.read(PROGRESS)
    there = folder.committed()
    manifest = there and there.manifest
    files = folder.files()
    found = FolderState(
        manifest=manifest,
        manifest_version=there and there.version,
        progress=stored and _progress(stored, f"{folder.root}/{PROGRESS}", manifest),
        progress_version=stored and stored.version,
        files=files,
        missing=None if manifest is None else folder.missing(manifest, files),
    )
    if found.missing:
        # another commit may have deleted it between the reading of the manifest and the listing
        again = folder.committed()
        if (again and again.version) != found.manifest_version:
            raise Changed(MANIFEST)
    return found


def _progress(stored: Stored, where: str, manifest: Manifest | None) -> Progress:
    if not is_torn(stored.content):
        return decode(stored.content, where, Progress)
    # its owner may be about to complete it, or dead; it does not tell whether the commit is reported
    unreported = () if manifest is None else (manifest.landing_id,)
    return Progress(
        source=Source(collection_task_id=""), started_at="", owner="unknown", attempt_ids=unreported
    )


def is_commit_due(found: FolderState, progress: Progress) -> bool:
    """Return whether the manifest must be written, for new parts or for a report that has not ended."""
    return found.is_unreported or bool(progress.parts) or not progress.continues


def commit(
    job: Job, found: FolderState, lease: Lease, total: int, outcomes: tuple[CheckOutcome, ...]
) -> Landed:
    """Commit what is new, and mark the export; the result's report is still to be ended.

    :param total: rows that the service announced.
    :param outcomes: of the checks of what is new.
    """
    progress, version = lease.progress, found.manifest_version
    manifest = make_manifest(job, found, progress, total, outcomes)
    lease.obsolete = manifest.without_needed(obsolete(job, found, progress))
    new = manifest.new(job.run)
    landed = Landed(manifest, new=new, committed=progress.parts, checks=outcomes, report=lease)
    if is_commit_due(found, progress):
        if found.manifest is not None and _keeps_replaced(job, found, progress):
            job.folder.keep_replaced(found.manifest)
        version = lease.commit(manifest, version)
        job.observer.on_commit(landed)
    if job.options.mark_exported and manifest.lacks_mark:
        # a landing that was taken over must not mark rows that its successor has not landed yet
        lease.renew()
        job.mark()
        landed = dataclasses.replace(landed, manifest=msgspec.structs.replace(manifest, exported_at=now()))
        lease.commit(landed.manifest, version)
    return landed


def make_manifest(
    job: Job, found: FolderState, progress: Progress, total: int, outcomes: tuple[CheckOutcome, ...]
) -> Manifest:
    """Return the manifest of the landed parts and those of the progress.

    Parts whose report has not ended belong to this run from now on.
    """
    before = found.manifest if progress.continues else None
    landed = before.parts if before is not None else ()
    taken = before.new_parts if before is not None and found.is_unreported else 0
    reported, unreported = landed[: len(landed) - taken], landed[len(landed) - taken :]
    if before is not None and unreported and before.run != job.run:
        rows = sum(part.rows for part in unreported)
        log.info("%s has not finished its report of %d rows; this run reports them.", before.run, rows)
    finished_at = now()
    added = (msgspec.structs.replace(part, landed_at=finished_at) for part in progress.parts)
    parts = (*reported, *(part.of(job.run) for part in (*unreported, *added)))
    if before is not None and not progress.parts:
        # the place in the source stays too: it may have no rows for a moment
        return msgspec.structs.replace(
            before,
            landing_id=progress.landing_id,
            source=progress.source,
            parts=parts,
            new_parts=len(unreported),
            # who has only marked has no rows to report
            run=job.run if unreported else before.run,
            checks=outcomes if unreported else before.checks,
            started_at=progress.started_at,
            finished_at=finished_at,
            provider_version=airflow_provider_webcollect.__version__,
        )
    encoding = dict(progress.encoding)
    return Manifest(
        landing_id=progress.landing_id,
        source=progress.source,
        rows=sum(part.rows for part in parts),
        bytes=sum(part.bytes for part in parts),
        format=encoding.pop("file_format"),
        compression=encoding.pop("compression"),
        encoding=encoding,
        columns=job.options.file_format.columns_after(progress.columns).names or None,
        new_parts=len(unreported) + len(progress.parts),
        next_offset=progress.next_offset,
        last_page=progress.last_page,
        total=total,
        earlier_rows=progress.earlier_rows,
        run=job.run,
        started_at=progress.started_at,
        finished_at=finished_at,
        provider_version=airflow_provider_webcollect.__version__,
        checks=outcomes,
        history=_history_with(job, found, progress),
        set_apart=_set_apart(found, progress),
        parts=parts,
    )


def _set_apart(found: FolderState, progress: Progress) -> tuple[SetApart, ...]:
    """Return what was set apart before.

    A landing that begins again has all rows of the source; what was set apart stays with what it replaces.
    """
    if (before := found.manifest) is None or not progress.continues:
        return ()
    if progress.rows_before == before.source_rows:
        return before.set_apart
    return tuple(msgspec.structs.replace(each, is_earlier=True) for each in before.set_apart)


def _history_with(job: Job, found: FolderState, progress: Progress) -> tuple[RunRecord, ...]:
    """Return the records of the last runs, with that of this one."""
    before = [record for record in found.history if record.run != job.run]
    # an attempt before this one may have committed, too
    own = [record for record in found.history if record.run == job.run and progress.continues]
    profile = sum_of(part.profile for part in progress.parts)
    filled = Counter({name: counts.filled for name, counts in profile.columns.items()})
    for earlier in own:
        filled.update(earlier.filled)
    rows = sum(part.rows for part in progress.parts) + sum(earlier.rows for earlier in own)
    is_cut = profile.is_cut or any(earlier.is_cut for earlier in own)
    record = RunRecord(run=job.run, finished_at=now(), rows=rows, filled=dict(filled), is_cut=is_cut)
    return (*before, record)[-MOST_RECORDS:]


def _keeps_replaced(job: Job, found: FolderState, progress: Progress) -> bool:
    """Return whether the commit replaces a landing that is kept here, so that it can be put back."""
    return (
        found.manifest is not None
        and not progress.continues
        and job.options.on_reset == "full"
        and job.folder.table_format is None
    )


def obsolete(job: Job, found: FolderState, progress: Progress) -> set[str]:
    """Return the files that are not needed after the commit, unless it lists them."""
    if _keeps_replaced(job, found, progress) or any(is_replaced_manifest(name) for name in found.files):
        # what can be put back may have parts of the same attempts
        return set()
    ids = progress.attempt_ids
    written = {name for name in found.files if attempt_id_in(posixpath.basename(name)) in ids}
    if found.manifest is None or progress.continues:
        return written
    quarantined = tuple(f"{each.folder}/" for each in found.manifest.quarantined)
    apart = {name for name in found.files if name.startswith(quarantined)}
    parts = {part.name for part in found.manifest.parts}
    return written | apart | parts
