"""Add a task's new rows to a Delta Lake table, each row once, and count what is new with DuckDB.

Needs the extras ``delta`` and ``duckdb`` on workers, and the connection ``webcollect_default``. The table's
own commit is the landing's: a retry, or clearing either task at any time, adds no row a second time. Prices
that are no numbers are null. The column ``dt`` says in which run of the schedule a row has come.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_provider_webcollect import WebCollectToObjectStorageOperator


@task
def count(table: str, run_id: str | None = None) -> dict[str, int]:
    """Return how many rows the table has, and how many of them are of this run (Airflow gives its id)."""
    from airflow_provider_webcollect import read_landing

    landed = read_landing(table)
    # DuckDB reads the rows when a query needs them
    ((total,),) = landed.to_duckdb().query("prices", "select count(*) from prices").fetchall()
    assert run_id is not None
    return {"total": total, "new": len(landed.to_arrow(new_only=run_id))}


with DAG(
    dag_id="webcollect_delta_table",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # one run at a time: runs share the table
    max_active_runs=1,
    default_args={"retries": 2},
    params={
        "collection_task_id": Param("", type="string", description="The service's task"),
        "destination": Param("", type="string", description="The table, such as s3://bucket/prices"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id="{{ params.collection_task_id }}",
        destination="{{ params.destination }}",
        table_format="delta",
        column_types={"price": "float64"},
        on_cast_error="null",
        partition="dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }}",
        # this also skips the downstream task
        skip_if_nothing_new=True,
    )
    land >> count("{{ params.destination }}")
