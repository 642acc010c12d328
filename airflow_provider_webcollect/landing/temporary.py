"""Temporary folders on this machine, which are removed soon after their process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

#: The age in seconds from which a folder without a lock belongs to nobody: a new one is not locked yet.
_LEFT_AFTER = 60.0


class TemporaryFolder:
    """A folder that is removed with this object; those of processes that were killed are removed before.

    :param name: what its name has; only folders of that name are looked at.
    :ivar path: where it is.
    :ivar close: removes it at once.
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
        with contextlib.suppress(OSError):  # where none can be locked, none is removed by others
            weakref.finalize(self, os.close, _locked(self.path, fcntl.LOCK_SH))


def _locked(folder: Path, kind: int) -> int:
    """Lock a folder until the file descriptor is closed, or its process has ended, however it ends.

    :param kind: of the lock.
    :raises OSError: if it cannot be locked.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
