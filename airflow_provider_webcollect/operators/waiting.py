"""Waiting for what an operator has started, in the worker or by a trigger, with the sensors' decisions."""

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
    """What was waited for has ended in a failure state; trying the wait again is in vain."""


def look(hook: WebCollectHook, wait: TaskWait) -> dict[str, TaskStatus]:
    """Return the tasks' statuses, in their order; tasks that the service leaves out twice are absent.

    :raises WebCollectError: if the service cannot be asked.
    """
    statuses = _ask(hook, wait.task_ids)
    if missing := tuple(wait.missing(statuses)):
        # one odd answer must not end a wait, and a rescheduled sensor does not know of its earlier looks
        statuses |= _ask(hook, missing)
    return {task_id: statuses[task_id] for task_id in wait.task_ids if task_id in statuses}


def look_at_subtasks(hook: WebCollectHook, wait: SubTaskWait) -> list[SubTask]:
    """Return all sub-tasks of the latest batch; an answer that lacks some is asked for twice, as for tasks.

    :raises WebCollectError: if the service cannot be asked.
    """
    subtasks = hook.get_all_subtasks(wait.task_id)
    return hook.get_all_subtasks(wait.task_id) if any(wait.missing(subtasks)) else subtasks


def _ask(hook: WebCollectHook, task_ids: Sequence[str]) -> dict[str, TaskStatus]:
    return hook.client.run(
        paging.all_statuses(hook.client.context, task_ids, hook.connection.status_batch_size)
    )


def wait_here(
    hook: WebCollectHook, wait: TaskWait, *, began: float, poll_interval: float, log: Any
) -> Records:
    """Look every ``poll_interval`` seconds until the wait is over, and return the last records.

    :param began: Unix time at which the wait began, maybe in an earlier try.
    :raises RunFailed: if a failure state was reached.
    """
    watch = Watch(wait, began, log)
    while True:
        statuses = look(hook, wait)
        verdict = watch.look(statuses)
        match verdict.outcome:
            case Outcome.DONE:
                return [status.as_dict() for status in statuses.values()]
            case Outcome.FAILED:
                raise RunFailed(verdict.reason)
        time.sleep(poll_interval)


def awaited(event: Any, log: Any) -> Records:
    """Take a trigger's word for how the wait ended, and return the last records.

    :raises RunFailed: if a failure state was reached.
    :raises AirflowFailException: if the wait cannot be finished until a person acts.
    :raises WebCollectError: if it ended otherwise, or nothing was told.
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
