"""The twenty endpoints: what each returns, what it changes at the service, and how it refuses."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import endpoints, errors
from airflow_provider_webcollect.service.client import AsyncClient, Client
from airflow_provider_webcollect.service.endpoints import Call
from airflow_provider_webcollect.service.url_file import url_list
from tests.operations import OPERATIONS, URLS, Operation, Scene, each, one_call_of_each
from tests.service.conftest import Connect

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

ODD = [
    *("../x?y", "a/b", "%2e%2e", "..%2f", "a&b=c#d+e %/?", "ü/自行车", "a;b", "..."),
    *("~a.b-c_d", "%", "\\..\\"),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["a thread", "an event loop"])
@each(OPERATIONS)
async def test_each_is_sent_as_it_is_called_and_takes_effect(
    client: Client, scene: Scene, operation: Operation, is_async: bool
) -> None:
    call = operation.call(scene)
    if is_async:
        async with AsyncClient(client.context) as on_the_loop:
            await on_the_loop.send(call)
    else:
        client.send(call)
    operation.check(scene, sent_more=False)


class TestSuccess:
    def test_times_are_in_the_connections_zone(self, on_clock: Connect) -> None:
        statuses = endpoints.get_task_statuses_v2([demo.FINISHED_TASK_ID])
        (status,) = on_clock(timezone="Asia/Shanghai").send(statuses)
        assert status.start_execute_time is not None
        assert status.start_execute_time.timezone_name == "Asia/Shanghai"

    def test_an_app_without_a_release_is_deprecated(self, client: Client) -> None:
        assert client.send(endpoints.deprecate_data_app(demo.UNRELEASED_APP_ID)).version is None


class TestRefusal:
    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (endpoints.read_data("no-such-task", 0, 10), "(asked for task no-such-task)"),
            (endpoints.copy_task("no-such-task"), "(asked for task no-such-task)"),
            (endpoints.replace_urls("no-such-task", url_list(URLS)), "(asked for task no-such-task)"),
            # the task exists, the group does not
            (endpoints.move_task(demo.TASK_ID, 99), f"no task group 99 (asked for task {demo.TASK_ID})"),
        ],
    )
    def test_not_found_is_named_with_its_task(self, client: Client, call: Call[Any], words: str) -> None:
        with pytest.raises(errors.NotFound, match=re.escape(f"{words} (requestId")):
            client.send(call)

    @pytest.mark.parametrize("tier", ["Flagship", "Flagship+", "Team", "Enterprise"])
    def test_a_plan_that_is_too_low_is_told(self, client: Client, scene: Scene, tier: str) -> None:
        scene.control.configure(tier=tier)
        for call in one_call_of_each(scene):
            if not call.endpoint.tiers or tier in call.endpoint.tiers:
                client.send(call)
                continue
            with pytest.raises(errors.PermissionDenied, match="Check the account's plan"):
                client.send(call)

    def test_an_app_of_somebody_else_looks_like_a_missing_one(self, client: Client) -> None:
        for app in (demo.OTHERS_APP_ID, "none"):
            with pytest.raises(errors.NotFound, match="not the author, or there is no such app") as refusal:
                client.send(endpoints.deprecate_data_app(app))
            assert (refusal.value.status, refusal.value.category) == (404, "not_found")


@pytest.mark.parametrize("value", ODD)
def test_an_id_that_looks_like_a_path_is_quoted(client: Client, sandbox: Sandbox, value: str) -> None:
    for call, refusal in (
        # an app's id cannot be a relative path
        (endpoints.deprecate_data_app(value.removeprefix("../")), errors.NotFound),
        (endpoints.read_batch_data(demo.FINISHED_TASK_ID, value, 5, 7), errors.RequestRejected),
        (endpoints.copy_task(value, 3), errors.NotFound),
    ):
        with pytest.raises(refusal):
            client.send(call)
    task = sandbox.control.add_task(task_id=f'{value}"\r\n--x')["task_id"]
    client.send(endpoints.replace_urls(task, url_list(["https://a.example"])))
    app, read, copy, _ = sandbox.control.requests()
    # an app is named as the vendor's client names it: the slash after its namespace stays
    segments = quote(value.removeprefix("../"), safe="/")
    assert (app["path"], app["query_string"]) == (f"/datahub/v1/data-apps/{segments}/deprecate", "")
    assert read["path"] == "/data/lotno/all"
    assert read["query"] == {"taskId": demo.FINISHED_TASK_ID, "offset": "5", "size": "7", "lotno": value}
    assert (copy["path"], copy["query"]) == ("/task/copy", {"taskId": value, "taskGroupId": "3"})
    assert sandbox.control.task(task)["urls"] == ["https://a.example"]
