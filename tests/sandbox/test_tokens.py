"""Access tokens expire; refresh tokens work once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from tests.sandbox.plain_client import Client, data, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

STATS = "/cloudextraction/task/stats"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_refresh_token_gives_a_new_pair(client: Client) -> None:
    record = data(client.token(grant_type="refresh_token", refresh_token=client.sandbox.refresh_token))

    assert record["token_type"] == "Bearer"
    assert record["expires_in"] == "86399"
    assert record["refresh_token"] != client.sandbox.refresh_token
    assert client.get(STATS, bearer(record["access_token"])).status_code == 200


def test_a_user_name_and_password_give_the_first_pair(client: Client) -> None:
    record = data(
        client.token(
            grant_type="password", username=client.sandbox.username, password=client.sandbox.password
        )
    )

    assert client.get(STATS, bearer(record["access_token"])).status_code == 200
    assert data(client.token(grant_type="refresh_token", refresh_token=record["refresh_token"]))


@pytest.mark.parametrize(
    "body",
    [
        {"grant_type": "password", "username": "demo", "password": "wrong"},
        {"grant_type": "refresh_token", "refresh_token": "wrong"},
    ],
)
def test_a_wrong_grant_is_refused(client: Client, body: dict[str, str]) -> None:
    assert refusal(client.token(**body)) == (400, "Invalid.Grant")


def test_an_unknown_grant_type_is_refused(client: Client) -> None:
    assert refusal(client.token(grant_type="magic", refresh_token="x")) == (400, "InvalidParameter")


@pytest.mark.parametrize(
    "body",
    [
        {
            "grant_type": "password",
            "username": demo.USERNAME,
            "password": demo.PASSWORD,
            "refresh_token": "x",
        },
        {"grant_type": "refresh_token", "refresh_token": demo.REFRESH_TOKEN, "password": demo.PASSWORD},
        {"grant_type": "refresh_token", "refresh_token": demo.REFRESH_TOKEN, "username": demo.USERNAME},
    ],
)
def test_a_field_of_the_other_grant_is_refused(client: Client, body: dict[str, str]) -> None:
    assert refusal(client.token(**body)) == (400, "InvalidParameter")


@pytest.mark.parametrize(
    "body",
    [
        {"refresh_token": demo.REFRESH_TOKEN},
        {"grant_type": "refresh_token"},
        {"grant_type": "password", "username": demo.USERNAME},
        {"grant_type": "password", "password": demo.PASSWORD},
    ],
)
def test_a_grant_without_its_fields_is_refused(client: Client, body: dict[str, str]) -> None:
    assert refusal(client.token(**body)) == (400, "InvalidParameter.Required")


def test_a_credential_in_the_headers_is_refused(client: Client) -> None:
    body = {"grant_type": "refresh_token", "refresh_token": client.sandbox.refresh_token}

    assert refusal(client.post("/token", body)) == (400, "InvalidParameter")
    assert refusal(client.post("/token", body, client.key)) == (400, "InvalidParameter")


def test_a_used_refresh_token_is_refused_and_its_successors_live_on(client: Client) -> None:
    old = {"grant_type": "refresh_token", "refresh_token": client.sandbox.refresh_token}
    record = data(client.token(**old))

    assert refusal(client.token(**old)) == (400, "Invalid.Grant")
    assert client.get(STATS, bearer(record["access_token"])).status_code == 200
    assert data(client.token(grant_type="refresh_token", refresh_token=record["refresh_token"]))


def test_reuse_can_revoke_all_tokens_of_the_same_descent(start_sandbox: Callable[..., Client]) -> None:
    client = start_sandbox(refresh_reuse="revoke")
    old = {"grant_type": "refresh_token", "refresh_token": client.sandbox.refresh_token}
    record = data(client.token(**old))

    assert refusal(client.token(**old)) == (400, "Invalid.Grant")
    assert refusal(client.get(STATS, bearer(record["access_token"]))) == (401, "Invalid.Token")
    assert refusal(client.token(grant_type="refresh_token", refresh_token=record["refresh_token"])) == (
        400,
        "Invalid.Grant",
    )


def test_reuse_can_be_allowed(start_sandbox: Callable[..., Client]) -> None:
    client = start_sandbox(refresh_reuse="allow")
    grant = {"grant_type": "refresh_token", "refresh_token": client.sandbox.refresh_token}

    assert data(client.token(**grant)) != data(client.token(**grant))


def test_an_access_token_lives_for_a_day(client: Client) -> None:
    client.control.advance(86_390)
    assert client.get(STATS).status_code == 200

    client.control.advance(10)
    assert refusal(client.get(STATS)) == (401, "Invalid.Token")


def test_the_speed_of_tasks_does_not_age_tokens(start_sandbox: Callable[..., Client]) -> None:
    client = start_sandbox(speed=10_000_000)

    assert client.get(STATS).status_code == 200


def test_the_lifetime_is_announced_as_set(start_sandbox: Callable[..., Client]) -> None:
    client = start_sandbox(token_lifetime=60)
    record = data(client.token(grant_type="refresh_token", refresh_token=client.sandbox.refresh_token))

    assert record["expires_in"] == "60"
    client.control.advance(61)
    assert client.get(STATS, bearer(record["access_token"])).status_code == 401


def test_all_access_tokens_can_be_ended_at_once(client: Client) -> None:
    client.control.expire_tokens()

    assert client.get(STATS).status_code == 401
    assert data(client.token(grant_type="refresh_token", refresh_token=client.sandbox.refresh_token))


def test_refresh_tokens_can_be_ended_too(client: Client) -> None:
    client.control.expire_tokens(refresh_tokens=True)

    assert refusal(client.token(grant_type="refresh_token", refresh_token=client.sandbox.refresh_token)) == (
        400,
        "Invalid.Grant",
    )


def test_each_sandbox_has_a_first_refresh_token_of_its_own() -> None:
    with Sandbox() as one, Sandbox() as other:
        assert one.refresh_token != other.refresh_token
        for sandbox in (one, other):
            client = Client(sandbox)
            for token in (sandbox.refresh_token, demo.REFRESH_TOKEN):
                assert data(client.token(grant_type="refresh_token", refresh_token=token))["access_token"]
