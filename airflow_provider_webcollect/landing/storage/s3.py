"""Amazon S3 and compatible stores, with ETags as versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow_provider_webcollect.landing.storage.conditional import PROBE, Stored
from airflow_provider_webcollect.landing.storage.errors import answer_in, refusals
from airflow_provider_webcollect.landing.storage.remote import PROBE_CONTENT, Conditional

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: How often a file is created before a store counts as one that creates it although it is there.
CREATIONS = 5


class Respected(NamedTuple):
    """The requests whose conditions a store respects."""

    by_writes: bool
    by_deletes: bool


class S3(Conditional):
    """Replaces and removes with ``If-Match``, creates with ``If-None-Match``; s3fs sends the requests."""

    impossible = '"00000000000000000000000000000000"'
    #: Results of the tests in this process, by filesystem and bucket; a test takes five requests.
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
        if not self._respected(path.rpartition("/")[0]).by_deletes:
            return False
        self._delete(path, expected)
        return True

    def try_out(self, folder: str) -> bool:
        """Test which conditions the store respects; if that is known, test only whether it can be written."""
        bucket, _, _ = self.fs.split_path(folder)
        if (self.fs, bucket) in self.known and not super().try_out(folder):
            return False
        return self._respected(folder).by_writes

    def _respected(self, folder: str) -> Respected:
        bucket, _, _ = self.fs.split_path(folder)
        if (self.fs, bucket) not in self.known:
            self.known[self.fs, bucket] = self._tried(f"{folder}/{PROBE}")
        return self.known[self.fs, bucket]

    def _tried(self, probe: str) -> Respected:
        """Send requests that must be refused: many stores, and older clients, ignore some conditions."""

        def create() -> str:
            return self.replace(probe, PROBE_CONTENT, None)

        # the first one creates the file, if a killed process has not left it; another landing that tests the
        # same folder may remove it before the next one
        refuses_to_create = any(self._refuses(create) for _ in range(CREATIONS))
        respected = Respected(
            by_writes=refuses_to_create
            and self._refuses(lambda: self.replace(probe, PROBE_CONTENT, self.impossible)),
            by_deletes=self._refuses(lambda: self._delete(probe, self.impossible)),
        )
        self.delete(probe)
        return respected

    def _delete(self, path: str, expected: str) -> None:
        with refusals(path):
            self._call("delete_object", path, IfMatch=expected)

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, key, _ = self.fs.split_path(path)
        return self.fs.call_s3(method, Bucket=bucket, Key=key, **arguments)
