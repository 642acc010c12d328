"""Who may call what, with which credential, on which plan, how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.operations import OPERATIONS
from tests.sandbox.conftest import RealTime
from tests.sandbox.plain_client import Client, refusal

STATS = "/cloudextraction/task/stats"
STATUS_V1 = "/cloudextraction/statuses"
STATUS_V2 = "/cloudextraction/statuses/v2"
TASKS = {"taskIds": [demo.TASK_ID]}

# Endpoints 3, 7, 15, 18 and 19 of the contract.
TAKE_A_KEY = {
    "/task/updateLoopItems",
    "/task/copy",
    "/cloudextraction/subtasks:start",
    "/data/lotno/all",
    "/data/markexported",
}
MAIN_PATHS = [(o.method, o.path) for o in OPERATIONS if o.path != "/token" and "data-apps" not in o.path]


def call(client: Client, method: str, path: str, headers: dict[str, str] | None = None) -> Any:
    return client.call(method, path, headers, json=None if method == "GET" else {})


@pytest.mark.parametrize(("method", "path"), MAIN_PATHS)
def test_every_endpoint_wants_a_credential_and_an_api_key_opens_five(
    client: Client, method: str, path: str
) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert refusal(call(client, method, path, headers)) == (401, "Invalid.Token")
    assert call(client, method, path, client.key).status_code == (400 if path in TAKE_A_KEY else 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "op_sk_no"},
        {"Authorization": f"Bearer {demo.API_KEY}"},
        {"Authorization": demo.ACCESS_TOKEN},
    ],
    ids=["another key", "a key as a token", "no scheme"],
)
def test_a_wrong_credential_is_refused(client: Client, headers: dict[str, str]) -> None:
    assert refusal(client.post("/data/markexported", {}, headers)) == (401, "Invalid.Token")


@pytest.mark.parametrize(
    ("method", "path", "json", "allowed", "period"),
    [("GET", STATS, None, 20, 1.0), ("POST", STATUS_V2, TASKS, 5, 1.0), ("POST", STATUS_V1, TASKS, 1, 5.0)],
)
def test_a_number_of_requests_is_let_in_and_another_a_period_after_the_first(
    start_sandbox: Callable[..., Client],
    real_time: RealTime,
    method: str,
    path: str,
    json: Any,
    allowed: int,
    period: float,
) -> None:
    client = start_sandbox()
    answers = [client.call(method, path, json=json) for _ in range(allowed + 1)]
    assert [answer.status_code for answer in answers] == [*[200] * allowed, 429]
    assert refusal(answers[-1]) == (429, "TooManyRequests")
    assert client.get(STATS).status_code == (429 if path == STATS else 200)
    real_time.sleep(period - 0.01)
    client.control.advance(60)  # which does not help against limits
    assert client.call(method, path, json=json).status_code == 429
    real_time.sleep(0.02)
    assert client.call(method, path, json=json).status_code == 200


def test_limits_count_callers_apart(start_sandbox: Callable[..., Client]) -> None:
    client = start_sandbox(general_rate=1)
    other = client.session.get_adapter("http://")
    other.init_poolmanager(1, 1, source_address=("127.0.0.2", 0))
    from_elsewhere = client.get(STATS)
    client.session = type(client.session)()
    assert from_elsewhere.status_code == 200
    assert client.get(STATS).status_code == 200
    assert client.get(STATS).status_code == 429
