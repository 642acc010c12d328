"""Add a task's new rows to one landing, and then to a DuckDB table, each row once.

Needs the connection ``webcollect_default``, and the package ``duckdb`` on workers. The database keeps the
number of the landing's last commit that is loaded, and changes it in one transaction with the rows. So a load
that is left out, fails, is retried or cleared, and a landing that fails after its commit, neither lose rows
nor load them twice.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_provider_webcollect import WebCollectToObjectStorageOperator

#: The fields to load. The table keeps these columns even if the service sends others.
COLUMNS = {"id": "varchar", "title": "varchar", "price": "varchar", "city": "varchar"}
CREATE = """
    create table if not exists prices (id varchar, title varchar, price decimal(12, 2), city varchar);
    create table if not exists loads (last_commit integer primary key)
"""
INSERT = """
    insert into prices by name
    select id, title, try_cast(price as decimal(12, 2)) as price, city from new_rows
"""


@task
def load(landing: str, database: str) -> int:
    """Load what has landed since the last load, in one transaction; return the table's row count."""
    import duckdb

    from airflow_provider_webcollect import read_landing

    landed = read_landing(landing)
    with duckdb.connect(database) as db:
        db.register_filesystem(landed.fs)
        db.begin()
        db.execute(CREATE)
        ((last,),) = db.execute("select max(last_commit) from loads").fetchall()
        if uris := landed.uris(since=last or 0):
            db.read_json(uris, format="newline_delimited", columns=COLUMNS).create_view("new_rows")
            db.execute(INSERT)
            db.execute("drop view new_rows")
            db.execute("insert into loads values (?)", [landed.manifest.commit])
        db.commit()
        ((rows,),) = db.execute("select count(*) from prices").fetchall()
    return rows


with DAG(
    dag_id="webcollect_incremental_to_duckdb",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # one run at a time: runs share the landing and the database
    max_active_runs=1,
    default_args={"retries": 2},
    params={
        "collection_task_id": Param("", type="string", description="The service's task"),
        "destination": Param(
            "", type="string", description="The landing's folder, such as s3://bucket/prices"
        ),
        "database": Param("", type="string", description="DuckDB's file"),
    },
    doc_md=__doc__,
    tags=["webcollect"],
) as dag:
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id="{{ params.collection_task_id }}",
        destination="{{ params.destination }}",
    )
    land >> load("{{ params.destination }}", "{{ params.database }}")
