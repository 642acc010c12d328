"""What the page in Airflow's web interface is told, read from a real database and a sandbox."""

from __future__ import annotations

import datetime
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import Asset
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS
from airflow.utils.session import create_session
from sqlalchemy import update

from airflow_provider_webcollect.operators.webcollect import WebCollectMarkExportedOperator
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.landings import make_transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.sandbox import Sandbox

if not AIRFLOW_V_3_1_PLUS:
    pytest.skip("the page is for Airflow 3.1 and later", allow_module_level=True)

from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.taskinstance import TaskInstance

from airflow_provider_webcollect.ui import service
from airflow_provider_webcollect.ui.landings import MOST_RUNS, MOST_SERIES, read_activity, read_landings
from airflow_provider_webcollect.ui.service import ServiceView, known_connections

pytestmark = pytest.mark.usefixtures("airflow_database")

NOW = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
#: What is told of an account.
PARTS = ("token", "capacity", "tasks", "days")
COUNTS = "/cloudextraction/task/stats"
TASK_ID = "a-task"
_numbers = itertools.count(1)


def landed(**facts: Any) -> dict[str, Any]:
    """Return what a landing leaves in an asset event."""
    usual = {
        "webcollect_conn_id": "webcollect_default",
        "destination": "s3://bucket/prices",
        "manifest": "s3://bucket/prices/_manifest.json",
        "rows": 30,
        "bytes": 1,
        "parts": 1,
        "duration": 0.5,
    }
    return {**usual, **facts}


class Events:
    """Puts asset events into the database, each of a run of its own, a day apart.

    :ivar dag_id: the DAG that has run.
    """

    def __init__(self) -> None:
        self.dag_id = f"lands_{next(_numbers)}"
        self.asset = Asset(name=f"rows_{next(_numbers)}", uri=f"s3://bucket/{next(_numbers)}")

    def add(self, *rows: int, ended: datetime.datetime = NOW, **fields: Any) -> None:
        """Add a landing for each number of rows, the last one a minute before ``ended``."""
        for index, count in enumerate(rows):
            landed_at = ended - datetime.timedelta(minutes=1) - DAY * (len(rows) - 1 - index)
            self.add_event(landed(rows=count, bytes=count * 100), landed_at, **fields)

    def add_event(self, extra: Any, at: datetime.datetime, **fields: Any) -> None:
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

    def read(self) -> list[dict[str, Any]]:
        with create_session() as session:
            found: list[dict[str, Any]] = read_landings(session, {self.dag_id}, NOW)["series"]
        return found

    def runs(self) -> list[dict[str, Any]]:
        (series,) = self.read()
        runs: list[dict[str, Any]] = series["runs"]
        return runs


@pytest.fixture
def events() -> Events:
    return Events()


