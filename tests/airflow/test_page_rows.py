"""The page's routes for rows and for decisions on them, used by signed-in people, on real landings."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Asset
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS
from airflow.utils.session import create_session

if not AIRFLOW_V_3_1_PLUS:
    pytest.skip("the page is for Airflow 3.1 and later", allow_module_level=True)

from airflow.api_fastapi.app import init_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.asset import AssetModel
from airflow.models.log import Log
from fastapi.testclient import TestClient
from sqlalchemy import select

from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.write.review import accept, discard, in_review, waiting
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.transfers.landing_to_warehouse import WebCollectLoadOperator
from airflow_provider_webcollect.ui import rows
from airflow_provider_webcollect.ui.app import app
from airflow_provider_webcollect.ui.landings import MOST_RUNS
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import Task, on_sandbox
from tests.airflow.landings import GROWING, Landing, make_transfer, reported
from tests.airflow.test_page_data import Events, landed_a, rows_waiting

pytestmark = on_sandbox()

QUARANTINES = {"checks": {"rows": {"min": 99}}, "on_failed_checks": "quarantine", **GROWING}
#: Options that quarantine only the rows without a URL.
QUARANTINES_SINGLE_ROWS: dict[str, Any] = {
    "checks": {"rows": {"max_wrong": 0.2}, "columns": {"url": {"required": True}}},
    **GROWING,
}
#: The headers that a browser sends with a request of the page's own script.
OWN = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}


class Visitor:
    """Somebody who has signed in, and looks at a landing.

    :param role: the person's role in Airflow's simple auth manager.
    """

    def __init__(self, events: Events, role: str) -> None:
        token = init_auth_manager().generate_jwt(SimpleAuthManagerUser(username=f"a {role}", role=role))
        self._client = TestClient(app, cookies={"_token": token})
        self._events = events

    def get(self, what: str, **which: Any) -> tuple[int, Any]:
        """Return the status and the answer of a route of the landing."""
        return self._answer(self._client.get(self._address(what), params=self._which(which)))

    def series(self) -> dict[str, Any]:
        all_series = self._client.get("/landings").json()["series"]
        (series,) = (one for one in all_series if one["dag_id"] == self._events.dag_id)
        return dict(series)

    def decide(self, headers: dict[str, str] = OWN, **body: Any) -> tuple[int, Any]:
        """Decide as one of the page's buttons does; return the status and the answer."""
        address = self._address("decision")
        return self._answer(self._client.post(address, params=self._which({}), json=body, headers=headers))

    def send(self, headers: dict[str, str], content: str) -> int:
        """Send any content with any headers, and return the status."""
        address, which = self._address("decision"), self._which({})
        return self._client.post(address, params=which, content=content, headers=headers).status_code

    def _address(self, what: str) -> str:
        with create_session() as session:
            asset_id = session.scalar(select(AssetModel.id).where(AssetModel.uri == self._events.asset.uri))
        return f"/landings/{asset_id}/{what}"

    def _which(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"dag_id": self._events.dag_id, "task_id": "land", "map_index": -1, **more}

    def _answer(self, response: Any) -> tuple[int, Any]:
        said: Any = response.json()
        return response.status_code, said.get("detail", said)


@pytest.fixture
def landing(sandbox: Sandbox, task: Task, destination: str) -> Landing:
    """A collection task with 30 rows, and a folder to land in."""
    return Landing(sandbox, task, destination)


@pytest.fixture
def events() -> Events:
    events = Events()
    events.add_dag()
    return events


@pytest.fixture
def quarantined(landing: Landing, events: Events) -> dict[str, Any]:
    """The landing and the commit of 30 quarantined rows, as the page sends them."""
    return quarantine(landing, events)


def quarantine(landing: Landing, events: Events, **options: Any) -> dict[str, Any]:
    extra = reported(landing.destination, landing.task, **{**QUARANTINES, **options})
    (commit,) = extra["quarantined"]
    run = waiting(landing.destination, commit).run
    # a DAG that the visitors may read
    Events(run.dag_id).add_dag()
    events.add_event(extra, now(), source_run_id=run.run_id)
    return {"landing": landing.destination, "commit": commit}


