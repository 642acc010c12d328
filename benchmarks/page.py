"""What the page in Airflow's web interface costs: ``python -m benchmarks.page [--events N]``.

The data of its landings is read from asset events in an SQLite database, by one process, and by four at the
same time, as those of an API server with four workers: each time is the median of eleven readings of each
process, after one that is not counted. The plugin is imported in processes that have imported what a task's
process has: Airflow's SDK, its plugin manager and this provider's operators; the median of eleven again.
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
from typing import TYPE_CHECKING

from benchmarks.report import machine, table

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.orm import Session

TIMES = 11
#: Assets, of which each second one gets landings, and how many Airflow tasks land to each of these.
ASSETS, TASKS = 100, 2
#: How many processes of an API server read at once.
PROCESSES = (1, 4)
READ = f"""
import datetime, json, time
from airflow.utils.session import create_session
from airflow_provider_webcollect.ui.landings import read_landings
dag_ids, seconds = {{f"dag_{{place}}" for place in range({ASSETS})}}, []
for _ in range({TIMES} + 1):
    with create_session() as session:
        began = time.perf_counter()
        assert read_landings(session, dag_ids, datetime.datetime.now(datetime.UTC))["series"]
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
    """Measure both, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000, help="(default: %(default)s)")
    events = parser.parse_args().events
    print(machine())
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"AIRFLOW_HOME": home, "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
        make(events)
        heads = "Data of the page | Events | Processes at once | ms | Slowest, ms"
        table(heads, [("landings", f"{events:,}", count, *read(count)) for count in PROCESSES])
        table("Import of the plugin | CPU, ms | Slowest, ms | Modules", [load()])


def make(events: int) -> None:
    """Make the database."""
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        fill(session, events, datetime.datetime.now(datetime.UTC))


def read(count: int) -> tuple[str, str]:
    """Measure how long it takes to read the landings, in several processes at the same time."""
    command = [sys.executable, "-c", READ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    printed = [process.communicate()[0] for process in processes]
    return in_milliseconds([second for output in printed for second in json.loads(output.splitlines()[-1])])


def fill(session: Session, events: int, now: datetime.datetime) -> None:
    """Put events of the last 30 days into the database; half of them are those of landings."""
    from airflow.models.asset import AssetEvent, AssetModel
    from sqlalchemy import insert

    chance = random.Random(1)
    assets = [
        AssetModel(name=f"rows {number}", uri=f"s3://bucket/{number}", group="") for number in range(ASSETS)
    ]
    session.add_all(assets)
    session.flush()
    rows = []
    for number in range(events):
        place = number % ASSETS
        landing = {
            "destination": f"s3://bucket/{place}",
            "manifest": f"s3://bucket/{place}/_manifest.json",
            "rows": chance.randint(900, 1100),
            "bytes": 250_000,
            "parts": 3,
            "duration": 12.5,
            "uris": [f"s3://bucket/{place}/part-{part}.jsonl" for part in range(3)],
            "webcollect_conn_id": "webcollect_default",
            "collection_task_id": f"task-{place}",
        }
        rows.append(
            {
                "asset_id": assets[place].id,
                "extra": landing if place % 2 else {"note": "of another operator"},
                "source_dag_id": f"dag_{place}",
                "source_task_id": f"land_{number // ASSETS % TASKS}",
                "source_run_id": f"run_{number}",
                "source_map_index": -1,
                "timestamp": now - datetime.timedelta(days=30) * (events - number) / (events + 1),
            }
        )
    session.execute(insert(AssetEvent), rows)


def load() -> tuple[object, ...]:
    """Measure what the import of the plugin costs."""
    command = [sys.executable, "-c", IMPORT]
    printed = [subprocess.run(command, check=True, capture_output=True).stdout for _ in range(TIMES)]
    measured = [json.loads(output.splitlines()[-1]) for output in printed]
    seconds, modules = zip(*measured, strict=True)
    return "plugin", *in_milliseconds(seconds), max(modules)


def in_milliseconds(seconds: Collection[float]) -> tuple[str, str]:
    """Return the median and the greatest."""
    return f"{statistics.median(seconds) * 1000:.1f}", f"{max(seconds) * 1000:.1f}"


if __name__ == "__main__":
    main()
