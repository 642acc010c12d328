"""The operators that verify and clean landings."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectCleanLandingOperator,
    WebCollectVerifyLandingOperator,
)
from tests.airflow.executions import Task, execute, on_sandbox
from tests.airflow.landings import Landing, manifest, transfer

pytestmark = on_sandbox()

LEFTOVER = "part-00009-0badcafe.jsonl"


def verify(destination: Any) -> dict[str, Any]:
    return dict(execute(WebCollectVerifyLandingOperator(task_id="verify", destination=destination)))


def test_verify_says_what_has_landed(source: Task, destination: str) -> None:
    summary = transfer(destination, source, run_id="r1")
    landed = manifest(destination)
    assert verify(summary["manifest"]) == {
        "destination": destination,
        "commit": 1,
        "rows": 400,
        "bytes": landed["bytes"],
        "parts": 1,
        "new_parts": 1,
        "run_id": "r1",
        "finished_at": landed["finished_at"],
    }
    for url in (destination, ObjectStoragePath(destination), destination.removeprefix("file://")):
        assert verify(url)["rows"] == 400


def test_all_damage_is_named_and_not_retried(landing: Landing) -> None:
    landing.transfer(max_part_bytes=1)
    first, second, *_ = (part["name"] for part in landing.manifest()["parts"])
    folder = Path(landing.destination.removeprefix("file://"))
    (folder / first).unlink()
    (folder / second).write_bytes(b"")
    with pytest.raises(AirflowFailException, match=f"{first} is missing") as failed:
        verify(landing.destination)

    assert f"{second} has 0 bytes instead of" in str(failed.value)


@pytest.mark.parametrize("dry_run", [True, False])
def test_clean_removes_old_files(landing: Landing, dry_run: bool, caplog: pytest.LogCaptureFixture) -> None:
    landing.transfer()
    # what a killed process has left
    left = Path(landing.destination.removeprefix("file://")) / LEFTOVER
    left.write_bytes(b"rows")
    then = time.time() - 2 * 24 * 60 * 60
    os.utime(left, (then, then))
    caplog.set_level("INFO")
    where = "{{ params.folder }}"
    clean = WebCollectCleanLandingOperator(task_id="clean", destination=where, dry_run=dry_run)

    removed = execute(clean, params={"folder": landing.destination})
    assert removed == {"files": 1, "bytes": 4, "dry_run": dry_run}
    assert left.exists() is dry_run
    assert f"{'Would remove' if dry_run else 'Removed'} {LEFTOVER} (4 bytes)" in caplog.text
    assert verify(landing.destination)["rows"] == 400
