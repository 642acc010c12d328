"""Access tokens expire; refresh tokens work once."""

from __future__ import annotations

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from tests.sandbox.plain_client import Client, data, refusal

STATS = "/cloudextraction/task/stats"
REFUSED = (400, "Invalid.Grant")


def is_let_in(client: Client, record: dict[str, str]) -> bool:
    """Whether the access token of a record is good."""
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
def test_a_used_refresh_token_is_refused_and_may_take_its_descent_with_it_or_is_taken(
    client: Client, reuse: str
) -> None:
    client.control.configure(refresh_reuse=reuse)
    record, again = data(client.renew()), client.renew()
    assert data(again) != record if reuse == "allow" else refusal(again) == REFUSED
    assert is_let_in(client, record) == (reuse != "revoke")
    successor = client.renew(record["refresh_token"])
    assert refusal(successor) == REFUSED if reuse == "revoke" else data(successor)


@pytest.mark.parametrize("lifetime", [86_400, 60])
# of tasks alone
@pytest.mark.webcollect_sandbox(speed=10_000_000)
def test_an_access_token_lives_for_a_day_or_as_long_as_set(client: Client, lifetime: int) -> None:
    if lifetime != 86_400:
        client.control.configure(token_lifetime=lifetime)
    record = data(client.renew())
    assert int(record["expires_in"]) in {lifetime, lifetime - 1}
    for seconds, is_good in ((lifetime - 10, True), (10, False)):
        client.control.advance(seconds)
        assert is_let_in(client, record) is is_good


def test_all_access_tokens_can_be_ended_at_once_and_refresh_tokens_too(client: Client) -> None:
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
