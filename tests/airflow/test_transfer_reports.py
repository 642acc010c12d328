"""What the transfer reports on a landing: summaries, asset events, metrics, log lines.

A run reports what it has landed itself, in any of its attempts.
"""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from airflow.providers.common.compat.lineage.entities import File
from airflow.providers.common.compat.sdk import AirflowFailException, Asset, AssetAlias
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS
from airflow.utils.session import create_session
from sqlalchemy import text

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.landing.log.commits import Run, Source
from airflow_provider_webcollect.landing.options import SourceOptions
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.transfers import reporting
from airflow_provider_webcollect.transfers.reporting import LandingReport
from tests.airflow.dag_runs import FinishedRun, make_dag
from tests.airflow.executions import Counted, Said, Task, execute, on_sandbox
from tests.airflow.landings import (
    GROWING,
    TABLE,
    Landing,
    land,
    make_transfer,
    manifest,
    reported,
    transfer,
    without_duration,
)

pytestmark = on_sandbox()

READ, MARK = "/data/all", "/data/markexported"


class TestSummary:
    def test_xcom_and_outlets_get_it(self, landing: Landing) -> None:
        asset = Asset(f"{landing.destination}-asset")
        told: dict[str, Any] = {}

        def remember(context: Any, result: Any) -> None:
            told.update(context["outlet_events"][asset].extra)

        run = landing.run(max_part_bytes=1, outlets=[asset], post_execute=remember)
        summary, written, destination = run.xcoms["land"], landing.manifest(), landing.destination

        origin = {"webcollect_conn_id": "webcollect_default", "object_storage_conn_id": None, "lotno": None}
        assert told == {**summary, **origin, "collection_task_id": landing.task_id}
        event = LandingEvent.of(told)
        assert event is not None
        assert (event.rows, event.tasks()) == (400, [landing.task_id])
        assert event.all_manifests() == [f"{destination}/_manifest.json"]
        assert event.extra() == told
        if AIRFLOW_V_3_0_PLUS:
            assert stored_events(asset.uri) == [told]

        uris = [f"{destination}/{part['name']}" for part in written["parts"]]
        assert isinstance(summary.pop("duration"), float)
        filled = summary.pop("filled")
        assert filled["price"] == 1
        assert 0 < filled["city"] < 1
        assert summary == {
            "collection_task_name": None,
            "destination": destination,
            "quarantined_rows": 0,
            "quarantined": [],
            "missing_inputs": None,
            "waiting": [],
            "checks": [],
            "manifest": f"{destination}/_manifest.json",
            "commit": 1,
            "rows": 400,
            "usual_rows": None,
            "bytes": written["bytes"],
            "parts": 4,
            "uris": uris,
            "objects": [uri.removeprefix("file://") for uri in uris],
        }
        assert len(uris) == 4

    def test_with_four_runs_before_it_says_what_is_usual(self, landing: Landing) -> None:
        summaries = []
        for grown in (0, 10, 30, 20, 1):
            landing.control.grow(landing.task_id, grown)
            summaries.append(landing.transfer(**GROWING))
        assert [facts["rows"] for facts in summaries] == [400, 10, 30, 20, 1]
        # also for a run with nothing new
        usual = [facts["usual_rows"] for facts in (*summaries, landing.transfer(**GROWING))]
        assert usual == [None, None, None, None, 25, 20]

    def test_a_skipped_landing_of_another_run_has_no_new_parts(self, landing: Landing) -> None:
        landing.transfer()
        summary = landing.transfer(if_exists="skip")
        assert (summary["rows"], summary["uris"], summary["objects"]) == (400, [], [])


