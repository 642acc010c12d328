"""Reports what a transfer has landed: log, metrics, result, asset events and lineage."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from airflow.providers.common.compat.sdk import Asset, AssetAlias, Stats
from msgspec import UNSET, UnsetType

from airflow_provider_webcollect.assets import (
    InputsWithoutRows,
    LandingEvent,
    dataset_name,
    documentation,
    is_asset,
    landing_asset,
)
from airflow_provider_webcollect.common import send_gauges
from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.checks import usual_of
from airflow_provider_webcollect.landing.formats.profile import Profile, sum_of
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.landing.log.commits import Manifest, Part, Run, Source, counted
from airflow_provider_webcollect.landing.write.job import Landed, Observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized

    from airflow.providers.common.compat.sdk import Context
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.log.commits import MissingInputs, SetApart
    from airflow_provider_webcollect.landing.options import SourceOptions
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.service.call import ClientContext

T = TypeVar("T", bound="Sized")

#: Seconds between two progress lines in the log.
PROGRESS_INTERVAL = 5.0
#: Minimum number of seconds, and of rows per second, for which the log shows a rate.
SHORTEST_MEASURED, LEAST_RATE = 1.0, 0.5
METRICS = "webcollect.landing"
#: Maximum number of new parts, and of columns or checks, that are listed for all sources together, since
#: Airflow stores XComs and asset events in its database.
MAX_LISTED = 1000
#: Maximum number of commits with quarantined rows that are listed for a landing.
MAX_WAITING = 100


class Contents(NamedTuple):
    """The number, size and contents of parts."""

    parts: int
    rows: int
    bytes: int
    profile: Profile

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Contents:
        rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
        return cls(len(parts), rows, size, sum_of(part.profile for part in parts))


@dataclass
class LandingReport(Observer):
    """The report of one landing: counts and logs while it runs, and a summary when it has ended.

    :param name: the name of the collection task; None if it is not known.
    :param location: the destination of the landing, as the DAG names it.
    :param files: the location of the files; for an Iceberg table, the location that its catalog has.
    :param run: the Airflow run.
    :param options: the options of the landing.
    :param log: the logger, which gets a line every few seconds.
    :param client: the context of the service's client, for metrics of its request rate and token.
    :param tags: the tags of all metrics.
    :param sources: the number of sources that the task lands.
    :param ended: counter of the sources that have ended; all reports of the task share it.
    :ivar landed: the result of the landing, even if the mark after its commit fails; None while it is running
        and if it has failed before the commit.
    :ivar is_complete: whether the landing has ended without an error.
    :ivar changes: the number of ``new``, ``changed`` and ``gone`` keys; None if it is not known, unset if it
        was not requested.
    :ivar checks: the outcomes of the checks in this attempt, even if one of them fails the landing.
    :ivar duration: the duration of the landing in seconds.
    :ivar task: namespace and name of the source's dataset, once its lineage was reported.
    """

    source: Source
    name: str | None
    location: Location
    files: Location
    run: Run
    options: SourceOptions
    log: Any
    client: ClientContext
    tags: dict[str, str]
    sources: int = 1
    ended: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    requests: int = 0
    pages: int = 0
    landed: Landed | None = None
    is_complete: bool = False
    duration: float = 0.0
    changes: dict[str, int] | UnsetType | None = UNSET
    checks: Sequence[CheckOutcome] = ()
    task: tuple[str, str] = ("", "")
    _first: tuple[float, int] | None = None
    _logged: float = field(default_factory=time.monotonic)

    @property
    def called(self) -> str:
        """The source as text for logs, with the name of its task if it is known."""
        task = self.source.collection_task_id
        called = f"{self.name} ({task})" if self.name else task
        return str(msgspec.structs.replace(self.source, collection_task_id=called))

    def on_request(self) -> None:
        self.requests += 1

    def on_page(self) -> None:
        self.pages += 1

    def on_progress(self, rows: int, total: int) -> None:
        """Log the number of rows written so far and the expected total, every few seconds."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, rows)
        if now - self._logged < PROGRESS_INTERVAL:
            return
        self._logged = now
        send_gauges(self.client, self.tags)
        began, before = self._first
        new, seconds, rate = rows - before, now - began, ""
        if seconds >= SHORTEST_MEASURED and new / seconds >= LEAST_RATE:
            rate = f", {new / seconds:.0f} rows/s, {(total - rows) * seconds / new:.0f} s left"
        self.log.info("%s: %d of %d rows%s", self.called, rows, total, rate)

    def on_checks(self, outcomes: Sequence[CheckOutcome]) -> None:
        self.checks = outcomes

    def on_commit(self, landed: Landed) -> None:
        """Keep the result of a commit, which counts even if the mark after it fails."""
        self.landed = landed

    def count_changes(self, folder: Folder) -> None:
        """Count the keys that are new, changed or gone since the previous whole run; errors are only logged.

        :param folder: the folder of the landing.
        """
        from airflow_provider_webcollect.landing.reader import read_landing

        self.changes, source = None, self.called
        try:
            # read without types, since a text that does not fit its type would prevent the count; but columns
            # that are computed from other columns need their types
            source_of = self.options.format.source_of
            is_raw = all(name == source_of(name) for name in self.options.whole_runs_key)
            landed = read_landing(folder, raw=is_raw)
            self.changes = landed.count_changes(self.options.whole_runs_key, self.run.run_id)
        except Exception as error:
            self.log.warning("%s: new, changed and gone keys are not counted: %s", source, error)
        if self.changes:
            counts = ", ".join(f"{number} {change}" for change, number in self.changes.items())
            key = ", ".join(self.options.whole_runs_key)
            self.log.info("%s: since the previous whole run, by %s: %s", source, key, counts)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Measure and report the landing of the block; if the block fails, only the metrics are reported."""
        began = time.monotonic()
        try:
            yield
            self.is_complete = True
        finally:
            self.duration = time.monotonic() - began
            number = next(self.ended)
            counts = {
                "rows": self.committed.rows,
                "bytes": self.committed.bytes,
                "pages": self.pages,
                "retries": max(0, self.requests - self.pages),
                "failed_checks": sum(outcome.state == "failed" for outcome in self.checks),
            }
            tags = {**self.tags, "outcome": "success" if self.is_complete else "failed"}
            for name, count in counts.items():
                Stats.incr(f"{METRICS}.{name}", count, tags=tags)
            Stats.timing(f"{METRICS}.duration", timedelta(seconds=self.duration), tags=tags)
            send_gauges(self.client, self.tags)
        new = Contents.of(self.result.new)
        self.log.info(
            "%s: %s in %s at %s, which has %s now%s",
            self.called,
            counted(new.rows, "new row"),
            counted(new.parts, "part"),
            self.location.text,
            counted(self.result.manifest.rows, "row"),
            f" ({number} of {self.sources})" if self.sources > 1 else "",
        )

    @property
    def committed(self) -> Contents:
        """The number, size and contents of the parts that this attempt has committed."""
        return Contents.of(self.landed.committed if self.landed else ())

    def report_lineage(self, hook: WebCollectHook) -> None:
        """Report source and folder to Airflow's hook lineage; keep the source's dataset for OpenLineage."""
        from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

        source = self.source
        hook.report_read(source.collection_task_id, source.lotno, self.name)
        self.task = dataset_name(hook, source.collection_task_id, source.lotno)
        if self.has_output and (asset := landing_asset(self.files)):
            get_hook_lineage_collector().add_output_asset(context=self.files, uri=asset.uri)

    @property
    def has_output(self) -> bool:
        """Whether the landing has ended without an error, or has landed rows before an error."""
        return self.landed is not None and (self.is_complete or bool(self.landed.new))

    @property
    def result(self) -> Landed:
        """The result of the landing; only available if ``landed`` is not None."""
        assert self.landed is not None
        return self.landed

    @property
    def quarantined(self) -> list[SetApart]:
        """The quarantined rows of the run."""
        return [apart for apart in self.result.manifest.quarantined if apart.run == self.run]

    @property
    def quarantined_rows(self) -> int:
        """The number of quarantined rows of the run."""
        return sum(apart.rows for apart in self.quarantined)

    def summary(self, listed: bool) -> dict[str, Any]:
        """Return the summary of the landing, for XCom.

        :param listed: whether to list the new parts.
        """
        folder, landed, manifest = self.location.text, self.result, self.result.manifest
        uri, key = self.files.asset_uri, self.files.key
        # a full landing whose rows are all quarantined keeps the rows of an earlier landing in the folder
        is_whole = self.options.mode == "full" and not (self.quarantined and not landed.new)
        held = (
            Contents(manifest.part_count, manifest.rows, manifest.bytes, manifest.profile)
            if is_whole
            else Contents.of(landed.new)
        )
        facts = {
            "collection_task_name": self.name,
            "destination": folder,
            # a table has no manifest file: readers use the table's name
            "manifest": folder if manifest.table_format else f"{folder.rstrip('/')}/{MANIFEST}",
            "commit": manifest.commit,
            "rows": held.rows,
            # a run that only repeats missing inputs of another run is not compared
            "usual_rows": usual_of([past.rows for past in manifest.history if past.run != self.run])
            if landed.missing_inputs is None or landed.missing_inputs.run == self.run
            else None,
            "bytes": held.bytes,
            "parts": held.parts,
            "quarantined_rows": self.quarantined_rows,
            "quarantined": [apart.commit for apart in self.quarantined],
            "waiting": [
                {
                    "commit": apart.commit,
                    "rows": apart.rows,
                    "dag_id": apart.run.dag_id,
                    "run_id": apart.run.run_id,
                    "at": apart.at,
                }
                for apart in reversed(manifest.quarantined[-MAX_WAITING:])
            ],
            # rounded down, so that 1 means all rows
            "filled": {
                name: counts.filled * 10_000 // held.rows / 10_000
                for name, counts in held.profile.columns.items()
            },
            "missing_inputs": _missing(landed.missing_inputs),
            # without tuples, which XCom would serialize differently from lists
            "checks": msgspec.json.decode(msgspec.json.encode(landed.checks)),
            "uris": [f"{uri}/{part.name}" for part in landed.new] if listed else None,
            "objects": [f"{key}/{part.name}" if key else part.name for part in landed.new]
            if listed
            else None,
            "duration": round(self.duration, 3),
        }
        if self.changes is not UNSET:
            facts["changes"] = self.changes
        return facts if self.options.mode == "full" else {**facts, "total_rows": manifest.rows}


def _missing(missing: MissingInputs | None) -> dict[str, Any] | None:
    return {"count": missing.count, "inputs": [*missing.inputs]} if missing else None


def are_listed(reports: Iterable[LandingReport]) -> bool:
    """Return whether the new parts of a task are few enough to be listed."""
    return sum(len(report.result.new) for report in reports) <= MAX_LISTED


def totals_of(destination: object, reports: Sequence[LandingReport], began: float) -> dict[str, Any]:
    """Return the summary of several landings: the sums, and a list with the summary of each landing.

    :param began: the monotonic time at which the task began, in seconds.
    """
    listed = are_listed(reports)
    summaries = [
        {
            "collection_task_id": report.source.collection_task_id,
            "lotno": report.source.lotno,
            **report.summary(listed),
        }
        for report in reports
    ]
    sums: dict[str, Any] = {
        name: sum(facts[name] for facts in summaries)
        for name in ("rows", "bytes", "parts", "quarantined_rows", "total_rows")
        if all(name in facts for facts in summaries)
    }
    usual_rows = [facts["usual_rows"] for facts in summaries]
    sums["usual_rows"] = None if None in usual_rows else sum(usual_rows)
    if any("changes" in facts for facts in summaries):
        changes = [facts["changes"] for facts in summaries if facts.get("changes")]
        sums["changes"] = (
            {name: sum(counts[name] for counts in changes) for name in changes[0]} if changes else None
        )
    lists = {
        name: [entry for facts in summaries for entry in facts[name]] if listed else None
        for name in ("uris", "objects")
    }
    return {
        "destination": str(destination),
        "sources": summaries,
        **sums,
        **lists,
        "duration": round(time.monotonic() - began, 3),
    }


def log_sums(log: Any, reports: Sequence[LandingReport]) -> None:
    """Log the sums of several landings, even if some have failed or have not begun."""
    complete = [report for report in reports if report.is_complete]
    parts = [part for report in reports if report.landed for part in report.landed.new]
    log.info(
        "%s: %s in %s, %d bytes; %d had nothing new, %d did not land",
        counted(len(reports), "source"),
        counted(sum(part.rows for part in parts), "new row"),
        counted(len(parts), "part"),
        sum(part.bytes for part in parts),
        sum(not (report.result.new or report.quarantined_rows) for report in complete),
        len(reports) - len(complete),
    )


def report_to_outlets(
    context: Context,
    outlets: Iterable[Any],
    connections: Mapping[str, Any],
    source: Source,
    facts: Mapping[str, Any],
    partition_key: str | None = None,
) -> None:
    """Add the summary of the landed rows to the events of the task's outlet assets.

    For several sources, the asset of a source's folder gets the event of that source. Other assets get an
    event with the sums and, for each source, only a part of its summary (without ``uris`` and ``objects``),
    since Airflow keeps events for long and shows them in lists.

    An asset alias gets an event for the asset of each folder.

    :param connections: the event's ``webcollect_conn_id`` and ``object_storage_conn_id``.
    :param source: the source that was landed, or one of several sources.
    :param facts: the summary of the landing, or of all landings.
    :param partition_key: the partition key of the events; None for no key of their own.
    """
    events: Any = context.get("outlet_events")
    if events is None:
        return
    event, own = _events_of(connections, source, facts)
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            for uri, of_folder in own.items():
                events[outlet].add(Asset(uri=uri), extra=of_folder.extra())
            continue
        if not is_asset(outlet):
            continue
        # an outlet may be a reference to an asset by name, without a URI
        events[outlet].extra.update(own.get(getattr(outlet, "uri", ""), event).extra())
        if partition_key is not None:
            events[outlet].add_partitions(partition_key)


def _events_of(
    connections: Mapping[str, Any], source: Source, facts: Mapping[str, Any]
) -> tuple[LandingEvent, dict[str, LandingEvent]]:
    """Return the event about all landed rows, and the event about each folder, by the URI of its asset."""
    summaries = facts.get("sources")
    if summaries is None:
        task, lotno = source.collection_task_id, source.lotno
        event = LandingEvent(collection_task_id=task, lotno=lotno, **connections, **facts)
        asset = landing_asset(facts["destination"])
        return event, {asset.uri: event} if asset else {}
    sums = {name: facts[name] for name in facts if name not in ("sources", "uris", "objects")}
    event = LandingEvent(
        collection_task_ids=[summary["collection_task_id"] for summary in summaries],
        collection_task_names=[summary["collection_task_name"] for summary in summaries],
        manifests=[summary["manifest"] for summary in summaries],
        source_rows=[summary["rows"] for summary in summaries],
        source_usual_rows=[summary["usual_rows"] for summary in summaries],
        source_commits=[summary["commit"] for summary in summaries],
        source_filled=_few([summary["filled"] for summary in summaries]),
        source_checks=_few([summary["checks"] for summary in summaries]),
        source_missing_inputs=_few_inputs([summary["missing_inputs"] for summary in summaries]),
        source_quarantined=[summary["quarantined"] for summary in summaries],
        source_waiting=[summary["waiting"][: MAX_LISTED // len(summaries) or 1] for summary in summaries],
        **connections,
        **sums,
    )
    own = {}
    for summary in summaries:
        if asset := landing_asset(summary["destination"]):
            # a source's destination may name its own connection
            location = Location.parse_landed("destination", summary["destination"])
            conn_id = location.conn_id or connections["object_storage_conn_id"]
            own[asset.uri] = LandingEvent(**{**connections, "object_storage_conn_id": conn_id}, **summary)
    return event, own


def _few_inputs(of_sources: list[dict[str, Any] | None]) -> list[InputsWithoutRows | None]:
    """Return the first missing inputs of each source: not all of them, to keep the event small."""
    most = MAX_LISTED // len(of_sources) or 1
    return [
        InputsWithoutRows(count=missing["count"], inputs=missing["inputs"][:most]) if missing else None
        for missing in of_sources
    ]


def _few(of_sources: list[T]) -> list[T] | UnsetType:
    """Return the filled shares or checks of all sources; unset if they are too many for an event."""
    return of_sources if sum(map(len, of_sources)) <= MAX_LISTED else UNSET


def to_openlineage(reports: Iterable[LandingReport]) -> OperatorLineage[Any, Any]:
    """Return the datasets of landings for OpenLineage; outputs have their schema, version and statistics.

    :param reports: the reports of landings whose lineage was reported.
    """
    from airflow.providers.common.compat.openlineage import facet
    from airflow.providers.openlineage.extractors import OperatorLineage

    inputs, outputs = [], []
    for landing in reports:
        named: dict[str, Any] = documentation(landing.name)
        inputs.append(facet.InputDataset(*landing.task, facets=named, inputFacets=_quality(landing)))
        if not landing.has_output:
            continue
        manifest = landing.result.manifest
        # text files contain strings, even if this package's readers parse them into types
        types = manifest.column_types if manifest.has_typed_files else {}
        untyped = "string" if manifest.has_typed_files else None
        fields = [
            facet.SchemaDatasetFacetFields(name=name, type=types[name].type if name in types else untyped)
            for name in manifest.columns or ()
        ]
        written = facet.OutputStatisticsOutputDatasetFacet(
            rowCount=landing.committed.rows, size=landing.committed.bytes
        )
        facets = {**named, **version_of(manifest)}
        if fields:
            facets["schema"] = facet.SchemaDatasetFacet(fields=fields)
        outputs.append(
            facet.OutputDataset(
                *landing.files.dataset, facets=facets, outputFacets={"outputStatistics": written}
            )
        )
    return OperatorLineage(inputs=inputs, outputs=outputs)


def version_of(manifest: Manifest) -> dict[str, Any]:
    """Return OpenLineage's version facet of a landing, with the number of its last commit."""
    from openlineage.client.facet_v2 import dataset_version_dataset

    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(manifest.commit))
    return {"version": version}


def _quality(landing: LandingReport) -> dict[str, Any]:
    """Return OpenLineage's data quality facets of the landed rows: metrics by column, and checks."""
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as checked
    from openlineage.client.facet_v2 import data_quality_metrics_input_dataset as measured

    committed = landing.committed
    columns = {
        name: measured.ColumnMetrics(count=counts.filled)
        for name, counts in committed.profile.columns.items()
    }
    facets: dict[str, Any] = {}
    if columns:
        facets["dataQualityMetrics"] = measured.DataQualityMetricsInputDatasetFacet(
            rowCount=committed.rows, bytes=committed.bytes, columnMetrics=columns
        )
    if assertions := [
        checked.Assertion(assertion=outcome.check, success=outcome.state == "passed", column=outcome.column)
        for outcome in landing.checks
        if outcome.state != "skipped"
    ]:
        facets["dataQualityAssertions"] = checked.DataQualityAssertionsDatasetFacet(assertions=assertions)
    return facets
