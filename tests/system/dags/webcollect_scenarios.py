"""The DAGs of the scenarios.

A run's ``conf`` names the connection, the collection tasks and, if any, the folder or bucket to land in.
"""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectGetRunningCountsOperator,
    WebCollectRefreshTokenOperator,
    WebCollectStartSubTasksOperator,
)
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)

#: Number of waits in a DAG run.
WAITS = 20
WAITS_IN_OUTAGES = 16
#: Numbers of pipelines and of sources in a DAG run.
PIPELINES, SOURCES = 10, 8
LANDINGS, STARTS = 2, 2
#: More than the slots of both workers, so that some are still in Redis while the first are running.
CALLS_IN_OUTAGES = 30


def scenario_dag(dag_id: str, **params: Any) -> DAG:
    """Return a DAG whose runs name the connection and the collection tasks in their ``conf``.

    :param params: further parameters, with their defaults
    """
    return DAG(
        dag_id,
        schedule=None,
        max_active_runs=1000,
        max_active_tasks=1000,
        params={
            "conn_id": Param("", type="string"),
            "ids": Param([], type="array"),
            **{name: Param(default, type="string") for name, default in params.items()},
        },
        default_args={
            "webcollect_conn_id": "{{ params.conn_id }}",
            "retries": 10,
            "retry_delay": datetime.timedelta(seconds=3),
            # tasks of what has begun come before others
            "weight_rule": "upstream",
        },
    )


def collection_task(number: int) -> str:
    return f"{{{{ params.ids[{number}] }}}}"


def wait(number: int, **arguments: Any) -> WebCollectTaskStatusSensor:
    """Wait for one of the run's collection tasks in the triggerer."""
    usual = {"collection_task_id": collection_task(number), "deferrable": True, "poke_interval": 10}
    return WebCollectTaskStatusSensor(task_id=f"wait_{number}", **{**usual, **arguments})


def start(number: int, **arguments: Any) -> WebCollectStartSubTasksOperator:
    return WebCollectStartSubTasksOperator(
        task_id=f"start_{number}", collection_task_id=collection_task(number), **arguments
    )


def land(task_id: str, **arguments: Any) -> WebCollectToObjectStorageOperator:
    """Land collection tasks without a wait for late rows: the sandbox shows all rows at once."""
    return WebCollectToObjectStorageOperator(task_id=task_id, mode="full", late_rows_delay=0, **arguments)


def call(number: int) -> WebCollectGetRunningCountsOperator:
    """Call the service, in a pool with as many slots as the workers have."""
    return WebCollectGetRunningCountsOperator(task_id=f"call_{number}", pool="calls")


with scenario_dag("calls"):
    for number in range(24):
        # retried: on a busy machine, a token store that is too slow fails an attempt before it sends anything
        call(number)

with scenario_dag("keeper"):
    WebCollectRefreshTokenOperator(task_id="renew")

with scenario_dag("waits"):
    for number in range(WAITS):
        # shorter than the default: nobody knows whether waits of a killed triggerer were seen running
        wait(number, status_delay=20)

with scenario_dag("collect_and_land", destination=""):
    landing = land(
        "land",
        sources=[collection_task(number) for number in range(PIPELINES)],
        destination="{{ params.destination }}",
        object_storage_conn_id="storage",
        mark_exported=True,
    )
    for number in range(PIPELINES):
        started = start(number)
        started >> wait(number, after=started.output, poke_interval=5) >> landing

with scenario_dag("land_sources", destination=""):
    for number in range(SOURCES):
        land(
            f"land_{number}",
            collection_task_id=collection_task(number),
            destination=f"{{{{ params.destination }}}}/{collection_task(number)}",
            object_storage_conn_id="storage",
            # a part of two pages
            max_part_bytes=300_000,
        )

with scenario_dag("outage_waits"):
    for number in range(WAITS_IN_OUTAGES):
        wait(number)

with scenario_dag("start_and_wait"):
    for number in range(STARTS):
        start(number, wait_for_completion=True, deferrable=True, poll_interval=10)

with scenario_dag("landings", folder=""):
    for number in range(LANDINGS):
        land(
            f"land_{number}",
            collection_task_id=collection_task(number),
            destination=f"{{{{ params.folder }}}}/{collection_task(number)}",
            page_size=100,
            max_part_bytes=50_000,
        )

with scenario_dag("starts_and_calls"):
    for number in range(STARTS):
        start(number, retry_unknown_outcome=True)
    for number in range(CALLS_IN_OUTAGES):
        call(number)
