"""Collect, wait, land, confirm: set new search terms, and land each row on object storage exactly once.

Needs the connection ``webcollect_default``. The wait takes no worker slot, and a retry of any task continues
where the failed attempt ended. All runs land in one folder: each adds the new rows, in a subfolder of its
day, and the manifest lists all of them. The outlet asset puts each landing on the page *Browse → Web
collection* of Airflow's web interface; other DAGs can run once it is updated.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Asset, Param

from airflow_provider_webcollect import (
    WebCollectMarkExportedOperator,
    WebCollectStartSubTasksOperator,
    WebCollectTaskStatusSensor,
    WebCollectToObjectStorageOperator,
    WebCollectUpdateLoopItemsOperator,
)

TASK = "{{ params.collection_task_id }}"

with DAG(
    dag_id="webcollect_collect_and_land",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    render_template_as_native_obj=True,
    default_args={"retries": 2},
    params={
        "collection_task_id": Param("", type="string", description="The service's task"),
        "action_id": Param("", type="string", description="The step whose loop list is replaced"),
        "loop_items": Param(["laptop", "headphones"], type="array", description="The new search terms"),
        "destination": Param("", type="string", description="The task's folder, such as s3://bucket/prices"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    update = WebCollectUpdateLoopItemsOperator(
        task_id="update_loop_items",
        collection_task_id=TASK,
        action_id="{{ params.action_id }}",
        loop_type="TextList",
        loop_items="{{ params.loop_items }}",
    )
    start = WebCollectStartSubTasksOperator(task_id="start", collection_task_id=TASK)
    wait = WebCollectTaskStatusSensor(
        task_id="wait", collection_task_id=TASK, after=start.output, deferrable=True, poke_interval=5
    )
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id=TASK,
        destination="{{ params.destination }}",
        partition="dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }}",
        outlets=[Asset("collected_rows")],
    )
    confirm = WebCollectMarkExportedOperator(task_id="mark_exported", collection_task_id=TASK)

    update >> start >> wait >> land >> confirm
