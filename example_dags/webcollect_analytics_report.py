"""Write last week's metrics to a file every morning, and fail if they violate a threshold.

Needs the connection ``webcollect_default``. All violations are listed together; ``on_violation="warn"`` would
only log them.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_provider_webcollect import WebCollectMetricsCheckOperator, WebCollectQueryAnalyticsOperator

# Works for every type of run: on Airflow 3, some runs have neither a logical date nor a data interval.
DAY = "(dag_run.data_interval_end or dag_run.run_after) | ds"
LAST_WEEK = {
    "start": f"{{{{ macros.ds_add({DAY}, -7) }}}}",
    "end": f"{{{{ macros.ds_add({DAY}, -1) }}}}",
}

with DAG(
    dag_id="webcollect_analytics_report",
    schedule="0 6 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    params={
        "destination": Param("s3://bucket/metrics", type="string", description="A folder for the reports")
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    report = WebCollectQueryAnalyticsOperator(
        task_id="report",
        **LAST_WEEK,
        destination=f"{{{{ params.destination }}}}/{{{{ {DAY} }}}}.csv",
        file_format="csv",
    )
    check = WebCollectMetricsCheckOperator(
        task_id="check", **LAST_WEEK, min_success_rate=0.5, max_volume_drop=0.9, max_cost=1000
    )

    report >> check
