"""Loads with `on_gone`: each run collects everything; keys that are gone are deleted or marked."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.log.commits import Run
from airflow_provider_webcollect.landing.read.loading import GONE, LANDING, PART
from airflow_provider_webcollect.landing.write.review import accept, discard
from tests.landing.loading.databases import Database, Landing

pytestmark = pytest.mark.by_day(1)

#: Checks that quarantine a run of fewer than two rows.
CHECKS: dict[str, Any] = {"checks": {"rows": {"min": 2}}, "on_failed_checks": "quarantine"}


@pytest.fixture(params=["delete", "mark"])
def on_gone(request: pytest.FixtureRequest) -> str:
    """What a load does with keys that are gone."""
    return str(request.param)


def run(landing: Landing, keys: str, **options: Any) -> None:
    """Land a run with a row for each key; rows are numbered across runs."""
    number = len(landing.source)
    landing.land(*({"url": key, "n": str(number + place)} for place, key in enumerate(keys)), **options)


def load(landing: Landing, database: Database, on_gone: str) -> str:
    """Load the landing, and return the keys of the table that are not marked."""
    landing.load(database, "merge", "url", on_gone=on_gone)
    return there(database)


def there(database: Database) -> str:
    """Return the keys of the table that are not marked."""
    marked = f"{GONE} is null" if GONE in database.columns() else "true"
    rows = database.query(f"select url from {database.table} where {marked} order by url")
    return "".join(url for (url,) in rows)


def gone(database: Database) -> dict[str, datetime.datetime]:
    """Return the time at which each marked key was found to be gone."""
    rows = database.query(f"select url, {GONE} from {database.table} where {GONE} is not null")
    return {url: time.astimezone(datetime.UTC) for url, time in rows}


def times(landing: Landing) -> list[datetime.datetime]:
    """Return when each run was committed."""
    return [datetime.datetime.fromisoformat(each.finished_at) for each in landing.read().profiles()]


def test_keys_that_the_last_run_does_not_have_are_deleted(landing: Landing, database: Database) -> None:
    for keys in ("abc", "bcd", "ad"):
        run(landing, keys)
        assert load(landing, database, "delete") == keys
    load(landing, database, "delete")
    assert database.rows("url", "n") == [("a", "6"), ("d", "7")]


def test_gone_keys_have_the_time_until_they_are_back(landing: Landing, database: Database) -> None:
    run(landing, "abc")
    load(landing, database, "mark")
    assert gone(database) == {}
    run(landing, "bc")
    load(landing, database, "mark")
    _, second = times(landing)
    assert gone(database) == {"a": second}
    run(landing, "bd")
    load(landing, database, "mark")
    assert gone(database) == {"a": second, "c": times(landing)[2]}
    run(landing, "ab")
    for _ in range(2):
        load(landing, database, "mark")
        assert gone(database) == {"c": times(landing)[2], "d": times(landing)[3]}
    assert database.rows("url", "n") == [("c", "4"), ("d", "6"), ("a", "7"), ("b", "8")]


def test_runs_loaded_at_once(landing: Landing, in_duckdb: Database, tmp_path: Path, on_gone: str) -> None:
    at_once = Database("duckdb", str(tmp_path / "at once.duckdb"))
    for keys in ("abc", "bc", "cd", "de"):
        run(landing, keys)
        load(landing, in_duckdb, on_gone)
    load(landing, at_once, on_gone)
    columns = ("url", "n", *([GONE] if on_gone == "mark" else []))
    assert at_once.rows(*columns) == in_duckdb.rows(*columns)
    assert there(at_once) == "de"


def test_rows_of_others_stay(landing: Landing, in_duckdb: Database, tmp_path: Path, on_gone: str) -> None:
    other = Landing(tmp_path)
    for first, second in (("abc", "cd"), ("b", "xd")):
        run(landing, first)
        load(landing, in_duckdb, on_gone)
        run(other, second)
        load(other, in_duckdb, on_gone)
    name = other.read().identity
    of_other = in_duckdb.query(f"select url from {in_duckdb.table} where {LANDING} = '{name}' order by url")
    assert there(in_duckdb) == "bdx"
    # `c` was loaded last from the other landing, which does not have it any more
    assert of_other == [(url,) for url in ("dx" if on_gone == "delete" else "cdx")]


def test_a_quarantined_run_makes_no_key_gone(landing: Landing, in_duckdb: Database, on_gone: str) -> None:
    run(landing, "abc")
    run(landing, "b", **CHECKS)
    for _ in range(2):
        assert load(landing, in_duckdb, on_gone) == "abc"
    accept(landing.folder.root)
    assert load(landing, in_duckdb, on_gone) == "b"
    run(landing, "x", **CHECKS)
    discard(landing.folder.root, "run 3")
    assert load(landing, in_duckdb, on_gone) == "b"


def test_a_run_no_longer_whole_restores_keys(landing: Landing, in_duckdb: Database, on_gone: str) -> None:
    run(landing, "abc")
    run(landing, "bc")
    assert load(landing, in_duckdb, on_gone) == "bc"
    # another task of its DAG run finds a row that fails the checks
    run(landing, "a", run=Run(dag_id="d", task_id="t2", run_id="run 2"), **CHECKS)
    assert load(landing, in_duckdb, on_gone) == "abc"
    accept(landing.folder.root)
    load(landing, in_duckdb, on_gone)
    assert in_duckdb.rows("url", "n") == [("b", "3"), ("c", "4"), ("a", "5")]
    assert there(in_duckdb) == "abc"


def test_a_landing_begun_again_makes_keys_gone(landing: Landing, in_duckdb: Database, on_gone: str) -> None:
    run(landing, "abc")
    load(landing, in_duckdb, on_gone)
    landing.refill({"url": "c", "n": "0"}, {"url": "d", "n": "1"})
    assert load(landing, in_duckdb, on_gone) == "cd"


def test_another_choice_applies_to_all_rows(landing: Landing, in_duckdb: Database) -> None:
    run(landing, "ab")
    run(landing, "b")
    for on_gone, rows in (("keep", "ab"), ("mark", "b"), ("delete", "b")):
        assert load(landing, in_duckdb, on_gone) == rows
    assert len(in_duckdb.rows("url")) == 1


@pytest.mark.parametrize("columns", ["url text", f"url text, {LANDING} text, {PART} text"])
def test_no_rows_change_no_table(landing: Landing, database: Database, columns: str, on_gone: str) -> None:
    database.create(columns)
    run(landing, "a", **CHECKS)
    assert load(landing, database, on_gone) == ""


def test_tables_are_loaded_as_folders_are(tmp_path: Path, in_duckdb: Database, on_gone: str) -> None:
    landing = Landing(tmp_path, table_format="delta")
    for keys in ("abc", "bcd", "ad"):
        run(landing, keys)
        assert load(landing, in_duckdb, on_gone) == keys
