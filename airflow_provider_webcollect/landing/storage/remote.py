"""Files on a filesystem of fsspec: what all of them share, and those that know no conditions."""

from __future__ import annotations

import abc
import contextlib
import hashlib
import io
import logging
import secrets
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from airflow_provider_webcollect.landing.background import drop
from airflow_provider_webcollect.landing.storage.conditional import Changed, Stored
from airflow_provider_webcollect.landing.storage.errors import (
    BucketNotFound,
    knows_no_conditions,
    raise_unless_absent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsspec import AbstractFileSystem

log = logging.getLogger(__name__)

#: Bytes that are sent to an object store at a time.
BLOCK_BYTES = 8 * 1024 * 1024
#: What is written to try a folder; there are servers that stumble over empty files.
PROBE = b"probe"


class Remote:
    """What is the same on all of them: listing, reading, uploading and deleting.

    :param fs: the filesystem.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs

    def files(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files by path."""
        self.fs.invalidate_cache()
        found = self._found(folder)
        # some stores list the folder itself, or files in place of folders
        return {
            path: int(entry["size"])
            for path, entry in found.items()
            if entry["type"] == "file" and not path.endswith("/") and path.strip("/") != folder.strip("/")
        }

    def _found(self, folder: str) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = self.fs.find(folder, detail=True)
        except FileNotFoundError:
            return {}
        return found

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Give an upload that is published at the end, or aborted on an error."""
        file = self.fs.open(path, "wb", autocommit=False, block_size=BLOCK_BYTES)
        try:
            yield file
            file.close()
            file.commit()
        except BaseException as error:
            # without this, the file object would publish what it has when it is collected; there are stores
            # (adlfs) where closing publishes in any case, so it is never closed
            file.closed = True
            drop(error, file.discard)
            raise

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        # what another process has written since the last listing counts too
        self.fs.invalidate_cache()
        file: BinaryIO = self.fs.open(path, "rb")
        return file

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)


class Conditional(Remote, abc.ABC):
    """A store that writes on a condition.

    :cvar impossible: a version that no file has.
    """

    impossible: str

    @abc.abstractmethod
    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it is of the expected version."""

    def try_out(self, folder: str) -> bool:
        """Send a write that has to be refused: who may not write, or where there is no bucket, hears that."""
        probe = probe_in(folder)
        if self._refuses(lambda: self.replace(probe, PROBE, self.impossible)):
            return True
        self.delete(probe)
        return False

    def _refuses(self, request: Callable[[], object]) -> bool:
        """Return whether the store respects the condition of a request, which must not hold."""
        try:
            request()
        except Changed:
            return True
        except Exception as error:
            if not knows_no_conditions(error):
                raise
        return False


class Unconditional(Remote):
    """Compares and then writes: a write by another in between is not noticed."""

    #: Filesystems of which the log has said so.
    warned: ClassVar[set[str]] = set()

    def try_out(self, folder: str) -> bool:
        """Write a file and remove it, in the folder or the nearest one above that is there."""
        # always the same name, so that one that a kill has left goes with the next
        probe = f"{folder}/.tmp-probe"
        try:
            self.fs.pipe_file(probe, PROBE)
        except FileNotFoundError as error:
            if not folder:
                raise BucketNotFound from error
            return self.try_out(folder.rpartition("/")[0])
        self.delete(probe)
        return True

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent; its version is the digest of its content."""
        # what another process has written since the last listing counts too
        self.fs.invalidate_cache()
        try:
            content: bytes = self.fs.cat_file(path)
        except FileNotFoundError:
            return None
        return Stored(content, _version(content))

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it is of the expected version."""
        self._warn()
        self._compare(path, expected)
        self._make_folder(path)
        self.fs.pipe_file(path, content)
        return _version(content)

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it is of the expected version."""
        self._compare(path, expected)
        self.fs.rm_file(path)
        return True

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Give an upload, in a folder that is made if it has to be."""
        self._make_folder(path)
        with super().upload(path) as file:
            yield file

    def _compare(self, path: str, expected: str | None) -> None:
        found = self.read(path)
        if (found.version if found else None) != expected:
            raise Changed(path)

    def _found(self, folder: str) -> dict[str, dict[str, Any]]:
        # the usual `find` leaves out what it fails to list
        walked = self.fs.walk(folder, detail=True, on_error=raise_unless_absent)
        return {f"{parent}/{name}": entry for parent, _, files in walked for name, entry in files.items()}

    def _warn(self) -> None:
        kind = type(self.fs).__name__
        if kind not in self.warned:
            self.warned.add(kind)
            log.warning(
                "%s cannot replace a file on a condition: two landings that meet may both commit", kind
            )

    def _make_folder(self, path: str) -> None:
        # there are filesystems with folders among them, where one is not made by writing to it
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)


class Memory(Unconditional):
    """The files of this process: a lock makes comparing and writing one step."""

    # comparing reads, under the same lock
    _lock = threading.RLock()

    def _warn(self) -> None:
        pass

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent."""
        # two threads that read one file of this filesystem share its position
        with self._lock:
            return super().read(path)

    def try_out(self, folder: str) -> bool:
        """Return True: everybody may write."""
        return True

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it is of the expected version."""
        with self._lock:
            return super().replace(path, content, expected)

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it is of the expected version."""
        with self._lock:
            return super().remove(path, expected)

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Give a buffer: a file of this filesystem is seen from its first byte."""
        buffer = io.BytesIO()
        yield buffer
        self.fs.pipe_file(path, buffer.getvalue())


def probe_in(folder: str) -> str:
    """Return the path of a file to try the folder with."""
    return f"{folder}/.tmp-probe-{secrets.token_hex(4)}"


def _version(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
