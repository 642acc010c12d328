"""Start many tasks, wait for each in the triggerer, and land each task's new rows in its own folder.

Needs the connection ``webcollect_default``. All waits share one poll, so that hundreds of tasks stay within
the service's limits.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task, task_group

from airflow_provider_webcollect import (
    WebCollectStartSubTasksOperator,
    WebCollectTaskStatusSensor,
    WebCollectToObjectStorageOperator,
)

with DAG(
    dag_id="webcollect_many_tasks",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},
    params={
        "collection_task_ids": Param([], type="array", description="The service's tasks"),
        "destination": Param("", type="string", description="A folder, such as s3://bucket/prices"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:

    @task
    def list_tasks(params: dict[str, Any] | None = None) -> list[str]:
        """Return the tasks to run; in practice perhaps from a table."""
        return params["collection_task_ids"] if params else []

    @task_group
    def collect(collection_task_id: str) -> None:
        """Start one of the tasks, wait for the run, and land its rows."""
        start = WebCollectStartSubTasksOperator(task_id="start", collection_task_id=collection_task_id)
        wait = WebCollectTaskStatusSensor(
            task_id="wait",
            collection_task_id=collection_task_id,
            after=start.output,
            deferrable=True,
            poke_interval=5,
        )
        land = WebCollectToObjectStorageOperator(
            task_id="land",
            collection_task_id=collection_task_id,
            destination="{{ params.destination }}/{{ task.collection_task_id }}",
        )
        start >> wait >> land

    collect.expand(collection_task_id=list_tasks())
