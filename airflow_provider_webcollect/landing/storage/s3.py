"""Amazon S3 and compatible stores, with ETags as versions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow_provider_webcollect.landing.storage.conditional import Changed, Stored
from airflow_provider_webcollect.landing.storage.errors import answer_in, refusals
from airflow_provider_webcollect.landing.storage.remote import PROBE_CONTENT, Conditional

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


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
        """Return a small file, or None if it is absent."""
        from fsspec.asyn import sync

        try:
            found: Stored = sync(self.fs.loop, self._get, path)
        except FileNotFoundError as error:
            if answer_in(error).code == "NoSuchBucket":
                raise
            return None
        return found

    async def _get(self, path: str) -> Stored:
        bucket, key, _ = self.fs.split_path(path)
        answer = await self.fs._call_s3("get_object", Bucket=bucket, Key=key)
        async with answer["Body"] as body:
            return Stored(await body.read(), str(answer["ETag"]))

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version."""
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
