"""Files on a local or mounted disk: a rename makes them visible, and a lock serializes writers."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from airflow_provider_webcollect.landing.storage import (
    Changed,
    Storage,
    Stored,
    compare,
    raise_unless_absent,
    version_of,
)
from airflow_provider_webcollect.service.pauses import drop

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)


class Disk(Storage):
    """The operations on local files; a version is the digest of the content."""

    #: Whether it was logged that the locks of a file system do nothing.
    warned: ClassVar[bool] = False

    def read(self, path: str) -> Stored | None:
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            return None
        return Stored(content, version_of(content))

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version, under a lock."""
        _make_folder(Path(path).parent)
        with _locked(Path(path)):
            compare(self, path, expected)
            with self.upload(path) as file:
                file.write(content)
        return version_of(content)

    def tried(self, path: str, content: bytes, version: str) -> str:
        """Return ``version``, and log if the locks of the file system do nothing, as on some mounts."""
        if not Disk.warned and not _are_locks_respected(Path(path)):
            Disk.warned = True
            log.warning(
                "The locks of the file system at %s do nothing: two landings that meet may both commit",
                Path(path).parent,
            )
        return version

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it has the expected version, under a lock."""
        file = Path(path)
        if not file.parent.is_dir():
            raise Changed(path)
        with _locked(file):
            compare(self, path, expected)
            file.unlink()
            _sync_folder(file.parent)
        return True

    def files(self, folder: str) -> dict[str, int]:
        found = {}
        for parent, _, names in os.walk(folder, onerror=raise_unless_absent):
            # joined as strings, so that all paths begin with the given folder, however it is written
            for file in (f"{parent}/{name}" for name in names):
                with contextlib.suppress(FileNotFoundError):
                    found[file] = os.lstat(file).st_size
        return found

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Provide a hidden file beside ``path``, which is renamed after it is synced to the disk."""
        target = Path(path)
        _make_folder(target.parent)
        hidden = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
        file = hidden.open("wb")
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()
            # a rename is atomic, and within a folder it stays on one disk
            hidden.rename(target)
        except BaseException as error:
            drop(error, file.close, hidden.unlink)
            raise
        _sync_folder(target.parent)

    def open(self, path: str) -> BinaryIO:
        return Path(path).open("rb")

    def delete(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file against other threads, processes and, on NFS, hosts."""
    lock = path.with_name(f".tmp-{path.name}.lock")
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # the previous holder may have removed the lock file, and others may hold a new one
            if _is_at(descriptor, lock):
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return
        finally:
            os.close(descriptor)


def _are_locks_respected(path: Path) -> bool:
    """Return False if a lock that is held can be had a second time; whatever is not known counts as fine."""
    with _locked(path), contextlib.suppress(OSError):
        # others may remove the file meanwhile; and some file systems say "no access" for a lock that is held
        second = os.open(path.with_name(f".tmp-{path.name}.lock"), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(second)
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, durable across a power failure."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
