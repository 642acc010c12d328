"""Tasks of both workers share one credential: it is renewed once, and nobody is locked out."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import pytest

from tests.system.cluster import WORKERS, Cluster
from tests.system.conftest import Say, Service, StartService

TOKEN = "/token"
TASKS = 24
#: Lifetime in seconds of the access token that ends during a test.
LIFE = 40
#: Seconds that the service takes to answer: long enough for all tasks to wait for the same renewal.
LATENCY = 0.5


def start_calls(cluster: Cluster, service: Service) -> str:
    """Have tasks of both workers call the service at once; return the DAG run's id."""
    return cluster.trigger("calls", {"conn_id": service.conn_id})


def wait_for_calls(cluster: Cluster, run_id: str) -> None:
    """Wait for the calls, which must all succeed, on both workers."""
    assert cluster.wait("calls", run_id, 240) == "success"
    tasks = cluster.get(f"dags/calls/dagRuns/{run_id}/taskInstances")["task_instances"]
    assert len(tasks) == TASKS
    assert {task["hostname"] for task in tasks} == set(WORKERS)


def renewals(service: Service) -> int:
    """Return how often the refresh token was sent since the last call; none may have been refused."""
    answers = service.answers(TOKEN)
    service.control.clear_requests()
    assert set(answers) <= {200}
    return answers.get(200, 0)


@pytest.mark.parametrize("reuse", ["refuse", "revoke"])
def test_24_tasks_on_both_workers_share_one_token(
    reuse: str, cluster: Cluster, start_service: StartService, seen: Say
) -> None:
    service = start_service(f"tokens_{reuse}", refresh_reuse=reuse, latency=LATENCY)
    wait_for_calls(cluster, start_calls(cluster, service))
    assert renewals(service) == 1
    seen("no token yet: one renewal for 24 tasks")

    service.control.expire_tokens()
    wait_for_calls(cluster, start_calls(cluster, service))
    assert renewals(service) == 1
    seen("dropped by the service: one")


def test_24_tasks_on_both_workers_share_an_ending_token(
    cluster: Cluster, start_service: StartService, seen: Say
) -> None:
    ends = start_service("tokens_end", refresh_reuse="revoke", latency=LATENCY, token_lifetime=LIFE)
    wait_for_calls(cluster, start_calls(cluster, ends))
    obtained = time.monotonic()
    assert renewals(ends) == 1

    # the tasks begin shortly before the end of the token, and some of them call after it
    time.sleep(max(0.0, obtained + 0.9 * LIFE - time.monotonic()))
    wait_for_calls(cluster, start_calls(cluster, ends))
    lasted = time.monotonic() - obtained
    sent = renewals(ends)
    assert 1 <= sent <= lasted / LIFE + 1
    seen(f"at its end: {sent} in {lasted:.0f} s, a token lasting {LIFE} s")


def all_wait(folder: Path, run_id: str) -> bool:
    """Return whether all calls have logged that they wait for the keeper's token."""
    logs = folder.glob(f"worker-*/logs/dag_id=calls/run_id={run_id}/**/*.log")
    return sum("Waiting for a token from the token keeper's DAG" in log.read_text() for log in logs) == TASKS


def test_24_tasks_wait_for_the_token_keeper(
    cluster: Cluster, start_service: StartService, folder: Path, seen: Say
) -> None:
    service = start_service("tokens_kept", {"token_refresh": "keeper"}, refresh_reuse="revoke")
    for _ in range(2):
        calls = start_calls(cluster, service)
        cluster.wait_for(functools.partial(all_wait, folder, calls), 120, "all tasks to wait for the keeper")
        assert renewals(service) == 0
        renewal = cluster.trigger("keeper", {"conn_id": service.conn_id})
        assert cluster.wait("keeper", renewal, 120) == "success"
        wait_for_calls(cluster, calls)
        assert renewals(service) == 1
        service.control.expire_tokens()
    seen("no token yet, and dropped by the service: one renewal each, the keeper's")
