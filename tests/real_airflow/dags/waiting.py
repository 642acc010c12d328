"""Waits of both kinds that hold no worker slot; :mod:`test_on_finish` kills the triggerer."""

from airflow.sdk import DAG, Param, task

from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor

ZERO_SLOT = 8

with DAG("waiting", schedule=None, max_active_runs=10, params={"ids": Param([], type="array")}):

    @task
    def rest(params):
        return params["ids"][ZERO_SLOT:]

    WebCollectTaskStatusSensor.partial(task_id="deferred", deferrable=True, poke_interval=2).expand(
        collection_task_id=rest()
    )
    for number in range(ZERO_SLOT):
        WebCollectTaskStatusSensor(
            task_id=f"zero_slot_{number}",
            collection_task_id=f"{{{{ params.ids[{number}] }}}}",
            start_from_trigger=True,
            poke_interval=2,
        )
