"""``load``: each row once, as with the operator; with an Airflow connection, or with dlt's configuration."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from tests.airflow.conftest import airflow_database, airflow_home  # noqa: F401  # fixtures
from tests.cli.conftest import Run, Show, Start
from tests.postgresql import PostgreSQL

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]

TABLE = "shop.prices"
#: The option for a warehouse that dlt's own configuration names.
DUCKDB = ("--destination", "duckdb")


@pytest.fixture
def landed(run: Run, connected: None, task: str, folder: Path) -> Path:
    """The folder of a landing with all rows of the task, in parts of 500 rows."""
    assert run("land", task, folder, "--page-size", 500, "--max-part-bytes", 1).code == 0
    return folder


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the DuckDB file that dlt's configuration names."""
    path = f"{tmp_path}/warehouse.duckdb"
    monkeypatch.setenv("DESTINATION__DUCKDB__CREDENTIALS", path)
    return path


def rows(database: str, columns: str = "id, title", table: str = TABLE) -> list[tuple[Any, ...]]:
    """Return the rows of a table, in the order of the landing."""
    with duckdb.connect(database) as db:
        return db.execute(f"select {columns} from {table} order by _webcollect_row").fetchall()


def truth(sandbox: Sandbox, task: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in sandbox.control.true_rows(task)]


def test_a_load_adds_what_the_table_lacks_and_says_how_much(
    show: Show, run: Run, sandbox: Sandbox, task: str, landed: Path, database: str
) -> None:
    facts = {"landing": str(landed), "table": TABLE, "new_rows": "1800", "new_parts": "4", "commit": "1"}
    assert show("load", landed, TABLE, *DUCKDB) == [facts]
    assert show("load", landed, TABLE, *DUCKDB) == [{**facts, "new_rows": "0", "new_parts": "0"}]
    sandbox.control.grow(task, 5)
    assert run("land", task, landed, "--late-rows-delay", 0).code == 0
    again = {**facts, "new_rows": "5", "new_parts": "1", "commit": "2"}
    assert show("load", landed, TABLE, *DUCKDB) == [again]
    assert rows(database) == truth(sandbox, task, "id", "title")


def test_the_key_and_the_disposition_are_options_of_the_load(
    run: Run, show: Show, sandbox: Sandbox, folder: Path, database: str
) -> None:
    offers = [("a", "1.00"), ("b", "2.00"), ("", "0.00"), ("b", "2.50")]
    offers_rows = [{"url": url, "price": price} for url, price in offers]
    task = sandbox.control.add_task(rows=offers_rows, lots=[4])["task_id"]
    run("land", task, folder)
    keyed = ("load", folder, TABLE, *DUCKDB, "--write-disposition", "merge", "--primary-key", "url")
    run(*keyed).refused(3, "1 of 4 rows", "--on-missing-key skip loads the others")
    [row] = show(*keyed, "--on-missing-key", "skip")
    assert (row["new_rows"], row["skipped_rows"]) == ("3", "1")
    assert rows(database, "url, price") == [("a", "1.00"), ("b", "2.50")]


def test_a_table_has_the_rows_of_each_loaded_landing(
    run: Run, sandbox: Sandbox, task: str, landed: Path, database: str, tmp_path: Path
) -> None:
    other = sandbox.control.add_task(lots=[30])["task_id"]
    run("land", other, tmp_path / "other")
    for landing in (landed, tmp_path / "other"):
        assert run("load", landing, TABLE, *DUCKDB).code == 0
    both = [*truth(sandbox, task, "id"), *truth(sandbox, other, "id")]
    assert sorted(rows(database, "id")) == sorted(both)
    said = "--write-disposition is 'scd2'; prices was loaded without --write-disposition scd2"
    run("load", landed, TABLE, *DUCKDB, "--write-disposition", "scd2").refused(2, said)


@pytest.mark.usefixtures("airflow_database")
def test_a_connection_of_airflow_leads_to_postgresql(
    run: Run, sandbox: Sandbox, task: str, landed: Path, postgresql: PostgreSQL, monkeypatch: Any
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f"postgres://{postgresql.address}")
    assert run("load", landed, "by_airflow.prices", "--conn-id", "warehouse").code == 0
    monkeypatch.setenv("DESTINATION__POSTGRES__CREDENTIALS", f"postgresql://{postgresql.address}")
    assert run("load", landed, "by_dlt.prices", "--destination", "postgres").code == 0
    for dataset in ("by_airflow", "by_dlt"):
        loaded = postgresql.query(f"select id, title from {dataset}.prices order by _webcollect_row")
        assert loaded == truth(sandbox, task, "id", "title")


