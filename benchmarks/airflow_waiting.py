"""Waits in a real Airflow: ``python -m benchmarks.airflow_waiting [--waits N] [--interval S]``.

Airflow (scheduler, triggerer, API servers; LocalExecutor, SQLite) and a sandbox that enforces the service's
limits run on loopback. While all deferred waits are in flight, the benchmark counts the worker slots and the
requests to the service. Then the tasks finish one after another, and it measures the time until each sensor
succeeds. It takes about five minutes and needs a quiet machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import requests

from airflow_provider_webcollect.sandbox import Control, demo
from benchmarks.report import machine, table
from demo.processes import Processes
from demo.real_airflow import RealAirflow
from demo.sandbox import start_sandbox

STATUS = "/cloudextraction/statuses/v2"
TIMEOUT_SECONDS = 1800.0
DAG_ID = "waits"
#: Number of sensors in one DAG run.
PER_RUN = 25
#: Minimum duration of the tasks' runs in seconds, much shorter than the lifetime of a token. Once all waits
#: are in flight, the sandbox's clock is advanced.
LONG = 20_000.0

DAG_FILE = """
from airflow.sdk import DAG, Param
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor

limits = {"max_active_runs": 1000, "max_active_tasks": 1000}
with DAG(DAG_ID, schedule=None, params={"ids": Param([], type="array")}, **limits):
    for number in range(PER_RUN):
        WebCollectTaskStatusSensor(
            task_id=f"wait_{number}",
            collection_task_id="{{ params.ids[%d] }}" % number,
            poke_interval=INTERVAL,
            deferrable=True,
        )
"""


@dataclass(frozen=True)
class Plan:
    """The parameters of the measurement.

    :ivar waits: number of simultaneous waits.
    :ivar interval: seconds between two polls of a task.
    :ivar hold: seconds of counting while all waits are in flight.
    :ivar spread: seconds within which the tasks finish.
    """

    waits: int
    interval: float
    hold: float
    spread: float


@dataclass(frozen=True)
class Result:
    """The measured values.

    :ivar in_flight_after: seconds from the start of the runs until all waits were in flight.
    :ivar slots: maximum number of worker slots held while all waits were in flight.
    :ivar requests_per_minute: status queries per minute while all waits were in flight.
    :ivar refused: number of responses with HTTP 429 over the whole time.
    :ivar delays: seconds from each task's end to its sensor's success.
    """

    in_flight_after: float
    slots: int
    requests_per_minute: float
    refused: int
    delays: list[float]


def main() -> None:
    """Measure the waits and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waits", type=int, default=500, help="waits at once (default: %(default)s)")
    parser.add_argument(
        "--interval", type=float, default=10.0, help="seconds between two polls (default: %(default)s)"
    )
    parser.add_argument(
        "--hold", type=float, default=60.0, help="seconds to count while all wait (default: %(default)s)"
    )
    parser.add_argument(
        "--spread", type=float, default=120.0, help="seconds in which tasks finish (default: %(default)s)"
    )
    plan = Plan(**vars(parser.parse_args()))
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        url, control = start_sandbox(
            processes, Path(folder) / "sandbox", "--speed", "1", "--stale-seconds", "0"
        )
        with RealAirflow(Path(folder) / "airflow", _dags(Path(folder), plan), _options(url)) as airflow:
            result = _measure(plan, airflow, control, url)
    _print(plan, result)


def _dags(folder: Path, plan: Plan) -> Path:
    dags = folder / "dags"
    dags.mkdir()
    constants = f"DAG_ID = {DAG_ID!r}\nPER_RUN = {PER_RUN}\nINTERVAL = {plan.interval}\n"
    (dags / "waits.py").write_text(constants + DAG_FILE)
    return dags


def _options(url: str) -> dict[str, str]:
    connection = {"conn_type": "webcollect", "host": url, "extra": {"access_token": demo.ACCESS_TOKEN}}
    return {
        "AIRFLOW_CONN_WEBCOLLECT_DEFAULT": json.dumps(connection),
        "AIRFLOW__API__MAXIMUM_PAGE_LIMIT": "1000",
        "AIRFLOW__CORE__PARALLELISM": "16",
        "AIRFLOW__SCHEDULER__MAX_DAGRUNS_TO_CREATE_PER_LOOP": "100",
    }


