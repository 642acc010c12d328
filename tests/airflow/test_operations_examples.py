"""The example DAGs on housekeeping, many tasks and analytics, run for real."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from tests.airflow.dag_runs import run_dag
from tests.airflow.examples import load

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(speed=300, wait_seconds=10, run_seconds=60, stale_seconds=60),
]


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
