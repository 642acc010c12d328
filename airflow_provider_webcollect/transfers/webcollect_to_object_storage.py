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

from airflow_provider_webcollect.assets import is_asset, landing_asset, storable
from airflow_provider_webcollect.collection_tasks import check_names, named_tasks, task_id_of, task_of
from airflow_provider_webcollect.common import (
    airflow_errors,
    check_at_parse,
    errors_about,
    is_expanded_instance,
    is_literal,
    metric_tags,
    refuse_beside,
    replace_iterators,
)
from airflow_provider_webcollect.hooks.storage import AirflowConnections, require_supported
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
#: The valid keys of an entry of ``sources``.
_KEYS = ("collection_task_id", "lotno", "destination", *SourceOptions.__struct_fields__)
#: The options that an entry of ``sources`` can unset with None.
_CAN_BE_NONE = {
    "whole_runs_key",
    *(field.name for field in msgspec.structs.fields(SourceOptions) if field.default is None),
}


class Target(msgspec.Struct, frozen=True):
    """A source, and the location where its rows land.

    :ivar own: options of this source alone, not parsed yet; they replace the operator's options.
    :ivar name: the entry's name, such as ``sources[0]``, for errors; empty without ``sources``.
    """

    source: Source
    location: Location
    own: Mapping[str, Any] = {}
    name: str = ""

    @classmethod
    def of(cls, task_id: str, argument: str, lotno: Any, location: Location, **own: Any) -> Target:
        """Return the target for a checked task id and an optional batch.

        :param argument: the name of the argument ``lotno``, for errors.
        :param lotno: the batch number; None or an empty text for the whole history.
        :param own: values of :attr:`own` and :attr:`name`.
        """
        from airflow_provider_webcollect.landing.log.commits import Source

        batch = None if lotno is None or lotno == "" else arguments.text(argument, lotno)
        return cls(Source(collection_task_id=task_id, lotno=batch), location, **own)


def _run_began(context: Context) -> datetime.datetime | None:
    """Return a time before which the DAG run cannot have landed anything; None if it is not known."""
    if context["ti"].try_number <= 1:
        return datetime.datetime.now(datetime.UTC)
    run: Any = context.get("dag_run")
    # not `start_date`, which changes when the run is cleared
    return getattr(run, "run_after", None) or getattr(run, "logical_date", None)


