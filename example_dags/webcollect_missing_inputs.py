"""Collect, find the words that have brought no rows, and collect only these once more.

Needs the connection ``webcollect_default``. A task group does the same with ``retry_missing_inputs=1``. The
loop gets its whole list again in a teardown, even if a task before it has failed.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_provider_webcollect import (
    WebCollectSetMissingInputsOperator,
    WebCollectStartSubTasksOperator,
    WebCollectTaskStatusSensor,
    WebCollectToObjectStorageOperator,
    WebCollectUpdateTaskParametersOperator,
)

TASK = "{{ params.collection_task_id }}"
WORDS = {
    "action_id": "{{ params.action_id }}",
    "loop_type": "TextList",
    "loop_items": ["Laptop", "Phone", "Tablet"],
}
UPDATES = [{"collection_task_id": TASK, "loop_items": [WORDS]}]


def land(task_id: str, on_missing: str) -> WebCollectToObjectStorageOperator:
    """Return the landing of a run, with a check of its inputs."""
    inputs: dict[str, Any] = {"column": "keyword", "on_missing": on_missing}
    return WebCollectToObjectStorageOperator(
        task_id=task_id,
        collection_task_id=TASK,
        destination="{{ params.destination }}",
        checks={"inputs": inputs},
    )


with DAG(
    dag_id="webcollect_missing_inputs",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},
    params={
        "collection_task_id": Param("", type="string", description="The service's task"),
        "action_id": Param("", type="string", description="The loop step of the words"),
        "destination": Param(
            "", type="string", description="The landing's folder, such as s3://bucket/prices"
        ),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    set_all = WebCollectUpdateTaskParametersOperator(task_id="set_all", updates=UPDATES)
    start = WebCollectStartSubTasksOperator(task_id="start", collection_task_id=TASK)
    wait = WebCollectTaskStatusSensor(
        task_id="wait", collection_task_id=TASK, after=start.output, deferrable=True
    )
    land_all = land("land", on_missing="warn")

    set_missing = WebCollectSetMissingInputsOperator(
        task_id="set_missing", updates=UPDATES, landed=land_all.output
    )
    start_again = WebCollectStartSubTasksOperator(task_id="start_again", collection_task_id=TASK)
    wait_again = WebCollectTaskStatusSensor(
        task_id="wait_again", collection_task_id=TASK, after=start_again.output, deferrable=True
    )
    # this check covers both landings, and fails if inputs are still missing
    land_again = land("land_again", on_missing="fail")
    restore = WebCollectUpdateTaskParametersOperator(task_id="restore", updates=UPDATES)

    set_all >> start >> wait >> land_all
    set_missing >> start_again >> wait_again >> land_again >> restore.as_teardown(setups=set_missing)
