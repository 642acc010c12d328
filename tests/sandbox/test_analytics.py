"""Analytics by day, week and month: endpoint 2."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pendulum
import pytest

from airflow_provider_webcollect.sandbox import demo
from tests.sandbox.plain_client import Client, data, refusal

PATH = "/taskanalytics/queries"


def in_days(days: int) -> date:
    """Return the date this number of days after today (UTC); a run of the tests may go past midnight."""
    return datetime.now(UTC).date() + timedelta(days=days)


def ask(client: Client, **more: Any) -> Any:
    return client.post(PATH, {"start": str(in_days(-40)), "end": str(in_days(0)), **more})


def rows(client: Client, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = data(ask(client, **{"pageSize": 500, **more}))["data"]
    return found


def test_every_unit_has_its_key_and_a_longer_one_has_fewer_rows(client: Client) -> None:
    by_day, by_week, by_month = (rows(client, timeGranularity=unit) for unit in ("Day", "Week", "Month"))
    day, week, month = by_day[0], by_week[0], by_month[0]
    assert rows(client) == by_day
    assert len(by_day) > len(by_week) > len(by_month)
    assert date.fromisoformat(day["dayKey"])
    assert "weekStartDate" not in day
    tuesday = date.fromisoformat(week["weekStartDate"])
    assert tuesday.weekday() == 1
    assert week["dayKey"] == f"{tuesday.isocalendar().year}-{tuesday.isocalendar().week:02}"
    assert date.fromisoformat(week["weekEndDate"]) - tuesday == timedelta(days=6)
    assert datetime.strptime(month["dayKey"], "%Y-%m")


def test_tasks_that_ran_are_in_it_by_their_names_of_today(client: Client) -> None:
    def names() -> dict[str, str]:
        return {row["taskId"]: row["taskName"] for row in rows(client)}

    assert names() == {demo.FINISHED_TASK_ID: "Price list"}
    client.control.start_task(demo.TASK_ID)
    client.control.rename_task(demo.FINISHED_TASK_ID, "Prices")
    assert names() == {demo.TASK_ID: "Shop search", demo.FINISHED_TASK_ID: "Prices"}
    assert client.control.task(demo.FINISHED_TASK_ID)["name"] == "Prices"


@pytest.mark.webcollect_sandbox(echo_ids="upper")
def test_ids_may_have_another_letter_case(client: Client) -> None:
    found = rows(client, taskIds=[demo.FINISHED_TASK_ID.upper()])
    assert {row["taskId"].lower() for row in found} == {demo.FINISHED_TASK_ID}


def test_unused_fields_may_be_empty(client: Client) -> None:
    empty = rows(client, taskIds=[], memberNames=[], collectionMethod="", timeGranularity=None, page=None)
    assert empty == rows(client)


METRICS = ("dataVolumeMetrics", "executionMetrics", "resourceUsageMetrics")


def test_metrics_can_be_null(client: Client) -> None:
    complete = rows(client)
    client.control.configure(null_metrics=True)
    assert rows(client) == [row | {kind: dict.fromkeys(row[kind]) for kind in METRICS} for row in complete]


def test_the_number_of_proxy_addresses_may_be_a_fraction(client: Client) -> None:
    assert any(row["resourceUsageMetrics"]["proxyIpCount"] % 1 for row in rows(client))


def test_only_ones_own_tasks_count_unless_colleagues_are_named(client: Client) -> None:
    def owners(**more: Any) -> set[str]:
        return {row["userId"] for row in rows(client, **more)}

    assert owners() == {"user-demo"}
    assert owners(memberNames=["alice"]) == {"user-alice"}
    assert owners(memberNames=["demo", "alice"]) == {"user-demo", "user-alice"}


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"memberNames": ["mallory"]}, "MemberNotAllowed"),
        ({"start": "2026-02-30"}, "InvalidParameter"),
        ({"end": timedelta(1)}, "InvalidParameter"),
        ({"start": timedelta(0), "end": timedelta(-1)}, "InvalidParameter"),
    ],
)
def test_a_query_beyond_the_limits_is_refused(client: Client, more: dict[str, Any], code: str) -> None:
    days = {name: str(in_days(0) + value) for name, value in more.items() if isinstance(value, timedelta)}
    assert refusal(ask(client, **more | days)) == (400, code)


def test_the_latest_three_months_can_be_asked_for(client: Client) -> None:
    oldest = pendulum.now("UTC").subtract(months=3)
    assert data(ask(client, start=oldest.to_date_string()))["total"] > 0
    assert refusal(ask(client, start=oldest.subtract(days=2).to_date_string())) == (400, "InvalidParameter")