@pytest.mark.parametrize(
    ("most", "of_one", "of_several"), [(5, 4, [5, 4, 1]), (4, 4, [None] * 3), (3, None, [None] * 3)]
)
def test_parts_are_listed_unless_there_are_too_many(
    landing: Landing,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    of_one: int | None,
    of_several: list[int | None],
) -> None:
    assert reporting.MAX_LISTED == 1000
    monkeypatch.setattr(reporting, "MAX_LISTED", most)
    other = landing.control.add_task(lots=[5])["task_id"]
    one = landing.transfer(max_part_bytes=1)
    several = transfer(f"{landing.destination}-all", sources=[landing.task_id, other], max_part_bytes=1)

    for listed in ("uris", "objects"):
        assert (one[listed] and len(one[listed])) == of_one
        summaries = (several, *several["sources"])
        assert [facts[listed] and len(facts[listed]) for facts in summaries] == of_several
    assert (one["parts"], several["parts"]) == (4, 5)
    assert one["manifest"] == f"{landing.destination}/_manifest.json"


def stored_events(destination: str) -> list[dict[str, Any]]:
    """Return the extras of an asset's events, as Airflow has stored them."""
    query = "select e.extra from asset_event e join asset a on a.id = e.asset_id where a.uri = :uri"
    with create_session() as session:
        extras = session.execute(text(query), {"uri": destination}).scalars().all()
    return [json.loads(extra) if isinstance(extra, str) else extra for extra in extras]


class TestAssetEvents:
    @pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="Airflow 2 has no references to assets")
    def test_an_asset_given_by_its_name_gets_the_event(self, source: Task, destination: str) -> None:
        outlet = Asset.ref(name="prices")
        event = SimpleNamespace(extra=dict[str, Any]())
        execute(make_transfer(destination, source, outlets=[outlet]), outlet_events={outlet: event})
        assert event.extra["manifest"] == f"{destination}/_manifest.json"

    def test_an_outlet_that_is_no_asset_is_left_alone(self, source: Task, destination: str) -> None:
        outlet = File(url="https://wiki.example/prices")
        execute(make_transfer(destination, source, outlets=[outlet]), outlet_events={})
        assert read_landing(destination).manifest.rows

    @pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="Airflow 2 names the tables otherwise")
    def test_an_alias_gets_the_event_of_the_destination(self, source: Task, destination: str) -> None:
        land(destination, source, outlets=[AssetAlias("prices")])
        (event,) = stored_events(destination)
        assert event["rows"] == 400

    @pytest.mark.parametrize(
        ("destination", "given", "uris"),
        [
            ("s3://bucket/prices", {}, ["s3://bucket/prices"]),
            ("s3://bucket/prices", TABLE, ["s3://bucket/prices"]),
            # the URI has no connection, as others know the folder
            ("s3://my_connection@bucket/prices/", {}, ["s3://bucket/prices"]),
            ("/data/prices", {}, ["file:///data/prices"]),
            # given outlets replace it; there is none for a template or an invalid URI
            ("s3://bucket/a", {"outlets": [Asset("s3://bucket/own")]}, ["s3://bucket/own"]),
            ("s3://bucket/{{ run_id }}", {}, []),
            ("s3://bucket/priser på torget", {}, []),
            # nor for a URI that Airflow would cut to another folder's
            *((f"{start}/a{sign}b", {}, []) for start in ("s3://bucket", "/data") for sign in "?#"),
            ("/data/a %41+[b]", {}, ["file:///data/a %41+[b]"]),
        ],
    )
    def test_the_outlet_is_the_place(self, destination: str, given: dict[str, Any], uris: list[str]) -> None:
        with make_dag():
            operator = make_transfer(destination, {"task_id": "t"}, **given)
        assert operator.outlets == [*map(Asset, uris)]

    def test_those_of_many_sources_stay_small(self, two_ids: list[str], destination: str) -> None:
        told = reported(destination, sources=two_ids)

        typed = LandingEvent.of(told)
        assert typed is not None
        assert (typed.tasks(), typed.all_manifests()) == (two_ids, told["manifests"])
        assert isinstance(told.pop("duration"), float)
        assert [filled["price"] for filled in told.pop("source_filled")] == [1, 1]
        assert told == {
            "quarantined_rows": 0,
            "source_checks": [[], []],
            "source_missing_inputs": [None, None],
            "source_quarantined": [[], []],
            "source_waiting": [[], []],
            "webcollect_conn_id": "webcollect_default",
            "object_storage_conn_id": None,
            "collection_task_ids": two_ids,
            "collection_task_names": [None, None],
            "destination": destination,
            "manifests": [f"{destination}/{task}/_manifest.json" for task in two_ids],
            "source_rows": [5, 7],
            "source_usual_rows": [None, None],
            "usual_rows": None,
            "source_commits": [1, 1],
            "rows": 12,
            "bytes": sum(manifest(f"{destination}/{task}")["bytes"] for task in two_ids),
            "parts": 2,
        }

    def test_that_of_a_table_has_the_same_keys(self, source: Task, destination: str) -> None:
        of_folder, of_table = (
            reported(f"{destination}/{name}", source, mode="incremental", file_format="parquet", **options)
            for name, options in (("folder", {}), ("table", TABLE))
        )

        assert of_table.keys() == of_folder.keys()
        different = {key for key in of_table if of_table[key] != of_folder[key]}
        # their durations may differ
        assert different - {"duration"} == {"destination", "manifest", "uris", "objects"}
        event = LandingEvent.of(of_table)
        assert event is not None
        assert event.all_manifests() == [f"{destination}/table"]
        assert read_landing(event.all_manifests()[0]).manifest.rows == 400

    def test_the_asset_of_a_folder_gets_its_event(self, two_ids: list[str], destination: str) -> None:
        own = f"{destination}/elsewhere"
        sources = [{"collection_task_id": two_ids[0], "destination": own}, two_ids[1]]
        folders = [own, f"{destination}/{two_ids[1]}"]
        events = {Asset(uri): SimpleNamespace(extra={}) for uri in (*folders, destination)}
        summary = execute(
            make_transfer(destination, sources=sources, outlets=[*events], **GROWING), outlet_events=events
        )
        *of_each, of_all = (event.extra for event in events.values())

        connections = {"webcollect_conn_id": "webcollect_default", "object_storage_conn_id": None}
        assert of_each == [{**connections, **landed} for landed in summary["sources"]]
        assert [source["destination"] for source in of_each] == folders
        assert of_all["collection_task_ids"] == two_ids


@pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow has partitions of assets from 3.3 on")
class TestAssetPartition:
    @staticmethod
    def stored_keys(run: FinishedRun) -> list[str | None]:
        """Return the partition keys of a run's events, as Airflow has stored them."""
        query = "select partition_key from asset_event where source_run_id = :run_id"
        with create_session() as session:
            return list(session.execute(text(query), {"run_id": run.run_id}).scalars())

    @pytest.mark.parametrize(
        ("asset_partition", "key"),
        [
            (None, None),
            ("2026-01-01", "2026-01-01"),
            ("{{ '2026-01-01' }}|{{ task.task_id }}\n", "2026-01-01|land"),
            ("{{ 'x' * 250 }}", "x" * 250),
        ],
    )
    def test_the_event_with_the_facts_has_it_as_its_key(
        self, source: Task, destination: str, asset_partition: str | None, key: str | None
    ) -> None:
        run = land(destination, source, asset_partition=asset_partition)
        assert self.stored_keys(run) == [key]
        event = LandingEvent.of(stored_events(destination)[-1])
        assert event is not None
        assert event.rows == 400

    def test_each_outlet_gets_one_event_for_all(self, two_ids: list[str], destination: str) -> None:
        outlets = [Asset(f"{destination}-{name}") for name in "ab"]
        run = land(destination, sources=two_ids, outlets=outlets, asset_partition="2026-01-01")
        assert self.stored_keys(run) == ["2026-01-01"] * 2


