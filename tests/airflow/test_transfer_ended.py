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


@pytest.fixture
def collected(sandbox: Sandbox) -> str:
    """A task of the service with three pages of rows."""
    task_id: str = sandbox.control.add_task(lots=[300])["task_id"]
    return task_id


@pytest.fixture
def land_until(sandbox: Sandbox, destination: str, collected: str) -> Callable[..., None]:
    """Lands the task as one of many sources, and ends Airflow's task once something has happened."""

    def land_until(
        happened: Callable[[], object], then: Callable[[], object] = lambda: None, **options: Any
    ) -> None:
        # on Airflow 2 it comes through
        with signalled_when(happened, AirflowTaskTimeout), contextlib.suppress(AirflowTaskTimeout):
            run = land(destination, sources=[collected], **options)
            assert run.states == {"land": "failed"}
        then()
        for thread in threading.enumerate():
            if thread.name.startswith("webcollect-land"):
                thread.join()

    return land_until


@pytest.fixture
def asked(sandbox: Sandbox) -> Callable[[str], int]:
    """Gives how many requests of a path the service has answered."""
    return lambda path: len(sandbox.control.requests(path))


def committed(destination: str, task_id: str) -> dict[str, Any] | None:
    """Return the manifest of a source, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        return manifest(f"{destination}/{task_id}")
    return None


def test_a_page_is_not_asked_for_again(
    sandbox: Sandbox,
    destination: str,
    collected: str,
    land_until: Callable[..., None],
    asked: Callable[[str], int],
) -> None:
    sandbox.control.fail(READ, after=1, **LATER)
    land_until(lambda: asked(READ) == 2)

    assert asked(READ) == 2
    assert committed(destination, collected) is None


def test_a_page_that_waits_for_its_turn_is_not_asked_for(
    sandbox: Sandbox,
    set_connection: Callable[..., None],
    destination: str,
    collected: str,
    land_until: Callable[..., None],
    asked: Callable[[str], int],
) -> None:
    set_connection(extra={"access_token": sandbox.access_token, "requests_per_second": 0.05})
    land_until(lambda: asked(READ) == 1)

    assert asked(READ) == 1
    assert committed(destination, collected) is None


def test_nothing_is_asked_for_with_a_token_that_comes_later(
    sandbox: Sandbox,
    set_connection: Callable[..., None],
    destination: str,
    collected: str,
    land_until: Callable[..., None],
    asked: Callable[[str], int],
) -> None:
    set_connection(extra={"refresh_token": sandbox.refresh_token, "token_refresh": "keeper"})
    land_until(
        lambda: any(thread.name == "webcollect-land" for thread in threading.enumerate()),
        then=WebCollectHook().refresh_token,
    )

    assert (asked("/token"), asked(READ)) == (1, 0)
    assert committed(destination, collected) is None


def test_a_mark_is_not_sent_again(
    sandbox: Sandbox,
    destination: str,
    collected: str,
    land_until: Callable[..., None],
    asked: Callable[[str], int],
) -> None:
    sandbox.control.fail(MARK, **LATER)
    land_until(lambda: asked(MARK) == 1, mark_exported=True)

    assert asked(MARK) == 1
    found = committed(destination, collected)
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
