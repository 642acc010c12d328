"""The waits of :mod:`test_deferred_waits`."""

from datetime import timedelta

from airflow.sdk import dag

from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor

PARAMS = {"endless": "", "stopped": ""}


def wait(task_id, collection_task_id="{{ params.endless }}", **arguments):
    usual = {"deferrable": True, "poke_interval": 0.5, "timeout": 600}
    WebCollectTaskStatusSensor(
        task_id=task_id, collection_task_id=collection_task_id, **{**usual, **arguments}
    )


@dag(schedule=None, params=PARAMS, default_args={"retries": 1, "retry_delay": timedelta(0)})
def endings():
    wait("stopped", "{{ params.stopped }}")
    wait("late", timeout=5)
    wait("late_and_lenient", timeout=5, soft_fail=True)
    wait("executing_too_long", execution_timeout=timedelta(seconds=5))


@dag(schedule=None, params=PARAMS)
def handled():
    wait("wait")


endings()
handled()
