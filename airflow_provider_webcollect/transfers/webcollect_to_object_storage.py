"""Moves collected rows to object storage, exactly once."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.links import (
    WebCollectExportLink,
    WebCollectTaskLink,
    store_export_link,
    store_task_link,
)
from airflow_provider_webcollect.operators.base import airflow_errors, check_now, storage_path
from airflow_provider_webcollect.operators.retry_after import respect_retry_after
from airflow_provider_webcollect.service.api import validation
from airflow_provider_webcollect.service.api.endpoints import MAX_DATA_SIZE
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.transfers import lineage, reporting
from airflow_provider_webcollect.transfers.reporting import Landed
from airflow_provider_webcollect.transfers.sources import Place, make_source, places

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence

    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_webcollect.landing.destination import Destination
    from airflow_provider_webcollect.landing.engine import IfExists, OnReset
    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.formats.parquet import OnCastError
    from airflow_provider_webcollect.landing.manifest import Mode, Run, Source
    from airflow_provider_webcollect.service.api.records import DataPage
    from airflow_provider_webcollect.service.client.sync import Client

MAX_PART_BYTES = 128 * 1024 * 1024
#: Sources that can be landed at once at most.
MOST_AT_ONCE = 32


class WebCollectToObjectStorageOperator(BaseOperator):
    """Moves a task's rows to a folder on object storage, exactly once (contract.md, endpoints 17, 18 and 19).

    The folder gets ``part-….jsonl`` files and, written last, ``_manifest.json``, which lists them: readers
    trust the manifest alone. A retry goes on after the last finished part; a retry after the commit changes
    nothing. Rows are never all in memory.

    Returns ``{"destination", "manifest", "rows", "bytes", "parts", "duration"}``, the duration in seconds.
    With ``mode="incremental"`` these are of what was new, and ``total_rows`` is of all. With ``sources`` they
    are sums, without ``manifest``, and ``sources`` lists those of each. The same facts are the ``extra`` of
    the events of outlet assets.

    :param collection_task_id: the service's task. (templated)
    :param lotno: one batch of it; None for the whole history. (templated)
    :param sources: instead of both, many sources at once: ids of tasks, or dicts of ``collection_task_id``
        and, as needed, ``lotno`` and ``destination``. Each goes to a folder of its own, by default
        ``<destination>/<task>`` or ``<destination>/<task>/<batch>``. One that fails does not stop the others;
        a retry lands those that are missing. (templated)
    :param destination: a folder of its own, such as ``s3://bucket/prices/{{ ds }}``, or an
        ``ObjectStoragePath``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage; None for its default credentials.
        (templated)
    :param file_format: ``jsonl``, ``csv`` or ``parquet``; and ``compression``, ``columns``, ``column_types``,
        ``on_cast_error``, ``sanitize_formulas``: see
        :func:`~airflow_provider_webcollect.landing.formats.make_format`. (templated)
    :param mode: ``full`` lands all rows in a folder for this run; ``incremental`` adds what is new to one
        growing landing. (templated)
    :param on_reset: for ``incremental``, if the source was emptied or has lost rows: ``fail``, or ``full`` to
        land all of it anew. (templated)
    :param skip_if_nothing_new: for ``incremental``: end as skipped if there is nothing new.
    :param if_exists: for ``full``: what to do if the folder holds the commit of another run: ``fail``,
        ``overwrite`` (it stays readable until the new one is complete) or ``skip``. (templated)
    :param mark_exported: confirm the export to the service, after the commit; the service confirms a whole
        task, whatever batch was landed.
    :param page_size: rows per request, 1 to 1000; fewer are asked for while pages fail for their size.
    :param max_part_bytes: a part is ended with the page that reaches this size.
    :param max_concurrency: how many ``sources`` are landed at once, 1 to 32; all share its rate limit.
    :param settle: seconds to wait for rows that the source may not show yet, as right after a task has
        finished. A run takes so much longer if the source shows no rows, if ``mode="incremental"`` finds
        nothing new, and, with ``mark_exported``, before every mark; 0 does not wait. A ``full`` landing of
        the whole history without a mark takes a source that shows older batches as it is: give ``lotno`` to
        wait for the rows of one.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    """

    template_fields: Sequence[str] = (
        "collection_task_id",
        "lotno",
        "sources",
        "destination",
        "object_storage_conn_id",
        "file_format",
        "compression",
        "columns",
        "column_types",
        "on_cast_error",
        "mode",
        "on_reset",
        "if_exists",
        "webcollect_conn_id",
    )
    template_fields_renderers = {  # noqa: RUF012  # as Airflow declares it
        "sources": "json",
        "columns": "json",
        "column_types": "json",
    }
    ui_color = "#d7ecdf"
    operator_extra_links = (WebCollectTaskLink(), WebCollectExportLink())

    def __init__(
        self,
        *,
        collection_task_id: str | None = None,
        lotno: str | None = None,
        sources: Sequence[str | Mapping[str, Any]] | None = None,
        destination: str | ObjectStoragePath,
        object_storage_conn_id: str | None = None,
        file_format: str = "jsonl",
        compression: str | None = None,
        columns: Sequence[str] | None = None,
        column_types: Mapping[str, str] | None = None,
        on_cast_error: OnCastError = "fail",
        sanitize_formulas: bool = False,
        mode: Mode = "full",
        on_reset: OnReset = "fail",
        skip_if_nothing_new: bool = False,
        if_exists: IfExists = "fail",
        mark_exported: bool = False,
        page_size: int = MAX_DATA_SIZE,
        max_part_bytes: int = MAX_PART_BYTES,
        max_concurrency: int = 8,
        settle: float = 15.0,
        webcollect_conn_id: str = WebCollectHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.collection_task_id = collection_task_id
        self.lotno = lotno
        self.sources = sources
        self.destination = destination
        self.object_storage_conn_id = object_storage_conn_id
        self.file_format = file_format
        self.compression = compression
        self.columns = columns
        self.column_types = column_types
        self.on_cast_error = on_cast_error
        self.sanitize_formulas = sanitize_formulas
        self.mode = mode
        self.on_reset = on_reset
        self.skip_if_nothing_new = skip_if_nothing_new
        self.if_exists = if_exists
        self.mark_exported = mark_exported
        self.page_size = page_size
        self.max_part_bytes = max_part_bytes
        self.max_concurrency = max_concurrency
        self.settle = settle
        self.webcollect_conn_id = webcollect_conn_id
        self._moved: list[lineage.Moved] = []
        respect_retry_after(self)
        check_now(self, self._check)

    def _check(self) -> None:
        self._places()
        self._format()
        validation.integer("page_size", self.page_size, 1, MAX_DATA_SIZE)
        validation.integer("max_part_bytes", self.max_part_bytes, 1)
        validation.integer("max_concurrency", self.max_concurrency, 1, MOST_AT_ONCE)
        validation.seconds("settle", self.settle, may_be_zero=True)
        self._check_mode()

    def _check_mode(self) -> None:
        _one_of("if_exists", self.if_exists, ("fail", "overwrite", "skip"))
        _one_of("mode", self.mode, ("full", "incremental"))
        _one_of("on_reset", self.on_reset, ("fail", "full"))
        validation.boolean("mark_exported", self.mark_exported)
        validation.boolean("skip_if_nothing_new", self.skip_if_nothing_new)
        if self.mode == "incremental" and self.if_exists != "fail":
            raise InvalidArgument("if_exists", self.if_exists, "it goes with mode='full' alone")
        if self.mode == "full" and self.on_reset != "fail":
            raise InvalidArgument("on_reset", self.on_reset, "it goes with mode='incremental' alone")
        if self.mode == "full" and self.skip_if_nothing_new:
            raise InvalidArgument("skip_if_nothing_new", True, "it goes with mode='incremental' alone")

    def _places(self) -> list[Place]:
        """Return what goes where."""
        if not hasattr(self.destination, "fs"):
            validation.text("destination", self.destination)
        if self.sources is None:
            return [Place(make_source(self.collection_task_id, self.lotno), self.destination)]
        for name in ("collection_task_id", "lotno"):
            if getattr(self, name) is not None:
                raise InvalidArgument(name, getattr(self, name), "it cannot be given beside `sources`")
        return places(self.sources, self.destination)

    def _format(self) -> FileFormat:
        return make_format(
            self.file_format,
            self.compression or None,
            self.columns or None if isinstance(self.columns, str) else self.columns,
            self.column_types,
            self.on_cast_error,
            self.sanitize_formulas,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Land the rows and return the summary."""
        began = time.monotonic()
        with airflow_errors():
            self._check()
            hook = WebCollectHook(self.webcollect_conn_id)
            store_task_link(context, hook, self.collection_task_id)
            store_export_link(context, hook, self._path(self.destination))
            found = self._land(context, hook.client)
        self._moved = [lineage.report(hook, landed, self._path(landed.place.folder)) for landed in found]
        if self.sources is not None:
            facts = reporting.totals_of(self.destination, found, began)
        else:
            facts = found[0].summary()
        if self.sources is None and self.mode == "incremental":
            reporting.store_cursor(context, self.outlets, found[0].manifest.next_offset)
        reporting.tell_outlets(context, self.outlets, facts)
        if self.skip_if_nothing_new and not facts["rows"]:
            from airflow.providers.common.compat.sdk import AirflowSkipException

            raise AirflowSkipException(f"Nothing new for {self.destination}")
        return facts

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return which collection tasks went into which folders, for OpenLineage."""
        return lineage.to_openlineage(self._moved)

    def _land(self, context: Context, client: Client) -> list[Landed]:
        from airflow_provider_webcollect.landing.many import land_all

        wanted = self._places()
        watches = [reporting.Watch(self.log) for _ in wanted]
        jobs = {
            f"{place.source} to {place.folder}": functools.partial(
                self._land_one, client, place, self._destination(place), _run(context), watch
            )
            for place, watch in zip(wanted, watches, strict=True)
        }
        found: list[Landed] = []
        try:
            if self.sources is None:
                found.extend(job(None) for job in jobs.values())
            else:
                for watch, place in zip(watches, wanted, strict=True):
                    watch.name = f"{place.source}: "
                found.extend(land_all(jobs, int(self.max_concurrency)).values())
        finally:
            reporting.count(found, watches)
        return found

    def _land_one(
        self,
        client: Client,
        place: Place,
        destination: Destination,
        run: Run,
        watch: reporting.Watch,
        stop: threading.Event | None,
    ) -> Landed:
        from airflow_provider_webcollect.landing.engine import Landing, land
        from airflow_provider_webcollect.landing.pages import late_pages
        from airflow_provider_webcollect.service.api.endpoints import mark_exported

        task_id = place.source.collection_task_id
        began = time.monotonic()
        watch.stop = stop
        pages = functools.partial(self._pages, client, place.source, watch)
        manifest = land(
            Landing(
                source=place.source,
                destination=destination,
                run=run,
                pages=functools.partial(pages, self.settle),
                late=functools.partial(late_pages, functools.partial(pages, 0.0), settle=self.settle),
                file_format=self._format(),
                mode=self.mode,
                on_reset=self.on_reset,
                if_exists=self.if_exists,
                mark=(lambda: client.send(mark_exported(task_id))) if self.mark_exported else None,
                max_part_bytes=int(self.max_part_bytes),
                advanced=watch.advanced,
            )
        )
        self.log.info(
            "%s: %d rows in %d parts at %s", place.source, manifest.rows, len(manifest.parts), place.folder
        )
        return Landed(place, manifest, self.mode, manifest.run == run, time.monotonic() - began)

    def _path(self, folder: str | ObjectStoragePath) -> ObjectStoragePath:
        return storage_path(folder, self.object_storage_conn_id)

    def _destination(self, place: Place) -> Destination:
        from airflow_provider_webcollect.landing.destination import Destination

        path = self._path(place.folder)
        return Destination(path.fs, path.path)

    def _pages(
        self, client: Client, source: Source, watch: reporting.Watch, settle: float, offset: int, rows: int
    ) -> Iterator[DataPage]:
        from airflow_provider_webcollect.landing.pages import all_pages
        from airflow_provider_webcollect.service.client.paging import PageReader

        reader = PageReader(
            client, source.collection_task_id, source.lotno, size=int(self.page_size), sent=watch.sent
        )

        def read(start: int) -> Iterator[DataPage]:
            left = 1
            while left > 0:
                page = reader.read(start)
                watch.pages += 1
                yield page
                start, left = page.offset, page.rest_total

        return all_pages(read, offset, rows, settle=settle)


def _one_of(argument: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgument(argument, value, f"it must be one of {', '.join(choices)}")


def _run(context: Context) -> Run:
    from airflow_provider_webcollect.landing.manifest import Run

    ti = context["ti"]
    return Run(
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )
