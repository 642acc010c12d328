"""What `test_task_group.py` runs: a file of collection tasks, in both arrangements."""

import os

from airflow.sdk import DAG

from airflow_provider_webcollect import WebCollectTaskGroup

FOLDER = os.environ["AIRFLOW_VAR_WEBCOLLECT_LANDING"]

for arrangement in ("each", "together"):
    with DAG(f"shops_{arrangement}", schedule=None, max_active_tasks=64):
        WebCollectTaskGroup(
            "shops",
            collection_tasks="many_shops.yaml",
            destination=f"{FOLDER}/{arrangement}/{{name}}",
            arrangement=arrangement,
            wait={"poke_interval": 5},
            late_rows_delay=0,
        )
