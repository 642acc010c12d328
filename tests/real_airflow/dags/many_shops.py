"""The DAGs of `test_task_group.py`: groups in both arrangements, one of which loads a warehouse."""

import os

from airflow.sdk import DAG

from airflow_provider_webcollect import WebCollectTaskGroup

FOLDER = os.environ["AIRFLOW_VAR_WEBCOLLECT_LANDING"]

# On a busy machine, Airflow fails a task whose trigger fires before the scheduler has seen its deferral.
RETRIED = {"retries": 2, "retry_delay": 30}

for arrangement in ("each", "together"):
    with DAG(f"shops_{arrangement}", schedule=None, max_active_tasks=64, default_args=RETRIED):
        WebCollectTaskGroup(
            "shops",
            collection_tasks=f"shops_{arrangement}.yaml",
            destination=f"{FOLDER}/{arrangement}/{{name}}",
            arrangement=arrangement,
            wait={"poke_interval": 5},
            late_rows_delay=0,
        )

with DAG("killed", schedule=None, default_args=RETRIED):
    WebCollectTaskGroup(
        "shops",
        collection_tasks=[f"killed_{number:02}" for number in range(60)],
        destination=f"{FOLDER}/killed/{{name}}",
        arrangement="together",
        start={"retry_delay": 1},
        wait={"poke_interval": 5},
        late_rows_delay=0,
    )

with DAG("streams", schedule=None, default_args=RETRIED):
    WebCollectTaskGroup(
        "streams",
        collection_tasks="streams.yaml",
        destination=f"{FOLDER}/streams/{{name}}",
        arrangement="together",
        file_format="parquet",
        wait={"poke_interval": 5},
        late_rows_delay=0,
        load={"warehouse_conn_id": "warehouse"},
    )