class TestCounts:
    def test_all_is_counted_once(self, landing: Landing, counted: Counted) -> None:
        landing.control.fail(READ, after=1, times=2, status=500)
        for _ in range(2):
            # what an earlier try has landed is not counted again
            landing.transfer(run_id="run")

            assert counted() == {
                "webcollect.landing.rows": 400,
                "webcollect.landing.bytes": landing.manifest()["bytes"],
                "webcollect.landing.pages": 4,
                "webcollect.landing.retries": 2,
                "webcollect.landing.failed_checks": 0,
            }

    def test_a_failed_mark_counts_no_rows_twice(self, landing: Landing, counted: Counted) -> None:
        options: dict[str, Any] = {**GROWING, "mark_exported": True, "run_id": "run"}
        landing.control.fail(MARK, status=400, code="Odd")
        with pytest.raises(AirflowFailException):
            landing.transfer(**options)
        assert counted()["webcollect.landing.rows"] == 400

        assert landing.transfer(**options)["rows"] == 400
        assert counted()["webcollect.landing.rows"] == 400
        assert counted()["webcollect.landing.bytes"] == landing.manifest()["bytes"]

    def test_sources_that_landed_are_counted_though_another_failed(
        self, two_ids: list[str], destination: str, counted: Counted, said: Said
    ) -> None:
        with pytest.raises(AirflowFailException):
            transfer(destination, sources=[two_ids[0], "no-such-task", two_ids[1]], max_concurrency=1)
        assert (counted()["webcollect.landing.rows"], counted()["webcollect.landing.pages"]) == (12, 2)
        log = said()
        assert re.findall(r"rows now \((\d of \d)\)", log) == ["1 of 3", "3 of 3"]
        assert re.search(r"12 new rows in 2 parts, \d+ bytes; 0 had nothing new, 1 did not land", log)


class TestProgressOfManySources:
    """The log of a task that lands several sources."""

    def test_each_says_how_far_it_is(self, sandbox: Sandbox, destination: str, said: Said) -> None:
        tasks = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (10, 20, 30)]
        options: dict[str, Any] = {"sources": tasks, "max_part_bytes": 1, "page_size": 10, **GROWING}
        transfer(destination, **options)
        first = said()
        sandbox.control.grow(tasks[0], 5)
        transfer(destination, **options)
        second = said().removeprefix(first)

        for log in (first, second):
            # of two that end at once, either may be logged first
            assert sorted(re.findall(r"rows now \((\d of 3)\)", log)) == ["1 of 3", "2 of 3", "3 of 3"]
        size = sum(manifest(f"{destination}/{task}")["bytes"] for task in tasks)
        assert "3 sources: 60 new rows in 6 parts, " in first
        assert "bytes; 0 had nothing new, 0 did not land" in first
        sums = re.search(r"3 sources: 5 new rows in 1 part, (\d+) bytes; 2 had nothing new, 0 did", second)
        assert sums
        assert re.search(rf"60 new rows in 6 parts, {size - int(sums[1])} bytes; ", first)

    def test_quarantined_rows_are_new_rows(self, two_ids: list[str], destination: str, said: Said) -> None:
        checks: dict[str, Any] = {"checks": {"rows": {"min": 6}}, "on_failed_checks": "quarantine"}
        transfer(destination, sources=two_ids, **checks, **GROWING)
        assert re.search(r"2 sources: 7 new rows in 1 part, \d+ bytes; 0 had nothing new, 0 did not", said())

    def test_a_single_landing_has_no_such_lines(self, landing: Landing, said: Said) -> None:
        landing.transfer()
        log = said()
        assert "which has 400 rows now" in log
        assert "1 of 1" not in log
        assert "had nothing new" not in log


