"""The wait of :mod:`test_deferred_waits`."""

from datetime import timedelta

from airflow.sdk import dag

from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor


@dag(schedule=None, params={"endless": ""}, default_args={"retries": 1, "retry_delay": timedelta(0)})
def handled() -> None:
    WebCollectTaskStatusSensor(
        task_id="wait",
        collection_task_id="{{ params.endless }}",
        deferrable=True,
        poke_interval=0.5,
        timeout=600,
    )


handled()