class TestLandings:
    def test_a_real_landing_is_shown_with_its_facts(
        self, connected: None, source: dict[str, Any], destination: str
    ) -> None:
        with make_dag() as dag:
            make_transfer(destination, source, outlets=[Asset(f"rows_{next(_numbers)}")])
        run = run_dag(dag)
        with create_session() as session:
            found = read_landings(session, {dag.dag_id}, datetime.datetime.now(datetime.UTC))
        (series,) = found["series"]
        (shown,) = series["runs"]

        assert (series["webcollect_conn_id"], series["destination"]) == ("webcollect_default", destination)
        assert (series["collection_task_id"], series["lotno"]) == (source["task_id"], None)
        assert (series["dag_id"], series["task_id"], series["map_index"]) == (dag.dag_id, "land", -1)
        assert shown["run_id"] == run.run_id
        assert (shown["rows"], shown["bytes"]) == (400, run.xcoms["land"]["bytes"])
        assert shown["manifests"] == [f"{destination}/_manifest.json"]

    def test_runs_are_shown_oldest_first_and_not_more_than_a_chart_can_hold(self, events: Events) -> None:
        # older ones than a month are not shown either
        events.add(*range(1, 60), ended=NOW - DAY * 15)
        assert [run["rows"] for run in events.runs()] == list(range(45, 60))
        for count in range(MOST_RUNS):
            events.add(100 + count, ended=NOW - datetime.timedelta(hours=MOST_RUNS - count))
        assert [run["rows"] for run in events.runs()] == [100 + count for count in range(MOST_RUNS)]

    def test_each_task_each_index_and_each_asset_has_its_own_series(self, events: Events) -> None:
        events.add(1)
        events.add(2, source_task_id="land_other")
        events.add(3, source_map_index=0)
        events.add(4, source_map_index=1)
        other = Events()
        other.dag_id = events.dag_id
        other.add(5)
        assert sorted(series["runs"][0]["rows"] for series in events.read()) == [1, 2, 3, 4, 5]

    def test_a_task_that_was_cleared_has_one_landing_per_run(self, events: Events) -> None:
        events.add(1, source_run_id="first", ended=NOW - DAY)
        events.add(2, source_run_id="second", ended=NOW - DAY / 2)
        events.add(3, source_run_id="first")
        assert [(run["run_id"], run["rows"]) for run in events.runs()] == [("second", 2), ("first", 3)]

    def test_dags_that_the_person_may_not_read_are_left_out(self, events: Events) -> None:
        events.add(1)
        with create_session() as session:
            assert read_landings(session, {"another"}, NOW)["series"] == []

    def test_an_event_that_names_no_task_is_shown_without_one(self, events: Events) -> None:
        events.add(7)
        (series,) = events.read()
        assert (series["collection_task_id"], series["lotno"]) == (None, None)

    @pytest.mark.parametrize(
        "extra", [{}, {"rows": 1}, landed(rows="1"), landed(webcollect_conn_id=None), landed(manifests=[])]
    )
    def test_events_that_no_landing_has_left_are_left_out(
        self, events: Events, extra: dict[str, Any]
    ) -> None:
        events.add_event(extra, NOW)
        assert events.read() == []

    def test_the_most_recent_series_are_shown_and_the_others_counted(self, events: Events) -> None:
        for count in range(MOST_SERIES + 2):
            events.add(count, source_map_index=count, ended=NOW - datetime.timedelta(minutes=count))
        with create_session() as session:
            found = read_landings(session, {events.dag_id}, NOW)
        assert found["left_out"] == 2
        assert [series["runs"][0]["rows"] for series in found["series"]] == list(range(MOST_SERIES))

    @pytest.mark.parametrize(
        ("rows", "odd"),
        [
            ((100, 100, 100, 100, 200), False),
            ((100, 100, 100, 100, 201), True),
            ((100, 100, 100, 100, 50), False),
            ((100, 100, 100, 100, 49), True),
            ((100, 100, 100, 100, 0), True),
            # too few to tell what is usual, and usually nothing new
            ((100, 100, 100, 300), False),
            ((0, 0, 0, 0, 300), False),
            # one odd run does not make the next one odd
            ((100, 100, 100, 100, 900, 100), False),
        ],
    )
    def test_a_count_is_odd_beyond_half_or_twice_the_usual(
        self, events: Events, rows: tuple[int, ...], odd: bool
    ) -> None:
        events.add(*rows)
        assert events.runs()[-1]["is_odd"] is odd

    @pytest.mark.parametrize(("silence", "stale"), [(1.9, False), (2.1, True)])
    def test_a_landing_is_stale_after_twice_its_usual_interval(
        self, events: Events, silence: float, stale: bool
    ) -> None:
        events.add(1, 1, 1, 1, 1, ended=NOW - DAY * silence)
        (series,) = events.read()
        assert (series["usual_seconds"], series["is_stale"]) == (86_400.0, stale)

    def test_several_sources_are_shown_with_all_their_tasks(self, events: Events) -> None:
        several = {"manifests": ["a/m", "b/m"], "collection_task_ids": ["a", "b"]}
        events.add_event(landed(**several), NOW)
        (series,) = events.read()
        assert series["collection_task_id"] == "a, b"
        assert series["runs"][0]["manifests"] == ["a/m", "b/m"]


@pytest.fixture(scope="module")
def dag_id(airflow_database: None) -> str:
    """A DAG in which a task of the provider has failed, and another one has run."""
    from airflow.providers.standard.operators.empty import EmptyOperator

    with make_dag() as dag:
        WebCollectMarkExportedOperator(
            task_id="mark", collection_task_id=TASK_ID, webcollect_conn_id="not_there"
        )
        EmptyOperator(task_id="other")
    run_dag(dag)
    return dag.dag_id


