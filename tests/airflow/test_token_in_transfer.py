"""A token that ends in the middle of a transfer."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import run_tasks

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


def test_costs_no_page_and_one_renewal(sandbox: Sandbox, tmp_path: Path) -> None:
    task_id = sandbox.control.add_task(lots=[2000])["task_id"]

    def expire_in_the_middle() -> None:
        while sandbox.control.counters().get("/data/all", {}).get(200, 0) < 100:
            time.sleep(0.01)
        sandbox.control.expire_tokens()

    thread = threading.Thread(target=expire_in_the_middle)
    thread.start()
    run = run_tasks(
        lambda: WebCollectToObjectStorageOperator(
            task_id="land", collection_task_id=task_id, destination=f"file://{tmp_path}/rows", page_size=10
        )
    )
    thread.join()

    assert run.states == {"land": "success"}
    manifest = json.loads((tmp_path / "rows/_manifest.json").read_text())
    rows = [
        json.loads(line)
        for part in manifest["parts"]
        for line in (tmp_path / "rows" / part["name"]).read_bytes().split(b"\n")
        if line
    ]
    assert rows == sandbox.control.true_rows(task_id)
    pages = sandbox.control.counters()["/data/all"]
    assert (pages[200], pages[401]) == (200, 1)
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200, 200]
