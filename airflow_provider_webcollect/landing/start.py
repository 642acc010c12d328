"""What is at the destination already, and what a landing makes of it."""

from __future__ import annotations

import logging
from enum import Enum, auto
from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.claim import refuse_if_busy
from airflow_provider_webcollect.landing.encoding import encoding_of, refuse_another
from airflow_provider_webcollect.landing.errors import DestinationTaken, DestinationUnreadable
from airflow_provider_webcollect.landing.manifest import Progress, RecordedPart
from airflow_provider_webcollect.landing.times import now

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.engine import Landing
    from airflow_provider_webcollect.landing.manifest import Manifest

log = logging.getLogger(__name__)


class Verdict(Enum):
    """What becomes of the commit that was found."""

    STANDS = auto()
    CONTINUED = auto()
    REPLACED = auto()


def judge(landing: Landing, committed: Manifest) -> Verdict:
    """Say what becomes of the commit that was found.

    :raises DestinationTaken: if it must not be touched.
    """
    if committed.source != landing.source:
        raise DestinationTaken(f"the destination holds {committed.source}, not {landing.source}")
    if committed.run == landing.run:
        stands = _is_intact(landing, committed) and not _lacks_mark(landing, committed)
        return Verdict.STANDS if stands else Verdict.CONTINUED
    if landing.mode == "incremental":
        return Verdict.CONTINUED
    match landing.if_exists:
        case "skip":
            return Verdict.STANDS
        case "overwrite":
            return Verdict.REPLACED
    raise DestinationTaken(
        f"the destination holds what run {committed.run.run_id} landed; give every run its own destination "
        "(for instance with {{ run_id }} or {{ ds }} in it), or set if_exists"
    )


def _is_intact(landing: Landing, committed: Manifest) -> bool:
    return landing.destination.intact(committed.parts) == committed.parts


def _lacks_mark(landing: Landing, committed: Manifest) -> bool:
    return landing.mark is not None and committed.exported_at is None


def left_alone(landing: Landing, committed: Manifest) -> Manifest:
    """Return the commit that stands, tidied up if it is this run's own."""
    log.info("Run %s has landed %d rows already.", committed.run.run_id, committed.rows)
    if committed.run == landing.run and not _is_written_by_another(landing):
        landing.destination.tidy(committed)
    return committed


def _is_written_by_another(landing: Landing) -> bool:
    try:
        refuse_if_busy(landing.destination.progress(), landing.run, landing.abandoned_after)
    except DestinationUnreadable:
        return False
    except DestinationTaken:
        return True
    return False


def begin(landing: Landing, fresh: Progress) -> Progress:
    """Return the progress to go on with: of an unfinished landing, or ``fresh``. Nothing is written yet.

    :raises DestinationBusy: if another run is landing.
    :raises DestinationTaken: if parts of another source were landed, or there are foreign files.
    :raises FormatChanged: if a landing that was killed has written parts with other format options.
    """
    destination = landing.destination
    destination.refuse_foreign_files()
    found = destination.progress()
    if found is not None and found.parts and found.source != landing.source:
        raise DestinationTaken(f"the destination holds a part of {found.source}, not of {landing.source}")
    refuse_if_busy(found, landing.run, landing.abandoned_after)
    # without parts nothing was landed, whatever it was that was to be landed, and how
    if found is None or not found.parts or not _goes_on(found, fresh):
        return fresh
    if found.touched_at is None and found.encoding != fresh.encoding:
        # the way out of an error that other options avoid
        log.warning("%d rows were written with other format options; all is landed anew.", found.rows)
        return fresh
    refuse_another(landing.file_format, found.encoding, "the unfinished landing at the destination")
    resumed = found.resumed(destination.intact(found.parts))
    if found.continues and len(resumed.parts) < len(fresh.parts):
        # a rewritten part has vanished, and the commit has the one that it was made of
        return fresh
    if len(resumed.parts) < len(found.parts):
        log.warning("%s has vanished from the destination.", found.parts[len(resumed.parts)].name)
    log.info("Going on after %d rows in %d parts.", resumed.rows, len(resumed.parts))
    return resumed


def anew(landing: Landing, committed: Manifest | None) -> Progress:
    """Return the progress of a landing that begins with the first row."""
    return Progress(
        source=landing.source,
        mode=landing.mode,
        encoding=encoding_of(landing.file_format),
        base=None if committed is None else committed.landing_id,
        started_at=now(),
    )


def continuing(landing: Landing, committed: Manifest) -> Progress:
    """Return the progress of a landing that adds to the commit, or to what is left of it.

    :raises FormatChanged: if the commit was written with other format options.
    """
    found = {**committed.encoding, "file_format": committed.format, "compression": committed.compression}
    refuse_another(landing.file_format, found, "the landing at the destination")
    columns = committed.columns or ()
    intact = landing.destination.intact(committed.parts)
    if len(intact) < len(committed.parts):
        log.warning("%s has vanished from the destination.", committed.parts[len(intact)].name)
    parts = tuple(
        RecordedPart(**{name: getattr(part, name) for name in part.__struct_fields__}, columns=len(columns))
        for part in intact
    )
    return Progress(
        source=landing.source,
        mode=landing.mode,
        encoding=encoding_of(landing.file_format),
        columns=columns,
        parts=parts,
        base=committed.landing_id,
        continues=True,
        started_at=now(),
    )


def _goes_on(found: Progress, fresh: Progress) -> bool:
    """Return whether ``found`` began as ``fresh`` does, so that it can be resumed."""
    if (found.base, found.mode) != (fresh.base, fresh.mode):
        # a crash after a commit leaves one that is committed already
        return False
    # an incremental landing may have begun anew because the source was reset
    return found.continues == fresh.continues or found.mode == "incremental"
