"""The DAGs of the outages; a run's ``conf`` also names the folder to land in."""

from __future__ import annotations

from scenario_dag import collection_task, scenario_dag

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectGetRunningCountsOperator,
    WebCollectStartSubTasksOperator,
)
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)

WAITS = 16
LANDINGS = 2
STARTS = 2
#: More than the slots of both workers, so that some are still in Redis while the first are running.
CALLS = 30

with scenario_dag("outage_waits"):
    for number in range(WAITS):
        WebCollectTaskStatusSensor(
            task_id=f"wait_{number}",
            collection_task_id=collection_task(number),
            poke_interval=10,
            deferrable=True,
        )

with scenario_dag("start_and_wait"):
    for number in range(STARTS):
        WebCollectStartSubTasksOperator(
            task_id=f"start_{number}",
            collection_task_id=collection_task(number),
            wait_for_completion=True,
            deferrable=True,
            poll_interval=10,
        )

with scenario_dag("landings", folder=""):
    for number in range(LANDINGS):
        WebCollectToObjectStorageOperator(
            task_id=f"land_{number}",
            collection_task_id=collection_task(number),
            destination=f"{{{{ params.folder }}}}/{collection_task(number)}",
            page_size=100,
            max_part_bytes=50_000,
            late_rows_delay=0,
        )

with scenario_dag("starts_and_calls"):
    for number in range(STARTS):
        WebCollectStartSubTasksOperator(
            task_id=f"start_{number}", collection_task_id=collection_task(number), retry_unknown_outcome=True
        )
    for number in range(CALLS):
        WebCollectGetRunningCountsOperator(task_id=f"call_{number}", pool="calls")
