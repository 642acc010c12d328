"""What the transfer reports of a landing: summaries, asset events, metrics, log lines.

A run reports what it has landed itself, in whichever of its attempts.
"""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, Asset, ObjectStoragePath
from airflow.providers.common.compat.standard.operators import PythonOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.settings import Session
from sqlalchemy import text

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.destinations import Place
from airflow_provider_webcollect.landing.commits import Commit, Run, Source, fold
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.transfers import reporting
from airflow_provider_webcollect.transfers.reporting import LandingReport, totals_of
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import execute
from tests.airflow.landings import (
    land,
    landed,
    make_transfer,
    manifest,
    rows_at,
    table_rows,
    transfer,
    without_duration,
)

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

READ, MARK = "/data/all", "/data/markexported"
#: How a landing may be kept.
each_form = pytest.mark.parametrize("form", [{}, {"table_format": "delta"}], ids=["folder", "table"])


class TestSummary:
    def test_xcom_gets_it(self, source: dict[str, Any], destination: str) -> None:
        summary = land(destination, source, max_part_bytes=1).xcoms["land"]
        written = manifest(destination)
        uris = [f"{destination}/{part['name']}" for part in written["parts"]]

        assert isinstance(summary.pop("duration"), float)
        filled = summary.pop("filled")
        assert filled["price"] == 1
        assert 0 < filled["city"] < 1
        assert summary == {
            "destination": destination,
            "quarantined_rows": 0,
            "checks": [],
            "manifest": f"{destination}/_manifest.json",
            "commit": 1,
            "rows": 400,
            "bytes": written["bytes"],
            "parts": 4,
            "uris": uris,
            "objects": [uri.removeprefix("file://") for uri in uris],
            "redshift_manifest": None,
        }
        assert len(uris) == 4

    def test_it_names_the_new_parts_alone(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        first = transfer(destination, source, mode="incremental")
        sandbox.control.grow(source["task_id"], 30)
        second = transfer(destination, source, mode="incremental")
        third = transfer(destination, source, mode="incremental")

        rows = sandbox.control.true_rows(source["task_id"])
        assert rows_at(first["uris"]) == rows[:400]
        assert rows_at(second["uris"]) == rows[400:]
        assert (third["uris"], third["objects"]) == ([], [])
        # a run that has found nothing new has made none
        assert [each["commit"] for each in (first, second, third)] == [1, 2, 2]

    def test_a_landing_of_another_run_that_is_skipped_has_no_new_parts(
        self, source: dict[str, Any], destination: str
    ) -> None:
        transfer(destination, source)
        summary = transfer(destination, source, if_exists="skip")

        assert (summary["rows"], summary["uris"], summary["objects"]) == (400, [], [])

    def test_sources_have_each_their_own_and_the_sums(self, sandbox: Sandbox, destination: str) -> None:
        tasks = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 7)]
        summary = transfer(destination, sources=tasks)
        each = summary["sources"]

        assert [len(rows_at(facts["uris"])) for facts in each] == [5, 7]
        assert [facts["commit"] for facts in each] == [1, 1]
        assert rows_at(summary["uris"]) == [row for task in tasks for row in sandbox.control.true_rows(task)]
        assert summary["objects"] == each[0]["objects"] + each[1]["objects"]

    def test_the_next_task_gets_the_objects_as_a_list(self, source: dict[str, Any], destination: str) -> None:
        got: list[Any] = []
        with make_dag() as dag:
            operator = make_transfer(destination, source, multiple_outputs=True)
            PythonOperator(task_id="load", python_callable=got.append, op_args=[operator.output["objects"]])
        run = run_dag(dag)

        assert got == [run.xcoms["land"]["objects"]]


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, *arguments: object) -> None:
        self.lines.append(line % arguments)


