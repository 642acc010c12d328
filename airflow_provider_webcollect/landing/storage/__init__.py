"""The files of a landing on any filesystem: visible only when complete, created only if absent."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import secrets
import threading
from contextlib import AbstractContextManager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple

from airflow_provider_webcollect.landing.errors import LandingError, StorageError
from airflow_provider_webcollect.service.threads import drop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fsspec import AbstractFileSystem

log = logging.getLogger(__name__)
#: Bytes sent to an object store at a time.
BLOCK_BYTES = 8 * 1024 * 1024
_NO_BUCKET = {"ContainerNotFound", "NoSuchBucket"}
_NO_CREDENTIALS = {
    "CredentialUnavailableError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
}
#: S3's codes for credentials that are no longer valid; Google and Azure answer 401.
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestTimeTooSkewed", "TokenRefreshRequired"}
#: Azure's message for a shared access signature that has expired.
_EXPIRED_SIGNATURE = "Signature not valid in the specified time frame"
_NO_SPACE = {errno.EDQUOT, errno.ENOSPC}
#: The errors of a path that is a loop of links, or has a file where a folder must be.
_NO_PATH = {errno.ELOOP, errno.ENOTDIR}
#: The errors of file systems without hard links (FAT, SMB, some mounts of NFS and of object stores).
_NO_LINKS = {
    errno.EACCES,
    errno.EINVAL,
    errno.EIO,
    errno.EMLINK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EPERM,
    errno.EXDEV,
}
#: The errors of file systems that cannot sync a folder.
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP}


class Exists(Exception):
    """The file to create exists already: another process may have created it."""


class BucketNotFound(Exception):
    """The bucket is absent, although the error of the storage does not say so."""


class ErrorResponse(NamedTuple):
    """A storage's error response; 0 and an empty string if the client does not show it."""

    status: int
    code: str


