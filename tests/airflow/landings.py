"""Running the transfer, and reading what it has landed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import fsspec
from airflow.providers.common.compat.sdk import Asset

from airflow_provider_webcollect.sandbox import Control, Sandbox
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import FinishedRun, run_tasks
from tests.airflow.executions import execute

#: Options of the transfer: into a Delta Lake table; with the default mode, in which a landing grows.
TABLE: dict[str, Any] = {"table_format": "delta"}
GROWING: dict[str, Any] = {"mode": None}


def make_transfer(
    destination: Any, source: dict[str, Any] | None = None, **arguments: Any
) -> WebCollectToObjectStorageOperator:
    """Return the transfer, of the task ``source`` if it is given; by default, a full landing."""
    usual = {"destination": destination, "mode": "full", "late_rows_delay": 0, "page_size": 100}
    if source is not None:
        usual["collection_task_id"] = source["task_id"]
    return WebCollectToObjectStorageOperator(task_id="land", **{**usual, **arguments})


def land(destination: Any, source: dict[str, Any] | None = None, **arguments: Any) -> FinishedRun:
    """Run the transfer as a task of a DAG run."""
    return run_tasks(lambda: make_transfer(destination, source, **arguments))


def transfer(
    destination: Any,
    source: dict[str, Any] | None = None,
    *,
    tries: int = 1,
    run_id: str | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Execute the transfer without a DAG run, and return its summary.

    :param tries: see :func:`~tests.airflow.executions.execute`, also for ``run_id``.
    """
    operator = make_transfer(destination, source, **arguments)
    return dict(execute(operator, tries=tries, run_id=run_id))


def reported(destination: str, source: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    """Execute the transfer without a DAG run, and return the extra of its asset event."""
    asset, extra = Asset(f"{destination}-asset"), dict[str, Any]()
    operator = make_transfer(destination, source, outlets=[asset], **arguments)
    execute(operator, outlet_events={asset: SimpleNamespace(extra=extra)})
    return extra


@dataclass(frozen=True)
class Landing:
    """A collection task, and the folder or table that its rows land in."""

    sandbox: Sandbox
    task: dict[str, Any]
    destination: str

    @property
    def control(self) -> Control:
        return self.sandbox.control

    @property
    def task_id(self) -> str:
        return str(self.task["task_id"])

    def transfer(self, **arguments: Any) -> dict[str, Any]:
        return transfer(self.destination, self.task, **arguments)

    def run(self, **arguments: Any) -> FinishedRun:
        return land(self.destination, self.task, **arguments)

    def grow(self, rows: int = 30) -> None:
        self.control.grow(self.task_id, rows)

    def truth(self, lotno: str | None = None) -> list[dict[str, Any]]:
        return self.control.true_rows(self.task_id, lotno)

    def manifest(self) -> dict[str, Any]:
        return manifest(self.destination)

    def rows(self) -> list[dict[str, Any]]:
        return landed(self.destination)

    def table(self) -> list[dict[str, Any]]:
        return table_rows(self.destination)


def without_duration(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary without its duration, which differs from attempt to attempt."""
    return {name: value for name, value in summary.items() if name != "duration"}


def manifest(destination: str, **storage: Any) -> dict[str, Any]:
    """Read the manifest of a landing.

    :param storage: options with which fsspec reaches the storage.
    """
    with fsspec.open(f"{destination}/_manifest.json", **storage) as file:
        return dict(json.loads(file.read()))


def landed(destination: str, **storage: Any) -> list[dict[str, Any]]:
    """Read JSON lines as any reader would: by the manifest alone, checking each part's digest."""
    rows = []
    for part in manifest(destination, **storage)["parts"]:
        with fsspec.open(f"{destination}/{part['name']}", **storage) as file:
            content = file.read()
        assert hashlib.sha256(content).hexdigest() == part["sha256"]
        rows += [json.loads(line) for line in content.splitlines()]
    return rows


def rows_at(uris: list[str]) -> list[dict[str, Any]]:
    """Read JSON lines from files."""
    rows = []
    for uri in uris:
        with fsspec.open(uri) as file:
            rows += [json.loads(line) for line in file.read().splitlines()]
    return rows


def table_rows(destination: str, storage_options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Read a Delta Lake table with `deltalake`, and return its rows in the order of the source.

    :param storage_options: options with which `deltalake` reaches the storage.
    """
    from deltalake import DeltaTable

    rows = DeltaTable(destination, storage_options=storage_options).to_pyarrow_table().to_pylist()
    # ids such as 000001-12
    return sorted(rows, key=lambda row: [int(number) for number in row["id"].split("-")])
