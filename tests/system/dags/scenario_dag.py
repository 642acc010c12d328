"""What the scenarios' DAGs have in common; they find this module in the folder of DAGs."""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, Param


def scenario_dag(dag_id: str, **params: Any) -> DAG:
    """Return a DAG whose runs name the connection and the collection tasks in their ``conf``.

    :param params: further parameters, with their defaults
    """
    return DAG(
        dag_id,
        schedule=None,
        max_active_runs=1000,
        max_active_tasks=1000,
        params={
            "conn_id": Param("", type="string"),
            "ids": Param([], type="array"),
            **{name: Param(default, type="string") for name, default in params.items()},
        },
        default_args={
            "webcollect_conn_id": "{{ params.conn_id }}",
            "retries": 10,
            "retry_delay": datetime.timedelta(seconds=3),
        },
    )


def collection_task(number: int) -> str:
    """Return the template of the id of one of the run's collection tasks."""
    return f"{{{{ params.ids[{number}] }}}}"
