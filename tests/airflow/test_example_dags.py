"""The example DAGs, run for real, and the code of the guide to warehouses."""

from __future__ import annotations

import csv
import json
import re
import runpy
from pathlib import Path
from typing import Any

import duckdb
import pendulum
import pytest
from airflow.models import Variable
from airflow.providers.common.compat import sdk
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sandbox.demo import FINISHED_TASK_ID, TASK_ID
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.examples import (  # noqa: F401  # warehouses is a fixture
    FOLDER,
    NAMES,
    Person,
    from_3_1,
    load,
    needs_warehouses,
    rendered,
    warehouses,
)
from tests.airflow.executions import Connect, Said, Task, execute, on_sandbox
from tests.airflow.landings import landed, make_transfer, table_rows
from tests.storages import Storage

pytestmark = on_sandbox("warehouses", enforce_limits=True, speed=300, stale_seconds=60)

#: Runs of collection tasks that take some time.
SLOW_RUNS = pytest.mark.webcollect_sandbox(wait_seconds=10, run_seconds=60)
WITHOUT_LIMITS = pytest.mark.webcollect_sandbox(enforce_limits=False)
NIGHT = pytest.mark.at_night
#: Arguments of `run_dag` for a run that a person starts.
BY_HAND: dict[str, Any] = {"logical_date": None} if AIRFLOW_V_3_0_PLUS else {}
GUIDE = FOLDER.parent / "docs/guides/load-by-hand.md"


def succeeded(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "success")


@pytest.mark.parametrize("name", NAMES)
def test_every_example_explains_itself(name: str) -> None:
    dag = load(name)
    assert dag.dag_id == name
    assert dag.doc_md
    assert "webcollect" in dag.tags


