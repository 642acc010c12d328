"""The lease of a folder: it tells others that a landing is at work, and lets a retry go on.

The lease is the progress file `_progress.json`. Each write of it is a compare-and-swap with the version that
its owner wrote last, so an owner that has lost the lease learns this with its next write. Whether rows count
is decided by the manifest's compare-and-swap alone. The progress file is removed when the report of a commit
has ended. docs/contributing/landing-protocol.md explains this in full.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.errors import (
    DestinationBusy,
    LeaseLost,
    RowsMissing,
    StorageError,
)
from airflow_provider_webcollect.landing.job import Job, intervals
from airflow_provider_webcollect.landing.manifest import (
    PROGRESS,
    Manifest,
    Progress,
    decode,
    encode,
    is_torn,
    new_attempt_id,
)
from airflow_provider_webcollect.landing.storage import Changed
from airflow_provider_webcollect.service.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from airflow_provider_webcollect.landing.plan import FolderState

log = logging.getLogger(__name__)


def wait_until_free(job: Job, found: FolderState) -> None:
    """Wait until the lease may be taken.

    It may be taken immediately from an earlier attempt of this run, which Airflow has ended. Any other owner
    is watched: if its progress file changes, it is alive; if the progress file stays unchanged for a while,
    the owner is dead. (A later attempt of this run may be dead too: a run that is deleted and created again
    counts its attempts from 1.)

    :raises DestinationBusy: if another landing is running.
    :raises Changed: if another process has written the progress file meanwhile, or it is gone.
    """
    progress = found.progress
    if progress is None or not progress.owner or found.is_given_up(job):
        return
    limit = job.timing.abandoned_after
    if limit:
        log.info("%s has %s; it is watched for %.0f s.", _who(progress), job.folder.root, limit)
        job.observer.on_watch(_who(progress), limit)
    for wait in intervals(limit, job.timing.watch_interval):
        job.stop.sleep(wait)
        stored = job.folder.read(PROGRESS)
        if stored is None or stored.version != found.progress_version:
            if stored is not None and _owner_in(stored.content) in (None, progress.owner):
                raise DestinationBusy(
                    f"{_who(progress)} is landing there, and alive. If it dies, its folder can be taken over "
                    f"{limit:.0f} s after that"
                )
            raise Changed(PROGRESS)
    log.warning("%s has given no heartbeat for %.0f s; it is taken over.", _who(progress), limit)


class Lease:
    """The progress file of the landing that holds a folder, and the commit that ends it.

    :param job: the landing.
    :param progress: the content of the progress file.
    :param version: the progress file's version.
    """

    def __init__(self, job: Job, progress: Progress, version: str) -> None:
        self.progress = progress
        self._folder = job.folder
        self._version = version
        self._stop = job.stop
        self._timing = job.timing
        self._written = time.monotonic()
        self._committed: str | None = None
        #: files of older attempts and of the replaced landing
        self.obsolete: Set[str] = frozenset()
        self._lost: LeaseLost | None = None
        self._ended = False
        # heartbeats are written by another thread
        self._lock = threading.Lock()

    @classmethod
    def acquire(cls, job: Job, start: Progress, found: FolderState) -> Lease:
        """Take the lease, to continue from ``start``.

        :raises Changed: if the progress file has changed since it was read, or if the storage is found to
            ignore conditions: the folder must be read again.
        :raises Stopped: if the landing is to end.
        """
        job.stop.check()
        attempt_id = new_attempt_id()
        progress = msgspec.structs.replace(
            start,
            landing_id=attempt_id,
            attempt_ids=(*(found.progress.attempt_ids if found.progress else ()), attempt_id),
            run=job.run,
            attempt=job.attempt,
            owner=secrets.token_hex(8),
        )
        return cls(job, progress, job.folder.claim(PROGRESS, encode(progress), found.progress_version))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Write heartbeats while the block runs; after an error keep the progress for the next attempt."""
        self.keep()
        try:
            yield
        except Exception as error:
            if isinstance(error, StorageError):
                # LeaseLost explains the error: a landing that took over removes what was not committed
                with contextlib.suppress(StorageError):
                    self.renew()
            self.release(error)
            raise
        else:
            self.rest()
            self._beating.join()
        finally:
            # when Airflow ends the task (for example a timeout), do not wait for a hanging storage
            self.rest()

    def keep(self) -> None:
        """Write heartbeats from now on, until :meth:`rest` or the end of the lease."""
        self._resting = threading.Event()
        # a daemon, so that a hanging storage does not prevent the process from ending
        self._beating = threading.Thread(
            target=self._beat, args=(self._resting,), name="webcollect-lease", daemon=True
        )
        self._beating.start()

    def rest(self) -> None:
        """Write no more heartbeats."""
        self._resting.set()

    def check(self) -> None:
        """Raise :class:`LeaseLost` if a heartbeat has found that another landing has the lease."""
        if self._lost is not None:
            raise self._lost

    def renew(self) -> None:
        """Write the progress file again: this proves that the landing still had the lease. Not after its end.

        :raises LeaseLost: if another landing has it.
        """
        with self._lock:
            if not self._ended:
                self._write_heartbeat()

    def save(self, progress: Progress) -> None:
        """Write the progress, unless the progress file was written just now: then the next write has it.

        :raises LeaseLost: if another landing has the lease.
        :raises Stopped: if the landing is to end.
        """
        with self._lock:
            self._stop.check()
            self.check()
            if time.monotonic() - self._written < self._timing.progress_interval:
                self.progress = progress
            else:
                self._write(progress)

    def commit(self, manifest: Manifest, version: str | None) -> str:
        """Replace the manifest, if it is the one that was read.

        :param version: version of the manifest that was read; None if there was none.
        :return: the new version.
        :raises Changed: if another landing has replaced it: the folder must be read again.
        :raises Stopped: if the landing is to end.
        """
        self._stop.check()
        self._committed = self._folder.commit(manifest, version)
        return self._committed

    def tidy(self) -> None:
        """Delete the obsolete files: no manifest will list them again.

        They are of older attempts and of the replaced landing. Since this landing has committed after they
        were written, the condition of every older commit fails.

        :raises Stopped: if the landing is to end.
        """
        self._stop.check()
        if self.obsolete and (committed := self._folder.committed()) is not None:
            # a manifest that was put back meanwhile may list them
            unneeded = committed.manifest.without_needed(self.obsolete)
            self._folder.delete(sorted(self._folder.unreferenced(unneeded)))

    def finish(self) -> None:
        """End the report: remove the progress file.

        :raises LeaseLost: if another landing has taken the progress file over, and with it the report.
        :raises Stopped: if the landing is to end.
        """
        self._stop.check()
        with self._lock:
            self._remove()
            self._ended = True

    def _remove(self) -> None:
        try:
            if not self._folder.remove(PROGRESS, self._version):
                self._write(msgspec.structs.replace(_without_parts(self.progress), owner="", attempt_ids=()))
        except (Changed, StorageError) as error:
            stored = self._folder.read(PROGRESS)
            committed = self._folder.committed()
            # the removal may have been done, and only its answer been lost
            if stored is None and committed and committed.manifest.landing_id == self.progress.landing_id:
                return
            if isinstance(error, Changed):
                raise self._lose(stored and stored.content) from None
            raise

    def release(self, error: Exception | None = None) -> None:
        """Release the lease after an error, so that others need not watch, unless this write fails.

        :param error: None if nothing has failed: what is committed, the next run reports.
        """
        # a failed storage may still have stored a part or a commit, so its attempt stays in the progress file
        first = len(self.progress.attempt_ids) == 1 and self._committed is None
        with contextlib.suppress(Exception), self._lock:
            if self._ended:
                return
            self._ended = True
            if first and not self.progress.parts and not isinstance(error, StorageError):
                self._remove()
                return
            # continuing from contradictory counts would fail again
            progress = _without_parts(self.progress) if isinstance(error, RowsMissing) else self.progress
            self._write(msgspec.structs.replace(progress, owner=""))

    def _beat(self, resting: threading.Event) -> None:
        while not resting.wait(self._timing.heartbeat_interval):
            try:
                self._stop.check()
                with self._lock:
                    if self._ended or self._lost:
                        return
                    self._write_heartbeat()
            except (LeaseLost, Stopped):
                return
            except Exception as error:
                # if the error persists, the landing's next write of the progress file fails too
                log.warning("No heartbeat could be written: %s", error)

    def _write_heartbeat(self) -> None:
        self._write(msgspec.structs.replace(self.progress, heartbeat=self.progress.heartbeat + 1))

    def _write(self, progress: Progress) -> None:
        self.check()
        for _ in range(2):
            try:
                self._version = self._folder.replace(PROGRESS, encode(progress), self._version)
            except Changed:
                self._read_own()
            else:
                self.progress, self._written = progress, time.monotonic()
                return
        raise self._lose(None)

    def _read_own(self) -> None:
        """Accept a write of this landing whose response was lost.

        :raises LeaseLost: if the progress file is another landing's.
        """
        stored = self._folder.read(PROGRESS)
        if stored is None or _owner_in(stored.content) not in (None, self.progress.owner):
            raise self._lose(stored and stored.content)
        self._version = stored.version

    def _lose(self, content: bytes | None) -> LeaseLost:
        who = "another landing has finished there and has had"
        if content is not None and not is_torn(content):
            who = f"{_who(decode(content, f'{self._folder.root}/{PROGRESS}', Progress))} has"
        self._lost = LeaseLost(
            f"{who} the lease of {self._folder.root}, which was taken over from this landing; what this one "
            "has not committed or reported, that one does"
        )
        return self._lost


def _without_parts(progress: Progress) -> Progress:
    return msgspec.structs.replace(progress, parts=())


def _owner_in(content: bytes) -> str | None:
    """Return the owner in a progress file; None if it is being written, or its writer was killed."""
    return None if is_torn(content) else decode(content, PROGRESS, Progress).owner


def _who(progress: Progress) -> str:
    return f"attempt {progress.attempt} of {progress.run}" if progress.run else "an unknown run"
