"""The exactly-once move: pages of rows into parts, then the manifest.

The order of writing is the promise. A part becomes visible whole or not at all; it counts once the progress
names it; the landing counts once the manifest stands. Whatever a crash interrupts, the next run goes on from
the last recorded part, and a reader who trusts the manifest alone sees all rows, each once, or nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from airflow_provider_webcollect.landing.claim import ABANDONED_AFTER, Claim
from airflow_provider_webcollect.landing.commit import commit, mark
from airflow_provider_webcollect.landing.counts import counted
from airflow_provider_webcollect.landing.errors import (
    DestinationBusy,
    Forestalled,
    PartsMissing,
    RowsMissing,
    SourceReset,
)
from airflow_provider_webcollect.landing.formats import FileFormat, make_format
from airflow_provider_webcollect.landing.last_page import what_follows
from airflow_provider_webcollect.landing.manifest import Manifest, Mode, Progress, Run, Source
from airflow_provider_webcollect.landing.parts import write_parts
from airflow_provider_webcollect.landing.start import (
    Verdict,
    anew,
    begin,
    continuing,
    judge,
    left_alone,
)

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.destination import Destination
    from airflow_provider_webcollect.service.api.records import DataPage

log = logging.getLogger(__name__)

IfExists = Literal["fail", "overwrite", "skip"]
OnReset = Literal["fail", "full"]
#: Gives the pages of the source from an offset, before which there are so many rows, to the end.
ReadPages = Callable[[int, int], Iterator["DataPage"]]
MAX_PART_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """One source, one destination, one run.

    :param pages: gives the source's pages from an offset on, see :func:`~.pages.all_pages`.
    :param late: gives those of rows that appear while one is ready to wait, see :func:`~.pages.late_pages`;
        asked where an incremental landing finds nothing new, and before a mark.
    :param mode: ``full`` lands all rows for this run; ``incremental`` adds those that are new to what earlier
        runs have landed.
    :param on_reset: for ``incremental``: what to do if the source no longer begins with what was landed.
    :param if_exists: for ``full``: what to do about the commit of another run.
    :param mark: confirms the export to the service; called after the commit.
    :param max_part_bytes: a part is ended with the page that reaches this size.
    :param abandoned_after: seconds without a sign of life after which another run's landing is taken over.
    :param advanced: told the rows written so far and the total after every page.
    """

    source: Source
    destination: Destination
    run: Run
    pages: ReadPages
    late: ReadPages = lambda offset, rows: iter(())
    file_format: FileFormat = field(default_factory=make_format)
    mode: Mode = "full"
    on_reset: OnReset = "fail"
    if_exists: IfExists = "fail"
    mark: Callable[[], object] | None = None
    max_part_bytes: int = MAX_PART_BYTES
    abandoned_after: float = ABANDONED_AFTER
    advanced: Callable[[int, int], object] = lambda rows, total: None


def land(landing: Landing) -> Manifest:
    """Move the rows of the source to the destination and return the manifest that commits them.

    A commit of the same run is left alone, an unfinished landing of the same source is resumed.

    :raises DestinationTaken: if the destination holds another source, foreign files, or another run's commit
        that may not be replaced.
    :raises DestinationBusy: if another landing is writing there.
    :raises FormatChanged: if what is to be continued was written with other format options.
    :raises SourceReset: if what is to be continued is not what the source begins with any more.
    :raises RowsMissing: if the service gave fewer or more rows than it announced.
    :raises PartsMissing: if parts have vanished meanwhile.
    """
    landing.file_format.require_extras()
    before = landing.destination.manifest()
    try:
        return _landed(landing, before)
    except (DestinationBusy, PartsMissing) as error:
        # a try of this run that Airflow had given up may have been faster, and its tidying takes our parts
        committed = landing.destination.manifest()
        if committed is None or committed.run != landing.run or committed == before:
            raise
        overtaken = not isinstance(error, Forestalled | PartsMissing)
        if overtaken and landing.destination.progress() is not None:
            # whoever has taken over brings it to its end
            return committed
        return _landed(landing, committed)


def _landed(landing: Landing, committed: Manifest | None) -> Manifest:
    if committed is None:
        fresh = anew(landing, None)
    else:
        match judge(landing, committed):
            case Verdict.STANDS:
                return left_alone(landing, committed)
            case Verdict.CONTINUED:
                fresh = continuing(landing, committed)
            case Verdict.REPLACED:
                fresh = anew(landing, committed)
    progress = begin(landing, fresh)
    pages = _pages(landing, 0, 0)
    if progress.continues or progress.parts:
        last = progress.last_page
        try:
            new, pages = what_follows(
                progress, lambda: _pages(landing, last.offset, progress.rows - last.rows)
            )
        except SourceReset as reset:
            _refuse_reset(landing, progress, reset)
            progress = anew(landing, committed)
        else:
            if committed is not None and _has_nothing_new(progress, committed, new):
                pages = _late(landing, new.offset, progress.rows)
                new = next((page for page in pages if page.rows), new)
                if not new.rows:
                    return _nothing_new(landing, committed, progress)
            pages = itertools.chain((new,), pages)
    return _moved(landing, committed, _claim(landing, progress), pages)


def _refuse_reset(landing: Landing, progress: Progress, reset: SourceReset) -> None:
    """Raise what was found, unless all of the source may be landed anew."""
    if progress.continues and (landing.mode == "full" or landing.on_reset == "fail"):
        grows = landing.mode == "incremental"
        remedy = "on_reset='full'" if grows else "another run with if_exists='overwrite'"
        raise SourceReset(
            f"{reset}. Nothing was changed; {remedy} lands all of it anew, and another destination keeps "
            "what is there"
        ) from reset
    log.warning("%s. All of it is landed anew.", reset)


def _has_nothing_new(progress: Progress, committed: Manifest, new: DataPage) -> bool:
    same = len(progress.parts) == len(committed.parts)
    return progress.continues and same and not new.rows and not new.rest_total


def _claim(landing: Landing, progress: Progress) -> Claim:
    return Claim(landing.destination, progress, landing.run, landing.abandoned_after)


def _moved(landing: Landing, committed: Manifest | None, claim: Claim, pages: Iterator[DataPage]) -> Manifest:
    try:
        with claim.signs_of_life():
            columns = landing.file_format.columns_after(claim.progress.columns)
            total = write_parts(landing, claim, columns, pages)
            if landing.mark is not None and claim.progress.rows:
                # what the source has gained while the last part was written must not be marked without it
                for look in (_pages, _late):
                    rest = look(landing, claim.progress.next_offset, claim.progress.rows)
                    total = write_parts(landing, claim, columns, rest) or total
            manifest = commit(landing, claim, committed, columns, total or 0)
        return mark(landing, claim, manifest)
    except RowsMissing:
        # going on from here would end here again
        claim.forget()
        raise
    except Exception:
        claim.release()
        raise


def _pages(landing: Landing, offset: int, rows: int) -> Iterator[DataPage]:
    return counted(landing.pages(offset, rows), rows, landing.source)


def _late(landing: Landing, offset: int, rows: int) -> Iterator[DataPage]:
    # a source without any rows was waited for when it was read
    return counted(landing.late(offset, rows) if rows else iter(()), rows, landing.source)


def _nothing_new(landing: Landing, committed: Manifest, progress: Progress) -> Manifest:
    log.info("%s has nothing new after %d rows.", landing.source, committed.rows)
    if landing.mark is None or committed.exported_at is not None:
        return committed
    claim = _claim(landing, progress)
    try:
        return mark(landing, claim, committed)
    except Exception:
        claim.release()
        raise