class TestActivity:
    def read(self, dag_id: str, now: datetime.datetime | None = None, **columns: Any) -> dict[str, Any]:
        """Change the DAG's task instances and read what is told of them."""
        usual = {"hostname": "worker", "trigger_timeout": None}
        with create_session() as session:
            session.execute(
                update(TaskInstance).where(TaskInstance.dag_id == dag_id).values({**usual, **columns})
            )
        with create_session() as session:
            return read_activity(session, {dag_id}, now or datetime.datetime.now(datetime.UTC))

    @pytest.mark.parametrize(
        ("state", "hostname", "way"),
        [
            ("running", "worker", "on a worker"),
            ("up_for_reschedule", "worker", "between two queries, without a worker"),
            ("deferred", "worker", "in the triggerer"),
            ("deferred", "", "in the triggerer from the start"),
        ],
    )
    def test_tasks_at_work_are_shown_with_where_they_are(
        self, dag_id: str, state: str, hostname: str, way: str
    ) -> None:
        until = datetime.datetime.now(datetime.UTC) + DAY
        found = self.read(dag_id, state=state, hostname=hostname, trigger_timeout=until)
        (shown,) = found["running"]
        assert (shown["task_id"], shown["state"], shown["way"]) == ("mark", state, way)
        assert shown["collection_task_ids"] == [TASK_ID]
        assert datetime.datetime.fromisoformat(shown["timeout_at"]) == until
        assert shown["since"]
        assert found["failures"] == []

    @pytest.mark.parametrize("state", ["failed", "up_for_retry"])
    def test_failures_are_shown_for_a_day(self, dag_id: str, state: str) -> None:
        now = datetime.datetime.now(datetime.UTC)
        found = self.read(dag_id, state=state)
        assert [(each["task_id"], each["state"]) for each in found["failures"]] == [("mark", state)]
        assert found["running"] == []
        assert self.read(dag_id, now + DAY)["failures"] == []

    def test_what_has_ended_well_is_not_shown(self, dag_id: str) -> None:
        found = self.read(dag_id, state="success")
        assert (found["running"], found["failures"]) == ([], [])

    def test_dags_that_the_person_may_not_read_are_left_out(self, dag_id: str) -> None:
        self.read(dag_id, state="running")
        with create_session() as session:
            assert read_activity(session, {"another"}, NOW)["running"] == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock by which values get old."""
    moved = [0.0]
    real = service.time.monotonic
    monkeypatch.setattr(service.time, "monotonic", lambda: real() + moved[0])

    def move(seconds: float) -> None:
        moved[0] += seconds

    return move


class TestService:
    @pytest.fixture
    def view(self, hook: WebCollectHook) -> ServiceView:
        hook.refresh_token()  # as the first task does
        # the sandbox answers in any case, however slow the machine
        return ServiceView("webcollect_default", patience=60)

    def test_it_equals_what_the_service_says(
        self, view: ServiceView, hook: WebCollectHook, sandbox: Sandbox, events: Events
    ) -> None:
        task = sandbox.control.add_task(lots=[30], subtasks=3)
        facts = {"webcollect_conn_id": "webcollect_default", "collection_task_id": task["task_id"]}
        events.add_event(landed(**facts), NOW)
        found = view.read()

        assert {found[name]["problem"] for name in PARTS} == {None}
        assert found["capacity"]["value"] == hook.get_running_counts().as_dict()
        shown = {each["task"]: each for each in found["tasks"]["value"]}[task["task_id"]]
        (status,) = hook.get_task_statuses_v2([task["task_id"]])
        assert (shown["status"], shown["rows"]) == ("Finished", status.current_total_extract_count)
        assert (shown["sub_tasks"], shown["runs"]) == (3, 1)
        assert shown["ended"] == status.end_execute_time.isoformat()
        days = found["days"]["value"]["days"]
        assert days
        assert all(day["rows"] >= 0 for day in days)

    def test_the_token_is_shown_by_its_age_alone(self, view: ServiceView, sandbox: Sandbox) -> None:
        token = view.read()["token"]["value"]
        assert token.keys() == {"stored_at", "expires_at", "stored_by"}
        assert "sandbox-" not in str(token)

    def test_it_never_renews_the_token(self, view: ServiceView, sandbox: Sandbox) -> None:
        sandbox.control.expire_tokens()
        sandbox.control.clear_requests()
        problems = [view.read()[name]["problem"] for name in ("capacity", "days")]
        assert all("the next task obtains one" in problem for problem in problems)
        assert sandbox.control.requests("/token") == []

    def test_the_service_is_asked_again_only_when_values_are_old(
        self, view: ServiceView, sandbox: Sandbox, clock: Callable[[float], None]
    ) -> None:
        def asked() -> tuple[int, int]:
            counts = [len(sandbox.control.requests(path)) for path in (COUNTS, "/taskanalytics/queries")]
            return counts[0], counts[1]

        view.read()
        first = asked()
        view.read()
        assert asked() == first
        clock(31.0)
        view.read()
        assert asked() == (first[0] + 1, first[1])
        clock(3600.0)
        view.read()
        assert asked() == (first[0] + 2, first[1] + 1)

    def test_a_service_in_trouble_leaves_what_is_known(
        self, view: ServiceView, sandbox: Sandbox, clock: Callable[[float], None]
    ) -> None:
        known = view.read()["capacity"]
        sandbox.control.fail(COUNTS, status=403, code="PermissionDenied")
        clock(31.0)
        found = view.read()["capacity"]
        assert (found["value"], found["read_at"]) == (known["value"], known["read_at"])
        assert "403" in found["problem"]

    def test_a_service_that_does_not_answer_holds_nobody_up(
        self, connected: None, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answered = threading.Event()
        monkeypatch.setattr(ServiceView, "_capacity", lambda view: answered.wait(60))
        view = ServiceView("webcollect_default", patience=0.1)
        found = view.read()["capacity"]
        assert found == {"value": None, "read_at": None, "problem": None}
        answered.set()

    def test_a_connection_that_cannot_be_used_is_said_to_be_so(
        self, set_connection: Callable[..., None]
    ) -> None:
        set_connection(extra={"read_timeout": "soon"})
        found = ServiceView("webcollect_default", patience=60).read()
        assert all("read_timeout" in found[name]["problem"] for name in PARTS)

    def test_the_connections_of_landings_are_known(self, events: Events) -> None:
        facts = {"webcollect_conn_id": "from_a_secrets_backend", "collection_task_id": "a"}
        events.add_event(landed(**facts), NOW)
        with create_session() as session:
            assert "from_a_secrets_backend" in known_connections(session)
