"""The operators on what has landed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath

from airflow_provider_webcollect.landing.errors import LandingError
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectAcceptLandingOperator,
    WebCollectCleanLandingOperator,
    WebCollectVerifyLandingOperator,
)
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import run_tasks
from tests.airflow.executions import execute
from tests.airflow.landings import make_transfer, manifest, transfer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

LEFTOVER = "part-00009-0badcafe.jsonl"


def verify(destination: Any) -> dict[str, Any]:
    result: dict[str, Any] = execute(
        WebCollectVerifyLandingOperator(task_id="verify", destination=destination)
    )
    return result


class TestVerify:
    def test_it_says_what_has_landed(self, source: dict[str, Any], destination: str) -> None:
        run = run_tasks(
            lambda: make_transfer(destination, source),
            lambda: WebCollectVerifyLandingOperator(
                task_id="verify", destination="{{ ti.xcom_pull('land')['manifest'] }}"
            ),
        )

        landed = manifest(destination)
        assert run.states == {"land": "success", "verify": "success"}
        assert run.xcoms["verify"] == {
            "destination": destination,
            "commit": 1,
            "rows": 400,
            "bytes": landed["bytes"],
            "parts": 1,
            "new_parts": 1,
            "run_id": run.run_id,
            "finished_at": landed["finished_at"],
        }

    @pytest.mark.parametrize("make", [str, ObjectStoragePath, lambda url: url.removeprefix("file://")])
    def test_the_folder_may_be_a_url_a_path_or_an_object_storage_path(
        self, source: dict[str, Any], destination: str, make: Callable[[str], Any]
    ) -> None:
        transfer(destination, source)

        assert verify(make(destination))["rows"] == 400

    def test_damage_ends_the_task_without_retries_and_names_all_of_it(
        self, source: dict[str, Any], destination: str
    ) -> None:
        transfer(destination, source, max_part_bytes=1)
        first, second, *_ = (part["name"] for part in manifest(destination)["parts"])
        folder = Path(destination.removeprefix("file://"))
        (folder / first).unlink()
        (folder / second).write_bytes(b"")
        with pytest.raises(AirflowFailException, match=f"{first} is missing") as failed:
            verify(destination)

        assert f"{second} has 0 bytes instead of" in str(failed.value)

    def test_a_landing_that_is_not_there_yet_is_left_to_the_retries(self, destination: str) -> None:
        with pytest.raises(LandingError, match="nothing has landed at"):
            verify(destination)


class TestClean:
    @pytest.fixture
    def left(self, source: dict[str, Any], destination: str) -> Path:
        """What a killed process has left beside a landing, two days ago."""
        transfer(destination, source)
        file = Path(destination.removeprefix("file://")) / LEFTOVER
        file.write_bytes(b"rows")
        then = time.time() - 2 * 24 * 60 * 60
        os.utime(file, (then, then))
        return file

    @pytest.mark.parametrize("dry_run", [True, False])
    def test_what_is_older_than_a_day_goes(
        self, left: Path, destination: str, dry_run: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        cleaned = execute(
            WebCollectCleanLandingOperator(
                task_id="clean", destination="{{ params.folder }}", dry_run=dry_run
            ),
            params={"folder": destination},
        )

        assert cleaned == {"files": 1, "bytes": 4, "dry_run": dry_run}
        assert left.exists() is dry_run
        assert f"{'Would remove' if dry_run else 'Removed'} {LEFTOVER} (4 bytes)" in caplog.text
        assert verify(destination)["rows"] == 400


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [
        (WebCollectVerifyLandingOperator, {"destination": ""}),
        (WebCollectAcceptLandingOperator, {"decision": "keep"}),
        (WebCollectAcceptLandingOperator, {"run_id": None, "decision": "discard"}),
        (WebCollectCleanLandingOperator, {"destination": " "}),
        (WebCollectCleanLandingOperator, {"older_than": -1}),
        (WebCollectCleanLandingOperator, {"older_than": "a day"}),
        (WebCollectCleanLandingOperator, {"dry_run": "no"}),
    ],
)
def test_a_wrong_argument_is_an_import_error(operator: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"`{next(iter(wrong))}` is"):
        operator(task_id="wrong", **{"destination": "s3://bucket/folder", **wrong})
