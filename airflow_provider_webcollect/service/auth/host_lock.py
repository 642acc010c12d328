"""A lock that the processes of a host share, so that only one of them renews a token."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import filelock

log = logging.getLogger(__name__)


class HostLock:
    """A lock that the processes of a host share. If its file cannot be created, the lock has no effect."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file: filelock.BaseFileLock | None = None
        self._is_said = False

    def try_acquire(self) -> bool:
        """Try to take the lock; return True if this process holds it, or if no lock can be made."""
        try:
            self._file = self._file or _lock_file(self._name)
            self._file.acquire(timeout=0)
        except TimeoutError:
            return False
        except Exception as error:  # no folder, a file system without locks, a lock from before a fork
            self._file = None
            if not self._is_said:
                log.warning("No lock can be made on this host (%s); its processes tell by the store.", error)
            self._is_said = True
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            with contextlib.suppress(Exception):
                self._file.release(force=True)


def _lock_file(name: str) -> filelock.BaseFileLock:
    import filelock

    folder = Path(tempfile.gettempdir()) / f"webcollect-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        # the folder of another user, who could hold the lock for ever
        folder = Path(tempfile.mkdtemp(prefix="webcollect-"))
    return filelock.FileLock(folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock")
