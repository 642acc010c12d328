"""Reads that take several calls, as client logic for both drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.effects import Sleep, Steps
from airflow_provider_webcollect.service.errors import PagingError
from airflow_provider_webcollect.service.exchange import exchange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_webcollect.service.client import Client
    from airflow_provider_webcollect.service.records import AnalyticsRow, DataPage, SubTask, TaskStatus
    from airflow_provider_webcollect.service.wire import Wire

#: Times that a page is asked for again before a cursor that stands still is an error.
STUCK_TRIES = 5
#: Seconds before a page is asked for again.
STUCK_WAIT = 1.0


def read_page(wire: Wire, task_id: str, lotno: str | None, offset: int, size: int) -> Steps[DataPage]:
    """Read the page at ``offset``, of the whole history or, with ``lotno``, of one batch.

    A page after which the read could not go on (rows are left, but none came or the cursor did not move on)
    is asked for again a few times.

    :raises PagingError: if it stays like that.
    """
    for tries in range(STUCK_TRIES):
        if tries:
            yield Sleep(STUCK_WAIT)
        call = (
            endpoints.read_data(task_id, offset, size)
            if lotno is None
            else endpoints.read_batch_data(task_id, lotno, offset, size)
        )
        page = yield from exchange(call, wire)
        if page.rest_total <= 0 or (page.rows and page.offset > max(offset, 0)):
            return page
    raise PagingError(
        f"reading task {task_id} stands still at offset {offset}: {page.rest_total} of {page.total} rows are "
        f"left, but {len(page.rows)} came and the next offset is {page.offset}",
        endpoint=call.endpoint.name,
    )


def iter_pages(
    client: Client,
    task_id: str,
    lotno: str | None = None,
    *,
    offset: int = 0,
    size: int = endpoints.MAX_DATA_SIZE,
) -> Iterator[DataPage]:
    """Yield the pages from ``offset`` to the end, each read with the cursor that the one before returned."""
    while True:
        page = client.run(read_page(client.wire, task_id, lotno, offset, size))
        yield page
        if page.rest_total <= 0:
            return
        offset = page.offset


def all_subtasks(wire: Wire, task_id: str) -> Steps[list[SubTask]]:
    """Read all sub-tasks of the task's latest batch."""
    found: dict[str, SubTask] = {}
    page = 1
    while True:
        subtasks = yield from exchange(endpoints.get_subtasks(task_id, page), wire)
        known = len(found)
        found.update((subtask.sub_task_id, subtask) for subtask in subtasks)
        # a service that ignores `page` would go on for ever
        if len(subtasks) < endpoints.MAX_SUBTASK_SIZE or len(found) == known:
            return list(found.values())
        page += 1


def all_analytics(wire: Wire, **query: Any) -> Steps[list[AnalyticsRow]]:
    """Read all rows of an analytics query."""
    rows: list[AnalyticsRow] = []
    page = 1
    while True:
        result = yield from exchange(
            endpoints.query_analytics(**query, page=page, page_size=endpoints.MAX_ANALYTICS_SIZE), wire
        )
        rows.extend(result.rows)
        if not result.rows or len(rows) >= result.total:
            return rows
        page += 1


def all_statuses(wire: Wire, task_ids: Sequence[str], batch_size: int) -> Steps[dict[str, TaskStatus]]:
    """Read the states of tasks, ``batch_size`` of them per query, by id; those left out are absent."""
    found: dict[str, TaskStatus] = {}
    for start in range(0, len(task_ids), batch_size):
        batch = task_ids[start : start + batch_size]
        statuses = yield from exchange(endpoints.get_task_statuses_v2(batch), wire)
        found.update((status.task_id, status) for status in statuses)
    return found
