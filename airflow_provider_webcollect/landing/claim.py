"""Who is landing at a destination: one try at a time.

The progress names its owner, a random word per try. Another run keeps away as long as the owner shows signs
of life; another try of the same run takes over at once, since Airflow has given up the one before. Whoever
was taken over notices when it next records, or before the commit, and stops. Looking and writing are two
steps, and a try that was taken over in between writes over its successor: so tries have turns, and the later
one writes again instead of taking the earlier for its successor.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import secrets
import threading
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.errors import DestinationBusy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.landing.destination import Destination
    from airflow_provider_webcollect.landing.manifest import Progress, Run

log = logging.getLogger(__name__)
#: Seconds without a sign of life after which another run may take a landing over.
ABANDONED_AFTER = 60.0
#: Seconds between two signs of life.
TOUCH_INTERVAL = 20.0


class Claim:
    """The right to write to a destination, and the progress made with it.

    :param progress: what to go on with; written at once.
    :param abandoned_after: seconds without a sign of life after which another run's landing is taken over.
    :raises DestinationBusy: if another run is landing.
    """

    def __init__(
        self, destination: Destination, progress: Progress, run: Run, abandoned_after: float
    ) -> None:
        self._destination = destination
        self._lost: DestinationBusy | None = None
        self._lock = threading.Lock()
        found = destination.progress()
        refuse_if_busy(found, run, abandoned_after)
        turn = 1 if found is None else found.turn + 1
        self.progress = msgspec.structs.replace(progress, run=run, owner=secrets.token_hex(8), turn=turn)
        self._write(self.progress)

    def record(self, progress: Progress) -> None:
        """Write the progress.

        :raises DestinationBusy: if another landing has taken over meanwhile.
        """
        with self._lock:
            self.verify()
            self._write(progress)

    @contextlib.contextmanager
    def signs_of_life(self) -> Iterator[None]:
        """Give signs of life while the block runs, also while a single page is being waited for."""
        ended = threading.Event()
        # a daemon, so that a storage that hangs does not keep a process from ending
        thread = threading.Thread(target=self._touch, args=(ended,), name="webcollect-claim", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            # who is told to end, by a timeout for instance, does not wait for a storage that hangs
            ended.set()
            raise
        ended.set()
        thread.join()

    def check(self) -> None:
        """Raise :class:`DestinationBusy` if a sign of life has found that another landing has taken over."""
        if self._lost is not None:
            raise self._lost

    def verify(self) -> None:
        """Raise :class:`DestinationBusy` if another landing has taken over."""
        if not self._is_ours():
            raise DestinationBusy(
                "another landing has taken the destination over; nothing more was written by this one"
            )

    def release(self) -> None:
        """Let other runs go on from here at once. Whatever goes wrong with that is passed over."""
        # with the lock, so that a sign of life that is being written does not come after it
        with contextlib.suppress(Exception), self._lock:
            self._leave(self.progress)

    def forget(self) -> None:
        """Let the next landing begin anew; the parts written so far are removed with its commit.

        Whatever goes wrong with that is passed over.
        """
        with contextlib.suppress(Exception), self._lock:
            # the file stays: else turns would begin again, and an older try win against its successor
            self._leave(msgspec.structs.replace(self.progress, parts=()))

    def _touch(self, ended: threading.Event) -> None:
        while self._lost is None and not ended.wait(TOUCH_INTERVAL):
            try:
                with self._lock:
                    self.verify()
                    if not ended.is_set():
                        self._write(self.progress)
            except DestinationBusy as error:
                self._lost = error
            except Exception as error:
                # if it lasts, the landing itself meets it when it next records
                log.warning("No sign of life could be given: %s", error)

    def _leave(self, progress: Progress) -> None:
        if self._is_ours():
            self._destination.record(msgspec.structs.replace(progress, touched_at=None))

    def _is_ours(self) -> bool:
        found = self._destination.progress()
        if found is None:
            return False
        return found.owner == self.progress.owner or found.turn < self.progress.turn

    def _write(self, progress: Progress) -> None:
        self.progress = msgspec.structs.replace(progress, touched_at=_now().isoformat())
        self._destination.record(self.progress)


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
