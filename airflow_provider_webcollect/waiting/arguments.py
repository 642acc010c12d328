"""Checks of the sensors' arguments, after their templates are rendered, and conversion to conditions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import SubTaskState, TaskState
from airflow_provider_webcollect.waiting.conditions import (
    Baseline,
    Capacity,
    Records,
    SubTaskStates,
    TaskStates,
)

#: As `after`: the status is queried when the wait begins.
NOW = "now"


def refuse_none(arguments: Mapping[str, Any]) -> None:
    """Refuse an argument that was given but is None after rendering, such as a missing result.

    Otherwise the wait would be for something else.

    :raises InvalidArgument: if one of them is None.
    """
    for name, value in arguments.items():
        if value is None:
            raise InvalidArgument(name, None, "it was given, but there is no such result")


def one_or_many(collection_task_id: Any, collection_task_ids: Any) -> tuple[str, ...]:
    """Return the ids of the tasks, each once.

    :raises InvalidArgument: unless exactly one argument is given, and is not empty.
    """
    if (collection_task_id is None) == (collection_task_ids is None):
        raise InvalidArgument(
            "collection_task_id",
            collection_task_id,
            "either `collection_task_id` or `collection_task_ids` must be given",
        )
    if collection_task_ids is None:
        return (validation.text("collection_task_id", collection_task_id),)
    return tuple(dict.fromkeys(validation.texts("collection_task_ids", _decoded(collection_task_ids))))


def one_or_all(collection_task_ids: Any, records: Records) -> Any:
    """Return the result of a wait for tasks: all statuses if a list of tasks was given, else the only one."""
    return next(iter(records), None) if collection_task_ids is None else records


def task_states(
    *,
    collection_task_id: Any = None,
    collection_task_ids: Any = None,
    wait_for: Any,
    target_states: Any,
    failure_states: Any,
    after: Any = None,
    status_delay: Any,
    missing_timeout: Any,
) -> TaskStates:
    """Return the condition of ``WebCollectTaskStatusSensor``; :data:`NOW` as ``after`` is ignored here.

    :raises InvalidArgument: if an argument breaks a rule.
    """
    ids = one_or_many(collection_task_id, collection_task_ids)
    validation.one_of("wait_for", wait_for, ("all", "any"))
    return TaskStates(
        task_ids=ids,
        how_many=wait_for,
        target_states=tuple(validation.words("target_states", target_states, TaskState)),
        failure_states=tuple(
            validation.words("failure_states", failure_states, TaskState, may_be_empty=True)
        ),
        after={} if after is None or after == NOW else _baselines(after, ids),
        status_delay=validation.seconds("status_delay", status_delay, may_be_zero=True),
        missing_timeout=validation.seconds("missing_timeout", missing_timeout, may_be_zero=True),
    )


def subtask_states(
    *,
    collection_task_id: Any,
    sub_task_ids: Any = None,
    target_states: Any,
    failure_states: Any,
    missing_timeout: Any,
) -> SubTaskStates:
    """Return the condition of ``WebCollectSubTaskStatusSensor``.

    :raises InvalidArgument: if an argument breaks a rule.
    """
    ids = None if sub_task_ids is None else validation.texts("sub_task_ids", _decoded(sub_task_ids))
    return SubTaskStates(
        task_id=validation.text("collection_task_id", collection_task_id),
        subtask_ids=None if ids is None else tuple(dict.fromkeys(ids)),
        target_states=tuple(validation.words("target_states", target_states, SubTaskState)),
        failure_states=tuple(
            validation.words("failure_states", failure_states, SubTaskState, may_be_empty=True)
        ),
        missing_timeout=validation.seconds("missing_timeout", missing_timeout, may_be_zero=True),
    )


def capacity(**limits: Any) -> Capacity:
    """Return the condition of ``WebCollectCapacitySensor``.

    :param limits: ``max_active_tasks`` and ``max_active_sub_tasks``; each may be None.
    :raises InvalidArgument: if an argument breaks a rule.
    """
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if not given:
        raise InvalidArgument(
            "max_active_tasks", None, "`max_active_tasks`, `max_active_sub_tasks` or both must be given"
        )
    return Capacity(**{name: validation.integer(name, limit, 1) for name, limit in given.items()})


def _baselines(after: Any, task_ids: Collection[str]) -> dict[str, Baseline]:
    """Return the baselines by task from ``after``: one result of the start operator, or a list of them."""
    given = _decoded(after)
    try:
        starts = [_start(each) for each in ([given] if isinstance(given, Mapping) else given)]
    except (KeyError, TypeError, InvalidArgument, msgspec.ValidationError):
        starts = []
    if not starts:
        # without a baseline, the final state of any run would end the wait
        raise InvalidArgument(
            "after",
            after,
            "it must be what WebCollectStartSubTasksOperator returned, a list of that, or 'now'",
        )
    known = {task_id.lower(): task_id for task_id in task_ids}
    ours = {known[task_id.lower()]: seen for task_id, seen in starts if task_id.lower() in known}
    if not ours:
        raise InvalidArgument("after", after, f"it must be of a task that is waited for: {list(task_ids)}")
    return ours


def _start(start: Any) -> tuple[str, Baseline]:
    start = _decoded(start)
    # every field of a baseline has a default, so an empty mapping would be accepted
    seen = msgspec.convert(start["after"] or None, Baseline)
    return validation.text("collection_task_id", start["collection_task_id"]), seen


def _decoded(value: Any) -> Any:
    """Decode a JSON text: a template renders to a text, unless the DAG renders native objects."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value
