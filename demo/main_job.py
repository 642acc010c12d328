"""The main job, end to end: new loop items, a run of the collection task, its rows landed and verified."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_provider_webcollect.sandbox.demo import ACCESS_TOKEN, REFRESH_TOKEN, TASK_ID
from demo.airflow_api import AirflowProblem
from demo.landing import prove, query

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Control
    from demo.console import Console
    from demo.real_airflow import RealAirflow

DAG_ID = "webcollect_collect_and_land"
DISTRIBUTION = "airflow-provider-webcollect"
LOOP_ITEMS = [
    f"{thing} {kind}" for thing in ("desk", "chair", "lamp", "shelf") for kind in ("oak", "ash", "steel")
]
UNREMARKABLE_STATES = frozenset({"success", "skipped"})


def check_provider(airflow: RealAirflow) -> str:
    """Return the version of the provider that Airflow has found.

    :raises AirflowProblem: if Airflow has not found it
    """
    providers = airflow.providers()
    if DISTRIBUTION not in providers:
        raise AirflowProblem(f"Airflow does not see {DISTRIBUTION}, only {', '.join(sorted(providers))}")
    return providers[DISTRIBUTION]


def add_connection(airflow: RealAirflow, sandbox_url: str) -> None:
    """Add the connection to the sandbox, with the same fields as in the connection form."""
    credentials = {"access_token": ACCESS_TOKEN, "refresh_token": REFRESH_TOKEN}
    airflow.add_connection(
        "webcollect_default", "webcollect", host=sandbox_url, extra=json.dumps(credentials)
    )


def run(
    airflow: RealAirflow,
    control: Control,
    destination: Path,
    console: Console,
) -> str:
    """Run the example DAG into ``destination``, verify the landed rows, and return the run's id.

    :raises AirflowProblem: if the run does not succeed, with the logs of the failed tasks
    :raises demo.landing.LandingProblem: if the landed rows differ from the sandbox's
    """
    run_id = start(airflow, control, destination)
    console.say(f"{DAG_ID} is running, {len(LOOP_ITEMS)} loop items")
    _wait(airflow, run_id, console)
    landed = prove(destination, control.true_rows(TASK_ID))
    if not control.task(TASK_ID)["exported"]:
        raise AirflowProblem("The rows landed, but the service does not know them as exported")
    _check_page(airflow, run_id)
    console.say(f"Landed: {landed.rows} rows, {landed.bytes} bytes, parts: {landed.parts}")
    console.say(f"Manifest: {landed.manifest}")
    console.say(f"All {landed.rows} rows are the service's, in its order; it knows them as exported")
    console.say(f"Offers by city, as DuckDB reads them:\n{query(destination)}")
    return run_id


def start(airflow: RealAirflow, control: Control, destination: Path) -> str:
    """Start a run of the example DAG, and return its id."""
    steps = control.task(TASK_ID)["actions"]
    conf = {
        "collection_task_id": TASK_ID,
        "action_id": next(step["action_id"] for step in steps if step["action_type"] == "LoopAction"),
        "loop_items": LOOP_ITEMS,
        "destination": destination.as_uri(),
    }
    return airflow.trigger(DAG_ID, conf)


def _check_page(airflow: RealAirflow, run_id: str) -> None:
    """Check that the web interface's page of the provider shows the landing."""
    all_series = airflow.get("../../webcollect/landings")["series"]
    run_ids = {run["run_id"] for series in all_series for run in series["runs"]}
    if run_id not in run_ids or not airflow.answers(f"{airflow.url}/webcollect/static/page.js"):
        raise AirflowProblem(f"The page of the web interface does not show run {run_id}")


def _wait(airflow: RealAirflow, run_id: str, console: Console) -> None:
    try:
        state = airflow.wait(DAG_ID, run_id, on_change=lambda task: console.state(task.name, task.state))
    except AirflowProblem as problem:
        raise AirflowProblem(f"{problem}\n{_logs(airflow, run_id)}") from problem
    if state != "success":
        raise AirflowProblem(f"Run {run_id} of {DAG_ID} is {state}\n{_logs(airflow, run_id)}")


def _logs(airflow: RealAirflow, run_id: str) -> str:
    """Return the logs of the tasks that were started and did not succeed."""
    return "\n".join(
        f"--- log of {task.name}, {task.state}:\n{airflow.task_log(DAG_ID, run_id, task)}"
        for task in airflow.task_instances(DAG_ID, run_id)
        if task.try_number and task.state not in UNREMARKABLE_STATES
    )
