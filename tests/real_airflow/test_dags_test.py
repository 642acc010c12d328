"""``airflow dags test`` and other commands, with the connection for which the sandbox prints a command."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.sandbox import Control, demo
from tests.airflow_commands import in_shell, shell_environment
from tests.sandbox.command import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.real_airflow,
    pytest.mark.at_night,
    # they need none of the processes of the other tests' Airflow
    pytest.mark.xdist_group("airflow's commands"),
]

AIRFLOW = version("apache-airflow")
SAID = "exit code: "
DAG_ID = "webcollect_collect_and_land"
EXAMPLE = f"{DAG_ID}.py"
#: Prints the exit code of each command of Airflow, and then what it has said. Airflow starts once for all of
#: them, which takes longest.
IN_ONE_PROCESS = f"""
import contextlib, io, shlex, sys
from airflow.__main__ import main

for line in sys.argv[1:]:
    sys.argv = ["airflow", *shlex.split(line)]
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    print(f"{SAID}{{code}}", said.getvalue(), sep="\\n", flush=True)
"""


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
    shutil.copytree(
        pytestconfig.rootpath / "example_dags", home / "dags", ignore=lambda _, names: {*names} - {EXAMPLE}
    )
    conf = {
        "collection_task_id": task["task_id"],
        "action_id": task["actions"][0]["action_id"],
        "destination": f"file://{tmp_path}/prices",
    }

    output = in_shell(
        environment, shlex.join(["airflow", "dags", "test", DAG_ID, "--conf", json.dumps(conf)])
    )

    with sqlite3.connect(home / "airflow.db") as database:
        found = dict(database.execute("select task_id, state from task_instance"))
    assert found == dict.fromkeys(("update_loop_items", "start", "wait", "land", "mark_exported"), "success")
    # of the token, in the task that was the first to need one
    assert "that no other process renews the token." in output
    (manifest,) = tmp_path.glob("prices/_manifest.json")
    assert json.loads(manifest.read_text())["rows"] == len(control.true_rows(task["task_id"]))


@pytest.mark.skipif(AIRFLOW < "3.2", reason="Airflow takes no commands of providers")
def test_the_commands_are_also_commands_of_airflow(
    sandbox: Running, environment: dict[str, str], tmp_path: Path
) -> None:
    lines = [
        "webcollect land x y --on-reset full",
        f"webcollect land {demo.FINISHED_TASK_ID} {tmp_path} --column id --column title --late-rows-delay 0",
        f"webcollect landing verify {tmp_path} -o json",
    ]
    output = in_shell(environment, shlex.join(["python", "-c", IN_ONE_PROCESS, *lines]))
    refused, _, verified = output.split(SAID)[1:]
    # exit codes are those of the command
    assert refused.startswith("2\n")
    (facts,), _ = json.JSONDecoder().raw_decode(verified, verified.index("[\n"))
    assert facts["rows"] == 240
    assert json.loads((tmp_path / "_manifest.json").read_text())["columns"] == ["id", "title"]


def test_the_printed_connection_works_on_every_start_of_the_sandbox(
    sandbox: Running, environment: dict[str, str]
) -> None:
    # the other tests have used it on the first start
    Control(sandbox.url).reset()
    assert "Connection success" in in_shell(environment, "airflow connections test webcollect_default")