def test_no_rate_is_logged_before_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [time.monotonic()]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    lines: list[str] = []
    location = Location("folder", "/tmp/a")
    report = LandingReport(
        Source(collection_task_id="a"),
        None,
        location,
        location,
        Run(dag_id="d", task_id="t", run_id="r"),
        SourceOptions(mode="full"),
        SimpleNamespace(info=lambda line, *arguments: lines.append(line % arguments)),
        WebCollectHook().client.context,
        {},
    )
    # the third shows so few new rows that the rate would round to 0
    for rows, seconds in ((50, 10.0), (50, 10.0), (51, 10.0), (150, 10.0)):
        clock[0] += seconds
        report.on_progress(rows, 400)

    assert lines == [
        "task a: 50 of 400 rows",
        "task a: 50 of 400 rows",
        "task a: 51 of 400 rows",
        "task a: 150 of 400 rows, 3 rows/s, 75 s left",
    ]


@pytest.mark.parametrize("form", [{}, TABLE], ids=["folder", "table"])
class TestRetriesOfWhatHasLanded:
    """Once a run has committed, its retries report what it has landed, however its attempts ended."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        **GROWING,
        "max_part_bytes": 1,
        "checks": {"columns": {"price": {"filled": 0.5}}},
    }

    def rows(self, landing: Landing, form: dict[str, str]) -> list[dict[str, Any]]:
        return landing.table() if form else landing.rows()

    @pytest.mark.parametrize("options", [{}, {"mode": "full"}, {"mark_exported": True}], ids=str)
    def test_the_result_is_the_same_and_nothing_is_read(
        self, landing: Landing, form: dict[str, str], options: dict[str, Any]
    ) -> None:
        # as if the worker was lost right after the task's work was done
        options = {**self.OPTIONS, **options, **form, "run_id": "first"}
        first = landing.transfer(**options)
        landing.control.clear_requests()
        again = landing.transfer(**options)

        assert without_duration(again) == without_duration(first)
        assert (again["rows"], len(again["uris"])) == (400, 4)
        assert [check["state"] for check in again["checks"]] == ["passed"]
        assert landing.control.requests() == []
        assert self.rows(landing, form) == landing.truth()

    def test_a_refused_mark_is_made_later(self, landing: Landing, form: dict[str, str]) -> None:
        options = {**self.OPTIONS, "mark_exported": True, **form, "run_id": "first"}
        landing.control.fail(MARK, status=400, code="Odd")
        with pytest.raises(AirflowFailException, match="Odd"):
            landing.transfer(**options)
        # the mark covers these rows, too
        landing.grow()
        again = landing.transfer(**options)

        assert (again["rows"], len(again["uris"]), again["total_rows"]) == (430, 5, 430)
        # two commits of rows, and the mark
        assert again["commit"] == 3
        assert landing.control.task(landing.task_id)["exported"]
        assert self.rows(landing, form) == landing.truth()
        assert without_duration(landing.transfer(**options)) == without_duration(again)

    def test_what_another_run_landed_is_its_own(self, landing: Landing, form: dict[str, str]) -> None:
        def be_away(*facts: Any, **more: Any) -> None:
            raise ConnectionError("the API server is down")

        asset, options = Asset("s3://bucket/told"), {**self.OPTIONS, **form}
        told = {asset: SimpleNamespace(extra=SimpleNamespace(update=be_away))}
        operator = make_transfer(landing.destination, landing.task, outlets=[asset], **options)
        with pytest.raises(ConnectionError):
            execute(operator, run_id="first", outlet_events=told)
        landing.grow()
        second, first = (landing.transfer(run_id=run, **options) for run in ("second", "first"))

        facts = [(run["rows"], len(run["uris"]), run["total_rows"]) for run in (first, second)]
        assert facts == [(400, 4, 430), (30, 1, 430)]
        assert [run["commit"] for run in (first, second)] == [2, 2]
        assert not {*first["uris"]} & {*second["uris"]}
        assert self.rows(landing, form) == landing.truth()
