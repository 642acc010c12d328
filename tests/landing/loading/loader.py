"""Loads in processes of their own, which get killed, or meet another load."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

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
from tests.landing.loading.databases import Database, Landing, as_rows, load, products
from tests.simulation.forks import die, disturbed_at, running, serve

if TYPE_CHECKING:
    import pytest

CLIENTS = {"duckdb": DuckDbSqlClient, "postgres": Psycopg2SqlClient}
#: The exit status of a load that has failed.
FAILED = 3


def main() -> None:
    """Carry out the orders."""
    serve(carry_out)


def carry_out(order: dict[str, Any]) -> None:
    """Load; die or fail instead of the statement or commit with the number ``at``, from 1; 0 for none."""
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


def load_twice(landing: Landing, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a second load fails while a first one still reads rows, and then finds nothing to load."""
    landing.land(*products(0, 7))
    landed, ended = landing.read(), []
    order = landing.order(database, at=0, kill=False)
    tables_of = landed.tables_of

    def meanwhile(part: Any) -> Any:
        ended.append(loader.run(order))
        return tables_of(part)

    monkeypatch.setattr(landed, "tables_of", meanwhile)
    with running(__name__) as loader:
        loading.load(landed, LoadOptions(), database.table, database.destination)
        ended.append(loader.run(order))
    assert ended == [FAILED, FAILED, 0]
    assert database.rows("url", "n") == as_rows(landing.source)
