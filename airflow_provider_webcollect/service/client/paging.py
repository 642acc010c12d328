"""Reading lists that take several calls, as client logic for both drivers, and the check of their counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.client.exchange import exchange
from airflow_provider_webcollect.service.errors import PagingError

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.api.records import AnalyticsRow, SubTask
    from airflow_provider_webcollect.service.client.context import ClientContext
    from airflow_provider_webcollect.service.flow import Flow


@dataclass
class RowCount:
    """Compares the rows of consecutive pages, from the first row on, with what the service announces.

    :param rows: number of rows before the next page.
    :param total: number of all rows, as announced last.
    :param endpoint: the operation, for messages.
    """

    rows: int = 0
    total: int = 0
    endpoint: str | None = None

    def add(self, rows: int, total: int, *, more: bool) -> None:
        """Count the rows of a page.

        :param more: whether the service says that rows are left after it.
        :raises PagingError: if the service's counts contradict the rows or each other.
        """
        rows_so_far = self.rows + rows
        if total < self.total:
            self._refuse(f"announced {self.total} rows, and then {total}")
        if more and rows_so_far > total:
            self._refuse(f"announced {total} rows, {rows_so_far} came, and more are said to be left")
        self.rows, self.total = rows_so_far, total

    def check_end(self) -> None:
        """Check that as many rows came as were announced.

        :raises PagingError: if not.
        """
        if self.rows != self.total:
            self._refuse(f"announced {self.total} rows, and {self.rows} came")

    def _refuse(self, what: str) -> NoReturn:
        raise PagingError(f"the service {what}", endpoint=self.endpoint)


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
    """Read all rows of an analytics query.

    :raises PagingError: if fewer or more rows come than the service announces.
    """
    rows: list[AnalyticsRow] = []
    count = RowCount(endpoint=endpoints.QUERY_ANALYTICS.name)
    page = 1
    while True:
        result = yield from exchange(
            endpoints.query_analytics(**query, page=page, page_size=endpoints.MAX_ANALYTICS_SIZE), context
        )
        rows.extend(result.rows)
        count.add(len(result.rows), result.total, more=False)
        if not result.rows or len(rows) >= result.total:
            count.check_end()
            return rows
        page += 1
