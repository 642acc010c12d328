"""Waiting for capacity for more runs, as a task of a DAG run: poking, rescheduling and deferred alike."""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.sensors.webcollect import WebCollectCapacitySensor
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.triggers.capacity import WebCollectCapacityTrigger
from tests.airflow.dag_runs import FinishedRun, make_dag, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False, run_seconds=10_000, stale_seconds=0),
]

STATS = "/cloudextraction/task/stats"
MODES: dict[str, dict[str, Any]] = {
    "poke": {"mode": "poke"},
    "reschedule": {"mode": "reschedule"},
    "deferrable": {"deferrable": True},
}
each_mode = pytest.mark.parametrize("mode", MODES)


def wait(mode: str = "poke", **arguments: Any) -> FinishedRun:
    """Run the sensor in a mode."""
    usual = {"poke_interval": 0.1, "timeout": 60, **MODES[mode]}
    return run_tasks(lambda: WebCollectCapacitySensor(task_id="wait", **{**usual, **arguments}))


@pytest.fixture
def busy(sandbox: Sandbox) -> list[str]:
    """Two tasks that are extracting, with three sub-tasks each, and no other."""
    assert all(task["state"] not in {"Extracting", "Waiting"} for task in sandbox.control.tasks())
    return [sandbox.control.add_task(state="Extracting", subtasks=3)["task_id"] for _ in range(2)]


@pytest.fixture
def once_polled(sandbox: Sandbox) -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Calls a function once the counts have been queried."""
    threads: list[threading.Thread] = []

    def wait_and_do(action: Callable[[], Any]) -> None:
        while not sandbox.control.counters().get(STATS):
            time.sleep(0.02)
        action()

    def plan(action: Callable[[], Any]) -> None:
        threads.append(threading.Thread(target=wait_and_do, args=(action,)))
        threads[-1].start()

    yield plan
    for thread in threads:
        thread.join()


@each_mode
class TestEachMode:
    @pytest.mark.parametrize("limit", [{"max_active_tasks": 2}, {"max_active_sub_tasks": 6}])
    def test_the_wait_ends_with_the_run_that_used_the_capacity(
        self, mode: str, limit: dict[str, int], sandbox: Sandbox, busy: list[str], once_polled: Any
    ) -> None:
        once_polled(lambda: sandbox.control.stop_task(busy[0]))
        run = wait(mode, **limit)

        assert run.states == {"wait": "success"}
        assert run.xcoms["wait"]["extracting_count"] == 1
        assert len(sandbox.control.requests(STATS)) >= 2

    def test_with_capacity_one_poll_suffices(self, mode: str, sandbox: Sandbox, busy: list[str]) -> None:
        run = wait(mode, max_active_tasks=3, max_active_sub_tasks=7)

        assert run.states == {"wait": "success"}
        assert len(sandbox.control.requests(STATS)) == 1
        assert set(run.xcoms["wait"]) >= {"waiting_count", "executing_sub_task_count"}

    def test_a_plan_that_is_too_low_is_not_retried(
        self, mode: str, sandbox: Sandbox, said: Callable[[], str]
    ) -> None:
        sandbox.control.fail(STATS, status=403, code="PermissionDenied", times=None)
        run = wait(mode, max_active_tasks=1, retries=3, retry_delay=datetime.timedelta(0))

        assert (run.states, run.tries) == ({"wait": "failed"}, {"wait": 1})
        assert "HTTP 403 PermissionDenied" in said()

    def test_a_lost_connection_does_not_end_the_wait(self, mode: str, sandbox: Sandbox) -> None:
        sandbox.control.fail(STATS, kind="drop")
        run = wait(mode, max_active_tasks=1)

        assert (run.states, run.tries) == ({"wait": "success"}, {"wait": 1})


# `dag.test()` ends no deferred task at its timeout
@pytest.mark.parametrize("mode", ["poke", "reschedule"])
@pytest.mark.parametrize(("soft_fail", "state"), [(False, "failed"), (True, "skipped")])
def test_without_capacity_it_times_out(
    mode: str, soft_fail: bool, state: str, busy: list[str], said: Callable[[], str]
) -> None:
    # capacity for tasks alone is not enough
    run = wait(mode, max_active_tasks=9, max_active_sub_tasks=6, timeout=0.5, soft_fail=soft_fail)

    assert run.states == {"wait": state}
    assert "2 tasks are active, there is capacity below 9, 6 sub-tasks are active" in said()


def test_limits_may_be_templates_and_mapped(sandbox: Sandbox, busy: list[str]) -> None:
    templated = wait(max_active_tasks="{{ 1 + 2 }}")
    mapped = run_tasks(
        lambda: WebCollectCapacitySensor.partial(task_id="wait", poke_interval=0.1).expand(
            max_active_tasks=[3, 4]
        )
    )

    assert templated.states == {"wait": "success"}
    assert mapped.states == {"wait[0]": "success", "wait[1]": "success"}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({}, "max_active_tasks"),
        ({"max_active_tasks": 0}, "max_active_tasks"),
        ({"max_active_tasks": "many"}, "max_active_tasks"),
        ({"max_active_sub_tasks": True}, "max_active_sub_tasks"),
    ],
)
def test_a_wrong_limit_fails_while_the_dag_is_parsed(arguments: dict[str, Any], name: str) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=f"`{name}"):
        WebCollectCapacitySensor(task_id="wait", **arguments)


class TestTrigger:
    def trigger(self, limit: int) -> WebCollectCapacityTrigger:
        return WebCollectCapacityTrigger(
            wait={"max_active_tasks": limit}, poke_interval=0.2, webcollect_conn_id="webcollect_default"
        )

    async def outcome(self, trigger: WebCollectCapacityTrigger) -> dict[str, Any]:
        (payload,) = [event.payload async for event in trigger.run()]
        return payload

    def test_it_survives_being_stored(self) -> None:
        path, arguments = self.trigger(3).serialize()

        assert path == f"{WebCollectCapacityTrigger.__module__}.WebCollectCapacityTrigger"
        assert WebCollectCapacityTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)

    async def test_many_waits_share_one_poll(self, sandbox: Sandbox, busy: list[str]) -> None:
        events = await asyncio.gather(*(self.outcome(self.trigger(3)) for _ in range(200)))

        assert {event["outcome"] for event in events} == {"done"}
        assert len(sandbox.control.requests(STATS)) < 10
