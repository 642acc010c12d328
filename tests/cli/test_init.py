"""``init``: a file of collection tasks and a DAG beside it, both or neither; and the DAG runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.collection_tasks import read_collection_tasks
from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service.threads import Stop
from tests.airflow.conftest import airflow_database, airflow_home  # noqa: F401  # fixtures
from tests.cli.conftest import Run, Start, contents
from tests.interruption import until
from tests.sandbox.plain_client import Client, data

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]

PATH = "/taskanalytics/queries"
IDS = ("5a9d0b0e-0000-4000-8000-000000000001", "5a9d0b0e-0000-4000-8000-000000000002")


@pytest.fixture
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for DAGs, which does not exist yet, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "dags"


def dag_in(folder: Path) -> Any:
    names: dict[str, Any] = {"__file__": str(folder / "collect.py")}
    exec(compile((folder / "collect.py").read_text(), folder / "collect.py", "exec"), names)
    [dag] = [value for value in names.values() if type(value).__name__ == "DAG"]
    return dag


def test_the_tasks_that_ran_get_a_file_and_a_dag(run: Run, dags: Path) -> None:
    found = run("discover").out
    ended = run("init", dags)
    assert ended.code == 0
    assert (dags / "collection_tasks.yaml").read_text() == found
    names = [task.name for task in read_collection_tasks(dags / "collection_tasks.yaml").tasks]
    assert f"Wrote {dags / 'collection_tasks.yaml'} with {len(names)} task" in ended.err
    *connect, test = ended.out.splitlines()
    assert [line.split()[:4] for line in connect] == [["airflow", "connections", "add", "webcollect_default"]]
    assert test == f"AIRFLOW__CORE__DAGS_FOLDER={dags} airflow dags test collect"
    assert len([line for line in (dags / "collect.py").read_text().splitlines() if line]) <= 8
    dag = dag_in(dags)
    assert dag.dag_id == "collect"
    lands = [task.destination for task in dag.tasks if task.task_id.endswith(".land")]
    assert len(lands) == len(names)
    assert f"file://{dags.parent}/landed/Price~_list" in lands


def test_without_discovery_ids_are_enough(run: Run, sandbox: Sandbox, dags: Path, tmp_path: Path) -> None:
    ended = run("init", dags, "--id", IDS[0], "--id", IDS[1], "--id", IDS[0], "--destination", "s3://b/{id}")
    assert ended.code == 0
    tasks = read_collection_tasks(dags / "collection_tasks.yaml").tasks
    assert [(task.id, task.name) for task in tasks] == [(task_id, task_id) for task_id in IDS]
    lands = [task.destination for task in dag_in(dags).tasks if task.task_id.endswith(".land")]
    assert lands == [f"s3://b/{task_id}" for task_id in IDS]
    assert sandbox.control.requests() == []


def test_a_plan_without_discovery_is_told_to_give_ids(run: Run, sandbox: Sandbox, dags: Path) -> None:
    sandbox.control.fail(PATH, kind="status", status=403, code="PermissionDenied", times=None)
    run("init", dags).refused(3, "PermissionDenied", "give the ids of tasks: webcollect init --id ID")
    assert not dags.exists()


def test_an_account_whose_tasks_never_ran_is_told_to_give_ids(run: Run, sandbox: Sandbox, dags: Path) -> None:
    ids = [task["task_id"] for task in sandbox.control.tasks() if task["owner"] == demo.USERNAME]
    data(Client(sandbox).post("/task/deleteTasks", {"taskIds": ids}))
    run("init", dags).refused(1, "No task ran in the last three months", "webcollect init --id ID")
    assert not dags.exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("collection_tasks.yaml", ""),
        ("collect.py", "# mine\n"),
        ("other.py", 'with DAG(\n    dag_id="collect",\n    schedule=None):\n    pass\n'),
        ("other.py", "@dag('collect')\ndef collect(): ...\n"),
    ],
)
def test_a_folder_with_one_file_is_refused(
    run: Run, sandbox: Sandbox, dags: Path, name: str, text: str
) -> None:
    dags.mkdir()
    (dags / name).write_text(text)
    before = contents(dags)
    run("init", dags).refused(2, f"FOLDER is '{dags}'", f"{name} is there already")
    assert contents(dags) == before
    assert sandbox.control.requests() == []


def test_what_is_no_file_in_the_folder_is_no_dag(run: Run, dags: Path) -> None:
    (dags / "package.py").mkdir(parents=True)
    # an editor's lock, a link to nothing
    (dags / ".#mine.py").symlink_to("me@host.1234")
    assert run("init", dags, "--id", IDS[0]).code == 0


def test_tasks_with_the_same_airflow_name_get_a_working_dag(run: Run, sandbox: Sandbox, dags: Path) -> None:
    ids = [sandbox.control.add_task(lots=[30], name=name)["task_id"] for name in ("Shop A", "Shop-A")]
    assert run("init", dags).code == 0
    names = [task.name for task in read_collection_tasks(dags / "collection_tasks.yaml").tasks]
    assert {"Shop A", f"Shop-A ({ids[1][:8]})"} <= {*names}
    assert len([task for task in dag_in(dags).tasks if task.task_id.endswith(".land")]) == len(names)


def test_an_id_in_other_letters_is_the_same(run: Run, dags: Path) -> None:
    assert run("init", dags, "--id", IDS[0], "--id", IDS[0].upper()).code == 0
    assert len(read_collection_tasks(dags / "collection_tasks.yaml").tasks) == 1


def test_a_folder_that_cannot_be_made_is_refused(run: Run, dags: Path) -> None:
    dags.write_text("")
    run("init", dags).refused(2, "is a file")
    run("init", dags / "more", "--id", IDS[0]).refused(2, "it cannot be created: Not a directory")


def test_if_the_dag_cannot_be_written_the_file_is_not_either(
    run: Run, sandbox: Sandbox, dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags.mkdir()
    sandbox.control.fail(PATH, status=503)
    # a person writes the DAG in the pause before another attempt
    monkeypatch.setattr(Stop, "sleep", lambda *_: (dags / "collect.py").write_text("# mine\n"))
    run("init", dags).refused(4, "collect.py has changed meanwhile, so nothing was written")
    assert contents(dags) == {dags / "collect.py": b"# mine\n"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--id", "{{ x }}"], "--id is '{{ x }}'"),
        (["--id", "a.b", "--id", "a_b"], "--id is 'a_b'; its Airflow id would be the same as that of 'a.b'"),
        (["--destination", "bucket/{name}"], "--destination is 'bucket/"),
        (["--destination", "s3://bucket/prices"], "{name} or {id}"),
        (["--destination", "s3://bucket/{shop}/{name}"], "not {shop}"),
        (["--id", IDS[0], "--url", "https://me:secret@host"], "***@host'; it must be an http(s) URL"),
        (["--id", IDS[0], "--url", "host"], "it must be an http(s) URL"),
    ],
)
def test_a_wrong_option_writes_nothing(run: Run, dags: Path, options: list[str], said: str) -> None:
    run("init", dags, *options).refused(2, said)
    assert not dags.exists()


@pytest.mark.usefixtures("airflow_database")
def test_the_dag_names_a_connection_other_than_the_usual_one(
    run: Run, sandbox: Sandbox, dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"access_token": sandbox.access_token, "requests_per_second": 0}
    connection = {"conn_type": "webcollect", "host": sandbox.url, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SHOPS", json.dumps(connection))
    ended = run("init", dags, "--conn-id", "shops")
    assert (ended.code, ended.out.count("\n")) == (0, 1)
    assert {task.webcollect_conn_id for task in dag_in(dags).tasks} == {"shops"}


def test_a_terminal_is_asked_for_a_missing_connection(
    start: Start, sandbox: Sandbox, dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = start("init", dags / "given", terminal=True)
    assert given.end() == 0
    assert "connection" not in given.err
    monkeypatch.delenv("WEBCOLLECT_URL")
    asked = start("init", dags / "asked", terminal=True)
    until(lambda: "or the service's URL [webcollect_default]: " in asked.err)
    asked.type(f"{sandbox.url}\n")
    assert asked.end() == 0
    assert contents(dags / "asked").keys() == {
        dags / "asked" / name for name in ("collection_tasks.yaml", "collect.py")
    }
