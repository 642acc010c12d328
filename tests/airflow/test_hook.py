"""The hook: its methods hand on what they are given and return what the service says; its clients.

What each endpoint answers and refuses is tested in `tests/service/test_endpoints.py`.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import threading
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync

from airflow_provider_webcollect.hooks.token_store import VariableTokenStore
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.service import endpoints, models
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    InvalidArgument,
    TokenUnavailable,
    WebCollectError,
)
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("airflow_database")

TODAY = datetime.datetime.now(datetime.UTC).date()


def test_there_is_one_method_for_each_of_the_twenty_endpoints() -> None:
    names = [endpoint.name for endpoint in endpoints.ENDPOINTS]

    assert len(names) == 20
    assert [name for name in names if not callable(getattr(WebCollectHook, name, None))] == []


def test_refresh_token_renews_the_token_and_returns_it(hook: WebCollectHook, sandbox: Sandbox) -> None:
    hook.get_running_counts()
    token = hook.refresh_token()

    assert isinstance(token, models.TokenRecord)
    assert token.expires_in == pytest.approx(86399, abs=5)
    assert len(sandbox.control.requests("/token")) == 2
    hook.get_running_counts()
    assert len(sandbox.control.requests("/token")) == 2


def test_what_changes_a_task_returns_what_the_service_says(
    hook: WebCollectHook, sandbox: Sandbox, task: dict[str, Any]
) -> None:
    id_ = task["task_id"]
    loop, _, text = (step["action_id"] for step in task["actions"])

    hook.mark_exported(id_)
    assert sandbox.control.task(id_)["exported"]
    assert isinstance(hook.update_loop_items(id_, loop, "TextList", ["a"], is_append=True), str)
    assert sandbox.control.task(id_)["actions"][0]["loop_items"] == ["one", "two", "a"]
    step = {"action_type": "EnterTextAction", "action_id": text, "properties": {"TextToSet": "shoes"}}
    update = hook.update_task_parameters(id_, actions=[step])
    assert isinstance(update, models.ParameterUpdate)
    assert update.updated_parameters is not None
    assert update.updated_parameters.actions is not None
    assert update.updated_parameters.actions[0].action_id == text
    hook.start_subtasks(id_, [task["subtasks"][0]["subtask_id"]])
    assert sandbox.control.task(id_)["runs"][-1]["started_subtasks"] == 1


def test_tasks_are_copied_moved_and_deleted(
    hook: WebCollectHook, sandbox: Sandbox, task: dict[str, Any]
) -> None:
    id_ = task["task_id"]
    copy = hook.copy_task(id_, group_id=2)
    assert isinstance(copy, models.CopiedTask)
    assert sandbox.control.task(copy.task_id)["group_id"] == 2
    result = hook.copy_tasks([id_, demo.TASK_ID], [2, 3])
    assert isinstance(result, models.CopyResult)
    assert (result.request_count, result.success_count, result.failed_tasks) == (4, 4, ())
    assert hook.move_task(id_, 3) is True
    assert sandbox.control.task(id_)["group_id"] == 3
    hook.delete_tasks([id_])
    hook.delete_task_groups([3])
    assert id_ not in {each["task_id"] for each in sandbox.control.tasks()}
    assert 3 not in sandbox.control.groups()


def test_what_reads_of_tasks_returns_records(
    hook: WebCollectHook, sandbox: Sandbox, task: dict[str, Any]
) -> None:
    since = TODAY - datetime.timedelta(days=3)
    page = hook.query_analytics(since, TODAY, page_size=5, task_ids=[demo.FINISHED_TASK_ID])
    assert isinstance(page, models.AnalyticsPage)
    assert page.total >= len(page.rows) > 0
    assert {row.task_id for row in page.rows} == {demo.FINISHED_TASK_ID}
    (steps,) = hook.get_actions([task["task_id"]])
    assert isinstance(steps, models.TaskActions)
    assert {step.action_id for step in steps.actions} == {step["action_id"] for step in task["actions"]}
    (first,) = hook.get_task_statuses([task["task_id"]])
    (second,) = hook.get_task_statuses_v2([task["task_id"]])
    assert isinstance(first, models.TaskStatus)
    assert isinstance(second, models.TaskStatus)
    assert (first.status, first.task_name) == ("Finished", task["name"])
    assert (second.status, second.executed_times, second.sub_task_count) == ("Finished", 1, 3)
    many = sandbox.control.add_task(subtasks=45, lots=[90], state="Extracting")
    last = hook.get_subtasks(many["task_id"], page=3)
    assert all(isinstance(subtask, models.SubTask) for subtask in last)
    assert len(last) == 5
    everything = hook.get_all_subtasks(many["task_id"])
    assert [each.sub_task_id for each in everything] == [each["subtask_id"] for each in many["subtasks"]]
    counts = hook.get_running_counts()
    assert isinstance(counts, models.RunningCounts)
    assert counts.extracting_count == 1
    app = hook.deprecate_data_app(demo.APP_ID)
    assert isinstance(app, models.DeprecatedApp)
    assert (app.app_name, app.status) == ("Price watch", "deprecated")


def test_replace_urls_takes_a_file_or_a_list_and_returns_their_count(
    hook: WebCollectHook, sandbox: Sandbox, task: dict[str, Any], tmp_path: Path
) -> None:
    (file := tmp_path / "urls.txt").write_text("https://shop.example/1\nhttps://shop.example/2\n")
    for given, numbers in (
        ({"file": file}, (1, 2)),
        ({"urls": ["https://shop.example/3"]}, (3,)),
        ({"file": io.BytesIO(b"https://shop.example/4")}, (4,)),
    ):
        assert hook.replace_urls(task["task_id"], **given) == len(numbers)  # type: ignore[arg-type]
        urls = [f"https://shop.example/{number}" for number in numbers]
        assert sandbox.control.task(task["task_id"])["urls"] == urls


@pytest.mark.parametrize("given", [{}, {"file": "urls.txt", "urls": ["https://shop.example"]}])
def test_replace_urls_takes_either_a_file_or_a_list(
    hook: WebCollectHook, sandbox: Sandbox, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match="either `file` or `urls`"):
        hook.replace_urls("a-task", **given)

    assert sandbox.control.requests() == []


def test_read_data_and_read_batch_data_return_pages(hook: WebCollectHook, sandbox: Sandbox) -> None:
    task = sandbox.control.add_task(lots=[10, 20])
    page = hook.read_data(task["task_id"], size=25)
    batch = hook.read_batch_data(task["task_id"], "000002", size=15)

    assert isinstance(page, models.DataPage)
    assert isinstance(batch, models.DataPage)
    assert (len(page.rows), page.total, page.rest_total) == (25, 30, 5)
    assert (len(batch.rows), batch.total, batch.rest_total) == (15, 20, 5)
    assert batch.records() == sandbox.control.true_rows(task["task_id"], "000002")[:15]


@pytest.mark.parametrize("lotno", [None, "000001"])
def test_iter_rows_yields_every_row_once(hook: WebCollectHook, sandbox: Sandbox, lotno: str | None) -> None:
    task = sandbox.control.add_task(lots=[1500, 700])

    assert list(hook.iter_rows(task["task_id"], lotno)) == sandbox.control.true_rows(task["task_id"], lotno)


def test_the_hook_keeps_one_client(hook: WebCollectHook) -> None:
    assert isinstance(hook.client, Client)
    assert hook.get_conn() is hook.client


def test_an_api_key_is_used_where_the_service_takes_it(
    set_connection: Callable[..., None], sandbox: Sandbox, task: dict[str, Any]
) -> None:
    set_connection(extra={"api_key": sandbox.api_key})
    hook = WebCollectHook()
    hook.mark_exported(task["task_id"])

    assert [request["credential"] for request in sandbox.control.requests()] == ["api_key"]
    with pytest.raises(
        ConnectionIncomplete, match="only an API key, and this operation takes an access token"
    ):
        hook.get_running_counts()
    assert len(sandbox.control.requests()) == 1


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
def test_a_refused_credential_that_has_been_replaced_is_no_permanent_error(
    set_connection: Callable[..., None],
    sandbox: Sandbox,
    call: Callable[[WebCollectHook], Any],
    extra: dict[str, str],
    password: str,
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


async def test_the_event_loop_never_waits_for_a_thread_that_needs_it(
    hook: WebCollectHook,
) -> None:
    loop, asking = asyncio.get_running_loop(), threading.Event()

    def ask() -> None:
        """Do as Airflow's triggerer does when a thread asks its supervisor."""
        asking.set()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE)

    loading = asyncio.create_task(slow_hook(ask).aload())
    await asyncio.to_thread(asking.wait)
    # as a trigger of the user's own may do
    assert hook.connection
    assert VariableTokenStore("of_nobody").load() is None
    assert await loading == hook.connection


@pytest.mark.parametrize("what", ["the connection", "a token"])
async def test_a_thread_that_asks_airflow_gets_its_answer_though_nobody_waits_any_more(
    hook: WebCollectHook, what: str
) -> None:
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
