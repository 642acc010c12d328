"""The only DAG that renews the token of ``webcollect_default``, if you want a single writer.

Set the connection's extra ``token_refresh`` to ``keeper``: workers then never renew the token; they wait for
this DAG to store one. It runs every hour, and renews the token if half of its life has passed or the service
rejects it.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_provider_webcollect import WebCollectRefreshTokenOperator

with DAG(
    dag_id="webcollect_token_keeper",
    schedule="@hourly",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    WebCollectRefreshTokenOperator(task_id="renew", retries=3, retry_delay=pendulum.duration(minutes=5))
