"""Moves collected rows to object storage, exactly once."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.base import airflow_errors, check_now
from airflow_provider_webcollect.service import checks
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

    from airflow_provider_webcollect.landing.engine import IfExists
    from airflow_provider_webcollect.landing.manifest import Manifest, Run
    from airflow_provider_webcollect.service.records import DataPage

#: Seconds between two lines of progress in the log.
PROGRESS_INTERVAL = 5.0
MAX_PART_BYTES = 128 * 1024 * 1024


class WebCollectToObjectStorageOperator(BaseOperator):
    """Moves a task's rows to a folder on object storage, exactly once (contract, endpoints 17, 18 and 19).

    The folder gets ``part-….jsonl`` files and, written last, ``_manifest.json``, which lists them: readers
    trust the manifest alone. A retry goes on after the last finished part; a retry after the commit changes
    nothing. Rows are never all in memory.

    Returns ``{"destination", "manifest", "rows", "bytes", "parts", "duration"}``, the duration in seconds.

    :param collection_task_id: the service's task. (templated)
    :param lotno: one batch of it; None for the whole history. (templated)
    :param destination: a folder of its own, such as ``s3://bucket/prices/{{ ds }}``, or an
        ``ObjectStoragePath``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage; None for its default credentials.
    :param if_exists: what to do if the folder holds the commit of another run: ``fail``, ``overwrite`` (it
        stays readable until the new one is complete) or ``skip``.
    :param mark_exported: confirm the export to the service, after the commit.
    :param page_size: rows per request, 1 to 1000.
    :param max_part_bytes: a part is ended with the page that reaches this size.
    :param settle: seconds to wait for rows if the source shows none, as it may right after a task has
        finished.
    :param webcollect_conn_id: the Airflow connection of the service.
    """

    template_fields: Sequence[str] = (
        "collection_task_id",
        "lotno",
        "destination",
        "object_storage_conn_id",
        "webcollect_conn_id",
    )
    ui_color = "#d7ecdf"

    def __init__(
        self,
        *,
        collection_task_id: str,
        lotno: str | None = None,
        destination: str | ObjectStoragePath,
        object_storage_conn_id: str | None = None,
        if_exists: IfExists = "fail",
        mark_exported: bool = False,
        page_size: int = MAX_DATA_SIZE,
        max_part_bytes: int = MAX_PART_BYTES,
        settle: float = 15.0,
        webcollect_conn_id: str = WebCollectHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.collection_task_id = collection_task_id
        self.lotno = lotno
        self.destination = destination
        self.object_storage_conn_id = object_storage_conn_id
        self.if_exists = if_exists
        self.mark_exported = mark_exported
        self.page_size = page_size
        self.max_part_bytes = max_part_bytes
        self.settle = settle
        self.webcollect_conn_id = webcollect_conn_id
        check_now(self, self._check)

    def _check(self) -> None:
        checks.text("collection_task_id", self.collection_task_id)
        if self._lotno is not None:
            checks.text("lotno", self._lotno)
        if not hasattr(self.destination, "fs"):
            checks.text("destination", self.destination)
        checks.integer("page_size", self.page_size, 1, MAX_DATA_SIZE)
        checks.integer("max_part_bytes", self.max_part_bytes, 1)
        if not self.settle >= 0:
            raise InvalidArgument("settle", self.settle, "it must be a number of seconds, 0 or more")
        if self.if_exists not in {"fail", "overwrite", "skip"}:
            raise InvalidArgument("if_exists", self.if_exists, "it must be one of fail, overwrite, skip")

    @property
    def _lotno(self) -> str | None:
        """The batch; an empty template means none, and a native one makes a number of digits."""
        return None if self.lotno in {None, ""} else str(self.lotno)

    def execute(self, context: Context) -> dict[str, Any]:
        """Land the rows and return the summary."""
        from airflow_provider_webcollect.landing.engine import Landing, land
        from airflow_provider_webcollect.landing.manifest import MANIFEST, Source

        hook = WebCollectHook(self.webcollect_conn_id)
        began = time.monotonic()
        with airflow_errors():
            self._check()
            manifest = land(
                Landing(
                    source=Source(collection_task_id=self.collection_task_id, lotno=self._lotno),
                    destination=self._destination(),
                    run=_run(context),
                    pages=functools.partial(self._pages, hook),
                    max_part_bytes=self.max_part_bytes,
                    if_exists=self.if_exists,
                    advanced=self._log_progress(),
                )
            )
            if self.mark_exported:
                hook.mark_exported(self.collection_task_id)
                self.log.info("Confirmed the export of task %s.", self.collection_task_id)
        folder = str(self.destination).rstrip("/")
        return self._summary(manifest, f"{folder}/{MANIFEST}", time.monotonic() - began)

    def _destination(self) -> Any:
        from airflow.providers.common.compat.sdk import ObjectStoragePath

        from airflow_provider_webcollect.landing.destination import Destination

        path = self.destination
        if isinstance(path, str):
            path = ObjectStoragePath(path, conn_id=self.object_storage_conn_id)
        return Destination(path.fs, path.path)

    def _pages(self, hook: WebCollectHook, offset: int, rows: int) -> Iterator[DataPage]:
        from airflow_provider_webcollect.landing.pages import all_pages
        from airflow_provider_webcollect.service.paging import iter_pages

        def read(start: int) -> Iterator[DataPage]:
            return iter_pages(
                hook.client, self.collection_task_id, self._lotno, offset=start, size=self.page_size
            )

        return all_pages(read, offset, rows, settle=self.settle)

    def _log_progress(self) -> Any:
        began = last = time.monotonic()
        first: int | None = None

        def log(rows: int, total: int) -> None:
            nonlocal last, first
            first = rows if first is None else first
            now = time.monotonic()
            if now - last < PROGRESS_INTERVAL:
                return
            last = now
            rate = (rows - first) / (now - began)
            left = f", {(total - rows) / rate:.0f} s left" if rate else ""
            self.log.info("%d of %d rows, %.0f rows/s%s", rows, total, rate, left)

        return log

    def _summary(self, manifest: Manifest, path: str, duration: float) -> dict[str, Any]:
        self.log.info("Landed %d rows in %d parts: %s", manifest.rows, len(manifest.parts), path)
        return {
            "destination": str(self.destination),
            "manifest": path,
            "rows": manifest.rows,
            "bytes": manifest.bytes,
            "parts": len(manifest.parts),
            "duration": round(duration, 3),
        }


def _run(context: Context) -> Run:
    from airflow_provider_webcollect.landing.manifest import Run

    ti = context["ti"]
    return Run(
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )
