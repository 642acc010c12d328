"""Reading lists that take several calls, as client logic for both drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.client.exchange import exchange

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.api.records import AnalyticsRow, SubTask
    from airflow_provider_webcollect.service.client.context import ClientContext
    from airflow_provider_webcollect.service.flow import Flow


def all_subtasks(context: ClientContext, task_id: str) -> Flow[list[SubTask]]:
    """Read all sub-tasks of the task's latest batch."""
    found: dict[str, SubTask] = {}
    page = 1
    while True:
        subtasks = yield from exchange(endpoints.get_subtasks(task_id, page), context)
        known = len(found)
        found.update((subtask.sub_task_id, subtask) for subtask in subtasks)
        # if the service ignored `page`, the loop would not end
        if len(subtasks) < endpoints.MAX_SUBTASK_SIZE or len(found) == known:
            return list(found.values())
        page += 1


def all_analytics(context: ClientContext, **query: Any) -> Flow[list[AnalyticsRow]]:
    """Read all rows of an analytics query."""
    rows: list[AnalyticsRow] = []
    page = 1
    while True:
        result = yield from exchange(
            endpoints.query_analytics(**query, page=page, page_size=endpoints.MAX_ANALYTICS_SIZE), context
        )
        rows.extend(result.rows)
        if not result.rows or len(rows) >= result.total:
            return rows
        page += 1
