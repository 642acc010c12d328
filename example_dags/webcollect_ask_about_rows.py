"""Ask a person what becomes of rows that have failed their checks, with Airflow's own operators for that.

Needs Airflow 3.1 or later, and the connection ``webcollect_default``. If a check fails, nothing of the run is
committed: its rows stay staged. Somebody chooses in Airflow's *Required Actions* whether they are landed as
they are, set apart or deleted. If nobody does so within twelve hours, they are set apart.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, Param, task
from airflow.providers.standard.operators.hitl import HITLOperator

from airflow_provider_webcollect import WebCollectAcceptLandingOperator, WebCollectToObjectStorageOperator
from airflow_provider_webcollect.landing.review import in_review


@task(trigger_rule="all_failed")
def list_failed_checks(params: dict[str, Any] | None = None, run_id: str | None = None) -> str:
    """Return what the checks have found in the rows that this run has staged, as Markdown."""
    assert params is not None
    staged = [entry for entry in in_review(params["destination"]) if entry.run.run_id == run_id]
    if not staged:
        raise AirflowFailException("The landing has failed for another reason: its log says which.")
    # indented by four, values of rows are no Markdown
    return "\n".join(f"    {check}" for check in staged[0].checks)


with DAG(
    dag_id="webcollect_ask_about_rows",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # one run at a time: runs share the landing
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
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id="{{ params.collection_task_id }}",
        destination="{{ params.destination }}",
        checks={"columns": {"id": {"filled": 1, "unique": True}, "price": {"filled": 0.95}}},
    )
    ask = HITLOperator(
        task_id="ask",
        subject="Rows for {{ params.destination }} have failed their checks. What becomes of them?",
        body="{{ ti.xcom_pull('list_failed_checks') }}",
        options=["accept", "quarantine", "discard"],
        defaults="quarantine",
        response_timeout=timedelta(hours=12),
    )
    decide = WebCollectAcceptLandingOperator(
        task_id="decide",
        destination="{{ params.destination }}",
        run_id="{{ run_id }}",
        decision="{{ ti.xcom_pull('ask')['chosen_options'][0] }}",
    )
    land >> list_failed_checks() >> ask >> decide
