"""Landings that are tables of Apache Iceberg, from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.cli.conftest import Run

pytest.importorskip(
    "pyiceberg.catalog.sql", exc_type=ImportError, reason="the SQL catalog needs SQLAlchemy 2"
)
pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)
TABLE = "lake.shop.prices"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The catalog of an Airflow connection."""
    from pyiceberg.catalog import load_catalog

    extra = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    connection = {"conn_type": "iceberg", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    found = load_catalog("lake", **extra)
    found.create_namespace("shop")
    return found


def test_a_table_is_landed_in_read_and_verified_by_its_name(
    run: Run, connected: None, sandbox: Sandbox, catalog: Any
) -> None:
    task = sandbox.control.add_task(lots=[300])["task_id"]
    storage = ("--storage-conn-id", "lake")
    landed = run("land", task, TABLE, "--table-format", "iceberg", *storage, "-o", "json")
    assert landed.code == 0, landed.err
    (row,) = json.loads(landed.out)
    assert (row["folder"], row["rows"]) == (TABLE, 300)
    assert catalog.load_table("shop.prices").scan().to_arrow().num_rows == 300
    assert run("landing", "verify", TABLE, *storage).code == 0
    counted = run("landing", "sql", TABLE, "select count(*) as n from landing", *storage, "-o", "json")
    assert json.loads(counted.out) == [{"n": 300}]
    assert len(run("landing", "cat", TABLE, *storage).out.splitlines()) == 300
    assert run("landing", "clean", TABLE, *storage).code == 0


def test_a_table_that_is_not_there_is_said(run: Run, connected: None, catalog: Any) -> None:
    ended = run("landing", "verify", TABLE, "--storage-conn-id", "lake")
    assert ended.code != 0
    assert f"there is no table {TABLE}" in ended.err
