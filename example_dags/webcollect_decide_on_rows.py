"""Accept or discard rows that ``webcollect_checked_landing`` has quarantined.

Start it by hand, with the number of the commit that has quarantined the rows: the landing's log names it.
Accepted rows land as they are. Discarded rows are deleted, and the landing skips them.
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
        "commit": Param(1, type="integer", minimum=1, description="The commit that has quarantined the rows"),
        "decision": Param("accept", enum=["accept", "discard"], description="What becomes of them"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    WebCollectAcceptLandingOperator(
        task_id="decide",
        destination="{{ params.destination }}",
        commit="{{ params.commit }}",
        decision="{{ params.decision }}",
    )
