"""Land a task's new rows when one of its runs ends, whoever started it, without a schedule or a wait.

Needs Airflow 3, the connection ``webcollect_default``, and the Airflow Variable ``webcollect_landing``: the
folder for a subfolder per task, such as ``s3://bucket/prices``. The triggerer watches the tasks; an event
starts this DAG. The landing is incremental, so a repeated event changes nothing, and one run of this DAG may
handle several events.
"""

from __future__ import annotations

import os
from typing import Any

import pendulum
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_webcollect import WebCollectTaskFinishedTrigger, WebCollectToObjectStorageOperator

# The ids of the watched tasks must be known when the DAG is parsed. The default is a task of the sandbox.
TASK_IDS = os.environ.get("WEBCOLLECT_WATCHED", "5a9d0b0e-0000-4000-8000-000000000001").split(",")

finished = Asset(
    "webcollect_finished_runs",
    watchers=[
        AssetWatcher(
            name="webcollect_finished_runs",
            trigger=WebCollectTaskFinishedTrigger(collection_task_ids=TASK_IDS, poke_interval=5),
        )
    ],
)

with DAG(
    dag_id="webcollect_on_finish",
    schedule=[finished],
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:

    @task
    def list_tasks(triggering_asset_events: Any = None) -> list[str]:
        """Return the tasks whose runs have ended; events close together share a run of the DAG."""
        payloads = [event.extra["payload"] for event in triggering_asset_events[finished]]
        return sorted({payload["collection_task_id"] for payload in payloads})

    WebCollectToObjectStorageOperator(
        task_id="land",
        sources=list_tasks(),
        destination="{{ var.value.webcollect_landing }}",
        # a run that an event has started has no logical date, and therefore no `ds`
        partition="dt={{ dag_run.run_after | ds }}",
    )
