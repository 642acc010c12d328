"""The interface between a landing and a storage, and the filesystems without conditional writes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Protocol

from airflow_provider_webcollect.landing.storage.errors import Changed, raise_unless_absent
from airflow_provider_webcollect.service.pauses import drop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

log = logging.getLogger(__name__)

#: Bytes sent to an object store at a time.
BLOCK_BYTES = 8 * 1024 * 1024


class Stored(NamedTuple):
    """A small file as it was read.

    :param content: the whole content.
    :param version: identifies this content when it is replaced or removed; its form depends on the storage.
    """

    content: bytes
    version: str


class Storage(Protocol):
    """The operations on files by their full path; they raise the filesystem's errors."""

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent."""

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version (None: if it is absent), and return the new version.

        :raises Changed: if it has another version.
        """

    def tried(self, path: str, content: bytes, version: str) -> str | None:
        """Try out on a file that was just written whether the storage respects conditions.

        :return: the file's version; None if it does not, the content may be another then.
        """

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it has the expected version.

        :return: False if the storage has no conditional removal; the file is then unchanged.
        :raises Changed: if it has another version, or is absent.
        """

    def files(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in the folder and its subfolders by path; empty if it is absent."""

    def upload(self, path: str) -> AbstractContextManager[Any]:
        """Provide a file that becomes visible at ``path`` when it is complete, or is dropped on an error."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""

    def delete(self, path: str) -> None:
        """Remove a file, whatever its version; an absent file is no error."""


class Remote:
    """The common base: listing, reading, uploading and deleting.

    :param fs: the filesystem.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs

    def files(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files by path."""
        self.fs.invalidate_cache()
        found = self._found(folder)
        # some stores list the folder itself, or list folders as files
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
        """Provide an upload that is published at the end, or aborted on an error."""
        file = self.fs.open(path, "wb", autocommit=False, block_size=BLOCK_BYTES)
        try:
            yield file
            file.close()
            file.commit()
        except BaseException as error:
            # otherwise the file object would publish its content when it is garbage-collected; in some stores
            # (adlfs) closing always publishes, so it is never closed
            file.closed = True
            drop(error, file.discard)
            raise

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        # the listing cache could hide what other processes have written
        self.fs.invalidate_cache()
        file: BinaryIO = self.fs.open(path, "rb")
        return file

    def delete(self, path: str) -> None:
        """Remove a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)


class Unconditional(Remote):
    """Compares and then writes; does not notice a write by another process in between."""

    #: Filesystems for which this was logged.
    warned: ClassVar[set[str]] = set()

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent; its version is the digest of its content."""
        # the cache could hide what other processes have written
        self.fs.invalidate_cache()
        try:
            content: bytes = self.fs.cat_file(path)
        except FileNotFoundError:
            return None
        return Stored(content, _version(content))

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version."""
        self._warn()
        self._compare(path, expected)
        self._make_folder(path)
        self.fs.pipe_file(path, content)
        return _version(content)

    def tried(self, path: str, content: bytes, version: str) -> str:
        """Return ``version``: nothing more can be done."""
        return version

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it has the expected version."""
        self._compare(path, expected)
        self.fs.rm_file(path)
        return True

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Provide an upload; its folder is created if needed."""
        self._make_folder(path)
        with super().upload(path) as file:
            yield file

    def _compare(self, path: str, expected: str | None) -> None:
        found = self.read(path)
        if (found.version if found else None) != expected:
            raise Changed(path)

    def _found(self, folder: str) -> dict[str, dict[str, Any]]:
        # the usual `find` omits what it fails to list
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
        # on some filesystems, writing a file does not create its folder
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)


class Memory(Unconditional):
    """The files of this process; a lock makes comparing and writing atomic."""

    # reentrant, since comparing reads under the same lock
    _lock = threading.RLock()

    def _warn(self) -> None:
        pass

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent."""
        # in this filesystem, two threads that read the same file share its position
        with self._lock:
            return super().read(path)

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version."""
        with self._lock:
            return super().replace(path, content, expected)

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it has the expected version."""
        with self._lock:
            return super().remove(path, expected)

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Provide a buffer: in this filesystem a file is visible from its first byte."""
        buffer = io.BytesIO()
        yield buffer
        self.fs.pipe_file(path, buffer.getvalue())


def _version(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
