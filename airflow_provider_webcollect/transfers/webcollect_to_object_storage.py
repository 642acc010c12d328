"""Moves collected rows to object storage, exactly once."""

from __future__ import annotations

import datetime
import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.providers.common.compat.sdk import AirflowSkipException, AssetAlias, BaseOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.assets import landing_asset, storable
from airflow_provider_webcollect.collection_tasks import check_names, named_tasks, task_id_of, task_of
from airflow_provider_webcollect.common import (
    airflow_errors,
    check_at_parse,
    errors_about,
    is_expanded_instance,
    is_literal,
    metric_tags,
    refuse_beside,
)
from airflow_provider_webcollect.hooks.storage import AirflowConnections, supported
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.checks import OnFailedChecks
from airflow_provider_webcollect.landing.formats import OnCastError, require
from airflow_provider_webcollect.landing.location import (
    ICEBERG_DEFAULT,
    Location,
    TableFormat,
    refuse_overlaps,
)
from airflow_provider_webcollect.landing.options import (
    INCREMENTAL_ALONE,
    LATE_ROWS_DELAY,
    MAX_PART_BYTES,
    IfExists,
    Mode,
    OnReset,
    SourceOptions,
)
from airflow_provider_webcollect.links import (
    WebCollectExportLink,
    WebCollectTaskLink,
    store_export_link,
    store_task_link,
)
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.threads import Stop

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_webcollect.landing.log.commits import Source
    from airflow_provider_webcollect.landing.write.job import Job
    from airflow_provider_webcollect.service.client import Client
    from airflow_provider_webcollect.transfers.reporting import LandingReport

__all__ = ["WebCollectToObjectStorageOperator"]

#: Maximum number of sources that can be landed at once.
MOST_AT_ONCE = 32
#: Maximum number of characters of a partition key, as Airflow stores it.
LONGEST_KEY = 250
#: The keys that an entry of ``sources`` can have.
_KEYS = ("collection_task_id", "lotno", "destination", *SourceOptions.__struct_fields__)


class Target(msgspec.Struct, frozen=True):
    """A source, and where its rows land.

    :ivar own: the options of these rows alone, not parsed yet, in place of the operator's.
    :ivar name: of the entry of ``sources``, for errors.
    """

    source: Source
    location: Location
    own: Mapping[str, Any] = {}
    name: str = ""

    @classmethod
    def of(cls, task_id: str, argument: str, lotno: Any, location: Location, **own: Any) -> Target:
        """Return the target of a checked task id and a batch; an empty batch number means no batch.

        :param argument: the name of the batch's argument, for errors.
        :param own: as :attr:`own` and :attr:`name`.
        """
        from airflow_provider_webcollect.landing.log.commits import Source

        batch = None if lotno is None or lotno == "" else arguments.text(argument, lotno)
        return cls(Source(collection_task_id=task_id, lotno=batch), location, **own)


def _run_began(context: Context) -> datetime.datetime | None:
    """Return when a run began, or later if it can have landed nothing before; None if that is not known."""
    if context["ti"].try_number <= 1:
        return datetime.datetime.now(datetime.UTC)
    run: Any = context.get("dag_run")
    # clearing a run changes the time of its start
    return getattr(run, "run_after", None) or getattr(run, "logical_date", None)


