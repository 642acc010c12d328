"""The commit, and what follows it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.counts import rows_missing
from airflow_provider_webcollect.landing.errors import DestinationBusy, Forestalled, PartsMissing
from airflow_provider_webcollect.landing.manifest import Manifest
from airflow_provider_webcollect.landing.parts import widen_parts
from airflow_provider_webcollect.landing.start import judge
from airflow_provider_webcollect.landing.times import now

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.claim import Claim
    from airflow_provider_webcollect.landing.engine import Landing
    from airflow_provider_webcollect.landing.formats import Columns


def commit(landing: Landing, claim: Claim, base: Manifest | None, columns: Columns, total: int) -> Manifest:
    """Write the manifest, if all rows are there.

    :param base: the commit that stood when the landing began.
    :param total: rows that the service has announced.
    """
    destination = landing.destination
    progress = claim.progress
    intact = destination.intact(progress.parts)
    _verify(landing, claim)
    if progress.rows != total:
        raise rows_missing(landing.source, f"announced {total} rows, and {progress.rows} came")
    if len(intact) < len(progress.parts):
        raise PartsMissing(
            "parts that were written have vanished from the destination; does anything else write to it? "
            "Nothing was committed, and the next try goes on after the last part that is left"
        )
    widen_parts(landing, claim, columns)
    if claim.progress is not progress:
        _verify(landing, claim)
    manifest = _manifest(landing, claim, base, columns, total)
    destination.commit(manifest)
    return manifest


def mark(landing: Landing, claim: Claim, manifest: Manifest) -> Manifest:
    """Confirm the export, if that is asked for; then remove what the commit made needless.

    The progress stays until then, so that no other landing begins in between.
    """
    if landing.mark is not None:
        with claim.signs_of_life():
            landing.mark()
        claim.verify()
        manifest = msgspec.structs.replace(manifest, exported_at=now())
        landing.destination.commit(manifest)
    landing.destination.tidy(manifest)
    return manifest


def _verify(landing: Landing, claim: Claim) -> None:
    """Raise if another landing has taken over, or has committed meanwhile."""
    claim.verify()
    committed = landing.destination.manifest()
    if committed is not None and committed.landing_id != claim.progress.base:
        judge(landing, committed)
        error = Forestalled if committed.run == landing.run else DestinationBusy
        raise error(f"run {committed.run.run_id} has landed there meanwhile")


def _manifest(
    landing: Landing, claim: Claim, base: Manifest | None, columns: Columns, total: int
) -> Manifest:
    progress = claim.progress
    options = {
        name: value for name, value in progress.encoding.items() if name not in {"file_format", "compression"}
    }
    return Manifest(
        landing_id=progress.landing_id,
        source=progress.source,
        rows=progress.rows,
        bytes=sum(part.bytes for part in progress.parts),
        format=landing.file_format.name,
        compression=landing.file_format.compression,
        encoding=options,
        columns=columns.names or None,
        parts=tuple(part.bare() for part in progress.parts),
        new_parts=len(progress.parts) - _old_parts(landing, claim, base),
        next_offset=progress.next_offset,
        total=total,
        run=landing.run,
        started_at=progress.started_at,
        finished_at=now(),
        provider_version=airflow_provider_webcollect.__version__,
    )


def _old_parts(landing: Landing, claim: Claim, base: Manifest | None) -> int:
    """Return how many of the parts other runs have committed."""
    if base is None or not claim.progress.continues:
        return 0
    own = base.new_parts if base.run == landing.run else 0
    older = base.parts[: len(base.parts) - own]
    # rewritten ones end where those that they were made of did; some may have vanished and been read again
    pairs = itertools.takewhile(
        lambda pair: pair[0].next_offset == pair[1].next_offset,
        zip(older, claim.progress.parts, strict=False),
    )
    return len(list(pairs))
