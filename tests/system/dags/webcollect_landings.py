"""The DAGs of landings; a run's ``conf`` names the connection, the collection tasks and the folder on S3."""

from __future__ import annotations

from scenario_dag import collection_task, scenario_dag

from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)

#: Pipelines of one DAG.
PIPELINES = 10
SOURCES = 8


def land(task_id: str, **arguments: object) -> WebCollectToObjectStorageOperator:
    """Land collection tasks, each in a folder named for it."""
    return WebCollectToObjectStorageOperator(
        task_id=task_id,
        object_storage_conn_id="storage",
        # the sandbox shows all rows at once
        late_rows_delay=0,
        **arguments,
    )


with scenario_dag("collect_and_land", destination=""):
    landing = land(
        "land",
        sources=[collection_task(number) for number in range(PIPELINES)],
        destination="{{ params.destination }}",
        mark_exported=True,
    )
    for number in range(PIPELINES):
        start = WebCollectStartSubTasksOperator(
            task_id=f"start_{number}", collection_task_id=collection_task(number)
        )
        wait = WebCollectTaskStatusSensor(
            task_id=f"wait_{number}",
            collection_task_id=collection_task(number),
            after=start.output,
            poke_interval=5,
            deferrable=True,
        )
        start >> wait >> landing

with scenario_dag("land_sources", destination=""):
    for number in range(SOURCES):
        land(
            f"land_{number}",
            collection_task_id=collection_task(number),
            destination=f"{{{{ params.destination }}}}/{collection_task(number)}",
            # a part of two pages
            max_part_bytes=300_000,
        )
