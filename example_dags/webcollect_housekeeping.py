"""Copy a task, set the copy's parameters, move it to its group, and delete the task that it replaces.

Needs the connection ``webcollect_default``. If the response to the copy is lost, the run fails without
retries, since the copy may exist: look for it before you clear the task.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_provider_webcollect import (
    WebCollectCopyTaskOperator,
    WebCollectDeleteTasksOperator,
    WebCollectGetActionsOperator,
    WebCollectMoveTaskOperator,
    WebCollectUpdateTaskParametersOperator,
)

with DAG(
    dag_id="webcollect_housekeeping",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    render_template_as_native_obj=True,
    default_args={"retries": 2},
    params={
        "collection_task_id": Param("", type="string", description="The task to copy"),
        "task_group_id": Param(1, type="integer", description="The group that the copy belongs to"),
        "loop_items": Param(["laptop"], type="array", description="The copy's search terms"),
        "replaced_task_ids": Param([], type="array", description="Tasks that the copy replaces"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    copy = WebCollectCopyTaskOperator(task_id="copy", collection_task_id="{{ params.collection_task_id }}")
    new_id = "{{ ti.xcom_pull('copy')['task_id'] }}"
    steps = WebCollectGetActionsOperator(
        task_id="read_steps", collection_task_ids=[new_id], action_types=["LoopAction"]
    )
    parameters = WebCollectUpdateTaskParametersOperator(
        task_id="set_parameters",
        collection_task_id=new_id,
        loop_items=[
            {
                "action_id": "{{ ti.xcom_pull('read_steps')[0]['actions'][0]['action_id'] }}",
                "loop_type": "TextList",
                "loop_items": "{{ params.loop_items }}",
            }
        ],
    )
    move = WebCollectMoveTaskOperator(
        task_id="move", collection_task_id=new_id, task_group_id="{{ params.task_group_id }}"
    )
    delete = WebCollectDeleteTasksOperator(
        task_id="delete", collection_task_ids="{{ params.replaced_task_ids }}", ignore_empty=True
    )

    copy >> steps >> parameters >> move >> delete
