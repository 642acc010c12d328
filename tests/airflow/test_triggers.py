"""The triggers on an event loop, many at a time, as in a triggerer; and the feed that they share."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
import pytest
import requests

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.sandbox import Sandbox, Settings
from airflow_provider_webcollect.service.client import AsyncClient
from airflow_provider_webcollect.service.settings import ClientTiming
from airflow_provider_webcollect.triggers.webcollect import (
    WebCollectCapacityTrigger,
    WebCollectSubTaskStatusTrigger,
    WebCollectTaskStatusTrigger,
)
from airflow_provider_webcollect.waits import shared_feed
from tests.airflow.executions import Connect, Task, on_sandbox
from tests.airflow.waits import STATUS_PATHS, for_subtasks, for_task, other_tasks, outcome, until
from tests.interruption import PATIENCE
from tests.simulation.clock import Turns

pytestmark = on_sandbox(stale_seconds=0, run_seconds=10_000)

STATUS, SUBTASKS = STATUS_PATHS.values()
COUNTS = "/cloudextraction/task/stats"
CONN_ID = "webcollect_default"
Make = Callable[..., WebCollectTaskStatusTrigger | WebCollectSubTaskStatusTrigger]


async def polls(sandbox: Sandbox, number: int) -> None:
    """Wait until the service got ``number`` status queries, of tasks and of sub-tasks."""
    await until(lambda: sum(len(sandbox.control.requests(path)) for path in (STATUS, SUBTASKS)) >= number)


@pytest.fixture
def running(sandbox: Sandbox) -> dict[str, Any]:
    return sandbox.control.add_task(state="Extracting", subtasks=2)


@pytest.fixture(autouse=True)
async def nothing_is_left_behind(sandbox: Sandbox) -> AsyncIterator[None]:
    """Check after every test that no poll is left and no connection is open."""
    before = asyncio.all_tasks()
    yield
    port = int(sandbox.url.rpartition(":")[2])
    await until(lambda: not other_tasks(before) and not connections_to(port))


def connections_to(port: int) -> list[Any]:
    """Return this process's open connections to a port."""
    sockets = psutil.Process().net_connections("tcp")
    return [tcp for tcp in sockets if tcp.raddr and tcp.raddr.port == port and tcp.status == "ESTABLISHED"]


@pytest.mark.parametrize("make", [for_task, for_subtasks])
class TestBothTriggers:
    async def test_a_wait_begins_once_over_restarts(self, make: Make, running: Task) -> None:
        began, trigger = time.time(), make(running)
        _, arguments = trigger.serialize()
        assert began <= arguments["began"] <= time.time()
        assert type(trigger)(**arguments).began == arguments["began"]
        # the time before a restart counts
        again = type(trigger)(**arguments | {"began": began - 3600, "timeout": 3599.0})
        assert (await outcome(again))["outcome"] == "timeout"

    async def test_what_has_happened_while_the_triggerer_was_down_counts(
        self, make: Make, sandbox: Sandbox
    ) -> None:
        ended = sandbox.control.add_task(state="Finished", subtasks=2, lots=[2])
        _, arguments = make(ended).serialize()
        late = arguments | {"began": time.time() - 3600, "timeout": 3599.0}
        assert (await outcome(type(make(ended))(**late)))["outcome"] == "done"

    async def test_a_wrong_extra_is_refused(self, make: Make, running: Task, set_connection: Connect) -> None:
        set_connection(extra={"read_timeout": "soon"})
        for event in await asyncio.gather(*(outcome(make(running)) for _ in range(3))):
            assert (event["outcome"], event["permanent"]) == ("error", True)
            assert "read_timeout" in event["reason"]

    @pytest.mark.parametrize("polled", [0, 2])
    async def test_a_cancelled_trigger_leaves_nothing_behind(
        self, make: Make, running: Task, sandbox: Sandbox, polled: int
    ) -> None:
        waiting = asyncio.create_task(outcome(make(running)))
        await asyncio.sleep(0)
        await polls(sandbox, polled)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.webcollect_sandbox(enforce_limits=True)
