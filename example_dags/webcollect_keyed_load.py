"""Add a task's new rows to one landing, and keep the latest row of each product in a table of a warehouse.

Needs the connection ``webcollect_default`` and one of the warehouse, such as PostgreSQL or a DuckDB file, and
on workers the extra ``dlt`` and dlt's own one for the warehouse, such as ``dlt[postgres]``. Rows without a
URL are quarantined, since they are no product's; the landing's log and result say how many. The load takes
all that the table does not have yet, so either task can fail, or be cleared, at any time.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_provider_webcollect import WebCollectLoadOperator, WebCollectToObjectStorageOperator

#: The column that identifies a product.
KEY = "url"

with DAG(
    dag_id="webcollect_keyed_load",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # one run at a time: runs share the landing and the table
    max_active_runs=1,
    default_args={"retries": 2},
    params={
        "collection_task_id": Param("", type="string", description="The service's task"),
        "destination": Param(
            "", type="string", description="The landing's folder, such as s3://bucket/prices"
        ),
        "warehouse_conn_id": Param("", type="string", description="The warehouse's connection"),
        "table": Param("shop.prices", type="string", description="Dataset and table"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id="{{ params.collection_task_id }}",
        destination="{{ params.destination }}",
        # if more than 10 % of the rows have no URL, the task fails
        checks={"rows": {"max_wrong": 0.1}, "columns": {KEY: {"required": True}}},
    )
    load = WebCollectLoadOperator(
        task_id="load",
        landing="{{ params.destination }}",
        warehouse_conn_id="{{ params.warehouse_conn_id }}",
        table="{{ params.table }}",
        write_disposition="merge",
        primary_key=KEY,
    )
    land >> load
