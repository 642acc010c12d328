"""Generated but reproducible analytics: a task's numbers for a day are the same in every query."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider_webcollect.sandbox.world import Task

_METRICS = ("dataVolumeMetrics", "executionMetrics", "resourceUsageMetrics")


@dataclass
class Volume:
    """What a task did in a period."""

    collected: int = 0
    duplicates: int = 0
    runs: int = 0
    failures: int = 0
    seconds: int = 0
    captchas: int = 0
    template_rows: int = 0
    proxy_ip_halves: int = 0
    cents: int = 0

    def add(self, other: Volume) -> None:
        """Add the numbers of another period."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def months_back(day: date, months: int) -> date:
    """The same day some months earlier, or that month's last day."""
    year, month = divmod(day.year * 12 + day.month - 1 - months, 12)
    following = date(year + (month + 1) // 12, (month + 1) % 12 + 1, 1)
    return min(date(year, month + 1, 1) + timedelta(days=day.day - 1), following - timedelta(days=1))


def records(
    seed: int, tasks: Iterable[Task], start: date, end: date, granularity: str, methods: Iterable[str]
) -> list[dict[str, Any]]:
    """
    Analytics rows of the contract, by bucket, then task, then collection method.

    :param granularity: ``Day``, ``Week`` or ``Month``.
    :param methods: ``Cloud``, ``Local`` or both.
    """
    buckets: dict[tuple[str, str, str], tuple[Task, date, Volume]] = {}
    for task in tasks:
        for method in methods:
            for day, volume in _days(seed, task, start, end, method):
                key = (_day_key(day, granularity), task.task_id, method)
                buckets.setdefault(key, (task, day, Volume()))[2].add(volume)
    return [
        _record(task, day, granularity, method, volume)
        for (_, _, method), (task, day, volume) in sorted(buckets.items(), key=lambda bucket: bucket[0])
    ]


def with_nulls(seed: int, record: dict[str, Any], share: float) -> dict[str, Any]:
    """
    Return a row with some metrics set to null, always the same ones.

    :param share: share of the metrics that are null, from 0 to 1.
    """
    key = f"{record['taskId']}/{record['dayKey']}/{record['collectionMethod']}"
    chance = random.Random(f"{seed}/{key}/nulls")
    return record | {
        kind: {name: None if chance.random() < share else value for name, value in record[kind].items()}
        for kind in _METRICS
    }


def _days(seed: int, task: Task, start: date, end: date, method: str) -> Iterator[tuple[date, Volume]]:
    for offset in range((end - start).days + 1):
        day = start + timedelta(days=offset)
        chance = random.Random(f"{seed}/{task.task_id}/{day}/{method}")
        if chance.random() < (0.7 if method == "Cloud" else 0.2):
            runs, collected = chance.randint(1, 6), chance.randint(0, 20_000)
            yield (
                day,
                Volume(
                    collected=collected,
                    duplicates=chance.randint(0, collected // 20),
                    runs=runs,
                    failures=chance.randint(0, runs) // 3,
                    seconds=runs * chance.randint(20, 900),
                    captchas=chance.randint(0, 9),
                    template_rows=collected // 10,
                    proxy_ip_halves=chance.randint(0, 100),
                    cents=chance.randint(0, 500),
                ),
            )


def _day_key(day: date, granularity: str) -> str:
    formats = {"Day": "%Y-%m-%d", "Week": "%G-%V", "Month": "%Y-%m"}
    return (_first_of_week(day) if granularity == "Week" else day).strftime(formats[granularity])


def _first_of_week(day: date) -> date:
    """Return the Tuesday on or before ``day``: weeks run from Tuesday to Monday in the vendor's sample."""
    return day - timedelta(days=(day.weekday() - 1) % 7)


def _record(task: Task, day: date, granularity: str, method: str, volume: Volume) -> dict[str, Any]:
    first = _first_of_week(day)
    week = {"weekStartDate": str(first), "weekEndDate": str(first + timedelta(days=6))}
    return {
        "taskId": task.task_id,
        "userId": f"user-{task.owner}",
        "taskName": task.name,
        "dayKey": _day_key(day, granularity),
        **(week if granularity == "Week" else {}),
        "collectionMethod": method,
        "dataVolumeMetrics": {
            "totalCollected": volume.collected,
            "deduplicatedVolume": volume.collected - volume.duplicates,
        },
        "executionMetrics": {
            "runCount": volume.runs,
            "successCount": volume.runs - volume.failures,
            "failureCount": volume.failures,
            "durationPerRunSeconds": round(volume.seconds / volume.runs, 2),
            "totalExecutionSeconds": volume.seconds,
            "successRate": round(1 - volume.failures / volume.runs, 4),
            "failureRate": round(volume.failures / volume.runs, 4),
        },
        "resourceUsageMetrics": {
            "captchaCount": volume.captchas,
            "simpleTemplateCount": volume.template_rows if method == "Cloud" else None,
            "proxyIpCount": volume.proxy_ip_halves / 2,
            "balance": volume.cents / 100,
        },
    }
