"""The tasks of :mod:`test_answers`, which ask a person."""

from datetime import timedelta

from airflow.sdk import dag

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectCopyTaskOperator,
    WebCollectStartSubTasksOperator,
)
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)

ASK = {"on_unknown_outcome": "ask", "retries": 1, "retry_delay": timedelta(0)}
START = {
    "task_id": "ask",
    "collection_task_id": "{{ params.task }}",
    "wait_for_completion": True,
    "deferrable": True,
    "poll_interval": 0.5,
    **ASK,
}

LAND = {
    "task_id": "ask",
    "collection_task_id": "{{ params.task }}",
    "destination": "{{ params.destination }}",
    "mode": "incremental",
    "settle": 0,
    "checks": {"columns": {"price": {"filled": 0.95}}},
    "on_failed_checks": "ask",
    "retries": 1,
    "retry_delay": timedelta(0),
}


@dag(schedule=None, params={"task": ""})
def asks_about_start():
    WebCollectStartSubTasksOperator(**START)


@dag(schedule=None, params={"task": ""})
def asks_about_start_for_a_moment():
    WebCollectStartSubTasksOperator(ask_timeout=timedelta(seconds=1), **START)


@dag(schedule=None, params={"tasks": []})
def asks_about_copies():
    WebCollectCopyTaskOperator.partial(task_id="ask", **ASK).expand(
        collection_task_id=["{{ params.tasks[0] }}", "{{ params.tasks[1] }}"]
    )


@dag(schedule=None, params={"task": "", "destination": ""})
def asks_about_rows():
    WebCollectToObjectStorageOperator(**LAND)


@dag(schedule=None, params={"task": "", "destination": ""})
def asks_about_rows_for_a_moment():
    WebCollectToObjectStorageOperator(ask_timeout=timedelta(seconds=1), ask_default="quarantine", **LAND)


asks_about_rows()
asks_about_rows_for_a_moment()
asks_about_start()
asks_about_start_for_a_moment()
asks_about_copies()
