"""Cost of the page in Airflow's web interface: ``python -m benchmarks.page [--landings N] [--runs N]``.

The landings are read from an SQLite database and encoded as the response: by one process, and by four
processes at the same time, as in an API server with four workers. Each time is the median of all readings:
eleven by each process, after a first one that is not counted, since it also reads the list of all landings.
The database also has as many asset events of other operators, and the DAG run and the task instance of each
landing; every tenth landing has failed in its last run.

The plugin is imported in processes that have already imported the modules of a task's process: Airflow's SDK,
its plugin manager and this provider's operators. The time is the median of eleven imports.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import uuid
from typing import TYPE_CHECKING

from benchmarks.report import machine, table

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.orm import Session

TIMES = 11
#: Numbers of processes that read at the same time, as the workers of an API server.
PROCESSES = (1, 4)
READ = f"""
import datetime, json, msgspec, sys, time
from airflow.utils.session import create_session
from airflow_provider_webcollect.ui.landings import read_landings
dag_ids, seconds = {{f"dag_{{number}}" for number in range(int(sys.argv[1]))}}, []
for _ in range({TIMES} + 1):
    with create_session() as session:
        began = time.perf_counter()
        landings = read_landings(session, dag_ids, datetime.datetime.now(datetime.UTC))
        assert msgspec.json.encode(landings) and landings["series"]
        seconds.append(time.perf_counter() - began)
print(json.dumps(seconds[1:]))
"""
IMPORT = """
import airflow.sdk, airflow.plugins_manager, json, sys, time
import airflow_provider_webcollect.operators.webcollect
import airflow_provider_webcollect.sensors.webcollect
import airflow_provider_webcollect.transfers.webcollect_to_object_storage
before, began = set(sys.modules), time.process_time()
import airflow_provider_webcollect.ui
print(json.dumps([time.process_time() - began, len(set(sys.modules) - before)]))
"""


def main() -> None:
    """Measure the page's data and the plugin's import, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--landings", type=int, default=5_000, help="(default: %(default)s)")
    parser.add_argument("--runs", type=int, default=30, help="of each landing (default: %(default)s)")
    arguments = parser.parse_args()
    landings, runs = arguments.landings, arguments.runs
    print(machine())
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"AIRFLOW_HOME": home, "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
        make(landings, runs)
        heads = "Landings | Runs of each | Processes at once | ms | Slowest, ms"
        table(heads, [(f"{landings:,}", runs, count, *read(count, landings)) for count in PROCESSES])
        table("Import of the plugin | CPU, ms | Slowest, ms | Modules", [load()])


def make(landings: int, runs: int) -> None:
    """Create and fill the database."""
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        fill(session, landings, runs, datetime.datetime.now(datetime.UTC))


def read(count: int, landings: int) -> tuple[str, str]:
    """Measure the time to read the landings, in several processes at the same time."""
    command = [sys.executable, "-c", READ, str(landings)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    printed = [process.communicate()[0] for process in processes]
    return in_milliseconds([second for output in printed for second in json.loads(output.splitlines()[-1])])


def fill(session: Session, landings: int, runs: int, now: datetime.datetime) -> None:
    """Add daily landings to the database, each in a DAG of its own, and as many events of other operators."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import insert

    chance = random.Random(1)
    assets = [
        AssetModel(name=f"rows {number}", uri=f"s3://bucket/{number}", group="")
        for number in range(2 * landings)
    ]
    session.add_all(assets)
    session.flush()
    for run in range(runs):
        events, dag_runs, tasks = [], [], []
        for number in range(landings):
            at = now - datetime.timedelta(days=runs - 1 - run, hours=1, seconds=landings - number)
            dag_id, run_id = f"dag_{number}", f"run_{run}"
            has_failed = run == runs - 1 and number % 10 == 0
            landing = {
                "destination": f"s3://bucket/{number}",
                "manifest": f"s3://bucket/{number}/_manifest.json",
                "rows": chance.randint(900, 1100),
                "bytes": 250_000,
                "parts": 3,
                "duration": 12.5,
                "uris": [f"s3://bucket/{number}/part-{part}.jsonl" for part in range(3)],
                "webcollect_conn_id": "webcollect_default",
                "collection_task_id": f"task-{number}",
            }
            source = {
                "source_dag_id": dag_id,
                "source_task_id": "land",
                "source_run_id": run_id,
                "source_map_index": -1,
                "timestamp": at,
            }
            if not has_failed:
                events.append({"asset_id": assets[number].id, "extra": landing, **source})
            other = {"asset_id": assets[landings + number].id, "extra": {"note": "of another operator"}}
            events.append({**other, **source})
            state = "failed" if has_failed else "success"
            ran = {"dag_id": dag_id, "run_id": run_id, "state": state}
            dag_runs.append({**ran, "run_type": "scheduled", "logical_date": at, "run_after": at})
            operator = {"operator": "WebCollectToObjectStorageOperator", "pool": "default_pool"}
            which = {"id": uuid.uuid4(), "task_id": "land", "map_index": -1, "try_number": 1}
            tasks.append({**ran, **which, **operator, "queue": "default", "end_date": at})
        session.execute(insert(AssetEvent), events)
        session.execute(insert(DagRun.__table__), dag_runs)
        session.execute(insert(TaskInstance.__table__), tasks)


def load() -> tuple[object, ...]:
    """Measure the cost of importing the plugin."""
    command = [sys.executable, "-c", IMPORT]
    printed = [subprocess.run(command, check=True, capture_output=True).stdout for _ in range(TIMES)]
    measured = [json.loads(output.splitlines()[-1]) for output in printed]
    seconds, modules = zip(*measured, strict=True)
    return "plugin", *in_milliseconds(seconds), max(modules)


def in_milliseconds(seconds: Collection[float]) -> tuple[str, str]:
    """Return the median and the maximum in milliseconds."""
    return f"{statistics.median(seconds) * 1000:.1f}", f"{max(seconds) * 1000:.1f}"


if __name__ == "__main__":
    main()
