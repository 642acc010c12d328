"""A token that ends, or a credential that is replaced, in the middle of a transfer."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.service.settings import Timing
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import FinishedRun, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


def land(sandbox: Sandbox, folder: Path, in_the_middle: Callable[[], None]) -> FinishedRun:
    """Land a task of 200 pages exactly, while something is done after the first 100."""
    task_id = sandbox.control.add_task(lots=[2000])["task_id"]

    def wait_and_do() -> None:
        while sandbox.control.counters().get("/data/all", {}).get(200, 0) < 100:
            time.sleep(0.01)
        in_the_middle()

    thread = threading.Thread(target=wait_and_do)
    thread.start()
    run = run_tasks(
        lambda: WebCollectToObjectStorageOperator(
            task_id="land",
            collection_task_id=task_id,
            destination=f"file://{folder}",
            page_size=10,
            max_part_bytes=10_000,
            retries=2,
            retry_delay=timedelta(0),
        )
    )
    thread.join()
    assert run.states == {"land": "success"}
    manifest = json.loads((folder / "_manifest.json").read_text())
    rows = [
        json.loads(line)
        for part in manifest["parts"]
        for line in (folder / part["name"]).read_bytes().split(b"\n")
        if line
    ]
    assert rows == sandbox.control.true_rows(task_id)
    return run


def test_the_end_of_a_token_costs_no_page_and_one_renewal(sandbox: Sandbox, tmp_path: Path) -> None:
    run = land(sandbox, tmp_path / "rows", sandbox.control.expire_tokens)

    assert run.tries == {"land": 1}
    pages = sandbox.control.counters()["/data/all"]
    assert (pages[200], pages[401]) == (200, 1)
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200, 200]


def test_a_credential_that_a_person_replaces_is_used_by_the_retry(
    sandbox: Sandbox, tmp_path: Path, set_connection: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMING", Timing(adoption=0.1))

    def replace() -> None:
        set_connection(login=sandbox.username, password=sandbox.password, extra={})
        sandbox.control.expire_tokens(refresh_tokens=True)

    run = land(sandbox, tmp_path / "rows", replace)

    assert run.tries == {"land": 2}
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200, 400, 200]
