"""The harness behind the demo and the end-to-end tests, with a DAG that needs nothing but Airflow."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from demo.airflow_api import AirflowProblem, TaskInstance
from demo.real_airflow import COMPONENTS
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from demo.real_airflow import RealAirflow

pytestmark = pytest.mark.real_airflow
DAGS = ("hello.py",)


@pytest.mark.at_night
def test_a_run_can_be_started_watched_and_read(airflow: RealAirflow) -> None:
    seen: list[TaskInstance] = []
    run_id = airflow.trigger("hello", {"name": "world"})

    assert airflow.wait("hello", run_id, on_change=seen.append) == "success"
    assert airflow.xcom("hello", run_id, "shout") == "HELLO WORLD"
    assert {task.name for task in seen if task.state == "success"} == {"greet", "shout"}
    greet = next(task for task in airflow.task_instances("hello", run_id) if task.name == "greet")
    assert "greeting world" in airflow.task_log("hello", run_id, greet)


@pytest.mark.at_night
def test_the_log_of_a_failed_task_says_why_and_where(airflow: RealAirflow) -> None:
    run_id = airflow.trigger("hello")

    assert airflow.wait("hello", run_id) == "failed"
    failed = next(task for task in airflow.task_instances("hello", run_id) if task.state == "failed")
    log = airflow.task_log("hello", run_id, failed)
    assert "ValueError: there is nobody to shout at" in log
    assert "hello.py:18 in shout" in log


def test_each_step_of_the_start_is_said(airflow: RealAirflow, steps: list[str]) -> None:
    first, second, *others = steps

    assert first == "its database is made"
    assert second == f"{', '.join(COMPONENTS)} are started"
    count = len(COMPONENTS)
    assert sorted(step.split()[0] for step in others) == sorted(COMPONENTS)
    assert [step.partition(" ")[2] for step in others] == [
        f"is up ({number} of {count})" for number in range(1, count + 1)
    ]


def test_airflow_sees_the_provider_and_its_connection_form(airflow: RealAirflow) -> None:
    form = airflow.get("../../ui/connections/hook_meta")

    assert (
        airflow.providers().items()
        >= {"airflow-provider-webcollect": version("airflow-provider-webcollect")}.items()
    )
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
