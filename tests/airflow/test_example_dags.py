"""The example DAGs, run for real."""

from __future__ import annotations

import csv
import json
import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.sandbox.demo import TASK_ID
from tests.airflow.dag_runs import run_dag
from tests.airflow.examples import FOLDER, NAMES, load
from tests.airflow.landings import landed
from tests.airflow.warehouses import warehouses  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected", "warehouses"),
    pytest.mark.webcollect_sandbox(speed=300, stale_seconds=60),
]


#: Runs of collection tasks that take their time.
SLOW_RUNS = pytest.mark.webcollect_sandbox(wait_seconds=10, run_seconds=60)


@pytest.mark.parametrize("name", NAMES)
def test_every_example_explains_itself(name: str) -> None:
    dag = load(name)

    assert dag.dag_id == name
    assert dag.doc_md
    assert "webcollect" in dag.tags


def test_collect_and_land_ends_with_every_row_landed_and_confirmed(sandbox: Sandbox, tmp_path: Path) -> None:
    # an earlier run, whose Finished the status still shows for a moment after the start
    task = sandbox.control.add_task(lots=[15])
    dag = load("webcollect_collect_and_land")
    dag.get_task("wait").poke_interval = 0.2
    run = run_dag(
        dag,
        {
            "collection_task_id": task["task_id"],
            "action_id": task["actions"][0]["action_id"],
            "loop_items": ["laptop", "tea"],
            "destination": f"file://{tmp_path}/landed",
        },
    )
    rows = landed(f"file://{tmp_path}/landed")

    assert run.states == dict.fromkeys(
        ("update_loop_items", "start", "wait", "land", "mark_exported"), "success"
    )
    assert run.xcoms["wait"]["executed_times"] == 2
    assert len(rows) == 15 + 2 * 40
    assert rows == sandbox.control.true_rows(task["task_id"])
    assert sandbox.control.task(task["task_id"])["exported"]
    assert len(sandbox.control.requests("/token")) == 1
    assert len(sandbox.control.requests("/cloudextraction/subtasks:start")) == 1


def test_the_dag_of_the_readme_lands_each_row_once_also_on_day_two(sandbox: Sandbox, tmp_path: Path) -> None:
    task = sandbox.control.add_task(rows=20, lots=[5])
    readme = (FOLDER.parent / "README.md").read_text()
    pasted = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert pasted
    code = pasted[1].replace(TASK_ID, task["task_id"])
    code = code.replace("s3://my-bucket", f"file://{tmp_path}").replace('"aws_default"', "None")
    # the sandbox has no need of a person's patience
    code = code.replace("mode=", "late_rows_delay=0, mode=").replace("poke_interval=5", "poke_interval=0.2")
    file = tmp_path / "pasted.py"
    file.write_text(code)
    for rows in (25, 20):
        dag = runpy.run_path(str(file))["start"].dag
        run = run_dag(dag, **({"logical_date": None} if AIRFLOW_V_3_0_PLUS else {}))

        assert run.states == dict.fromkeys(("start", "wait", "land"), "success")
        assert run.xcoms["land"]["rows"] == rows
        (uri,) = run.xcoms["land"]["uris"]
        assert re.fullmatch(rf"file://{tmp_path}/prices/dt=\d{{4}}-\d\d-\d\d/part-[^/]*", uri)

    rows = landed(f"file://{tmp_path}/prices")
    assert rows == sandbox.control.true_rows(task["task_id"])
    assert sandbox.control.task(task["task_id"])["exported"]


def test_the_token_keeper_renews_at_half_life_only(
    sandbox: Sandbox, set_connection: Callable[..., None]
) -> None:
    set_connection(extra={"refresh_token": sandbox.refresh_token, "token_refresh": "keeper"})

    first = run_dag(load("webcollect_token_keeper"))
    second = run_dag(load("webcollect_token_keeper"))

    assert [run.state for run in (first, second)] == ["success", "success"]
    assert len(sandbox.control.requests("/token")) == 1


@SLOW_RUNS
@pytest.mark.at_night
def test_housekeeping_leaves_the_copy_in_place_of_what_it_replaces(sandbox: Sandbox) -> None:
    old = sandbox.control.add_task(loop_items=["old"])
    group = sandbox.control.add_task(group_id=7)["group_id"]
    run = run_dag(
        load("webcollect_housekeeping"),
        {
            "collection_task_id": old["task_id"],
            "task_group_id": group,
            "loop_items": ["new", "newer"],
            "replaced_task_ids": [old["task_id"]],
        },
    )

    assert run.state == "success"
    copy = sandbox.control.task(run.xcoms["copy"]["task_id"])
    assert (copy["group_id"], copy["actions"][0]["loop_items"]) == (group, ["new", "newer"])
    assert run.xcoms["delete"] == [old["task_id"]]
    assert old["task_id"] not in {each["task_id"] for each in sandbox.control.tasks()}


@SLOW_RUNS
@pytest.mark.at_night
def test_many_tasks_land_in_a_folder_each(sandbox: Sandbox, tmp_path: Path) -> None:
    ids = [sandbox.control.add_task(rows=rows, lots=[5])["task_id"] for rows in (10, 20, 30)]
    dag = load("webcollect_many_tasks")
    dag.get_task("collect.wait").poke_interval = 0.2
    run = run_dag(
        dag,
        {"collection_task_ids": ids, "destination": f"file://{tmp_path}"},
    )

    assert run.state == "success"
    assert [run.xcoms[f"collect.wait[{index}]"]["executed_times"] for index in range(3)] == [2, 2, 2]
    manifests = [json.loads((tmp_path / each / "_manifest.json").read_text()) for each in ids]
    assert [manifest["rows"] for manifest in manifests] == [15, 25, 35]


@SLOW_RUNS
@pytest.mark.parametrize(
    "when",
    [
        pytest.param({}, marks=pytest.mark.at_night if AIRFLOW_V_3_0_PLUS else ()),
        pytest.param(
            {"logical_date": None},
            marks=pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="all runs have a logical date"),
        ),
    ],
    ids=["scheduled", "without a logical date"],
)
def test_the_report_is_written_and_checked(sandbox: Sandbox, tmp_path: Path, when: dict[str, Any]) -> None:
    run = run_dag(load("webcollect_analytics_report"), {"destination": f"file://{tmp_path}"}, **when)

    assert run.states == {"report": "success", "check": "success"}
    (report,) = tmp_path.iterdir()
    rows = list(csv.DictReader(report.read_text().splitlines()))
    assert len(rows) == run.xcoms["report"]["rows"] > 0
    assert len({row["day_key"] for row in rows}) <= 7
    assert run.xcoms["check"]["violations"] == []