async def test_two_hundred_waits_share_their_polls(sandbox: Sandbox, set_connection: Connect) -> None:
    set_connection(extra={"refresh_token": sandbox.refresh_token, "status_batch_size": 50})
    tasks = [sandbox.control.add_task(state="Extracting") for _ in range(200)]
    began = time.monotonic()
    waits = [asyncio.create_task(outcome(for_task(task, poke_interval=1))) for task in tasks]
    # each round is four requests; wait for a second round
    await polls(sandbox, 8)
    sandbox.control.advance(10_000)
    events = await asyncio.gather(*waits)
    rounds = int(time.monotonic() - began) + 1

    assert {event["outcome"] for event in events} == {"done"}
    assert [event["records"][0]["task_id"] for event in events] == [task["task_id"] for task in tasks]
    # without sharing, they would make 200 requests a round
    assert 8 <= len(sandbox.control.requests(STATUS)) <= 9 * rounds
    sizes = [len(json.loads(request["body"])["taskIds"]) for request in sandbox.control.requests(STATUS)]
    assert max(sizes) == 50
    assert {request["status"] for request in sandbox.control.requests()} == {200}
    assert len(sandbox.control.requests("/token")) == 1


def for_capacity(task: Task) -> WebCollectCapacityTrigger:
    condition = {"max_active_tasks": 3}
    return WebCollectCapacityTrigger(condition=condition, webcollect_conn_id=CONN_ID, poke_interval=0.2)


@pytest.mark.parametrize(("make", "path"), [(for_subtasks, SUBTASKS), (for_capacity, COUNTS)])
async def test_waits_share_their_responses(sandbox: Sandbox, make: Callable[..., Any], path: str) -> None:
    task = sandbox.control.add_task(lots=[1], subtasks=45)
    events = await asyncio.gather(*(outcome(make(task)) for _ in range(100)))
    assert {event["outcome"] for event in events} == {"done"}
    assert {len(event["records"]) for event in events if make is for_subtasks} <= {45}
    # without sharing, they would make 100 or 300; the number of polls depends on the machine
    assert len(sandbox.control.requests(path)) < 50


async def test_users_who_waited_go_on_in_turns_of_the_event_loop() -> None:
    entered_in: list[int] = []

    async def use() -> None:
        async with shared_feed(CONN_ID, 0.2):
            entered_in.append(turns.count)
            while len(entered_in) < 100:
                await asyncio.sleep(0)

    async with Turns() as turns:
        await asyncio.gather(*(use() for _ in range(100)))
    assert len(set(entered_in)) == 100


async def use() -> str:
    async with shared_feed(CONN_ID, 0.2):
        return "used"


