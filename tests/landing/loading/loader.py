"""Loads in processes of their own, which get killed."""

from __future__ import annotations

import os
from typing import Any

import duckdb  # noqa: F401  # before the forks
import psycopg2  # noqa: F401
import pyarrow.parquet  # noqa: F401
from dlt import destinations  # noqa: F401
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.destinations.impl.postgres.sql_client import Psycopg2SqlClient
from dlt.load import Load  # noqa: F401

from airflow_provider_webcollect.landing.errors import LoadFailed
from airflow_provider_webcollect.landing.options import LoadOptions
from airflow_provider_webcollect.landing.read import loading
from airflow_provider_webcollect.landing.reader import read_landing
from tests.landing.forks import die, disturbed_at, serve
from tests.landing.loading.databases import Database

CLIENTS = {"duckdb": DuckDbSqlClient, "postgres": Psycopg2SqlClient}
#: The exit status of a load that has failed.
FAILED = 3


def main() -> None:
    """Carry out the orders."""
    serve(load)


def load(order: dict[str, Any], *_: object) -> None:
    """Load; ``at`` is the statement or commit, from 1, in whose place a SIGKILL or an error comes."""
    database = Database(order["kind"], order["address"], order["table"])
    disturbed = disturbed_at(order["at"], die if order["kill"] else fail)
    for name in ("execute_query", "commit_transaction"):
        disturbed(CLIENTS[database.kind], name)
    options = LoadOptions.parse(
        {
            "write_disposition": order["write_disposition"],
            "primary_key": order["key"],
            "on_gone": order["on_gone"],
        }
    )
    try:
        loading.load(read_landing(order["root"]), options, database.table, database.destination)
    except LoadFailed:
        os._exit(FAILED)


def fail() -> None:
    raise OSError("the network is down")
