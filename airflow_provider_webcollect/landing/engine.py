"""The exactly-once move: pages of rows into parts, then the manifest.

The order of writing is the promise. A part becomes visible whole or not at all; it counts once the progress
names it; the landing counts once the manifest stands. Whatever a crash interrupts, the next run goes on from
the last recorded part, and a reader who trusts the manifest alone sees all rows, each once, or nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pendulum

import airflow_provider_webcollect
from airflow_provider_webcollect.landing import jsonl
from airflow_provider_webcollect.landing.errors import DestinationTaken, PartsMissing, RowsMissing
from airflow_provider_webcollect.landing.manifest import Manifest, Part, Progress, Run, Source
from airflow_provider_webcollect.landing.read_ahead import read_ahead

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.destination import Destination
    from airflow_provider_webcollect.service.records import DataPage

log = logging.getLogger(__name__)

IfExists = Literal["fail", "overwrite", "skip"]
#: Gives the pages of the source from an offset, before which there are so many rows, to the end.
ReadPages = Callable[[int, int], Iterator["DataPage"]]
MAX_PART_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """One source, one destination, one run.

    :param pages: gives the source's pages from an offset on, see :func:`~.pages.all_pages`.
    :param max_part_bytes: a part is ended with the page that reaches this size.
    :param if_exists: what to do about the commit of another run.
    :param advanced: told the rows written so far and the total after every page.
    """

    source: Source
    destination: Destination
    run: Run
    pages: ReadPages
    max_part_bytes: int = MAX_PART_BYTES
    if_exists: IfExists = "fail"
    advanced: Callable[[int, int], None] = lambda rows, total: None


def land(landing: Landing) -> Manifest:
    """Move all rows of the source to the destination and return the manifest that commits them.

    A commit of the same run is left alone, an unfinished landing of the same source is resumed.

    :raises DestinationTaken: if the destination holds another source, foreign files, or another run's commit
        that may not be replaced.
    :raises RowsMissing: if the service gave fewer or more rows than it announced.
    :raises PartsMissing: if parts have vanished meanwhile.
    """
    destination = landing.destination
    if committed := _standing(landing):
        return committed
    destination.refuse_foreign_files()
    progress = _begun(landing)
    total = progress.rows
    pages = read_ahead(landing.pages(progress.next_offset, progress.rows))
    for page in pages:
        total = page.total
        if page.rows:
            progress, total = _with_next_part(landing, progress, itertools.chain((page,), pages))
            destination.record(progress)
    return _committed(landing, progress, total)


def _committed(landing: Landing, progress: Progress, total: int) -> Manifest:
    """Write the manifest, if all rows are there."""
    destination = landing.destination
    # a try of this run that Airflow had given up may have been faster, and its tidying takes our parts
    if committed := _standing(landing):
        return committed
    if progress.rows != total:
        # going on from here would end here again
        destination.forget_progress()
        raise RowsMissing(
            f"the service announced {total} rows of {landing.source}, and {progress.rows} came; "
            "nothing was committed, and the next try reads all of them anew"
        )
    if len(destination.intact(progress.parts)) < len(progress.parts):
        raise PartsMissing(
            "parts that were written have vanished from the destination; does anything else write to it? "
            "Nothing was committed, and the next try goes on after the last part that is left"
        )
    manifest = _manifest(landing, progress, total)
    destination.commit(manifest)
    destination.tidy(manifest)
    return manifest


def _standing(landing: Landing) -> Manifest | None:
    """Return the commit at the destination if it is the answer already."""
    committed = landing.destination.manifest()
    if committed is None or not _stands(landing, committed):
        return None
    if committed.run == landing.run:
        landing.destination.tidy(committed)
    return committed


def _stands(landing: Landing, committed: Manifest) -> bool:
    """Return whether the commit found is the answer already."""
    if committed.source != landing.source:
        raise DestinationTaken(f"the destination holds {committed.source}, not {landing.source}")
    if committed.run == landing.run:
        log.info("This run has landed %d rows already.", committed.rows)
        return True
    match landing.if_exists:
        case "skip":
            log.info("Run %s has landed %d rows already.", committed.run.run_id, committed.rows)
            return True
        case "overwrite":
            return False
    raise DestinationTaken(
        f"the destination holds what run {committed.run.run_id} landed; give every run its own destination "
        "(for instance with {{ run_id }} or {{ ds }} in it), or set if_exists"
    )


def _begun(landing: Landing) -> Progress:
    """Return the progress to go on from, which is written before the first part."""
    progress = landing.destination.progress()
    if progress is None or _is_committed(landing, progress):
        progress = Progress(source=landing.source, started_at=_now())
        landing.destination.record(progress)
        return progress
    if progress.source != landing.source:
        raise DestinationTaken(f"the destination holds a part of {progress.source}, not of {landing.source}")
    resumed = progress.resumed(landing.destination.intact(progress.parts))
    if len(resumed.parts) < len(progress.parts):
        log.warning("%s has vanished from the destination.", progress.parts[len(resumed.parts)].name)
    log.info("Going on after %d rows in %d parts.", resumed.rows, len(resumed.parts))
    return resumed


def _is_committed(landing: Landing, progress: Progress) -> bool:
    """Return whether ``progress`` is what a crash after the commit of another run has left."""
    committed = landing.destination.manifest()
    return committed is not None and not {*committed.parts}.isdisjoint(progress.parts)


def _with_next_part(landing: Landing, progress: Progress, pages: Iterator[DataPage]) -> tuple[Progress, int]:
    """Write the next part; return the progress after it, and the total that the service announced last."""
    name = f"part-{len(progress.parts) + 1:05d}-{progress.landing_id}.jsonl"
    rows = 0
    with landing.destination.part(name) as file:
        for page in pages:
            file.write(jsonl.encode(page.rows))
            rows += len(page.rows)
            landing.advanced(progress.rows + rows, page.total)
            if file.bytes >= landing.max_part_bytes:
                break
    part = Part(
        name=name,
        rows=rows,
        bytes=file.bytes,
        sha256=file.sha256,
        start_offset=progress.next_offset,
        next_offset=page.offset,
    )
    return progress.with_part(part), page.total


def _manifest(landing: Landing, progress: Progress, total: int) -> Manifest:
    return Manifest(
        landing_id=progress.landing_id,
        source=progress.source,
        rows=progress.rows,
        bytes=sum(part.bytes for part in progress.parts),
        format=progress.format,
        compression=progress.compression,
        parts=progress.parts,
        next_offset=progress.next_offset,
        total=total,
        run=landing.run,
        started_at=progress.started_at,
        finished_at=_now(),
        provider_version=airflow_provider_webcollect.__version__,
    )


def _now() -> str:
    return pendulum.now("UTC").isoformat(timespec="milliseconds")