async def test_a_cancelled_user_leaves_the_opening_to_the_others() -> None:
    users = [asyncio.create_task(use()) for _ in range(3)]
    await asyncio.sleep(0)
    users[0].cancel()
    ended = await asyncio.gather(*users, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    assert ended[1:] == ["used", "used"]


async def test_the_feed_closes_though_its_user_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    closing, go_on, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    aclose = AsyncClient.aclose

    async def slow(client: AsyncClient) -> None:
        closing.set()
        await go_on.wait()
        await aclose(client)
        closed.set()

    monkeypatch.setattr(AsyncClient, "aclose", slow)

    user = asyncio.create_task(use())
    await closing.wait()
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    go_on.set()
    await asyncio.wait_for(closed.wait(), PATIENCE)


async def test_a_result_counts_if_the_feed_closes_after_the_timeout(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    aclose, loop = AsyncClient.aclose, asyncio.get_running_loop()
    time = loop.time

    async def slow(client: AsyncClient) -> None:
        loop.time = lambda: time() + PATIENCE / 2  # type: ignore[method-assign]
        # timers that are due by then go first
        await asyncio.sleep(0.01)
        await aclose(client)

    monkeypatch.setattr(AsyncClient, "aclose", slow)
    payload = await wait_for(sandbox.control.add_task(lots=[1])["task_id"], timeout=PATIENCE / 4)
    assert payload["outcome"] == "done"


async def test_a_connection_is_read_again_when_a_triggerer_starts(
    sandbox: Sandbox,
    set_connection: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Airflow 3 raises the same error while its API server or a secrets backend is down
    monkeypatch.delenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
    task_id = sandbox.control.add_task(state="Finished")["task_id"]
    # long enough for the connection to be set before the last try
    waits = [asyncio.create_task(wait_for(task_id, poke_interval=1)) for _ in range(3)]
    await until(lambda: "The connection cannot be read; the next attempt follows" in caplog.text)
    set_connection(extra={"access_token": sandbox.access_token})
    events = await asyncio.wait_for(asyncio.gather(*waits), PATIENCE)
    assert [event["outcome"] for event in events] == ["done"] * 3


class TestChangedConnection:
    """A person changes the connection while a wait uses the feed."""

    @pytest.fixture
    async def waiting(
        self, sandbox: Sandbox, set_connection: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[asyncio.Task[Any]]:
        """A wait that has polled once, with a credential of its own."""
        monkeypatch.setattr(connection, "TIMING", ClientTiming(adoption=0.2, youth=1.0))
        set_connection(extra={"refresh_token": new_refresh_token(sandbox)})
        task = sandbox.control.add_task(state="Extracting")
        waiting = asyncio.create_task(wait_for(task["task_id"]))
        await polls(sandbox, 1)
        yield waiting
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    async def ends(self, waiting: asyncio.Task[Any], sandbox: Sandbox) -> None:
        """End the run, and check that the wait ends with it."""
        sandbox.control.advance(20_000)
        assert (await asyncio.wait_for(waiting, PATIENCE))["outcome"] == "done"

    @pytest.mark.beyond_the_contract
    async def test_a_new_credential_is_used_once_the_old_one_is_revoked(
        self, sandbox: Sandbox, set_connection: Connect, waiting: asyncio.Task[Any]
    ) -> None:
        sandbox.control.expire_tokens(refresh_tokens=True)
        set_connection(extra={"refresh_token": new_refresh_token(sandbox)})
        another = asyncio.create_task(wait_for(sandbox.control.add_task(state="Finished")["task_id"]))
        assert (await asyncio.wait_for(another, PATIENCE))["outcome"] == "done"
        await self.ends(waiting, sandbox)

    @pytest.mark.beyond_the_contract
    async def test_the_old_credential_does_not_lock_the_new_one_out(
        self, sandbox: Sandbox, set_connection: Connect, waiting: asyncio.Task[Any]
    ) -> None:
        set_connection(extra={"refresh_token": new_refresh_token(sandbox)})
        assert await asyncio.to_thread(work)
        sandbox.control.expire_tokens()  # so that the wait tries the old credential
        await self.ends(waiting, sandbox)
        assert await asyncio.to_thread(work)

    async def test_a_token_that_is_dropped_ends_no_wait(
        self, sandbox: Sandbox, waiting: asyncio.Task[Any]
    ) -> None:
        def is_answered(status: int) -> bool:
            assert not waiting.done()
            if status == 401:
                # also a token that was renewed since
                sandbox.control.expire_tokens()
            return any(request["status"] == status for request in sandbox.control.requests(STATUS))

        for status in (401, 401, 401, 200):
            sandbox.control.clear_requests()
            await until(functools.partial(is_answered, status))
        await self.ends(waiting, sandbox)

    async def test_a_new_credential_is_used_while_a_refusal_is_confirmed(
        self, sandbox: Sandbox, set_connection: Connect, waiting: asyncio.Task[Any]
    ) -> None:
        refusal: dict[str, Any] = {"times": 2, "status": 403, "code": "PermissionDenied", "message": "plan"}
        sandbox.control.fail(STATUS, **refusal)
        await until(lambda: len(refused(sandbox)) == 2)
        sandbox.control.fail(STATUS, **refusal)
        set_connection(extra={"refresh_token": new_refresh_token(sandbox)})
        await until(lambda: len(refused(sandbox)) == 4)
        await self.ends(waiting, sandbox)

    async def test_a_service_that_has_moved_is_found(
        self, sandbox: Sandbox, set_connection: Connect, waiting: asyncio.Task[Any]
    ) -> None:
        sandbox.control.fail("*", times=None, status=403, code="Forbidden", message="we have moved")
        with Sandbox(Settings(stale_seconds=0)) as elsewhere:
            set_connection(host=elsewhere.url, extra={"refresh_token": elsewhere.refresh_token})
            await polls(elsewhere, 1)

    async def test_a_connection_that_has_gone_is_used_as_it_was(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, waiting: asyncio.Task[Any]
    ) -> None:
        monkeypatch.delenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
        sandbox.control.fail(STATUS, times=1, status=503)
        await self.ends(waiting, sandbox)


def refused(sandbox: Sandbox) -> list[Any]:
    return [request for request in sandbox.control.requests(STATUS) if request["status"] == 403]


def new_refresh_token(sandbox: Sandbox) -> str:
    """Sign in, as a person does, and return the refresh token."""
    grant = {"grant_type": "password", "username": sandbox.username, "password": sandbox.password}
    answer = requests.post(f"{sandbox.url}/token", json=grant, timeout=PATIENCE)
    return str(answer.json()["data"]["refresh_token"])


async def wait_for(task_id: str, **arguments: Any) -> dict[str, Any]:
    return await outcome(for_task({"task_id": task_id}, **arguments))


def work() -> bool:
    """Ask the service, as a new worker does."""
    hook = WebCollectHook()
    try:
        return bool(hook.get_running_counts())
    finally:
        hook.client.close()
