"""Loads in processes of their own, which get killed.

Everything is imported once; each line of JSON on the input is an order that a fork carries out, and each is
answered by how that ended (as of ``subprocess``): a signal below 0, or the exit status.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

import duckdb  # noqa: F401  # before the forks
import psycopg2  # noqa: F401
import pyarrow.parquet  # noqa: F401
from dlt import destinations  # noqa: F401
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.destinations.impl.postgres.sql_client import Psycopg2SqlClient
from dlt.load import Load  # noqa: F401

from airflow_provider_webcollect.landing import loading
from airflow_provider_webcollect.landing.errors import LoadFailed
from airflow_provider_webcollect.landing.options import make_load_options
from airflow_provider_webcollect.landing.reader import read_landing
from tests.landing.loading.databases import Database

CLIENTS = {"duckdb": DuckDbSqlClient, "postgres": Psycopg2SqlClient}
#: The exit status of a load that has failed.
FAILED = 3


def serve() -> None:
    """Carry out the orders."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                load_it(json.loads(line))
            except LoadFailed:
                os._exit(FAILED)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def load_it(order: dict[str, Any]) -> None:
    """Load; ``at`` is the statement or commit, from 1, in whose place a SIGKILL or an error comes."""
    database = Database(order["kind"], order["address"], order["table"])
    if order["at"]:
        disturb(CLIENTS[database.kind], order["at"], order["kill"])
    options = make_load_options(order["write_disposition"], order["key"])
    loading.load(read_landing(order["root"]), options, database.table, database.destination)


def disturb(client: Any, at: int, kill: bool) -> None:
    """Have a client of a database end this process, or fail, in the place of a statement or commit."""
    left = at

    def disturbed(work: Any) -> Any:
        def worked(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError("the network is down")
            return work(*arguments, **options)

        return worked

    for name in ("execute_query", "commit_transaction"):
        setattr(client, name, disturbed(getattr(client, name)))


if __name__ == "__main__":
    serve()
