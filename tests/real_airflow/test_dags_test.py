"""``airflow dags test`` and the test of a connection, with the one for which the sandbox prints a command."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_webcollect.sandbox import Control
from tests.airflow_commands import in_shell, shell_environment
from tests.sandbox.command import Running

pytestmark = [
    pytest.mark.real_airflow,
    pytest.mark.at_night,
    # they need none of the processes of the other tests' Airflow
    pytest.mark.xdist_group("airflow's commands"),
]

DAG_ID = "webcollect_collect_and_land"
EXAMPLE = f"{DAG_ID}.py"


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    sandbox = Running(tmp_path_factory.mktemp("sandbox"), "--speed", "120", "--stale-seconds", "0")
    yield sandbox
    sandbox.kill()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, sandbox: Running) -> dict[str, str]:
    """An Airflow with a database, and in it the connection."""
    environment = shell_environment(tmp_path_factory.mktemp("airflow"))
    in_shell(environment, "airflow db migrate", sandbox.line("airflow connections add "))
    return environment


def test_a_wait_that_runs_inline_reads_the_connection_and_the_run_succeeds(
    sandbox: Running, environment: dict[str, str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    control = Control(sandbox.url)
    task = control.add_task()
    control.expire_tokens()
    home = Path(environment["AIRFLOW_HOME"])
    (home / "dags").mkdir()
    shutil.copy(pytestconfig.rootpath / "example_dags" / EXAMPLE, home / "dags")
    conf = {
        "collection_task_id": task["task_id"],
        "action_id": task["actions"][0]["action_id"],
        "destination": f"file://{tmp_path}/prices",
    }

    command = ["airflow", "dags", "test", DAG_ID, "--conf", json.dumps(conf)]
    output = in_shell(environment, shlex.join(command))

    with sqlite3.connect(home / "airflow.db") as database:
        found = dict(database.execute("select task_id, state from task_instance"))
    assert found == dict.fromkeys(("update_loop_items", "start", "wait", "land", "mark_exported"), "success")
    # of the token, in the task that was the first to need one
    assert "that no other process renews the token." in output
    (manifest,) = tmp_path.glob("prices/_manifest.json")
    assert json.loads(manifest.read_text())["rows"] == len(control.true_rows(task["task_id"]))


def test_the_printed_connection_works_on_every_start_of_the_sandbox(
    sandbox: Running, environment: dict[str, str]
) -> None:
    # the other tests have used it on the first start
    Control(sandbox.url).reset()
    assert "Connection success" in in_shell(environment, "airflow connections test webcollect_default")
