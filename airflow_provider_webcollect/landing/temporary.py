"""Temporary folders, removed when their process ends or, if it was killed, by a later process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

#: Age in seconds from which an unlocked folder counts as abandoned; a new folder may not be locked yet.
_LEFT_AFTER = 60.0


class TemporaryFolder:
    """A folder that is removed with this object; it first removes folders that killed processes have left.

    :param name: a part of the folder's name; abandoned folders are removed only if they have it, too.
    :ivar path: the path of the folder.
    :ivar close: a function that removes the folder at once.
    """

    def __init__(self, name: str) -> None:
        prefix = f"webcollect-{name}-"
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _LEFT_AFTER:
                    descriptor = _locked(left, fcntl.LOCK_EX)
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(descriptor)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self.close = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # where folders cannot be locked, no other process removes them
            weakref.finalize(self, os.close, _locked(self.path, fcntl.LOCK_SH))


def _locked(folder: Path, kind: int) -> int:
    """Lock a folder until the returned file descriptor is closed, or the process ends or is killed.

    :param kind: the kind of lock: ``fcntl.LOCK_SH`` or ``fcntl.LOCK_EX``.
    :raises OSError: if it cannot be locked.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
