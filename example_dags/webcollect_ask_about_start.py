"""Ask a person about a start of which nobody knows whether it took effect, with Airflow's own operators.

Needs Airflow 3.1 or later, and the connection ``webcollect_default``. If the answer to the start is lost, the
start fails without retries, since a second one could collect everything twice. Somebody looks at the service,
and chooses in Airflow's *Required Actions* whether the run is waited for or started again. If nobody does so
within twelve hours, the DAG run fails.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, Param, task
from airflow.providers.standard.operators.hitl import HITLBranchOperator

from airflow_provider_webcollect import (
    WebCollectHook,
    WebCollectStartSubTasksOperator,
    WebCollectTaskStatusSensor,
    WebCollectToObjectStorageOperator,
)


@task(trigger_rule="all_failed")
def query_status(params: dict[str, Any] | None = None) -> str:
    """Return what the service shows of the task now, as Markdown."""
    assert params is not None
    statuses = WebCollectHook().get_task_statuses_v2([params["collection_task_id"]])
    # as JSON, each value stays in its own line, whatever the service sends
    return "\n".join(
        f"    {name}: {json.dumps(value, default=str)}"
        for status in statuses
        for name, value in status.as_dict().items()
    )


@task
def give_up() -> None:
    """Say that it was a person who has ended the run."""
    raise AirflowFailException("Nobody wanted to go on after the failed start.")


with DAG(
    dag_id="webcollect_ask_about_start",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 2,
        "collection_task_id": "{{ params.collection_task_id }}",
        "wait_for_completion": True,
        "deferrable": True,
    },
    params={
        "collection_task_id": Param("", type="string", description="The service's task"),
        "destination": Param(
            "", type="string", description="The landing's folder, such as s3://bucket/prices"
        ),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    start = WebCollectStartSubTasksOperator(task_id="start")
    ask = HITLBranchOperator(
        task_id="ask",
        subject="The start of {{ params.collection_task_id }} has failed. Did it take effect?",
        body="{{ ti.xcom_pull('query_status') }}",
        options=["It runs", "Start again", "Give up"],
        options_mapping={"It runs": "wait", "Start again": "start_again", "Give up": "give_up"},
        defaults="Give up",
        response_timeout=timedelta(hours=12),
    )
    start_again = WebCollectStartSubTasksOperator(task_id="start_again")
    # without `after`: the person has seen this run in the service, so an earlier one cannot be meant
    wait = WebCollectTaskStatusSensor(task_id="wait")
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        # at most one of the three upstream tasks succeeds
        trigger_rule="one_success",
        destination="{{ params.destination }}",
    )
    start >> query_status() >> ask >> [start_again, wait, give_up()]
    [start, start_again, wait] >> land
