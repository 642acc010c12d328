"""The sandbox against ``openapi.yaml``: it answers every request as the contract says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.failures import Failure
from schemathesis.core.result import Ok

import airflow_provider_webcollect.sandbox
from airflow_provider_webcollect.sandbox import Sandbox, demo
from tests.interruption import PATIENCE
from tests.operations import OPERATIONS as TABLE
from tests.operations import Scene
from tests.simulation.samples import ALL_HISTORIES, SEED

SPEC_FILE = Path(airflow_provider_webcollect.sandbox.__file__).with_name("openapi.yaml")
DATA_APP_PATH = "/v1/data-apps/{app_id}/deprecate"


SPEC: dict[str, Any] = yaml.safe_load(SPEC_FILE.read_text())
# the sandbox serves the data-app service under /datahub
SPEC["paths"]["/datahub" + DATA_APP_PATH] = SPEC["paths"].pop(DATA_APP_PATH)
SCHEMA = schemathesis.openapi.from_dict(SPEC)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations() if isinstance(result, Ok)]
# Valid requests name tasks that do not exist, so the sandbox rightly refuses them.
EXCLUDED_CHECKS: list[Any] = [CHECKS.get_one("positive_data_acceptance")]


#: Number of random requests for each operation, beside those that Schemathesis derives from its schema.
EXAMPLES = 50 if ALL_HISTORIES else 4
#: The paths of the operations that get random requests.
PATHS = list(SPEC["paths"]) if ALL_HISTORIES else random.Random(SEED).sample(list(SPEC["paths"]), 2)

# Headers of HTTP itself: a server refuses wrong ones before the sandbox sees the request.
HTTP_HEADERS = ("connection", "content-length", "expect", "host", "transfer-encoding", "upgrade")

any_request = settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def credentials(sandbox: Sandbox, path: str) -> dict[str, str]:
    """Return the headers with which an operation is called."""
    if path == "/token":
        return {}
    key = sandbox.datahub_api_key if path.startswith("/datahub") else sandbox.access_token
    return {"Authorization": f"Bearer {key}"}


def real_values(sandbox: Sandbox) -> dict[str, Any]:
    """Return an existing value for each field that names something in the sandbox."""
    task = sandbox.control.task(demo.FINISHED_TASK_ID)
    return {
        "taskId": task["task_id"],
        "taskIds": [task["task_id"], demo.TASK_ID],
        "actionId": task["actions"][0]["action_id"],
        "subTaskIds": [subtask["subtask_id"] for subtask in task["subtasks"]],
        "taskGroupId": 2,
        "groupIds": [2, 3],
        "lotno": "000001",
        "refresh_token": demo.REFRESH_TOKEN,
        "app_id": demo.UNRELEASED_APP_ID,
    }


def with_values(request: Any, values: dict[str, Any]) -> Any:
    if isinstance(request, dict):
        return {k: values[k] if k in values else with_values(v, values) for k, v in request.items()}
    return [with_values(item, values) for item in request] if isinstance(request, list) else request


def test_the_contract_has_the_twenty_operations() -> None:
    ids = {operation.definition.raw["operationId"] for operation in OPERATIONS}
    assert ids == {operation.name for operation in TABLE}
    assert len(OPERATIONS) == len(ids) == 20


@pytest.fixture
def exercised(sandbox: Sandbox) -> Iterator[Sandbox]:
    """A sandbox that must have received more than ten requests of the contract by the end of the test."""
    sandbox.control.clear_requests()
    yield sandbox
    requests = {path: sum(counts.values()) for path, counts in sandbox.control.counters().items()}
    assert sum(requests.get(path.removeprefix("/datahub"), 0) for path in SCHEMA) > 10, requests


# Preparing the requests takes seconds: with fixtures, not every process that collects these tests does it.
@pytest.fixture(params=PATHS)
def an_operation(request: pytest.FixtureRequest) -> Any:
    """The part of the contract about one operation."""
    return schemathesis.openapi.from_dict({**SPEC, "paths": {request.param: SPEC["paths"][request.param]}})


@pytest.fixture
def an_operation_used_right(an_operation: Any) -> Any:
    """The part of the contract about one operation, set up to generate only valid requests."""
    an_operation.config.generation.update(modes=[GenerationMode.POSITIVE])
    return an_operation


@schemathesis.pytest.from_fixture("an_operation").parametrize()
@any_request
def test_any_request_is_answered_as_the_contract_says(case: Case[Any], exercised: Sandbox) -> None:
    headers = credentials(exercised, case.path)
    for name in HTTP_HEADERS:
        case.headers.pop(name, None)
    case.call_and_validate(exercised.url, headers=headers, excluded_checks=EXCLUDED_CHECKS)


@schemathesis.pytest.from_fixture("an_operation_used_right").parametrize()
@any_request
def test_any_valid_request_is_answered_as_the_contract_says(case: Case[Any], sandbox: Sandbox) -> None:
    sandbox.control.reset()
    real = real_values(sandbox)
    case.path_parameters = with_values(case.path_parameters, real)
    case.query, case.body = with_values(case.query, real), with_values(case.body, real)
    headers = credentials(sandbox, case.path)
    case.call_and_validate(sandbox.url, headers=headers, excluded_checks=EXCLUDED_CHECKS)


every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.path)


def good_request(sandbox: Sandbox, operation: Any) -> dict[str, Any]:
    """Return the arguments of ``requests`` for a call that succeeds, from the table of operations."""
    name, scene = operation.definition.raw["operationId"], Scene(sandbox)
    if name == "refresh_token":
        return {"json": {"grant_type": "refresh_token", "refresh_token": demo.REFRESH_TOKEN}}
    if name == "replace_urls":
        files = {"file": ("urls.txt", b"https://a.example/1\n")}
        return {"data": {"taskId": scene.words["TASK"]}, "files": files}
    sent = next(scene.fill(row.sent) for row in TABLE if row.name == name)
    return {"json" if "requestBody" in operation.definition.raw else "params": sent}


def call(sandbox: Sandbox, operation: Any, **changes: Any) -> requests.Response:
    """Make a call that succeeds unless it is changed, and check the response against the contract."""
    path = operation.path.format(app_id=quote(demo.APP_ID, safe=""))
    request = {"headers": {}, "params": {}, **good_request(sandbox, operation)}
    for name, value in changes.items():
        request[name] = {**request[name], **value} if name in ("headers", "params") else value
    request["headers"] = {**credentials(sandbox, path), **request["headers"]}
    response = requests.request(operation.method, sandbox.url + path, timeout=PATIENCE, **request)
    operation.validate_response(response)
    return response


#: Settings that change the content of responses, but not their shape.
ODD = {
    "hide_unexecuted_subtasks": True,
    "hide_end_times": True,
    "executed_times_offset": -5,
    "echo_ids": "upper",
    "null_metrics": True,
    "row_bytes": 20_000,
}


@pytest.mark.parametrize("changes", [{}, ODD], ids=["as usual", "odd settings"])
@every_operation
def test_every_operation_has_its_shape(operation: Any, sandbox: Sandbox, changes: dict[str, Any]) -> None:
    sandbox.control.configure(**changes)
    response = call(sandbox, operation)
    assert response.status_code == 200, response.text


def is_refused(response: requests.Response, word: str = "") -> bool:
    """Return whether a request is refused as invalid, with ``word`` in the message."""
    error = response.json()["error"]
    is_invalid = error["code"] in {"InvalidParameter", "invalid-parameter"}
    return response.status_code == 400 and is_invalid and word in error["message"]


@every_operation
def test_every_operation_refuses_an_unknown_query_parameter(operation: Any, sandbox: Sandbox) -> None:
    assert is_refused(call(sandbox, operation, params={"task_id": "x"}), "task_id")


@pytest.mark.parametrize(
    "operation", [o for o in OPERATIONS if "requestBody" not in o.definition.raw], ids=lambda o: o.path
)
def test_an_operation_without_a_body_refuses_one(operation: Any, sandbox: Sandbox) -> None:
    assert is_refused(call(sandbox, operation, json={}))


@every_operation
def test_every_operation_refuses_both_credentials_at_once(operation: Any, sandbox: Sandbox) -> None:
    both = {"Authorization": f"Bearer {sandbox.access_token}", "x-api-key": sandbox.api_key}
    assert is_refused(call(sandbox, operation, headers={**both, **credentials(sandbox, operation.path)}))


def test_an_answer_of_another_shape_is_noticed(sandbox: Sandbox) -> None:
    (reading,) = (operation for operation in OPERATIONS if operation.path == "/data/all")
    answer = call(sandbox, reading)
    with pytest.raises(Failure, match="Response violates schema"):
        SCHEMA["/data/markexported"]["POST"].validate_response(answer)
