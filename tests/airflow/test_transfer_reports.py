"""What the transfer reports of a landing: summaries, asset events, metrics, log lines.

What a run has committed and not reported since it failed, the next run reports, once.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    Asset,
    ObjectStoragePath,
)
from airflow.providers.common.compat.standard.operators import PythonOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.settings import Session
from sqlalchemy import text

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.destinations import Place
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import Manifest, Run, Source
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.transfers import reporting
from airflow_provider_webcollect.transfers.reporting import LandingReport, totals_of
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import execute
from tests.airflow.landings import land, landed, make_transfer, manifest, rows_at, transfer
from tests.interruption import signalled_when, until_no_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

READ, MARK = "/data/all", "/data/markexported"
MARKING: dict[str, Any] = {"mode": "incremental", "mark_exported": True, "max_part_bytes": 1}
Summary = dict[str, Any]


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

    def test_a_run_that_had_landed_names_its_parts_again(
        self, source: dict[str, Any], destination: str
    ) -> None:
        # the worker was lost when the task's work was done
        summaries = [transfer(destination, source, run_id="run") for _ in range(2)]

        assert len(rows_at(summaries[1]["uris"])) == 400

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
    source = {"collection_task_id": task}
    committed = msgspec.convert(
        {
            "landing_id": "1a2b3c4d",
            "source": source,
            "rows": parts,
            "bytes": 2 * parts,
            "format": "jsonl",
            "parts": [{"name": f"part-{number:05d}-0badcafe.jsonl", **part} for number in range(parts)],
            "new_parts": parts,
            "next_offset": parts,
            "last_page": {},
            "total": parts,
            "run": {"dag_id": "d", "task_id": "t", "run_id": "r"},
            "started_at": "",
            "finished_at": "",
            "provider_version": "",
        },
        Manifest,
    )
    folder = f"file:///tmp/{task}"
    return LandingReport(
        place=Place(committed.source, folder),
        path=ObjectStoragePath(folder),
        run=committed.run,
        mode="full",
        log=Lines(),
        landed=Landed(committed, new=committed.parts, committed=committed.parts),
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

    def test_rows_are_counted_once_though_another_run_reports_them(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, counted: dict[str, int]
    ) -> None:
        options: dict[str, Any] = {"mode": "incremental", "mark_exported": True}
        sandbox.control.fail("/data/markexported", status=400, code="Odd")
        with pytest.raises(AirflowFailException):
            transfer(destination, source, **options)
        assert counted["webcollect.landing.rows"] == 400
        sandbox.control.grow(source["task_id"], 30)

        assert transfer(destination, source, **options)["rows"] == 430
        assert counted["webcollect.landing.rows"] == 430
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
        "task a: ",
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


@pytest.fixture
def refused(sandbox: Sandbox) -> None:
    """The first mark is refused for good."""
    sandbox.control.fail(MARK, status=400, code="Odd")


def is_reported(destination: str, run_id: str) -> list[str]:
    """Return what a reader is told to be a run's."""
    return read_landing(destination).uris(new_only=run_id)


