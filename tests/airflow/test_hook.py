"""The hook: its methods pass their arguments on and return the service's answers; its clients.

What each endpoint answers and refuses is tested in `tests/service/test_endpoints.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from airflow_provider_webcollect.hooks.token_store import VariableTokenStore
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import endpoints, models
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import ENDPOINTS, Endpoint
from airflow_provider_webcollect.service.errors import InvalidArgument, TokenUnavailable, WebCollectError
from tests.interruption import PATIENCE
from tests.operations import OPERATIONS, Operation, Scene, each

pytestmark = pytest.mark.usefixtures("airflow_database")


@pytest.mark.parametrize("endpoint", ENDPOINTS[1:], ids=lambda endpoint: endpoint.name)
def test_a_method_documents_each_of_its_arguments(hook: WebCollectHook, endpoint: Endpoint[Any]) -> None:
    method = getattr(hook, endpoint.name)
    described = re.findall(r":param (\w+):", inspect.getdoc(method) or "")
    assert described == list(inspect.signature(method).parameters)
    assert f"endpoint {endpoint.number}" in method.__doc__


def test_refresh_token_renews_the_token_and_returns_it(hook: WebCollectHook, sandbox: Sandbox) -> None:
    hook.get_running_counts()
    token = hook.refresh_token()

    assert isinstance(token, models.TokenRecord)
    assert token.expires_in == pytest.approx(86399, abs=5)
    assert len(sandbox.control.requests("/token")) == 2
    hook.get_running_counts()
    assert len(sandbox.control.requests("/token")) == 2


@each([operation for operation in OPERATIONS if operation.name != "refresh_token"])
def test_each_method_hands_its_arguments_on(hook: WebCollectHook, scene: Scene, operation: Operation) -> None:
    returned = getattr(hook, operation.name)(**scene.fill(operation.arguments))
    operation.check(scene)
    assert isinstance(returned[0] if isinstance(returned, list) else returned, operation.returns)


@pytest.mark.parametrize("given", [{}, {"file": "urls.txt", "urls": ["https://shop.example"]}])
def test_urls_are_a_file_or_a_list(hook: WebCollectHook, sandbox: Sandbox, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="either `file` or `urls`"):
        hook.replace_urls("a-task", **given)
    assert sandbox.control.requests() == []


@pytest.mark.parametrize("lotno", [None, "000001"])
def test_iter_rows_yields_every_row_once(hook: WebCollectHook, sandbox: Sandbox, lotno: str | None) -> None:
    task = sandbox.control.add_task(lots=[1500, 700])
    assert list(hook.iter_rows(task["task_id"], lotno)) == sandbox.control.true_rows(task["task_id"], lotno)


def test_the_hook_keeps_one_client(hook: WebCollectHook) -> None:
    assert isinstance(hook.client, Client)
    assert hook.get_conn() is hook.client


@pytest.mark.parametrize(
    ("call", "extra", "password"),
    [
        (lambda hook: hook.mark_exported(demo.TASK_ID), {"api_key": "spent"}, ""),
        (lambda hook: hook.get_running_counts(), {"access_token": "spent"}, ""),
        (lambda hook: hook.get_running_counts(), {}, "wrong"),
        (lambda hook: hook.refresh_token(), {}, "wrong"),
    ],
    ids=["key", "access token", "password", "renewal"],
)
def test_a_credential_that_has_been_replaced_is_retried(
    set_connection: Any, sandbox: Sandbox, call: Callable[[WebCollectHook], Any], extra: Any, password: str
) -> None:
    set_connection(login=sandbox.username, password=password, extra=extra)
    hook = WebCollectHook()
    with pytest.raises(WebCollectError) as refused:
        call(hook)
    assert refused.value.permanent

    set_connection(login=sandbox.username, password=sandbox.password, extra={"api_key": sandbox.api_key})
    with pytest.raises(TokenUnavailable, match="the connection has changed since it was read") as replaced:
        call(hook)
    assert not replaced.value.permanent
    call(WebCollectHook())


async def test_an_async_client_works_in_a_context_and_bare(hook: WebCollectHook) -> None:
    await hook.aload()
    async with hook.async_client() as client:
        counts = await client.send(endpoints.get_running_counts())
    bare = hook.async_client()
    assert await bare.send(endpoints.get_running_counts()) == counts
    await bare.aclose()


async def test_aload_reads_the_connection_once(hook: WebCollectHook, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await hook.aload()
    monkeypatch.delenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
    assert await hook.aload() is connection
    assert hook.connection is connection


def slow_hook(ask: Callable[[], None]) -> WebCollectHook:
    """Return a hook that calls a function before it reads its connection."""

    class SlowHook(WebCollectHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            ask()
            return super().get_connection(conn_id)

    return SlowHook()


async def test_the_event_loop_never_waits_for_a_thread_that_needs_it(hook: WebCollectHook) -> None:
    loop, asking = asyncio.get_running_loop(), threading.Event()

    def ask() -> None:
        """Do as Airflow's triggerer does when a thread asks its supervisor."""
        asking.set()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE)

    loading = asyncio.create_task(slow_hook(ask).aload())
    await asyncio.to_thread(asking.wait)
    # as a user's own trigger may do
    assert hook.connection
    assert VariableTokenStore("of_nobody").load() is None
    assert await loading == hook.connection


@pytest.mark.parametrize("what", ["the connection", "a token"])
async def test_a_thread_gets_airflows_answer_after_a_cancellation(hook: WebCollectHook, what: str) -> None:
    asking, answered = threading.Event(), threading.Event()
    nobody_waits = asyncio.Event()

    def ask() -> None:
        """Do as Airflow's triggerer did before 3.3 when a thread asked its supervisor."""
        asking.set()
        async_to_sync(nobody_waits.wait)()
        answered.set()

    await hook.aload()
    loading = asyncio.create_task(
        slow_hook(ask).aload() if what == "the connection" else hook.async_client().run(lambda _: ask())
    )
    await asyncio.to_thread(asking.wait)
    loading.cancel()
    await asyncio.wait({loading})
    nobody_waits.set()

    assert loading.cancelled()
    assert await asyncio.to_thread(answered.wait, PATIENCE)
