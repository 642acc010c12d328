"""The main job on a real Airflow: collected, waited for, landed, confirmed, and shown on the page."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

import pytest
import requests

from airflow_provider_webcollect.sandbox import Sandbox, Settings, demo
from demo import browser
from demo.airflow_api import AirflowProblem
from demo.landing import prove
from demo.main_job import DAG_ID
from demo.real_airflow import RealAirflow
from tests.contract.client_requests import RequestContract
from tests.interruption import PATIENCE, until
from tests.real_airflow.conftest import PEOPLE
from tests.spans import Collector

Ask: TypeAlias = Callable[..., requests.Response]

pytestmark = pytest.mark.real_airflow
STATUS = "/cloudextraction/statuses/v2"
SECRETS = (b"sandbox-access-", b"sandbox-refresh-", demo.API_KEY.encode(), demo.PASSWORD.encode())
#: Seconds that a run takes: it ends when a test advances the sandbox's time.
RUN = 10_000


@pytest.fixture(scope="module")
def sandbox(connect_to: Callable[..., None]) -> Iterator[Sandbox]:
    settings = Settings(wait_seconds=0, run_seconds=RUN, rows_per_item=200, refresh_reuse="revoke")
    with Sandbox(settings) as sandbox:
        connect_to(sandbox)
        yield sandbox
        RequestContract().check(sandbox.control.requests())


@pytest.fixture(scope="module")
def polls() -> list[int]:
    """The number of status queries until then, each time that the wait was seen deferred."""
    return []


@pytest.fixture(scope="module")
def landed(
    airflow: RealAirflow, sandbox: Sandbox, polls: list[int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Run the main job once; return the destination and the run's id.

    The collection task's run ends after the triggerer has queried it.
    """

    def is_queried_by_the_triggerer() -> bool:
        states = {task.name: task.state for task in airflow.task_instances(DAG_ID, run_id)}
        assert "failed" not in states.values(), states
        if states.get("wait") == "deferred":
            polls.append(len(sandbox.control.requests(STATUS)))
        return polls[-1:] > polls[:1]

    destination = tmp_path_factory.mktemp("landing") / "rows"
    step = sandbox.control.task(demo.TASK_ID)["actions"][0]["action_id"]
    conf: dict[str, Any] = {"collection_task_id": demo.TASK_ID, "destination": destination.as_uri()}
    conf |= {"action_id": step, "loop_items": ["oak", "ash", "elm"]}
    run_id = airflow.trigger(DAG_ID, conf)
    airflow.wait_for(is_queried_by_the_triggerer, PATIENCE, "the triggerer to query the collection task")
    sandbox.control.advance(RUN)
    state = airflow.wait(DAG_ID, run_id)
    logs = [airflow.task_log(DAG_ID, run_id, task) for task in airflow.task_instances(DAG_ID, run_id)]
    assert state == "success", "\n".join(logs)
    return destination, run_id


@pytest.fixture(scope="module")
def failed(airflow: RealAirflow, landed: tuple[Path, str]) -> str:
    """Run the main job once for a task that does not exist, and return the run's id."""
    assert landed
    conf = {"collection_task_id": "no such task", "action_id": "none", "destination": "file:///nowhere"}
    run_id = airflow.trigger(DAG_ID, conf)
    assert airflow.wait(DAG_ID, run_id) == "failed"
    return run_id


@pytest.fixture(scope="module")
def ask(airflow: RealAirflow, landed: tuple[Path, str]) -> Ask:
    """Requests a route of the page as a person; None: without signing in."""
    assert landed
    tokens = {person: airflow.token(person) for person in PEOPLE}

    def ask(route: str, person: str | None, headers: dict[str, str] | None = None) -> requests.Response:
        signed_in = {"Authorization": f"Bearer {tokens[person]}"} if person else {}
        headers = {**signed_in, **(headers or {})}
        return requests.get(f"{airflow.url}/webcollect/{route}", headers=headers, timeout=PATIENCE)

    return ask


def test_every_row_lands_and_the_service_knows_it(landed: tuple[Path, str], sandbox: Sandbox) -> None:
    destination, _ = landed
    rows = sandbox.control.true_rows(demo.TASK_ID)
    assert len(rows) == 3 * 200
    assert prove(destination, rows).rows == len(rows)
    # the run, which a person has started, has no logical date
    assert [path.parent.name[:3] for path in destination.rglob("part-*")] == ["dt="]
    assert sandbox.control.task(demo.TASK_ID)["exported"]


