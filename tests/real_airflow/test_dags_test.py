"""``airflow dags test`` and the command line, with the connection stored in Airflow's database."""

from __future__ import annotations

import json
import shlex
import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings, demo
from tests.airflow_commands import in_shell, shell_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real_airflow, pytest.mark.timeout(300)]

AIRFLOW = version("apache-airflow")
DAG_FILE = """
import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectCapacitySensor,
    WebCollectSubTaskStatusSensor,
    WebCollectTaskStatusSensor,
)
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)

TASK = "{task_id}"
WAIT = {{"deferrable": True, "poke_interval": 1}}

with DAG("every_wait", schedule=None, start_date=pendulum.datetime(2026, 1, 1), catchup=False):
    capacity = WebCollectCapacitySensor(
        task_id="capacity", max_active_tasks=10, deferrable=True, poke_interval=1
    )
    start = WebCollectStartSubTasksOperator(task_id="start", collection_task_id=TASK)
    waits = [
        wait
        for way, how in {{"deferred": {{}}, "from_trigger": {{"start_from_trigger": True}}}}.items()
        for wait in (
            WebCollectTaskStatusSensor(
                task_id=f"wait_{{way}}", collection_task_id=TASK, after=start.output, **WAIT, **how
            ),
            WebCollectSubTaskStatusSensor(task_id=f"parts_{{way}}", collection_task_id=TASK, **WAIT, **how),
        )
    ]
    land = WebCollectToObjectStorageOperator(
        task_id="land",
        collection_task_id=TASK,
        destination="{destination}",
        mode="incremental",
        partition="dt={{{{ (dag_run.data_interval_end or dag_run.run_after) | ds }}}}",
        mark_exported=True,
        settle=3,
    )
    again = WebCollectStartSubTasksOperator(
        task_id="again",
        collection_task_id=TASK,
        wait_for_completion=True,
        deferrable=True,
        poll_interval=1,
    )
    capacity >> start >> waits >> land >> again
"""
WAITS = [f"{kind}_{way}" for kind in ("wait", "parts") for way in ("deferred", "from_trigger")]
TASKS = ["capacity", "start", *WAITS, "land", "again"]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Settings(speed=120, stale_seconds=0)) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> dict[str, str]:
    """An Airflow with a database, and in it the connection."""
    environment = shell_environment(tmp_path_factory.mktemp("airflow"))
    connection = {"--conn-type": "webcollect", "--conn-host": sandbox.url}
    connection |= {"--conn-login": sandbox.username, "--conn-password": sandbox.password}
    options = [text for option in connection.items() for text in option]
    add = shlex.join(["airflow", "connections", "add", "webcollect_default", *options])
    in_shell(environment, "airflow db migrate", add)
    return environment


def test_waits_that_run_inline_read_the_connection_and_the_run_succeeds(
    sandbox: Sandbox, environment: dict[str, str], tmp_path: Path
) -> None:
    task = sandbox.control.add_task()
    home = Path(environment["AIRFLOW_HOME"])
    (home / "dags").mkdir()
    made = DAG_FILE.format(task_id=task["task_id"], destination=f"file://{tmp_path}/prices")
    (home / "dags" / "every_wait.py").write_text(made)

    output = in_shell(environment, "airflow dags test every_wait")

    with sqlite3.connect(home / "airflow.db") as database:
        found = dict(database.execute("select task_id, state from task_instance"))
    assert found == dict.fromkeys(TASKS, "success"), output
    # of the landing in the task, and of the token in the trigger or task that was the first to need one
    assert "Waiting 3 s for rows that a run which has just finished may still add." in output
    assert "that no other process renews the token." in output
    (manifest,) = tmp_path.glob("prices/_manifest.json")
    assert json.loads(manifest.read_text())["rows"] == 200


@pytest.mark.skipif(AIRFLOW < "3.2", reason="Airflow takes no commands of providers")
def test_the_commands_are_also_commands_of_airflow(
    sandbox: Sandbox, environment: dict[str, str], tmp_path: Path
) -> None:
    lines = [
        f"airflow webcollect land {demo.FINISHED_TASK_ID} {tmp_path} --column id --column title --settle 0",
        f"airflow webcollect landing verify {tmp_path} -o json 2>/dev/null",
    ]
    output = in_shell(environment, *lines)
    (facts,) = json.loads(output[output.index("[\n") :])
    assert facts["rows"] == 240
    assert json.loads((tmp_path / "_manifest.json").read_text())["columns"] == ["id", "title"]
    # exit codes are those of the command
    in_shell(environment, "airflow webcollect land x y --on-reset full 2>&1 || test $? -eq 2")
