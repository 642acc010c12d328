"""Asks the service through the connection that a browser has filled in."""

from airflow.sdk import dag, task

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook


@dag(schedule=None)
def asks_the_service() -> None:
    @task
    def ask() -> list[float | None]:
        with_form = WebCollectHook("from_the_form")
        return [with_form.get_running_counts().waiting_count, with_form.connection.settings.read_timeout]

    ask()


asks_the_service()
