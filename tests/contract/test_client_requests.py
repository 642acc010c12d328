"""The checker that the client's requests are held to finds what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import requests

from airflow_provider_webcollect.sandbox import Sandbox, Settings, demo
from tests.contract.client_requests import RequestContract
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

BEARER = {"Authorization": f"Bearer {demo.ACCESS_TOKEN}"}
API_KEY = {"x-api-key": demo.API_KEY}
DATA_APP_KEY = {"Authorization": f"Bearer {demo.DATAHUB_API_KEY}"}
START = {"taskId": "t", "subTaskIds": ["s"]}
PAGE = {"taskId": "t", "offset": 0, "size": 100}
URLS = {"file": ("urls.txt", "https://a.example/é\n".encode())}
GRANT = {"grant_type": "refresh_token", "refresh_token": "t"}


@pytest.fixture(scope="module")
def running_sandbox() -> Iterator[Sandbox]:
    with Sandbox(Settings(enforce_limits=False)) as running:
        yield running


@pytest.fixture
def sandbox(running_sandbox: Sandbox) -> Sandbox:
    running_sandbox.control.reset()
    return running_sandbox


@pytest.fixture(scope="module")
def contract() -> RequestContract:
    return RequestContract()


def send(
    sandbox: Sandbox, method: str, path: str, agent: str = "airflow-provider-webcollect/1.0", **request: Any
) -> None:
    headers = {"User-Agent": agent, **request.pop("headers", {})}
    requests.request(method, sandbox.url + path, headers=headers, timeout=PATIENCE, **request)


@pytest.mark.parametrize(
    ("operation", "method", "path", "request_"),
    [
        ("start_subtasks", "POST", "/cloudextraction/subtasks:start", {"json": START, "headers": BEARER}),
        ("start_subtasks", "POST", "/cloudextraction/subtasks:start", {"json": START, "headers": API_KEY}),
        ("read_data", "GET", "/data/all", {"params": PAGE, "headers": BEARER}),
        ("read_batch_data", "GET", "/data/lotno/all", {"params": {**PAGE, "lotno": "1"}, "headers": API_KEY}),
        ("copy_task", "POST", "/task/copy", {"params": {"taskId": "t"}, "headers": BEARER}),
        ("get_running_counts", "GET", "/cloudextraction/task/stats", {"headers": BEARER}),
        (
            "replace_urls",
            "POST",
            "/task/urls:file",
            {"data": {"taskId": "t"}, "files": URLS, "headers": BEARER},
        ),
        ("refresh_token", "POST", "/token", {"json": GRANT}),
        (
            "deprecate_data_app",
            "POST",
            "/datahub/v1/data-apps/a%2Fb/deprecate",
            {"headers": DATA_APP_KEY},
        ),
    ],
)
def test_a_right_request_is_counted(
    sandbox: Sandbox,
    contract: RequestContract,
    operation: str,
    method: str,
    path: str,
    request_: dict[str, Any],
) -> None:
    send(sandbox, method, path, **request_)
    send(sandbox, method, path, **request_)

    assert contract.check(sandbox.control.requests()) == {operation: 2}


@pytest.mark.parametrize(
    ("problem", "method", "path", "request_"),
    [
        (
            "subTaskIDs",
            "POST",
            "/cloudextraction/subtasks:start",
            {"json": {"taskId": "t", "subTaskIDs": ["s"]}},
        ),
        ("'x' was unexpected", "POST", "/cloudextraction/subtasks:start", {"json": {**START, "x": 1}}),
        ("should be non-empty", "POST", "/task/deleteTasks", {"json": {"taskIds": []}}),
        ("Missing required request body", "POST", "/task/deleteTasks", {}),
        (
            "text/plain",
            "POST",
            "/task/deleteTasks",
            {"data": '{"taskIds":["t"]}', "headers": {"Content-Type": "text/plain"}},
        ),
        ("taskGroupId", "POST", "/task/moveToGroup", {"params": {"taskId": "t", "taskGroupId": "two"}}),
        ("taskGroupId", "POST", "/task/moveToGroup", {"params": {"taskId": "t"}}),
        ("unknown query parameter: groupId", "POST", "/task/copy", {"params": {"taskId": "t", "groupId": 1}}),
        (
            "a body, where none is taken",
            "POST",
            "/task/copy",
            {"params": {"taskId": "t"}, "json": {"taskId": "t"}},
        ),
        ("1001 is greater", "GET", "/data/all", {"params": {**PAGE, "size": 1001}}),
        ("Path not found", "POST", "/TaskGroup/deleteGroups", {"json": {"groupIds": [1]}}),
        ("Path not found", "POST", "/datahub/v1/data-apps/a/b/deprecate", {}),
        ("Operation get not found", "GET", "/task/copy", {"params": {"taskId": "t"}}),
        ("'taskId' is a required", "POST", "/task/urls:file", {"data": {"task_id": "t"}, "files": URLS}),
    ],
)
def test_a_wrong_request_is_named(
    sandbox: Sandbox,
    contract: RequestContract,
    problem: str,
    method: str,
    path: str,
    request_: dict[str, Any],
) -> None:
    send(sandbox, method, path, **{**request_, "headers": {**BEARER, **request_.get("headers", {})}})

    with pytest.raises(AssertionError, match=problem) as failure:
        contract.check(sandbox.control.requests())
    assert f"{method} {path}" in str(failure.value)


@pytest.mark.parametrize(
    ("problem", "path", "headers"),
    [
        ("Security not found", "/data/all", {}),
        ("Security not found", "/data/all", API_KEY),
        ("both credentials at once", "/data/lotno/all", {**API_KEY, **BEARER}),
    ],
)
def test_a_wrong_credential_is_named(
    sandbox: Sandbox, contract: RequestContract, problem: str, path: str, headers: dict[str, str]
) -> None:
    params = {**PAGE, "lotno": "1"} if "lotno" in path else PAGE
    send(sandbox, "GET", path, params=params, headers=headers)

    with pytest.raises(AssertionError, match=problem):
        contract.check(sandbox.control.requests())


def test_a_credential_sent_to_the_token_endpoint_is_named(
    sandbox: Sandbox, contract: RequestContract
) -> None:
    send(sandbox, "POST", "/token", json=GRANT, headers=BEARER)

    with pytest.raises(AssertionError, match="where none is taken"):
        contract.check(sandbox.control.requests())


def test_a_request_too_long_for_the_log_is_still_counted(sandbox: Sandbox, contract: RequestContract) -> None:
    send(sandbox, "POST", "/task/deleteTasks", json={"taskIds": ["t" * 300_000]}, headers=BEARER)
    assert contract.check(sandbox.control.requests()) == {"delete_tasks": 1}

    send(sandbox, "POST", "/nowhere", json={"taskIds": ["t" * 300_000]}, headers=BEARER)
    with pytest.raises(AssertionError, match="not a path"):
        contract.check(sandbox.control.requests())


def test_requests_of_others_are_passed_over(sandbox: Sandbox, contract: RequestContract) -> None:
    send(sandbox, "GET", "/nowhere", agent="curl/8")

    assert contract.check(sandbox.control.requests()) == {}