def response_in(error: BaseException) -> ErrorResponse:
    """Return the response in an error of s3fs, adlfs or gcsfs, or in one of its causes."""
    for cause in causes_of(error):
        match vars(cause):
            case {"response": {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": int(status)}}}:
                return ErrorResponse(status, str(code))
            case {"status_code": int(status), "error_code": code}:
                return ErrorResponse(status, str(getattr(code, "value", code) or status))
            case {"code": int(status)}:
                return ErrorResponse(status, str(status))
    return ErrorResponse(0, "")


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and the errors that it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


@contextlib.contextmanager
def storage_errors(fs: AbstractFileSystem, path: str) -> Iterator[None]:
    """Convert a filesystem's errors in the block into errors that name the path and say what to do.

    :raises StorageError: if the storage cannot be read or written.
    """
    try:
        yield
    except (Exists, LandingError):
        raise
    except Exception as error:
        raise _explained(fs, path, error) from error


def raise_unless_absent(error: OSError) -> None:
    """Raise the error of a listing, unless a folder is absent: it may be deleted during the listing."""
    if not isinstance(error, FileNotFoundError):
        raise error


def url(fs: AbstractFileSystem, path: str) -> str:
    """Return a path as shown to users: with its scheme, except for a local file."""
    return str(fs.unstrip_protocol(path)).removeprefix("file://")


def _explained(fs: AbstractFileSystem, path: str, error: Exception) -> StorageError:
    where, response = url(fs, path), response_in(error)
    text = f"{type(error).__name__}: {error}"
    number = error.errno if isinstance(error, OSError) else None
    if response.code in _NO_BUCKET or isinstance(error, BucketNotFound):
        bucket = path.strip("/").partition("/")[0]
        return StorageError(
            f"There is no bucket or container {bucket!r} for {where}; create it, or correct the destination.",
            permanent=True,
        )
    if number in _NO_SPACE:
        return StorageError(f"No space is left to write {where}; free some, and try again. ({text})")
    if number == errno.ENAMETOOLONG or response.code == "KeyTooLongError":
        # a disk limits each name, usually to 255 bytes, and an object store the path, usually to 1,024
        longest = max(len(name.encode()) for name in path.split("/"))
        return StorageError(
            f"The storage does not take the path {where}, of {len(path.encode())} bytes, {longest} of them "
            f"in its longest name; choose a shorter destination or partition. ({text})",
            permanent=True,
        )
    # gcsfs has no error class for this
    is_denied = (
        isinstance(error, PermissionError)
        or response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        or str(error).startswith("Forbidden:")
    )
    is_unknown = any(type(cause).__name__ in _NO_CREDENTIALS for cause in causes_of(error))
    if is_unknown or (is_denied and _anonymous(fs)):
        return StorageError(
            f"There are no credentials for {where}; name an Airflow connection that has them "
            f"(as in {where.partition('://')[0]}://my_connection@…), or give this machine some. ({text})",
            permanent=True,
        )
    if have_expired(error):
        return StorageError(
            f"The credentials for {where} are no longer valid, or this machine's clock is wrong; a retry "
            f"asks for new ones. ({text})"
        )
    if is_denied or number == errno.EROFS:
        return StorageError(
            f"Access to {where} is denied; a landing lists, reads, writes and deletes files there. ({text})",
            permanent=True,
        )
    return StorageError(f"The storage has failed at {where}: {text}", permanent=number in _NO_PATH)


def have_expired(error: Exception) -> bool:
    """Return whether an error refuses credentials that may have expired: a retry may get new ones."""
    response = response_in(error)
    return (
        response.status == HTTPStatus.UNAUTHORIZED
        or response.code in _EXPIRED
        or _EXPIRED_SIGNATURE in str(error)
    )


def _anonymous(fs: Any) -> bool:
    if hasattr(fs, "call_s3"):
        return bool(fs.anon)
    return "gs" in fs.protocol and hasattr(fs, "credentials") and fs.credentials.credentials is None


class Storage:
    """The operations on files by their full path, on any filesystem of fsspec; they raise its errors.

    To create a file, this class checks that it is absent, and then writes it. It does not notice a write by
    another process in between; a warning in the log says so once.

    :param fs: the filesystem.
    """

    #: The class names of the filesystems for which this warning was logged.
    warned: ClassVar[set[str]] = set()
    #: Arguments for the filesystem when it reads a small file.
    _reading: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if it is absent."""
        # the cache could hide what other processes have written
        self.fs.invalidate_cache()
        try:
            content: bytes = self.fs.cat_file(path, **self._reading)
        except FileNotFoundError as error:
            if response_in(error).code in _NO_BUCKET:
                raise
            return None
        return content

    def create(self, path: str, content: bytes) -> None:
        """Write a small file if it is absent.

        :raises Exists: if the file exists; nothing is written then.
        """
        self._warn()
        if self.read(path) is not None:
            raise Exists(path)
        self.write(path, content)

    def write(self, path: str, content: bytes) -> None:
        """Write a small file, or replace it.

        Readers see the whole old or new content, except on filesystems such as SFTP, which do not replace
        files whole.
        """
        # on some filesystems, writing a file does not create its folder
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, content)

    def files(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files in a folder and its subfolders, by path; empty if it is absent."""
        self.fs.invalidate_cache()
        entries = self._found(folder)
        # some stores list the folder itself, or list folders as files
        return {
            path: int(entry["size"])
            for path, entry in entries.items()
            if entry["type"] == "file" and not path.endswith("/") and path.strip("/") != folder.strip("/")
        }

    def _found(self, folder: str) -> dict[str, dict[str, Any]]:
        # the `find` of fsspec omits folders that it fails to list
        walked = self.fs.walk(folder, detail=True, on_error=raise_unless_absent)
        return {f"{parent}/{name}": entry for parent, _, files in walked for name, entry in files.items()}

    def upload(self, path: str) -> AbstractContextManager[Any]:
        """Provide a file that becomes visible at ``path`` when it is complete, or is dropped on an error."""
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        return uploading(self.fs, path)

    def open(self, path: str, ahead: int | None = None) -> BinaryIO:
        """Open a file for reading.

        :param ahead: number of bytes to read ahead from an object store; None for the filesystem's default.
        """
        # the listing cache could hide what other processes have written
        self.fs.invalidate_cache()
        file: BinaryIO = self.fs.open(path, "rb", block_size=ahead)
        return file

    def is_linked(self, path: str) -> bool:
        """Return whether a path has a symbolic link; the path of a landing's folder itself has none."""
        return False

    def delete(self, path: str) -> None:
        """Delete a file; an absent file is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def _warn(self) -> None:
        kind = type(self.fs).__name__
        if kind not in self.warned:
            self.warned.add(kind)
            log.warning("%s has no conditional create: two landings at the same time may both commit", kind)


@contextlib.contextmanager
def uploading(fs: AbstractFileSystem, path: str) -> Iterator[Any]:
    """Provide an upload that is published at the end, or aborted on an error."""
    file = fs.open(path, "wb", autocommit=False, block_size=BLOCK_BYTES)
    try:
        yield _Blocks(file)
        file.close()
        file.commit()
    except BaseException as error:
        # otherwise the file object would publish its content when it is garbage-collected; in some stores
        # (adlfs) closing always publishes, so it is never closed
        file.closed = True
        drop(error, file.discard)
        raise


class _Blocks:
    """Passes on written bytes so that all requests have one size, as some stores require, such as R2.

    :param file: a file of fsspec, which sends its buffer as soon as it holds a block or more.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._held = 0

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            piece, rest = rest[: BLOCK_BYTES - self._held], rest[BLOCK_BYTES - self._held :]
            self._file.write(piece)
            self._held = (self._held + len(piece)) % BLOCK_BYTES


class Memory(Storage):
    """Files in the memory of this process; a lock makes checking and writing atomic."""

    _lock = threading.Lock()

    def read(self, path: str) -> bytes | None:
        # in this filesystem, two threads that read the same file share its position
        with self._lock:
            return super().read(path)

    def create(self, path: str, content: bytes) -> None:
        with self._lock:
            if self.fs.exists(path):
                raise Exists(path)
            self.write(path, content)

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        # this filesystem would show a file from its first byte
        buffer = io.BytesIO()
        yield buffer
        self.fs.pipe_file(path, buffer.getvalue())


class Disk(Storage):
    """Files on a local or mounted disk.

    A rename makes a complete file visible. A hard link creates a file only if it is absent.
    """

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
        for parent, folders, names in os.walk(folder, onerror=raise_unless_absent, followlinks=True):
            # the folder of a partition may be a link to another disk; a link upwards would have no end
            folders[:] = [name for name in folders if not _leads_up(Path(parent, name))]
            # joined as strings, so that all paths begin with the folder exactly as given
            for file in (f"{parent}/{name}" for name in names):
                with contextlib.suppress(FileNotFoundError):
                    sizes[file] = os.lstat(file).st_size
        return sizes

    def upload(self, path: str) -> AbstractContextManager[Any]:
        # a rename is atomic, and within a folder it stays on one disk
        return _published(Path(path), Path.rename)

    def open(self, path: str, ahead: int | None = None) -> BinaryIO:
        return Path(path).open("rb")

    def is_linked(self, path: str) -> bool:
        return os.path.realpath(path) != path

    def delete(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _published(target: Path, publish: Callable[[Path, Path], object]) -> Iterator[Any]:
    """Provide a hidden file next to ``target``, to be published there after a sync to the disk.

    :param publish: gives the hidden file the name of the target.
    """
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


def _leads_up(folder: Path) -> bool:
    """Return whether a folder is a link to one of the folders above it."""
    return folder.is_symlink() and any(above.samefile(folder) for above in folder.parents)


def _link(hidden: Path, target: Path) -> None:
    """Give a hidden file its name, unless the name is taken.

    :raises Exists: if the name is taken.
    """
    try:
        try:
            # fails if the name is taken, also on NFS
            os.link(hidden, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with target.open("xb") as file:
                try:
                    file.write(hidden.read_bytes())
                    os.fsync(file.fileno())
                except BaseException as failure:
                    # such as a full disk: a torn commit would stop every landing here
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
        # a file has this name, also for a retry: this error is permanent
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    except FileNotFoundError as error:
        # the parent exists but does not allow new folders, such as /proc
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder)) from error
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk, if the file system can do that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
