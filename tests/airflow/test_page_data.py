"""The data of the page in Airflow's web interface, read from a real database and a sandbox."""

from __future__ import annotations

import datetime
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Asset
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS
from airflow.utils.session import create_session
from sqlalchemy import insert, select, update

from airflow_provider_webcollect.common import GRACE
from airflow_provider_webcollect.hooks import webcollect
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from tests.airflow.dag_runs import make_dag, run_dag
from tests.interruption import PATIENCE

if not AIRFLOW_V_3_1_PLUS:
    pytest.skip("the page is for Airflow 3.1 and later", allow_module_level=True)

from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.serialization.helpers import serialize_template_field

from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS
from airflow_provider_webcollect.ui import activity, landings, service
from airflow_provider_webcollect.ui.activity import read_activity
from airflow_provider_webcollect.ui.landings import (
    MOST_COLUMNS,
    MOST_RUNS,
    SeriesKey,
    read_columns,
    read_landings,
)
from airflow_provider_webcollect.ui.service import ServiceView, known_connections
from tests.airflow.executions import Connect

pytestmark = pytest.mark.usefixtures("airflow_database")

NOW = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
#: The parts of what the page shows about an account.
PARTS = ("token", "capacity", "tasks", "days")
EVERYTHING = None
#: Columns of a deferred task instance.
DEFERRED: dict[str, Any] = {"state": "deferred", "start_date": NOW}
COUNTS = "/cloudextraction/task/stats"
#: The fixture `configure_tasks`.
Configure = Callable[..., Path]
Clock = Callable[[float], None]
_numbers = itertools.count(1)


def landed(**facts: Any) -> dict[str, Any]:
    """Return the extra of a landing's asset event."""
    usual = {"webcollect_conn_id": "webcollect_default", "destination": "s3://bucket/prices"}
    counts = {"rows": 30, "bytes": 1, "parts": 1, "duration": 0.5}
    return {**usual, "manifest": "s3://bucket/prices/_manifest.json", **counts, **facts}


def landed_a(**facts: Any) -> dict[str, Any]:
    """Return the extra of the asset event of a landing of the collection task `a`."""
    return landed(collection_task_id="a", **facts)


def several(**facts: Any) -> dict[str, Any]:
    """Return the extra of the asset event of a landing of two sources, `a` and `b`."""
    manifests = [f"{folder}/_manifest.json" for folder in "ab"]
    return landed(collection_task_ids=["a", "b"], manifests=manifests, **facts)


#: So many ids that Airflow truncates the argument when it stores it.
IDS = [f"5a9d0b0e-0000-4000-8000-{number:012}" for number in range(150)]


def stored(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: serialize_template_field(value, name) for name, value in arguments.items()}


def read(dag_ids: set[str], now: datetime.datetime = NOW, search: str = "") -> dict[str, Any]:
    """Return the landings of some DAGs, as the page gets them."""
    with create_session() as session:
        return read_landings(session, dag_ids, now, search)


def read_work(dag_id: str, now: datetime.datetime = NOW) -> dict[str, Any]:
    """Return the tasks of a DAG, as the page gets them."""
    with create_session() as session:
        return read_activity(session, {dag_id}, now)


