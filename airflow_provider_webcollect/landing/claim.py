"""Who is landing at a destination: one try at a time.

The progress names its owner, a random word per try. Another run keeps away as long as the owner shows signs
of life; another try of the same run takes over at once, since Airflow has given up the one before. Whoever
was taken over notices when it next records, or before the commit, and stops.
"""

from __future__ import annotations

import contextlib
import datetime
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.errors import DestinationBusy

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.destination import Destination
    from airflow_provider_webcollect.landing.manifest import Progress, Run

#: Seconds without a sign of life after which another run may take a landing over.
ABANDONED_AFTER = 60.0
#: Seconds between two signs of life, at least while pages come.
TOUCH_INTERVAL = 20.0


class Claim:
    """The right to write to a destination, and the progress made with it.

    :param progress: what to go on with; written at once.
    """

    def __init__(self, destination: Destination, progress: Progress, run: Run) -> None:
        self._destination = destination
        self.progress = msgspec.structs.replace(progress, run=run, owner=secrets.token_hex(8))
        self._write(self.progress)

    def record(self, progress: Progress) -> None:
        """Write the progress.

        :raises DestinationBusy: if another landing has taken over meanwhile.
        """
        self.verify()
        self._write(progress)

    def touch(self) -> None:
        """Give a sign of life, if the last one was some time ago."""
        if time.monotonic() - self._touched >= TOUCH_INTERVAL:
            self.record(self.progress)

    def verify(self) -> None:
        """Raise :class:`DestinationBusy` if another landing has taken over."""
        if not self._is_ours():
            raise DestinationBusy(
                "another landing has taken the destination over; nothing more was written by this one"
            )

    def release(self) -> None:
        """Let other runs go on from here at once. Whatever goes wrong with that is passed over."""
        with contextlib.suppress(Exception):
            if self._is_ours():
                self._destination.record(msgspec.structs.replace(self.progress, touched_at=None))

    def forget(self) -> None:
        """Let the next landing begin anew; the parts written so far are removed with its commit."""
        if self._is_ours():
            self._destination.forget_progress()

    def _is_ours(self) -> bool:
        found = self._destination.progress()
        return found is not None and found.owner == self.progress.owner

    def _write(self, progress: Progress) -> None:
        self.progress = msgspec.structs.replace(progress, touched_at=_now().isoformat())
        self._destination.record(self.progress)
        self._touched = time.monotonic()


def refuse_if_busy(progress: Progress | None, run: Run, abandoned_after: float) -> None:
    """Raise :class:`DestinationBusy` if another run is landing.

    :param progress: what was found at the destination.
    """
    if progress is None or progress.run is None or progress.run == run or progress.touched_at is None:
        return
    silent = (_now() - datetime.datetime.fromisoformat(progress.touched_at)).total_seconds()
    if silent < abandoned_after:
        raise DestinationBusy(
            f"run {progress.run.run_id} of {progress.run.dag_id}.{progress.run.task_id} is landing there: it "
            f"gave a sign of life {max(0, round(silent))} s ago. If it has died, the destination is "
            f"free {abandoned_after:.0f} s after that"
        )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
