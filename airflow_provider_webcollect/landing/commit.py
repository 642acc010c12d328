"""The commit: a manifest of all parts, written if they contain all rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.errors import PartsMissing
from airflow_provider_webcollect.landing.manifest import Manifest, now
from airflow_provider_webcollect.landing.source import rows_missing

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.job import Job
    from airflow_provider_webcollect.landing.manifest import Progress
    from airflow_provider_webcollect.landing.plan import FolderState


def check_complete(job: Job, progress: Progress, total: int) -> dict[str, int]:
    """Return the folder's files, if all parts are present and contain all rows.

    :param total: rows that the service has announced.
    :raises RowsMissing: if the number of rows differs.
    :raises PartsMissing: if a part is missing.
    """
    if progress.rows != total:
        raise rows_missing(job.source, f"the service announced {total} rows, and {progress.rows} came")
    files = job.folder.files()
    missing = [part.name for part in progress.parts if files.get(part.name) != part.bytes]
    if missing:
        raise PartsMissing(
            f"{', '.join(missing[:5])} has vanished from {job.folder.root}; does anything else write to it? "
            "Nothing was committed, and the next attempt goes on after the last part that is left"
        )
    return files


def make_manifest(job: Job, progress: Progress, found: FolderState, total: int) -> Manifest:
    """Return the manifest of the parts in the progress record."""
    options = {
        name: value for name, value in progress.encoding.items() if name not in {"file_format", "compression"}
    }
    # a confirmed export stays confirmed while nothing is new
    before = found.manifest if progress.continues else None
    old = _old_parts(job, progress, before)
    same = before is not None and before.next_offset == progress.next_offset and before.rows == progress.rows
    return Manifest(
        landing_id=progress.landing_id,
        source=progress.source,
        rows=progress.rows,
        bytes=sum(part.bytes for part in progress.parts),
        format=job.file_format.name,
        compression=job.file_format.compression,
        encoding=options,
        columns=job.file_format.columns_after(progress.columns).names or None,
        parts=(
            *(part.bare() for part in progress.parts[:old]),
            *(msgspec.structs.replace(part.bare(), run=job.run) for part in progress.parts[old:]),
        ),
        new_parts=len(progress.parts) - old,
        next_offset=progress.next_offset,
        total=total,
        run=job.run,
        started_at=progress.started_at,
        finished_at=now(),
        exported_at=before.exported_at if before is not None and same else None,
        provider_version=airflow_provider_webcollect.__version__,
    )


def _old_parts(job: Job, progress: Progress, before: Manifest | None) -> int:
    """Return the number of parts that other runs have committed."""
    if before is None:
        return 0
    own = before.new_parts if before.run == job.run else 0
    older = before.parts[: len(before.parts) - own]
    # rewritten parts keep their end cursor; vanished parts may have been read again with other ends
    pairs = itertools.takewhile(
        lambda pair: pair[0].next_offset == pair[1].next_offset, zip(older, progress.parts, strict=False)
    )
    return len(list(pairs))
