"""The feed that all triggers on a connection share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import requests

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.sandbox import Sandbox, Settings
from airflow_provider_webcollect.service.client import AsyncClient
from airflow_provider_webcollect.service.settings import ClientTiming
from airflow_provider_webcollect.waits import SharedFeed
from tests.airflow.waits import for_task, outcome
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

STATUS = "/cloudextraction/statuses/v2"

pytestmark = pytest.mark.usefixtures("airflow_database", "connected")


async def test_thousands_who_waited_for_it_to_open_do_not_all_go_on_in_one_turn_of_the_event_loop() -> None:
    turn = 0
    entered_in: list[int] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def use() -> None:
        async with SharedFeed("webcollect_default", 0.2):
            entered_in.append(turn)
            while len(entered_in) < 100:
                await asyncio.sleep(0)

    turns = asyncio.create_task(count_turns())
    await asyncio.gather(*(use() for _ in range(100)))
    turns.cancel()
    assert len(set(entered_in)) == 100


async def test_a_user_that_is_cancelled_leaves_the_opening_to_the_others() -> None:
    async def use() -> str:
        async with SharedFeed("webcollect_default", 0.2):
            return "used"

    users = [asyncio.create_task(use()) for _ in range(3)]
    await asyncio.sleep(0)
    users[0].cancel()
    ended = await asyncio.gather(*users, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    assert ended[1:] == ["used", "used"]


async def test_a_last_user_that_is_cancelled_while_it_closes_is_cancelled_and_the_feed_closes_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closing, go_on, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    aclose = AsyncClient.aclose

    async def slow(client: AsyncClient) -> None:
        closing.set()
        await go_on.wait()
        await aclose(client)
        closed.set()

    monkeypatch.setattr(AsyncClient, "aclose", slow)

    async def use() -> None:
        async with SharedFeed("webcollect_default", 0.2):
            pass

    user = asyncio.create_task(use())
    await closing.wait()
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    go_on.set()
    await asyncio.wait_for(closed.wait(), PATIENCE)


async def test_a_result_counts_even_if_the_feed_closes_after_the_timeout(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    aclose, loop = AsyncClient.aclose, asyncio.get_running_loop()
    time = loop.time

    async def slow(client: AsyncClient) -> None:
        loop.time = lambda: time() + PATIENCE / 2  # type: ignore[method-assign]
        # what is due by then happens first
        await asyncio.sleep(0.01)
        await aclose(client)

    monkeypatch.setattr(AsyncClient, "aclose", slow)
    payload = await wait_for(sandbox.control.add_task(lots=[1])["task_id"], timeout=PATIENCE / 4)
    assert payload["outcome"] == "done"


@pytest.mark.webcollect_sandbox(enforce_limits=False)
async def test_a_connection_that_cannot_be_read_when_a_triggerer_starts_is_read_again(
    sandbox: Sandbox,
    set_connection: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Airflow 3 says the same while its API server or a secrets backend is away
    monkeypatch.delenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
    task_id = sandbox.control.add_task(state="Finished")["task_id"]
    # long enough for the connection to come before the last try
    waits = [asyncio.create_task(wait_for(task_id, poke_interval=1)) for _ in range(3)]
    while "The connection cannot be read; the next try follows" not in caplog.text:
        await asyncio.sleep(0.02)
    set_connection(extra={"access_token": sandbox.access_token})
    events = await asyncio.wait_for(asyncio.gather(*waits), PATIENCE)
    assert [event["outcome"] for event in events] == ["done"] * 3


class TestChangedConnection:
    """A person puts something else into the connection while a wait is on the feed."""

    pytestmark = pytest.mark.webcollect_sandbox(stale_seconds=0, run_seconds=10_000, enforce_limits=False)

    @pytest.fixture
    async def waiting(
        self,
        sandbox: Sandbox,
        set_connection: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> AsyncIterator[asyncio.Task[Any]]:
        """A wait that has polled once, with a credential of its own."""
        monkeypatch.setattr(connection, "TIMING", ClientTiming(adoption=0.2, youth=1.0))
        set_connection(extra={"refresh_token": new_refresh_token(sandbox)})
        task = sandbox.control.add_task(state="Extracting")
        waiting = asyncio.create_task(wait_for(task["task_id"]))
        while not sandbox.control.requests(STATUS):
            await asyncio.sleep(0.02)
        yield waiting
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    @pytest.mark.beyond_the_contract
    async def test_a_new_credential_is_taken_up_when_the_old_one_is_revoked(
        self, sandbox: Sandbox, set_connection: Callable[..., None], waiting: asyncio.Task[Any]
    ) -> None:
        sandbox.control.expire_tokens(refresh_tokens=True)
        set_connection(extra={"refresh_token": new_refresh_token(sandbox)})
        another = asyncio.create_task(wait_for(sandbox.control.add_task(state="Finished")["task_id"]))
        assert (await asyncio.wait_for(another, PATIENCE))["outcome"] == "done"
        sandbox.control.advance(20_000)
        assert (await asyncio.wait_for(waiting, PATIENCE))["outcome"] == "done"

    @pytest.mark.beyond_the_contract
    async def test_the_old_credential_does_not_lock_the_new_one_out(
        self, sandbox: Sandbox, set_connection: Callable[..., None], waiting: asyncio.Task[Any]
    ) -> None:
        set_connection(extra={"refresh_token": new_refresh_token(sandbox)})
        assert await asyncio.to_thread(work)
        sandbox.control.expire_tokens()  # so that the old one is due
        sandbox.control.advance(20_000)
        assert (await asyncio.wait_for(waiting, PATIENCE))["outcome"] == "done"
        assert await asyncio.to_thread(work)

    async def test_a_token_that_is_dropped_again_and_again_ends_no_wait(
        self, sandbox: Sandbox, waiting: asyncio.Task[Any]
    ) -> None:
        async def until(status: int, meanwhile: Callable[[], None] = lambda: None) -> None:
            """Wait for a query that is answered so."""
            sandbox.control.clear_requests()
            while not any(request["status"] == status for request in sandbox.control.requests(STATUS)):
                assert not waiting.done()
                meanwhile()
                await asyncio.sleep(0.1)

        for _ in range(3):
            # also a token that was renewed since
            await until(401, sandbox.control.expire_tokens)
        await until(200)
        sandbox.control.advance(20_000)
        assert (await asyncio.wait_for(waiting, PATIENCE))["outcome"] == "done"

    async def test_a_new_credential_is_taken_up_while_a_refusal_is_being_confirmed(
        self, sandbox: Sandbox, set_connection: Callable[..., None], waiting: asyncio.Task[Any]
    ) -> None:
        sandbox.control.fail(STATUS, times=2, status=403, code="PermissionDenied", message="plan")
        while len(refused(sandbox)) < 2:
            await asyncio.sleep(0.02)
        sandbox.control.fail(STATUS, times=2, status=403, code="PermissionDenied", message="plan")
        set_connection(extra={"refresh_token": new_refresh_token(sandbox)})
        while len(refused(sandbox)) < 4:
            await asyncio.sleep(0.02)
        sandbox.control.advance(20_000)
        assert (await asyncio.wait_for(waiting, PATIENCE))["outcome"] == "done"

    async def test_a_refusal_is_confirmed_with_the_connection_read_again_each_time(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, waiting: asyncio.Task[Any]
    ) -> None:
        asked_when_read: list[int] = []
        read = WebCollectHook.aload

        async def aload(hook: WebCollectHook) -> None:
            asked_when_read.append(len(refused(sandbox)))
            await read(hook)

        monkeypatch.setattr(WebCollectHook, "aload", aload)
        sandbox.control.fail(STATUS, times=None, status=403, code="PermissionDenied", message="plan")
        event = await asyncio.wait_for(waiting, PATIENCE)
        assert "HTTP 403 PermissionDenied" in event["reason"]
        assert asked_when_read == [1, 2, 3]

    async def test_a_service_that_has_moved_is_found(
        self, sandbox: Sandbox, set_connection: Callable[..., None], waiting: asyncio.Task[Any]
    ) -> None:
        sandbox.control.fail("*", times=None, status=403, code="Forbidden", message="we have moved")
        with Sandbox(Settings(stale_seconds=0)) as elsewhere:
            set_connection(host=elsewhere.url, extra={"refresh_token": elsewhere.refresh_token})
            while not elsewhere.control.requests(STATUS):
                await asyncio.sleep(0.02)

    async def test_a_connection_that_cannot_be_read_again_is_used_as_it_was(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, waiting: asyncio.Task[Any]
    ) -> None:
        monkeypatch.delenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
        sandbox.control.fail(STATUS, times=1, status=503)
        sandbox.control.advance(20_000)
        assert (await asyncio.wait_for(waiting, PATIENCE))["outcome"] == "done"


def refused(sandbox: Sandbox) -> list[Any]:
    """Return the status queries that were refused."""
    return [request for request in sandbox.control.requests(STATUS) if request["status"] == 403]


def new_refresh_token(sandbox: Sandbox) -> str:
    """Sign in, as a person does."""
    answer = requests.post(
        f"{sandbox.url}/token",
        json={"grant_type": "password", "username": sandbox.username, "password": sandbox.password},
        timeout=PATIENCE,
    )
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
