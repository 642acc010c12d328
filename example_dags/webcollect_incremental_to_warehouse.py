"""Add a task's new rows to one landing on Google Cloud Storage, and load only these into BigQuery.

Needs the connections ``webcollect_default`` and ``google_cloud_default``, and the extras ``gcs`` and
``parquet``. Snowflake and Redshift are loaded in a similar way: see ``docs/guides/load-into-a-warehouse.md``.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param
from airflow.providers.google.cloud.transfers.gcs_to_bigquery import GCSToBigQueryOperator

from airflow_provider_webcollect import WebCollectToObjectStorageOperator

with DAG(
    dag_id="webcollect_incremental_to_warehouse",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # one run at a time: runs share the landing
    max_active_runs=1,
    render_template_as_native_obj=True,
    default_args={"retries": 2},
    params={
        "collection_task_id": Param("", type="string", description="The service's task"),
        "destination": Param("", type="string", description="The landing's folder, gs://<bucket>/prices"),
        "bucket": Param("", type="string", description="The bucket alone"),
        "table": Param("", type="string", description="BigQuery's table: project.dataset.table"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id="{{ params.collection_task_id }}",
        destination="{{ params.destination }}",
        mode="incremental",
        file_format="parquet",
        # fixed columns keep the schema, and parts that are already loaded, unchanged
        columns=["id", "title", "price", "city"],
        column_types={"price": "decimal(12,2)"},
        on_cast_error="null",
        partition="dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }}",
        # also skips the load
        skip_if_nothing_new=True,
        multiple_outputs=True,
    )
    load = GCSToBigQueryOperator(
        task_id="load",
        bucket="{{ params.bucket }}",
        source_objects=land.output["objects"],
        source_format="PARQUET",
        destination_project_dataset_table="{{ params.table }}",
        write_disposition="WRITE_APPEND",
        # a retry joins the job that was started before, and never loads twice
        force_rerun=False,
        reattach_states={"PENDING", "RUNNING"},
    )
