"""What a user may do to a deferred wait on a real Airflow; `test_end_of_waits.py` tests how it ends."""

from __future__ import annotations

import time

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings
from demo.airflow_api import TaskInstance
from demo.real_airflow import RealAirflow
from tests.interruption import PATIENCE

pytestmark = [pytest.mark.real_airflow, pytest.mark.at_night]
DAGS = ("waits.py",)

SETTINGS = Settings(enforce_limits=False)
DAG_ID = "handled"
STATUS = "/cloudextraction/statuses/v2"


def wait_of(airflow: RealAirflow, run_id: str) -> TaskInstance:
    (wait,) = airflow.task_instances(DAG_ID, run_id)
    return wait


def until_queried(airflow: RealAirflow, run_id: str, sandbox: Sandbox) -> None:
    """Wait until the wait is deferred, and the service is queried."""
    sandbox.control.clear_requests()
    airflow.wait_for(
        lambda: wait_of(airflow, run_id).state == "deferred" and bool(sandbox.control.requests(STATUS)),
        PATIENCE,
        "the wait to be deferred",
    )


@pytest.fixture
def run_id(airflow: RealAirflow, sandbox: Sandbox) -> str:
    """A run whose wait is in the triggerer."""
    run_id = airflow.trigger(DAG_ID, {"endless": sandbox.control.add_task(state="Dreaming")["task_id"]})
    until_queried(airflow, run_id, sandbox)
    return run_id


@pytest.mark.parametrize("state", ["success", "failed", "skipped"])
def test_marking_it_ends_it_and_its_polls(
    airflow: RealAirflow, run_id: str, state: str, sandbox: Sandbox
) -> None:
    path = f"dags/{DAG_ID}/dagRuns/{run_id}/taskInstances/wait"
    airflow._api("PATCH", path, json={"new_state": state})
    airflow.wait(DAG_ID, run_id)
    assert wait_of(airflow, run_id).state == state

    def nobody_asks() -> bool:
        sandbox.control.clear_requests()
        time.sleep(1.5)
        return not sandbox.control.requests(STATUS)

    airflow.wait_for(nobody_asks, PATIENCE, "the polls to end")


def test_clearing_it_begins_it_again(airflow: RealAirflow, run_id: str, sandbox: Sandbox) -> None:
    airflow.clear(DAG_ID, run_id)
    airflow.wait_for(lambda: wait_of(airflow, run_id).try_number == 2, PATIENCE, "the next try")
    until_queried(airflow, run_id, sandbox)
