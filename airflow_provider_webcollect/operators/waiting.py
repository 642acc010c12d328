"""Waiting for a run that an operator has started, in the worker or by a trigger, as the sensors do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.service.client import paging
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.waiting.conditions import Outcome, Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.service.api.records import SubTask, TaskStatus
    from airflow_provider_webcollect.waiting.conditions import SubTaskWait, TaskWait

Records = list[dict[str, Any]]


class RunFailed(AirflowFailException):
    """The run has ended in a failure state; a retry of the wait cannot help."""


def poll_tasks(hook: WebCollectHook, wait: TaskWait) -> dict[str, TaskStatus]:
    """Return the tasks' statuses, in their order; tasks that the service leaves out twice are absent.

    :raises WebCollectError: if the query fails.
    """
    statuses = _query(hook, wait.task_ids)
    if missing := tuple(wait.missing(statuses)):
        # one wrong answer must not end a wait, and a rescheduled sensor does not know its earlier polls
        statuses |= _query(hook, missing)
    return {task_id: statuses[task_id] for task_id in wait.task_ids if task_id in statuses}


def poll_subtasks(hook: WebCollectHook, wait: SubTaskWait) -> list[SubTask]:
    """Return all sub-tasks of the latest batch; an answer that lacks some is queried twice, as for tasks.

    :raises WebCollectError: if the query fails.
    """
    subtasks = hook.get_all_subtasks(wait.task_id)
    return hook.get_all_subtasks(wait.task_id) if any(wait.missing(subtasks)) else subtasks


def _query(hook: WebCollectHook, task_ids: Sequence[str]) -> dict[str, TaskStatus]:
    return hook.client.run(
        paging.all_statuses(hook.client.context, task_ids, hook.connection.status_batch_size)
    )


def wait_here(
    hook: WebCollectHook, wait: TaskWait, *, began: float, poll_interval: float, log: Any
) -> Records:
    """Poll every ``poll_interval`` seconds until the wait is over, and return the last records.

    :param began: Unix time at which the wait began, maybe in an earlier attempt.
    :raises RunFailed: if a failure state was reached.
    """
    watch = Watch(wait, began, log)
    while True:
        statuses = poll_tasks(hook, wait)
        verdict = watch.judge(statuses)
        match verdict.outcome:
            case Outcome.DONE:
                return [status.as_dict() for status in statuses.values()]
            case Outcome.FAILED:
                raise RunFailed(verdict.reason)
        time.sleep(poll_interval)


def result_of_event(event: Any, log: Any) -> Records:
    """Return the last records from a trigger's event, if the wait ended well.

    :raises RunFailed: if a failure state was reached.
    :raises AirflowFailException: if the wait cannot be finished until a person acts.
    :raises WebCollectError: if it ended otherwise, or the event says nothing.
    """
    match event:
        case {"outcome": "done", "reason": str(reason), "records": list(records)}:
            log.info("%s", reason)
            return records
        case {"outcome": "failed", "reason": reason}:
            raise RunFailed(reason)
        case {"outcome": "error", "reason": reason, "permanent": True}:
            raise AirflowFailException(reason)
        case {"outcome": "error", "reason": reason}:
            raise WebCollectError(reason)
    raise WebCollectError(f"the trigger ended without an outcome: {event!r}")
