"""Add a task's new rows to one landing on Google Cloud Storage, and load what is new there into BigQuery.

Needs the connections ``webcollect_default`` and ``google_cloud_default``, and the extras ``gcs`` and
``parquet``. An Airflow Variable keeps the number of the landing's last commit that is loaded: so a landing
that fails after its commit, or a load that is left out, loses no rows. Snowflake and Redshift are loaded in a
similar way: see ``docs/guides/load-by-hand.md``.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, AirflowSkipException, Param, Variable, task
from airflow.providers.google.cloud.transfers.gcs_to_bigquery import GCSToBigQueryOperator

from airflow_provider_webcollect import WebCollectToObjectStorageOperator


@task(multiple_outputs=True)
def new_parts(landing: str, bucket: str, variable: str) -> dict[str, Any]:
    """Return the parts that are not loaded yet, without the bucket, and the number of the last commit."""
    from airflow_provider_webcollect import read_landing

    landed = read_landing(landing)
    uris = landed.uris(since=int(Variable.get(variable, 0)))
    if not uris:
        raise AirflowSkipException("nothing is to be loaded")
    objects = [uri.removeprefix(f"gs://{bucket}/") for uri in uris]
    return {"objects": objects, "commit": landed.manifest.commit}


@task
def keep(variable: str, commit: int) -> None:
    """Remember up to which commit all is loaded."""
    Variable.set(variable, str(commit))


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
        "variable": Param("prices_loaded", type="string", description="The Variable for the commit's number"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id="{{ params.collection_task_id }}",
        destination="{{ params.destination }}",
        file_format="parquet",
        # with fixed columns, the schema and the parts that are already loaded do not change
        columns=["id", "title", "price", "city"],
        column_types={"price": "decimal(12,2)"},
        on_cast_error="null",
        partition="dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }}",
    )
    new = new_parts("{{ params.destination }}", "{{ params.bucket }}", "{{ params.variable }}")
    load = GCSToBigQueryOperator(
        task_id="load",
        bucket="{{ params.bucket }}",
        source_objects=new["objects"],
        source_format="PARQUET",
        destination_project_dataset_table="{{ params.table }}",
        write_disposition="WRITE_APPEND",
        # a retry joins the load job that was already started, and never loads rows twice
        force_rerun=False,
        reattach_states={"PENDING", "RUNNING"},
    )
    land >> new >> load >> keep("{{ params.variable }}", new["commit"])
