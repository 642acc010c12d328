"""Google Cloud Storage, with generations as versions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow_provider_webcollect.landing.storage.conditional import Changed, Stored
from airflow_provider_webcollect.landing.storage.errors import BucketNotFound, refusals
from airflow_provider_webcollect.landing.storage.remote import Conditional


class GoogleCloudStorage(Conditional):
    """Replaces, creates and removes with ``ifGenerationMatch``; gcsfs sends the requests to the JSON API."""

    impossible = "1"

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent."""
        try:
            headers, content = self._call("GET", self.fs.url(path))
        except FileNotFoundError:
            return None
        return Stored(content, headers["X-Goog-Generation"])

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version."""
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
        """Remove the file if it has the expected version."""
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