def test_the_readme_lands_each_row(
    sandbox: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = sandbox.control.add_task(rows=20, lots=[5])
    readme = (FOLDER.parent / "README.md").read_text()
    # a folder instead of a bucket
    readme = readme.replace("s3://aws_default@my-bucket", f"file://{tmp_path}")
    pasted = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    query = re.search(r"python -c '\n(.*?)'\n", readme, re.DOTALL)
    assert pasted
    assert query
    # the sandbox needs shorter waits than the service
    code = (
        pasted[1]
        .replace(TASK_ID, task["task_id"])
        .replace("mark_exported=", "late_rows_delay=0, mark_exported=")
        .replace('"poke_interval": 5', '"poke_interval": 0.2')
    )
    file = tmp_path / "pasted.py"
    file.write_text(code)
    for rows in (25, 20):
        run = run_dag(runpy.run_path(str(file))["dag"], **BY_HAND)

        group = task["task_id"].replace("-", "_")
        names = [f"collect.{group}.{step}" for step in ("start", "wait", "land")]
        assert run.states == succeeded(*names)
        assert run.xcoms[names[-1]]["rows"] == rows
        (uri,) = run.xcoms[names[-1]]["uris"]
        assert re.fullmatch(rf"file://{tmp_path}/prices/part-[^/]*", uri)

    assert landed(f"file://{tmp_path}/prices") == sandbox.control.true_rows(task["task_id"])
    assert sandbox.control.task(task["task_id"])["exported"]
    exec(query[1], {})
    assert "offers" in capsys.readouterr().out


def test_the_token_keeper_renews_at_half_life_only(sandbox: Sandbox, set_connection: Connect) -> None:
    set_connection(extra={"refresh_token": sandbox.refresh_token, "token_refresh": "keeper"})
    states = [run_dag(load("webcollect_token_keeper")).state for _ in range(2)]
    assert states == ["success", "success"]
    assert len(sandbox.control.requests("/token")) == 1


@SLOW_RUNS
@NIGHT
def test_housekeeping_replaces_a_task_by_its_copy(sandbox: Sandbox) -> None:
    old = sandbox.control.add_task(loop_items=["old"])
    group = sandbox.control.add_task(group_id=7)["group_id"]
    conf = {"collection_task_id": old["task_id"], "replaced_task_ids": [old["task_id"]]}
    copied = {"task_group_id": group, "loop_items": ["new", "newer"]}
    run = run_dag(load("webcollect_housekeeping"), {**conf, **copied})

    assert run.state == "success"
    copy = sandbox.control.task(run.xcoms["copy"]["task_id"])
    assert (copy["group_id"], copy["actions"][0]["loop_items"]) == (group, ["new", "newer"])
    assert run.xcoms["delete"] == [old["task_id"]]
    assert old["task_id"] not in {task["task_id"] for task in sandbox.control.tasks()}


@SLOW_RUNS
@NIGHT
def test_many_tasks_land_in_a_folder_each(sandbox: Sandbox, tmp_path: Path) -> None:
    ids = [sandbox.control.add_task(rows=rows, lots=[5])["task_id"] for rows in (10, 20, 30)]
    dag = load("webcollect_many_tasks")
    dag.get_task("collect.wait").poke_interval = 0.2
    run = run_dag(dag, {"collection_task_ids": ids, "destination": f"file://{tmp_path}"})

    assert run.state == "success"
    assert [run.xcoms[f"collect.wait[{index}]"]["executed_times"] for index in range(3)] == [2, 2, 2]
    manifests = [json.loads((tmp_path / id_ / "_manifest.json").read_text()) for id_ in ids]
    assert [manifest["rows"] for manifest in manifests] == [15, 25, 35]


@WITHOUT_LIMITS
def test_what_a_file_names_lands_in_a_folder_each(sandbox: Sandbox, tmp_path: Path) -> None:
    dag = load("webcollect_task_group")
    for task in dag.tasks:
        task.poke_interval, task.late_rows_delay = 0.2, 0
    run = run_dag(dag, {"destination": f"file://{tmp_path}"})

    steps = ("start", "wait", "land")
    groups = ("shops.Shop_search", "shops.Books")
    assert run.states == succeeded(*(f"{group}.{step}" for group in groups for step in steps))
    for folder, task_id in (("Shop~_search", TASK_ID), ("Books", FINISHED_TASK_ID)):
        assert landed(f"file://{tmp_path}/{folder}") == sandbox.control.true_rows(task_id) != []


@SLOW_RUNS
@pytest.mark.parametrize(
    "when", [BY_HAND, pytest.param({}, marks=NIGHT)] if AIRFLOW_V_3_0_PLUS else [{}], ids=str
)
def test_the_report_is_written_and_checked(sandbox: Sandbox, tmp_path: Path, when: dict[str, Any]) -> None:
    run = run_dag(load("webcollect_analytics_report"), {"destination": f"file://{tmp_path}"}, **when)

    assert run.states == succeeded("report", "check")
    (report,) = tmp_path.iterdir()
    rows = list(csv.DictReader(report.read_text().splitlines()))
    assert len(rows) == run.xcoms["report"]["rows"] > 0
    assert len({row["day_key"] for row in rows}) <= 7
    assert run.xcoms["check"]["violations"] == []


@SLOW_RUNS
def test_nothing_is_started_above_a_limit_of_the_month(sandbox: Sandbox, tmp_path: Path, said: Said) -> None:
    task_id = sandbox.control.add_task(rows=10)["task_id"]
    conf = {"collection_task_id": task_id, "destination": f"file://{tmp_path}/landed"}
    dag = load("webcollect_limit_of_the_month")
    dag.get_task("wait").poke_interval = 0.2
    checked = dag.get_task("check")
    checked.max_volume = checked.max_cost = 10**9
    run = run_dag(dag, conf, **BY_HAND)
    assert run.states == succeeded("check", "start", "wait", "land")
    today = pendulum.now("UTC").date()
    assert run.xcoms["check"]["start"] == today.replace(day=1).isoformat()
    assert run.xcoms["check"]["end"] == today.isoformat()
    assert landed(conf["destination"]) == sandbox.control.true_rows(task_id) != []

    sandbox.control.clear_requests()
    checked.max_volume = checked.max_cost = 0
    refused = run_dag(dag, conf)
    others = dict.fromkeys(("start", "wait", "land"), "upstream_failed")
    assert refused.states == {"check": "failed", **others}
    assert sandbox.control.requests("/cloudextraction/subtasks:start") == []
    assert said().count("above 0") >= 2


@pytest.fixture
def conf(source: Task, tmp_path: Path) -> dict[str, Any]:
    """The parameters of every DAG that lands new rows."""
    return {"collection_task_id": source["task_id"], "destination": f"file://{tmp_path}/prices"}


def without_pauses(name: str) -> Any:
    """Return an example's DAG that neither waits for late rows nor retries."""
    dag = load(name)
    dag.get_task("land").late_rows_delay = 0
    for task in dag.tasks:
        task.retries = 0
    return dag


@WITHOUT_LIMITS
def test_each_run_adds_new_rows_to_duckdb(sandbox: Sandbox, conf: dict[str, Any], tmp_path: Path) -> None:
    dag = without_pauses("webcollect_incremental_to_duckdb")
    conf |= {"database": f"{tmp_path}/prices.duckdb"}

    def load_again() -> int:
        """Load as a retry or a cleared task does."""
        return int(dag.get_task("load").python_callable(conf["destination"], conf["database"]))

    def table() -> list[tuple[str, str]]:
        with duckdb.connect(conf["database"]) as db:
            return db.execute("select id, title from prices order by rowid").fetchall()

    def expected() -> list[tuple[str, str]]:
        rows = sandbox.control.true_rows(conf["collection_task_id"])
        return [(row["id"], row["title"]) for row in rows]

    for rows, grown in ((400, 0), (440, 40), (440, 0)):
        sandbox.control.grow(conf["collection_task_id"], grown)
        run = run_dag(dag, conf)
        assert run.states == succeeded("land", "load")
        assert run.xcoms["load"] == rows
        assert table() == expected()
    assert load_again() == 440
    before = table()
    assert before == expected()

    for rows in (30, 25):
        sandbox.control.grow(conf["collection_task_id"], rows)
        # as a run that is killed after its commit
        execute(dag.get_task("land"), params=conf)
    part = Path(read_landing(conf["destination"]).uris(since=3)[0].removeprefix("file://"))
    content = part.read_bytes()
    part.write_bytes(content[:-20])
    with pytest.raises(duckdb.Error):
        load_again()
    assert table() == before
    part.write_bytes(content)
    assert load_again() == 495
    assert table() == expected()


@WITHOUT_LIMITS
def test_each_run_adds_and_counts_new_rows_of_a_delta_table(sandbox: Sandbox, conf: dict[str, Any]) -> None:
    dag = without_pauses("webcollect_delta_table")
    counts = [run_dag(dag, conf).xcoms["count"]]
    sandbox.control.grow(conf["collection_task_id"], 40)
    counts.append(run_dag(dag, conf).xcoms["count"])

    assert counts == [{"total": 400, "new": 400}, {"total": 440, "new": 40}]
    assert run_dag(dag, conf).states == {"land": "skipped", "count": "skipped"}
    rows, expected = table_rows(conf["destination"]), sandbox.control.true_rows(conf["collection_task_id"])
    assert [(row["id"], row["title"]) for row in rows] == [(row["id"], row["title"]) for row in expected]
    assert {type(row["price"]) for row in rows} <= {float, type(None)}


@WITHOUT_LIMITS
def test_rows_without_prices_land_once_accepted(sandbox: Sandbox, conf: dict[str, Any]) -> None:
    dag = without_pauses("webcollect_checked_landing")
    task_id = conf["collection_task_id"]
    good = run_dag(dag, conf)
    assert good.xcoms["use"] == good.xcoms["land"]["uris"] != []
    sandbox.control.change_rows(task_id, "price", "empty")
    sandbox.control.grow(task_id, 40)

    bad = run_dag(dag, conf)
    assert bad.states == {"land": "failed", "use": "upstream_failed"}
    assert landed(conf["destination"]) == sandbox.control.true_rows(task_id)[:400]

    which = {"destination": conf["destination"], "commit": 2}
    decided = run_dag(load("webcollect_decide_on_rows"), {**which, "decision": "accept"})
    facts = {"run_id": bad.run_id, "rows": 40, "checks": ["columns.price.filled"]}
    assert decided.xcoms["decide"] == {**which, **facts}
    assert landed(conf["destination"]) == sandbox.control.true_rows(task_id)


@WITHOUT_LIMITS
def test_words_without_rows_are_collected_again(sandbox: Sandbox, conf: dict[str, Any]) -> None:
    dag = without_pauses("webcollect_missing_inputs")
    dag.get_task("land_again").late_rows_delay = 0
    for wait in ("wait", "wait_again"):
        dag.get_task(wait).poke_interval = 0.2
    task_id = conf["collection_task_id"]
    sandbox.control.silence(task_id, ["Phone"])
    conf["action_id"] = sandbox.control.task(task_id)["actions"][0]["action_id"]
    run = run_dag(dag, conf)
    assert {*run.states.values()} == {"success"}
    assert run.xcoms["land"]["missing_inputs"] == {"count": 1, "inputs": ["Phone"]}
    assert run.xcoms["land_again"]["missing_inputs"] == {"count": 0, "inputs": []}
    assert landed(conf["destination"]) == sandbox.control.true_rows(task_id)
    assert sandbox.control.task(task_id)["actions"][0]["loop_items"] == ["Laptop", "Phone", "Tablet"]


@WITHOUT_LIMITS
@needs_warehouses
def test_bigquery_is_given_what_is_not_loaded_yet(sandbox: Sandbox, conf: dict[str, Any]) -> None:
    # without a Google connection, the load fails right after its templates are rendered
    dag = without_pauses("webcollect_incremental_to_warehouse")
    conf |= {"bucket": "my-bucket", "table": "my-project.shop.prices", "variable": "loaded"}

    def given() -> list[str]:
        run = run_dag(dag, conf, **BY_HAND)
        states = {"load": "failed", "keep": "upstream_failed"}
        assert run.states == {**succeeded("land", "new_parts"), **states}
        fields = rendered(dag.dag_id, run.run_id, "load")
        target = (fields["bucket"], fields["destination_project_dataset_table"])
        assert target == (conf["bucket"], conf["table"])
        assert all("/prices/dt=" in name for name in fields["source_objects"])
        return list(fields["source_objects"])

    first = given()
    sandbox.control.grow(conf["collection_task_id"], 40)
    second = given()
    assert (len(first), second[:1], len(second)) == (1, first, 2)

    Variable.set("loaded", 1)  # as `keep` does, once a load has succeeded
    assert given() == second[1:]


def code(heading: str) -> list[str]:
    """Return the blocks of Python under a heading of the guide."""
    _, _, rest = GUIDE.read_text().partition(f"# {heading}\n")
    # up to the next heading; a comment in code has no empty line before it
    section = re.split(r"\n\n#+ ", rest)[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)


@NIGHT
@WITHOUT_LIMITS
@needs_warehouses
def test_the_code_of_the_guide_gives_warehouses_the_new_parts(
    s3: Storage, source: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("airflow.providers.amazon.aws.fs.s3", reason="needs the Amazon provider and s3fs")
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", s3.as_connection())

    @sdk.task(multiple_outputs=True)
    def new_parts() -> dict[str, list[str]]:
        uris = read_landing("s3://aws_default@my-bucket/prices").uris()
        return {"objects": [uri.removeprefix("s3://my-bucket/") for uri in uris]}

    names: dict[str, Any] = {"task": sdk.task, "read_landing": read_landing}
    with make_dag() as dag:
        land = make_transfer("s3://my-bucket/prices", source)
        names["new"] = new_parts()
        for heading in ("Snowflake", "Redshift"):
            for block in code(heading):
                exec(compile(block, GUIDE.name, "exec"), names)
        loads = [names["load_snowflake"], names["load_redshift"]]
        land >> names["new"] >> loads
    finished = run_dag(dag)

    def given(task_id: str) -> dict[str, Any]:
        return rendered(dag.dag_id, finished.run_id, task_id)

    parts = json.loads(s3.fs.cat_file("my-bucket/prices/_manifest.json"))["parts"]
    objects = [f"prices/{part['name']}" for part in parts]
    # without connections, they fail right after their templates are rendered
    assert {finished.states[load.task_id] for load in loads} == {"failed"}
    assert given("load_snowflake")["files"] == objects
    redshift = given("load_redshift")
    manifest = json.loads(s3.fs.cat_file(f"{redshift['s3_bucket']}/{redshift['s3_key']}"))
    assert manifest["entries"] == [
        {
            "url": f"s3://my-bucket/{name}",
            "mandatory": True,
            "meta": {"content_length": s3.fs.size(f"my-bucket/{name}")},
        }
        for name in objects
    ]
    assert redshift["copy_options"][0] == "MANIFEST"


@from_3_1
@pytest.mark.webcollect_sandbox(
    speed=200, wait_seconds=0, run_seconds=2, stale_seconds=0, enforce_limits=False
)
def test_nobody_is_asked_where_nothing_is_to_be_decided(task: Task, tmp_path: Path) -> None:
    # tests/real_airflow tests the answers
    person = Person("any")
    steps = ("find_quarantined", "ask", "decide")
    skipped = dict.fromkeys((*steps, "query_status", "start_again", "wait", "give_up"), "skipped")
    failed = {"land": "failed", **dict.fromkeys(steps, "upstream_failed"), "find_quarantined": "failed"}
    for about, task_id, expected in (
        ("rows", task["task_id"], {"land": "success", **skipped}),
        ("rows", "no-such-task", failed),
        ("start", task["task_id"], {**succeeded("start", "land"), **skipped}),
    ):
        dag = load(f"webcollect_ask_about_{about}")
        for operator in dag.tasks:
            operator.poll_interval = 0.05
        conf = {"collection_task_id": task_id, "destination": f"file://{tmp_path}/prices"}
        run = run_dag(dag, conf, when_idle=person)
        assert run.states == {name: expected[name] for name in dag.task_ids}
    assert person.bodies == []
