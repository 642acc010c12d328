"""A watch whose triggerer is killed: no run of a task is lost or landed twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings, demo
from demo.landing import prove
from demo.real_airflow import RealAirflow
from tests.contract.client_requests import RequestContract
from tests.interruption import PATIENCE

pytestmark = [
    pytest.mark.real_airflow,
    pytest.mark.at_night,
    pytest.mark.skipif(
        tuple(map(int, version("apache-airflow").split(".")[:2])) < (3, 3),
        reason="before Airflow 3.3 a watch forgets over a restart",
    ),
]

ON_FINISH = "webcollect_on_finish"
ASSET = "webcollect_finished_runs"


@pytest.fixture(scope="module")
def sandbox(connect_to: Callable[..., None]) -> Iterator[Sandbox]:
    with Sandbox(Settings(wait_seconds=10, run_seconds=90, stale_seconds=0)) as sandbox:
        connect_to(sandbox)
        yield sandbox
        RequestContract().check(sandbox.control.requests())


def run_to_the_end(sandbox: Sandbox) -> None:
    sandbox.control.start_task(demo.TASK_ID)
    sandbox.control.advance(101)


def wait_until_remembered(airflow: RealAirflow, run: int) -> None:
    """Wait until the watch will not report a run again, whatever happens to the triggerer."""

    def is_remembered() -> bool:
        assets = airflow.get("assets", name_pattern=ASSET)["assets"]
        stored = [airflow.get(f"assets/{asset['id']}/state-store")["asset_state_store"] for asset in assets]
        return any(entry["value"]["run"] == run for entries in stored for entry in entries)

    airflow.wait_for(is_remembered, PATIENCE, f"run {run} to be remembered")


def wait_until_landed(airflow: RealAirflow, run: int) -> None:
    """Wait until this number of runs is reported, remembered and landed."""
    wait_until_remembered(airflow, run)
    airflow.wait_for(
        lambda: list(airflow.runs(ON_FINISH).values()) == ["success"] * run, PATIENCE, f"{run} landings"
    )


def test_runs_are_told_and_landed_once_over_a_restart(
    airflow: RealAirflow, sandbox: Sandbox, dags: Path, landing: Path, pytestconfig: pytest.Config
) -> None:
    # not earlier: the watch of its asset would query the other tests' sandboxes
    file = Path(shutil.copy(pytestconfig.rootpath / "example_dags" / f"{ON_FINISH}.py", dags))
    airflow.unpause(ON_FINISH)
    # the watch begins when Airflow reads the file of a DAG that is not paused
    file.touch()
    wait_until_remembered(airflow, 0)
    run_to_the_end(sandbox)
    wait_until_landed(airflow, 1)

    airflow.kill("triggerer")
    run_to_the_end(sandbox)
    airflow.start("triggerer")
    wait_until_landed(airflow, 2)

    payloads = [
        event["extra"]["payload"]
        for event in airflow.get("assets/events", name_pattern=ASSET)["asset_events"]
    ]
    rows = sandbox.control.true_rows(demo.TASK_ID)
    assert [(event["first_run"], event["run"], event["status"]) for event in payloads] == [
        (run, run, "Finished") for run in (1, 2)
    ]
    assert len(rows) == 2 * 5 * 40
    landed = landing / demo.TASK_ID
    assert prove(landed, rows).rows == len(rows)
    # the runs, which an event has started, have no logical date
    assert {path.parent.name[:3] for path in landed.rglob("part-*")} == {"dt="}