def report_of(parts: int, task: str = "a") -> LandingReport:
    """Return the report of a run that has landed ``parts`` parts, of one row each."""
    part = {"rows": 1, "bytes": 2, "sha256": "", "start_offset": 0, "next_offset": 1}
    commit = msgspec.convert(
        {
            "number": 1,
            "kind": "landed",
            "source": {"collection_task_id": task},
            "run": {"dag_id": "d", "task_id": "t", "run_id": "r"},
            "attempt_id": "0badcafe",
            **dict.fromkeys(["started_at", "at", "provider_version"], ""),
            "encoding": {"file_format": "jsonl", "compression": None},
            "parts": [{"name": f"part-{number:05d}-0badcafe.jsonl", **part} for number in range(parts)],
            "cursor": {"total": parts},
        },
        Commit,
    )
    manifest = fold(None, [commit])
    assert manifest is not None
    folder = f"file:///tmp/{task}"
    return LandingReport(
        place=Place(commit.source, folder),
        path=ObjectStoragePath(folder),
        run=commit.run,
        mode="full",
        log=Lines(),
        landed=Landed(manifest, new=commit.parts, committed=commit.parts),
    )


class TestManyParts:
    @pytest.mark.parametrize(("parts", "listed"), [(1000, True), (1001, False)])
    def test_above_a_thousand_the_manifest_alone_is_named(self, parts: int, listed: bool) -> None:
        report = report_of(parts)
        summary = report.summary(reporting.are_listed([report]))

        assert summary["parts"] == parts
        assert summary["manifest"] == "file:///tmp/a/_manifest.json"
        assert [summary[name] and len(summary[name]) for name in ("uris", "objects")] == (
            [1000, 1000] if listed else [None, None]
        )

    @pytest.mark.parametrize(("parts", "listed"), [(500, True), (501, False)])
    def test_the_thousand_is_of_all_sources_together(self, parts: int, listed: bool) -> None:
        summary = totals_of("file:///tmp", [report_of(500), report_of(parts, "b")], 0.0)

        found = [summary, *summary["sources"]]
        counts = [[facts[name] and len(facts[name]) for name in ("uris", "objects")] for facts in found]
        assert counts == ([[1000] * 2, [500] * 2, [500] * 2] if listed else [[None] * 2] * 3)


class TestAssetEvents:
    def test_outlets_get_the_facts(self, source: dict[str, Any], destination: str) -> None:
        asset = Asset(f"{destination}-asset")
        reported: dict[str, Any] = {}

        def remember(context: Any, result: Any) -> None:
            reported.update(context["outlet_events"][asset].extra)

        run = land(destination, source, outlets=[asset], post_execute=remember)

        origin = {
            "webcollect_conn_id": "webcollect_default",
            "collection_task_id": source["task_id"],
            "lotno": None,
        }
        assert reported == {**run.xcoms["land"], **origin}
        event = LandingEvent.of(reported)
        assert event is not None
        assert (event.rows, event.tasks()) == (400, [source["task_id"]])
        assert event.all_manifests() == [f"{destination}/_manifest.json"]
        assert event.extra() == reported
        if AIRFLOW_V_3_0_PLUS:
            with Session() as session:
                extras = session.execute(text("select extra from asset_event")).scalars().all()
            assert reported in [json.loads(extra) if isinstance(extra, str) else extra for extra in extras]

    def test_without_outlets_the_destination_is_one(self, source: dict[str, Any], destination: str) -> None:
        run = land(destination, source)

        assert run.states == {"land": "success"}
        if AIRFLOW_V_3_0_PLUS:
            with Session() as session:
                query = (
                    "select e.extra from asset_event e join asset a on a.id = e.asset_id where a.uri = :uri"
                )
                extra = session.execute(text(query), {"uri": destination}).scalar_one()
            event = LandingEvent.of(json.loads(extra) if isinstance(extra, str) else extra)
            assert event is not None
            assert (event.rows, event.destination) == (400, destination)

    @pytest.mark.parametrize(
        ("destination", "uri"),
        [
            ("s3://bucket/prices", "s3://bucket/prices"),
            ("s3://my_connection@bucket/prices/", "s3://bucket/prices"),
            ("/data/prices", "file:///data/prices"),
        ],
    )
    def test_the_asset_has_the_name_that_others_know_the_folder_by(self, destination: str, uri: str) -> None:
        with make_dag():
            operator = make_transfer(destination, {"task_id": "t"})
        assert operator.outlets == [Asset(uri)]

    def test_there_is_no_other_outlet_than_those_given_and_none_that_is_not_known_yet(self) -> None:
        own = Asset("s3://bucket/own")

        def outlets(destination: str, **arguments: Any) -> list[Any]:
            with make_dag():
                found: list[Any] = make_transfer(destination, {"task_id": "t"}, **arguments).outlets
            return found

        assert outlets("s3://bucket/a", outlets=[own]) == [own]
        assert outlets("s3://bucket/{{ run_id }}") == []
        assert outlets("s3://bucket/priser på torget") == []

    def test_those_of_many_sources_stay_small(self, sandbox: Sandbox, destination: str) -> None:
        tasks = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 7)]
        asset = Asset(f"{destination}-asset")
        event = SimpleNamespace(extra={})
        execute(make_transfer(destination, sources=tasks, outlets=[asset]), outlet_events={asset: event})
        reported = event.extra

        typed = LandingEvent.of(reported)
        assert typed is not None
        assert (typed.tasks(), typed.all_manifests()) == (tasks, reported["manifests"])
        assert isinstance(reported.pop("duration"), float)
        assert [each["price"] for each in reported.pop("source_filled")] == [1, 1]
        assert reported == {
            "quarantined_rows": 0,
            "source_checks": [[], []],
            "webcollect_conn_id": "webcollect_default",
            "collection_task_ids": tasks,
            "destination": destination,
            "manifests": [f"{destination}/{task}/_manifest.json" for task in tasks],
            "source_rows": [5, 7],
            "source_commits": [1, 1],
            "rows": 12,
            "bytes": sum(manifest(f"{destination}/{task}")["bytes"] for task in tasks),
            "parts": 2,
        }


