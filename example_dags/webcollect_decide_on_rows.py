"""Accept, set apart or discard rows that have failed the checks of ``webcollect_checked_landing``.

Start it by hand, with the id of the run that has failed: its message names it. Accepted rows are committed as
they are. Others are set apart or deleted, and the landing skips them.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_provider_webcollect import WebCollectAcceptLandingOperator

with DAG(
    dag_id="webcollect_decide_on_rows",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    params={
        "destination": Param(
            "", type="string", description="The landing's folder, such as s3://bucket/prices"
        ),
        "run_id": Param("", type="string", description="The run that has read the rows"),
        "decision": Param(
            "accept", enum=["accept", "quarantine", "discard"], description="What becomes of them"
        ),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    WebCollectAcceptLandingOperator(
        task_id="decide",
        destination="{{ params.destination }}",
        run_id="{{ params.run_id }}",
        decision="{{ params.decision }}",
    )