def test_workers_and_triggerer_share_one_token(landed: tuple[Path, str], sandbox: Sandbox) -> None:
    assert landed
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200]


def test_the_wait_holds_no_worker(landed: tuple[Path, str], polls: list[int], sandbox: Sandbox) -> None:
    assert landed
    assert polls[0] < polls[-1], "it was deferred while it was queried"
    assert Counter(sandbox.control.counters()[STATUS])[429] == 0


def test_the_trace_of_a_run_says_where_the_time_went(landed: tuple[Path, str], collector: Collector) -> None:
    assert landed
    expected = {
        ("worker.start", "webcollect.call"),
        ("trigger.wait", "webcollect.poll"),
        ("webcollect.poll", "webcollect.call"),
        ("worker.land", "webcollect.landing"),
        ("webcollect.landing", "webcollect.commit"),
        ("worker.mark_exported", "webcollect.call"),
    }
    until(lambda: expected <= collector.names())


def test_test_connection_works_in_the_api_server(airflow: RealAirflow, sandbox: Sandbox) -> None:
    def test(**extra: str) -> dict[str, object]:
        tried = {"connection_id": "tried", "conn_type": "webcollect", "host": sandbox.url}
        return dict(airflow._api("POST", "connections/test", json={**tried, "extra": json.dumps(extra)}))

    before = len(sandbox.control.requests("/token"))
    good = test(access_token=sandbox.access_token)
    assert good["status"], good
    assert test(refresh_token=sandbox.refresh_token)["status"]
    assert len(sandbox.control.requests("/token")) == before, "the button spent a refresh token"
    bad = test(access_token="sandbox-access-wrong")
    assert not bad["status"]
    assert "token" in str(bad["message"])