class TestMetrics:
    def test_rows_bytes_pages_and_retries_are_counted(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, counted: dict[str, int]
    ) -> None:
        sandbox.control.fail("/data/all", after=1, times=2, status=500)
        transfer(destination, source)

        assert counted == {
            "webcollect.landing.rows": 400,
            "webcollect.landing.bytes": manifest(destination)["bytes"],
            "webcollect.landing.pages": 4,
            "webcollect.landing.retries": 2,
            "webcollect.landing.failed_checks": 0,
        }

    def test_what_an_earlier_try_has_landed_is_not_counted_again(
        self, source: dict[str, Any], destination: str, counted: dict[str, int]
    ) -> None:
        for _ in range(2):
            transfer(destination, source, run_id="run")

        assert (counted["webcollect.landing.rows"], counted["webcollect.landing.pages"]) == (400, 4)

    def test_rows_are_counted_once_though_the_mark_fails_and_a_retry_reports_them(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, counted: dict[str, int]
    ) -> None:
        options: dict[str, Any] = {"mode": "incremental", "mark_exported": True, "run_id": "run"}
        sandbox.control.fail(MARK, status=400, code="Odd")
        with pytest.raises(AirflowFailException):
            transfer(destination, source, **options)
        assert counted["webcollect.landing.rows"] == 400

        assert transfer(destination, source, **options)["rows"] == 400
        assert counted["webcollect.landing.rows"] == 400
        assert counted["webcollect.landing.bytes"] == manifest(destination)["bytes"]

    def test_of_sources_those_that_landed_are_counted_though_another_failed(
        self, sandbox: Sandbox, destination: str, counted: dict[str, int]
    ) -> None:
        good = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 7)]
        with pytest.raises(AirflowFailException):
            transfer(destination, sources=[good[0], "no-such-task", good[1]])

        assert (counted["webcollect.landing.rows"], counted["webcollect.landing.pages"]) == (12, 2)


def test_no_rate_is_logged_before_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [time.monotonic()]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    log = Lines()
    report = LandingReport(
        Place(Source(collection_task_id="a"), "file:///tmp/a"),
        ObjectStoragePath("file:///tmp/a"),
        Run(dag_id="d", task_id="t", run_id="r"),
        "full",
        log,
    )
    # the third shows so few new rows that the rate would round to none
    for rows, seconds in ((50, 10.0), (50, 10.0), (51, 10.0), (150, 10.0)):
        clock[0] += seconds
        report.on_progress(rows, 400)

    assert log.lines == [
        "task a: 50 of 400 rows",
        "task a: 50 of 400 rows",
        "task a: 51 of 400 rows",
        "task a: 150 of 400 rows, 3 rows/s, 75 s left",
    ]


