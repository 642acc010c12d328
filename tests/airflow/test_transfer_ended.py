"""A transfer of many sources whose task is ended: from then on, nothing is sent, committed or marked."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from airflow.providers.common.compat.sdk import AirflowTaskTimeout, ObjectStoragePath

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.job import Job
from airflow_provider_webcollect.landing.manifest import Run, Source
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.service.api.records import DataPage
from airflow_provider_webcollect.service.errors import Stopped
from airflow_provider_webcollect.service.stop import Stop
from airflow_provider_webcollect.transfers.redshift import write_redshift_manifest
from tests.airflow.landings import land, manifest
from tests.interruption import signalled_when

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    # less than a landing waits for a token: one that is not ended must not pass for one that is
    pytest.mark.timeout(60),
]

READ, MARK = "/data/all", "/data/markexported"
#: An answer that has the client wait before it tries again; only the end of the task ends the wait sooner.
LATER = {"status": 429, "headers": {"Retry-After": "20"}}


class Landing:
    """Lands a task of the service, with three pages of rows, as one of many sources."""

    def __init__(self, sandbox: Sandbox, destination: str) -> None:
        self._sandbox = sandbox
        self._destination = destination
        self._task_id = sandbox.control.add_task(lots=[300])["task_id"]

    def end_when(
        self, happened: Callable[[], object], then: Callable[[], object] = lambda: None, **options: Any
    ) -> None:
        """Begin, and end Airflow's task once something has happened."""
        # on Airflow 2 it comes through
        with signalled_when(happened, AirflowTaskTimeout), contextlib.suppress(AirflowTaskTimeout):
            run = land(self._destination, sources=[self._task_id], **options)
            assert run.states == {"land": "failed"}
        then()
        for thread in threading.enumerate():
            if thread.name.startswith("webcollect-land"):
                thread.join()

    def requests(self, path: str) -> int:
        """Return how many requests of a path the service has answered."""
        return len(self._sandbox.control.requests(path))

    def committed(self) -> dict[str, Any] | None:
        """Return the manifest, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            return manifest(f"{self._destination}/{self._task_id}")
        return None


@pytest.fixture
def landing(sandbox: Sandbox, destination: str) -> Landing:
    """A landing that is ended by Airflow."""
    return Landing(sandbox, destination)


def test_a_page_is_not_asked_for_again(sandbox: Sandbox, landing: Landing) -> None:
    sandbox.control.fail(READ, after=1, **LATER)
    landing.end_when(lambda: landing.requests(READ) == 2)

    assert landing.requests(READ) == 2
    assert landing.committed() is None


def test_a_page_that_waits_for_its_turn_is_not_asked_for(
    sandbox: Sandbox, set_connection: Callable[..., None], landing: Landing
) -> None:
    set_connection(extra={"access_token": sandbox.access_token, "requests_per_second": 0.05})
    landing.end_when(lambda: landing.requests(READ) == 1)

    assert landing.requests(READ) == 1
    assert landing.committed() is None


def test_nothing_is_asked_for_with_a_token_that_comes_later(
    sandbox: Sandbox, set_connection: Callable[..., None], landing: Landing
) -> None:
    set_connection(extra={"refresh_token": sandbox.refresh_token, "token_refresh": "keeper"})
    landing.end_when(
        lambda: any(thread.name == "webcollect-land" for thread in threading.enumerate()),
        then=WebCollectHook().refresh_token,
    )

    assert (landing.requests("/token"), landing.requests(READ)) == (1, 0)
    assert landing.committed() is None


def test_a_mark_is_not_sent_again(sandbox: Sandbox, landing: Landing) -> None:
    sandbox.control.fail(MARK, **LATER)
    landing.end_when(lambda: landing.requests(MARK) == 1, mark_exported=True)

    assert landing.requests(MARK) == 1
    found = landing.committed()
    # it was committed before
    assert found is not None
    assert found["exported_at"] is None


def test_the_manifest_for_redshift_is_not_written_over_that_of_a_retry(tmp_path: Path) -> None:
    stop = Stop()
    stop.set()
    job = Job(
        source=Source(collection_task_id="t"),
        folder=Folder(fsspec.filesystem("file"), str(tmp_path)),
        run=Run(dag_id="d", task_id="t", run_id="r"),
        fetch=lambda offset: DataPage(offset=0, total=0, rest_total=0, rows=[]),
        stop=stop,
    )
    with pytest.raises(Stopped):
        write_redshift_manifest(job, ObjectStoragePath("s3://bucket/landed"), [])
    assert list(tmp_path.iterdir()) == []
