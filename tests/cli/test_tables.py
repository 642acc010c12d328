"""``land --table-format``, and the commands for what has landed in a Delta Lake or Iceberg table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Ended, Run, shown

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]

COUNT = "select count(*) n from landing"

#: Lands the task of the test.
Land = Callable[..., Ended]


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    return str(sandbox.control.add_task(lots=[300])["task_id"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def land(run: Run, connected: None, task: str, table: Path) -> Land:
    """Lands the task's new rows in the table, in parts of 100 rows."""

    def land(*options: object) -> Ended:
        small = ("--page-size", 100, "--max-part-bytes", 1, "--late-rows-delay", 0)
        return run("land", task, table, "--table-format", "delta", *small, *options)

    return land


def test_rows_land_in_a_table_and_the_commands_find_them_there(
    run: Run, land: Land, sandbox: Sandbox, task: str, table: Path, output: str
) -> None:
    [landed] = shown(land("-o", output), output)
    [verified] = shown(run("landing", "verify", table, "-o", output), output)
    rows = sandbox.control.true_rows(task)
    assert (landed["destination"], landed["new_rows"], landed["parts"]) == (str(table), "300", "3")
    assert (verified["landing"], verified["rows"], verified["parts"]) == (str(table), "300", "3")
    assert run("landing", "cat", table).lines == rows
    assert shown(run("landing", "sql", table, COUNT, "-o", output), output) == [{"n": "300"}]
    columns = shown(run("landing", "profile", table, "-o", output), output)
    assert {column["column"]: column["rows"] for column in columns} == dict.fromkeys(rows[0], "300")
    assert DeltaTable(table).to_pyarrow_table().num_rows == 300


def test_columns_of_an_error_are_not_taken_for_options(run: Run, sandbox: Sandbox, table: Path) -> None:
    task = sandbox.control.add_task(rows=[{"url": "a", "URL": "b"}], lots=[1])["task_id"]
    run("land", task, table, "--table-format", "delta").refused(3, "the columns `url` and `URL` would be one")


@pytest.mark.parametrize("command", [["verify"], ["cat"], ["sql", "select 1"], ["clean"]])
def test_a_table_of_others_is_no_landing(run: Run, table: Path, command: list[str]) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(table, pa.table({"id": ["1"]}))
    run("landing", command[0], table, *command[1:]).refused(1, "nothing has landed")


#: An Iceberg table.
TABLE = "lake.shop.prices"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    reason = "the SQL catalog needs SQLAlchemy 2"
    pytest.importorskip("pyiceberg.catalog.sql", exc_type=ImportError, reason=reason)
    from pyiceberg.catalog import load_catalog

    extra = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    connection = {"conn_type": "iceberg", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    catalog = load_catalog("lake", **extra)
    catalog.create_namespace("shop")
    return catalog


def test_an_iceberg_table_is_landed_in_read_and_verified(run: Run, sandbox: Sandbox, catalog: Any) -> None:
    task = sandbox.control.add_task(lots=[300])["task_id"]
    storage = ("--object-storage-conn-id", "lake")
    landed = run("land", task, TABLE, "--table-format", "iceberg", *storage, "-o", "json")
    assert landed.code == 0, landed.err
    (row,) = landed.json
    assert (row["destination"], row["rows"]) == (TABLE, 300)
    assert catalog.load_table("shop.prices").scan().to_arrow().num_rows == 300
    assert run("landing", "verify", TABLE, *storage).code == 0
    counted = run("landing", "sql", TABLE, "select count(*) as n from landing", *storage, "-o", "json")
    assert counted.json == [{"n": 300}]
    assert len(run("landing", "cat", TABLE, *storage).lines) == 300
    assert run("landing", "clean", TABLE, *storage).code == 0


def test_a_table_that_is_not_there_is_said(run: Run, catalog: Any) -> None:
    ended = run("landing", "verify", TABLE, "--object-storage-conn-id", "lake")
    assert ended.code != 0
    assert f"there is no table {TABLE}" in ended.err
