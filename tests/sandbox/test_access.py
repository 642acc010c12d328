"""Who may call what, with which credential and how often; and how long tokens are valid."""

from __future__ import annotations

from typing import Any

import pytest
from requests.adapters import HTTPAdapter

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.sandbox.operations import OPERATIONS
from tests.sandbox.conftest import RealTime, StartSandbox
from tests.sandbox.plain_client import Client, data, refusal

STATS = "/cloudextraction/task/stats"
STATUS_V1 = "/cloudextraction/statuses"
STATUS_V2 = "/cloudextraction/statuses/v2"
TASKS = {"taskIds": [demo.TASK_ID]}
REFUSED = (400, "Invalid.Grant")

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
def test_each_endpoint_wants_a_credential_five_take_a_key(client: Client, method: str, path: str) -> None:
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
def test_limits_let_in_a_number_of_requests_in_a_period(
    start_sandbox: StartSandbox,
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
    client.control.advance(60)  # limits do not go by the sandbox's clock
    assert client.call(method, path, json=json).status_code == 429
    real_time.sleep(0.02)
    assert client.call(method, path, json=json).status_code == 200


def test_limits_count_callers_apart(start_sandbox: StartSandbox) -> None:
    client = start_sandbox(general_rate=1)
    other = client.session.get_adapter("http://")
    assert isinstance(other, HTTPAdapter)
    other.init_poolmanager(1, 1, source_address=("127.0.0.2", 0))
    from_elsewhere = client.get(STATS)
    client.session = type(client.session)()
    assert from_elsewhere.status_code == 200
    assert client.get(STATS).status_code == 200
    assert client.get(STATS).status_code == 429


def is_let_in(client: Client, record: dict[str, str]) -> bool:
    """Return whether the service accepts the access token of a record."""
    answer = client.get(STATS, {"Authorization": f"Bearer {record['access_token']}"})
    if answer.status_code == 200:
        return True
    assert refusal(answer) == (401, "Invalid.Token")
    return False


def test_a_credential_in_the_headers_is_refused(client: Client) -> None:
    body = {"grant_type": "refresh_token", "refresh_token": client.sandbox.refresh_token}
    for headers in (client.bearer, client.key):
        assert refusal(client.post("/token", body, headers)) == (400, "InvalidParameter")


@pytest.mark.parametrize("reuse", ["refuse", "revoke", "allow"])
def test_a_used_refresh_token_is_treated_as_configured(client: Client, reuse: str) -> None:
    client.control.configure(refresh_reuse=reuse)
    record, again = data(client.renew()), client.renew()
    assert data(again) != record if reuse == "allow" else refusal(again) == REFUSED
    assert is_let_in(client, record) == (reuse != "revoke")
    successor = client.renew(record["refresh_token"])
    assert refusal(successor) == REFUSED if reuse == "revoke" else data(successor)


@pytest.mark.parametrize("lifetime", [86_400, 60])
# this speeds up tasks alone, not the life of tokens
@pytest.mark.webcollect_sandbox(speed=10_000_000)
def test_an_access_token_lives_for_a_day_or_as_long_as_set(client: Client, lifetime: int) -> None:
    if lifetime != 86_400:
        client.control.configure(token_lifetime=lifetime)
    record = data(client.renew())
    assert int(record["expires_in"]) in {lifetime, lifetime - 1}
    for seconds, is_good in ((lifetime - 10, True), (10, False)):
        client.control.advance(seconds)
        assert is_let_in(client, record) is is_good


def test_all_access_and_refresh_tokens_can_be_ended_at_once(client: Client) -> None:
    client.control.expire_tokens()
    assert client.get(STATS).status_code == 401
    assert data(client.renew())
    client.control.expire_tokens(refresh_tokens=True)
    assert refusal(client.renew(demo.REFRESH_TOKEN)) == REFUSED


def test_each_sandbox_has_a_first_refresh_token_of_its_own() -> None:
    with Sandbox() as one, Sandbox() as other:
        assert one.refresh_token != other.refresh_token
        for sandbox in (one, other):
            client = Client(sandbox)
            for token in (sandbox.refresh_token, demo.REFRESH_TOKEN):
                assert data(client.renew(token))["access_token"]
