"""The tasks of :mod:`test_answers`, which ask a person."""

from datetime import timedelta

from airflow.sdk import dag

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectCopyTaskOperator,
    WebCollectStartSubTasksOperator,
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


asks_about_start()
asks_about_start_for_a_moment()
asks_about_copies()
