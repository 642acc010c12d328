"""The DAGs of the scenarios; a run's ``conf`` names the connection, the collection tasks and the folder."""

from __future__ import annotations

from scenario_dag import collection_task, scenario_dag

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectGetRunningCountsOperator,
    WebCollectRefreshTokenOperator,
)
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor

#: Waits of one DAG.
PER_RUN = 20

with scenario_dag("calls"):
    for number in range(24):
        # retried, as a store that is too slow on a busy machine fails an attempt before it sends anything
        WebCollectGetRunningCountsOperator(task_id=f"call_{number}", pool="calls")

with scenario_dag("keeper"):
    WebCollectRefreshTokenOperator(task_id="renew")

with scenario_dag("waits"):
    for number in range(PER_RUN):
        WebCollectTaskStatusSensor(
            task_id=f"wait_{number}",
            collection_task_id=collection_task(number),
            poke_interval=10,
            # for those of a triggerer that was killed, of which nobody knows that they were seen running
            status_delay=20,
            deferrable=True,
        )