class TestPage:
    """The page in the web interface of an Airflow whose URL has a path, and where people sign in."""

    @pytest.mark.parametrize(
        ("route", "viewer", "admin"),
        [
            *((f"static/{name}", 200, 200) for name in ("page.js", "page.css", "tile.js", "logo.svg")),
            ("static/another.js", 404, 404),
            *((name, 200, 200) for name in ("landings", "activity", "connections")),
            ("landings/1/columns?dag_id=webcollect_collect_and_land&task_id=land", 200, 200),
            ("landings/1/columns?dag_id=another&task_id=land", 404, 404),
            ("connections/webcollect_default", 403, 200),
            ("connections/another", 403, 404),
        ],
    )
    def test_each_route_asks_who_is_there(self, ask: Ask, route: str, viewer: int, admin: int) -> None:
        assert ask(route, None).status_code == 401
        assert ask(route, "viewer").status_code == viewer
        assert ask(route, "admin").status_code == admin

    def test_a_file_that_the_browser_has_is_not_sent_again(self, ask: Ask) -> None:
        first = ask("static/page.js", "viewer")
        again = ask("static/page.js", "viewer", {"If-None-Match": first.headers["ETag"]})
        another = ask("static/page.css", "viewer", {"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert another.status_code == 200

    def test_requests_at_once_do_not_meet_in_the_database(self, ask: Ask) -> None:
        with ThreadPoolExecutor(12) as threads:
            answers = threads.map(ask, ["landings", "activity", "connections"] * 20, ["admin"] * 60)
            assert {answer.status_code for answer in answers} == {200}

    def test_those_who_may_read_connections_see_them(self, ask: Ask) -> None:
        connections = {person: ask("connections", person).json()["connections"] for person in PEOPLE}
        assert connections == {"viewer": [], "admin": ["webcollect_default"]}

    def test_it_agrees_with_the_api(self, ask: Ask, airflow: RealAirflow, landed: tuple[Path, str]) -> None:
        (event,) = airflow.get("assets/events", source_dag_id=DAG_ID)["asset_events"]
        all_series = ask("landings", "viewer").json()["series"]
        (series,) = [one for one in all_series if one["dag_id"] == DAG_ID]
        (run,) = series["runs"]

        ended_at = datetime.datetime.fromisoformat(event["timestamp"]).isoformat()
        assert (run["run_id"], run["ended_at"]) == (landed[1], ended_at)
        assert run["rows"] == event["extra"]["rows"] == 600
        assert run["commit"] == event["extra"]["commit"]
        assert series["manifests"] == [event["extra"]["manifest"]]
        assert (run["state"], run["bytes"], series["marks"]) == ("landed", event["extra"]["bytes"], [])
        assert (series["webcollect_conn_id"], series["lotno"]) == ("webcollect_default", None)
        assert series["destination"] == event["extra"]["destination"]
        (source,) = series["sources"]
        assert (source["collection_task_id"], source["rows"]) == (demo.TASK_ID, 600)
        names = {name: series[name] for name in ("dag_id", "task_id", "map_index")}
        columns = ask(f"landings/{series['asset_id']}/columns?{urlencode(names)}", "viewer").json()["columns"]
        shares = {column["name"]: column["shares"] for column in columns}
        assert shares == {name: [share] for name, share in event["extra"]["filled"].items()}

    @pytest.mark.at_night
    @pytest.mark.skipif(browser.find_browser() is None, reason="no Chromium")
    def test_a_browser_shows_it_to_whoever_may_not_read_connections(
        self, airflow: RealAirflow, sign_in: Callable[..., None], landed: tuple[Path, str], failed: str
    ) -> None:
        with browser.open_page(str(browser.find_browser())) as page:
            sign_in(page, "viewer")
            page.goto(airflow.url)
            page.get_by_role("button", name="Browse").click()
            page.get_by_role("menuitem", name="Web collection").click()
            row = page.locator("webcollect-page [data-series]").filter(has_text=DAG_ID)
            row.get_by_role("button").click()
            page.locator(f'[data-run="{landed[1]}"]').wait_for()
            page.locator('[data-section="service"]').get_by_text("you may not read connections").wait_for()
            failure = page.locator(f'[data-failure="{DAG_ID}/{failed}/update_loop_items/-1"]')
            failure.get_by_text("Check the id").wait_for()


def test_a_wrong_task_fails_without_retries(airflow: RealAirflow, failed: str) -> None:
    instances = airflow.task_instances(DAG_ID, failed)
    (update,) = [task for task in instances if task.task_id == "update_loop_items"]
    assert (update.state, update.try_number) == ("failed", 1)
    log = airflow.task_log(DAG_ID, failed, update)
    assert "Check the id" in log
    # the log has the reason and its place
    assert re.search(r"^  \S+\.py:\d+ in execute$", log, re.MULTILINE)
    assert "AirflowFailException: " in log


def test_no_secret_is_in_any_log_database_or_xcom(airflow: RealAirflow, landed: tuple[Path, str]) -> None:
    assert landed
    files = [path for path in airflow.home.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"airflow.db"}
    assert any("task_id=wait" in str(path) for path in files)
    leaks = [
        (str(path.relative_to(airflow.home)), secret)
        for path in files
        for secret in SECRETS
        if secret in path.read_bytes()
    ]
    assert leaks == []


def test_airflow_sees_the_provider_and_its_connection_form(airflow: RealAirflow) -> None:
    form = airflow.get("../../ui/connections/hook_meta")
    package = "airflow-provider-webcollect"
    assert airflow.providers()[package] == version(package)
    assert "webcollect" in {entry["connection_type"] for entry in form}
    assert airflow.import_errors() == {}


def test_a_refused_connection_is_explained_without_its_secrets(airflow: RealAirflow) -> None:
    with pytest.raises(AirflowProblem, match="conn_type") as refusal:
        airflow.add_connection("wrong", conn_type=None, password="a-secret")  # type: ignore[arg-type]
    assert "a-secret" not in str(refusal.value)


@pytest.mark.at_night
def test_an_import_error_is_told_at_once(airflow: RealAirflow, dags: Path) -> None:
    broken = dags / "broken.py"
    broken.write_text("import airflow, a_module_that_no_dag_has")
    with pytest.raises(AirflowProblem, match="a_module_that_no_dag_has"):
        airflow.trigger("never_there")
    broken.unlink()
    airflow.wait_for(lambda: not airflow.import_errors(), PATIENCE, "the import error to go")
