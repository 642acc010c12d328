"""Waiting for capacity for more runs; what ends a wait, in each mode, is in ``test_end_of_waits.py``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.sensors.webcollect import WebCollectCapacitySensor
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.triggers.webcollect import WebCollectCapacityTrigger
from tests.airflow.dag_runs import make_dag, run_tasks
from tests.airflow.executions import execute
from tests.airflow.waits import MODES, outcome
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False, run_seconds=10_000, stale_seconds=0),
]

STATS = "/cloudextraction/task/stats"


def sensor(**arguments: Any) -> WebCollectCapacitySensor:
    """Return a sensor that pokes often."""
    usual = {"task_id": "wait", "poke_interval": 0.1, "timeout": PATIENCE}
    return WebCollectCapacitySensor(**{**usual, **arguments})


@pytest.fixture
def busy(sandbox: Sandbox) -> list[str]:
    """Two tasks that are extracting, with three sub-tasks each, and no other."""
    assert all(task["state"] not in {"Extracting", "Waiting"} for task in sandbox.control.tasks())
    return [sandbox.control.add_task(state="Extracting", subtasks=3)["task_id"] for _ in range(2)]


@pytest.mark.parametrize(
    ("mode", "limit"),
    [
        ("poke", {"max_active_tasks": 2}),
        ("reschedule", {"max_active_sub_tasks": 6}),
        ("deferrable", {"max_active_tasks": 2}),
    ],
)
def test_the_wait_ends_with_the_run_that_used_the_capacity(
    mode: str, limit: dict[str, int], sandbox: Sandbox, busy: list[str], after_requests: Any
) -> None:
    after_requests(1, STATS, sandbox.control.stop_task, busy[0])
    run = run_tasks(lambda: sensor(**MODES[mode], **limit))

    assert run.states == {"wait": "success"}
    assert run.xcoms["wait"]["extracting_count"] == 1
    assert len(sandbox.control.requests(STATS)) >= 2


def test_with_capacity_one_poll_suffices(sandbox: Sandbox, busy: list[str]) -> None:
    counts = execute(sensor(max_active_tasks=3, max_active_sub_tasks=7))

    assert len(sandbox.control.requests(STATS)) == 1
    assert set(counts) >= {"waiting_count", "executing_sub_task_count"}


def test_the_error_says_that_the_plan_is_too_low(sandbox: Sandbox) -> None:
    sandbox.control.fail(STATS, status=403, code="PermissionDenied", times=None)
    with pytest.raises(AirflowFailException, match="HTTP 403 PermissionDenied"):
        execute(sensor(max_active_tasks=1))


def test_limits_may_be_templates_and_mapped(sandbox: Sandbox, busy: list[str]) -> None:
    run = run_tasks(
        lambda: sensor(task_id="templated", max_active_tasks="{{ 1 + 2 }}"),
        lambda: WebCollectCapacitySensor.partial(task_id="wait", poke_interval=0.1).expand(
            max_active_tasks=[3, 4]
        ),
    )

    assert run.states == {"templated": "success", "wait[0]": "success", "wait[1]": "success"}


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


async def test_many_deferred_waits_share_one_poll(sandbox: Sandbox, busy: list[str]) -> None:
    def trigger() -> WebCollectCapacityTrigger:
        return WebCollectCapacityTrigger(
            condition={"max_active_tasks": 3}, poke_interval=0.2, webcollect_conn_id="webcollect_default"
        )

    events = await asyncio.gather(*(outcome(trigger()) for _ in range(200)))

    assert {event["outcome"] for event in events} == {"done"}
    assert len(sandbox.control.requests(STATS)) < 10
