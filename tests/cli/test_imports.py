"""What commands import: Airflow only where it is asked for, and nothing heavy for help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Run

#: Runs commands one after another, and writes their exit codes and all modules imported by then to a file.
SCRIPT = """
import json, pathlib, sys
from airflow_provider_webcollect.cli.main import main

codes = [main(arguments) for arguments in json.loads(sys.argv[2])]
pathlib.Path(sys.argv[1]).write_text(json.dumps([codes, sorted(sys.modules)]))
"""


def imported_by(tmp_path: Path, *commands: list[str]) -> set[str]:
    """Return the packages that commands import; all commands must succeed."""
    output = tmp_path / "imported"
    command = [sys.executable, "-c", SCRIPT, str(output), json.dumps(commands)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    codes, modules = json.loads(output.read_text())
    assert codes == [0] * len(commands), ended.stderr
    return {name.partition(".")[0] for name in modules}


def test_help_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    commands = [
        *([], ["land"], ["read"], ["status"], ["landing"], ["landing", "sql"]),
        *(["token", "refresh"], ["task", "copy"], ["init"], ["load"], ["landing", "dbt-source"]),
    ]
    packages = imported_by(tmp_path, *([*command, "--help"] for command in commands), ["--version"])
    assert "click" in packages
    assert not packages & {"airflow", "httpx", "requests", "urllib3", "pyarrow", "duckdb", "fsspec", "rich"}


@pytest.mark.usefixtures("connected")
def test_most_commands_do_not_import_airflow(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, folder = sandbox.control.add_task(lots=[30])["task_id"], str(tmp_path / "landed")
    (names := tmp_path / "names.yaml").write_text(f"- id: {task}\n  name: Prices\n")
    monkeypatch.setenv("WEBCOLLECT_COLLECTION_TASKS", str(names))
    monkeypatch.setenv("DESTINATION__DUCKDB__CREDENTIALS", str(tmp_path / "warehouse.duckdb"))
    packages = imported_by(
        tmp_path,
        ["capacity"],
        ["status", "Prices"],
        ["analytics"],
        ["discover", "--merge", str(tmp_path / "collection_tasks.yaml")],
        ["read", task],
        ["land", task, folder, "--format", "parquet"],
        ["landing", "verify", folder],
        ["landing", "cat", folder],
        ["landing", "sql", folder, "select count(*) from landing"],
        ["landing", "clean", folder],
        ["landing", "dbt-source", folder, "--dataset", "shop"],
        ["load", folder, "shop.landed", "--destination", "duckdb"],
        ["init", str(tmp_path / "dags")],
    )
    assert "pyarrow" in packages
    assert not packages & {"airflow", "opentelemetry"}


@pytest.mark.usefixtures("connected")
def test_reading_a_landing_needs_no_client(run: Run, tmp_path: Path, sandbox: Sandbox) -> None:
    task, folder = sandbox.control.add_task(lots=[30])["task_id"], str(tmp_path / "landed")
    run("land", task, folder)
    sandbox.control.clear_requests()
    packages = imported_by(tmp_path, ["landing", "verify", folder], ["landing", "cat", folder])
    assert not packages & {"airflow", "httpx", "requests", "urllib3", "duckdb"}
    assert sandbox.control.requests() == []
