"""Add a task's new rows to one landing, unless the site seems to have changed.

Needs the connection ``webcollect_default``, and the extra ``patterns``.

The rows of a run are checked before they are committed. Single wrong rows are quarantined, and the others
land. If more than one row in a hundred is wrong, or another check fails, all rows of the run are quarantined,
and the task fails. Readers of the landing do not see quarantined rows. Run ``webcollect_decide_on_rows`` with
the number of the commit; after *accept*, clear the failed task.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_provider_webcollect import WebCollectToObjectStorageOperator

CHECKS = {
    # at least half of the median of the last ten landings, and at most 1 % wrong rows
    "rows": {"min_of_usual": 0.5, "max_wrong": 0.01},
    "columns": {
        "id": {"required": True, "unique": True},
        "title": {"filled": 0.95},
        "price": {"filled": 0.95, "pattern": r"\d+\.\d\d"},
    },
    # fail if no row has a column that all of the last landings had
    "missing_columns": "fail",
    "new_columns": "warn",
}


@task
def use(result: dict[str, Any]) -> list[str]:
    """Stand for what loads the new parts, which are what they should be; return their names."""
    return list(result["uris"])


with DAG(
    dag_id="webcollect_checked_landing",
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
        checks=CHECKS,
    )
    use(land.output)