@each_form
class TestRetriesOfWhatHasLanded:
    """A run whose commit came has its result for ever, however its attempts ended."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        "mode": "incremental",
        "max_part_bytes": 1,
        "checks": {"columns": {"price": {"filled": 0.5}}},
        "run_id": "first",
    }

    def rows(self, destination: str, form: dict[str, str]) -> list[dict[str, Any]]:
        return table_rows(destination) if form else landed(destination)

    @pytest.mark.parametrize("options", [{}, {"mode": "full"}, {"mark_exported": True}], ids=str)
    def test_the_result_is_the_same_and_nothing_is_read(
        self,
        sandbox: Sandbox,
        source: dict[str, Any],
        destination: str,
        form: dict[str, str],
        options: dict[str, Any],
    ) -> None:
        # the worker was lost when the task's work was done
        first = transfer(destination, source, **{**self.OPTIONS, **options, **form})
        sandbox.control.clear_requests()
        again = transfer(destination, source, **{**self.OPTIONS, **options, **form})

        assert without_duration(again) == without_duration(first)
        assert (again["rows"], len(again["uris"]), [each["state"] for each in again["checks"]]) == (
            400,
            4,
            ["passed"],
        )
        assert sandbox.control.requests() == []
        assert self.rows(destination, form) == sandbox.control.true_rows(source["task_id"])

    def test_a_mark_that_was_refused_is_made_up_for_after_the_source_was_read_once_more(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, form: dict[str, str]
    ) -> None:
        options = {**self.OPTIONS, "mark_exported": True, **form}
        sandbox.control.fail(MARK, status=400, code="Odd")
        with pytest.raises(AirflowFailException, match="Odd"):
            transfer(destination, source, **options)
        # the mark covers these rows, too
        sandbox.control.grow(source["task_id"], 30)
        again = transfer(destination, source, **options)

        assert (again["rows"], len(again["uris"]), again["total_rows"]) == (430, 5, 430)
        # rows, rows, mark
        assert again["commit"] == 3
        assert sandbox.control.task(source["task_id"])["exported"]
        assert self.rows(destination, form) == sandbox.control.true_rows(source["task_id"])
        assert without_duration(transfer(destination, source, **options)) == without_duration(again)

    def test_what_another_run_has_landed_since_is_that_run_s(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, form: dict[str, str]
    ) -> None:
        def be_away(*facts: Any, **more: Any) -> None:
            raise ConnectionError("the API server is down")

        asset = Asset("s3://bucket/told")
        told = {asset: SimpleNamespace(extra=SimpleNamespace(update=be_away))}
        options = {name: value for name, value in self.OPTIONS.items() if name != "run_id"} | form
        with pytest.raises(ConnectionError):
            execute(
                make_transfer(destination, source, outlets=[asset], **options),
                run_id="first",
                outlet_events=told,
            )
        sandbox.control.grow(source["task_id"], 30)
        second = transfer(destination, source, run_id="second", **options)
        first = transfer(destination, source, run_id="first", **options)

        assert [(each["rows"], len(each["uris"]), each["total_rows"]) for each in (first, second)] == [
            (400, 4, 430),
            (30, 1, 430),
        ]
        assert [each["commit"] for each in (first, second)] == [2, 2]
        assert self.rows(destination, form) == sandbox.control.true_rows(source["task_id"])


def test_a_retry_of_several_sources_reports_all_that_the_run_has_landed(
    sandbox: Sandbox, destination: str
) -> None:
    tasks = [str(sandbox.control.add_task(lots=[rows])["task_id"]) for rows in (5, 7, 9)]
    sandbox.control.fail(READ, after=2, status=400, code="TaskExecuting")
    summary = transfer(destination, tries=2, sources=tasks, mode="incremental", max_concurrency=1)

    assert [rows_at(facts["uris"]) for facts in summary["sources"]] == [
        sandbox.control.true_rows(task) for task in tasks
    ]
    assert [facts["commit"] for facts in summary["sources"]] == [1, 1, 1]