def test_dlt_settings_in_a_file_lead_to_the_warehouse_alone(
    run: Run, landed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dlt").mkdir()
    settings = '[destination.duckdb]\ncredentials = "here.duckdb"\n[runtime]\ndev_mode = true\n'
    (tmp_path / ".dlt" / "secrets.toml").write_text(settings)
    assert run("load", landed, TABLE, *DUCKDB).code == 0
    assert len(rows(str(tmp_path / "here.duckdb"))) == 1800


@pytest.mark.parametrize(
    ("destination", "said"),
    [
        ("duckdb", "dlt's configuration lacks `database`; set DESTINATION__DUCKDB__CREDENTIALS, or write it"),
        ("postgres", "dlt's configuration lacks `database`, `password`, `username`, `host`; set DEST"),
    ],
)
def test_what_dlt_settings_lack_is_named(run: Run, landed: Path, destination: str, said: str) -> None:
    run("load", landed, TABLE, "--destination", destination).refused(
        2, f"--destination is '{destination}'; {said}"
    )


@pytest.mark.parametrize("name", ["DESTINATION__POSTGRES__CREDENTIALS", "secrets.toml"])
def test_unreadable_dlt_settings_are_refused_without_their_text(
    run: Run, landed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dlt").mkdir()
    (tmp_path / ".dlt" / name).write_text("hunter2 hunter2")
    if name.isupper():
        monkeypatch.setenv(name, "hunter2")
    ended = run("load", landed, TABLE, "--destination", "postgres")
    ended.refused(2, "--destination is 'postgres'; dlt cannot read its configuration (")
    assert "hunter2" not in ended.err


@pytest.mark.parametrize(
    ("destination", "credentials", "said"),
    [
        ("redshift", "redshift://me:hunter2@127.0.0.1:1/shop", "://***@127.0.0.1:1/shop"),
        ("databricks", '{"server_hostname": "h", "access_token": "hunter2"}', "dlt cannot read its config"),
    ],
)
def test_credentials_that_lead_nowhere_are_no_part_of_the_error(
    run: Run, landed: Path, monkeypatch: pytest.MonkeyPatch, destination: str, credentials: str, said: str
) -> None:
    monkeypatch.setenv(f"DESTINATION__{destination.upper()}__CREDENTIALS", credentials)
    ended = run("load", landed, TABLE, "--destination", destination)
    assert said in ended.err
    assert "hunter2" not in ended.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "Exactly one of --conn-id and --destination is needed"),
        ([*DUCKDB, "--conn-id", "warehouse"], "Exactly one of --conn-id and --destination is needed"),
        (["--destination", "mysql"], "'mysql' is not one of"),
        ([*DUCKDB, "--primary-key", "url"], "--primary-key is ['url']; it requires --write-disposition"),
        ([*DUCKDB, "--on-gone", "mark"], "--on-gone is 'mark'; it requires --write-disposition merge"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named_at_once(run: Run, tmp_path: Path, options: list[str], said: str) -> None:
    run("load", tmp_path / "missing", TABLE, *options).refused(2, said)


@pytest.mark.parametrize("table", ["prices", "Shop.prices", "shop.prices.old", "shop._prices"])
def test_a_table_whose_name_dlt_would_change_is_refused(run: Run, tmp_path: Path, table: str) -> None:
    said = f"DATASET.TABLE is '{table}'; it must be dataset.table, each of lower-case letters"
    run("load", tmp_path / "missing", table, *DUCKDB).refused(2, said)


def test_nothing_landed_is_said_and_no_rows_make_no_table(
    run: Run, show: Show, sandbox: Sandbox, folder: Path, database: str
) -> None:
    run("load", folder, TABLE, *DUCKDB).refused(1, f"nothing has landed at {folder}")
    task = sandbox.control.add_task(lots=[0])["task_id"]
    assert run("land", task, folder, "--late-rows-delay", 0).code == 0
    [row] = show("load", folder, TABLE, *DUCKDB)
    assert (row["new_rows"], row["new_parts"]) == ("0", "0")
    with duckdb.connect(database) as db:
        assert db.execute("select * from duckdb_tables() where table_name = 'prices'").fetchall() == []


def test_a_missing_extra_is_named(run: Run, landed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dlt", None)
    run("load", landed, TABLE, *DUCKDB).refused(2, "airflow-provider-webcollect[dlt]")


@pytest.mark.usefixtures("airflow_database")
def test_a_connection_that_does_not_lead_to_a_warehouse_is_named(
    run: Run, landed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ("load", landed, TABLE, "--conn-id", "warehouse")
    run(*load).refused(
        3,
        "Airflow cannot provide the connection warehouse",
        "Name another connection, or use --destination, which works without Airflow",
    )
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "mysql", "password": "hunter2"}))
    ended = run(*load)
    ended.refused(2, "--conn-id is 'warehouse'; its type is 'mysql', and loads support clickhouse")
    assert "hunter2" not in ended.err


@pytest.mark.usefixtures("database")
def test_a_terminal_shows_a_bar_and_keeps_the_result(start: Start, landed: Path) -> None:
    loading = start("load", landed, TABLE, *DUCKDB, "-o", "json", terminal=True)
    assert loading.end() == 0
    assert "Loading" in loading.err
    assert {int(done) for done in re.findall(r"(\d+)/1800", loading.err)} <= {0, 500, 1000, 1500, 1800}
    assert "━" in loading.err
    assert json.loads(loading.out)[0]["new_rows"] == 1800
