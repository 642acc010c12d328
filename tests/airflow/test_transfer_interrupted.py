"""A transfer whose task is ended: from then on, nothing is sent, committed or marked; or whose token ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.write.job import Observer
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sandbox.state import Entry, RequestLog
from airflow_provider_webcollect.service.settings import ClientTiming
from tests.airflow.executions import Connect, Task, on_sandbox
from tests.airflow.landings import Landing, landed, manifest, transfer
from tests.interruption import PATIENCE, signalled_when, until_no_thread

pytestmark = on_sandbox()

READ, MARK = "/data/all", "/data/markexported"


def sent(landing: Landing, path: str) -> int:
    """Return how many requests of a path the service has answered."""
    return len(landing.sandbox.control.requests(path))


def end_when(
    landing: Landing,
    happened: Callable[[], object],
    then: Callable[[], object] = lambda: None,
    **options: Any,
) -> dict[str, Any] | None:
    """Land a task as one of many sources, and end Airflow's task once something has happened.

    :return: what was committed, if anything was.
    """
    with signalled_when(happened, AirflowTaskTimeout), pytest.raises(AirflowTaskTimeout):
        transfer(landing.destination, sources=[landing.task_id], **options)
    then()
    until_no_thread("webcollect-land")
    with contextlib.suppress(FileNotFoundError):
        return manifest(f"{landing.destination}/{landing.task_id}")
    return None


def test_nothing_is_asked_for_with_a_token_that_comes_later(
    sandbox: Sandbox, set_connection: Connect, landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    # longer than the test waits for its end: a landing that is not ended must not pass for one that is
    monkeypatch.setattr(connection, "TIMING", ClientTiming(patience=2 * PATIENCE))
    set_connection(extra={"refresh_token": sandbox.refresh_token, "token_refresh": "keeper"})
    committed = end_when(
        landing,
        lambda: any(thread.name == "webcollect-land" for thread in threading.enumerate()),
        then=WebCollectHook().refresh_token,
    )
    assert (sent(landing, "/token"), sent(landing, READ), committed) == (1, 0, None)


def test_nothing_is_committed_or_marked_though_all_rows_were_there(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    # the mark waits for late ones
    monkeypatch.setattr(Observer, "on_late_rows_wait", lambda observer, seconds: waiting.set())
    committed = end_when(landing, waiting.is_set, mark_exported=True, late_rows_delay=PATIENCE)
    assert (sent(landing, MARK), committed) == (0, None)


@pytest.fixture
def at_page_20(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Does something while the twentieth page is answered."""
    # else a slow machine asks for the next page meanwhile
    monkeypatch.setattr(connection, "TIMING", ClientTiming(adoption=0.1, slow_response=PATIENCE))
    add = RequestLog.add

    def plan(action: Callable[[], None]) -> None:
        def add_and_act(log: RequestLog, entry: Entry) -> None:
            add(log, entry)
            if entry.endpoint == READ and log.counters()[READ].total() == 20:
                action()

        monkeypatch.setattr(RequestLog, "add", add_and_act)

    return plan


#: That a task of 400 rows has 40 of.
PAGES = {"page_size": 10, "max_part_bytes": 10_000}


def test_the_end_of_a_token_costs_no_page_and_one_renewal(
    sandbox: Sandbox, source: Task, destination: str, at_page_20: Callable[..., None]
) -> None:
    at_page_20(sandbox._state.tokens.expire)
    transfer(destination, source, **PAGES)
    assert landed(destination) == sandbox.control.true_rows(source["task_id"])
    pages = sandbox.control.counters()[READ]
    assert (pages[200], pages[401]) == (40, 1)
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200, 200]


def test_a_credential_that_a_person_replaces_is_used_by_the_retry(
    sandbox: Sandbox, source: Task, destination: str, set_connection: Connect, at_page_20: Callable[..., None]
) -> None:
    def replace() -> None:
        set_connection(login=sandbox.username, password=sandbox.password, extra={})
        sandbox._state.tokens.expire(refresh_tokens=True)

    at_page_20(replace)
    transfer(destination, source, tries=2, **PAGES)

    assert landed(destination) == sandbox.control.true_rows(source["task_id"])
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200, 400, 200]
