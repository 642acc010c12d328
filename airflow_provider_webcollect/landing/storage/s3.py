"""Amazon S3, and what speaks its protocol: ETags."""

from __future__ import annotations

from typing import Any

from airflow_provider_webcollect.landing.storage.conditional import Changed, Stored
from airflow_provider_webcollect.landing.storage.errors import answer_in, knows_no_conditions, refusals
from airflow_provider_webcollect.landing.storage.remote import PROBE, Conditional, probe_in


class S3(Conditional):
    """Replaces and removes with ``If-Match``, creates with ``If-None-Match``; s3fs makes the requests."""

    impossible = '"00000000000000000000000000000000"'
    _conditional_deletes: bool | None = None

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
        """Write the file if it is of the expected version."""
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        with refusals(path):
            return str(self._call("put_object", path, Body=content, **condition)["ETag"])

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it is of the expected version, and the store heeds conditions of deletes."""
        if not self._deletes_on_a_condition(path.rpartition("/")[0]):
            return False
        with refusals(path):
            self._call("delete_object", path, IfMatch=expected)
        return True

    def _deletes_on_a_condition(self, folder: str) -> bool:
        """Return whether a delete with a wrong ETag is refused: many stores, and older clients, ignore it."""
        if self._conditional_deletes is None:
            probe = probe_in(folder)
            try:
                version = self.replace(probe, PROBE, None)
            except Changed:
                # the client has sent it twice: nothing is known
                return False
            try:
                with refusals(probe):
                    self._call("delete_object", probe, IfMatch=self.impossible)
                self._conditional_deletes = False
            except Changed:
                self._call("delete_object", probe, IfMatch=version)
                self._conditional_deletes = True
            except OSError as error:
                self.delete(probe)
                if not knows_no_conditions(error):
                    raise
                self._conditional_deletes = False
        return self._conditional_deletes

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, key, _ = self.fs.split_path(path)
        return self.fs.call_s3(method, Bucket=bucket, Key=key, **arguments)
