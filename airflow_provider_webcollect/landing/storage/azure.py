"""Azure Blob Storage, with ETags as versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.storage.conditional import Stored
from airflow_provider_webcollect.landing.storage.errors import answer_in, refusals
from airflow_provider_webcollect.landing.storage.remote import Conditional

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Azure(Conditional):
    """Replaces and removes with ``If-Match``, creates with ``If-None-Match``, through adlfs's client."""

    impossible = '"0x0"'

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent."""

        async def download(blob: Any) -> Stored:
            stream = await blob.download_blob()
            return Stored(await stream.readall(), str(stream.properties.etag))

        try:
            found: Stored = self._run(path, download)
        except Exception as error:
            if answer_in(error).code != "BlobNotFound":
                raise
            return None
        return found

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version."""
        condition = {"overwrite": False} if expected is None else {"overwrite": True, **_only_if(expected)}
        with refusals(path):
            return str(self._run(path, lambda blob: blob.upload_blob(content, **condition))["etag"])

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it has the expected version."""
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