class WebCollectToObjectStorageOperator(BaseOperator):
    """Moves a task's rows to a folder on object storage, exactly once (contract.md, endpoints 17, 18 and 19).

    The task writes ``part-….jsonl`` files to the folder, then a commit, with which the files count as landed,
    and finally ``_manifest.json``, which lists them. Readers use only the files in the manifest. Parts are
    recorded once a second, and a retry continues after the last recorded part; a retry after the commit
    changes nothing. The rows are never all in memory at once.

    All runs of a DAG share one ``destination``, and each run adds the new rows. However, a batch (``lotno``)
    and, with ``mode="full"``, the whole history are landed in a folder that only this run uses.

    Returns a dict:

    * ``collection_task_name``: the task's name; None if it is not known.
    * ``destination``, ``manifest``: the destination as it was given, and the landing's manifest (for a table,
      the table).
    * ``commit``: the number of the landing's last commit. A consumer can store it to mark what it has read:
      ``read_landing(…).uris(since=…)`` returns the parts of later commits.
    * ``rows``, ``bytes``, ``parts``: the size of the landing; for an incremental landing, the size of what
      this run has landed, with ``total_rows`` for the whole landing.
    * ``usual_rows``: the median number of rows of the last ten runs that have landed rows there; None if
      there are fewer than four such runs.
    * ``quarantined_rows``: the number of this run's quarantined rows; ``quarantined`` has the numbers of the
      commits that have quarantined them. ``waiting`` lists the quarantined rows of all runs, by commit, for
      at most 100 commits.
    * ``filled``: by column, the share of the rows that have a value, 0 to 1.
    * ``checks``: the outcome of each check of this run's rows.
    * ``missing_inputs``: ``{"count", "inputs"}``, the number of inputs without a row and the first 1,000 of
      these inputs; None if they are not known, or not checked.
    * ``changes``, with ``whole_runs_key``: the number of ``new``, ``changed`` and ``gone`` keys.
    * ``uris``, ``objects``: the parts that this run has landed, in any of its attempts, with and without
      scheme and bucket; None if there are more than 1,000. ``read_landing(…).uris(new_only=run_id)`` returns
      all of them.
    * ``duration``: the duration of the landing in seconds.
    * ``sources``, if the argument ``sources`` is set: a list with the result of each source. Numbers are then
      sums, ``uris`` and ``objects`` have the parts of all sources, and the other keys of a single landing are
      left out.

    The ``extra`` of the events of outlet assets has the same contents, see
    :class:`~airflow_provider_webcollect.assets.LandingEvent`.

    Without ``outlets``, the outlet is the asset of the destination, if the destination is not a template and
    the task is not mapped. With ``sources``, an outlet that is the asset of a source's folder gets an event
    about that source alone; other outlets get an event about all sources.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param lotno: the number of one of the task's batches; None for the whole history. (templated)
    :param sources: several sources at once, instead of the two arguments above: ids or names of tasks, or
        dicts of ``collection_task_id`` and, as needed, ``lotno``, ``destination``, ``whole_runs_key`` and the
        options of :class:`~airflow_provider_webcollect.landing.options.LandOptions`, which replace the
        arguments below; None unsets an option whose default is None. Each source has its own folder, by
        default ``<destination>/<task>`` or ``<destination>/<task>/<batch>``, where ``<task>`` is the task's
        name or, if it has none, its id. If a source fails, the others continue; a retry lands the sources
        that have failed. (templated)
    :param collection_task_names: names of tasks by id, for logs, errors, results, events and lineage; they
        take precedence over the names in the file, but not in the names of folders. (templated)
    :param destination: a folder that only this landing uses, such as ``s3://bucket/prices``, or an
        ``ObjectStoragePath``; for an Iceberg table, its name, ``catalog.namespace.table``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage; None for its default credentials.
        (templated)
    :param table_format: ``delta`` makes the destination a Delta Lake table (the extra ``delta``), on a disk,
        S3, Azure or Google Cloud Storage; ``iceberg`` makes it an Apache Iceberg table (the extra
        ``iceberg``), whose location the catalog decides; None (default) makes it a folder with a manifest.
        Readers of the table see the rows once they are also committed to the table. New columns are added to
        the table. ``partition`` sets the partition columns of a Delta table, which cannot change later; it is
        refused for Iceberg. (templated)
    :param iceberg_conn_id: the Airflow connection of Iceberg's catalog, which also has the storage's
        credentials; ``iceberg_default`` by default. The namespace must exist; the table is created if it does
        not exist. (templated)
    :param file_format: ``jsonl`` (default), ``csv`` or ``parquet``, which is the default and the only format
        for tables. For details of this and the next five arguments, see
        :func:`~airflow_provider_webcollect.landing.formats.make_format`. (templated)
    :param compression: ``none``, ``gzip``, ``zstd`` or, for Parquet, ``snappy``; None for the format's own
        default. (templated)
    :param columns: the columns, in order; None for all keys of the rows. (templated)
    :param column_types: types by column, for parsing the service's texts; columns without a type are strings.
        (templated)
    :param on_cast_error: what to do if a value does not fit its column's type: ``fail`` (default) or
        ``null``. (templated)
    :param sanitize_formulas: for CSV, put ``'`` before values that a spreadsheet would read as a formula;
        False by default.
    :param mode: ``incremental`` adds new rows to one growing landing; ``full`` lands all rows in a folder of
        this run; None (default) means ``full`` for a source with ``lotno``, and ``incremental`` otherwise.
        (templated)
    :param on_reset: for ``incremental``, what to do if the source was emptied or has lost rows: ``fail``
        (default); ``full`` to land all rows again, in place of the landed rows; ``append`` to keep the landed
        rows and add all rows of the source. (templated)
    :param skip_if_nothing_new: for ``incremental``, skip the task if this run has landed no rows, even if an
        earlier run has failed after its commit; False by default.
    :param if_exists: for ``full``, what to do if the folder has the commit of another run: ``fail``
        (default), ``overwrite`` (the old landing stays readable until the new one is complete) or ``skip``.
        (templated)
    :param partition: subfolders of the destination for this run's new parts, such as
        ``dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }}``; the manifest stays where it is.
        See :func:`~airflow_provider_webcollect.landing.options.check_partition`. (templated)
    :param mark_exported: confirm the export to the service after the commit; False by default. The service
        marks the whole task as exported, even if only one batch was landed.
    :param page_size: rows per request, 1 to 1000 (default); the task requests fewer while pages fail because
        of their size.
    :param max_part_bytes: size in bytes at which a part ends, 128 MiB by default; the page that reaches it is
        still written to the part.
    :param max_concurrency: maximum number of ``sources`` that are landed at once, 1 to 32, 8 by default; all
        share one rate limit.
    :param late_rows_delay: seconds to wait for rows that the source may not show yet, for example right after
        a task has finished; 15 by default, 0 for no wait. The landing waits if the source shows no rows, if
        an incremental landing finds nothing new (``sources`` share this wait, which counts from the beginning
        of the task), and, with ``mark_exported``, before every mark. A ``full`` landing of the whole history
        without a mark does not wait if the source shows older batches: set ``lotno`` to wait for the rows of
        one batch.
    :param checks: conditions that the rows of a run must meet before they are committed, such as ``{"rows":
        {"min": 100, "min_of_usual": 0.5}, "columns": {"price": {"filled": 0.95}}, "missing_columns":
        "fail"}``; see :func:`~airflow_provider_webcollect.landing.checks.make_checks`. (templated)
    :param on_failed_checks: ``fail`` (default) quarantines the rows of the run, and fails the task without
        retries; ``quarantine`` quarantines them, and the task succeeds; ``warn`` lands them, with a warning.
        While rows are quarantined, nothing is marked as exported; the next run continues after them. If the
        landing would begin again with them (``mode="full"``, ``on_reset="full"``), they replace nothing until
        somebody accepts them. (templated)
    :param whole_runs_key: for ``incremental``, if each run collects everything: the column or columns of the
        key that identifies a row. After the commit, the task counts the keys that are ``new``, ``changed`` or
        ``gone`` since the previous whole run; the result and the events have the numbers as ``changes``.
        ``changes`` is None if rows of the run have failed their checks, if the run has found nothing new, or
        if counting fails; in the last case, the log has a warning and the landing succeeds. Requires the
        extra ``duckdb``. (templated)
    :param asset_partition: the partition key of the outlets' events, such as a day, for consumers with a
        ``PartitionedAssetTimetable``, which run once all their assets have an event with the same key. At
        most 250 characters. It requires Airflow 3.3 or later and an outlet, and cannot be used with
        ``skip_if_nothing_new``. None (default) leaves the events only the DAG run's key, if it has one. An
        event with a key does not trigger DAGs with plain ``schedule=[asset]``. (templated)
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
        # check these even if other arguments are templates
        check_at_parse(self, self._check_outlets, ())
        check_at_parse(self, self._check_asset_partition, ())
        check_at_parse(self, self._partition_key, ("asset_partition",))

    def _check(self) -> None:
        check_names(self.collection_task_names)
        modes = {self._options(target).mode for target in self._targets()}
        if self.table_format == "iceberg" and self.object_storage_conn_id:
            rule = "it must be None: the catalog has the credentials of an Iceberg table"
            raise InvalidArgument("object_storage_conn_id", self.object_storage_conn_id, rule)
        arguments.integer("max_concurrency", self.max_concurrency, 1, MOST_AT_ONCE)
        if arguments.boolean("skip_if_nothing_new", self.skip_if_nothing_new) and "full" in modes:
            raise InvalidArgument("skip_if_nothing_new", True, INCREMENTAL_ALONE)

    def _check_outlets(self) -> None:
        """Refuse an asset alias in Airflow 2, where the lists in its events would fail the finished task."""
        aliases = [outlet for outlet in self.outlets if isinstance(outlet, AssetAlias)]
        if aliases and not AIRFLOW_V_3_0_PLUS:
            rule = "an asset alias requires Airflow 3.0 or later: a landing's events have lists"
            raise InvalidArgument("outlets", aliases[0], rule)

    def _check_asset_partition(self) -> None:
        """Refuse any partition key if the task's events cannot have one."""
        if self.asset_partition is None:
            return
        if not AIRFLOW_V_3_3_PLUS:
            rule = "it requires Airflow 3.3 or later"
        elif self.skip_if_nothing_new:
            rule = "a task that `skip_if_nothing_new` skips creates no event"
        elif not any(map(is_asset, self.outlets)):
            rule = "the task has no outlet asset whose event could have it: set `outlets`"
        else:
            return
        raise InvalidArgument("asset_partition", self.asset_partition, rule)

    def _partition_key(self) -> str | None:
        """Return the checked partition key of the task's events; None if the argument is not set."""
        self._check_asset_partition()
        if self.asset_partition is None:
            return None
        key = storable(arguments.text("asset_partition", self.asset_partition))
        if len(key) > LONGEST_KEY:
            rule = f"it must be at most {LONGEST_KEY} characters, not {len(key)}"
            raise InvalidArgument("asset_partition", key, rule)
        return key

    def _targets(self) -> list[Target]:
        """Return each source with the location of its rows; the locations do not overlap.

        :raises InvalidArgument: if a source is invalid, if folders of two sources overlap, or if two sources
            name the same task, one by name and one by id, without destinations of their own.
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
                rule = f"it is the same task as sources[{first}]; give one its own `destination`"
                raise InvalidArgument(names[index], entry, rule)
        return targets

    def _target(self, name: str, entry: object, of_all: Location) -> Target:
        """Return the target of an entry of ``sources``; by default its location is a folder of its own.

        :param name: the entry's name, such as ``sources[0]``, for errors.
        :param of_all: the location of the operator's destination.
        """
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
            if key in SourceOptions.__struct_fields__ and (value is not None or key in _CAN_BE_NONE)
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
        table_format, is_own = self.table_format or None, argument != "destination"
        location = Location.parse(
            argument, value, conn_id=conn_id, may_differ=is_own, table_format=table_format
        )
        return require_supported(argument, location)

    def _options(self, target: Target) -> SourceOptions:
        given = {name: getattr(self, name) for name in SourceOptions.__struct_fields__}
        lotno, table_format = target.source.lotno, self.table_format or None
        with arguments.inside(target.name if target.own else ""):
            options = SourceOptions.parse({**given, **target.own}, lotno=lotno, table_format=table_format)
            if options.partition and table_format == "iceberg":
                rule = "it must be None for an Iceberg table"
                raise InvalidArgument("partition", options.partition, rule)
            return options

    def execute(self, context: Context) -> dict[str, Any]:
        """Land the rows and return a summary."""
        from airflow_provider_webcollect.landing.write.run import land_all
        from airflow_provider_webcollect.service.client import Client
        from airflow_provider_webcollect.transfers import reporting

        began = time.monotonic()
        # the threads stop whenever this task ends, whatever the reason
        with airflow_errors(), Stop() as stop:
            replace_iterators(self)
            self._check()
            partition_key = self._partition_key()
            hook = WebCollectHook(self.webcollect_conn_id)
            store_task_link(context, hook, self.collection_task_id)
            if self.table_format != "iceberg":
                store_export_link(context, hook, self._location("destination", self.destination))
            client = Client(hook.client.context, stop=stop)
            # in this thread, since Airflow provides connections only to it
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
                # one after another, since each needs DuckDB's memory
                for report, job in landings:
                    if report.options.whole_runs_key:
                        report.count_changes(job.folder)
            finally:
                # also report a landing whose rows have failed their checks
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
        """Return the inputs and outputs of the reported landings for OpenLineage."""
        from airflow_provider_webcollect.transfers.reporting import to_openlineage

        return to_openlineage(self._reported)

    #: The facets are the same if the task has failed, for example because of failed checks.
    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete

    def _landings(self, client: Client, context: Context, began: float) -> list[tuple[LandingReport, Job]]:
        """Return the report and the job of each landing; no landing has begun yet."""
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
                # the catalog says where the files are
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
