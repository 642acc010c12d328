"""``land --table-format delta``, and the commands for what has landed on such a table."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.cli.conftest import Ended, Run

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.usefixtures("connected"),
]

COUNT = "select count(*) n from landing"


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 300 rows."""
    return str(sandbox.control.add_task(lots=[300])["task_id"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A folder that is not there yet."""
    return tmp_path / "table"


@pytest.fixture
def land(run: Run, connected: None, task: str, table: Path) -> Callable[..., Ended]:
    """Lands what is new in the table, in parts of 100 rows."""

    def land(*options: object) -> Ended:
        small = ("--page-size", 100, "--max-part-bytes", 1, "--settle", 0)
        return run("land", task, table, "--table-format", "delta", "--mode", "incremental", *small, *options)

    return land


def test_rows_land_in_a_table_and_the_commands_find_them_there(
    run: Run, land: Callable[..., Ended], sandbox: Sandbox, task: str, table: Path, output: str
) -> None:
    [landed] = shown(land("-o", output), output)
    [verified] = shown(run("landing", "verify", table, "-o", output), output)
    rows = sandbox.control.true_rows(task)

    assert (landed["folder"], landed["new_rows"], landed["parts"]) == (str(table), "300", "3")
    assert (verified["folder"], verified["rows"], verified["parts"]) == (str(table), "300", "3")
    assert run("landing", "cat", table).lines == rows
    assert shown(run("landing", "sql", table, COUNT, "-o", output), output) == [{"n": "300"}]
    columns = shown(run("landing", "profile", table, "-o", output), output)
    assert {each["column"]: each["rows"] for each in columns} == dict.fromkeys(rows[0], "300")
    assert DeltaTable(table).to_pyarrow_table().num_rows == 300


def test_only_what_the_last_run_has_added_on_request(
    run: Run, land: Callable[..., Ended], sandbox: Sandbox, task: str, table: Path
) -> None:
    land()
    sandbox.control.grow(task, 7)
    land()

    assert run("landing", "cat", table, "--new-only").lines == sandbox.control.true_rows(task)[300:]
    assert run("landing", "sql", table, COUNT, "--new-only", "-o", "json").json == [{"n": 7}]
    assert [row["rows"] for row in run("landing", "profile", table, "--by", "run", "-o", "json").json] == [
        300,
        7,
    ]


def test_what_is_no_table_format_or_does_not_go_with_it_is_wrong_usage(
    run: Run, land: Callable[..., Ended], task: str, table: Path
) -> None:
    csv, hudi = land("--format", "csv"), run("land", task, table, "--table-format", "hudi")

    assert (csv.code, hudi.code) == (2, 2)
    assert csv.err == "Error: --format is 'csv'; table_format='delta' goes with 'parquet' alone\n"
    assert "'hudi' is not one of 'delta', 'iceberg'" in hudi.err
    assert not table.exists()


def test_columns_of_an_error_are_not_taken_for_options(run: Run, sandbox: Sandbox, table: Path) -> None:
    task = sandbox.control.add_task(rows=[{"url": "a", "URL": "b"}], lots=[1])["task_id"]

    ended = run("land", task, table, "--table-format", "delta")

    assert ended.code == 3
    assert "the columns `url` and `URL` would be one" in ended.err


def test_damage_is_named(run: Run, land: Callable[..., Ended], table: Path) -> None:
    land()
    _, gone, _ = sorted(table.glob("part-*"))
    gone.unlink()

    ended = run("landing", "verify", table)

    assert (ended.code, ended.out) == (1, "")
    assert f"{gone.name} is missing" in ended.err
    assert str(table) in ended.err


class TestRewrittenByOthers:
    @pytest.fixture(autouse=True)
    def rewritten(self, land: Callable[..., Ended], table: Path) -> None:
        """The table's files are merged."""
        land()
        DeltaTable(table).optimize.compact()

    def test_all_rows_are_read_from_the_table(
        self, run: Run, sandbox: Sandbox, task: str, table: Path
    ) -> None:
        rows = run("landing", "cat", table).lines

        assert sorted(rows, key=str) == sorted(sandbox.control.true_rows(task), key=str)
        assert run("landing", "sql", table, COUNT, "-o", "json").json == [{"n": 300}]
        assert run("landing", "verify", table).code == 0

    @pytest.mark.parametrize("command", [["cat"], ["sql", COUNT]])
    def test_those_of_one_run_are_not_known_any_more(self, run: Run, table: Path, command: list[str]) -> None:
        ended = run("landing", command[0], table, *command[1:], "--new-only")

        assert (ended.code, ended.out) == (3, "")
        assert "others have rewritten part-00001-" in ended.err
        assert len(ended.err.splitlines()) == 1

    def test_the_next_landing_goes_on(
        self, run: Run, land: Callable[..., Ended], sandbox: Sandbox, task: str, table: Path
    ) -> None:
        sandbox.control.grow(task, 7)
        [landed] = land("-o", "json").json

        assert (landed["new_rows"], landed["rows"]) == (7, 307)
        assert run("landing", "cat", table, "--new-only").lines == sandbox.control.true_rows(task)[300:]


class TestCleanAndRestore:
    def test_files_that_no_version_needs_go_and_those_of_older_versions_stay(
        self, run: Run, land: Callable[..., Ended], table: Path
    ) -> None:
        land()
        merged = DeltaTable(table)
        merged.optimize.compact()
        left = table / "part-00009-0badcafe.parquet"
        left.write_bytes(b"rows")
        for file in table.rglob("*.*"):
            os.utime(file, (then := time.time() - 3 * 86_400, then))

        listed = run("landing", "clean", table, "-o", "json")
        removed = run("landing", "clean", table, "--yes", "-o", "json")

        assert [row["name"] for row in listed.json] == [row["name"] for row in removed.json] == [left.name]
        assert not left.exists()
        for version in (0, merged.version()):
            assert DeltaTable(table, version=version).to_pyarrow_table().num_rows == 300

    @pytest.mark.parametrize("options", [[], ["--yes"]])
    def test_a_table_puts_its_versions_back_itself(
        self, run: Run, land: Callable[..., Ended], table: Path, options: list[str]
    ) -> None:
        land()
        ended = run("landing", "restore", table, *options)

        assert (ended.code, ended.out) == (2, "")
        assert "a table keeps its own versions" in ended.err


@pytest.mark.parametrize("command", [["verify"], ["cat"], ["sql", "select 1"], ["clean"], ["restore"]])
def test_a_table_of_others_is_no_landing(run: Run, table: Path, command: list[str]) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(table, pa.table({"id": ["1"]}))
    ended = run("landing", command[0], table, *command[1:])

    assert (ended.code, ended.out) == (3, "")
    assert "a table with rows that no landing has written" in ended.err