def columns_of(series: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a landing, as the page gets them."""
    with create_session() as session:
        return read_columns(session, SeriesKey(*(series[name] for name in SeriesKey._fields)), NOW)


def outcome(check: str = "columns.price.filled", state: str = "failed") -> dict[str, str]:
    """Return the outcome of a check, as an asset event has it."""
    return {"check": check, "state": state, "expected": "filled in all", "found": "filled in none"}


def rows_waiting(commit: int, at: datetime.datetime) -> dict[str, Any]:
    """Return the entry of an asset event about 30 rows that a commit has quarantined."""
    return {"commit": commit, "rows": 30, "dag_id": "d", "run_id": "r", "at": at.isoformat()}


class Events:
    """Puts asset events and runs of a DAG into the database.

    :ivar dag_id: id of the DAG.
    """

    def __init__(self, dag_id: str | None = None) -> None:
        self.dag_id = dag_id or f"lands_{next(_numbers)}"
        self.asset = Asset(name=f"rows_{next(_numbers)}", uri=f"s3://bucket/{next(_numbers)}")

    def add(
        self, *rows: int, ended: datetime.datetime = NOW, usual: float | None = None, **fields: Any
    ) -> None:
        """Add a landing for each number of rows, a day apart, the last one a minute before ``ended``.

        :param usual: the usual number of rows, in each event.
        """
        for index, count in enumerate(rows):
            landed_at = ended - datetime.timedelta(minutes=1) - DAY * (len(rows) - 1 - index)
            extra = landed_a(rows=count, bytes=count * 100, usual_rows=usual)
            self.add_event(extra, landed_at, **fields)

    def add_event(self, extra: Any, at: datetime.datetime = NOW, **fields: Any) -> None:
        columns = {
            "source_dag_id": self.dag_id,
            "source_task_id": "land",
            "source_run_id": f"run_{next(_numbers)}",
            "source_map_index": -1,
            **fields,
        }
        with create_session() as session:
            asset = session.query(AssetModel).filter_by(uri=self.asset.uri).one_or_none()
            if asset is None:
                session.add(asset := AssetModel(name=self.asset.name, uri=self.asset.uri, group="asset"))
                session.flush()
            session.add(AssetEvent(asset_id=asset.id, extra=extra, timestamp=at, **columns))

    def add_run(
        self,
        run_id: str,
        run_type: str = "scheduled",
        logical_date: datetime.datetime | None = None,
        task_id: str = "land",
        map_index: int = -1,
        arguments: dict[str, Any] | None = None,
        result: Any = None,
        **columns: Any,
    ) -> None:
        """Add a DAG run, unless it exists, and a task instance if ``columns`` are given, by default failed.

        :param arguments: rendered arguments of the task.
        :param result: result of the task.
        """
        run: dict[str, Any] = {"dag_id": self.dag_id, "run_id": run_id}
        when = {"logical_date": logical_date, "run_after": NOW, "run_type": run_type}
        task = {**run, "task_id": task_id, "map_index": map_index}
        usual = {"operator": "WebCollectTransfer", "state": "failed", "try_number": 1}
        with create_session() as session:
            if session.scalar(select(DagRun).filter_by(**run)) is None:
                session.execute(insert(DagRun.__table__).values(**run, **when))
            if columns:
                where = {"id": uuid.uuid4(), "pool": "default_pool", "queue": "default"}
                values = {**task, **usual, **where, **columns}
                session.execute(insert(TaskInstance.__table__).values(**values))
            if arguments:
                fields = insert(RenderedTaskInstanceFields.__table__)
                session.execute(fields.values(**task, rendered_fields=arguments))
            if result:
                XComModel.set("return_value", result, **task, session=session)

    def add_dag(self, **facts: Any) -> None:
        """Add the DAG to Airflow's database."""
        limits = {"max_active_tasks": 1, "max_consecutive_failed_dag_runs": 0}
        usual = {"is_paused": False, "is_stale": False, "has_task_concurrency_limits": False, **limits}
        with create_session() as session:
            session.merge(DagBundleModel(name="page"))
            session.flush()
            session.merge(DagModel(dag_id=self.dag_id, bundle_name="page", **{**usual, **facts}))

    def read(self, search: str = "") -> list[dict[str, Any]]:
        return list(read({self.dag_id}, search=search)["series"])

    def one(self) -> dict[str, Any]:
        (series,) = self.read()
        return series

    def marks(self) -> list[str]:
        return list(self.one()["marks"])

    def runs(self) -> list[dict[str, Any]]:
        return list(self.one()["runs"])


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Advances the clock by which values get old, by a number of seconds."""
    moves: list[float] = []
    real = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: real() + sum(moves))
    return moves.append


class TestLandings:
    def test_the_latest_runs_are_shown_the_oldest_first(self, events: Events) -> None:
        # even if the DAG stopped long ago
        events.add(*range(MOST_RUNS + 5), ended=NOW - DAY * 400)
        # other events of the asset do not count as runs
        for _ in range(MOST_RUNS + 1):
            events.add_event({"note": "of another operator"}, source_task_id="another")
            events.add_event({"note": "of the same task"})
            events.add_event({}, source_dag_id=None, source_task_id=None, source_run_id=None)
        assert [run["rows"] for run in events.runs()] == list(range(5, MOST_RUNS + 5))
        assert events.marks() == ["late"]
        assert events.one()["lotno"] is None

    def test_each_task_each_index_and_each_asset_has_its_own_series(self, events: Events) -> None:
        usual: dict[str, Any] = {}
        places = (usual, {"source_task_id": "other"}, {"source_map_index": 0}, {"source_map_index": 1})
        for rows, place in enumerate(places, 1):
            events.add(rows, **place)
        Events(events.dag_id).add(5)
        assert sorted(series["runs"][0]["rows"] for series in events.read()) == [1, 2, 3, 4, 5]
        # nothing is shown of a DAG that the person may not read
        assert read({"another"})["series"] == []

    def test_a_task_that_was_cleared_has_one_landing_per_run(self, events: Events) -> None:
        for rows, run_id, days in ((1, "first", 1), (2, "second", 1 / 2), (3, "first", 0)):
            events.add(rows, source_run_id=run_id, ended=NOW - DAY * days)
        assert [(run["run_id"], run["rows"]) for run in events.runs()] == [("second", 2), ("first", 3)]
        events.add_run("first", end_date=NOW)
        assert [run["state"] for run in events.runs()] == ["landed", "failed"]

    @pytest.mark.parametrize(
        "extra", [{}, {"rows": 1}, landed(rows="1"), landed(webcollect_conn_id=None), landed(manifests=[])]
    )
    def test_events_that_no_landing_has_left_are_left_out(self, events: Events, extra: Any) -> None:
        events.add_event(extra)
        assert events.read() == []

    def test_of_many_series_trouble_comes_first(
        self, events: Events, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(landings, "MOST_SERIES", most := 6)
        for count in range(most + 2):
            events.add(count, source_map_index=count, ended=NOW - datetime.timedelta(minutes=count))
        events.add(1, 1, 1, 1, 1, source_task_id="late", ended=NOW - DAY * 30)
        events.add(1, source_task_id="land", ended=NOW - DAY * 30)
        events.add_run("broken", end_date=NOW)
        data = read({events.dag_id})
        assert data["left_out"] == 4
        counts = {"failed": 1, "checks": 0, "late": 1, "odd": 0, "empty": 0}
        assert data["counts"] == {"landings": most, **counts}
        assert [series["map_index"] for series in data["series"]] == [*range(-1, most - 2), -1]
        # paused landings do not displace active ones
        monkeypatch.setattr(landings, "MOST_SERIES", 1)
        paused, lands = Events(), Events()
        paused.add(1, 1, 1, 1, 1, ended=NOW - DAY * 9)
        paused.add_dag(is_paused=True)
        lands.add(1)
        data = read({lands.dag_id, paused.dag_id})
        assert [series["dag_id"] for series in data["series"]] == [lands.dag_id]

    def test_very_many_series_are_chosen_once_a_minute(
        self, events: Events, monkeypatch: pytest.MonkeyPatch, clock: Clock
    ) -> None:
        monkeypatch.setattr(landings, "MANY_SERIES", 2)
        for index in range(3):
            events.add(1, source_map_index=index)
        clock(landings.KEPT_SECONDS)
        assert len(events.read()) == 3
        events.add(2, 3, source_map_index=2, ended=NOW + DAY)
        events.add(1, source_map_index=3)
        # a new series is shown within a minute, a new run at once
        assert [len(series["runs"]) for series in events.read()] == [1, 1, 3]
        clock(landings.KEPT_SECONDS)
        assert len(events.read()) == 4

    def test_a_search_finds_names_of_dag_task_and_asset(self, events: Events) -> None:
        events.add(1)
        searches = {"LANDS_": True, "land": True, "Rows_": True, "://BUCKET": True, "%": False}
        assert {search: bool(events.read(search)) for search in searches} == searches

    def test_a_search_may_have_several_words(self, events: Events) -> None:
        events.add(1, source_task_id="collect.land")
        searches = {"lands_ collect": True, f"{events.dag_id} · collect.land": True, "lands_ other": False}
        assert {search: bool(events.read(search)) for search in searches} == searches

    def test_a_search_for_a_retry_finds_its_landing(self, events: Events) -> None:
        for task_id in ("collect.land", "collect.retry_1.land"):
            events.add(1, source_task_id=task_id, source_run_id="run")
        assert [series["task_id"] for series in events.read("retry_1")] == ["collect.land"]

    def test_a_search_finds_what_is_newer_than_what_is_known_of_all(
        self, events: Events, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(landings, "MANY_SERIES", 0)
        clock(landings.KEPT_SECONDS)
        events.add(1, source_task_id="first")
        events.read()
        events.add(1, source_task_id="second")
        assert [series["task_id"] for series in events.read("second")] == ["second"]

    @pytest.mark.parametrize(
        ("rows", "usual", "state", "marks"),
        [
            ((100,), 100, "landed", []),
            # odd: less than half of the usual number, or more than twice
            ((200,), 100, "landed", []),
            ((201,), 100, "landed", ["odd"]),
            ((50,), 100, "landed", []),
            ((49,), 100, "landed", ["odd"]),
            # the landing does not know what is usual
            ((100, 100, 100, 100, 300), None, "landed", []),
            # no rows: a state of its own, and a mark only if all runs before had rows
            ((100, 100, 100, 100, 0), 100, "empty", ["empty"]),
            ((100, 0, 100, 100, 0), 100, "empty", []),
            ((100, 100, 100, 0), None, "empty", []),
        ],
    )
    def test_a_count_is_judged_by_what_is_usual_as_the_landing_says(
        self, events: Events, rows: tuple[int, ...], usual: float | None, state: str, marks: list[str]
    ) -> None:
        events.add(*rows, usual=usual)
        newest = events.runs()[-1]
        assert (newest["state"], newest["is_odd"], events.marks()) == (state, "odd" in marks, marks)
        assert (newest["usual_rows"], events.one()["sources"][0]["usual_rows"]) == (usual, usual)

    def test_failed_runs_are_among_the_latest(self, events: Events) -> None:
        events.add(1, source_run_id="first", ended=NOW - DAY)
        events.add_run("broken", end_date=NOW - DAY / 2)
        events.add(3, source_run_id="third", ended=NOW - DAY / 4)
        assert [(run["run_id"], run["state"], run["rows"]) for run in events.runs()] == [
            ("first", "landed", 1),
            ("broken", "failed", None),
            ("third", "landed", 3),
        ]
        assert events.marks() == []
        events.add_run("last", end_date=NOW)
        assert events.marks() == ["failed"]
        assert events.one()["landed_at"] == events.runs()[-2]["ended_at"]

    def test_runs_that_are_counted_tell_what_is_new_changed_and_gone(self, events: Events) -> None:
        counts = {"new": 3, "changed": 2, "gone": 1}
        for told in ({}, {"changes": None}, {"changes": counts}):
            events.add_event(landed_a(**told))
        assert [run.get("changes") for run in events.runs()] == [None, None, counts]

    def test_each_run_has_its_date_its_commit_and_other_manifests(self, events: Events) -> None:
        first = landed(manifest="s3://bucket/1/_manifest.json", commit=7)
        events.add_event(first, NOW - DAY, source_run_id="first")
        events.add_run("first", logical_date=NOW)
        events.add_event(landed(manifest="s3://bucket/2/_manifest.json"))
        first, second = events.runs()
        assert (first["commit"], second["commit"]) == (7, None)
        assert (first["logical_date"], second["logical_date"]) == (NOW.isoformat(), None)
        assert first["manifests"] == ["s3://bucket/1/_manifest.json"]
        assert "manifests" not in second
        assert events.one()["manifests"] == ["s3://bucket/2/_manifest.json"]

    @pytest.mark.parametrize(("silence", "marks"), [(1.9, []), (2.1, ["late"])])
    def test_it_is_late_after_two_intervals(self, events: Events, silence: float, marks: list[str]) -> None:
        events.add(1, 1, 1, 1, 1, ended=NOW - DAY * silence)
        series = events.one()
        assert (series["usual_seconds"], series["marks"]) == (86_400.0, marks)
        expected = datetime.datetime.fromisoformat(series["landed_at"]) + DAY
        assert series["expected_at"] == expected.isoformat()
        # a paused DAG, or one without a schedule, is never late
        for facts in ({"is_paused": True}, {"is_paused": False, "timetable_summary": "None"}):
            events.add_dag(**facts)
            series = events.one()
            values = (series["expected_at"], series["marks"], series["is_paused"])
            assert values == (None, [], facts["is_paused"])

    @pytest.mark.parametrize("run_type", ["manual", "backfill", "asset_materialization"])
    def test_manual_runs_do_not_tell_when_the_next_is_expected(self, events: Events, run_type: str) -> None:
        for index in range(6):
            events.add(1, source_run_id=f"run {index}", ended=NOW - DAY * (15 - index))
            events.add_run(f"run {index}", run_type)
        assert (events.one()["expected_at"], events.marks()) == (None, [])

    @pytest.mark.parametrize(("days", "marks", "next_day"), [(8, ["late"], 7), (0.5, [], 0)])
    def test_a_manual_run_ends_no_schedule(
        self, events: Events, days: float, marks: list[str], next_day: int
    ) -> None:
        events.add(1, 1, 1, 1, 1, 1, ended=NOW - DAY * 9)
        assert events.marks() == ["late"]
        events.add(1, source_run_id="by hand", ended=NOW - DAY * days)
        events.add_run("by hand", "manual")
        expected = NOW - DAY * next_day - datetime.timedelta(minutes=1)
        assert (events.one()["expected_at"], events.marks()) == (expected.isoformat(), marks)

    @pytest.mark.parametrize(
        ("details", "facts"),
        [
            ({"source_rows": [10, 20], "source_commits": [7, 3]}, [("a", 10, 7), ("b", 20, 3)]),
            ({}, [("a", None, None), ("b", None, None)]),
        ],
    )
    def test_each_source_has_its_task_its_rows_and_its_commit(
        self, events: Events, details: dict[str, Any], facts: list[tuple[Any, ...]]
    ) -> None:
        events.add_event(several(**details))
        series = events.one()
        names = ("collection_task_id", "rows", "commit")
        assert [tuple(source[name] for name in names) for source in series["sources"]] == facts
        assert series["runs"][0]["commit"] is None
        assert series["manifests"] == ["a/_manifest.json", "b/_manifest.json"]

    def test_one_of_many_sources_without_rows_is_seen(self, events: Events) -> None:
        def add(*rows: int, at: datetime.datetime) -> None:
            tasks = ["a", "b", "c"]
            sources = {"collection_task_ids": tasks, "manifests": tasks, "source_rows": rows}
            events.add_event(landed(rows=sum(rows), source_usual_rows=[1000, 10, None], **sources), at)

        for index in range(5, 0, -1):
            add(1000, 10, 10 * (index % 2), at=NOW - DAY * index)
        add(1000, 10, 0, at=NOW - DAY / 2)
        assert events.marks() == []
        add(1000, 0, 50, at=NOW)
        assert events.marks() == ["empty"]
        # `c` has too few runs with rows to tell what is usual
        sources = [(source["mark"], source["usual_rows"]) for source in events.one()["sources"]]
        assert sources == [(None, 1000), ("empty", 10), (None, None)]


class TestRetiredLandings:
    """Landings that no run adds to any more have no marks, and say why."""

    def failing(self, events: Events, **where: Any) -> None:
        """Add a landing whose next run has failed."""
        source = {f"source_{name}": value for name, value in where.items()}
        events.add_event(landed_a(), NOW - DAY * 2, **source)
        events.add_run("broken", end_date=NOW - DAY, **where)
        assert (events.marks(), events.one()["retired"]) == (["failed"], None)

    def end_run(
        self,
        events: Events,
        task_id: str,
        *indexes: int,
        state: str = "success",
        at: datetime.datetime | None = None,
        task_state: str = "success",
    ) -> None:
        """Add an ended run of the DAG, which has one task."""
        run_id = f"newest_{next(_numbers)}"
        for index in indexes or (-1,):
            events.add_run(run_id, task_id=task_id, map_index=index, operator="Other", state=task_state)
        with create_session() as session:
            session.execute(update(DagRun).filter_by(run_id=run_id).values(state=state, end_date=at))

    def test_the_dag_no_longer_has_the_task(self, events: Events) -> None:
        self.failing(events)
        # an active run may not have all its tasks yet
        self.end_run(events, "other", state="running")
        assert events.marks() == ["failed"]
        self.end_run(events, "other")
        assert (events.marks(), events.one()["retired"]) == ([], "the DAG no longer has the task")
        self.end_run(events, "land")
        assert (events.marks(), events.one()["retired"]) == (["failed"], None)

    def test_the_task_no_longer_has_the_index(self, events: Events) -> None:
        self.failing(events, map_index=2)
        # the upstream task has failed, so the task was not expanded
        self.end_run(events, "land", -1, task_state="upstream_failed")
        assert events.marks() == ["failed"]
        # there are fewer indexes, or it is no longer mapped
        for indexes in ((0, 1), (-1,)):
            self.end_run(events, "land", *indexes)
            assert (events.marks(), events.one()["retired"]) == ([], "the task no longer has the index")

    @pytest.mark.parametrize("place", [{"source_task_id": "new"}, {"source_map_index": 2}])
    def test_what_landed_since_has_not_retired(self, events: Events, place: dict[str, Any]) -> None:
        self.end_run(events, "land", 0, 1, at=NOW - DAY)
        events.add_event(landed_a(), NOW, **place)
        assert events.one()["retired"] is None
        self.end_run(events, "land", 0, 1, at=NOW + DAY)
        assert events.one()["retired"] is not None

    def test_airflow_no_longer_has_the_dag(self, events: Events) -> None:
        events.add_dag()
        self.failing(events)
        events.add_dag(is_stale=True)
        assert (events.marks(), events.one()["retired"]) == ([], "Airflow no longer has the DAG")

    def test_a_task_that_lands_elsewhere_leaves_the_landing_behind(self, events: Events) -> None:
        others = Events(events.dag_id)
        events.add_event(landed_a(), NOW - DAY, source_run_id="both")
        others.add_event(landed_a(), NOW - DAY / 2, source_run_id="both")
        assert [series["retired"] for series in events.read()] == [None, None]
        others.add_event(landed_a(), NOW, source_run_id="next")
        told = {series["asset"]["uri"]: series["retired"] for series in events.read()}
        assert told == {events.asset.uri: "the task has landed elsewhere since", others.asset.uri: None}
        # also if a search leaves out the new place
        (found,) = events.read(search=events.asset.name)
        assert found["retired"] == told[events.asset.uri]

    def test_retired_landings_hide_no_active_ones(
        self, events: Events, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(landings, "MOST_SERIES", 2)
        events.add_dag(is_stale=True)
        for index in range(9):
            events.add(1, 1, 1, 1, 1, source_map_index=index, ended=NOW - DAY * 30)
        lands = Events()
        lands.add(1)
        data = read({events.dag_id, lands.dag_id})
        assert {series["dag_id"]: series["retired"] for series in data["series"]} == {
            events.dag_id: "Airflow no longer has the DAG",
            lands.dag_id: None,
        }
        assert data["left_out"] == 8

    def test_its_quarantined_rows_are_told(self, events: Events) -> None:
        events.add_event(landed_a(waiting=[rows_waiting(7, NOW)]))
        self.end_run(events, "other")
        assert (events.one()["retired"] is None, len(events.one()["quarantines"])) == (False, 1)


class TestChecks:
    FAILED = "columns.price.filled: filled in none; expected: filled in all"

    @pytest.mark.parametrize(
        ("states", "marks"),
        [(["failed"], ["checks"]), (["warning"], ["checks"]), (["passed", "skipped"], []), ([], [])],
    )
    def test_failed_checks_are_a_mark(self, events: Events, states: list[str], marks: list[str]) -> None:
        events.add_event(landed_a(checks=[outcome()]), NOW - DAY)
        events.add_event(landed_a(checks=[outcome(state=state) for state in states]))
        assert events.marks() == marks
        told = [{"state": state, "text": self.FAILED} for state in states if marks]
        assert [source["checks"] for source in events.one()["sources"]] == [told]
        # after a later run that failed, only the failure is a mark
        events.add_run("broken", end_date=NOW)
        assert events.marks() == ["failed"]

    def test_of_many_checks_the_failed_ones_are_told_first(self, events: Events) -> None:
        names = (f"columns.{n}.filled" for n in ["c" * 5_000, *range(5)])
        checks = [outcome("new_columns", "warning"), *map(outcome, names), {"check": "of another version"}]
        events.add_event(landed_a(checks=checks))
        (source,) = events.one()["sources"]
        assert [check["state"] for check in source["checks"]] == ["failed"] * 5
        assert source["checks_left_out"] == 2
        assert len(source["checks"][0]["text"]) == 300

    @pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
    def test_quarantined_rows_may_have_any_time(self, events: Events, at: str) -> None:
        events.add_event(landed_a(waiting=[{**rows_waiting(7, NOW), "at": at}]))
        # there is no link to the run, which Airflow no longer has
        assert [(told["ended_at"], told["is_known"]) for told in events.one()["quarantines"]] == [(at, False)]

    def test_quarantined_rows_are_told_until_somebody_decides(self, events: Events) -> None:
        events.add_run("old")
        old = {**rows_waiting(7, NOW - DAY * 400), "dag_id": events.dag_id, "run_id": "old"}
        # no shown run has quarantined them, but the landing's newest event lists them
        events.add_event(landed_a(waiting=[rows_waiting(9, NOW), old]), NOW - DAY)
        events.add_event(landed_a(waiting=[old]), NOW)
        (told,) = events.one()["quarantines"]
        place = {"collection_task_id": "a", "landing": "s3://bucket/prices", "commit": 7}
        assert (told["run_id"], told["rows"], told["waiting"]) == ("old", 30, [place])
        assert (told["ended_at"], told["is_known"]) == ((NOW - DAY * 400).isoformat(), True)
        events.add_event(landed_a(waiting=[]), NOW + DAY)
        assert events.one()["quarantines"] == []

    def test_runs_of_a_dag_that_may_not_be_read_are_not_named(self, events: Events) -> None:
        other = {**rows_waiting(7, NOW), "dag_id": "secret", "run_id": "scheduled__secret"}
        events.add_event(landed_a(waiting=[other]), NOW)
        (told,) = events.one()["quarantines"]
        facts = told["dag_id"], told["run_id"], told["is_known"], told["waiting"][0]["commit"]
        assert facts == (events.dag_id, "a run of another DAG", False, 7)
        # quarantined by a command, not by a DAG
        command = {**rows_waiting(8, NOW), "dag_id": "webcollect", "run_id": "by hand"}
        events.add_event(landed_a(waiting=[command]), NOW + DAY)
        assert events.one()["quarantines"][0]["run_id"] == "by hand"
        events.add_event(landed_a(waiting=[other]), NOW + 2 * DAY)
        (series,) = read({events.dag_id, "secret"})["series"]
        assert series["quarantines"][0]["run_id"] == "scheduled__secret"

    def test_each_source_has_its_own_quarantined_commits(self, events: Events) -> None:
        for _ in range(4):
            events.add_event(several(rows=60, source_rows=[30, 30]), NOW - DAY)
        checks = [[outcome(state="warning")], [outcome()]]
        bad = {"source_checks": checks, "quarantined_rows": 30, "source_quarantined": [[], [5, 7]]}
        bad["source_waiting"] = [[], [rows_waiting(5, NOW), rows_waiting(7, NOW)]]
        usual = {"usual_rows": 60, "source_usual_rows": [30, 30]}
        events.add_event(several(rows=1, source_rows=[1, 0], **bad, **usual))
        told = [[check["state"] for check in source["checks"]] for source in events.one()["sources"]]
        # the other source is judged by its rows
        assert (told, events.marks()) == ([["warning"], ["failed"]], ["checks", "odd"])
        assert [source["mark"] for source in events.one()["sources"]] == ["odd", None]
        places = [{"collection_task_id": "b", "landing": "b", "commit": commit} for commit in (5, 7)]
        (told_rows,) = events.one()["quarantines"]
        assert (told_rows["waiting"], told_rows["rows"]) == (places, 60)

    def test_a_quarantined_run_is_neither_empty_nor_odd(self, events: Events) -> None:
        events.add(100, 100, 100, 100, ended=NOW - DAY)
        bad = {"quarantined_rows": 100, "quarantined": [5], "checks": [outcome()], "usual_rows": 100}
        events.add_event(landed_a(rows=0, **bad), NOW - DAY / 2)
        assert (events.marks(), events.runs()[-1]["state"]) == (["checks"], "quarantined")
        events.add(0)
        assert events.marks() == ["empty"]

    @pytest.mark.parametrize("state", ["warning", "failed"])
    def test_with_single_quarantined_rows_the_landed_ones_count(self, events: Events, state: str) -> None:
        events.add(100, 100, 100, 100, ended=NOW - DAY)
        single = {"quarantined_rows": 3, "quarantined": [5], "checks": [outcome(state=state)]}
        events.add_event(landed_a(rows=900, usual_rows=100, **single))
        assert (events.marks(), events.runs()[-1]["state"]) == (["checks", "odd"], "landed")


class TestColumns:
    def add(self, events: Events, *filled: dict[str, float], **facts: Any) -> None:
        """Add a landing for each of the filled shares, the last one now."""
        for index, shares in enumerate(filled):
            events.add_event(landed_a(filled=shares, **facts), NOW - DAY * (len(filled) - 1 - index))

    def columns(self, events: Events) -> dict[str, list[float | None]]:
        return {column["name"]: column["shares"] for column in columns_of(events.one())["columns"]}

    def test_each_column_has_a_share_for_each_run_the_oldest_first(self, events: Events) -> None:
        # a column that no row has is not filled
        self.add(events, {"price": 0.98, "title": 1.0}, {"price": 0.5, "title": 1.0, "new": 1.0})
        history = columns_of(events.one())
        assert [run["ended_at"] for run in history["runs"]] == [run["ended_at"] for run in events.runs()]
        new, price, title = sorted(history["columns"], key=lambda column: column["name"])
        assert (new["name"], new["shares"]) == ("new", [0.0, 1.0])
        assert (price["name"], price["shares"], price["rows"]) == ("price", [0.98, 0.5], [30, 30])
        assert (title["name"], title["shares"], title["checks"]) == ("title", [1.0, 1.0], {})

    def test_failed_checks_come_first_then_the_greatest_changes(self, events: Events) -> None:
        shares = {"same": 1.0, "slightly": 0.9, "checked": 1.0, "much": 0.1}
        self.add(events, dict.fromkeys(shares, 1.0))
        names = ("columns.checked.unique", "columns.no_row_has_it.present", "rows.min")
        self.add(events, shares, checks=[*map(outcome, names)])
        assert list(self.columns(events)) == ["checked", "no_row_has_it", "much", "slightly", "same"]
        text = columns_of(events.one())["columns"][0]["checks"][1]
        assert text == "columns.checked.unique: filled in none; expected: filled in all"

    def test_what_is_not_known_is_no_share(self, events: Events) -> None:
        many = {f"column_{number}": 1.0 for number in range(MAX_COLUMNS)}
        # runs with nothing counted, and one without rows
        self.add(events, {"price": 1.0}, {}, {"price": 0.2}, {}, {"price": 0.9}, checks=[outcome()])
        self.add(events, {"price": 0.9}, rows=0)
        # an event without a source, a failed run, and one with more columns than are counted
        events.add_event(landed(), NOW + DAY)
        events.add_run("broken", end_date=NOW + DAY * 2)
        events.add_event(landed_a(filled=many), NOW + DAY * 3)
        shares = self.columns(events)["price"]
        assert shares == [1.0, None, 0.2, None, 0.9, None, None, None, None]

    def test_no_more_runs_and_columns_are_told_than_can_be_shown(self, events: Events) -> None:
        many = {f"column_{number}": 1.0 for number in range(MOST_COLUMNS + 7)}
        self.add(events, *[many] * (MOST_RUNS + 5))
        history = columns_of(events.one())
        assert (len(history["columns"]), history["left_out"]) == (MOST_COLUMNS, 7)
        assert {len(column["shares"]) for column in history["columns"]} == {MOST_RUNS}
        assert len(history["runs"]) == MOST_RUNS

    def test_columns_of_several_sources_are_told_apart(self, events: Events) -> None:
        filled = {"source_filled": [{"price": 1.0}, {"price": 0.4}]}
        events.add_event(several(source_rows=[10, 20], source_checks=[[], [outcome()]], **filled))
        names = ("collection_task_id", "shares", "rows")
        columns = [tuple(column[name] for name in names) for column in columns_of(events.one())["columns"]]
        assert columns == [("b", [0.4], [20]), ("a", [1.0], [10])]

    def test_each_series_of_an_asset_has_its_own(self, events: Events) -> None:
        events.add_event(landed_a(filled={"price": 1.0}))
        for other in ({"source_task_id": "other"}, {"source_map_index": 3}, {"source_dag_id": "other"}):
            events.add_event(landed_a(filled={"other": 1.0}), **other)
        series = next(one for one in events.read() if (one["task_id"], one["map_index"]) == ("land", -1))
        assert [column["name"] for column in columns_of(series)["columns"]] == ["price"]

    def test_of_a_landing_that_is_not_known_nothing_is(self) -> None:
        history = columns_of({"asset_id": -1, "dag_id": "no_such", "task_id": "land", "map_index": -1})
        assert (history["runs"], history["columns"]) == ([], [])


class TestActivity:
    @pytest.mark.parametrize(
        ("state", "way"),
        [
            ("running", "on a worker"),
            ("up_for_reschedule", "between two queries, without a worker"),
            ("deferred", "in the triggerer"),
        ],
    )
    def test_tasks_at_work_are_shown_with_where_they_are(self, events: Events, state: str, way: str) -> None:
        arguments = {"collection_task_id": "a-task", "webcollect_conn_id": "not_there"}
        columns: dict[str, Any] = {"state": state, "start_date": NOW, "trigger_timeout": NOW + DAY}
        events.add_run("run", arguments=arguments, **columns)
        work = read_work(events.dag_id)
        (running,) = work["running"]
        assert (running["task_id"], running["state"], running["way"]) == ("land", state, way)
        assert (running["webcollect_conn_id"], running["collection_task_ids"]) == ("not_there", ["a-task"])
        assert (running["since"], running["timeout_at"]) == (NOW.isoformat(), (NOW + DAY).isoformat())
        assert work["failures"] == []
        # nothing is shown of a DAG that the person may not read
        assert read_work("another")["running"] == []
        # near its timeout: in the last tenth of its time
        for left, is_near in ((0.09, True), (0.11, False)):
            (running,) = read_work(events.dag_id, NOW + DAY * (1 - left))["running"]
            assert running["is_near_timeout"] is is_near

    def test_a_timeout_beyond_all_times_is_none(self, events: Events) -> None:
        arguments = {"timeout": 1e12}
        events.add_run("run", operator="WebCollectTaskStatusSensor", arguments=arguments, **DEFERRED)
        assert [task["timeout_at"] for task in read_work(events.dag_id)["running"]] == [None]

    def test_a_deferred_sensor_ends_when_its_own_timeout_says(self, events: Events) -> None:
        sensor = "WebCollectTaskStatusSensor"
        events.add_run("run", operator=sensor, trigger_timeout=NOW + DAY + GRACE, **DEFERRED)
        work = read_work(events.dag_id)
        assert [task["timeout_at"] for task in work["running"]] == [(NOW + DAY).isoformat()]

    @pytest.mark.parametrize(("state", "will_retry"), [("failed", False), ("up_for_retry", True)])
    def test_failures_are_shown_for_a_week(self, events: Events, state: str, will_retry: bool) -> None:
        events.add_run("run", state=state, end_date=NOW)
        work = read_work(events.dag_id, NOW + DAY * 6.9)
        (failure,) = work["failures"]
        assert (failure["task_id"], failure["state"], failure["will_retry"]) == ("land", state, will_retry)
        assert failure["recovered_at"] is None
        assert work["running"] == []
        assert read_work(events.dag_id, NOW + DAY * 7.1)["failures"] == []

    def test_a_recovered_failure_is_shown_for_a_day(self, events: Events) -> None:
        events.add_run("long before", end_date=NOW - DAY * 2)
        events.add_run("good", state="success", end_date=NOW - DAY)
        events.add_run("before", end_date=NOW - DAY / 2)
        (failure,) = read_work(events.dag_id)["failures"]
        assert (failure["run_id"], failure["recovered_at"]) == ("before", None)
        events.add_run("good again", state="success", end_date=NOW)
        (failure,) = read_work(events.dag_id)["failures"]
        assert (failure["run_id"], failure["recovered_at"]) == ("before", NOW.isoformat())

    def test_open_failures_are_shown_first(self, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(activity, "MOST_TASKS", 2)
        events.add_run("recovered", end_date=NOW - DAY / 2)
        events.add_run("good", state="success", end_date=NOW)
        for index in range(3):
            events.add_run(f"open {index}", end_date=NOW - DAY, task_id="other")
        work = read_work(events.dag_id)
        assert [failure["recovered_at"] for failure in work["failures"]] == [None, None]
        assert work["failures_left_out"] == 1
        # successful tasks are not shown
        assert work["running"] == []

    @pytest.mark.parametrize(
        ("arguments", "ids"),
        [
            ({"collection_task_ids": IDS}, None),
            ({"sources": [{"collection_task_id": task_id} for task_id in IDS]}, None),
            ({"collection_task_id": "a" * 5000}, None),
            ({"collection_task_id": "***"}, None),
            ({"collection_task_id": "{{ ds }}"}, None),
            ({"collection_task_ids": '["a", "b"'}, None),
            ({"collection_task_ids": "[" * 4000}, None),
            ({"collection_task_ids": ' ["a", "b"]\n'}, ["a", "b"]),
            ({"collection_task_ids": IDS[:2]}, IDS[:2]),
            ({}, []),
        ],
    )
    def test_what_airflow_has_cut_or_masked_is_not_known(
        self, events: Events, arguments: dict[str, Any], ids: list[str] | None
    ) -> None:
        events.add_run("run", arguments=stored(arguments), **DEFERRED)
        assert [task["collection_task_ids"] for task in read_work(events.dag_id)["running"]] == [ids]

    def test_a_text_cut_by_a_limit_is_no_id(self, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__MAX_TEMPLATED_FIELD_LENGTH", "100")
        arguments = stored({"collection_task_ids": IDS})
        events.add_run("run", arguments=arguments, **DEFERRED)
        assert [task["collection_task_ids"] for task in read_work(events.dag_id)["running"]] == [None]

    def test_what_is_cut_is_known_by_the_start_in_the_same_group(self, events: Events) -> None:
        """The ids are known from one start of all, or from the starts of a mapped task."""
        starts = [{"collection_task_id": task_id} for task_id in IDS]
        others = [{"collection_task_id": "x"}]
        ended: dict[str, Any] = {
            "operator": "WebCollectStartSubTasksOperator",
            "state": "success",
            "end_date": NOW,
        }
        results: dict[str, list[Any]] = {"all": [starts], "shops": starts, "others": others}
        for group, of_group in results.items():
            for index, result in enumerate(of_group):
                events.add_run("run", task_id=f"{group}.start", map_index=index, result=result, **ended)
        cut = stored({"collection_task_ids": IDS})
        for task_id in ("all.wait", "shops.wait", "others.wait", "wait"):
            events.add_run("run", arguments=cut, task_id=task_id, **DEFERRED)
        masked = {"collection_task_id": "Sale ***"}
        events.add_run("run", task_id="shops.masked", arguments=masked, **DEFERRED)
        work = read_work(events.dag_id)["running"]
        ids = {task["task_id"]: task["collection_task_ids"] for task in work}
        none = dict.fromkeys(("others.wait", "wait", "shops.masked"))
        assert ids == {"all.wait": IDS, "shops.wait": IDS, **none}

    def test_what_is_cut_is_known_by_the_landing_before(self, events: Events) -> None:
        manifests = [f"s3://bucket/{task_id}/_manifest.json" for task_id in IDS]
        events.add_event(landed(collection_task_ids=IDS, manifests=manifests))
        sources = [
            {"collection_task_id": task_id, "destination": f"s3://bucket/{task_id}"} for task_id in IDS
        ]
        events.add_run("run", arguments=stored({"sources": sources}), end_date=NOW)
        # the sources of this run begin with another collection task
        events.add_run("other", arguments=stored({"sources": sources[1:]}), end_date=NOW - DAY / 2)
        failures = {
            task["run_id"]: task["collection_task_ids"] for task in read_work(events.dag_id)["failures"]
        }
        assert failures == {"run": IDS, "other": None}

    @pytest.mark.webcollect_sandbox(enforce_limits=False)
    def test_a_sensor_that_reschedules_waits_since_its_first_poke(
        self, connected: None, sandbox: Sandbox, after_requests: Callable[..., None]
    ) -> None:
        task = sandbox.control.add_task(state="Extracting")["task_id"]
        after_requests(3, "/cloudextraction/statuses/v2", sandbox.control.advance, 10_000)
        with make_dag() as dag:
            options: dict[str, Any] = {"mode": "reschedule", "poke_interval": 0.1, "deferrable": False}
            options["timeout"] = PATIENCE
            WebCollectTaskStatusSensor(task_id="mark", collection_task_id=task, **options)
        seen: list[dict[str, Any]] = []
        run_dag(dag, when_idle=lambda: seen.extend(read_work(dag.dag_id)["running"]))
        (began,) = {running["since"] for running in seen}
        timeout_at = datetime.datetime.fromisoformat(began) + datetime.timedelta(seconds=PATIENCE)
        assert {running["timeout_at"] for running in seen} == {timeout_at.isoformat()}
        assert {running["state"] for running in seen} == {"up_for_reschedule"}
        assert seen[0]["collection_task_ids"] == [task]


@pytest.fixture
def view(hook: WebCollectHook) -> ServiceView:
    hook.refresh_token()  # as the first task does
    # so patient that the sandbox answers on the slowest machine
    return ServiceView("webcollect_default", patience=PATIENCE)


def tasks_by_id(parts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["task"]: task for task in parts["tasks"]["value"]["tasks"]}


class TestService:
    def test_it_says_what_the_service_says_and_shows_no_token(
        self, view: ServiceView, hook: WebCollectHook, sandbox: Sandbox, events: Events
    ) -> None:
        task = sandbox.control.add_task(lots=[30], subtasks=3)
        events.add_event(landed(collection_task_id=task["task_id"]))
        parts = view.read(EVERYTHING)

        assert {parts[name]["problem"] for name in PARTS} == {None}
        assert parts["capacity"]["value"] == hook.get_running_counts().as_dict()
        row = tasks_by_id(parts)[task["task_id"]]
        (status,) = hook.get_task_statuses_v2([task["task_id"]])
        assert (row["status"], row["rows"]) == ("Finished", status.current_total_extract_count)
        assert (row["sub_tasks"], row["runs"]) == (3, 1)
        assert status.end_execute_time
        assert row["ended"] == status.end_execute_time.isoformat()
        days = parts["days"]["value"]["days"]
        assert days
        assert all(day["rows"] >= 0 for day in days)
        token = parts["token"]["value"]
        assert token.keys() == {"stored_at", "expires_at", "stored_by"}
        assert "sandbox-" not in str(token)

    def test_it_never_renews_the_token(self, view: ServiceView, sandbox: Sandbox) -> None:
        sandbox.control.expire_tokens()
        sandbox.control.clear_requests()
        for part in (view.read(EVERYTHING)[name] for name in ("capacity", "days")):
            assert "the next task obtains one" in part["problem"]
            assert part["unanswered_since"] is None  # it has not been asked
        assert sandbox.control.requests("/token") == []

    def test_old_values_are_asked_for_again(self, view: ServiceView, sandbox: Sandbox, clock: Clock) -> None:
        def asked() -> tuple[int, int]:
            counts = [len(sandbox.control.requests(path)) for path in (COUNTS, "/taskanalytics/queries")]
            return counts[0], counts[1]

        view.read(EVERYTHING)
        first = asked()
        view.read(EVERYTHING)
        assert asked() == first
        # the page asks every 30 seconds, and reading has taken some of them
        clock(28.0)
        view.read(EVERYTHING)
        assert asked() == (first[0] + 1, first[1])
        clock(3600.0)
        view.read(EVERYTHING)
        assert asked() == (first[0] + 2, first[1] + 1)

    @pytest.mark.parametrize(
        ("fault", "is_silent"),
        [
            ({"status": 403, "code": "PermissionDenied"}, False),
            ({"status": 503, "times": 100}, True),
            ({"kind": "drop", "times": 100}, True),
        ],
    )
    def test_a_service_in_trouble_leaves_what_is_known(
        self, view: ServiceView, sandbox: Sandbox, clock: Clock, fault: dict[str, Any], is_silent: bool
    ) -> None:
        before = view.read(EVERYTHING)["capacity"]
        sandbox.control.fail(COUNTS, **fault)
        since = []
        for _ in range(1 + is_silent):
            clock(31.0)
            capacity = view.read(EVERYTHING)["capacity"]
            assert (capacity["value"], capacity["read_at"]) == (before["value"], before["read_at"])
            assert capacity["problem"]
            since.append(capacity["unanswered_since"])
        if not is_silent:
            assert since == [None]
            assert "403" in capacity["problem"]
            return
        assert since[0] == since[1] > before["read_at"]
        # a few attempts, after which the page asks again
        assert len(sandbox.control.requests(COUNTS)) == 5
        sandbox.control.clear_faults()
        clock(6.0)
        capacity = view.read(EVERYTHING)["capacity"]
        assert (capacity["problem"], capacity["unanswered_since"]) == (None, None)

    def test_a_missing_response_is_given_up_early(
        self, view: ServiceView, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webcollect, "READING_TIMEOUT", 0.3)
        sandbox.control.fail(COUNTS, kind="slow", seconds=5, times=100)
        capacity = view.read(EVERYTHING)["capacity"]
        assert capacity["problem"]
        assert capacity["unanswered_since"]

    def test_a_service_that_does_not_answer_holds_nobody_up(
        self, connected: None, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answered = threading.Event()
        monkeypatch.setattr(ServiceView, "_capacity", lambda view: answered.wait(PATIENCE))
        view = ServiceView("webcollect_default", patience=0.1)
        capacity = view.read(EVERYTHING)["capacity"]
        assert (capacity["value"], capacity["read_at"], capacity["problem"]) == (None, None, None)
        assert capacity["unanswered_since"]
        answered.set()

    def test_what_is_no_id_is_not_sent(self, view: ServiceView, sandbox: Sandbox, events: Events) -> None:
        arguments = {"collection_task_ids": IDS, "webcollect_conn_id": "webcollect_default"}
        events.add_run("run", arguments=stored(arguments), **DEFERRED)
        events.add_event(landed(collection_task_id="{{ conn.other.password }}"))
        events.add_event(landed(collection_task_id=IDS[0]), source_task_id="other")
        view.read(EVERYTHING)
        asked = [
            task_id
            for request in sandbox.control.requests("/cloudextraction/statuses/v2")
            for task_id in json.loads(request["body"])["taskIds"]
        ]
        assert IDS[0] in asked
        assert not [task_id for task_id in asked if "Truncated" in task_id or "{{" in task_id]

    def test_landings_of_mapped_tasks_for_one_asset_are_all_shown(
        self, view: ServiceView, sandbox: Sandbox, events: Events
    ) -> None:
        tasks = [sandbox.control.add_task(lots=[1])["task_id"] for _ in range(3)]
        for index, task in enumerate(tasks):
            events.add_event(landed(collection_task_id=task), source_map_index=index)
        assert set(tasks) <= tasks_by_id(view.read(EVERYTHING)).keys()

    def test_who_may_read_some_dags_sees_the_tasks_of_these_alone(
        self, view: ServiceView, sandbox: Sandbox, events: Events
    ) -> None:
        own = sandbox.control.add_task(lots=[5])["task_id"]
        other = Events()
        for dag_events, task in ((events, own), (other, demo.FINISHED_TASK_ID)):
            dag_events.add_event(landed(collection_task_id=task))
        parts = view.read({events.dag_id})
        assert not parts["sees_all"]
        assert [*tasks_by_id(parts)] == [own]
        assert list(parts["names"]) == [own]
        everything = view.read(EVERYTHING)
        assert {own, demo.FINISHED_TASK_ID} <= set(everything["names"])
        rows = [result["days"]["value"]["days"][0]["rows"] for result in (parts, everything)]
        assert rows[0] < rows[1]

    def test_tasks_left_out_are_counted_for_those_who_may_see_them(
        self, view: ServiceView, sandbox: Sandbox, events: Events, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "MOST_TASKS", 1)
        # the order of the ids decides which one the service is asked about
        for dag_events, task in ((Events(), "0" * 8), (events, "z" * 8)):
            dag_events.add_event(landed(collection_task_id=task))
        tasks = view.read({events.dag_id})["tasks"]["value"]
        assert tasks == {"left_out": 1, "tasks": []}

    def test_a_connection_that_cannot_be_used_is_said_to_be_so(self, set_connection: Connect) -> None:
        set_connection(extra={"read_timeout": "soon"})
        parts = ServiceView("webcollect_default", patience=PATIENCE).read(EVERYTHING)
        assert all("read_timeout" in parts[name]["problem"] for name in PARTS)

    def test_the_connections_of_landings_are_known(self, events: Events) -> None:
        events.add_event(landed(webcollect_conn_id="from_a_secrets_backend"))
        with create_session() as session:
            assert "from_a_secrets_backend" in known_connections(session)


class TestNames:
    """Names of collection tasks, from events, from arguments, and from the deployment's file."""

    def test_landings_have_those_of_their_events(self, events: Events, configure_tasks: Configure) -> None:
        configure_tasks("- id: b\n  name: not read for landings\n")
        events.add_event(several(collection_task_names=["Before", None]))
        events.add_event(several(collection_task_names=["Prices", None]))
        other = Events()
        other.add_event(landed_a(collection_task_name="of another DAG"))
        assert read({events.dag_id})["names"] == {"a": "Prices"}

    def test_quarantined_rows_keep_the_name_of_their_source(self, events: Events) -> None:
        events.add_event(landed_a(collection_task_name="Prices", waiting=[rows_waiting(1, NOW)]))
        events.add_event(landed(collection_task_id="b", manifest="s3://bucket/b/_manifest.json"))
        data = read({events.dag_id})
        (quarantined,) = data["series"][0]["quarantines"]
        assert quarantined["waiting"][0]["collection_task_id"] == "a"
        assert data["names"] == {"a": "Prices"}

    def test_tasks_at_work_have_those_of_arguments(self, events: Events, configure_tasks: Configure) -> None:
        configure_tasks(f"- id: {IDS[0]}\n  name: of the deployment\n")
        names = {task_id: f"Shop {index}" for index, task_id in enumerate(IDS)}
        for run_id, ids in (("one", IDS[:1]), ("cut", IDS)):
            given = {"collection_task_ids": ids, "collection_task_names": {id_: names[id_] for id_ in ids}}
            events.add_run(run_id, arguments=given, state="running", start_date=NOW)
        assert read_work(events.dag_id)["names"][IDS[0]] == "Shop 0"

    @pytest.mark.parametrize(
        "arguments",
        [
            {"collection_task_id": "prices"},
            {"collection_task_ids": ["Prices", demo.TASK_ID]},
            {"sources": [{"collection_task_id": "Prices"}]},
        ],
        ids=lambda arguments: next(iter(arguments)),
    )
    def test_a_task_that_an_author_has_named_is_that_of_the_id(
        self, events: Events, configure_tasks: Configure, arguments: dict[str, Any]
    ) -> None:
        configure_tasks(f"- id: {demo.TASK_ID}\n  name: Prices\n")
        given = {**arguments, "webcollect_conn_id": "of_the_dag"}
        events.add_run("at work", arguments=given, state="running", start_date=NOW)
        events.add_run("failed", arguments=given, end_date=NOW)
        work = read_work(events.dag_id)
        for shown_task in (*work["running"], *work["failures"]):
            assert shown_task["collection_task_ids"] == [demo.TASK_ID]
        assert work["names"] == {demo.TASK_ID: "Prices"}

    def test_a_wait_by_name_is_shown_with_its_progress(
        self, view: ServiceView, sandbox: Sandbox, events: Events, configure_tasks: Configure
    ) -> None:
        task = str(uuid.uuid4())  # no asset and no landing of another test names it
        sandbox.control.add_task(task, subtasks=3, state="Extracting")
        configure_tasks(f"- id: {task}\n  name: Prices\n")
        arguments = {"collection_task_id": "Prices", "webcollect_conn_id": "webcollect_default"}
        events.add_run("run", arguments=arguments, **DEFERRED)
        shown = tasks_by_id(view.read(EVERYTHING))
        assert (shown[task]["status"], shown[task]["sub_tasks"]) == ("Extracting", 3)
        assert shown[task]["sub_tasks_done"] in range(4)
        assert "Prices" not in shown

    def test_names_of_events_and_the_file_precede_the_services(
        self, view: ServiceView, sandbox: Sandbox, events: Events, configure_tasks: Configure
    ) -> None:
        # the database has landings of other tests, whose sandboxes give the same ids
        own = sandbox.control.add_task(str(uuid.uuid4()), lots=[5], name="of the service")["task_id"]
        configure_tasks(f"- id: {own}\n  name: Prices\n- id: {demo.TASK_ID}\n  name: of another DAG\n")
        for dag_events, task in ((events, own), (Events(), demo.TASK_ID)):
            dag_events.add_event(landed(collection_task_id=task))
        assert view.read({events.dag_id})["names"] == {own: "Prices"}
        events.add_event(landed(collection_task_id=own, collection_task_name="of the group"))
        assert view.read({events.dag_id})["names"] == {own: "of the group"}
        events.add_event(landed(collection_task_id=own))
        everything = view.read(EVERYTHING)["names"]
        assert (everything[own], everything[demo.TASK_ID]) == ("Prices", "of another DAG")

    def test_a_wrong_or_missing_file_fails_nothing(self, events: Events, configure_tasks: Configure) -> None:
        events.add_event(landed_a())
        file = configure_tasks("- id: a\n  name: [not a name]\n")
        given = {"collection_task_id": demo.TASK_ID, "webcollect_conn_id": "webcollect_default"}
        events.add_run("at work", arguments=given, state="running", start_date=NOW)
        for _ in range(2):
            work = read_work(events.dag_id)
            assert (len(work["running"]), work["names"]) == (1, {})
            file.unlink(missing_ok=True)
