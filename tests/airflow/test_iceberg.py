"""The transfer to Apache Iceberg tables, in the catalog of an Airflow connection."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.models import Connection
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.utils.session import create_session

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectAcceptLandingOperator,
    WebCollectCleanLandingOperator,
    WebCollectVerifyLandingOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox
from tests.airflow.executions import Task, execute, on_sandbox
from tests.airflow.landings import make_transfer, reported, transfer
from tests.service.servers import answer, serving

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

pytest.importorskip(
    "pyiceberg.catalog.sql", exc_type=ImportError, reason="the SQL catalog needs SQLAlchemy 2"
)

pytestmark = on_sandbox()
TABLE = "lake.shop.prices"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The catalog of the connection ``iceberg_default``."""
    from pyiceberg.catalog import load_catalog

    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    connection = {"conn_type": "iceberg", "extra": properties}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    # an SQL catalog stores its name in the database; the provider uses the id of the connection
    catalog = load_catalog("iceberg_default", **properties)
    catalog.create_namespace("shop")
    return catalog


def to_table(source: Task, **arguments: Any) -> dict[str, Any]:
    return transfer(TABLE, source, **{"table_format": "iceberg", "mode": "incremental", **arguments})


def rows_of(catalog: Catalog, table: str = "prices") -> int:
    return int(catalog.load_table(f"shop.{table}").scan().to_arrow().num_rows)


def test_every_row_lands_in_the_table_once(sandbox: Sandbox, source: Task, catalog: Catalog) -> None:
    first = to_table(source, run_id="r1")
    sandbox.control.grow(source["task_id"], 5)
    second = to_table(source, run_id="r2")
    assert (first["rows"], second["rows"], second["total_rows"]) == (400, 5, 405)
    table = catalog.load_table("shop.prices")
    rows = sandbox.control.true_rows(source["task_id"])
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == sorted(str(row["id"]) for row in rows)
    assert second["destination"] == second["manifest"] == TABLE
    assert all(uri.startswith(table.location()) for uri in second["uris"])
    assert table.properties["webcollect.rows"] == "5"


def test_the_event_names_the_table(source: Task, catalog: Catalog) -> None:
    outlets = make_transfer(TABLE, source, table_format="iceberg").outlets
    assert [asset.uri for asset in outlets] == ["iceberg://lake/shop/prices"]
    event = reported(TABLE, source, table_format="iceberg")
    assert (event["manifest"], event["object_storage_conn_id"]) == (TABLE, "iceberg_default")


def test_a_landing_is_read_verified_and_cleaned_by_its_name(source: Task, catalog: Catalog) -> None:
    to_table(source)
    by_name = read_landing(TABLE, object_storage_conn_id="iceberg_default")
    for landed in (read_landing(catalog.load_table("shop.prices")), by_name):
        assert landed.to_arrow().num_rows == 400
    assert execute(WebCollectVerifyLandingOperator(task_id="v", destination=TABLE))["rows"] == 400
    removed = execute(WebCollectCleanLandingOperator(task_id="c", destination=TABLE, older_than=0))
    assert removed["files"] == 0


def test_quarantined_rows_are_accepted_into_the_table(source: Task, catalog: Catalog) -> None:
    where = "iceberg_default.shop.prices --object-storage-conn-id iceberg_default"
    command = f"`webcollect landing accept {where} --commit 1`"
    with pytest.raises(AirflowFailException, match=command):
        to_table(source, checks={"rows": {"min": 401}})
    assert rows_of(catalog) == 0
    accepted = execute(WebCollectAcceptLandingOperator(task_id="a", destination=TABLE))
    assert accepted["rows"] == rows_of(catalog) == 400


def test_each_of_several_sources_names_its_table(source: Task, catalog: Catalog) -> None:
    task = {"collection_task_id": source["task_id"]}
    tables = [{**task, "lotno": f"00000{n}", "destination": f"lake.shop.p{n}"} for n in (1, 2)]
    transfer(TABLE, sources=tables, table_format="iceberg")
    assert [rows_of(catalog, table) for table in ("p1", "p2")] == [250, 150]


def test_a_namespace_that_is_missing_is_said(source: Task, catalog: Catalog) -> None:
    with pytest.raises(AirflowFailException, match="the catalog has no namespace 'other'"):
        transfer("lake.other.prices", source, table_format="iceberg")


