"""Made-up analytics rows: what each task collected per day, week or month."""

from __future__ import annotations

import itertools
import random
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_webcollect.sandbox.world import Task

METRICS = ("dataVolumeMetrics", "executionMetrics", "resourceUsageMetrics")


def months_back(day: date, months: int) -> date:
    """Return the same day some months earlier, or the last day of that month if it is shorter."""
    year, month = divmod(day.year * 12 + day.month - 1 - months, 12)
    following = date(year + (month + 1) // 12, (month + 1) % 12 + 1, 1)
    return min(date(year, month + 1, 1) + timedelta(days=day.day - 1), following - timedelta(days=1))


def records(
    seed: int, tasks: Iterable[Task], start: date, end: date, granularity: str, methods: Iterable[str]
) -> list[dict[str, Any]]:
    """Return made-up analytics rows as in the contract, ordered by period, task and collection method.

    :param granularity: length of a period: ``Day``, ``Week`` or ``Month``.
    :param methods: ``Cloud``, ``Local`` or both.
    """
    days = [start + timedelta(days=offset) for offset in range((end - start).days + 1)]
    buckets = {_day_key(day, granularity): day for day in days}
    by_id = sorted(tasks, key=lambda task: task.task_id)
    return [
        _record(random.Random(f"{seed}/{task.task_id}/{key}/{method}"), task, key, method)
        | (_week(buckets[key]) if granularity == "Week" else {})
        for key, task, method in itertools.product(sorted(buckets), by_id, methods)
    ]


def _day_key(day: date, granularity: str) -> str:
    formats = {"Day": "%Y-%m-%d", "Week": "%G-%V", "Month": "%Y-%m"}
    return (_first_of_week(day) if granularity == "Week" else day).strftime(formats[granularity])


def _first_of_week(day: date) -> date:
    """Return the Tuesday on or before ``day``: weeks run from Tuesday to Monday in the vendor's sample."""
    return day - timedelta(days=(day.weekday() - 1) % 7)


def _week(day: date) -> dict[str, str]:
    first = _first_of_week(day)
    return {"weekStartDate": str(first), "weekEndDate": str(first + timedelta(days=6))}


def _record(chance: random.Random, task: Task, key: str, method: str) -> dict[str, Any]:
    collected, seconds = chance.randint(0, 20_000), chance.randint(20, 5400)
    runs = chance.randint(1, 6)
    failures = chance.randint(0, runs) // 3
    return {
        "taskId": task.task_id,
        "userId": f"user-{task.owner}",
        "taskName": task.name,
        "dayKey": key,
        "collectionMethod": method,
        "dataVolumeMetrics": {
            "totalCollected": collected,
            "deduplicatedVolume": collected - collected // 20,
        },
        "executionMetrics": {
            "runCount": runs,
            "successCount": runs - failures,
            "failureCount": failures,
            "durationPerRunSeconds": round(seconds / runs, 2),
            "totalExecutionSeconds": seconds,
            "successRate": round(1 - failures / runs, 4),
            "failureRate": round(failures / runs, 4),
        },
        "resourceUsageMetrics": {
            "captchaCount": chance.randint(0, 9),
            "simpleTemplateCount": collected // 10 if method == "Cloud" else None,
            "proxyIpCount": runs / 2,
            "balance": runs / 10,
        },
    }
