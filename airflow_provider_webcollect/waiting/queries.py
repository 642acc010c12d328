"""The queries of waits; each returns its results by key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.service import endpoints, pages
from airflow_provider_webcollect.service.call import exchange
from airflow_provider_webcollect.service.responses import STATUSES_BY_TASK

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.call import Sender
    from airflow_provider_webcollect.service.endpoints import Call
    from airflow_provider_webcollect.service.errors import MalformedResponse
    from airflow_provider_webcollect.service.models import RunningCounts, SubTask, TaskStatus

#: The only key of the account's running counts.
ACCOUNT = "account"


@dataclass(frozen=True)
class Query:
    """A query for the state of keys, such as tasks.

    :ivar ask: sends the query, and returns the states of some keys; an error in place of a state affects only
        that key.
    :ivar is_batched: whether one request can have many keys.
    """

    ask: Callable[[Sender, Sequence[str]], Mapping[str, Any]]
    is_batched: bool = False

    def batch_size(self, status_batch_size: int) -> int:
        """Return the number of keys per query.

        :param status_batch_size: the connection's setting.
        """
        return status_batch_size if self.is_batched else 1


def _task_statuses(sender: Sender, task_ids: Sequence[str]) -> Mapping[str, TaskStatus | MalformedResponse]:
    call: Call[Any] = endpoints.get_task_statuses_v2(list(task_ids))
    call = dataclasses.replace(call, result=STATUSES_BY_TASK)
    found = exchange(call, sender)
    # the service may return an id in another letter case
    by_id = {task_id.lower(): status for task_id, status in found.items()}
    return {task_id: by_id[task_id.lower()] for task_id in task_ids if task_id.lower() in by_id}


def _subtasks(sender: Sender, task_ids: Sequence[str]) -> Mapping[str, list[SubTask]]:
    found = {}
    for task_id in task_ids:
        # an empty batch counts as missing
        if batch := pages.all_subtasks(sender, task_id):
            found[task_id] = batch
    return found


def _running_counts(sender: Sender, accounts: Sequence[str]) -> Mapping[str, RunningCounts]:
    counts = exchange(endpoints.get_running_counts(), sender)
    return dict.fromkeys(accounts, counts)


def all_task_statuses(sender: Sender, task_ids: Sequence[str], batch_size: int) -> dict[str, TaskStatus]:
    """Return the statuses of any number of tasks; one that the service does not know has none.

    :param batch_size: tasks per request.
    :raises MalformedResponse: if the status of a task cannot be read.
    """
    found: dict[str, TaskStatus] = {}
    for first in range(0, len(task_ids), batch_size):
        answer = _task_statuses(sender, task_ids[first : first + batch_size])
        for task_id, status in answer.items():
            if isinstance(status, Exception):
                raise status
            found[task_id] = status
    return found


#: The states of tasks, at most 100 of them at once (contract.md, endpoint 13).
TASK_STATUSES = Query(_task_statuses, is_batched=True)
#: All sub-tasks of a task's latest batch (contract.md, endpoint 14).
SUBTASKS = Query(_subtasks)
#: The account's running counts (contract.md, endpoint 16); the key is :data:`ACCOUNT`.
RUNNING_COUNTS = Query(_running_counts)
