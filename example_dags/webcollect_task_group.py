"""Collect, wait, and land what the file ``webcollect_task_group.yaml`` beside this one names.

Needs the connection ``webcollect_default``. Each collection task has a task group of its own, and a folder
called like it. For more than about 20, ``arrangement="together"`` lets them share one wait and one landing.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_provider_webcollect import WebCollectTaskGroup

with DAG(
    dag_id="webcollect_task_group",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},
    params={"destination": Param("", type="string", description="A folder, such as s3://bucket/shops")},
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    WebCollectTaskGroup(
        "shops",
        collection_tasks="webcollect_task_group.yaml",
        destination="{{ params.destination }}/{name}",
        wait={"poke_interval": 5},
        mark_exported=True,
    )
