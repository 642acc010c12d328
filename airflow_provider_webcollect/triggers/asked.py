"""What a sensor's arguments ask for, checked, as what the service's states are judged by.

They are given by name, with their templates rendered, be it by a worker or by the triggerer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from airflow_provider_webcollect.service.api import validation
from airflow_provider_webcollect.service.api.states import SubTaskState, TaskState
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.waiting.conditions import Baseline, SubTaskWait, TaskWait

#: Instead of what was seen before a run: the sensor looks itself.
NOW = "now"
#: Why no triggerer begins a wait with :data:`NOW`.
NOW_IS_FOR_A_WORKER = "what the status shows now is for a worker to see"
#: In the triggerer's arguments, the one key of a mapping that stands for a result of another task.
XCOM_PULL = "xcom_pull"


def check_given(arguments: Mapping[str, Any]) -> None:
    """Check arguments that were given: a result that is not there must not make the wait another one.

    :raises InvalidArgument: if one of them is None.
    """
    for name, value in arguments.items():
        if value is None:
            raise InvalidArgument(name, None, "it was given, but there is no such result")


def task_wait(
    *,
    collection_task_id: Any = None,
    collection_task_ids: Any = None,
    wait_for: Any,
    target_states: Any,
    failure_states: Any,
    after: Any = None,
    settle: Any,
    missing_timeout: Any,
) -> TaskWait:
    """Return what ``WebCollectTaskStatusSensor`` waits for.

    :raises InvalidArgument: if an argument breaks a rule.
    """
    if (collection_task_id is None) == (collection_task_ids is None):
        raise InvalidArgument(
            "collection_task_id",
            collection_task_id,
            "either `collection_task_id` or `collection_task_ids` must be given",
        )
    if collection_task_ids is None:
        ids = [validation.text("collection_task_id", collection_task_id)]
    else:
        ids = validation.texts("collection_task_ids", _decoded(collection_task_ids))
    if wait_for not in ("all", "any"):
        raise InvalidArgument("wait_for", wait_for, "it must be one of all, any")
    return TaskWait(
        task_ids=tuple(dict.fromkeys(ids)),
        how_many=wait_for,
        target_states=tuple(validation.words("target_states", target_states, TaskState)),
        failure_states=tuple(
            validation.words("failure_states", failure_states, TaskState, may_be_empty=True)
        ),
        after={} if after is None else _baselines(after),
        settle=validation.seconds("settle", settle, may_be_zero=True),
        missing_timeout=validation.seconds("missing_timeout", missing_timeout, may_be_zero=True),
    )


def task_result(records: list[dict[str, Any]], *, many: bool) -> Any:
    """Return what ``WebCollectTaskStatusSensor`` returns: the last records, or the one of its one task."""
    if many:
        return records
    return records[0] if records else None


def subtask_wait(
    *,
    collection_task_id: Any,
    sub_task_ids: Any = None,
    target_states: Any,
    failure_states: Any,
    missing_timeout: Any,
) -> SubTaskWait:
    """Return what ``WebCollectSubTaskStatusSensor`` waits for.

    :raises InvalidArgument: if an argument breaks a rule.
    """
    ids = None if sub_task_ids is None else validation.texts("sub_task_ids", _decoded(sub_task_ids))
    return SubTaskWait(
        task_id=validation.text("collection_task_id", collection_task_id),
        subtask_ids=None if ids is None else tuple(dict.fromkeys(ids)),
        target_states=tuple(validation.words("target_states", target_states, SubTaskState)),
        failure_states=tuple(
            validation.words("failure_states", failure_states, SubTaskState, may_be_empty=True)
        ),
        missing_timeout=validation.seconds("missing_timeout", missing_timeout, may_be_zero=True),
    )


def _baselines(after: Any) -> dict[str, Baseline]:
    """Read ``after``: what the start operator returned, once or as a list."""
    given = _decoded(after)
    starts = [given] if isinstance(given, Mapping) else given
    try:
        baselines = dict(map(_baseline, starts))
    except (KeyError, TypeError, InvalidArgument, msgspec.ValidationError):
        baselines = {}
    # without any, a final state of whichever run would end the wait
    if not baselines:
        raise InvalidArgument(
            "after", after, "it must be what WebCollectStartSubTasksOperator returned, or a list of that"
        )
    return baselines


def _baseline(start: Any) -> tuple[str, Baseline]:
    start = _decoded(start)
    # every field of a baseline has a default: an empty mapping would pass for one
    seen = msgspec.convert(start["after"] or None, Baseline)
    return validation.text("collection_task_id", start["collection_task_id"]), seen


def _decoded(value: Any) -> Any:
    """Return what a JSON text says: a template gives a text, unless the DAG renders native objects."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value
