"""Groups that collect and land hundreds of collection tasks, in both arrangements; and 25 with tables."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.sandbox import Sandbox, Settings
from demo.real_airflow import RealAirflow
from tests.postgresql import PostgreSQL

pytestmark = [pytest.mark.real_airflow, pytest.mark.at_night, pytest.mark.timeout(7200)]

SETTINGS = Settings(enforce_limits=False, speed=60)
PATIENCE = 3600
#: Streams, each with a key, types, a check and a table of its own.
STREAMS = range(25)
ENTRY = """
- id: stream_{0}
  name: Stream {0}
  columns: [sku_{0}, price_{0}]
  column_types: {{price_{0}: "decimal(10, 2)"}}
  checks: {{columns: {{sku_{0}: {{required: true}}}}}}
  load: {{table: "shops_{0}.prices", write_disposition: merge, primary_key: sku_{0}}}
"""
#: For `each`, Airflow starts a process for each of 300 tasks, and each process reads the DAG's file.
SHOPS = {
    "together": [f"shop_{number:03}" for number in range(300)],
    "each": [f"single_shop_{number:03}" for number in range(100)],
}
#: Collection tasks whose start is killed once half of them run.
KILLED = [f"killed_{number:02}" for number in range(60)]
START = "/cloudextraction/subtasks:start"


@pytest.fixture(scope="module", autouse=True)
def own_dags(request: pytest.FixtureRequest, dags: Path) -> None:
    """Add the DAGs, after the files that they read."""
    for arrangement, shops in SHOPS.items():
        entries = "".join(f"- id: {shop}\n  name: The {shop}\n" for shop in shops)
        (dags / f"shops_{arrangement}.yaml").write_text(entries)
    (dags / "streams.yaml").write_text("".join(map(ENTRY.format, STREAMS)))
    shutil.copy(request.path.parent / "dags/many_shops.py", dags)


@pytest.fixture(scope="module", autouse=True)
def tasks(sandbox: Sandbox) -> None:
    for shop in itertools.chain(*SHOPS.values()):
        sandbox.control.add_task(shop, rows=3, lots=[2])
    for task_id in KILLED:
        sandbox.control.add_task(task_id, rows=3)
    for number in STREAMS:
        # the key `a` has two rows, the second of which is the later one
        rows = [
            {f"sku_{number}": sku, f"price_{number}": f"{number}.{cents}"}
            for sku, cents in (("a", 10), ("b", 20), ("a", 30))
        ]
        sandbox.control.add_task(f"stream_{number}", rows=rows, lots=[2])


@pytest.mark.parametrize("arrangement", SHOPS)
def test_every_row_lands_once(
    airflow: RealAirflow, sandbox: Sandbox, landing: Path, arrangement: str
) -> None:
    dag_id = f"shops_{arrangement}"
    assert airflow.wait(dag_id, airflow.trigger(dag_id), PATIENCE) == "success"

    for shop in SHOPS[arrangement]:
        landed = read_landing(f"{landing.as_uri()}/{arrangement}/The~_{shop}")
        assert list(landed.iter_rows()) == sandbox.control.true_rows(shop) != []


def test_a_killed_start_starts_each_once(airflow: RealAirflow, sandbox: Sandbox, landing: Path) -> None:
    def runs() -> list[int]:
        return [sandbox.control.task(task_id)["executed_times"] for task_id in KILLED]

    half = len(KILLED) // 2
    sandbox.control.clear_requests()
    # when the process is killed, the service has made the last of these starts, but not yet answered
    sandbox.control.fail(START, kind="drip", after=half - 1, seconds=PATIENCE)
    run_id = airflow.trigger("killed")
    airflow.wait_for(lambda: sum(runs()) == half, PATIENCE, "half of the starts")
    start = f"dags/killed/dagRuns/{run_id}/taskInstances/shops.start"
    os.kill(airflow.get(start)["pid"], signal.SIGKILL)
    # when the retry begins, all runs have ended: the service does not show what the killed try has started
    sandbox.control.advance(60)

    assert airflow.wait("killed", run_id, PATIENCE) == "success"
    assert airflow.get(start)["try_number"] == 2
    assert runs() == [1] * len(KILLED)
    assert len(sandbox.control.requests(START)) == len(KILLED)
    for task_id in KILLED:
        landed = list(read_landing(f"{landing.as_uri()}/killed/{task_id}").iter_rows())
        assert landed == sandbox.control.true_rows(task_id)
        assert len(landed) == 3


def test_each_of_25_streams_has_its_key_its_types_and_its_table(
    airflow: RealAirflow, sandbox: Sandbox, postgresql: PostgreSQL
) -> None:
    server = urlsplit(f"postgresql://{postgresql.address}")
    airflow.add_connection(
        "warehouse",
        "postgres",
        host=server.hostname,
        port=server.port,
        login=server.username,
        password=server.password,
        schema=server.path[1:],
    )
    run_id = airflow.trigger("streams")
    assert airflow.wait("streams", run_id, PATIENCE) == "success"

    for number in STREAMS:
        latest = {
            row[f"sku_{number}"]: Decimal(row[f"price_{number}"])
            for row in sandbox.control.true_rows(f"stream_{number}")
        }
        columns = f"sku_{number}, price_{number}"
        found = postgresql.query(f"select {columns} from shops_{number}.prices")
        assert dict(found) == latest == {"a": Decimal(f"{number}.30"), "b": Decimal(f"{number}.20")}
        assert len(found) == 2
