"""Redis, PostgreSQL or the service fails while work of every kind is under way, and all work ends right."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from airflow_provider_webcollect.sandbox import demo
from demo.ports import free_port
from demo.processes import Processes
from tests.interruption import PATIENCE
from tests.system.cluster import Cluster
from tests.system.conftest import Say, Service, StartService
from tests.system.runs import Runs

PROJECT = Path(__file__).parents[2]
WAITS, STARTS, LANDINGS, CALLS = "outage_waits", "start_and_wait", "landings", "starts_and_calls"
DATA, TOKEN = "/data/all", "/token"
ROWS = 8_000
RUN_SECONDS = 5_000
DOWN_SECONDS = 60.0
#: What the error of a failed attempt must say if the service is the cause. When it is back, all waiting tasks
#: may call it at once, so the rate limit may be the cause, too.
ABOUT_SERVICE = (
    r"Check the connection's host, the network|Check the network, or raise"
    r"|HTTP 429 TooManyRequests: At most 20 requests per 1 s"
)
REFUSED = "the refresh token was refused"
#: What the error must say if the cause is a credential that was refused or replaced, or PostgreSQL's restart
#: before that: tasks wait for a renewal that the restart has cut off, and Airflow finds no connection while
#: its database is down.
ABOUT_CREDENTIAL = (
    r"the connection has (changed since it was read, and|a new credential, which)"
    rf"|{REFUSED}|no token for \d+ s|The conn_id `revoked` isn't defined"
)
SECRET = re.compile(rb"sandbox-(access|refresh)-")


class Work(Runs):
    """Work of every kind that is under way: waits, landings and calls.

    The service takes two seconds to answer, and ten with rows, so that no work ends too early.
    """

    def __init__(self, cluster: Cluster, service: Service, folder: Path) -> None:
        super().__init__(cluster, service, folder / "landed" / service.conn_id)
        self._control = service.control
        times = {"wait_seconds": 0, "run_seconds": RUN_SECONDS, "stale_seconds": 0}
        self._control.configure(latency=2, subtasks=2, **times)
        self._started, self._landed = self.add_tasks(2), self.add_tasks(2, rows=ROWS, state="Finished")
        self.start(WAITS, self.add_tasks(16, state="Extracting"))
        self.start(STARTS, self._started)
        self.start(LANDINGS, self._landed)
        self.wait_for(self.all_wait, "all waits to be deferred")
        self.wait_for(lambda: service.answers(DATA).get(200, 0) > 10, "the landings to have parts")
        self._control.fail(DATA, kind="slow", seconds=10, times=None)
        self.call()

    def call(self) -> None:
        """Begin calls in addition to the rest, and wait until some are under way and others queued."""
        # work that an outage has ended begins again
        self.wait_for(
            lambda: self.all_wait() and self.states(LANDINGS) == {"running": 2}, "all work to be under way"
        )
        started = self.add_tasks(2)
        self._started += started
        self.start(CALLS, started)
        self.wait_for(lambda: self.states(CALLS)["running"] > 3, "calls to be under way")
        assert self.states(WAITS, STARTS, LANDINGS)["success"] == 0

    def all_wait(self) -> bool:
        return self.states(WAITS, STARTS) == {"deferred": 18}

    def finish(self, *, cleared: str | None = None) -> None:
        """Expire the token, end the collection tasks, and check that all work ends right.

        :param cleared: the error of tasks that may fail for good and are then cleared; None: none may fail.
        """
        assert self.states(WAITS, STARTS)["success"] == 0
        # at full speed, the landings of two workers would leave calls no room under the service's rate limit
        self._control.configure(latency=0.2)
        self._control.clear_faults()
        self._control.expire_tokens()
        self._control.advance(RUN_SECONDS)
        if self.wait() != {"success"} and cleared:
            self.clear_failed(cleared)
        assert self.wait() == {"success"}
        # each task was started once, even if the answer to the start was lost
        assert {len(self._control.task(task_id)["runs"]) for task_id in self._started} == {1}
        for task_id in self._landed:
            self.check_landed(task_id, ROWS)


class Route:
    """A port that forwards to a service, and that can be closed."""

    def __init__(self, service: Service, processes: Processes, folder: Path) -> None:
        self._processes, self._folder, self._port = processes, folder, free_port()
        self._to = urlsplit(service.url)
        self.url = f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        to = [str(self._to.hostname), str(self._to.port)]
        self._processes.start(
            "route",
            [sys.executable, "-m", "benchmarks.link", *to, "inf", str(self._port)],
            log=self._folder / "output" / "route.log",
            env={},
            cwd=PROJECT,
        )

    def close(self) -> None:
        self._processes.kill("route")


@pytest.fixture(autouse=True)
def no_secrets(folder: Path) -> Iterator[None]:
    """Check that no token is in any log."""
    yield
    logs = [*folder.glob("output/*.log"), *folder.glob("*/logs/**/*.log")]
    assert logs
    assert [log for log in logs if SECRET.search(log.read_bytes())] == []


@pytest.fixture
def restarts(cluster: Cluster) -> Callable[[], str]:
    """Returns the names of the components that have ended by themselves in the test."""
    before = Counter(cluster.restarts)
    return lambda: ", ".join(sorted((cluster.restarts - before).elements())) or "none"


def said(failures: dict[str, str | None], about: str) -> str:
    """Check that each logged error matches ``about``, and return how many attempts logged an error."""
    errors = [error for error in failures.values() if error]
    assert [error for error in errors if not re.search(about, error)] == []
    return f"{len(errors)} attempts failed and said why, Airflow ended {len(failures) - len(errors)}"


def test_redis_is_killed_and_the_service_is_down_for_a_minute(
    cluster: Cluster, start_service: StartService, folder: Path, restarts: Callable[[], str], seen: Say
) -> None:
    service = start_service("service_down", refresh_reuse="revoke")
    with Processes() as processes:
        route = Route(service, processes, folder)
        route.open()
        cluster.update_connection(service.conn_id, "webcollect", host=route.url)
        work = Work(cluster, service, folder)
        cluster.redis.kill()
        cluster.redis.start()
        work.call()
        route.close()
        opens_at = time.monotonic() + DOWN_SECONDS
        work.wait_for(lambda: time.monotonic() >= opens_at, "the minute to be over")
        route.open()
        work.finish()
    assert service.answers(TOKEN).keys() == {200}
    seen(f"{said(work.failures(), ABOUT_SERVICE)}; started again: {restarts()}")


def test_postgresql_is_restarted_and_the_token_replaced(
    cluster: Cluster, start_service: StartService, folder: Path, restarts: Callable[[], str], seen: Say
) -> None:
    service = start_service("revoked", refresh_reuse="revoke")
    work = Work(cluster, service, folder)
    cluster.postgres.kill()
    time.sleep(5)  # components of Airflow end meanwhile
    cluster.postgres.start()
    work.wait_for(cluster.is_up, "Airflow to be up")
    work.call()
    before = work.failures()
    service.control.expire_tokens(refresh_tokens=True)
    work.wait_for(lambda: 400 in service.answers(TOKEN), "the refresh token to be refused")
    grant = {"username": demo.USERNAME, "password": demo.PASSWORD, "grant_type": "password"}
    record = requests.post(f"{service.url}{TOKEN}", json=grant, timeout=PATIENCE).json()["data"]
    extra = json.dumps({"refresh_token": record["refresh_token"]})
    cluster.update_connection(service.conn_id, "webcollect", extra=extra)
    # on a busy machine, a task may be refused before the connection has changed, which is final
    work.finish(cleared=REFUSED)
    assert service.answers(TOKEN)[400] == 1
    after = {name: error for name, error in work.failures().items() if name not in before}
    seen(f"{len(before)} attempts failed; then {said(after, ABOUT_CREDENTIAL)}; started again: {restarts()}")
