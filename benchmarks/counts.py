"""Counts the costs of collection tasks while operators run in a real Airflow's ``dag.test()``.

It counts requests to a sandbox, to an S3 server and to Airflow's API server, and the rows and bytes that stay
in Airflow's database. It measures no times.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_webcollect.sandbox import Control, demo
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE
from benchmarks.report import table
from benchmarks.server import sandbox

#: Approximate size of a row in bytes.
ROW_BYTES = 1000
#: Number of sources of the landing with several sources.
SOURCES = 20
START, WAIT = "start", "deferred wait, one query"
MARKED, UNMARKED = "landing, 10,000 new rows, with mark", "the same without mark"
#: Tables of Airflow's database in which rows stay, with the SQL size of the values that the provider stores.
TABLES = {
    "task_instance": "0",
    "task_state_store": "0",
    "rendered_task_instance_fields": "0",
    "xcom": "length(value)",
    "asset_event": "length(extra)",
}


@dataclass(frozen=True)
class Counts:
    """The costs of a DAG run with one operator.

    :ivar service: number of requests to the service, by the contract's path.
    :ivar storage: number of requests to the storage, by HTTP method.
    :ivar airflow: number of requests to the API server, by HTTP method and resource.
    :ivar rows: number of rows that stay in the database, by table.
    :ivar sizes: bytes of the XComs and of the extra of asset events, by table.
    """

    service: Counter[str]
    storage: Counter[str]
    airflow: Counter[str]
    rows: Counter[str]
    sizes: Counter[str]

    @property
    def writes(self) -> int:
        """The number of requests that make Airflow write to its database."""
        return sum(number for name, number in self.airflow.items() if not name.startswith("GET"))


@dataclass(frozen=True)
class Costs:
    """The counted costs.

    :ivar start: number of requests to the service for a start, including one status query.
    :ivar marked: number of requests for a landing with a mark, without the requests for pages of new rows.
    :ivar unmarked: the same number for a landing without a mark.
    :ivar start_writes: number of requests for a start that make Airflow write to its database.
    :ivar wait_writes: the same number for a deferred wait.
    :ivar landing_writes: the same number for a landing.
    """

    start: int
    marked: int
    unmarked: int
    start_writes: int
    wait_writes: int
    landing_writes: int


class Counting:
    """Runs operators and counts their costs.

    :param control: the control of the sandbox.
    :param bucket: the URL of the bucket to land in.
    :param storage_options: fsspec's options for the bucket.
    :param storage: the counter of the requests that the storage server receives.
    """

    def __init__(
        self, control: Control, bucket: str, storage_options: dict[str, str], storage: Counter[str]
    ) -> None:
        from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor

        self._control, self._bucket, self._storage = control, bucket, storage
        self._storage_options = storage_options
        self._airflow: Counter[str] = Counter()
        client: Any = InProcessTestSupervisor._Client
        send = client.request

        def counted(client: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            self._airflow[f"{method} {_resource(url)}"] += 1
            return send(client, method, url, *args, **kwargs)

        client.request = counted

    def run(self, make: Callable[[], Any]) -> Counts:
        """Run one operator as a DAG run of its own."""
        from tests.airflow.dag_runs import make_dag, run_dag

        with make_dag() as dag:
            make()
        self._control.clear_requests()
        self._storage.clear()
        self._airflow.clear()
        rows, sizes = _stored()
        run = run_dag(dag)
        assert run.state == "success", run
        after, sizes_after = _stored()
        service = {path: sum(counter.values()) for path, counter in self._control.counters().items()}
        return Counts(
            Counter(service),
            Counter(self._storage),
            Counter(self._airflow),
            after - rows,
            sizes_after - sizes,
        )

    def bytes_per_part(self) -> int:
        """Return the bytes that each part adds to the manifest of the landing ``marked`` of :meth:`all`."""
        import fsspec

        with fsspec.open(f"{self._bucket}/marked/_manifest.json", **self._storage_options) as file:
            # the manifest has one line for each part
            parts = [line for line in file.read().splitlines(keepends=True) if b'{"name":' in line]
        return sum(map(len, parts)) // len(parts)

    def all(self) -> Iterator[tuple[str, Counts]]:
        """Yield the costs of a start, a deferred wait and several landings, each with its name."""
        from airflow.providers.common.compat.sdk import Asset

        from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
        from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
        from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
            WebCollectToObjectStorageOperator,
        )

        def start(task_id: str) -> Callable[[], Any]:
            return lambda: WebCollectStartSubTasksOperator(task_id="start", collection_task_id=task_id)

        def land(name: str, **arguments: Any) -> Callable[[], Any]:
            return lambda: WebCollectToObjectStorageOperator(
                task_id="land",
                destination=f"{self._bucket}/{name}",
                object_storage_conn_id="storage",
                outlets=[Asset(f"{self._bucket}/{name}")],
                **arguments,
            )

        tasks = {rows: self._control.add_task(lots=[rows])["task_id"] for rows in (1_000, 10_000)}
        # the very first run also gets the token, so it is not counted
        self.run(start(self._control.add_task()["task_id"]))
        yield START, self.run(start(tasks[1_000]))
        self._control.advance(3600)
        yield (
            WAIT,
            self.run(
                lambda: WebCollectTaskStatusSensor(
                    task_id="wait", collection_task_id=tasks[10_000], deferrable=True
                )
            ),
        )
        yield "landing, 10,000 rows", self.run(land("plain", collection_task_id=tasks[10_000]))
        marked = land("marked", collection_task_id=tasks[10_000], mark_exported=True)
        yield "landing, 10,000 rows, with mark", self.run(marked)
        yield "landing, nothing new, with mark", self.run(marked)
        self._control.grow(tasks[10_000], 10_000)
        yield MARKED, self.run(marked)
        self._control.grow(tasks[10_000], 10_000)
        yield UNMARKED, self.run(land("marked", collection_task_id=tasks[10_000]))
        self._control.grow(tasks[10_000], 10_000)
        at_once = land("marked", collection_task_id=tasks[10_000], mark_exported=True, late_rows_delay=0)
        yield "the same with mark and late_rows_delay=0", self.run(at_once)
        ids = [self._control.add_task(lots=[10_000])["task_id"] for _ in range(SOURCES)]
        yield (
            f"landing, {SOURCES} sources of 10,000 rows, with mark",
            self.run(land("many", sources=ids, mark_exported=True)),
        )


@contextlib.contextmanager
def counting() -> Iterator[Counting]:
    """Run an Airflow with an empty database, a sandbox and an S3 server while the block runs.

    Airflow must not have been imported yet.
    """
    from tests.storages import s3_server

    options = ["--no-enforce-limits", "--speed", "1000", "--stale-seconds", "0"]
    options += ["--row-bytes", str(ROW_BYTES)]
    requests: Counter[str] = Counter()

    def take(record: logging.LogRecord) -> bool:
        if line := re.search(r'"?([A-Z]+) /\S* HTTP', record.getMessage()):
            requests[line[1]] += 1
        return False

    logging.getLogger("werkzeug").addFilter(take)
    with tempfile.TemporaryDirectory() as home, sandbox(*options) as server, s3_server() as storage:
        os.environ |= {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        }
        from tests.airflow.dag_runs import make_database

        make_database(home, Path(home) / "empty.db")
        _add_connections(server.url, storage.options)
        yield Counting(Control(server.url), "s3://landings", storage.options, requests)


def _add_connections(url: str, storage: dict[str, str]) -> None:
    from airflow.models import Connection
    from airflow.utils.session import create_session

    extra = {"endpoint_url": storage["endpoint_url"], "region_name": "us-east-1"}
    service: dict[str, Any] = {"login": demo.USERNAME, "password": demo.PASSWORD, "host": url}
    keys: dict[str, Any] = {
        "login": storage["key"],
        "password": storage["secret"],
        "extra": json.dumps(extra),
    }
    with create_session() as session:
        session.add(Connection("webcollect_default", "webcollect", **service))
        session.add(Connection("storage", "aws", **keys))


def _resource(url: str) -> str:
    """Return the resource of a request, without ids."""
    parts = [part for part in url.split("/") if part]
    if parts[0] == "task-instances":
        return f"task-instances/{parts[-1]}"
    return parts[0]


def _stored() -> tuple[Counter[str], Counter[str]]:
    """Return the number of rows, and the bytes of their values, of each of the tables."""
    from airflow.utils.session import create_session
    from sqlalchemy import text

    rows: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    with create_session() as session:
        for table, size in TABLES.items():
            query = f"select count(*), coalesce(sum({size}), 0) from {table}"  # noqa: S608
            rows[table], sizes[table] = session.execute(text(query)).one()
    return rows, sizes


def count() -> Costs:
    """Count the costs, print them, and return a summary."""
    with counting() as running:
        counted = dict(running.all())
        _print(counted)
        print(f"\nEach part adds {running.bytes_per_part()} bytes to the manifest.")
    pages = 10_000 // MAX_DATA_SIZE
    return Costs(
        start=counted[START].service.total(),
        marked=counted[MARKED].service.total() - pages,
        unmarked=counted[UNMARKED].service.total() - pages,
        start_writes=counted[START].writes,
        wait_writes=counted[WAIT].writes,
        landing_writes=counted[MARKED].writes,
    )


def _print(counted: dict[str, Counts]) -> None:
    rows = []
    for name, cost in counted.items():
        requests = cost.service.total(), cost.storage.total()
        airflow = cost.airflow.total() - cost.writes, cost.writes
        rows.append(
            [name, *requests, *airflow, cost.rows["xcom"], cost.sizes["xcom"], cost.sizes["asset_event"]]
        )
    table(
        "  | requests to the service | S3 | reads from Airflow | writes | XComs | their bytes | asset event",
        rows,
    )
    for name in (START, WAIT, MARKED):
        print(f"\n{name}:")
        cost = counted[name]
        for numbers in (cost.service, cost.storage, cost.airflow, +cost.rows):
            if numbers:
                print(" ", ", ".join(f"{what} {number}" for what, number in sorted(numbers.items())))
