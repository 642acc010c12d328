"""No run is mistaken for the one before it, whatever a service counts, and shows right after a start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sandbox.state import Entry, RequestLog
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import execute, on_sandbox
from tests.airflow.waits import MODES
from tests.interruption import PATIENCE

# beside what a status query moves it, the time that passes is nothing
pytestmark = on_sandbox(stale_seconds=3000, wait_seconds=4000, run_seconds=2500, subtasks=2)

STATUS = "/cloudextraction/statuses/v2"
#: What services may do: see docs/contributing/assumptions.md, Status.
SERVICES: dict[str, dict[str, Any]] = {
    "shows the new run late": {},
    "counts a run at once": {"stale_shows": ["executed_times"]},
    "counts a run and shows its start at once": {"stale_shows": ["executed_times", "start_time"]},
    "shows a start at once": {"stale_shows": ["start_time"]},
    "counts ended runs": {"counted_runs": "ended"},
    "shows no ends": {"hide_end_times": True, "stale_shows": ["executed_times"]},
    "spells ids otherwise": {"echo_ids": "upper"},
}
each_service = pytest.mark.parametrize("service", SERVICES)
USUAL = "counts a run at once"


@pytest.fixture(autouse=True)
def passing_time(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service's time pass with each status query, so that however few there are, all states show."""
    add = RequestLog.add

    def add_and_pass(log: RequestLog, entry: Entry) -> None:
        add(log, entry)
        if entry.endpoint == STATUS:
            sandbox._state.clock.advance(seconds=1000)

    monkeypatch.setattr(RequestLog, "add", add_and_pass)


@pytest.fixture
def task_id(sandbox: Sandbox, service: str) -> str:
    """A task that ran once, on one of the services."""
    sandbox.control.configure(**SERVICES[service])
    return str(sandbox.control.add_task(lots=[10], rows=20)["task_id"])


def start(task_id: str, **arguments: Any) -> WebCollectStartSubTasksOperator:
    """Return an operator that starts a task."""
    return WebCollectStartSubTasksOperator(task_id="start", collection_task_id=task_id, **arguments)


def wait(task_id: str, after: Any, **arguments: Any) -> WebCollectTaskStatusSensor:
    """Return a sensor that waits for a run of a task."""
    usual = {"poke_interval": 0.02, "timeout": PATIENCE, "deferrable": False}
    return WebCollectTaskStatusSensor(
        task_id="wait", collection_task_id=task_id, after=after, **{**usual, **arguments}
    )


@each_service
def test_a_start_ends_with_its_own_run(task_id: str, sandbox: Sandbox) -> None:
    result = execute(start(task_id, wait_for_completion=True, poll_interval=0.02, deferrable=False))
    assert sandbox.control.task(task_id)["state"] == "Finished"
    assert result["status"]["current_total_extract_count"] >= 20


@pytest.mark.parametrize(
    ("service", "way"),
    [
        ("counts ended runs", "poke"),
        ("shows no ends", "deferrable"),
        pytest.param(USUAL, "reschedule", marks=pytest.mark.at_night),
    ],
)
def test_a_sensor_after_a_start_ends_with_that_run(
    way: str, service: str, task_id: str, sandbox: Sandbox
) -> None:
    with make_dag() as dag:
        wait(task_id, start(task_id).output, **MODES[way])
    run = run_dag(dag)

    assert run.states == {"start": "success", "wait": "success"}
    assert sandbox.control.task(task_id)["state"] == "Finished"
    assert run.xcoms["wait"]["executed_times"] == 2
    assert run.xcoms["wait"]["current_total_extract_count"] >= 20


@pytest.mark.parametrize(
    ("service", "offset"),
    [*(pytest.param(name, 0, marks=pytest.mark.at_night) for name in SERVICES), (USUAL, -1)],
)
def test_a_sensor_after_now_ends_with_the_next_run(
    offset: int, task_id: str, sandbox: Sandbox, after_requests: Callable[..., None]
) -> None:
    def start() -> None:
        sandbox.control.start_task(task_id)
        # the count may begin again at 0 with it
        sandbox.control.configure(executed_times_offset=offset)

    after_requests(1, STATUS, start)
    record = execute(wait(task_id, "now"))

    assert sandbox.control.task(task_id)["state"] == "Finished"
    assert record["current_total_extract_count"] >= 20
