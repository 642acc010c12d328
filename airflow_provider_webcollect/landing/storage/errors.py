"""Interpreting the errors of filesystems: a failed condition, or an explanation for the user."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_webcollect.landing.errors import LandingError, StorageError

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


class Answer(NamedTuple):
    """A storage's error response, as far as its client shows it; otherwise 0 and an empty string."""

    status: int
    code: str


def answer_in(error: BaseException) -> Answer:
    """Return the response in an error of s3fs, adlfs or gcsfs, or in one of the error's causes."""
    for each in _causes(error):
        match vars(each):
            case {"response": {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": int(status)}}}:
                return Answer(status, str(code))
            case {"status_code": int(status), "error_code": code}:
                return Answer(status, str(getattr(code, "value", code) or status))
            case {"code": int(status)}:
                return Answer(status, str(status))
    return Answer(0, "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def knows_no_conditions(error: BaseException) -> bool:
    """Return whether a storage has refused a request because it does not support conditional requests."""
    return answer_in(error).code in _KNOWS_NO_CONDITIONS


@contextlib.contextmanager
def refusals(path: str) -> Iterator[None]:
    """Raise :class:`Changed` in the block if the condition of a request fails."""
    try:
        yield
    except Exception as error:
        if isinstance(error, FileExistsError) or answer_in(error).code in _REFUSED:
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
    shown, answer = url(fs, path), answer_in(error)
    said = f"{type(error).__name__}: {error}"
    number = error.errno if isinstance(error, OSError) else None
    if answer.code in _NO_BUCKET or isinstance(error, BucketNotFound):
        bucket = path.strip("/").partition("/")[0]
        return StorageError(
            f"There is no bucket or container {bucket!r} for {shown}; create it, or correct the destination.",
            permanent=True,
        )
    if number in _NO_SPACE:
        return StorageError(f"No space is left to write {shown}; free some, then a retry goes on. ({said})")
    if _without_credentials(fs, error, answer):
        return StorageError(
            f"There are no credentials for {shown}; name an Airflow connection that has them "
            f"(`object_storage_conn_id`), or give the worker some. ({said})",
            permanent=True,
        )
    if number in _NO_ACCESS or _denied(error, answer):
        return StorageError(
            f"Access to {shown} is denied; a landing lists, reads, writes and deletes files there. ({said})",
            permanent=True,
        )
    return StorageError(f"The storage has failed at {shown}: {said}", permanent=number == errno.ENOTDIR)


class BucketNotFound(Exception):
    """The bucket is absent, found by an operation that gets no such error from the storage."""


def _without_credentials(fs: AbstractFileSystem, error: Exception, answer: Answer) -> bool:
    if any(type(each).__name__ in _NO_CREDENTIALS for each in _causes(error)):
        return True
    return _denied(error, answer) and _anonymous(fs)


def _denied(error: Exception, answer: Answer) -> bool:
    # gcsfs has no error class for this
    return (
        isinstance(error, PermissionError)
        or answer.status in (401, 403)
        or str(error).startswith("Forbidden:")
    )


def _anonymous(fs: Any) -> bool:
    if hasattr(fs, "call_s3"):
        return bool(fs.anon)
    return "gs" in fs.protocol and hasattr(fs, "credentials") and fs.credentials.credentials is None