def _measure(plan: Plan, airflow: RealAirflow, control: Control, url: str) -> Result:
    first_end = control.now() + LONG
    ids = _tasks(plan, control)
    began = time.monotonic()
    for first in range(0, plan.waits, PER_RUN):
        chunk = ids[first : first + PER_RUN]
        # the last run may have fewer tasks than sensors: the other sensors wait for the first of its tasks
        airflow.trigger(DAG_ID, {"ids": chunk + chunk[:1] * (PER_RUN - len(chunk))})
    waits = -(-plan.waits // PER_RUN) * PER_RUN
    airflow.wait_for(
        lambda: _count(airflow, "deferred") == waits, TIMEOUT_SECONDS, "all waits to be in flight"
    )
    in_flight_after = time.monotonic() - began
    slots, asked = _hold(plan, airflow, control)
    # from now on, one task after another finishes
    ahead = control.advance(first_end - control.now() - plan.interval) - time.time()
    airflow.wait_for(lambda: _count(airflow, "success") == waits, TIMEOUT_SECONDS, "all waits to be over")
    ended = _ends(url, ids)
    return Result(
        in_flight_after,
        slots,
        asked * 60 / plan.hold,
        control.counters()[STATUS].get(429, 0),
        [at - (ended[task_id] - ahead) for task_id, at in _successes(airflow).items()],
    )


def _tasks(plan: Plan, control: Control) -> list[str]:
    """Create extracting tasks that finish after ``LONG`` seconds, evenly distributed over the spread."""
    ids = []
    for number in range(plan.waits):
        control.configure(run_seconds=LONG + number * plan.spread / plan.waits, wait_seconds=0)
        ids.append(control.add_task(rows=1, subtasks=1)["task_id"])
        control.start_task(ids[-1])
    control.clear_requests()
    return ids


def _hold(plan: Plan, airflow: RealAirflow, control: Control) -> tuple[int, int]:
    """Let all waits go on; return the maximum number of held slots and the number of status queries."""
    before, until = _asked(control), time.monotonic() + plan.hold
    slots = 0
    while time.monotonic() < until:
        slots = max(slots, airflow.get("pools/default_pool")["running_slots"])
        time.sleep(1)
    return slots, _asked(control) - before


def _asked(control: Control) -> int:
    return sum(control.counters().get(STATUS, {}).values())


def _count(airflow: RealAirflow, state: str) -> int:
    time.sleep(2)
    body = airflow.get(f"dags/{DAG_ID}/dagRuns/~/taskInstances", state=state, limit=1)
    assert not airflow.get(f"dags/{DAG_ID}/dagRuns/~/taskInstances", state="failed", limit=1)["total_entries"]
    return int(body["total_entries"])


def _ends(url: str, ids: list[str]) -> dict[str, float]:
    """Return the Unix time in the sandbox at which each task finished."""
    ended = {}
    for first in range(0, len(ids), 100):
        answer = requests.post(
            f"{url}{STATUS}",
            json={"taskIds": ids[first : first + 100]},
            headers={"Authorization": f"Bearer {demo.ACCESS_TOKEN}"},
            timeout=30,
        )
        answer.raise_for_status()
        for status in answer.json()["data"]:
            end = datetime.datetime.fromisoformat(status["endExecuteTime"]).replace(tzinfo=datetime.UTC)
            ended[status["taskId"]] = end.timestamp()
        time.sleep(1)
    return ended


def _successes(airflow: RealAirflow) -> dict[str, float]:
    """Return the Unix time at which each collection task's sensor succeeded."""
    runs = airflow.get(f"dags/{DAG_ID}/dagRuns", limit=1000)["dag_runs"]
    ids = {run["dag_run_id"]: run["conf"]["ids"] for run in runs}
    task_instances = airflow.get(f"dags/{DAG_ID}/dagRuns/~/taskInstances", limit=1000)["task_instances"]
    return {
        ids[ti["dag_run_id"]][int(ti["task_id"].rpartition("_")[2])]: datetime.datetime.fromisoformat(
            ti["end_date"]
        ).timestamp()
        for ti in task_instances
    }


def _print(plan: Plan, result: Result) -> None:
    rows = {
        "worker slots held while waiting, at most": str(result.slots),
        "status queries per minute": f"{result.requests_per_minute:.1f}",
        "answers 429": str(result.refused),
        "seconds from Finished to success, median": f"{statistics.median(result.delays):.1f}",
        "95th percentile": f"{statistics.quantiles(result.delays, n=20)[-1]:.1f}",
        "longest": f"{max(result.delays):.1f}",
        "seconds until all were in flight": f"{result.in_flight_after:.0f}",
    }
    print(f"\n{plan.waits} waits, a poll every {plan.interval:g} s, tasks finish within {plan.spread:g} s\n")
    table(" | seen", rows.items())


if __name__ == "__main__":
    main()
