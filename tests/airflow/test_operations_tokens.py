"""Renewing the access token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.webcollect import WebCollectRefreshTokenOperator
from airflow_provider_webcollect.service.errors import ConnectionIncomplete
from airflow_provider_webcollect.service.settings import ClientTiming
from tests.airflow.executions import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


def renew(**arguments: Any) -> dict[str, Any]:
    """Execute the operator and return its result."""
    result: dict[str, Any] = execute(WebCollectRefreshTokenOperator(task_id="renew", **arguments))
    return result


def test_a_young_token_is_kept_unless_it_is_to_be_renewed_in_any_case(sandbox: Sandbox) -> None:
    results = [renew(), renew(), renew(renew_after=0)]

    assert [result["renewed"] for result in results] == [True, False, True]
    assert pendulum.parse(results[0]["expires_at"]) > pendulum.now("UTC").add(hours=12)
    assert len(sandbox.control.requests("/token")) == 2


def test_a_refused_credential_fails_without_retries(
    sandbox: Sandbox, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMING", ClientTiming(adoption=0.1))
    sandbox.control.fail("/token", status=400, code="Invalid.Grant", times=None)
    with pytest.raises(AirflowFailException, match=r"Invalid\.Grant") as failed:
        renew()

    assert sandbox.refresh_token not in f"{said()} {failed.value}"


@pytest.mark.parametrize("extra", [{"api_key": "key"}, {"access_token": "token"}], ids=["key", "token"])
def test_a_connection_that_can_obtain_no_token_says_so_and_sends_nothing(
    sandbox: Sandbox, set_connection: Callable[..., None], extra: dict[str, str], said: Callable[[], str]
) -> None:
    set_connection(extra=extra)
    with pytest.raises(
        AirflowFailException,
        match="the connection has nothing to obtain an access token with: set its extra `refresh_token`",
    ) as failed:
        renew()

    assert "rejected" not in f"{said()} {failed.value}"
    with pytest.raises(ConnectionIncomplete, match="nothing to obtain an access token with"):
        WebCollectHook().refresh_token()
    assert sandbox.control.requests() == []


def test_a_failing_service_is_left_to_the_retries(sandbox: Sandbox) -> None:
    sandbox.control.fail("/token", status=429, code="TooManyRequests")

    assert renew()["renewed"]
