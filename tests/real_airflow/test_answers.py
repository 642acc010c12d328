"""The example DAGs that ask a person, answered by the API that Airflow's web interface uses.

``make test-matrix`` also runs this file on other versions of Airflow, with the demo and no other test.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.sandbox import Sandbox, Settings
from demo.airflow_api import PATIENCE_SECONDS
from demo.real_airflow import RealAirflow

pytestmark = [pytest.mark.real_airflow, pytest.mark.at_night]

SETTINGS = Settings(enforce_limits=False, wait_seconds=0.2, run_seconds=0.5, stale_seconds=0, subtasks=2)
START = "/cloudextraction/subtasks:start"
#: The state of a task that asks: from Airflow 3.3 on, and before.
WAITING = ("awaiting_input", "deferred")


@pytest.fixture(scope="module", autouse=True)
def examples(dags: Path, pytestconfig: pytest.Config) -> None:
    """The examples without a schedule, and copies of them that wait only for a moment."""
    for name in ("webcollect_ask_about_rows", "webcollect_ask_about_start"):
        code = (pytestconfig.rootpath / "example_dags" / f"{name}.py").read_text()
        usual = {
            'schedule="@daily"': "schedule=None",
            # a task that Airflow's scheduler considers lost asks again
            '"retries": 2': '"retries": 2, "retry_delay": timedelta(0)',
            '"deferrable": True,': '"deferrable": True, "poll_interval": 0.5, "poke_interval": 0.5,',
        }
        for old, new in usual.items():
            code = code.replace(old, new)
        (dags / f"{name}.py").write_text(code)
        brief = code.replace(f'"{name}"', f'"{name}_for_a_moment"').replace("hours=12", "seconds=5")
        (dags / f"{name}_for_a_moment.py").write_text(brief)


class Run:
    """A run of a DAG whose task ``ask`` asks a person.

    :param option: the answer of the person; None for no answer.
    """

    def __init__(self, airflow: RealAirflow, dag_id: str, option: str | None, conf: dict[str, Any]) -> None:
        dag_id = dag_id if option else f"{dag_id}_for_a_moment"
        run_id = airflow.trigger(dag_id, conf)
        self.body = self._answer(airflow, dag_id, run_id, option) if option else ""
        self.state = airflow.wait(dag_id, run_id)
        self.states = {ti.task_id: ti.state for ti in airflow.task_instances(dag_id, run_id)}

    def _answer(self, airflow: RealAirflow, dag_id: str, run_id: str, option: str) -> str:
        """Answer the question once it is asked, and return its text."""

        def is_asked() -> bool:
            task_instances = airflow.task_instances(dag_id, run_id)
            return any(ti.task_id == "ask" and ti.state in WAITING for ti in task_instances)

        airflow.wait_for(is_asked, PATIENCE_SECONDS, f"{run_id} of {dag_id} to ask")
        # if the answer comes at once, Airflow's scheduler considers the task lost, and retries it
        time.sleep(2)
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/ask/-1/hitlDetails"
        body = airflow.get(path)["body"]
        airflow._api("PATCH", path, json={"chosen_options": [option], "params_input": {}})
        return str(body)


@pytest.mark.parametrize(
    ("option", "landed", "kinds"),
    [("accept", 15, []), ("discard", 5, ["discarded"]), (None, 5, ["quarantined"])],
    ids=["accepted", "refused", "timed out"],
)
def test_quarantined_rows_become_what_is_decided(
    airflow: RealAirflow, sandbox: Sandbox, tmp_path: Path, option: str | None, landed: int, kinds: list[str]
) -> None:
    task = sandbox.control.add_task(lots=[10])["task_id"]
    sandbox.control.change_rows(task, "price", "empty", from_row=0)
    conf = {"collection_task_id": task, "destination": f"file://{tmp_path}/landed"}
    run = Run(airflow, "webcollect_ask_about_rows", option, conf)

    if option:
        assert run.state == "success"
        succeeded = dict.fromkeys(("find_quarantined", "ask", "decide"), "success")
        assert run.states == {"land": "failed", **succeeded}
        assert run.body.startswith("    columns.price.filled: filled in 0 % of 10 rows ('' at offset 0)")
    else:
        assert run.state == "failed"
        unanswered = {"find_quarantined": "success", "ask": "failed", "decide": "upstream_failed"}
        assert run.states == {"land": "failed", **unanswered}
    # the next run continues after them
    sandbox.control.change_rows(task, "price", "number")
    sandbox.control.grow(task, 5)
    run_id = airflow.trigger("webcollect_ask_about_rows", conf)
    assert airflow.wait("webcollect_ask_about_rows", run_id) == "success"
    reader = read_landing(tmp_path / "landed")
    assert list(reader.iter_rows()) == sandbox.control.true_rows(task)[-landed:]
    assert [entry.kind for entry in reader.manifest.set_apart] == kinds
    reader.verify()


@pytest.mark.parametrize(
    ("done", "option", "succeeds", "starts"),
    [
        (True, "It runs", "wait", 1),
        (False, "Start again", "start_again", 2),
        (False, "Give up", None, 1),
        (False, None, None, 1),
    ],
    ids=["accepted", "sent again", "refused", "timed out"],
)
def test_a_start_of_unknown_outcome_goes_on_as_is_decided(
    airflow: RealAirflow,
    sandbox: Sandbox,
    tmp_path: Path,
    done: bool,
    option: str | None,
    succeeds: str | None,
    starts: int,
) -> None:
    task = sandbox.control.add_task(lots=[10])["task_id"]
    sandbox.control.fail(START, kind="drop", done=done)
    before = len(sandbox.control.requests(START))
    conf = {"collection_task_id": task, "destination": f"file://{tmp_path}/landed"}
    run = Run(airflow, "webcollect_ask_about_start", option, conf)

    assert run.states == {
        "start": "failed",
        "query_status": "success",
        "ask": "success",
        "start_again": "success" if succeeds == "start_again" else "skipped",
        "wait": "success" if succeeds == "wait" else "skipped",
        "give_up": "skipped" if succeeds else "failed",
        "land": "success" if succeeds else "upstream_failed",
    }
    assert run.state == ("success" if succeeds else "failed")
    assert ("    executed_times: " in run.body) is bool(option)
    assert len(sandbox.control.requests(START)) - before == starts
    assert len(sandbox.control.task(task)["runs"]) == (2 if succeeds else 1)
    if succeeds:
        assert list(read_landing(tmp_path / "landed").iter_rows()) == sandbox.control.true_rows(task)
