"""Files on an fsspec filesystem: the common base, and filesystems without conditional writes."""

from __future__ import annotations

import abc
import contextlib
import hashlib
import io
import logging
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from airflow_provider_webcollect.landing.storage.conditional import Changed, Stored
from airflow_provider_webcollect.landing.storage.errors import (
    knows_no_conditions,
    raise_unless_absent,
)
from airflow_provider_webcollect.service.pauses import drop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsspec import AbstractFileSystem

log = logging.getLogger(__name__)

#: Bytes sent to an object store at a time.
BLOCK_BYTES = 8 * 1024 * 1024
#: The most bytes that are sent in one request, without beginning an upload.
SMALL_BYTES = 1024 * 1024
#: The content of a write that must be refused; not empty, since some servers fail on empty files.
PROBE_CONTENT = b"probe"


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


class Conditional(Remote, abc.ABC):
    """A store with conditional writes.

    :cvar impossible: a version that no file has.
    """

    impossible: str

    @abc.abstractmethod
    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version."""

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Provide an upload: one request for a small file, several requests for others."""
        with contextlib.ExitStack() as uploading:
            file = _Growing(lambda: uploading.enter_context(super(Conditional, self).upload(path)))
            yield file
            if file.upload is None:
                self.fs.pipe_file(path, file.small.getvalue())

    def tried(self, path: str, content: bytes, version: str) -> str | None:
        """Send a write that must be refused; None if it is not."""
        return version if self._refuses(lambda: self.replace(path, PROBE_CONTENT, self.impossible)) else None

    def _refuses(self, request: Callable[[], object]) -> bool:
        """Return whether the store respects the condition of a request, which is one that fails."""
        try:
            request()
        except Changed:
            return True
        except Exception as error:
            if not knows_no_conditions(error):
                raise
        return False


class _Growing:
    """Collects what is written, and passes it on to an upload once it is no longer small.

    :param begin: begins the upload.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self.small = io.BytesIO()
        self.upload: Any = None
        self._begin = begin

    def write(self, data: bytes) -> None:
        if self.upload is not None:
            self.upload.write(data)
            return
        self.small.write(data)
        if self.small.tell() > SMALL_BYTES:
            self.upload = self._begin()
            self.upload.write(self.small.getvalue())
            self.small.close()


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
