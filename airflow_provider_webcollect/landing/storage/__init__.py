"""Files of a landing on any fsspec filesystem: visible only when complete, and replaced conditionally."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import logging
import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Protocol

from airflow_provider_webcollect.landing.errors import LandingError, StorageError
from airflow_provider_webcollect.service.pauses import drop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

_REFUSED = {
    "412",
    "BlobAlreadyExists",
    "BlobNotFound",
    "ConditionNotMet",
    "ConditionalRequestConflict",
    "NoSuchKey",
    "PreconditionFailed",
}
_KNOWS_NO_CONDITIONS = {"501", "NotImplemented"}
_NO_BUCKET = {"ContainerNotFound", "NoSuchBucket"}
_NO_CREDENTIALS = {
    "CredentialUnavailableError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
}
_NO_SPACE = {errno.EDQUOT, errno.ENOSPC}
_NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS}


class Changed(Exception):
    """The file does not have the expected version: another process has written or removed it."""


class ErrorResponse(NamedTuple):
    """A storage's error response, as far as its client shows it; otherwise 0 and an empty string."""

    status: int
    code: str


def response_in(error: BaseException) -> ErrorResponse:
    """Return the response in an error of s3fs, adlfs or gcsfs, or in one of the error's causes."""
    for each in causes_of(error):
        match vars(each):
            case {"response": {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": int(status)}}}:
                return ErrorResponse(status, str(code))
            case {"status_code": int(status), "error_code": code}:
                return ErrorResponse(status, str(getattr(code, "value", code) or status))
            case {"code": int(status)}:
                return ErrorResponse(status, str(status))
    return ErrorResponse(0, "")


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def knows_no_conditions(error: BaseException) -> bool:
    """Return whether a storage has refused a request because it does not support conditional requests."""
    return response_in(error).code in _KNOWS_NO_CONDITIONS


@contextlib.contextmanager
def refusals(path: str) -> Iterator[None]:
    """Raise :class:`Changed` in the block if the condition of a request fails."""
    try:
        yield
    except Exception as error:
        if isinstance(error, FileExistsError) or response_in(error).code in _REFUSED:
            raise Changed(path) from error
        raise


@contextlib.contextmanager
def storage_errors(fs: AbstractFileSystem, path: str) -> Iterator[None]:
    """Convert a filesystem's errors in the block into ones that name the path and what to do.

    :raises StorageError: if the storage cannot be read or written.
    """
    try:
        yield
    except (Changed, LandingError):
        raise
    except Exception as error:
        raise _explained(fs, path, error) from error


def raise_unless_absent(error: OSError) -> None:
    """Raise the error of a listing, unless a folder is absent: files may come and go during the listing."""
    if not isinstance(error, FileNotFoundError):
        raise error


def url(fs: AbstractFileSystem, path: str) -> str:
    """Return a path as shown to users: with its scheme, except for a local file."""
    return str(fs.unstrip_protocol(path)).removeprefix("file://")


def _explained(fs: AbstractFileSystem, path: str, error: Exception) -> StorageError:
    shown, response = url(fs, path), response_in(error)
    said = f"{type(error).__name__}: {error}"
    number = error.errno if isinstance(error, OSError) else None
    if response.code in _NO_BUCKET or isinstance(error, BucketNotFound):
        bucket = path.strip("/").partition("/")[0]
        return StorageError(
            f"There is no bucket or container {bucket!r} for {shown}; create it, or correct the destination.",
            permanent=True,
        )
    if number in _NO_SPACE:
        return StorageError(f"No space is left to write {shown}; free some, then a retry goes on. ({said})")
    if _without_credentials(fs, error, response):
        return StorageError(
            f"There are no credentials for {shown}; name an Airflow connection that has them "
            f"(`object_storage_conn_id`), or give this machine some. ({said})",
            permanent=True,
        )
    if number in _NO_ACCESS or _denied(error, response):
        return StorageError(
            f"Access to {shown} is denied; a landing lists, reads, writes and deletes files there. ({said})",
            permanent=True,
        )
    return StorageError(f"The storage has failed at {shown}: {said}", permanent=number == errno.ENOTDIR)


class BucketNotFound(Exception):
    """The bucket is absent, found by an operation that gets no such error from the storage."""


def _without_credentials(fs: AbstractFileSystem, error: Exception, response: ErrorResponse) -> bool:
    if any(type(each).__name__ in _NO_CREDENTIALS for each in causes_of(error)):
        return True
    return _denied(error, response) and _anonymous(fs)


def _denied(error: Exception, response: ErrorResponse) -> bool:
    # gcsfs has no error class for this
    return (
        isinstance(error, PermissionError)
        or response.status in (401, 403)
        or str(error).startswith("Forbidden:")
    )


def _anonymous(fs: Any) -> bool:
    if hasattr(fs, "call_s3"):
        return bool(fs.anon)
    return "gs" in fs.protocol and hasattr(fs, "credentials") and fs.credentials.credentials is None


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


def compare(storage: Storage, path: str, expected: str | None) -> None:
    """Raise :class:`Changed` unless a file has the expected version."""
    found = storage.read(path)
    if (found.version if found else None) != expected:
        raise Changed(path)


def version_of(content: bytes) -> str:
    """Return the version of a file where the storage gives it none."""
    return hashlib.sha256(content).hexdigest()


class Remote(Storage):
    """The common base: listing, reading, uploading and deleting.

    :param fs: the filesystem.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs

    def files(self, folder: str) -> dict[str, int]:
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
        # the listing cache could hide what other processes have written
        self.fs.invalidate_cache()
        file: BinaryIO = self.fs.open(path, "rb")
        return file

    def delete(self, path: str) -> None:
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
        return Stored(content, version_of(content))

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        self._warn()
        compare(self, path, expected)
        self._make_folder(path)
        self.fs.pipe_file(path, content)
        return version_of(content)

    def tried(self, path: str, content: bytes, version: str) -> str:
        """Return ``version``: nothing more can be done."""
        return version

    def remove(self, path: str, expected: str) -> bool:
        compare(self, path, expected)
        self.fs.rm_file(path)
        return True

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Provide an upload; its folder is created if needed."""
        self._make_folder(path)
        with super().upload(path) as file:
            yield file

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
        # in this filesystem, two threads that read the same file share its position
        with self._lock:
            return super().read(path)

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        with self._lock:
            return super().replace(path, content, expected)

    def remove(self, path: str, expected: str) -> bool:
        with self._lock:
            return super().remove(path, expected)

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        """Provide a buffer: in this filesystem a file is visible from its first byte."""
        buffer = io.BytesIO()
        yield buffer
        self.fs.pipe_file(path, buffer.getvalue())
