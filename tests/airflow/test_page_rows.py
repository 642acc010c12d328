"""Rows on the page in Airflow's web interface, and decisions on them: its routes, asked by people who have
signed in, on real landings."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
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
from airflow_provider_webcollect.landing.review import accept, discard, in_review
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.transfers.landing_to_warehouse import WebCollectLoadOperator
from airflow_provider_webcollect.ui import rows
from airflow_provider_webcollect.ui.app import app
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import Task, on_sandbox
from tests.airflow.landings import GROWING, Landing, make_transfer, reported
from tests.airflow.test_page_data import Events, landed_a
from tests.storages import Storage

pytestmark = on_sandbox()

QUARANTINES = {"checks": {"rows": {"min": 99}}, "on_failed_checks": "quarantine", **GROWING}
#: What a browser says of a request of the page's own script.
OWN = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}


class Visitor:
    """Somebody who has signed in, and looks at a landing.

    :param role: of Airflow's simple auth manager.
    """

    def __init__(self, events: Events, role: str) -> None:
        token = init_auth_manager().generate_jwt(SimpleAuthManagerUser(username=f"a {role}", role=role))
        self._client = TestClient(app, cookies={"_token": token})
        self._events = events

    def get(self, what: str, **which: Any) -> Any:
        """Return what a route of the landing answers, and its status."""
        return self._answer(self._client.get(self._address(what), params=self._which(which)))

    def series(self) -> dict[str, Any]:
        """Return what the page shows of the landing."""
        all_series = self._client.get("/landings").json()["series"]
        (series,) = (one for one in all_series if one["dag_id"] == self._events.dag_id)
        return series

    def decide(self, headers: dict[str, str] = OWN, **body: Any) -> Any:
        """Press one of the buttons."""
        address = self._address("decision")
        return self._answer(self._client.post(address, params=self._which({}), json=body, headers=headers))

    def send(self, headers: dict[str, str], content: str) -> int:
        """Return the status of a request of any form."""
        address, which = self._address("decision"), self._which({})
        return self._client.post(address, params=which, content=content, headers=headers).status_code

    def _address(self, what: str) -> str:
        with create_session() as session:
            asset_id = session.scalar(select(AssetModel.id).where(AssetModel.uri == self._events.asset.uri))
        return f"/landings/{asset_id}/{what}"

    def _which(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"dag_id": self._events.dag_id, "task_id": "land", "map_index": -1, **more}

    def _answer(self, response: Any) -> tuple[int, Any]:
        said = response.json()
        return response.status_code, said.get("detail", said)


@pytest.fixture
def landing(sandbox: Sandbox, task: Task, destination: str) -> Landing:
    """A collection task with 30 rows, and a folder."""
    return Landing(sandbox, task, destination)


@pytest.fixture
def events() -> Events:
    events = Events()
    events.add_dag()
    return events


@pytest.fixture
def quarantined(landing: Landing, events: Events) -> dict[str, Any]:
    """What names the 30 rows of a landing that wait for a decision, as the page sends it."""
    return quarantine(landing, events)


def quarantine(landing: Landing, events: Events) -> dict[str, Any]:
    extra = reported(landing.destination, landing.task, **QUARANTINES)
    *_, waiting = in_review(landing.destination)
    events.add_event(extra, now(), source_run_id=waiting.run.run_id)
    return {"run_id": waiting.run.run_id, "collection_task_id": landing.task_id}


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class TestDecisions:
    @pytest.mark.parametrize(("decision", "count"), [("accept", 30), ("discard", 0)])
    def test_a_press_decides_by_one_commit_and_the_page_knows_it(
        self, landing: Landing, events: Events, quarantined: dict[str, Any], decision: str, count: int
    ) -> None:
        person = Visitor(events, "user")
        (told,) = person.series()["quarantines"]
        assert (told["run_id"], told["rows"], person.series()["may_decide"]) == (
            quarantined["run_id"],
            30,
            True,
        )
        # the question before the decision has its numbers from the storage
        status, waiting = person.get("waiting", **quarantined)
        assert (status, waiting) == (200, {"rows": 30, "commit": 1})
        assert person.decide(decision=decision, commit=1, **quarantined) == (200, {"rows": 30})
        state = read_landing(landing.destination).manifest
        assert (state.commit, state.rows) == (2, count)
        assert person.series()["quarantines"] == []
        with create_session() as session:
            (log,) = session.scalars(select(Log).where(Log.dag_id == events.dag_id))
            assert (log.event, log.owner, log.run_id) == (
                f"webcollect_{decision}",
                "a user",
                quarantined["run_id"],
            )
            assert json.loads(log.extra or "")["rows"] == 30

    def test_of_two_people_at_once_one_decides_and_the_other_is_told(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        together = threading.Barrier(2)

        def press(decision: str) -> tuple[int, Any]:
            together.wait()
            return Visitor(events, "user").decide(decision=decision, commit=1, **quarantined)

        with ThreadPoolExecutor() as pool:
            answers = sorted(pool.map(press, ["accept", "discard"]), key=lambda answer: answer[0])
        assert [status for status, _ in answers] == [200, 409]
        assert "no rows of" in answers[1][1]
        assert read_landing(landing.destination).manifest.commit == 2

    @pytest.mark.parametrize("decide", [accept, discard])
    def test_what_somebody_has_decided_elsewhere_is_told(
        self, landing: Landing, events: Events, quarantined: dict[str, Any], decide: Callable[..., Any]
    ) -> None:
        decide(landing.destination, quarantined["run_id"])
        person = Visitor(events, "user")
        status, said = person.get("waiting", **quarantined)
        assert (status, said.partition(":")[0]) == (409, "somebody has decided already")
        assert person.decide(decision="accept", commit=1, **quarantined)[0] == 409
        assert read_landing(landing.destination).manifest.commit == 2

    def test_only_the_rows_that_were_told_are_decided_on(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        person = Visitor(events, "user")
        landing.grow(30)
        other = quarantine(landing, events)
        assert person.get("waiting", **other) == (200, {"rows": 30, "commit": 2})
        assert person.decide(decision="accept", commit=2, **quarantined)[0] == 409
        assert person.decide(decision="accept", commit=2, **other) == (200, {"rows": 30})
        assert [entry.commit for entry in in_review(landing.destination)] == [1]
        assert [entry["run_id"] for entry in person.series()["quarantines"]] == [quarantined["run_id"]]

    def test_who_may_only_read_has_no_buttons_and_decides_nothing(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        viewer = Visitor(events, "viewer")
        assert viewer.series()["may_decide"] is False
        assert viewer.get("waiting", **quarantined)[0] == 403
        assert viewer.decide(decision="accept", commit=1, **quarantined)[0] == 403
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
        body = json.dumps({"decision": "accept", "commit": 1, **quarantined})
        assert Visitor(events, "admin").send(headers, body) == 403
        assert len(in_review(landing.destination)) == 1

    @pytest.mark.parametrize("headers", [{"Origin": "http://testserver"}, {}])
    def test_a_browser_on_plain_http_and_a_script_tell_less(
        self, events: Events, quarantined: dict[str, Any], headers: dict[str, str]
    ) -> None:
        body = json.dumps({"decision": "accept", "commit": 1, **quarantined})
        assert Visitor(events, "admin").send({"Content-Type": "application/json", **headers}, body) == 200

    def test_only_landings_that_the_page_knows_are_written_to(
        self, landing: Landing, events: Events, quarantined: dict[str, Any]
    ) -> None:
        person = Visitor(events, "admin")
        for wrong in ({"run_id": "another"}, {"collection_task_id": "another"}):
            which = {**quarantined, **wrong}
            assert person.decide(decision="accept", commit=1, **which)[0] == 409
        assert person.decide(decision="delete", commit=1, **quarantined)[0] == 422
        assert len(in_review(landing.destination)) == 1

    def test_a_landing_that_cannot_be_reached_is_told(self, events: Events) -> None:
        place = {"object_storage_conn_id": "missing", "manifest": "s3://bucket/gone/_manifest.json"}
        events.add_event(landed_a(**place, rows=0, quarantined_rows=5), now(), source_run_id="r1")
        status, said = Visitor(events, "admin").get("waiting", run_id="r1", collection_task_id="a")
        assert (status, "'missing'" in said, "s3://bucket/gone" in said) == (502, True, True)


class TestRows:
    @pytest.mark.parametrize("form", [{}, {"file_format": "csv"}, {"file_format": "parquet"}])
    def test_five_rows_of_the_newest_run_are_shown(
        self, landing: Landing, events: Events, form: dict[str, str]
    ) -> None:
        reported(landing.destination, landing.task, **GROWING, **form)
        landing.grow(8)
        events.add_event(reported(landing.destination, landing.task, **GROWING, **form), now())
        status, table = Visitor(events, "viewer").get("rows")
        assert status == 200
        truth = landing.truth()[-8:][:5]
        assert table["columns"] == list(truth[0])
        texts = [[_as_text(value) for value in row.values()] for row in truth]
        assert [[value or "" for value in row] for row in table["rows"]] == texts

    def test_the_storage_is_reached_by_the_connection_that_has_landed(
        self, task: Task, events: Events, s3_storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_STORAGE", s3_storage.as_connection())
        extra = reported(f"s3://{s3_storage.new_folder()}", task, object_storage_conn_id="storage")
        assert extra["object_storage_conn_id"] == "storage"
        events.add_event(extra, now())
        status, table = Visitor(events, "viewer").get("rows")
        assert (status, len(table["rows"])) == (200, 5)

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

    def test_who_may_not_read_the_dag_gets_none(self, landing: Landing, events: Events) -> None:
        events.add_event(reported(landing.destination, landing.task), now())
        other = Visitor(events, "viewer")
        assert other.get("rows", dag_id="another")[0] == 404

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
    def test_each_table_has_what_was_loaded_last_and_what_was_left_out(
        self, landing: Landing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        warehouse = {"conn_type": "duckdb", "host": f"{tmp_path}/warehouse.duckdb"}
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(warehouse))
        landing.sandbox.control.change_rows(landing.task_id, "url", "empty", from_row=28)
        dag = make_dag()
        with dag:
            land = make_transfer(landing.destination, landing.task, **GROWING)
            usual = {"warehouse_conn_id": "warehouse", "landing": "{{ ti.xcom_pull('land')['manifest'] }}"}
            merge = {"write_disposition": "merge", "primary_key": "url", "on_missing_key": "skip"}
            land >> WebCollectLoadOperator(task_id="load", table="shop.prices", **usual, **merge)
            elsewhere = {**usual, "landing": f"{landing.destination}-other"}
            WebCollectLoadOperator(task_id="other", table="shop.other", **elsewhere)
        # the second run loads nothing, and says nothing of the rows that the first has left out
        run, _ = (run_dag(dag) for _ in range(2))
        person = Visitor(SimpleNamespace(dag_id=dag.dag_id, asset=Asset(landing.destination)), "viewer")
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
