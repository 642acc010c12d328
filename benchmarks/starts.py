"""One start for many collection tasks, and a mapped start: ``python -m benchmarks.starts [--tasks N]``.

On a real Airflow (scheduler, triggerer, API servers; LocalExecutor with 4 processes, SQLite) and a sandbox
without limits, two DAGs set the loop items of the same collection tasks, start them, wait, and land the new
rows. Only their starts differ. The DAGs run one after another, and each must land every row once.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.sandbox import demo
from benchmarks.report import machine, table
from demo.processes import Processes
from demo.real_airflow import RealAirflow
from demo.sandbox import start_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.sandbox import Control

TIMEOUT_SECONDS = 3600.0
DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider_webcollect import (
    WebCollectLoadOperator,
    WebCollectStartSubTasksOperator as Start,
    WebCollectTaskStatusSensor,
    WebCollectToObjectStorageOperator,
    WebCollectUpdateTaskParametersOperator,
)

# on a busy machine, Airflow fails a task whose trigger fires before the scheduler has seen its deferral
options = {"schedule": None, "max_active_tasks": 64, "default_args": {"retries": 2, "retry_delay": 30}}
ids = [update["collection_task_id"] for update in UPDATES]
for name in ("one", "mapped"):
    with DAG(name, **options):
        items = WebCollectUpdateTaskParametersOperator(task_id="set_loop_items", updates=UPDATES)
        start = (
            Start(task_id="start", collection_task_ids=ids)
            if name == "one"
            else Start.partial(task_id="start").expand(collection_task_id=ids)
        )
        wait = WebCollectTaskStatusSensor(
            task_id="wait", collection_task_ids=ids, after=start.output, deferrable=True, poke_interval=5
        )
        land = WebCollectToObjectStorageOperator(
            task_id="land",
            sources=[{"collection_task_id": id_, "destination": f"{FOLDER}/{name}/{id_}"} for id_ in ids],
            destination=f"{FOLDER}/{name}",
            mode="incremental",
            late_rows_delay=0,
        )
        items >> start
        wait >> land
        if LOADS:
            land >> WebCollectLoadOperator(
                task_id="load",
                sources=[{"landing": f"{FOLDER}/{name}/{id_}", "table": f"{name}.{id_}"} for id_ in ids],
                warehouse_conn_id="warehouse",
            )
"""


def main() -> None:
    """Run both DAGs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=300, help="collection tasks (default: %(default)s)")
    parser.add_argument("--load", action="store_true", help="also load each into a table of DuckDB")
    arguments = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name, Processes() as processes:
        folder = Path(name)
        url, control = start_sandbox(
            processes, folder / "sandbox", "--speed", "60", "--no-enforce-limits", "--rows-per-item", "3"
        )
        updates = [_add_task(control, f"task_{number:03}") for number in range(arguments.tasks)]
        (dags := folder / "dags").mkdir()
        constants = f"FOLDER = {folder.as_uri()!r}\nUPDATES = {updates!r}\nLOADS = {arguments.load}\n"
        (dags / "starts.py").write_text(constants + DAG_FILE)
        with RealAirflow(folder / "airflow", dags, _options(url, folder)) as airflow:
            columns = "start | Airflow tasks | seconds of the start | of the DAG run | rows, each once"
            table(columns, _measured(airflow, control, folder))


def _add_task(control: Control, task_id: str) -> dict[str, Any]:
    """Add a collection task, and return the entry of ``updates`` that sets its loop items."""
    (step,) = (
        action
        for action in control.add_task(task_id, subtasks=1)["actions"]
        if action["action_type"] == "LoopAction"
    )
    items = {"action_id": step["action_id"], "loop_type": step["loop_type"], "loop_items": ["oak"]}
    return {"collection_task_id": task_id, "loop_items": [items]}


def _options(url: str, folder: Path) -> dict[str, str]:
    extra = {"access_token": demo.ACCESS_TOKEN, "requests_per_second": 0}
    return {
        "AIRFLOW_CONN_WEBCOLLECT_DEFAULT": json.dumps(
            {"conn_type": "webcollect", "host": url, "extra": extra}
        ),
        "AIRFLOW_CONN_WAREHOUSE": json.dumps({"conn_type": "duckdb", "host": str(folder / "w.duckdb")}),
        "AIRFLOW__API__MAXIMUM_PAGE_LIMIT": "1000",
    }


def _measured(airflow: RealAirflow, control: Control, folder: Path) -> Iterator[list[object]]:
    """Run one DAG after another; yield a row of the table for each."""
    for dag_id in ("one", "mapped"):
        run_id = airflow.trigger(dag_id)
        state = airflow.wait(dag_id, run_id, TIMEOUT_SECONDS)
        assert state == "success", state
        tasks = airflow.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=1000)["task_instances"]
        starts = [task for task in tasks if task["task_id"] == "start"]
        whole = _seconds([airflow.get(f"dags/{dag_id}/dagRuns/{run_id}")])
        yield [dag_id, len(tasks), _seconds(starts), whole, _landed_once(control, folder / dag_id)]


def _seconds(spans: list[dict[str, Any]]) -> int:
    """Return the seconds from the first start to the last end."""
    starts, ends = (
        [datetime.fromisoformat(span[name]) for span in spans] for name in ("start_date", "end_date")
    )
    return round((max(ends) - min(starts)).total_seconds())


def _landed_once(control: Control, folder: Path) -> int:
    """Check that the landings have each of the service's rows once, and return the number of rows."""
    rows = 0
    for task in control.tasks():
        if task["task_id"].startswith("task_"):
            landed = list(read_landing(folder / task["task_id"]).iter_rows())
            assert landed == control.true_rows(task["task_id"]) != []
            rows += len(landed)
    return rows


if __name__ == "__main__":
    main()
