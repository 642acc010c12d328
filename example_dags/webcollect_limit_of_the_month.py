"""Start nothing more once the rows or the cost of the month are above a limit; else collect and land.

Needs the connection ``webcollect_default``, and a plan with analytics. All tasks of the account count, in the
UTC days of the calendar month so far. Above a limit ``check`` fails without retries, and nothing is started.
A run that goes on is not stopped: the service's interface has no call for that.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_provider_webcollect import (
    WebCollectMetricsCheckOperator,
    WebCollectStartSubTasksOperator,
    WebCollectTaskStatusSensor,
    WebCollectToObjectStorageOperator,
)

# The month in which the task runs, even if an old DAG run is cleared.
THIS_MONTH = {
    "start": "{{ macros.time.strftime('%Y-%m-01', macros.time.gmtime()) }}",
    "end": "{{ macros.time.strftime('%Y-%m-%d', macros.time.gmtime()) }}",
}

with DAG(
    dag_id="webcollect_limit_of_the_month",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},
    params={
        "collection_task_id": Param("", type="string", description="The service's task"),
        "destination": Param(
            "", type="string", description="The landing's folder, such as s3://bucket/prices"
        ),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    check = WebCollectMetricsCheckOperator(
        task_id="check", **THIS_MONTH, max_volume=10_000_000, max_cost=1000
    )
    start = WebCollectStartSubTasksOperator(
        task_id="start", collection_task_id="{{ params.collection_task_id }}"
    )
    wait = WebCollectTaskStatusSensor(
        task_id="wait",
        collection_task_id="{{ params.collection_task_id }}",
        after=start.output,
        deferrable=True,
    )
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id="{{ params.collection_task_id }}",
        destination="{{ params.destination }}",
    )

    check >> start >> wait >> land
