"""No long wait is silent: its log says what it waits for, but not all the time."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import GrantRejected, ServiceUnreachable
from airflow_provider_webcollect.service.settings import Credentials, Retries
from airflow_provider_webcollect.service.threads import ThrottledLog
from demo.ports import free_port
from tests.service.conftest import Clock, Connect

PROVIDER = "airflow_provider_webcollect"
STATS = "/cloudextraction/task/stats"
#: Attempts that wait for as long as the service asks, up to 30 seconds.
PATIENT = Retries(first_wait=0.01, longest_wait=30.0)

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.fixture(autouse=True)
def captured(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, PROVIDER)
    # if Airflow was imported before, the sandbox's requests are logged too
    with caplog.filtering(logging.Filter(PROVIDER)):
        yield


def test_a_long_pause_before_a_retry_is_announced(
    on_clock: Connect, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox.control.fail(
        STATS, kind="status", status=503, message="be right back", headers={"Retry-After": "7"}
    )
    on_clock(retries=PATIENT).send(endpoints.get_running_counts())
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "Attempt 2 of at most 7 follows in 7.0 s. get_running_counts: HTTP 503" in line.getMessage()
    assert "be right back" in line.getMessage()


def test_an_unreachable_host_is_named_once_without_the_query(
    on_clock: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    client = on_clock(base_url=f"http://127.0.0.1:{free_port()}", retries=Retries(attempts=4, first_wait=10))
    with pytest.raises(ServiceUnreachable):
        client.send(endpoints.read_data(demo.TASK_ID, 0, 10))
    (line,) = caplog.messages
    assert line.startswith("Attempt 2 of at most 4 follows in ")
    assert " s. read_data: " in line
    assert demo.TASK_ID not in line


def test_waiting_for_the_rate_limit_is_announced(on_clock: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = on_clock()
    for _ in range(2):
        client.send(endpoints.get_task_statuses([demo.TASK_ID]))
    assert caplog.messages == ["get_task_statuses waits 5 s for the rate limit."]


def test_a_wait_for_another_renewal_is_announced(on_clock: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(GrantRejected):
        on_clock(credentials=Credentials(refresh_token="no-such-token")).send(endpoints.get_running_counts())
    assert any("The refresh token was refused; waiting" in message for message in caplog.messages)
    assert "no-such-token" not in caplog.text


def test_one_wait_has_a_line_in_fifteen_seconds(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    wait_log = ThrottledLog(logging.getLogger(PROVIDER), clock.now)
    for _ in range(40):
        wait_log.log(wait_log.lasted, "after %.0f s", wait_log.lasted)
        clock.sleep(1)
    assert caplog.messages == ["after 3 s", "after 18 s", "after 33 s"]
