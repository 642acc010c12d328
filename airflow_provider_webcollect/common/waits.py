"""Waiting in a worker, and ending a task according to how its wait ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout, conf

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.service.errors import ConnectionIncomplete, InvalidArgument, WebCollectError
from airflow_provider_webcollect.service.pauses import Notice
from airflow_provider_webcollect.waiting.baseline import Baseline
from airflow_provider_webcollect.waiting.conditions import TaskStates
from airflow_provider_webcollect.waiting.outcome import Ended, Outcome, Records
from airflow_provider_webcollect.waiting.poller import Timing

if TYPE_CHECKING:
    from airflow_provider_webcollect.waiting.wait import Condition, Wait

#: The pauses of all waits of Airflow's tasks and triggers; tests of the provider replace it by a faster one.
TIMING = Timing()
_GOES_ON = "The status query failed; the wait goes on. %s"

T = TypeVar("T")


def default_deferrable() -> bool:
    """Return the default of ``deferrable``, from Airflow's configuration."""
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def poll(conn_id: str, wait: Wait, log: Any) -> Ended | None:
    """Query the service once from a worker; return the end of the wait, or None if it continues.

    A transient error is logged, and the wait continues. If the service refuses the query, the wait ends only
    if repeated queries are refused too; each of them reads the connection again.

    :param conn_id: the Airflow connection of the service.
    :param log: a logger.
    """

    def judge() -> Ended | None:
        readable = {}
        for key, state in query(conn_id, wait.condition).items():
            if isinstance(state, WebCollectError):
                log.warning(_GOES_ON, state)
            else:
                readable[key] = state
        return wait.judge(readable) if readable else None

    def judge_confirmed() -> Ended | None:
        ended = judge()
        # one wrong response must not end a wait, and a rescheduled sensor does not know its earlier polls
        return judge() if wait.is_in_doubt else ended

    return patiently(judge_confirmed, log)


def patiently(ask: Callable[[], T], log: Any) -> T | Ended | None:
    """Return the result of a query; None after a transient error; the end of the wait after a refusal.

    A refusal counts only if repeated queries confirm it.

    :param ask: sends the query; reads the connection each time.
    :param log: a logger.
    """
    pauses = iter(TIMING.confirming)
    while True:
        try:
            return ask()
        except WebCollectError as error:
            if not error.permanent:
                log.warning(_GOES_ON, error)
                return None
            pause = next(pauses, None)
            if pause is None or isinstance(error, ConnectionIncomplete | InvalidArgument):
                return Ended(outcome=Outcome.ERROR, reason=str(error), permanent=True)
            log.warning("The service refuses the status query, which is repeated in %.0f s. %s", pause, error)
            time.sleep(pause)


def query(conn_id: str, condition: Condition) -> dict[str, Any]:
    """Return the states of a condition's keys; None for a key that is missing from the response.

    If a state cannot be read, the error is returned in its place.

    :param conn_id: the Airflow connection of the service, which is read again each time.
    :raises WebCollectError: if the service cannot be queried.
    """
    hook = WebCollectHook(conn_id)
    most = condition.query.batch_size(hook.connection.status_batch_size)
    seen: dict[str, Any] = dict.fromkeys(condition.keys)
    with contextlib.closing(hook.client) as client:
        for start in range(0, len(condition.keys), most):
            seen |= condition.query.ask(client, condition.keys[start : start + most])
    return seen


def baselines(conn_id: str, task_ids: Sequence[str]) -> dict[str, Baseline]:
    """Return the current status of tasks, by id; a task missing from two responses has never run.

    :param conn_id: the Airflow connection of the service.
    :raises WebCollectError: if the service cannot be queried, or a response cannot be read.
    """
    tasks = TaskStates(task_ids=tuple(task_ids))
    for _ in range(2):
        seen = query(conn_id, tasks)
        for status in seen.values():
            if isinstance(status, WebCollectError):
                raise status
        if not any(tasks.absent(*each) for each in seen.items()):
            break
    return {task_id: Baseline.of(status) for task_id, status in seen.items()}


def wait_in_worker(conn_id: str, wait: Wait, *, poll_interval: float, log: Any) -> Ended:
    """Poll every ``poll_interval`` seconds until the wait has ended, and return how it ended."""
    notice = Notice(log)
    while (ended := poll(conn_id, wait, log)) is None:
        notice.give(poll_interval, "The next status query follows in %.0f s.", poll_interval)
        time.sleep(poll_interval)
    return ended


def end_of_event(event: Any) -> Ended:
    """Return the end of a wait from the payload of a trigger's event.

    :raises WebCollectError: if the payload is not an :class:`Ended`.
    """
    try:
        ended = msgspec.convert(event, Ended)
    except msgspec.ValidationError:
        ended = None
    if ended is None or (ended.outcome is Outcome.DONE and ended.records is None):
        raise WebCollectError(f"the trigger ended without an outcome: {event!r}")
    return ended


def result_of(ended: Ended) -> Records:
    """Return the last records of a wait that ended with success.

    :raises AirflowSensorTimeout: if the wait timed out.
    :raises AirflowFailException: if a retry cannot help.
    :raises WebCollectError: if another attempt may help.
    """
    match ended.outcome:
        case Outcome.DONE:
            return ended.records or []
        case Outcome.TIMEOUT:
            raise AirflowSensorTimeout(ended.reason)
        case Outcome.ERROR if not ended.permanent:
            raise WebCollectError(ended.reason)
    raise AirflowFailException(ended.reason)
