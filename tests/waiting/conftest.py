"""Statuses of a task, as the service shows them, and a wait that is polled at the times that a test sets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import pendulum
import pytest

from airflow_provider_webcollect.service.models import TaskStatus
from airflow_provider_webcollect.waiting.conditions import Condition, Ended, Outcome, Wait

#: The moment from which tests count the minutes until runs begin and end.
EPOCH = pendulum.naive(2026, 1, 1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, *values: object) -> None:
        self.lines.append(line % values)


def shown(
    state: str, task_id: str = "a", began: int | None = None, ended: int | None = None, **fields: Any
) -> TaskStatus:
    """Return a task's status; ``began`` and ``ended`` are minutes after :data:`EPOCH`."""
    return TaskStatus(
        task_id=task_id,
        status=state,
        start_execute_time=None if began is None else EPOCH.add(minutes=began),
        end_execute_time=None if ended is None else EPOCH.add(minutes=ended),
        **fields,
    )


def by_id(task_ids: Iterable[str], *statuses: TaskStatus) -> dict[str, TaskStatus | None]:
    return dict.fromkeys(task_ids) | {status.task_id: status for status in statuses}


class PolledWait:
    """A wait that began at the Unix time 0."""

    def __init__(self, clock: Clock, condition: Condition) -> None:
        self.clock = clock
        self.wait = Wait(condition, 0.0, Log())

    def at(self, now: float, polled: Mapping[str, Any]) -> Ended | None:
        """Let a poll show something at ``now``; return the end of the wait, or None if it goes on."""
        self.clock.now = now
        return self.wait.judge(polled)

    def failure(self, now: float, polled: Mapping[str, Any]) -> str:
        """Let a poll show something at ``now``; return the reason why the wait has failed."""
        ended = self.at(now, polled)
        assert ended
        assert ended.outcome is Outcome.FAILED
        return ended.reason

    def outcome(self, now: float, *statuses: TaskStatus | None) -> Outcome | None:
        """Let a poll show statuses at ``now``; return the outcome of the wait, or None if it goes on."""
        ended = self.at(now, by_id(self.wait.condition.keys, *filter(None, statuses)))
        return ended.outcome if ended else None
