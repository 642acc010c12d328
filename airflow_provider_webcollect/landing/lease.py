"""The lease of a folder: only one landing at a time may change it, and every write checks that.

The lease is the record `_progress.json`. Each write of it is a compare-and-swap with the version that its
owner wrote last. So an owner that has lost the lease learns this with its next write, whatever it did
meanwhile; no clock is used. docs/explanation/landing-protocol.md explains this in full.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import secrets
import threading
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.errors import (
    DestinationBusy,
    DestinationTaken,
    LeaseLost,
    PartsMissing,
    RowsMissing,
    StorageError,
)
from airflow_provider_webcollect.landing.job import intervals
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    PROGRESS,
    Manifest,
    Progress,
    attempt_id_in,
    decode_found_progress,
    decode_progress,
    encode,
    is_torn,
    new_attempt_id,
)
from airflow_provider_webcollect.landing.storage.conditional import Changed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider_webcollect.landing.job import Job
    from airflow_provider_webcollect.landing.plan import FolderState
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.service.pauses import Stop

log = logging.getLogger(__name__)


def wait_until_free(job: Job, found: FolderState) -> None:
    """Wait until the lease may be taken.

    It may be taken immediately from an earlier attempt of this run, which Airflow has ended. Any other owner
    is watched: if its record changes, it is alive; if the record stays unchanged for a while, the owner is
    dead. (A later attempt of this run may be dead too: a run that is deleted and
    created again counts its attempts from 1.)

    :raises DestinationBusy: if another landing is running.
    :raises Changed: if another process has written the record meanwhile, or it is gone.
    """
    record = found.record
    if record is None or not record.owner or found.is_given_up(job):
        return
    limit = job.timing.abandoned_after
    if limit:
        log.info("%s has %s; it is watched for %.0f s.", _who(record), job.folder.root, limit)
    for wait in intervals(limit, job.timing.watch_interval):
        job.stop.sleep(wait)
        stored = job.folder.read(PROGRESS)
        if stored is None or stored.version != found.record_version:
            now_there = stored and decode_found_progress(stored.content, job.folder.root)
            if now_there and now_there.owner == record.owner:
                raise DestinationBusy(
                    f"{_who(record)} is landing there, and alive. If it dies, its folder can be taken over "
                    f"{limit:.0f} s after that"
                )
            raise Changed(PROGRESS)
    log.warning("%s has given no heartbeat for %.0f s; it is taken over.", _who(record), limit)


class Lease:
    """The right to change a folder, and the progress of the landing that holds it.

    :param folder: the folder.
    :param progress: the content of the record.
    :param version: the record's version.
    :param stop: ends the landing once it is set.
    :param heartbeat_interval: seconds between two heartbeats.
    """

    def __init__(
        self, folder: Folder, progress: Progress, version: str, stop: Stop, heartbeat_interval: float
    ) -> None:
        self.progress = progress
        self._folder = folder
        self._version = version
        self._stop = stop
        self._heartbeat_interval = heartbeat_interval
        self._lost: LeaseLost | None = None
        self._ended = False
        # heartbeats are written by another thread
        self._lock = threading.Lock()

    @classmethod
    def acquire(cls, job: Job, start: Progress, found: FolderState) -> Lease:
        """Take the lease, to continue from ``start``.

        The record takes over the names of the files to delete after the commit: those that the commit
        replaces, and those that the previous landing had not deleted yet.

        :raises Changed: if the record has changed since it was read.
        :raises Stopped: if the landing is to end.
        """
        job.stop.check()
        before = found.record
        attempt_id = new_attempt_id()
        known = (*(before.parts if before else ()), *(found.manifest.parts if found.manifest else ()))
        progress = msgspec.structs.replace(
            start,
            landing_id=attempt_id,
            attempt_ids=(*(before.attempt_ids if before else ()), attempt_id),
            # the commit keeps those of them that it lists
            replaced=tuple(
                dict.fromkeys([*(before.replaced if before else ()), *(part.name for part in known)])
            ),
            run=job.run,
            attempt=job.attempt,
            owner=secrets.token_hex(8),
            commit=found.announced,
        )
        version = job.folder.replace(PROGRESS, encode(progress), found.record_version)
        return cls(job.folder, progress, version, job.stop, job.timing.heartbeat_interval)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Write heartbeats while the block runs; after an error keep the record for the next attempt."""
        ended = threading.Event()
        # a daemon, so that a hanging storage does not prevent the process from ending
        thread = threading.Thread(target=self._beat, args=(ended,), name="webcollect-lease", daemon=True)
        thread.start()
        try:
            yield
        except Exception as error:
            if isinstance(error, PartsMissing | StorageError):
                # LeaseLost explains the error: a landing that took over removes what was not committed
                with contextlib.suppress(StorageError):
                    self.renew()
            self._release_after_error(error)
            raise
        else:
            ended.set()
            thread.join()
        finally:
            # when Airflow ends the task (for example a timeout), do not wait for a hanging storage
            ended.set()

    def check(self) -> None:
        """Raise :class:`LeaseLost` if a heartbeat has found that another landing has the lease."""
        if self._lost is not None:
            raise self._lost

    def renew(self) -> None:
        """Write the record again, which proves that this landing still had the lease.

        :raises LeaseLost: if another landing has it.
        """
        with self._lock:
            self._write_heartbeat()

    def save(self, progress: Progress) -> None:
        """Write the progress.

        :raises LeaseLost: if another landing has the lease.
        :raises Stopped: if the landing is to end.
        """
        with self._lock:
            self._stop.check()
            self._write(progress)

    def commit(self, manifest: Manifest, version: str | None) -> str:
        """Replace the manifest, if this landing has the lease and the manifest is the one that was read.

        First the record announces the manifest. From then on the commit is certain: if this process does not
        write the manifest, the next owner of the lease does.

        :param version: version of the manifest that was read; None if there was none.
        :return: the new version.
        :raises LeaseLost: if another landing has the lease.
        :raises Stopped: if the landing is to end.
        """
        self.save(msgspec.structs.replace(self.progress, commit=manifest))
        return self.write_manifest(version)

    def write_manifest(self, version: str | None) -> str:
        """Write the manifest that the record announces.

        :param version: version of the manifest that it replaces.
        :return: the new version.
        :raises LeaseLost: if another landing has the lease; it may have written this manifest.
        :raises Stopped: if the landing is to end; the next one writes the manifest.
        """
        assert self.progress.commit is not None
        try:
            # no heartbeat meanwhile: without atomic replacement, a kill must not leave both files incomplete
            with self._lock:
                self._stop.check()
                written = self._folder.replace(MANIFEST, encode(self.progress.commit), version)
        except Changed:
            # a successor has written it for us, or something without the lease has written another
            self.renew()
            raise DestinationTaken(
                f"{self._folder.root}/{MANIFEST} was replaced by something that does not take the "
                "folder's lease; nothing but landings may write there"
            ) from None
        # only the owner of the lease reports the commit; a storage error here does not end ownership
        with contextlib.suppress(StorageError):
            self.renew()
        return written

    def finish(self, files: Mapping[str, int]) -> None:
        """Delete files that no manifest will list again, and release the lease.

        :param files: the contents of the folder just before the commit.
        """
        progress = self.progress
        assert progress.commit is not None
        kept = {part.name for part in progress.commit.parts}
        written = {name for name in files if attempt_id_in(posixpath.basename(name)) in progress.attempt_ids}
        self._folder.delete(sorted(({*progress.replaced} | written) - kept))
        with self._lock:
            self._ended = True
            self._release()

    def _release_after_error(self, error: Exception) -> None:
        """Release the lease, so that others need not watch the record; if that write fails, they must."""
        # a failed storage may still have stored a part, so its attempt stays in the record
        first = len(self.progress.attempt_ids) == 1
        nothing = first and not self.progress.parts and self.progress.commit is None
        with contextlib.suppress(Exception), self._lock:
            self._ended = True
            if nothing and not isinstance(error, StorageError):
                self._release()
                return
            # continuing from contradictory counts would fail again
            progress = _without_parts(self.progress) if isinstance(error, RowsMissing) else self.progress
            self._write(msgspec.structs.replace(progress, owner=""))

    def _release(self) -> None:
        # failures are harmless: a successor may have the lease by now, and a remaining record is only watched
        with contextlib.suppress(Changed, LeaseLost, StorageError):
            if not self._folder.remove(PROGRESS, self._version):
                done = msgspec.structs.replace(
                    _without_parts(self.progress), owner="", attempt_ids=(), replaced=()
                )
                self._write(msgspec.structs.replace(done, commit=None))

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(self._heartbeat_interval):
            try:
                with self._lock:
                    if self._ended or self._lost:
                        return
                    self._write_heartbeat()
            except LeaseLost:
                return
            except Exception as error:
                # if the error persists, the landing's next write of the record fails too
                log.warning("No heartbeat could be written: %s", error)

    def _write_heartbeat(self) -> None:
        self._write(msgspec.structs.replace(self.progress, heartbeat=self.progress.heartbeat + 1))

    def _write(self, progress: Progress) -> None:
        if self._lost is not None:
            raise self._lost
        for _ in range(2):
            try:
                self._version = self._folder.replace(PROGRESS, encode(progress), self._version)
            except Changed:
                self._read_own()
            else:
                self.progress = progress
                return
        raise self._lose(None)

    def _read_own(self) -> None:
        """Accept a write of this landing whose response was lost.

        :raises LeaseLost: if the record is another landing's.
        """
        stored = self._folder.read(PROGRESS)
        if stored is not None and is_torn(stored.content):
            # left by our own write, or by a killed landing: a living one would complete the file
            self._version = stored.version
            return
        found = stored and decode_progress(stored.content, f"{self._folder.root}/{PROGRESS}")
        if stored is None or found is None or found.owner != self.progress.owner:
            raise self._lose(found)
        self._version = stored.version

    def _lose(self, found: Progress | None) -> LeaseLost:
        who = f"{_who(found)} has" if found else "another landing has finished there and has had"
        self._lost = LeaseLost(
            f"{who} the lease of {self._folder.root}, which was taken over from this landing; this one has "
            "changed nothing since"
        )
        return self._lost


def _without_parts(progress: Progress) -> Progress:
    replaced = (*progress.replaced, *(part.name for part in progress.parts))
    return msgspec.structs.replace(progress, parts=(), replaced=replaced)


def _who(record: Progress) -> str:
    if record.run is None:
        return "an unknown run"
    run = record.run
    mapped = "" if run.map_index < 0 else f"[{run.map_index}]"
    return f"attempt {record.attempt} of run {run.run_id} of {run.dag_id}.{run.task_id}{mapped}"