def run_of(landing: Landing, commit: int) -> str:
    return waiting(landing.destination, commit).run.run_id


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class TestDecisions:
    @pytest.mark.parametrize(("decision", "count"), [("accept", 30), ("discard", 0)])
    def test_a_press_decides_by_one_commit_and_the_page_knows_it(
        self, landing: Landing, events: Events, quarantined: dict[str, Any], decision: str, count: int
    ) -> None:
        person = Visitor(events, "user")
        series, run_id = person.series(), run_of(landing, 1)
        (told,) = series["quarantines"]
        assert (told["run_id"], told["rows"], series["may_decide"]) == (run_id, 30, True)
        assert series["marks"] == ["checks"]
        assert told["waiting"] == [{"collection_task_id": landing.task_id, **quarantined}]
        assert person.decide(decision=decision, **quarantined) == (200, {"rows": 30})
        state = read_landing(landing.destination).manifest
        assert (state.commit, state.rows) == (2, count)
        assert person.series()["quarantines"] == []
        with create_session() as session:
            (log,) = session.scalars(select(Log).where(Log.dag_id == events.dag_id))
            assert (log.event, log.owner, log.run_id) == (f"webcollect_{decision}", "a user", run_id)
            assert json.loads(log.extra or "")["rows"] == 30

    def test_the_audit_log_has_the_name_of_the_task(self, landing: Landing, events: Events) -> None:
        names = {landing.task_id: "Prices"}
        waiting = quarantine(landing, events, collection_task_names=names)
        Visitor(events, "user").decide(decision="accept", **waiting)

        with create_session() as session:
            (extra,) = session.scalars(select(Log.extra).where(Log.dag_id == events.dag_id))
        assert json.loads(extra or "")["collection_task_name"] == "Prices"

    def test_of_two_people_at_once_one_decides_and_the_other_is_told(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        together = threading.Barrier(2)

        def press(person: Visitor, decision: str) -> tuple[int, Any]:
            together.wait()
            return person.decide(decision=decision, **quarantined)

        people = [Visitor(events, role) for role in ("user", "admin")]
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(press, people, ["accept", "discard"]))
        assert sorted(status for status, _ in answers) == [200, 409]
        first = "accepted already by a user" if answers[0][0] == 200 else "discarded already by a admin"
        assert first in next(said for status, said in answers if status == 409)
        assert read_landing(landing.destination).manifest.commit == 2

    @pytest.mark.parametrize(("decide", "verb"), [(accept, "accepted"), (discard, "discarded")])
    def test_what_somebody_has_decided_elsewhere_is_told(
        self,
        landing: Landing,
        events: Events,
        quarantined: dict[str, Any],
        decide: Callable[..., Any],
        verb: str,
    ) -> None:
        decide(landing.destination, commit=1, by="Ann")
        person = Visitor(events, "user")
        status, told = person.get("waiting", **quarantined)
        assert (status, told.endswith(f"were {verb} already by Ann")) == (409, True)
        assert person.get("rows", **quarantined)[0] == 409
        assert person.decide(decision="accept", **quarantined) == (409, told)
        assert read_landing(landing.destination).manifest.commit == 2

    def test_of_several_commits_only_the_named_one_is_decided(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        person = Visitor(events, "user")
        landing.grow(30)
        extra = reported(landing.destination, landing.task, **QUARANTINES)
        events.add_event(extra, now(), source_run_id=run_of(landing, 2))
        told = person.series()["quarantines"]
        assert [entry["commit"] for each in told for entry in each["waiting"]] == [2, 1]
        assert [each["run_id"] for each in told] == [run_of(landing, 2), run_of(landing, 1)]
        assert person.decide(decision="accept", **{**quarantined, "commit": 2}) == (200, {"rows": 30})
        assert [entry.commit for entry in in_review(landing.destination)] == [1]
        (told,) = person.series()["quarantines"]
        assert [entry["commit"] for entry in told["waiting"]] == [1]

    def test_a_viewer_sees_the_rows_and_decides_nothing(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        viewer = Visitor(events, "viewer")
        assert viewer.series()["may_decide"] is False
        assert viewer.get("waiting", **quarantined)[0] == 403
        assert viewer.decide(decision="accept", **quarantined)[0] == 403
        assert viewer.get("rows", **quarantined)[0] == 200
        assert len(in_review(landing.destination)) == 1

    @pytest.mark.parametrize(
        "headers",
        [
            {"Content-Type": "application/x-www-form-urlencoded", **OWN},
            {"Content-Type": "text/plain", "Origin": "https://other.example"},
            {"Content-Type": "application/json", "Origin": "https://other.example"},
            {"Content-Type": "application/json", "Origin": "null"},
            {"Content-Type": "application/json", **OWN, "Sec-Fetch-Site": "same-site"},
            {"Content-Type": "application/json", **OWN, "Sec-Fetch-Site": "cross-site"},
            {**OWN},
        ],
    )
    def test_another_site_decides_nothing(
        self, landing: Landing, events: Events, quarantined: dict[str, Any], headers: dict[str, str]
    ) -> None:
        body = json.dumps({"decision": "accept", **quarantined})
        assert Visitor(events, "admin").send(headers, body) == 403
        assert len(in_review(landing.destination)) == 1

    @pytest.mark.parametrize("headers", [{"Origin": "http://testserver"}, {}])
    def test_a_browser_on_plain_http_and_a_script_tell_less(
        self, events: Events, quarantined: dict[str, Any], headers: dict[str, str]
    ) -> None:
        assert Visitor(events, "admin").decide(headers, decision="accept", **quarantined)[0] == 200

    def test_only_landings_that_the_page_knows_are_written_to(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        person = Visitor(events, "admin")
        for wrong in ({"landing": f"{landing.destination}-other"}, {"commit": 2}, {"commit": -1}):
            which = {**quarantined, **wrong}
            assert person.decide(decision="accept", **which)[0] == 409
            assert person.get("rows", **which)[0] == 409
        assert person.decide(decision="delete", **quarantined)[0] == 422
        assert len(in_review(landing.destination)) == 1

    # a source's own URL may name another connection than `object_storage_conn_id`
    @pytest.mark.parametrize(("landing", "used"), [("s3://b/gone", "all"), ("s3://own@b/gone", "own")])
    def test_a_landing_that_cannot_be_reached_is_told(self, events: Events, landing: str, used: str) -> None:
        place = {"object_storage_conn_id": "all", "manifest": f"{landing}/_manifest.json"}
        events.add_event(landed_a(**place, rows=0, waiting=[rows_waiting(3, now())]), now())
        for route in ("waiting", "rows"):
            status, said = Visitor(events, "admin").get(route, landing=landing, commit=3)
            assert (status, f"no connection {used!r}" in said, landing in said) == (502, True, True), said


class TestEvidence:
    def test_a_failed_run_shows_its_checks_and_five_rows(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        person = Visitor(events, "user")
        text = "rows.min: 30 rows; expected: at least 99"
        facts = {"rows": 30, "is_whole": True, "replaces": False, "is_earlier": False, "checks_left_out": 0}
        checks = [{"state": "failed", "text": text, "rows": None}]
        told = {"run_id": run_of(landing, 1), "checks": checks, **facts}
        assert person.get("waiting", **quarantined) == (200, told)
        status, sample = person.get("rows", **quarantined)
        assert (status, sample["columns"], sample["broke"]) == (200, list(landing.truth()[0]), [None] * 5)
        assert [row[0] for row in sample["rows"]] == [
            _as_text(row[sample["columns"][0]]) for row in landing.truth()[:5]
        ]

    def test_single_rows_are_told_with_the_rules_they_broke(self, landing: Landing, events: Events) -> None:
        landing.control.change_rows(landing.task_id, "url", "empty", from_row=28)
        which = quarantine(landing, events, **QUARANTINES_SINGLE_ROWS)
        person = Visitor(events, "user")
        _, told = person.get("waiting", **which)
        assert (told["rows"], told["is_whole"]) == (2, False)
        (check,) = told["checks"]
        assert (check["state"], check["rows"]) == ("warning", 2)
        assert check["text"].startswith("columns.url.required: 2 of 30 rows have no value")
        _, sample = person.get("rows", **which)
        assert sample["broke"] == ["columns.url.required"] * 2
        assert len(sample["rows"]) == 2
        # the landed rows are judged as in any other run
        assert [run["state"] for run in person.series()["runs"]] == ["landed"]
        assert person.decide(decision="accept", **which) == (200, {"rows": 2})
        assert read_landing(landing.destination).manifest.rows == 30

    def test_single_rows_are_told_also_after_a_failed_check(self, landing: Landing, events: Events) -> None:
        landing.control.change_rows(landing.task_id, "url", "empty", from_row=28)
        checks = {**QUARANTINES_SINGLE_ROWS["checks"], "rows": {"max_wrong": 0.2, "min": 99}}
        which = quarantine(landing, events, checks=checks, on_failed_checks="warn")
        person = Visitor(events, "user")
        _, told = person.get("waiting", **which)
        assert (told["rows"], told["is_whole"]) == (2, False)
        assert [check["state"] for check in told["checks"]] == ["failed", "warning"]
        assert [run["state"] for run in person.series()["runs"]] == ["landed"]

    def test_rows_that_replace_all_others_are_told(self, landing: Landing, events: Events) -> None:
        full = {"mode": "full", "if_exists": "overwrite"}
        reported(landing.destination, landing.task, **full)
        landing.grow(5)
        which = quarantine(landing, events, **full)
        person = Visitor(events, "user")
        _, told = person.get("waiting", **which)
        assert (told["rows"], told["replaces"]) == (35, True)
        # the rows that the run before has landed are still there
        (run,) = person.series()["runs"]
        assert (run["state"], run["rows"], run["quarantined_rows"]) == ("quarantined", 0, 35)
        assert person.decide(decision="accept", **which) == (200, {"rows": 35})
        assert read_landing(landing.destination).manifest.rows == 35


class TestRows:
    def test_many_failures_hide_no_rows(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        events.add_event(reported(landing.destination, landing.task, **GROWING), now())
        later = now() + datetime.timedelta(minutes=1)
        for number in range(MOST_RUNS):
            events.add_run(f"failed {number}", end_date=later)
        person = Visitor(events, "user")
        assert person.get("waiting", **quarantined)[0] == 200
        assert person.get("rows", **quarantined)[0] == 200

    @pytest.mark.parametrize("form", [{}, {"file_format": "csv"}, {"file_format": "parquet"}])
    def test_five_rows_are_shown(self, landing: Landing, events: Events, form: dict[str, str]) -> None:
        reported(landing.destination, landing.task, **GROWING, **form)
        landing.grow(8)
        events.add_event(reported(landing.destination, landing.task, **GROWING, **form), now())
        viewer = Visitor(events, "viewer")
        status, table = viewer.get("rows")
        assert status == 200
        truth = landing.truth()[-8:][:5]
        assert table["columns"] == list(truth[0])
        texts = [[_as_text(value) for value in row.values()] for row in truth]
        assert [[value or "" for value in row] for row in table["rows"]] == texts
        # nothing is shown of a DAG that the person may not read
        assert viewer.get("rows", dag_id="another")[0] == 404

    def test_typed_values_are_shown_without_quotes(self, landing: Landing, events: Events) -> None:
        typed = {"file_format": "parquet", "column_types": {"price": "decimal(12,2)"}}
        events.add_event(reported(landing.destination, landing.task, **typed), now())
        _, table = Visitor(events, "viewer").get("rows")
        shown = [row[table["columns"].index("price")] for row in table["rows"]]
        assert shown == [row["price"] for row in landing.truth()[:5]]

    def test_long_values_and_wide_rows_are_cut(
        self, landing: Landing, events: Events, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events.add_event(reported(landing.destination, landing.task), now())
        monkeypatch.setattr(rows, "MOST_COLUMNS", 2)
        monkeypatch.setattr(rows, "MOST_CHARACTERS", 4)
        _, table = Visitor(events, "viewer").get("rows")
        assert table["left_out"] == len(landing.truth()[0]) - 2
        assert [len(row) for row in table["rows"]] == [2] * 5
        assert table["rows"][0][0] == str(landing.truth()[0][table["columns"][0]])[:3] + "…"

    def test_no_rows_and_a_storage_that_hangs_are_told(
        self, landing: Landing, events: Events, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events.add_event(landed_a(rows=0), now())
        viewer = Visitor(events, "viewer")
        assert viewer.get("rows") == (502, "none of the latest runs has landed rows")
        events.add_event(reported(landing.destination, landing.task), now())
        monkeypatch.setattr(rows, "PATIENCE", 0)
        monkeypatch.setattr(rows, "_turns", threading.BoundedSemaphore(1))
        with rows._turns:
            status, said = viewer.get("rows")
        assert (status, said.partition(" for")[0]) == (502, "other requests wait")
        assert viewer.get("rows")[0] == 200


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class TestLoads:
    def test_each_table_has_its_latest_load_and_skipped_rows(self, landing: Landing, database: str) -> None:
        landing.control.change_rows(landing.task_id, "url", "empty", from_row=28)
        dag = make_dag()
        with dag:
            land = make_transfer(landing.destination, landing.task, **GROWING)
            usual: dict[str, Any] = {
                "warehouse_conn_id": "warehouse",
                "landing": "{{ ti.xcom_pull('land')['manifest'] }}",
            }
            merge: dict[str, Any] = {
                "write_disposition": "merge",
                "primary_key": "url",
                "on_missing_key": "skip",
            }
            land >> WebCollectLoadOperator(task_id="load", table="shop.prices", **usual, **merge)
            elsewhere = {**usual, "landing": f"{landing.destination}-other"}
            WebCollectLoadOperator(task_id="other", table="shop.other", **elsewhere)
        # the second run loads nothing, and does not report the rows that the first has skipped
        run, _ = (run_dag(dag) for _ in range(2))
        events = Events(dag.dag_id)
        events.asset = Asset(landing.destination)
        person = Visitor(events, "viewer")
        status, body = person.get("loads")
        assert status == 200
        (load,) = body["loads"]
        assert load.pop("ended_at") > "2026"
        (part,) = read_landing(landing.destination).parts()
        assert load == {
            "dag_id": dag.dag_id,
            "task_id": "load",
            "map_index": -1,
            "run_id": run.run_id,
            "warehouse_conn_id": "warehouse",
            "table": "shop.prices",
            **{"rows": 28, "parts": 1, "commit": 1, "skipped_rows": 2, "skipped": {part.name: 2}},
        }
