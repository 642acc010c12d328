"""The main job on a real Airflow: collected, waited for, landed, confirmed, and no token left anywhere."""

from __future__ import annotations

import json
from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings, demo
from demo.landing import prove
from demo.main_job import DAG_ID
from demo.real_airflow import RealAirflow
from tests.contract.client_requests import RequestContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.real_airflow,
    pytest.mark.skipif(version("apache-airflow").startswith("2."), reason="starts Airflow 3's components"),
    pytest.mark.timeout(240),
]
SECRETS = (b"sandbox-access-", b"sandbox-refresh-", demo.API_KEY.encode(), demo.PASSWORD.encode())


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Settings(speed=60, rows_per_item=200, refresh_reuse="revoke")) as sandbox:
        yield sandbox
        RequestContract().check(sandbox.control.requests())


@pytest.fixture(scope="module")
def airflow(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[RealAirflow]:
    home = tmp_path_factory.mktemp("home")
    options = {"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}
    with RealAirflow(home, pytestconfig.rootpath / "example_dags", options) as airflow:
        extra = {"refresh_token": sandbox.refresh_token, "api_key": sandbox.api_key}
        airflow.add_connection(
            "webcollect_default",
            "webcollect",
            host=sandbox.url,
            login=sandbox.username,
            password=sandbox.password,
            extra=json.dumps(extra),
        )
        yield airflow


@pytest.fixture(scope="module")
def landed(
    airflow: RealAirflow, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Run the main job once; return the destination and the run's id."""
    destination = tmp_path_factory.mktemp("landing") / "rows"
    actions = sandbox.control.task(demo.TASK_ID)["actions"]
    conf = {
        "collection_task_id": demo.TASK_ID,
        "action_id": actions[0]["action_id"],
        "loop_items": ["oak", "ash", "elm"],
        "destination": destination.as_uri(),
    }
    run_id = airflow.trigger(DAG_ID, conf)
    state = airflow.wait(DAG_ID, run_id, 120)
    logs = [airflow.task_log(DAG_ID, run_id, task) for task in airflow.task_instances(DAG_ID, run_id)]
    assert state == "success", "\n".join(logs)
    return destination, run_id


def test_every_row_lands_and_the_service_knows_it(landed: tuple[Path, str], sandbox: Sandbox) -> None:
    destination, _ = landed
    rows = sandbox.control.true_rows(demo.TASK_ID)
    assert len(rows) == 3 * 200
    assert prove(destination, rows).rows == len(rows)
    # a person has started the run, which has no logical date
    assert [path.parent.name[:3] for path in destination.rglob("part-*")] == ["dt="]
    assert sandbox.control.task(demo.TASK_ID)["exported"]


def test_workers_and_triggerer_share_one_token(landed: tuple[Path, str], sandbox: Sandbox) -> None:
    assert landed
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200]


def test_the_wait_asks_with_the_triggerers_poll_alone(landed: tuple[Path, str], sandbox: Sandbox) -> None:
    assert landed
    polls = Counter(sandbox.control.counters()["/cloudextraction/statuses/v2"])
    assert polls[429] == 0


def test_test_connection_works_in_the_api_server(airflow: RealAirflow, sandbox: Sandbox) -> None:
    def test(**extra: str) -> dict[str, object]:
        answer: dict[str, object] = airflow._api(
            "POST",
            "connections/test",
            json={
                "connection_id": "tried",
                "conn_type": "webcollect",
                "host": sandbox.url,
                "extra": json.dumps(extra),
            },
        )
        return answer

    before = len(sandbox.control.requests("/token"))
    good = test(access_token=sandbox.access_token)
    assert good["status"], good
    assert test(refresh_token=sandbox.refresh_token)["status"]
    assert len(sandbox.control.requests("/token")) == before, "the button spent a refresh token"
    bad = test(access_token="sandbox-access-wrong")
    assert not bad["status"]
    assert "token" in str(bad["message"])


def test_a_wrong_task_fails_without_retries(airflow: RealAirflow, landed: tuple[Path, str]) -> None:
    assert landed
    conf = {"collection_task_id": "no such task", "action_id": "none", "destination": "file:///nowhere"}
    run_id = airflow.trigger(DAG_ID, conf)
    assert airflow.wait(DAG_ID, run_id, 60) == "failed"
    update = next(
        task for task in airflow.task_instances(DAG_ID, run_id) if task.task_id == "update_loop_items"
    )
    assert (update.state, update.try_number) == ("failed", 1)
    assert "Check the id" in airflow.task_log(DAG_ID, run_id, update)


def test_no_secret_is_in_any_log_database_or_xcom(airflow: RealAirflow, landed: tuple[Path, str]) -> None:
    assert landed
    files = [path for path in airflow.home.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"airflow.db"}
    assert any("task_id=wait" in str(path) for path in files)
    found = [
        (str(path.relative_to(airflow.home)), secret)
        for path in files
        for secret in SECRETS
        if secret in path.read_bytes()
    ]
    assert found == []
