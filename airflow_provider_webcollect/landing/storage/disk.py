"""Files on a local or mounted disk: a rename makes them visible, and a link creates those that are absent."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_provider_webcollect.landing.storage import Exists, raise_unless_absent
from airflow_provider_webcollect.service.threads import drop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

#: The errors of file systems without links (FAT, some mounts of object stores).
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


class Disk:
    """The operations of :class:`~.storage.Storage` on local files."""

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, path: str, content: bytes) -> None:
        with _published(Path(path), _link) as file:
            file.write(content)

    def write(self, path: str, content: bytes) -> None:
        with self.upload(path) as file:
            file.write(content)

    def files(self, folder: str) -> dict[str, int]:
        sizes = {}
        for parent, _, names in os.walk(folder, onerror=raise_unless_absent):
            # joined as strings, so that all paths begin with the given folder, however it is written
            for file in (f"{parent}/{name}" for name in names):
                with contextlib.suppress(FileNotFoundError):
                    sizes[file] = os.lstat(file).st_size
        return sizes

    def upload(self, path: str) -> AbstractContextManager[Any]:
        # a rename is atomic, and within a folder it stays on one disk
        return _published(Path(path), Path.rename)

    def open(self, path: str, ahead: int | None = None) -> BinaryIO:
        return Path(path).open("rb")

    def delete(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _published(target: Path, publish: Callable[[Path, Path], object]) -> Iterator[Any]:
    """Provide a hidden file beside ``target``, which is published there after it is synced to the disk."""
    _make_folder(target.parent)
    hidden = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    file = hidden.open("wb")
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        publish(hidden, target)
    except BaseException as error:
        drop(error, file.close, hidden.unlink)
        raise
    _sync_folder(target.parent)


def _link(hidden: Path, target: Path) -> None:
    """Give a file its name, unless that is taken.

    :raises Exists: if it is.
    """
    try:
        try:
            # refused, on NFS too, if the name is taken
            os.link(hidden, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with target.open("xb") as file:
                try:
                    file.write(hidden.read_bytes())
                    os.fsync(file.fileno())
                except BaseException as failure:
                    # such as a full disk: what is torn would stop everybody
                    drop(failure, target.unlink)
                    raise
    except FileExistsError as error:
        raise Exists(str(target)) from error
    hidden.unlink()


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, durable across a power failure."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:
        # a file, which a retry would meet again
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