class TestCatalogsThatCannotBeOpened:
    @pytest.fixture
    def connect(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
        """Defines the connection; returns the URL of a catalog that answers with the status in the path."""
        error = {"error": {"message": "come back", "type": "Trouble", "code": 0}}

        def connect(fields: dict[str, Any]) -> str:
            connection = {"conn_type": "iceberg", "password": "hidden", **fields}
            text = json.dumps(connection).replace("{answering}", f"{server.url}/")
            monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", text)
            return f"{server.url}/"

        with serving(lambda got: answer(json.dumps(error).encode(), int(got.split(b"/")[1][:3]))) as server:
            yield connect

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"host": "http://127.0.0.1:9/ws"}, r"at http://127.0.0.1:9/ws .*ConnectionError: .*refused"),
            ({"host": "{answering}503"}, r"at {answering}503 .*ServiceUnavailableError: Trouble: come back"),
            ({"host": "{answering}429"}, r"at {answering}429 .*TooManyRequestsError"),
            (
                {"extra": {"type": "sql", "uri": "postgresql+psycopg2://me:hidden@127.0.0.1:9/lake"}},
                r"at postgresql\+psycopg2://127.0.0.1:9/lake .*OperationalError: .*refused",
            ),
        ],
    )
    def test_one_in_trouble_is_named_and_tried_again(
        self, source: Task, connect: Callable[..., str], fields: dict[str, Any], said: str
    ) -> None:
        said = said.replace("{answering}", connect(fields))
        with pytest.raises(StorageError, match=said) as raised:
            to_table(source)
        assert not raised.value.permanent
        assert "hidden" not in str(raised.value)

    def test_a_missing_iceberg_connection_is_tried_again(self, source: Task) -> None:
        # Airflow raises the same error while its API server cannot be reached
        with pytest.raises(StorageError, match="The conn_id `iceberg_default` isn't defined") as raised:
            to_table(source)
        assert not raised.value.permanent

    @pytest.mark.parametrize(
        "fields",
        [
            {"host": "{answering}401"},
            {"host": "{answering}403"},
            {"host": "{answering}400"},
            {"host": "{answering}401", "login": "a"},
            {"host": "lake.example.com"},
            {"extra": {"type": "sql"}},
            {"extra": {"type": "sql", "uri": "hidden"}},
        ],
    )
    def test_one_that_is_wrong_ends_the_task_without_its_secrets(
        self, source: Task, connect: Callable[..., str], fields: dict[str, Any]
    ) -> None:
        connect(fields)
        with pytest.raises(AirflowFailException, match="its catalog cannot be opened") as raised:
            to_table(source)
        assert "hidden" not in str(raised.value)


#: A program that reads in two threads: the first ends while the second looks for its connection.
IN_THREADS = """
import os
import threading
from airflow.secrets.environment_variables import EnvironmentVariablesBackend
from airflow_provider_webcollect import read_landing

asked = {"first": threading.Event(), "second": threading.Event()}
ended = threading.Event()

def get_connection(self, conn_id):
    asked[conn_id].set()
    (asked["second"] if conn_id == "first" else ended).wait(60)

def read(path, conn_id):
    try:
        read_landing(path, object_storage_conn_id=conn_id)
    except Exception as error:
        print(conn_id, type(error).__name__)

EnvironmentVariablesBackend.get_connection = get_connection
first = threading.Thread(target=read, args=("file:///nowhere", "first"))
second = threading.Thread(target=read, args=("lake.shop.prices", "second"))
first.start()
asked["first"].wait(60)
second.start()
first.join()
ended.set()
second.join()
print("second", "_AIRFLOW_PROCESS_CONTEXT" in os.environ)
"""


@pytest.mark.at_night
def test_threads_at_once_find_connections_in_the_database(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    connections = {
        "first": Connection(conn_id="first", conn_type="fs"),
        "second": Connection(conn_id="second", conn_type="iceberg", extra=json.dumps(properties)),
    }
    with create_session() as session:
        session.add_all(connections.values())
    try:
        # a process that Airflow has not started
        done = subprocess.run([sys.executable, "-c", IN_THREADS], capture_output=True, text=True, check=False)
    finally:
        with create_session() as session:
            session.query(Connection).filter(Connection.conn_id.in_(connections)).delete()
    ended = {line for line in done.stdout.splitlines() if line.startswith(("first ", "second "))}
    assert ended == {"first NothingLanded", "second NothingLanded", "second False"}, done.stderr
