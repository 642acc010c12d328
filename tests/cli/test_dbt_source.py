"""``landing dbt-source``: a dbt source that describes the loaded tables of landings as they really are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Run

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]

#: A value of each type, by the type.
TYPED = {
    **{"bool": "true", "int32": "1", "int64": "2", "float32": "1.5", "float64": "2.5", "string": "x"},
    **{"date32": "2026-01-01", "timestamp": "2026-01-01T00:00:00", "timestamptz": "2026-01-01T00:00:00Z"},
    "decimal(12,2)": "3.25",
}


def source(run: Run, *arguments: object) -> dict[str, Any]:
    """Return the only source that is printed."""
    ended = run("landing", "dbt-source", *arguments)
    assert (ended.code, ended.err) == (0, "")
    printed = yaml.safe_load(ended.out)
    assert (printed["version"], [*printed]) == (2, ["version", "sources"])
    [only] = printed["sources"]
    return dict(only)


def test_columns_types_and_freshness_match_the_loaded_table(
    run: Run, sandbox: Sandbox, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {f"Is {kind}": value for kind, value in TYPED.items()}
    task = sandbox.control.add_task(rows=[row], lots=[1])["task_id"]
    types = json.dumps({f"Is {kind}": kind for kind in TYPED})
    assert run("land", task, folder, "--format", "parquet", "--column-types", types).code == 0
    monkeypatch.setenv("DESTINATION__DUCKDB__CREDENTIALS", database := f"{tmp_path}/warehouse.duckdb")
    assert run("load", folder, "shop.landed", "--destination", "duckdb").code == 0

    shop = source(run, folder, "--dataset", "shop")
    [table] = shop["tables"]
    assert (shop["name"], table["name"]) == ("shop", "landed")
    with duckdb.connect(database) as db:
        columns = db.execute("select column_name from (describe shop.landed)").fetchall()
        assert [(column["name"],) for column in table["columns"]] == columns
        for column in table["columns"]:
            # the same type as the table's, though its name may differ
            wanted = f"select typeof({column['name']}) = typeof(null::{column['data_type']}) from shop.landed"
            assert db.execute(wanted).fetchall() == [(True,)], column
        loaded_at = db.execute(table["loaded_at_query"]).fetchall()
        assert loaded_at == db.execute("select max(inserted_at) from shop._dlt_loads").fetchall()
        assert loaded_at != [(None,)]
    assert table["config"]["freshness"] == {"warn_after": {"count": 36, "period": "hour"}}


def test_tables_have_names_and_descriptions(
    run: Run, sandbox: Sandbox, task: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sandbox.control.add_task(lots=[30])["task_id"]
    run("land", task, tmp_path / "Price~_list")
    run("land", other, folder)
    file = tmp_path / "collection_tasks.yaml"
    file.write_text(f"- id: {task}\n  name: Price list\n  tags: [shops, '{{{{ x }}}}']\n")
    monkeypatch.setenv("WEBCOLLECT_COLLECTION_TASKS", str(file))
    first, second = source(run, tmp_path / "Price~_list", folder, "--dataset", "shop")["tables"]
    assert (first["name"], second["name"]) == ("price_list", "landed")
    # dbt would take the braces for an expression
    assert first["description"] == "Collection task Price list; shops, { { x }}"
    assert second["description"] == f"Collection task {other}"
    assert {column["data_type"] for column in second["columns"]} == {"text", "bigint"}
    named = source(run, tmp_path / "Price~_list", "--dataset", "shop", "--table", "prices")
    assert named["tables"][0]["name"] == "prices"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["LANDED"], 2, "Missing option '--dataset'"),
        (["LANDED", "--dataset", "My shop"], 2, "it must be dataset.table"),
        (["LANDED", "--dataset", "shop", "--table", "Prices"], 2, "it must be dataset.table"),
        (["LANDED", "--dataset", "shop", "--table", "a", "--table", "b"], 2, "One --table for each LANDING"),
        (["LANDED", "LANDED", "--dataset", "shop"], 2, "two landings have the table landed"),
        (["MISSING", "--dataset", "shop"], 1, "nothing has landed"),
    ],
)
def test_what_is_wrong_is_named(
    run: Run, task: str, folder: Path, arguments: list[str], code: int, said: str
) -> None:
    run("land", task, folder)
    places = {"LANDED": folder, "MISSING": folder / "missing"}
    run("landing", "dbt-source", *(places.get(word, word) for word in arguments)).refused(code, said)
