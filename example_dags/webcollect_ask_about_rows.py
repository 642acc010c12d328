"""Ask a person what becomes of rows that have failed their checks, with Airflow's own operators for that.

Needs Airflow 3.1 or later, and the connection ``webcollect_default``. If a check fails, the rows of the run
are quarantined. Somebody chooses in Airflow's *Required Actions* whether they land as they are, or are
deleted. If nobody does so within twelve hours, the run fails, and the rows stay quarantined: decide on them
with ``webcollect_decide_on_rows``. The next run continues after them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, Param, task
from airflow.providers.standard.operators.hitl import HITLOperator

from airflow_provider_webcollect import WebCollectAcceptLandingOperator, WebCollectToObjectStorageOperator
from airflow_provider_webcollect.landing.write.review import in_review


@task(trigger_rule="all_failed")
def find_quarantined(params: dict[str, Any] | None = None, run_id: str | None = None) -> dict[str, Any]:
    """Return the commit that has quarantined this run's rows, and as Markdown which checks they failed."""
    assert params is not None
    quarantined = [rows for rows in in_review(params["destination"]) if rows.run.run_id == run_id]
    if not quarantined:
        raise AirflowFailException("The landing has failed for another reason: its log says which.")
    rows = quarantined[-1]
    # indented by four spaces, so that values from rows are not rendered as Markdown
    return {"commit": rows.commit, "checks": "\n".join(f"    {check}" for check in rows.checks)}


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
        checks={"columns": {"id": {"required": True, "unique": True}, "price": {"filled": 0.95}}},
    )
    ask = HITLOperator(
        task_id="ask",
        subject="Rows for {{ params.destination }} have failed their checks. What becomes of them?",
        body="{{ ti.xcom_pull('find_quarantined')['checks'] }}",
        options=["accept", "discard"],
        response_timeout=timedelta(hours=12),
        retries=0,
    )
    decide = WebCollectAcceptLandingOperator(
        task_id="decide",
        destination="{{ params.destination }}",
        commit="{{ ti.xcom_pull('find_quarantined')['commit'] }}",
        decision="{{ ti.xcom_pull('ask')['chosen_options'][0] }}",
    )
    land >> find_quarantined() >> ask >> decide
