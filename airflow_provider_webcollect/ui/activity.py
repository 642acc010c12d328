"""The provider's Airflow tasks that are at work, and those that have failed in the last day."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from sqlalchemy import and_, select

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session
    from sqlalchemy.sql.elements import ColumnElement

#: How far back failures are shown.
FAILURE_HOURS = 24
#: How many tasks at work, and how many failures, are shown.
MOST_TASKS = 200

AT_WORK = (TaskInstanceState.RUNNING, TaskInstanceState.DEFERRED, TaskInstanceState.UP_FOR_RESCHEDULE)
FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)
#: The arguments that name collection tasks.
_IDS = ("collection_task_id", "collection_task_ids", "tasks", "sources")


def read_activity(session: Session, dag_ids: Collection[str], now: datetime.datetime) -> dict[str, Any]:
    """Return the tasks at work and the failures of the last day for the page.

    :param session: of Airflow's database.
    :param dag_ids: the DAGs whose tasks are returned.
    """
    day = now - datetime.timedelta(hours=FAILURE_HOURS)
    at_work = _tasks(session, dag_ids, TaskInstance.state.in_(AT_WORK), TaskInstance.start_date)
    failed = and_(TaskInstance.state.in_(FAILED), TaskInstance.end_date >= day)
    failures = _tasks(session, dag_ids, failed, TaskInstance.end_date)
    return {
        "read_at": now.isoformat(),
        "left_out": max(0, len(at_work) - MOST_TASKS) + max(0, len(failures) - MOST_TASKS),
        "running": [
            {
                **_described(ti, fields),
                "since": _text(ti.start_date),
                "timeout_at": _text(ti.trigger_timeout),
                "way": _way(ti),
            }
            for ti, fields in at_work[:MOST_TASKS]
        ],
        "failures": [
            {**_described(ti, fields), "ended_at": _text(ti.end_date)} for ti, fields in failures[:MOST_TASKS]
        ],
    }


def _tasks(
    session: Session, dag_ids: Collection[str], condition: ColumnElement[bool], moment: Any
) -> Sequence[tuple[TaskInstance, dict[str, Any] | None]]:
    """Return the provider's task instances with their rendered arguments, the latest first."""
    rendered = RenderedTaskInstanceFields
    is_same = [
        getattr(rendered, name) == getattr(TaskInstance, name)
        for name in ("dag_id", "run_id", "task_id", "map_index")
    ]
    rows = session.execute(
        select(TaskInstance, rendered.rendered_fields)
        .outerjoin(rendered, and_(*is_same))
        # operators of a DAG's author that extend the provider's are not found by their names
        .where(TaskInstance.operator.startswith("WebCollect"), condition)
        .order_by(moment.desc())
    )
    return [(ti, fields) for ti, fields in rows if ti.dag_id in dag_ids]


def _described(ti: TaskInstance, fields: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "dag_id": ti.dag_id,
        "run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": ti.map_index,
        "operator": ti.operator,
        "state": ti.state,
        "try_number": ti.try_number,
        "collection_task_ids": _ids(fields or {}),
    }


def _ids(fields: dict[str, Any]) -> list[str]:
    """Return the collection tasks that the arguments of a task name."""
    found: list[str] = []
    for name in _IDS:
        value = fields.get(name)
        for entry in value if isinstance(value, list) else [value]:
            task_id = entry.get("collection_task_id") if isinstance(entry, dict) else entry
            if isinstance(task_id, str | int) and str(task_id) not in found:
                found.append(str(task_id))
    return found


def _way(ti: TaskInstance) -> str:
    """Return where a task is at work."""
    if ti.state == TaskInstanceState.UP_FOR_RESCHEDULE:
        return "between two queries, without a worker"
    if ti.state == TaskInstanceState.RUNNING:
        return "on a worker"
    # a host is recorded once a worker has run the task
    return "in the triggerer" if ti.hostname else "in the triggerer from the start"


def _text(moment: datetime.datetime | None) -> str | None:
    return moment.isoformat() if moment else None
