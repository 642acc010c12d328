"""Object stores that can create a file only if it is absent: S3-compatible, Google Cloud Storage, Azure."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_webcollect.landing.storage import (
    BucketNotFound,
    Exists,
    Storage,
    response_in,
    uploading,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fsspec import AbstractFileSystem

_EXISTS = {"412", "BlobAlreadyExists", "ConditionNotMet", "ConditionalRequestConflict", "PreconditionFailed"}
_KNOWS_NO_CONDITIONS = {"501", "NotImplemented"}
#: Maximum number of bytes that are sent in one request, without an upload of several requests.
SMALL_BYTES = 1024 * 1024


class Conditional(Storage):
    """A store that creates a file only if it is absent."""

    def create(self, path: str, content: bytes) -> None:
        try:
            self.fs.pipe_file(path, content, mode="create")
        except FileNotFoundError as error:
            # gcsfs raises this for an absent bucket, without the response
            raise BucketNotFound(path) from error
        except Exception as error:
            if isinstance(error, FileExistsError) or response_in(error).code in _EXISTS:
                raise Exists(path) from error
            raise

    def write(self, path: str, content: bytes) -> None:
        self.fs.pipe_file(path, content)

    def _found(self, folder: str) -> dict[str, dict[str, Any]]:
        try:
            entries: dict[str, dict[str, Any]] = self.fs.find(folder, detail=True)
        except FileNotFoundError as error:
            raise BucketNotFound(folder) from error
        return entries

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        # an upload takes several requests, where one is enough for a small file
        with contextlib.ExitStack() as stack:
            file = _Growing(lambda: stack.enter_context(uploading(self.fs, path)))
            yield file
            if file.upload is None:
                self.write(path, file.small.getvalue())


class _Growing:
    """Collects written bytes, and begins an upload once there are more than :data:`SMALL_BYTES`.

    :param begin: begins the upload, and returns its file.
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


class S3(Conditional):
    """S3-compatible stores: some ignore the condition of a request, or refuse conditional requests."""

    #: Whether a store respects conditions, by filesystem and bucket, as far as this process has tested.
    respects: ClassVar[dict[tuple[AbstractFileSystem, str], bool]] = {}

    # with concurrency, s3fs asks for the size first
    _reading: ClassVar[Mapping[str, Any]] = {"max_concurrency": 1}

    def create(self, path: str, content: bytes) -> None:
        bucket, _, _ = self.fs.split_path(path)
        place = (self.fs, bucket)
        if place not in self.respects:
            # if the store ignores conditions, at least an existing file is not overwritten
            if self.read(path) is not None:
                raise Exists(path)
            self.respects[place] = self._try(path, content)
        elif self.respects[place]:
            super().create(path, content)
        else:
            Storage.create(self, path, content)

    def _try(self, path: str, content: bytes) -> bool:
        """Create the file, and return whether the store refuses a second creation, as it must.

        :raises Exists: if the first creation is refused: the file exists.
        """
        try:
            super().create(path, content)
        except Exception as error:
            if response_in(error).code not in _KNOWS_NO_CONDITIONS:
                raise
            Storage.create(self, path, content)
            return False
        with contextlib.suppress(Exists):
            super().create(path, content)
            self._warn()
            return False
        return True

    def _found(self, folder: str) -> dict[str, dict[str, Any]]:
        parent, _, name = folder.strip("/").rpartition("/")
        if not parent:
            return super()._found(folder)
        # for the folder itself, `find` would look for an absent one once more, as a file
        entries: dict[str, dict[str, Any]] = self.fs.find(parent, prefix=f"{name}/", detail=True)
        return entries
