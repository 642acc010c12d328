"""Operators on the service's analytics: query metrics, check them against thresholds, and discover tasks."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import pendulum
from airflow.providers.common.compat.sdk import AirflowFailException, conf

from airflow_provider_webcollect.collection_tasks import OPTION, SECTION, described, task_ids_of
from airflow_provider_webcollect.common import WebCollectOperator, check_at_parse, refuse_none_at_runtime
from airflow_provider_webcollect.hooks.storage import AirflowConnections, require_supported
from airflow_provider_webcollect.landing.location import Location, folder_at
from airflow_provider_webcollect.service import arguments, endpoints
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import (
    DIGITS,
    AnalyticsRow,
    DataVolumeMetrics,
    ExecutionMetrics,
    ResourceUsageMetrics,
    TimeGranularity,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.landing.formats import CompressionName, FileFormat, FormatName

OnViolation = Literal["fail", "warn"]
Day = str | datetime.date
Metrics = dict[str, float | None]

_TEXTS = (
    "task_id",
    "task_name",
    "user_id",
    "day_key",
    "week_start_date",
    "week_end_date",
    "collection_method",
)
_METRICS = {
    name: group
    for group, record in {
        "data_volume_metrics": DataVolumeMetrics,
        "execution_metrics": ExecutionMetrics,
        "resource_usage_metrics": ResourceUsageMetrics,
    }.items()
    for name in record.__struct_fields__
    if name != "unknown_fields"
}
#: The keys of a flat row, in order; they are the same for all rows and files.
COLUMNS = (*_TEXTS, *_METRICS)


class _AnalyticsOperator(WebCollectOperator):
    """Base of the operators that query metrics: the arguments of the query, and the query itself."""

    template_fields = (
        *WebCollectOperator.template_fields,
        *("start", "end", "collection_task_ids", "member_names", "collection_method"),
    )
    template_fields_renderers = dict.fromkeys(("collection_task_ids", "member_names"), "json")

    def __init__(
        self,
        *,
        start: Day,
        end: Day,
        collection_task_ids: Sequence[str] | None = None,
        member_names: Sequence[str] | None = None,
        collection_method: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.start = start
        self.end = end
        self.collection_task_ids = collection_task_ids
        self.member_names = member_names
        self.collection_method = collection_method
        self._filters = [
            name for name in ("collection_task_ids", "member_names") if getattr(self, name) is not None
        ]

    def _check_query(self, granularity: str = TimeGranularity.DAY) -> None:
        """Check the query, except that its days are recent: a DAG must stay valid when its dates get old."""
        # without a filter that the DAG sets, the query would be about all tasks of the account
        refuse_none_at_runtime(self, self._filters)
        first, last = arguments.date("start", self.start), arguments.date("end", self.end)
        if last < first:
            raise InvalidArgument("start", self.start, f"it must not be after `end`, {last}")
        self._task_ids()
        today = pendulum.now("UTC").date()
        endpoints.query_analytics(
            today,
            today,
            member_names=self.member_names,
            collection_method=self.collection_method or None,
            time_granularity=granularity,
        )

    def _task_ids(self) -> list[str] | None:
        """Return the checked ids of the collection tasks; None for all of them."""
        if self.collection_task_ids is None:
            return None
        most = endpoints.MAX_ANALYTICS_FILTER
        return task_ids_of("collection_task_ids", self.collection_task_ids, most=most)

    def _rows(
        self, hook: WebCollectHook, start: Day, end: Day, granularity: str = TimeGranularity.DAY
    ) -> list[AnalyticsRow]:
        from airflow_provider_webcollect.service.pages import all_analytics

        return all_analytics(
            hook.client,
            start=start,
            end=end,
            task_ids=self._task_ids(),
            member_names=self.member_names,
            collection_method=self.collection_method or None,
            time_granularity=granularity,
        )


class WebCollectQueryAnalyticsOperator(_AnalyticsOperator):
    """Queries collection, execution and resource metrics per task and time bucket (contract.md, endpoint 2).

    All pages are read. The rows are flat dicts with ``task_id``, ``task_name``, ``user_id``, ``day_key``,
    ``week_start_date``, ``week_end_date``, ``collection_method`` and every metric (``total_collected``,
    ``success_rate``, ``balance``, …); None where the service has no value.

    Returns the list of rows. With ``destination``, the operator writes the rows to that file instead,
    replaces an existing file, and returns ``{"destination", "rows", "bytes"}``.

    :param start: first day, a date or ``yyyy-MM-dd``, in UTC; within the latest 3 months. (templated)
    :param end: last day, not after the current UTC date. (templated)
    :param collection_task_ids: at most 100, by id or name; None for all tasks. (templated)
    :param member_names: at most 100 members of the account's team; None for the account's own tasks.
        (templated)
    :param collection_method: ``Cloud``, ``Local`` or ``All``; None for all. (templated)
    :param time_granularity: ``Day`` (default), ``Week`` or ``Month``. (templated)
    :param max_xcom_rows: maximum number of rows without ``destination``, 500 by default; more are an error.
    :param destination: a file for the rows, such as ``s3://bucket/metrics/{{ ds }}.parquet``, or an
        ``ObjectStoragePath``; None (default) to return the rows. (templated)
    :param file_format: ``jsonl`` (default), ``csv`` or ``parquet``; in Parquet, metrics are float64 columns.
    :param compression: ``none``, ``gzip``, ``zstd`` or, for Parquet, ``snappy``; None for the format's own
        default.
    :param object_storage_conn_id: the Airflow connection of the storage; None for its default credentials.
        (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for more rows than ``max_xcom_rows``.
    :raises LandingError: if the file cannot be written; the task is retried unless a retry cannot help.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (
        *_AnalyticsOperator.template_fields,
        *("time_granularity", "destination", "object_storage_conn_id"),
    )

    def __init__(
        self,
        *,
        start: Day,
        end: Day,
        time_granularity: str = TimeGranularity.DAY,
        max_xcom_rows: int = 500,
        destination: str | ObjectStoragePath | None = None,
        file_format: FormatName = "jsonl",
        compression: CompressionName = None,
        object_storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(start=start, end=end, **kwargs)
        # a plain string, not an enum member, for rendering templates
        self.time_granularity = str(time_granularity)
        self.max_xcom_rows = max_xcom_rows
        self.destination = destination
        self.file_format = file_format
        self.compression = compression
        self.object_storage_conn_id = object_storage_conn_id
        check_at_parse(self, self._check)

    def _check(self) -> None:
        self._check_query(self.time_granularity)
        arguments.integer("max_xcom_rows", self.max_xcom_rows, 0)
        if self.destination is not None:
            self._location()
            if str(self.destination).endswith("/"):
                raise InvalidArgument("destination", self.destination, "it must name a file, not a folder")
        self._format()

    def _location(self) -> Location:
        location = Location.parse("destination", self.destination, conn_id=self.object_storage_conn_id)
        return require_supported("destination", location)

    def _format(self) -> FileFormat:
        from airflow_provider_webcollect.landing.formats import make_format

        types = dict.fromkeys(_METRICS, "float64") if self.file_format == "parquet" else None
        return make_format(self.file_format, self.compression, columns=COLUMNS, column_types=types)

    def perform(self, hook: WebCollectHook) -> list[dict[str, Any]] | dict[str, Any]:
        from airflow_provider_webcollect.landing.log.commits import counted

        self._check()
        if self.destination is not None:
            self._format().require_extras()
        rows = [flat(row) for row in self._rows(hook, self.start, self.end, self.time_granularity)]
        self.log.info("The query returned %s.", counted(len(rows), "row"))
        if self.destination is None and len(rows) > self.max_xcom_rows:
            raise AirflowFailException(
                f"{len(rows)} rows are too many for XCom (`max_xcom_rows` is {self.max_xcom_rows}): set "
                "`destination` to write them to a file, or query fewer"
            )
        if self.destination is None:
            return rows
        location, form = self._location(), self._format()
        fs, path = AirflowConnections().filesystem(location)
        parent, _, name = path.rpartition("/")
        with (
            folder_at(fs, parent).part(name) as file,
            form.writer(file, form.columns_after()) as writer,
        ):
            writer.write([msgspec.Raw(msgspec.json.encode(row)) for row in rows])
        self.log.info("Wrote %s, %d bytes, to %s.", counted(len(rows), "row"), file.bytes, location.uri)
        return {"destination": str(self.destination), "rows": len(rows), "bytes": file.bytes}


class WebCollectMetricsCheckOperator(_AnalyticsOperator):
    """Checks the metrics of a period against thresholds (contract.md, endpoint 2).

    All violations are logged, and listed in the error. Returns ``{"start", "end", "success_rate", "volume",
    "previous_volume", "cost", "violations"}``; with ``per_task``, the metrics are under ``"tasks"``, by the
    task's id.

    A number that the service leaves out, or sends as another type, is unknown and does not count as 0. A
    metric is computed from the analytics rows that have its number, and is None if no row has it. If some
    rows lack the number and the other rows are within the limit, that is also a violation; its message says
    how many rows lack the number. A missing number of successes is derived from the row's failures or rate.

    :param start: first day, a date or ``yyyy-MM-dd``, in UTC; within the latest 3 months. (templated)
    :param end: last day, not after the current UTC date. (templated)
    :param min_success_rate: minimum share of the runs that succeed, from 0 to 1; None (default) for no check.
        A period without runs is a violation.
    :param max_volume_drop: maximum decrease of the number of rows collected, compared with the preceding
        period of equal length, as a share of that period's rows, from 0 to 1; None (default) for no check.
        If no row was collected in the preceding period, nothing is compared. An unknown number in the
        preceding period is also a violation.
    :param max_volume: maximum number of rows collected in the period, duplicates included; None (default) for
        no check.
    :param max_cost: maximum cost of the period (the service's ``balance``); None (default) for no check.
    :param per_task: compare each task with the thresholds, instead of all tasks together; False by default.
        Tasks in ``collection_task_ids`` are included even if they have no analytics row.
    :param on_violation: ``fail`` the task without retries (default), or ``warn`` in the log.
    :param collection_task_ids: at most 100, by id or name; None for all tasks. (templated)
    :param member_names: at most 100 members of the account's team; None for the account's own tasks.
        (templated)
    :param collection_method: ``Cloud``, ``Local`` or ``All``; None for all. (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: for violations, with ``on_violation="fail"``; and if a retry cannot help.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    def __init__(
        self,
        *,
        start: Day,
        end: Day,
        min_success_rate: float | None = None,
        max_volume_drop: float | None = None,
        max_volume: float | None = None,
        max_cost: float | None = None,
        per_task: bool = False,
        on_violation: OnViolation = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(start=start, end=end, **kwargs)
        self.min_success_rate = min_success_rate
        self.max_volume_drop = max_volume_drop
        self.max_volume = max_volume
        self.max_cost = max_cost
        self.per_task = per_task
        self.on_violation = on_violation
        check_at_parse(self, self._check_limits, ())
        check_at_parse(self, self._check)

    def _check(self) -> None:
        self._check_query()
        self._check_limits()

    def _check_limits(self) -> None:
        shares = {"min_success_rate": self.min_success_rate, "max_volume_drop": self.max_volume_drop}
        limits = {**shares, "max_volume": self.max_volume, "max_cost": self.max_cost}
        for name, limit in limits.items():
            most = 1 if name in shares else math.inf
            is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if limit is not None and not (is_number and 0 <= limit <= most):
                rule = (
                    "it must be a share from 0 to 1" if name in shares else "it must be a number, 0 or more"
                )
                raise InvalidArgument(name, limit, rule)
        if set(limits.values()) == {None}:
            rule = f"at least one limit must be given: {', '.join(limits)}"
            raise InvalidArgument("min_success_rate", None, rule)
        arguments.one_of("on_violation", self.on_violation, get_args(OnViolation))

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        self._check()
        rows_by_task = self._by_task(self._rows(hook, self.start, self.end))
        before: dict[str, list[AnalyticsRow]] = {}
        if self.max_volume_drop is not None:
            before = self._by_task(self._rows(hook, *self._previous()))
        # a task that did not run has no row
        names = sorted({*rows_by_task, *before, *(self._task_ids() or ())}) if self.per_task else [""]
        metrics = {name: _metrics(rows_by_task[name], before.get(name, [])) for name in names}
        violations = [
            f"task {described(name)}: {violation}" if name else violation
            for name in names
            for violation in self._violations(rows_by_task[name], before.get(name, []), metrics[name])
        ]
        for violation in violations:
            self.log.warning("%s", violation)
        if violations and self.on_violation == "fail":
            from airflow_provider_webcollect.landing.log.commits import counted

            raise AirflowFailException(
                f"{counted(len(violations), 'violation')} from {self.start} to {self.end}: "
                f"{'; '.join(violations)}"
            )
        return {
            "start": str(arguments.date("start", self.start)),
            "end": str(arguments.date("end", self.end)),
            **({"tasks": metrics} if self.per_task else metrics[""]),
            "violations": violations,
        }

    def _previous(self) -> tuple[datetime.date, datetime.date]:
        """Return the first and the last day of the preceding period of equal length.

        :raises InvalidArgument: if the service no longer has metrics of these days.
        """
        first, last = arguments.date("start", self.start), arguments.date("end", self.end)
        end = first - datetime.timedelta(days=1)
        start = first - (last - first) - datetime.timedelta(days=1)
        try:
            endpoints.check_days(start, end)
        except InvalidArgument as error:
            rule = f"the preceding period begins on {start}: {error.rule}"
            raise InvalidArgument("start", self.start, rule) from error
        return start, end

    def _by_task(self, rows: Iterable[AnalyticsRow]) -> defaultdict[str, list[AnalyticsRow]]:
        by_task: defaultdict[str, list[AnalyticsRow]] = defaultdict(list)
        # the service may return an id in another letter case
        given = {task_id.lower(): task_id for task_id in self._task_ids() or ()}
        for row in rows:
            by_task[given.get(row.task_id.lower(), row.task_id) if self.per_task else ""].append(row)
        return by_task

    def _violations(
        self, rows: Sequence[AnalyticsRow], before: Sequence[AnalyticsRow], metrics: Metrics
    ) -> Iterator[str]:
        if low := self._low_success(rows, metrics["success_rate"]):
            yield low
        if lost := self._lost_volume(rows, before, metrics):
            yield lost
        if (most := self.max_volume) is not None:
            if (volume := metrics["volume"]) is not None and volume > most:
                yield f"{volume:.0f} rows were collected, above {most:.0f}"
            elif unknown := _unknown(_volumes(rows)):
                reason = f"the service does not say for {unknown} how many rows were collected"
                yield f"{reason}, so the total may be above {most:.0f}"
        if (most := self.max_cost) is not None:
            if (cost := metrics["cost"]) is not None and cost > most:
                yield f"the cost is {cost:g}, above {most:g}"
            elif unknown := _unknown(row.resource_usage_metrics.balance for row in rows):
                reason = f"the service gives no cost for {unknown}"
                yield f"{reason}, so the total may be above {most:g}"

    def _low_success(self, rows: Sequence[AnalyticsRow], rate: float | None) -> str | None:
        least = self.min_success_rate
        if least is None:
            return None
        if unknown := _unknown(row.execution_metrics.runs_and_successes() for row in rows):
            known = "" if rate is None else f" ({rate:.1%} of the others did)"
            reason = f"the service does not say for {unknown} how many runs succeeded{known}"
        elif rate is None:
            reason = "there was no run"
        else:
            return None if rate >= least else f"the success rate is {rate:.1%}, below {least:.1%}"
        return f"{reason}, so the success rate is not known to be {least:.1%} or more"

    def _lost_volume(
        self, rows: Sequence[AnalyticsRow], before: Sequence[AnalyticsRow], metrics: Metrics
    ) -> str | None:
        most = self.max_volume_drop
        if most is None:
            return None
        volume, volume_before = metrics["volume"] or 0, metrics["previous_volume"] or 0
        if unknown := _unknown(_volumes(before)):
            return (
                f"the service does not say for {unknown} of the preceding period how many rows were collected"
            )
        drop = round(1 - volume / volume_before, DIGITS) if volume_before else 0
        if drop <= most:
            return None
        if unknown := _unknown(_volumes(rows)):
            return (
                f"the service does not say for {unknown} how many rows were collected; at least "
                f"{volume:.0f}, and {volume_before:.0f} in the preceding period"
            )
        return (
            f"{volume:.0f} rows were collected, {volume_before:.0f} in the preceding period: "
            f"a drop of {drop:.1%}, above {most:.1%}"
        )


class WebCollectDiscoverOperator(WebCollectOperator):
    """Compares the file of collection tasks with the tasks that ran in the last three months (contract.md,
    endpoint 2), and optionally merges those tasks into the file.

    A merge adds new tasks at the end of the file, and updates ``service_name``, ``last_run``, ``rows`` and
    ``cost`` of the other entries; everything else, including names and comments, stays unchanged. Discovery
    does not find tasks that did not run in the last three months, or tasks of other members of the team.

    Returns ``{"new", "gone", "renamed"}``, three lists: tasks that only the service has, tasks that only the
    file has (they did not run, and stay in the file), and tasks that the service has renamed since the last
    merge. Each task is ``{"id", "name"}``, with ``"service_name"`` if the service has another name for it.

    :param collection_tasks: the absolute path of the file; None for the path in ``[webcollect]
        collection_tasks``. (templated)
    :param merge: merge the tasks into the file; False (default) only compares. The worker must be able to
        write the file, and the DAG processor must see the same folder. A Git DAG bundle does not work, since
        its next version replaces the written file.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a file with errors.
    :raises WebCollectError: for any other error; the task is retried.
    """

    template_fields = (*WebCollectOperator.template_fields, "collection_tasks")

    def __init__(self, *, collection_tasks: str | None = None, merge: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.collection_tasks = collection_tasks
        self.merge = merge
        check_at_parse(self, self._path)

    def _path(self) -> str:
        arguments.boolean("merge", self.merge)
        path = self.collection_tasks or conf.get(SECTION, OPTION, fallback=None)
        if not path or not Path(arguments.text("collection_tasks", path)).expanduser().is_absolute():
            rule = f"it must be an absolute path; without this argument, [{SECTION}] {OPTION} must be one"
            raise InvalidArgument("collection_tasks", path, rule)
        return str(path)

    def perform(self, hook: WebCollectHook) -> dict[str, list[dict[str, str]]]:
        from airflow_provider_webcollect.discovery import as_lines, update

        differences = update(self._path(), hook.client, write=self.merge)
        for line in as_lines(differences):
            self.log.info("%s", line)
        return differences


def _volumes(rows: Iterable[AnalyticsRow]) -> Iterator[float | None]:
    return (row.data_volume_metrics.total_collected for row in rows)


def _unknown(numbers: Iterable[object]) -> str:
    """Return the number of analytics rows without a number as text, such as ``3 of 7 analytics rows``.

    :return: an empty text if no row lacks the number.
    """
    listed = list(numbers)
    lacking = listed.count(None)
    return f"{lacking} of {len(listed)} analytics rows" if lacking else ""


def _metrics(rows: Sequence[AnalyticsRow], before: Sequence[AnalyticsRow]) -> Metrics:
    """Return the metrics of a period by name.

    :param before: the rows of the preceding period; empty if it was not queried.
    """
    sums = AnalyticsRow.total(rows)
    return {
        "success_rate": sums["succeeded"],
        "volume": sums["rows"],
        "previous_volume": AnalyticsRow.total(before)["rows"],
        "cost": sums["cost"],
    }


def flat(row: AnalyticsRow) -> dict[str, Any]:
    """Return a row as a plain dict with the keys :data:`COLUMNS`."""
    return {name: getattr(row, name) for name in _TEXTS} | {
        name: getattr(getattr(row, group), name) for name, group in _METRICS.items()
    }
