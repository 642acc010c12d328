"""How deferred waits end, and what a user may do to them, on a real Airflow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from demo.airflow_api import TaskInstance
    from demo.real_airflow import RealAirflow

pytestmark = [pytest.mark.real_airflow, pytest.mark.at_night]
DAGS = ("waits.py",)

STATUS = "/cloudextraction/statuses/v2"


@pytest.fixture(scope="module")
def sandbox(connect_to: Callable[..., None]) -> Iterator[Sandbox]:
    with Sandbox(Settings(enforce_limits=False)) as sandbox:
        connect_to(sandbox, requests_per_second=0)
        yield sandbox


@pytest.fixture(scope="module")
def tasks(sandbox: Sandbox) -> dict[str, Any]:
    """The collection tasks that the DAGs wait for, as their params."""
    states = {"endless": "Dreaming", "stopped": "Stopped"}
    return {name: sandbox.control.add_task(state=state)["task_id"] for name, state in states.items()}


class DagRun:
    """A run of a DAG, and what came of its tasks."""

    def __init__(self, airflow: RealAirflow, dag_id: str, conf: dict[str, Any]) -> None:
        self.airflow = airflow
        self.dag_id = dag_id
        self.run_id = airflow.trigger(dag_id, conf)

    def wait(self) -> None:
        """Wait until it is over."""
        self.airflow.wait(self.dag_id, self.run_id)

    def instances(self) -> dict[str, TaskInstance]:
        """The task instances by name."""
        return {task.name: task for task in self.airflow.task_instances(self.dag_id, self.run_id)}

    def log(self, name: str) -> str:
        """What a task has logged."""
        return self.airflow.task_log(self.dag_id, self.run_id, self.instances()[name])


@pytest.fixture(scope="module")
def endings(airflow: RealAirflow, tasks: dict[str, Any]) -> DagRun:
    """A run of waits that nobody acts on, once it is over."""
    run = DagRun(airflow, "endings", tasks)
    run.wait()
    return run


@pytest.mark.parametrize(
    ("task_id", "state", "tries", "why"),
    [
        ("stopped", "failed", 1, "is Stopped"),
        ("late", "failed", 1, "the wait was not over after 5 s"),
        ("late_and_lenient", "skipped", 1, "the wait was not over after 5 s"),
        ("executing_too_long", "failed", 2, "not over after the execution timeout, 0:00:05"),
    ],
)
def test_a_wait_ends_as_when_poking_and_the_log_says_why(
    endings: DagRun, task_id: str, state: str, tries: int, why: str
) -> None:
    instance, log = endings.instances()[task_id], endings.log(task_id)
    assert (instance.state, instance.try_number) == (state, tries), log
    assert why in log


class TestActingOnADeferredWait:
    @pytest.fixture
    def run(self, airflow: RealAirflow, sandbox: Sandbox, tasks: dict[str, Any]) -> DagRun:
        run = DagRun(airflow, "handled", tasks)
        self.wait_for_looks(run, sandbox)
        return run

    def wait_for_looks(self, run: DagRun, sandbox: Sandbox) -> None:
        """Wait until it is deferred, and the service is queried."""
        sandbox.control.clear_requests()
        run.airflow.wait_for(
            lambda: run.instances()["wait"].state == "deferred" and bool(sandbox.control.requests(STATUS)),
            PATIENCE,
            "the wait to be deferred",
        )

    @pytest.mark.parametrize("state", ["success", "failed", "skipped"])
    def test_marking_it_ends_it_and_its_polls(self, run: DagRun, state: str, sandbox: Sandbox) -> None:
        path = f"dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/wait"
        run.airflow._api("PATCH", path, json={"new_state": state})
        run.wait()
        assert run.instances()["wait"].state == state

        def nobody_asks() -> bool:
            sandbox.control.clear_requests()
            time.sleep(1.5)
            return not sandbox.control.requests(STATUS)

        run.airflow.wait_for(nobody_asks, PATIENCE, "the polls to end")

    def test_clearing_it_begins_it_again(self, run: DagRun, sandbox: Sandbox) -> None:
        run.airflow.clear(run.dag_id, run.run_id)
        run.airflow.wait_for(lambda: run.instances()["wait"].try_number == 2, PATIENCE, "the next try")
        self.wait_for_looks(run, sandbox)
