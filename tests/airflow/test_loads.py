"""The operator that loads a landing into a warehouse, and an example DAG that uses it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.landing.errors import LandingError
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.transfers.landing_to_warehouse import WebCollectLoadOperator
from tests.airflow.dag_runs import run_dag, run_tasks
from tests.airflow.examples import load as example
from tests.airflow.executions import execute, on_sandbox
from tests.airflow.landings import GROWING, Landing, make_transfer
from tests.postgresql import PostgreSQL

pytestmark = on_sandbox()


def make_load(landing: Any = None, **arguments: Any) -> WebCollectLoadOperator:
    usual = {"landing": landing, "warehouse_conn_id": "warehouse", "table": "shop.prices"}
    return WebCollectLoadOperator(task_id="load", **{**usual, **arguments})


def table(database: str, columns: str = "id, title") -> list[tuple[Any, ...]]:
    with duckdb.connect(database) as db:
        return db.execute(f"select {columns} from shop.prices order by _webcollect_row").fetchall()


def test_each_load_adds_what_the_table_does_not_have(landing: Landing, database: str) -> None:
    landing.transfer(**GROWING)
    landing.grow(40)
    run = run_tasks(
        lambda: make_transfer(landing.destination, landing.task, **GROWING),
        # the run before was not loaded
        lambda: make_load("{{ ti.xcom_pull('land')['manifest'] }}", table="{{ 'shop' }}.prices"),
    )

    assert run.states == {"land": "success", "load": "success"}
    assert run.xcoms["load"] == {
        "landing": landing.destination,
        "collection_task_name": None,
        "table": "shop.prices",
        **{"rows": 440, "parts": 2, "commit": 2, "total_rows": 440, "total_parts": 2},
        **{"skipped_rows": 0, "skipped": {}},
    }
    assert table(database) == [(row["id"], row["title"]) for row in landing.truth()]
    assert execute(make_load(landing.destination))["parts"] == 0


def test_dlts_own_settings_in_airflow_do_not_move_the_table(
    landing: Landing, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_DLT_SECRETS_TOML", "dev_mode = true")
    landing.transfer()
    result = execute(make_load(landing.destination))
    assert (result["table"], result["rows"]) == ("shop.prices", len(table(database)))


def test_postgresql_is_reached_at_the_connections_host(
    landing: Landing, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = urlsplit(f"postgresql://{postgresql.address}")
    fields = {"host": server.hostname, "port": server.port, "login": server.username}
    fields |= {"password": server.password, "schema": server.path[1:], "conn_type": "postgres"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(fields))
    landing.transfer()
    # libpq would prefer this address, where nothing listens
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.9")
    assert execute(make_load(landing.destination))["rows"] == len(landing.truth())
    monkeypatch.delenv("PGHOSTADDR")
    assert postgresql.query("select count(*) from shop.prices") == [(len(landing.truth()),)]


def test_each_landing_is_loaded_its_own_way_though_another_fails(
    landing: Landing, destination: str, database: str
) -> None:
    landing.transfer()
    rows = [{"url": url} for url in ("a", "b", "a")]
    other = landing.control.add_task(rows=rows, lots=[3])
    execute(make_transfer(f"{destination}-other", other))
    sources: list[dict[str, Any]] = [
        {"landing": f"{destination}-missing", "table": "shop.missing"},
        {"landing": landing.destination, "table": "shop.all"},
        {"landing": f"{destination}-other", "primary_key": "url", "write_disposition": "merge"},
    ]
    sources[2]["table"] = "shop.prices"
    with pytest.raises(LandingError) as failed:
        execute(make_load(table=None, sources=sources))
    assert f"1 of 3 loads have failed. {destination}-missing into shop.missing: " in str(failed.value)
    assert table(database, "url") == [("b",), ("a",)]
    # a retry loads nothing twice
    result = execute(make_load(table=None, sources=sources[1:]))
    assert [(each["table"], each["rows"], each["total_rows"]) for each in result["sources"]] == [
        ("shop.all", 0, len(landing.truth())),
        ("shop.prices", 0, 3),
    ]
    assert (result["rows"], result["parts"], result["skipped_rows"]) == (0, 0, 0)


@pytest.mark.parametrize(("conn_type", "cure"), [("mysql", "to_dlt"), ("generic", "installing the provider")])
def test_a_connection_of_another_type_fails_the_task_for_good(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, conn_type: str, cure: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": conn_type, "password": "hunter2"}))
    landing.transfer()
    said = f"`warehouse_conn_id` is 'warehouse'; its type is '{conn_type}', and loads support .*{cure}"
    with pytest.raises(AirflowFailException, match=said) as failed:
        execute(make_load(landing.destination))
    assert "hunter2" not in str(failed.value)


def test_the_keyed_example_keeps_the_latest_row(sandbox: Sandbox, destination: str, database: str) -> None:
    others = [(f"d{number}", "4.00") for number in range(7)]
    days = [[("a", "1.00"), ("b", "2.00")], [("", "0.00"), ("b", "2.50"), ("c", "3.00"), *others]]
    rows = [{"url": url, "price": price} for day in days for url, price in day]
    task = sandbox.control.add_task(rows=rows, lots=[2])
    dag = example("webcollect_keyed_load")
    dag.get_task("land").late_rows_delay = 0
    conf = {"collection_task_id": task["task_id"], "destination": destination}
    conf["warehouse_conn_id"] = "warehouse"
    run_dag(dag, conf)
    assert table(database, "url, price") == days[0]
    sandbox.control.grow(task["task_id"], 10)
    run = run_dag(dag, conf)

    assert run.states == {"land": "success", "load": "success"}
    assert (run.xcoms["land"]["rows"], run.xcoms["land"]["quarantined_rows"]) == (9, 1)
    assert (run.xcoms["load"]["rows"], run.xcoms["load"]["skipped_rows"]) == (9, 0)
    assert table(database, "url, price") == [("a", "1.00"), ("b", "2.50"), *days[1][2:]]
