"""The object stores with conditional writes: Amazon S3 and its like, Google Cloud Storage, Azure."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import quote

from airflow_provider_webcollect.landing.storage import (
    BucketNotFound,
    Changed,
    Remote,
    Stored,
    knows_no_conditions,
    refusals,
    response_in,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fsspec import AbstractFileSystem

#: The most bytes that are sent in one request, without beginning an upload.
SMALL_BYTES = 1024 * 1024
#: The content of a write that must be refused; not empty, since some servers fail on empty files.
PROBE_CONTENT = b"probe"


class Conditional(Remote):
    """A store with conditional writes.

    :cvar impossible: a version that no file has.
    """

    impossible: str

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


class Respected(NamedTuple):
    """The requests whose conditions a store respects."""

    by_writes: bool
    by_deletes: bool


class S3(Conditional):
    """Replaces and removes with ``If-Match``, creates with ``If-None-Match``; s3fs sends the requests."""

    impossible = '"00000000000000000000000000000000"'
    #: Results of the tests in this process, by filesystem and bucket; a test takes three requests.
    known: ClassVar[dict[tuple[AbstractFileSystem, str], Respected]] = {}

    def read(self, path: str) -> Stored | None:
        from fsspec.asyn import sync

        try:
            found: Stored = sync(self.fs.loop, self._get, path)
        except FileNotFoundError as error:
            if response_in(error).code == "NoSuchBucket":
                raise
            return None
        return found

    async def _get(self, path: str) -> Stored:
        bucket, key, _ = self.fs.split_path(path)
        answer = await self.fs._call_s3("get_object", Bucket=bucket, Key=key)
        async with answer["Body"] as body:
            return Stored(await body.read(), str(answer["ETag"]))

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        with refusals(path):
            return str(self._call("put_object", path, Body=content, **condition)["ETag"])

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it has the expected version; False if the store ignores that condition."""
        bucket, _, _ = self.fs.split_path(path)
        if (respected := self.known.get((self.fs, bucket))) is None or not respected.by_deletes:
            return False
        self._delete(path, expected)
        return True

    def tried(self, path: str, content: bytes, version: str) -> str | None:
        """Find out which conditions the store respects, once per bucket; None if not those of writes."""
        bucket, _, _ = self.fs.split_path(path)
        if (self.fs, bucket) not in self.known:
            respected = self._tried(path)
            self.known[self.fs, bucket] = respected
            if respected.by_writes and not respected.by_deletes:
                # the request that should have been refused may have removed the file
                with contextlib.suppress(Changed):
                    version = self.replace(path, content, None)
        return version if self.known[self.fs, bucket].by_writes else None

    def _tried(self, path: str) -> Respected:
        """Send requests that must be refused: many stores, and older clients, ignore some conditions.

        :raises Changed: if the file was removed before the first of them.
        """

        def create() -> str:
            return self.replace(path, PROBE_CONTENT, None)

        there = self._refuses(create)
        respected = Respected(
            by_writes=(there or self._refuses(create))
            and self._refuses(lambda: self.replace(path, PROBE_CONTENT, self.impossible)),
            by_deletes=self._refuses(lambda: self._delete(path, self.impossible)),
        )
        if respected.by_writes and not there:
            self.delete(path)
            raise Changed(path)
        return respected

    def _delete(self, path: str, expected: str) -> None:
        with refusals(path):
            self._call("delete_object", path, IfMatch=expected)

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, key, _ = self.fs.split_path(path)
        return self.fs.call_s3(method, Bucket=bucket, Key=key, **arguments)


class GoogleCloudStorage(Conditional):
    """Replaces, creates and removes with ``ifGenerationMatch``; gcsfs sends the requests to the JSON API."""

    impossible = "1"

    def read(self, path: str) -> Stored | None:
        try:
            headers, content = self._call("GET", self.fs.url(path))
        except FileNotFoundError:
            return None
        return Stored(content, headers["X-Goog-Generation"])

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        bucket, key, _ = self.fs.split_path(path)
        try:
            with refusals(path):
                answer = self._call(
                    "POST",
                    f"{self.fs._location}/upload/storage/v1/b/{quote(bucket)}/o",
                    uploadType="media",
                    name=key,
                    # 0: the file must not exist
                    ifGenerationMatch=expected or "0",
                    headers={"Content-Type": "application/octet-stream"},
                    data=content,
                    json_out=True,
                )
        except FileNotFoundError as error:
            raise BucketNotFound(bucket) from error
        return str(answer["generation"])

    def remove(self, path: str, expected: str) -> bool:
        bucket, key, _ = self.fs.split_path(path)
        try:
            with refusals(path):
                self._call("DELETE", "b/{}/o/{}", bucket, key, ifGenerationMatch=expected)
        except FileNotFoundError as error:
            raise Changed(path) from error
        return True

    def _call(self, method: str, path: str, *arguments: str, **options: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self.fs.loop, self.fs._call, method, path, *arguments, **options)


class Azure(Conditional):
    """Replaces and removes with ``If-Match``, creates with ``If-None-Match``, through adlfs's client."""

    impossible = '"0x0"'

    def read(self, path: str) -> Stored | None:
        async def download(blob: Any) -> Stored:
            stream = await blob.download_blob()
            return Stored(await stream.readall(), str(stream.properties.etag))

        try:
            found: Stored = self._run(path, download)
        except Exception as error:
            if response_in(error).code != "BlobNotFound":
                raise
            return None
        return found

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        condition = {"overwrite": False} if expected is None else {"overwrite": True, **_only_if(expected)}
        with refusals(path):
            return str(self._run(path, lambda blob: blob.upload_blob(content, **condition))["etag"])

    def remove(self, path: str, expected: str) -> bool:
        with refusals(path):
            self._run(path, lambda blob: blob.delete_blob(**_only_if(expected)))
        return True

    def _run(self, path: str, operation: Callable[[Any], Awaitable[Any]]) -> Any:
        from fsspec.asyn import sync

        async def run() -> Any:
            container, blob, _ = self.fs.split_path(path)
            async with self.fs.service_client.get_blob_client(container, blob) as client:
                return await operation(client)

        return sync(self.fs.loop, run)


def _only_if(version: str) -> dict[str, Any]:
    from azure.core import MatchConditions

    return {"etag": version, "match_condition": MatchConditions.IfNotModified}
