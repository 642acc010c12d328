"""Shared by tests of waits: the sensors, their modes, and running triggers as a triggerer does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

import pytest

from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectSubTaskStatusSensor,
    WebCollectTaskStatusSensor,
)
from airflow_provider_webcollect.triggers.webcollect import (
    WebCollectSubTaskStatusTrigger,
    WebCollectTaskStatusTrigger,
)
from tests.interruption import PATIENCE

SENSORS = {"task": WebCollectTaskStatusSensor, "subtask": WebCollectSubTaskStatusSensor}
#: The paths that the sensors poll.
STATUS_PATHS = {"task": "/cloudextraction/statuses/v2", "subtask": "/cloudextraction/task/subtasks"}
MODES: dict[str, dict[str, Any]] = {
    "poke": {"mode": "poke"},
    "reschedule": {"mode": "reschedule"},
    "deferrable": {"deferrable": True},
}


_Trigger = TypeVar("_Trigger")


def each_mode(by_day: str) -> pytest.MarkDecorator:
    """Run a test in each mode; by day, in one mode."""
    modes = [pytest.param(mode, marks=() if mode == by_day else pytest.mark.at_night) for mode in MODES]
    return pytest.mark.parametrize("mode", modes)


def for_task(task: dict[str, Any], **arguments: Any) -> WebCollectTaskStatusTrigger:
    """Return a trigger that waits for a task.

    :param arguments: arguments of the trigger, or of its condition.
    """
    return _trigger(WebCollectTaskStatusTrigger, {"task_ids": [task["task_id"]]}, arguments)


def for_subtasks(task: dict[str, Any], **arguments: Any) -> WebCollectSubTaskStatusTrigger:
    """Return a trigger that waits for a task's sub-tasks."""
    return _trigger(WebCollectSubTaskStatusTrigger, {"task_id": task["task_id"]}, arguments)


def _trigger(kind: Callable[..., _Trigger], condition: dict[str, Any], arguments: dict[str, Any]) -> _Trigger:
    options: dict[str, Any] = {"poke_interval": 0.2, "webcollect_conn_id": "webcollect_default"}
    for name in {"poke_interval", "began", "timeout"} & arguments.keys():
        options[name] = arguments.pop(name)
    return kind(condition={**condition, **arguments}, **options)


async def outcome(trigger: Any) -> dict[str, Any]:
    """Run a trigger as the triggerer does, and return its one event."""
    async with asyncio.timeout(PATIENCE), aclosing(trigger.run()) as events:
        (payload,) = [event.payload async for event in events]
    return dict(payload)


async def until(happened: Callable[[], object]) -> None:
    """Wait on the event loop until something has happened."""
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.01)


def other_tasks(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Return the event loop's tasks, except the current one and those in ``before``."""
    return asyncio.all_tasks() - before - {task for task in (asyncio.current_task(),) if task}