class WebCollectToObjectStorageOperator(BaseOperator):
    """Moves a task's rows to a folder on object storage, exactly once (contract.md, endpoints 17, 18 and 19).

    The folder gets ``part-….jsonl`` files, a commit, which counts them in, and, written last,
    ``_manifest.json``, which lists them: readers use only the files in the manifest. A retry continues after
    the last part that was recorded, which happens once a second; a retry after the commit changes nothing.
    Rows are never all in memory.

    All runs of a DAG share one ``destination``: each run adds the new rows. A batch (``lotno``), or with
    ``mode="full"`` the whole history, is landed in a folder for this run alone.

    Returns a dict:

    * ``collection_task_name``: None if it is not known.
    * ``destination``, ``manifest``: the destination as it was given, and the landing's manifest.
    * ``commit``: the number of the landing's last commit, with which a consumer can say what it has seen:
      ``read_landing(…).uris(since=…)`` names what came after it.
    * ``rows``, ``bytes``, ``parts``: of the landing; if it is incremental, of what this run has landed, and
      ``total_rows`` of all.
    * ``usual_rows``: the median of the last ten runs that have landed rows there; None if there are fewer
      than four.
    * ``quarantined_rows``: rows of this run that wait for a person's decision; ``quarantined`` has the
      numbers of the commits that have quarantined them. ``waiting`` is about all such rows of the landing.
    * ``filled``: by column, the share of the rows that have a value, 0 to 1.
    * ``checks``: the outcome of each check of this run's rows.
    * ``missing_inputs``: ``{"count", "inputs"}``, with the first 1,000 inputs without a row; None if they are
      not known, or not checked.
    * ``changes``, with ``whole_runs_key``: how many keys are ``new``, ``changed`` and ``gone``.
    * ``uris``, ``objects``: the parts that this run has landed, in any of its attempts, with and without
      scheme and bucket; None if there are more than 1,000. ``read_landing(…).uris(new_only=run_id)`` has all.
    * ``duration``: seconds.
    * ``sources``, if there are several: the result of each. Numbers are then sums, ``uris`` and ``objects``
      have all, and the other keys of one landing are left out.

    The ``extra`` of the events of outlet assets has the same contents, see
    :class:`~airflow_provider_webcollect.assets.LandingEvent`.

    Without ``outlets``, the outlet is an asset of the destination, if that is no template and the task is not
    mapped. With ``sources``, an outlet that is the asset of a source's folder gets the event of a landing of
    that source alone; other outlets get that of all sources.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param lotno: one batch of it; None for the whole history. (templated)
    :param sources: several sources at once, instead of the two arguments above: ids or names of tasks, or
        dicts of ``collection_task_id`` and, as needed, ``lotno``, ``destination``, ``whole_runs_key`` and the
        options of :class:`~airflow_provider_webcollect.landing.options.LandOptions`, in place of the
        arguments below. Each has its own folder, by default ``<destination>/<task>`` or
        ``<destination>/<task>/<batch>``, where ``<task>`` is the name, if the source has one, otherwise the
        id. If one fails, the others continue; a retry lands those that are missing. (templated)
    :param collection_task_names: what logs, errors, results, events and lineage call the tasks: names by id,
        before those of the file. They name no folders. (templated)
    :param destination: a folder used only by this landing, such as ``s3://bucket/prices``, or an
        ``ObjectStoragePath``; for a table of Iceberg its name, ``catalog.namespace.table``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage; None for its default credentials.
        (templated)
    :param table_format: ``delta`` makes the destination a table of Delta Lake (the extra ``delta``), on a
        disk, S3, Azure or Google Cloud Storage; ``iceberg`` one of Apache Iceberg (the extra ``iceberg``),
        where its catalog says; None (default) a folder with a manifest. Readers of the table see a commit
        once the table has it, too. New columns are added to the table. ``partition`` gives a Delta table its
        partition columns, which stay the same; for Iceberg there is none. (templated)
    :param iceberg_conn_id: the Airflow connection of Iceberg's catalog, which also gives the storage's
        credentials. The namespace must be there; the table is made if it is not. (templated)
    :param file_format: ``jsonl`` (default), ``csv`` or ``parquet``, the default of tables, which take no
        other; this and the next five are explained at
        :func:`~airflow_provider_webcollect.landing.formats.make_format`. (templated)
    :param compression: ``none``, ``gzip``, ``zstd`` or, for Parquet, ``snappy``; None for the format's own
        default. (templated)
    :param columns: the columns, in order; None for all keys of the rows. (templated)
    :param column_types: what texts mean, by column; columns without a type are strings. (templated)
    :param on_cast_error: if a value does not fit its column's type: ``fail`` (default) or ``null``.
        (templated)
    :param sanitize_formulas: for CSV: put ``'`` before values that a spreadsheet would read as a formula.
    :param mode: ``incremental`` adds new rows to one growing landing; ``full`` lands all rows in a folder for
        this run; None (default) means ``full`` for a source with ``lotno``, and ``incremental`` for others.
        (templated)
    :param on_reset: for ``incremental``, if the source was emptied or has lost rows: ``fail`` (default);
        ``full`` to land everything again, in the place of what is landed; ``append`` to keep that and add all
        rows of the source. (templated)
    :param skip_if_nothing_new: for ``incremental``: skip the task if this run has landed nothing, also if a
        run before has failed after its commit.
    :param if_exists: for ``full``, if the folder holds the commit of another run: ``fail`` (default),
        ``overwrite`` (it stays readable until the new one is complete) or ``skip``. (templated)
    :param partition: subfolders of the destination for this run's new parts, such as
        ``dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }}``; the manifest stays where it is.
        See :func:`~airflow_provider_webcollect.landing.options.check_partition`. (templated)
    :param mark_exported: confirm the export to the service after the commit; the service confirms a whole
        task, whichever batch was landed.
    :param page_size: rows per request, 1 to 1000 (default); fewer are requested while pages fail because of
        their size.
    :param max_part_bytes: a part ends with the page that reaches this size; by default 128 MiB.
    :param max_concurrency: how many ``sources`` are landed at once, 1 to 32, by default 8; all share one rate
        limit.
    :param late_rows_delay: seconds, 15 by default, to wait for rows that the source may not show yet, for
        example right after a task has finished; 0 does not wait. The run takes that much longer if the source
        shows no rows, if an incremental landing finds nothing new (``sources`` wait for that together, from
        the beginning of the task on), and, with ``mark_exported``, before every mark.
        A ``full`` landing of the whole history without a mark does not wait if the source shows older
        batches: set ``lotno`` to wait for the rows of one batch.
    :param checks: what the rows of a run must be before they are committed, such as ``{"rows": {"min": 100,
        "min_of_usual": 0.5}, "columns": {"price": {"filled": 0.95}}, "missing_columns": "fail"}``; see
        :func:`~airflow_provider_webcollect.landing.checks.make_checks`. (templated)
    :param on_failed_checks: ``fail`` (default) quarantines the rows of the run, and fails the task without
        retries; ``quarantine`` quarantines them, and the task succeeds; ``warn`` lands them, with a warning.
        Quarantined rows wait for a person's decision; nothing is marked meanwhile, and the next run continues
        after them. Rows with which the landing would begin again (``mode="full"``, ``on_reset="full"``)
        replace nothing until somebody accepts them. (templated)
    :param whole_runs_key: for ``incremental``, if each run collects everything: the column, or columns, that
        tell its rows apart. After the commit, the task counts how many of these keys are ``new``, ``changed``
        or ``gone`` since the whole run before; result and events have that as ``changes``. It is None for a
        run of which rows failed their checks, or which has found nothing new, and also if counting fails:
        then the log has a warning, and the landing succeeds. Needs the extra ``duckdb``. (templated)
    :param asset_partition: the partition key of the outlets' events, such as a day, for consumers with a
        ``PartitionedAssetTimetable``: they run once all their assets have an event with one key. At most 250
        characters; from Airflow 3.3 on, with an outlet, without ``skip_if_nothing_new``. None (default) gives
        them no key but that of the DAG run, if it has one. An event with a key does not trigger DAGs with
        plain ``schedule=[asset]``. (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help (docs/reference/errors.md).
    :raises AirflowSkipException: with ``skip_if_nothing_new``, if there is nothing new.
    :raises LandingError: for any other error of the landing; the task is retried.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = (
        "collection_task_id",
        "lotno",
        "sources",
        "collection_task_names",
        "destination",
        "object_storage_conn_id",
        "table_format",
        "iceberg_conn_id",
        "file_format",
        "compression",
        "columns",
        "column_types",
        "on_cast_error",
        "mode",
        "on_reset",
        "if_exists",
        "partition",
        "checks",
        "on_failed_checks",
        "whole_runs_key",
        "asset_partition",
        "webcollect_conn_id",
    )
    template_fields_renderers = {  # noqa: RUF012  # as Airflow declares it
        "sources": "json",
        "collection_task_names": "json",
        "columns": "json",
        "column_types": "json",
        "checks": "json",
        "whole_runs_key": "json",
    }
    ui_color = "#d7ecdf"
    operator_extra_links = (WebCollectTaskLink(), WebCollectExportLink())

    def __init__(
        self,
        *,
        collection_task_id: str | None = None,
        lotno: str | None = None,
        sources: Sequence[str | Mapping[str, Any]] | None = None,
        collection_task_names: Mapping[str, str] | None = None,
        destination: str | ObjectStoragePath,
        object_storage_conn_id: str | None = None,
        table_format: TableFormat | None = None,
        iceberg_conn_id: str = ICEBERG_DEFAULT,
        file_format: str | None = None,
        compression: str | None = None,
        columns: Sequence[str] | None = None,
        column_types: Mapping[str, str] | None = None,
        on_cast_error: OnCastError = "fail",
        sanitize_formulas: bool = False,
        mode: Mode | None = None,
        on_reset: OnReset = "fail",
        skip_if_nothing_new: bool = False,
        if_exists: IfExists = "fail",
        partition: str | None = None,
        mark_exported: bool = False,
        page_size: int = MAX_DATA_SIZE,
        max_part_bytes: int = MAX_PART_BYTES,
        max_concurrency: int = 8,
        late_rows_delay: float = LATE_ROWS_DELAY,
        checks: Mapping[str, Any] | None = None,
        on_failed_checks: OnFailedChecks = "fail",
        whole_runs_key: str | Sequence[str] | None = None,
        asset_partition: str | None = None,
        webcollect_conn_id: str = WebCollectHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.collection_task_id = collection_task_id
        self.lotno = lotno
        self.sources = sources
        self.collection_task_names = collection_task_names
        self.destination = destination
        self.object_storage_conn_id = object_storage_conn_id
        self.table_format = table_format
        self.iceberg_conn_id = iceberg_conn_id
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
        self.partition = partition
        self.mark_exported = mark_exported
        self.page_size = page_size
        self.max_part_bytes = max_part_bytes
        self.max_concurrency = max_concurrency
        self.late_rows_delay = late_rows_delay
        self.checks = checks
        self.on_failed_checks = on_failed_checks
        self.whole_runs_key = whole_runs_key
        self.asset_partition = asset_partition
        self.webcollect_conn_id = webcollect_conn_id
        self._reported: list[LandingReport] = []
        check_at_parse(self, self._check)
        if not self.outlets and not is_expanded_instance(self) and is_literal(destination):
            self.outlets = [asset for asset in [landing_asset(destination)] if asset]
        # whatever is a template
        check_at_parse(self, self._check_outlets, ())
        check_at_parse(self, self._check_asset_partition, ())
        check_at_parse(self, self._partition_key, ("asset_partition",))

    def _check(self) -> None:
        check_names(self.collection_task_names)
        modes = {self._options(target).mode for target in self._targets()}
        if self.table_format == "iceberg" and self.object_storage_conn_id:
            rule = "the catalog has the place and the credentials of a table of Iceberg"
            raise InvalidArgument("object_storage_conn_id", self.object_storage_conn_id, rule)
        arguments.integer("max_concurrency", self.max_concurrency, 1, MOST_AT_ONCE)
        if arguments.boolean("skip_if_nothing_new", self.skip_if_nothing_new) and "full" in modes:
            raise InvalidArgument("skip_if_nothing_new", True, INCREMENTAL_ALONE)

    def _check_outlets(self) -> None:
        """Refuse an alias where Airflow fails the task after the landing, since its events have no lists."""
        aliases = [outlet for outlet in self.outlets if isinstance(outlet, AssetAlias)]
        if aliases and not AIRFLOW_V_3_0_PLUS:
            rule = "a landing's events have lists, which Airflow takes from an alias from 3.0 on"
            raise InvalidArgument("outlets", aliases[0], rule)

    def _check_asset_partition(self) -> None:
        """Refuse a partition key, whatever its value, where the task's events can have none."""
        if self.asset_partition is None:
            return
        if not AIRFLOW_V_3_3_PLUS:
            rule = "Airflow has partitions of assets from 3.3 on"
        elif self.skip_if_nothing_new:
            rule = "a task that `skip_if_nothing_new` skips makes no event"
        elif not any(hasattr(outlet, "uri") for outlet in self.outlets):
            rule = "the task has no asset as an outlet, whose event gets it: set `outlets`"
        else:
            return
        raise InvalidArgument("asset_partition", self.asset_partition, rule)

    def _partition_key(self) -> str | None:
        """Return the partition key of the task's events; None for none of their own."""
        self._check_asset_partition()
        if self.asset_partition is None:
            return None
        key = storable(arguments.text("asset_partition", self.asset_partition))
        if len(key) > LONGEST_KEY:
            rule = f"it must be at most {LONGEST_KEY} characters, not {len(key)}"
            raise InvalidArgument("asset_partition", key, rule)
        return key

    def _targets(self) -> list[Target]:
        """Return each source with where its rows land; no two folders overlap.

        :raises InvalidArgument: if a source is wrong, two of them share a folder, or two of them, one with
            the name and one with the id of the same task, have no destination.
        """
        location = self._location("destination", self.destination)
        if self.sources is None:
            if self.collection_task_id is None:
                raise InvalidArgument(
                    "collection_task_id", None, "either `collection_task_id` or `sources` must be given"
                )
            task_id = task_id_of("collection_task_id", self.collection_task_id)
            return [Target.of(task_id, "lotno", self.lotno, location)]
        refuse_beside("sources", self, ("collection_task_id", "lotno"))
        entries = arguments.items("sources", self.sources)
        names = [f"sources[{index}]" for index in range(len(entries))]
        targets = [self._target(name, entry, location) for name, entry in zip(names, entries, strict=True)]
        refuse_overlaps(names, [target.location for target in targets])
        firsts: dict[tuple[str, str | None], int] = {}
        for index, (entry, target) in enumerate(zip(entries, targets, strict=True)):
            if isinstance(entry, Mapping) and entry.get("destination") is not None:
                continue
            source = target.source.collection_task_id.lower(), target.source.lotno
            if (first := firsts.setdefault(source, index)) != index:
                rule = f"it is of the same task as sources[{first}]; give one its own `destination`"
                raise InvalidArgument(names[index], entry, rule)
        return targets

    def _target(self, name: str, entry: object, of_all: Location) -> Target:
        """Return an entry of ``sources`` with where its rows land: in a folder of its own by default."""
        if isinstance(entry, str | int):
            entry = {"collection_task_id": entry}
        if not isinstance(entry, Mapping):
            raise InvalidArgument(name, entry, "it must be the id or name of a task, or a dict")
        if unknown := [key for key in entry if key not in _KEYS]:
            raise InvalidArgument(name, unknown, f"its keys can be {', '.join(_KEYS)}")
        task = task_of(f"{name}.collection_task_id", entry.get("collection_task_id"))
        own = {
            key: value
            for key, value in entry.items()
            if key in SourceOptions.__struct_fields__ and value is not None
        }
        target = Target.of(task.id, f"{name}.lotno", entry.get("lotno"), of_all, own=own, name=name)
        if (folder := entry.get("destination")) is not None or self.table_format == "iceberg":
            location = self._location(f"{name}.destination", folder)
        else:
            location = of_all.child(name, task.name, target.source.lotno)
        return msgspec.structs.replace(target, location=location)

    def _location(self, argument: str, value: Any) -> Location:
        conn_id = self.object_storage_conn_id
        if self.table_format == "iceberg":
            conn_id = arguments.text("iceberg_conn_id", self.iceberg_conn_id)
        table_format = self.table_format or None
        if argument != "destination" and table_format != "iceberg":
            # a source may name a connection of its own
            conn_id = Location.parse(argument, value, table_format=table_format).conn_id or conn_id
        return supported(
            argument, Location.parse(argument, value, conn_id=conn_id, table_format=table_format)
        )

    def _options(self, target: Target) -> SourceOptions:
        given = {name: getattr(self, name) for name in SourceOptions.__struct_fields__}
        lotno, table_format = target.source.lotno, self.table_format or None
        with arguments.inside(target.name if target.own else ""):
            options = SourceOptions.parse({**given, **target.own}, lotno=lotno, table_format=table_format)
            if options.partition and table_format == "iceberg":
                rule = "a landing adds no partitions to a table of Iceberg"
                raise InvalidArgument("partition", options.partition, rule)
            return options

    def execute(self, context: Context) -> dict[str, Any]:
        """Land the rows and return the summary."""
        from airflow_provider_webcollect.landing.write.run import land_all
        from airflow_provider_webcollect.service.client import Client
        from airflow_provider_webcollect.transfers import reporting

        began = time.monotonic()
        # whatever ends this task also stops its threads
        with airflow_errors(), Stop() as stop:
            self._check()
            partition_key = self._partition_key()
            hook = WebCollectHook(self.webcollect_conn_id)
            store_task_link(context, hook, self.collection_task_id)
            if self.table_format != "iceberg":
                store_export_link(context, hook, self._location("destination", self.destination))
            client = Client(hook.client.context, stop=stop)
            # in this thread, since only here Airflow provides the connections
            landings = self._landings(client, context, began)
            reports = [report for report, _ in landings]
            if any(report.options.whole_runs_key for report in reports):
                require("duckdb", "duckdb", "whole_runs_key")
            try:
                if self.sources is None:
                    with errors_about(reports[0].name, reports[0].source.collection_task_id):
                        self._land_one(*landings[0])
                else:
                    jobs = {
                        f"{report.called} to {report.location.text}": (
                            functools.partial(self._land_one, report, job)
                        )
                        for report, job in landings
                    }
                    land_all(jobs, int(self.max_concurrency))
                # one after another, since each takes DuckDB's memory
                for report, job in landings:
                    if report.options.whole_runs_key:
                        report.count_changes(job.folder)
            finally:
                # what has failed its checks says so, too
                self._reported = [report for report in reports if report.landed or report.checks]
                for report in self._reported:
                    report.report_lineage(hook)
                if self.sources is not None:
                    reporting.log_sums(self.log, reports)
            facts = storable(
                reporting.totals_of(self.destination, reports, began)
                if self.sources is not None
                else reports[0].summary(reporting.are_listed(reports))
            )
            is_table = self.table_format == "iceberg"
            conn_id = self.iceberg_conn_id if is_table else self.object_storage_conn_id or None
            connections = {"webcollect_conn_id": self.webcollect_conn_id, "object_storage_conn_id": conn_id}
            reporting.report_to_outlets(
                context, self.outlets, connections, reports[0].source, facts, partition_key
            )
        if self.skip_if_nothing_new and not facts["rows"] and not facts["quarantined_rows"]:
            of = f" of {reports[0].called}" if self.sources is None else ""
            raise AirflowSkipException(f"Nothing new{of} for {self.destination}")
        return facts

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the tasks and folders of the completed landings for OpenLineage, even if others failed."""
        from airflow_provider_webcollect.transfers.reporting import to_openlineage

        return to_openlineage(self._reported)

    #: Those of a task that has failed, as for checks that have, are the same.
    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete

    def _landings(self, client: Client, context: Context, began: float) -> list[tuple[LandingReport, Job]]:
        """Return the landings, none of which has begun, and what will report each."""
        from airflow_provider_webcollect.landing.log.commits import Run
        from airflow_provider_webcollect.landing.write.job import job_of
        from airflow_provider_webcollect.transfers.reporting import LandingReport

        ti = context["ti"]
        run = Run(
            dag_id=ti.dag_id,
            task_id=ti.task_id,
            run_id=ti.run_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
        )
        targets, connected = self._targets(), AirflowConnections()
        shared: dict[str, Any] = {
            "log": self.log,
            "client": client.context,
            "tags": metric_tags(self.webcollect_conn_id, context.get("dag_run")),
            "sources": len(targets),
            "ended": itertools.count(1),
        }
        ids = [target.source.collection_task_id for target in targets]
        names = named_tasks(ids, self.collection_task_names)
        landings = []
        for target in targets:
            folder, files = target.location.open(connected, is_made=True), target.location
            if files.kind == "iceberg":
                # its catalog says where they are
                files = Location("folder", str(folder.fs.unstrip_protocol(folder.root)))
            options = self._options(target)
            source = target.source
            name = names.get(source.collection_task_id)
            report = LandingReport(source, name, target.location, files, run, options, **shared)
            job = job_of(
                client,
                source,
                folder,
                run,
                options,
                called=report.called,
                run_began=_run_began(context),
                began=began,
                observer=report,
            )
            landings.append((report, job))
        return landings

    def _land_one(self, report: LandingReport, job: Job) -> None:
        from airflow_provider_webcollect.landing.write.run import run_job

        with report.ending():
            report.landed = run_job(job)
