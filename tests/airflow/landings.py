"""Running the transfer as a task of a DAG run, and reading what it has landed."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import fsspec

from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import run_tasks

if TYPE_CHECKING:
    from tests.airflow.dag_runs import FinishedRun

RETRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(0)}


def land(destination: Any, source: dict[str, Any] | None = None, **arguments: Any) -> FinishedRun:
    """Run the transfer, of the task ``source`` if it is given."""
    usual: dict[str, Any] = {"destination": destination, "settle": 0, "page_size": 100}
    if source is not None:
        usual["collection_task_id"] = source["task_id"]
    return run_tasks(lambda: WebCollectToObjectStorageOperator(task_id="land", **{**usual, **arguments}))


def manifest(destination: str, **storage: Any) -> dict[str, Any]:
    """Read what a landing committed.

    :param storage: what fsspec needs to reach it.
    """
    with fsspec.open(f"{destination}/_manifest.json", **storage) as file:
        return json.loads(file.read())


def landed(destination: str, **storage: Any) -> list[dict[str, Any]]:
    """Read JSON lines as any reader would: by the manifest alone, checking each part's digest."""
    rows = []
    for part in manifest(destination, **storage)["parts"]:
        with fsspec.open(f"{destination}/{part['name']}", **storage) as file:
            content = file.read()
        assert hashlib.sha256(content).hexdigest() == part["sha256"]
        rows += [json.loads(line) for line in content.splitlines()]
    return rows
