"""The triggers on an event loop, many at a time, as in a triggerer."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_provider_webcollect.triggers.webcollect import (
    WebCollectSubTaskStatusTrigger,
    WebCollectTaskStatusTrigger,
)
from tests.airflow.waits import STATUS_PATHS, for_subtasks, for_task, other_tasks, outcome, until
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(stale_seconds=0, run_seconds=10_000, enforce_limits=False),
]

STATUS, SUBTASKS = STATUS_PATHS.values()
Trigger = WebCollectTaskStatusTrigger | WebCollectSubTaskStatusTrigger


async def polls(sandbox: Sandbox, number: int) -> None:
    """Wait until the service got ``number`` status queries, of tasks and of sub-tasks."""
    await until(lambda: sum(len(sandbox.control.requests(path)) for path in (STATUS, SUBTASKS)) >= number)


@pytest.fixture
def running(sandbox: Sandbox) -> dict[str, Any]:
    """A task that is extracting."""
    return sandbox.control.add_task(state="Extracting", subtasks=2)


@pytest.fixture(autouse=True)
async def nothing_is_left_behind(sandbox: Sandbox) -> AsyncIterator[None]:
    """At the end of every test no poll goes on and no connection is open."""
    before = asyncio.all_tasks()
    yield
    await until_nothing_goes_on(sandbox, before)


async def until_nothing_goes_on(sandbox: Sandbox, before: set[asyncio.Task[Any]]) -> None:
    """Wait until no tasks of the event loop are left but those from before, and no connection is open."""
    port = int(sandbox.url.rpartition(":")[2])
    await until(lambda: not other_tasks(before) and not connections_to(port))


def connections_to(port: int) -> list[Any]:
    """Return this process's open connections to a port."""
    found = psutil.Process().net_connections("tcp")
    return [each for each in found if each.raddr and each.raddr.port == port and each.status == "ESTABLISHED"]


@pytest.mark.parametrize("make", [for_task, for_subtasks])
class TestBothTriggers:
    def test_a_wait_begins_once_however_often_the_triggerer_restarts(
        self, make: Callable[..., Trigger], running: dict[str, Any]
    ) -> None:
        began = time.time()
        _, arguments = make(running).serialize()

        assert began <= arguments["began"] <= time.time()
        assert type(make(running))(**arguments).began == arguments["began"]

    async def test_the_time_before_a_restart_of_the_triggerer_counts(
        self, make: Callable[..., Trigger], running: dict[str, Any]
    ) -> None:
        _, arguments = make(running).serialize()
        again = type(make(running))(**arguments | {"began": time.time() - 3600, "timeout": 3599.0})

        event = await asyncio.wait_for(outcome(again), PATIENCE)

        assert event["outcome"] == "timeout"

    async def test_the_end_of_a_run_is_its_one_event(
        self, make: Callable[..., Trigger], running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        waiting = asyncio.create_task(outcome(make(running)))
        await polls(sandbox, 2)
        assert not waiting.done()
        sandbox.control.advance(10_000)
        event = await waiting

        assert event["outcome"] == "done"
        assert {record["status"] for record in event["records"]} == {"Finished"}
        assert json.loads(json.dumps(event)) == event

    async def test_a_refusal_by_the_service_is_an_error(
        self, make: Callable[..., Trigger], running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        for path in (STATUS, SUBTASKS):
            sandbox.control.fail(path, status=403, times=None)
        event = await outcome(make(running))

        assert (event["outcome"], event["permanent"]) == ("error", True)
        assert "HTTP 403 PermissionDenied" in event["reason"]

    async def test_a_wrong_connection_is_an_error(
        self, make: Callable[..., Trigger], running: dict[str, Any], set_connection: Callable[..., None]
    ) -> None:
        set_connection(extra={"read_timeout": "soon"})
        events = await asyncio.gather(*(outcome(make(running)) for _ in range(3)))

        assert [(event["outcome"], event["permanent"]) for event in events] == [("error", True)] * 3
        assert "read_timeout" in events[0]["reason"]

    async def test_a_connection_that_is_not_there_breaks_the_trigger(
        self, make: Callable[..., Trigger], running: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
        with pytest.raises(AirflowNotFoundException):
            await outcome(make(running, poke_interval=0.01))

    async def test_a_cancelled_trigger_leaves_nothing_behind(
        self, make: Callable[..., Trigger], running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        before = asyncio.all_tasks()
        waiting = asyncio.create_task(outcome(make(running, poke_interval=0.1)))
        await polls(sandbox, 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until_nothing_goes_on(sandbox, before)
        sandbox.control.clear_requests()
        # in which it would have polled again
        await asyncio.sleep(0.3)

        assert sandbox.control.requests() == []

    async def test_a_trigger_cancelled_at_once_leaves_nothing_behind(
        self, make: Callable[..., Trigger], running: dict[str, Any]
    ) -> None:
        waiting = asyncio.create_task(outcome(make(running)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def test_one_that_leaves_does_not_disturb_the_others(
        self, make: Callable[..., Trigger], running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        staying, leaving = (asyncio.create_task(outcome(make(running))) for _ in range(2))
        await polls(sandbox, 2)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        sandbox.control.advance(10_000)

        assert (await staying)["outcome"] == "done"

    async def test_after_the_last_wait_has_ended_another_one_polls_again(
        self, make: Callable[..., Trigger], running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        sandbox.control.advance(10_000)

        assert (await outcome(make(running)))["outcome"] == "done"
        assert (await outcome(make(running)))["outcome"] == "done"


@pytest.mark.webcollect_sandbox(enforce_limits=True)
async def test_two_hundred_waits_share_their_polls(sandbox: Sandbox) -> None:
    tasks = [sandbox.control.add_task(state="Extracting") for _ in range(200)]
    began = time.monotonic()
    waits = [asyncio.create_task(outcome(for_task(task, poke_interval=1))) for task in tasks]
    # each round is two requests; let there be a second round
    await polls(sandbox, 4)
    sandbox.control.advance(10_000)
    events = await asyncio.gather(*waits)
    rounds = int(time.monotonic() - began) + 1

    assert {event["outcome"] for event in events} == {"done"}
    assert [event["records"][0]["task_id"] for event in events] == [task["task_id"] for task in tasks]
    # each alone they would make 200 requests a round
    assert 4 <= len(sandbox.control.requests(STATUS)) <= 5 * rounds
    assert {request["status"] for request in sandbox.control.requests()} == {200}
    assert len(sandbox.control.requests("/token")) == 1


async def test_waits_for_subtasks_of_one_task_share_their_answers(
    sandbox: Sandbox, running: dict[str, Any]
) -> None:
    sandbox.control.advance(10_000)
    events = await asyncio.gather(*(outcome(for_subtasks(running)) for _ in range(50)))

    assert {event["outcome"] for event in events} == {"done"}
    assert len(sandbox.control.requests(SUBTASKS)) == 1


async def test_a_wait_for_many_tasks_reports_all_of_them(sandbox: Sandbox) -> None:
    tasks = [sandbox.control.add_task(lots=[1]) for _ in range(3)]
    event = await outcome(for_task(tasks[0], task_ids=[task["task_id"] for task in tasks]))

    assert [record["task_id"] for record in event["records"]] == [task["task_id"] for task in tasks]