@pytest.mark.usefixtures("refused")
class TestRefusedMark:
    def fail(self, destination: str, source: dict[str, Any]) -> list[str]:
        """Land, but fail since the mark is refused; return the URIs of the parts."""
        with pytest.raises(AirflowFailException, match="Odd"):
            transfer(destination, source, run_id="first", **MARKING)
        parts = is_reported(destination, "first")
        assert len(parts) == 4
        return parts

    @pytest.mark.at_night
    def test_the_next_run_of_a_dag_names_the_parts_of_both(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        asset = Asset(f"{destination}-asset")
        events: list[dict[str, Any]] = []

        def remember(context: Any, result: Any) -> None:
            events.append(dict(context["outlet_events"][asset].extra))

        with make_dag() as dag:
            make_transfer(destination, source, outlets=[asset], post_execute=remember, **MARKING)
        first = run_dag(dag)
        assert (first.states, first.xcoms) == ({"land": "failed"}, {})
        sandbox.control.grow(source["task_id"], 30)

        second = run_dag(dag)

        summary = second.xcoms["land"]
        assert second.states == {"land": "success"}
        assert (summary["rows"], summary["parts"], summary["total_rows"]) == (430, 5, 430)
        assert rows_at(summary["uris"]) == sandbox.control.true_rows(source["task_id"])
        assert summary["uris"] == [f"file://{name}" for name in summary["objects"]]
        assert is_reported(destination, second.run_id) == summary["uris"]
        assert is_reported(destination, first.run_id) == []
        # of a run that has failed, nobody is told
        [event] = events
        assert event["uris"] == summary["uris"]

    @pytest.mark.at_night
    def test_a_run_that_finds_nothing_new_reports_them_and_is_not_skipped(
        self, source: dict[str, Any], destination: str
    ) -> None:
        parts = self.fail(destination, source)
        options = {**MARKING, "skip_if_nothing_new": True}

        second = transfer(destination, source, run_id="second", **options)

        assert (second["uris"], second["rows"], second["parts"]) == (parts, 400, 4)
        assert is_reported(destination, "second") == parts
        with pytest.raises(AirflowSkipException):
            transfer(destination, source, run_id="third", **options)


class Sources:
    """Three tasks that are landed at once, of which one can be made to fail."""

    def __init__(self, sandbox: Sandbox, destination: str) -> None:
        self.tasks = [str(sandbox.control.add_task(lots=[rows])["task_id"]) for rows in (5, 7, 9)]
        self.destination = destination
        self._control = sandbox.control
        self._foreign = Path(self.folder(2).removeprefix("file://")) / "notes.txt"

    def folder(self, index: int) -> str:
        """Return the folder of a task."""
        return f"{self.destination}/{self.tasks[index]}"

    def fail(self, run_id: str) -> None:
        """Land, but the last one fails for good: its folder has another's file until then."""
        self._foreign.parent.mkdir(parents=True)
        self._foreign.touch()
        with pytest.raises(AirflowFailException, match=r"1 of 3 sources did not land.*notes\.txt"):
            self.land(run_id)
        assert [len(is_reported(self.folder(index), run_id)) for index in (0, 1)] == [1, 1]
        self._foreign.unlink()

    def grow(self, index: int, rows: int) -> None:
        """Add rows to a task."""
        self._control.grow(self.tasks[index], rows)

    def operator(self, **options: Any) -> Any:
        """Return what lands all of them, one after another."""
        usual: dict[str, Any] = {"mode": "incremental", "sources": self.tasks, "max_concurrency": 1}
        return make_transfer(self.destination, **usual, **options)

    def land(self, run_id: str, **context: Any) -> Summary:
        """Land all of them."""
        summary: Summary = execute(self.operator(), run_id=run_id, **context)
        return summary

    def rows(self) -> list[list[dict[str, Any]]]:
        """Return the rows of each."""
        return [self._control.true_rows(task) for task in self.tasks]


@pytest.fixture
def sources(sandbox: Sandbox, destination: str) -> Sources:
    """Three tasks with 5, 7 and 9 rows."""
    return Sources(sandbox, destination)


def land_and_tell(operator: Any, meanwhile: Callable[[], None]) -> None:
    """Land in the run ``first``; something happens when that is to be an event of an asset."""

    class Extra(dict[str, Any]):
        def update(self, *facts: Any, **more: Any) -> None:
            meanwhile()
            super().update(*facts, **more)

    asset = Asset("s3://bucket/told")
    operator.outlets = [asset]
    execute(operator, run_id="first", outlet_events={asset: SimpleNamespace(extra=Extra())})


def rows_of_each(summary: Summary) -> list[list[dict[str, Any]]]:
    """Return the rows that a result names for each source."""
    return [rows_at(facts["uris"]) for facts in summary["sources"]]


@pytest.mark.usefixtures("no_pauses")
class TestSources:
    def test_the_next_run_reports_those_that_landed_though_one_failed_for_good(
        self, sources: Sources
    ) -> None:
        sources.fail("first")
        sources.grow(1, 3)

        second = sources.land("second")

        assert rows_of_each(second) == sources.rows()
        assert (second["rows"], second["parts"], second["total_rows"]) == (24, 4, 24)
        assert second["uris"] == [uri for facts in second["sources"] for uri in facts["uris"]]
        for index, facts in enumerate(second["sources"]):
            assert is_reported(sources.folder(index), "second") == facts["uris"]
            assert is_reported(sources.folder(index), "first") == []

    @pytest.mark.at_night
    def test_the_next_run_reports_those_that_landed_before_the_task_timed_out(
        self, sandbox: Sandbox, sources: Sources
    ) -> None:
        # it does not answer before the task has ended
        sandbox.control.fail(READ, kind="slow", seconds=10, after=2)

        def two_have_landed() -> bool:
            with suppress(FileNotFoundError):
                return bool(manifest(sources.folder(1)))
            return False

        with signalled_when(two_have_landed, AirflowTaskTimeout), pytest.raises(AirflowTaskTimeout):
            sources.land("first")
        until_no_thread("webcollect-land")

        assert rows_of_each(sources.land("second")) == sources.rows()
        assert sources.land("third")["uris"] == []


@pytest.mark.usefixtures("no_pauses")
class TestErrorsAfterTheLanding:
    def test_the_next_run_reports_what_a_run_has_landed_that_could_not_tell_airflow(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        def be_away() -> None:
            raise ConnectionError("the API server is down")

        with pytest.raises(ConnectionError):
            land_and_tell(make_transfer(destination, source, mode="incremental"), be_away)
        assert len(landed(destination)) == 400
        sandbox.control.grow(source["task_id"], 30)

        second = transfer(destination, source, run_id="second", mode="incremental")

        assert rows_at(second["uris"]) == sandbox.control.true_rows(source["task_id"])
        assert is_reported(destination, "first") == []
        assert transfer(destination, source, run_id="first", mode="incremental")["uris"] == []
