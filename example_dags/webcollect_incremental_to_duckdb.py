"""Add a task's new rows to one landing, and then to a DuckDB table, each row once.

Needs the connection ``webcollect_default``, and the package ``duckdb`` on workers. Only the parts that this
run has landed are loaded. The table stores for each row which part it is from, and parts of JSON lines never
change: so a retry, or clearing either task at any time, replaces rows with the same rows.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_provider_webcollect import WebCollectToObjectStorageOperator

#: The fields to load, so that the table keeps its columns whatever else the service sends.
COLUMNS = {"id": "varchar", "title": "varchar", "price": "varchar", "city": "varchar"}
CREATE = """
    create table if not exists prices (
        id varchar, title varchar, price decimal(12, 2), city varchar, part varchar
    )
"""
DELETE = "delete from prices where part in (select filename from new_rows)"
INSERT = """
    insert into prices by name
    select id, title, try_cast(price as decimal(12, 2)) as price, city, filename as part from new_rows
"""


@task
def load(uris: list[str], database: str) -> int:
    """Load parts in one transaction, replacing rows loaded from them before; return the table's row count."""
    import duckdb

    with duckdb.connect(database) as db:
        # for parts on S3 or Google Cloud Storage, add `load httpfs` and `create secret` here
        db.begin()
        db.execute(CREATE)
        rows = db.read_json(uris, format="newline_delimited", columns=COLUMNS, filename=True)
        rows.create_view("new_rows")
        db.execute(DELETE)
        db.execute(INSERT)
        db.execute("drop view new_rows")
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
    render_template_as_native_obj=True,
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
        mode="incremental",
        # also skips the load
        skip_if_nothing_new=True,
        multiple_outputs=True,
    )
    load(land.output["uris"], "{{ params.database }}")
