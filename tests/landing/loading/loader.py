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
from airflow_provider_webcollect.landing.reader import read_landing
from tests.landing.loading.databases import Database, load
from tests.simulation.forks import die, disturbed_at, serve

CLIENTS = {"duckdb": DuckDbSqlClient, "postgres": Psycopg2SqlClient}
#: The exit status of a load that has failed.
FAILED = 3


def main() -> None:
    """Carry out the orders."""
    serve(carry_out)


def carry_out(order: dict[str, Any], *_: object) -> None:
    """Load; ``at`` is the statement or commit, from 1, in whose place a SIGKILL or an error comes."""
    database = Database(*order["database"])
    disturbed = disturbed_at(order["at"], die if order["kill"] else fail)
    for name in ("execute_query", "commit_transaction"):
        disturbed(CLIENTS[database.kind], name)
    try:
        load(read_landing(order["root"]), database, **order["options"])
    except LoadFailed:
        os._exit(FAILED)


def fail() -> None:
    raise OSError("the network is down")
