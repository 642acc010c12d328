"""Renewing the access token, as a task of a DAG run."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pendulum
import pytest

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.webcollect import WebCollectRefreshTokenOperator
from airflow_provider_webcollect.service.errors import ConnectionIncomplete, InvalidArgument
from airflow_provider_webcollect.service.settings import Timing
from tests.airflow.dag_runs import FinishedRun, make_dag, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


def renew(**arguments: Any) -> FinishedRun:
    """Run the operator, with retries."""
    return run_tasks(
        lambda: WebCollectRefreshTokenOperator(
            task_id="renew", retries=2, retry_delay=timedelta(0), **arguments
        )
    )


def test_a_young_token_is_kept_unless_it_is_to_be_renewed_in_any_case(sandbox: Sandbox) -> None:
    first, second, third = renew(), renew(), renew(renew_after=0)

    results = [run.xcoms["renew"] for run in (first, second, third)]
    assert [result["renewed"] for result in results] == [True, False, True]
    assert pendulum.parse(results[0]["expires_at"]) > pendulum.now("UTC").add(hours=12)
    assert len(sandbox.control.requests("/token")) == 2


def test_a_refused_credential_fails_without_retries(
    sandbox: Sandbox, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMING", Timing(adoption=0.1))
    sandbox.control.fail("/token", status=400, code="Invalid.Grant", times=None)
    run = renew()

    assert (run.states, run.tries) == ({"renew": "failed"}, {"renew": 1})
    log = said()
    assert "Invalid.Grant" in log
    assert sandbox.refresh_token not in log


@pytest.mark.parametrize("extra", [{"api_key": "key"}, {"access_token": "token"}], ids=["key", "token"])
def test_a_connection_that_can_obtain_no_token_says_so_and_sends_nothing(
    sandbox: Sandbox,
    set_connection: Callable[..., None],
    extra: dict[str, str],
    said: Callable[[], str],
) -> None:
    set_connection(extra=extra)
    run = renew()

    assert (run.states, run.tries) == ({"renew": "failed"}, {"renew": 1})
    log = said()
    assert "the connection has nothing to obtain an access token with: set its extra `refresh_token`" in log
    assert "rejected" not in log
    with pytest.raises(ConnectionIncomplete, match="nothing to obtain an access token with"):
        WebCollectHook().refresh_token()
    assert sandbox.control.requests() == []


def test_a_failing_service_is_left_to_the_retries(sandbox: Sandbox) -> None:
    sandbox.control.fail("/token", status=429, code="TooManyRequests")
    run = renew()

    assert run.states == {"renew": "success"}
    assert run.xcoms["renew"]["renewed"]


@pytest.mark.parametrize("connection", ["webcollect_default", "{{ params.connection }}"])
@pytest.mark.parametrize("share", [-0.1, 1.5, "0.5"])
def test_a_wrong_share_fails_while_the_dag_is_parsed(share: Any, connection: str) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match="`renew_after"):
        WebCollectRefreshTokenOperator(task_id="renew", renew_after=share, webcollect_conn_id=connection)


def test_a_wrong_share_that_is_mapped_fails_before_anything_is_sent(sandbox: Sandbox) -> None:
    run = run_tasks(
        lambda: WebCollectRefreshTokenOperator.partial(
            task_id="renew", retries=2, retry_delay=timedelta(0)
        ).expand(renew_after=[2])
    )

    assert (run.states, run.tries) == ({"renew[0]": "failed"}, {"renew[0]": 1})
    assert sandbox.control.requests() == []
