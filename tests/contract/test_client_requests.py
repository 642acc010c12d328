"""The check of the client's requests against the contract finds what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from airflow_provider_webcollect.sandbox import Sandbox, demo
from tests.contract.client_requests import RequestContract
from tests.interruption import PATIENCE

BEARER = {"Authorization": f"Bearer {demo.ACCESS_TOKEN}"}
API_KEY = {"x-api-key": demo.API_KEY}
PLAIN = {"Content-Type": "text/plain"}
TASK = {"taskId": "t"}
START_PATH = "/cloudextraction/subtasks:start"
START = {**TASK, "subTaskIds": ["s"]}
DELETE = "/task/deleteTasks"
DATA_APPS = "/datahub/v1/data-apps"
PAGE: dict[str, Any] = {**TASK, "offset": 0, "size": 100}
BATCH = {**PAGE, "lotno": "1"}
URLS = {"file": ("urls.txt", "https://a.example/é\n".encode())}
GRANT = {"grant_type": "refresh_token", "refresh_token": "t"}


@pytest.fixture(scope="module")
def contract() -> RequestContract:
    return RequestContract()


def send(
    sandbox: Sandbox, method: str, path: str, agent: str = "airflow-provider-webcollect/1.0", **request: Any
) -> None:
    headers = {"User-Agent": agent, **request.pop("headers", {})}
    requests.request(method, sandbox.url + path, headers=headers, timeout=PATIENCE, **request)


@pytest.mark.parametrize(
    ("problem", "method", "path", "request_"),
    [
        ("subTaskIDs", "POST", START_PATH, {"json": {**TASK, "subTaskIDs": ["s"]}}),
        ("'x' was unexpected", "POST", START_PATH, {"json": {**START, "x": 1}}),
        ("Missing required request body", "POST", DELETE, {}),
        ("text/plain", "POST", DELETE, {"data": '{"taskIds":["t"]}', "headers": {**BEARER, **PLAIN}}),
        ("taskGroupId", "POST", "/task/moveToGroup", {"params": {**TASK, "taskGroupId": "two"}}),
        ("unknown query parameter: groupId", "POST", "/task/copy", {"params": {**TASK, "groupId": 1}}),
        ("a body, where none is taken", "POST", "/task/copy", {"params": TASK, "json": TASK}),
        ("Path not found", "POST", f"{DATA_APPS}/a/b/c/deprecate", {}),
        ("Operation get not found", "GET", "/task/copy", {"params": TASK}),
        ("'taskId' is a required", "POST", "/task/urls:file", {"data": {"task_id": "t"}, "files": URLS}),
        ("Security not found", "GET", "/data/all", {"params": PAGE, "headers": {}}),
        ("Security not found", "GET", "/data/all", {"params": PAGE, "headers": API_KEY}),
        ("both credentials", "GET", "/data/lotno/all", {"params": BATCH, "headers": {**API_KEY, **BEARER}}),
        ("a credential in the headers, where none is taken", "POST", "/token", {"json": GRANT}),
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
    send(sandbox, method, path, **{"headers": BEARER, **request_})
    with pytest.raises(AssertionError, match=problem) as failure:
        contract.check(sandbox.control.requests())
    assert f"{method} {path}" in str(failure.value)


def test_a_request_too_long_for_the_log_is_still_counted(sandbox: Sandbox, contract: RequestContract) -> None:
    send(sandbox, "POST", DELETE, json={"taskIds": ["t" * 300_000]}, headers=BEARER)
    assert contract.check(sandbox.control.requests()) == {"delete_tasks": 1}
    send(sandbox, "POST", "/nowhere", json={"taskIds": ["t" * 300_000]}, headers=BEARER)
    with pytest.raises(AssertionError, match="not a path"):
        contract.check(sandbox.control.requests())


def test_requests_of_others_are_passed_over(sandbox: Sandbox, contract: RequestContract) -> None:
    send(sandbox, "GET", "/nowhere", agent="curl/8")
    assert contract.check(sandbox.control.requests()) == {}
