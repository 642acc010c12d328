"""The provider's Airflow tasks that are running or waiting, and those that have failed."""

from __future__ import annotations

import datetime
import json
import re
from typing import TYPE_CHECKING, Any

from airflow.models.asset import AssetEvent
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskreschedule import TaskReschedule
from airflow.models.xcom import XComModel
from airflow.utils.state import TaskInstanceState
from sqlalchemy import and_, func, select

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.collection_tasks import file_of_names, id_or_name
from airflow_provider_webcollect.common import GRACE
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.ui.landings import IS_OURS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session
    from sqlalchemy.sql.elements import ColumnElement

    from airflow_provider_webcollect.collection_tasks import CollectionTasks

#: Number of days for which failures are shown.
OPEN_DAYS = 7
#: Number of hours after a failure for which it is still shown although a later run has succeeded.
RECOVERED_HOURS = 24
#: Maximum number of tasks at work, and of failures, that are shown.
MOST_TASKS = 200
#: A wait is near its timeout if at most this share of its time is left.
NEAR_TIMEOUT = 0.1

#: The place where a task runs or waits, by its state.
_WAYS: dict[str, str] = {
    TaskInstanceState.RUNNING: "on a worker",
    TaskInstanceState.DEFERRED: "in the triggerer",
    TaskInstanceState.UP_FOR_RESCHEDULE: "between two queries, without a worker",
}
AT_WORK = tuple(_WAYS)
FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)
#: The arguments that name collection tasks.
_IDS = ("collection_task_id", "collection_task_ids", "sources", "updates")
#: The beginning of Airflow's text for a truncated argument, and Airflow's mask.
_CUT, _MASKED = "Truncated. You can change this behaviour in", "***"
#: An id or a name in the rest of a truncated argument: in a list of ids, and in a list of sources.
_KEPT, _KEPT_SOURCE = re.compile(r"'([^']+)'(?=,)"), re.compile(r"'collection_task_id': '([^']+)'")
#: The columns that identify a task instance.
IDENTITY = ("dag_id", "run_id", "task_id", "map_index")
#: The columns that identify an Airflow task in all its runs.
_TASK = (TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.map_index)


def read_activity(session: Session, dag_ids: Collection[str], now: datetime.datetime) -> dict[str, Any]:
    """Return the tasks at work and the failures of the last days for the page.

    :param session: a session of Airflow's database.
    :param dag_ids: the ids of the DAGs whose tasks are returned.
    """
    running, running_left_out = _running(session, dag_ids, now)
    failures, failures_left_out = _failures(session, dag_ids, now)
    tasks = [*running, *failures]
    return {
        "read_at": now.isoformat(),
        "running_left_out": running_left_out,
        "failures_left_out": failures_left_out,
        "running": running,
        "failures": failures,
        "names": file_of_names().names(id_ for task in tasks for id_ in task["collection_task_ids"] or ())
        | {id_: name for task in tasks for id_, name in task["collection_task_names"].items()},
    }


def active_collection_task_ids(session: Session, conn_id: str, dag_ids: Collection[str] | None) -> list[str]:
    """Return the ids of the collection tasks that Airflow tasks at work name, the latest first.

    :param conn_id: the connection of the service that the Airflow tasks use.
    :param dag_ids: the ids of the DAGs whose tasks count; None for all DAGs.
    """
    return [
        task_id
        for ti, fields in _tasks(session, dag_ids, TaskInstance.state.in_(AT_WORK), TaskInstance.start_date)
        if fields.get("webcollect_conn_id") == conn_id
        for task_id in _ids(session, ti, fields) or ()
    ]


def _running(
    session: Session, dag_ids: Collection[str], now: datetime.datetime
) -> tuple[list[dict[str, Any]], int]:
    """Return the latest tasks at work, and the number of the others."""
    all_at_work = _tasks(session, dag_ids, TaskInstance.state.in_(AT_WORK), TaskInstance.start_date)
    at_work = all_at_work[:MOST_TASKS]
    # a sensor in reschedule mode has started at its first poke
    pokes = (
        select(TaskReschedule.ti_id, func.min(TaskReschedule.start_date).label("moment"))
        .where(TaskReschedule.ti_id.in_([ti.id for ti, _ in at_work]))
        .group_by(TaskReschedule.ti_id)
    )
    first_pokes = {row.ti_id: row.moment for row in session.execute(pokes)}
    waits = []
    for ti, fields in at_work:
        since = first_pokes.get(ti.id) or ti.start_date
        timeout_at = _timeout_at(ti, fields, since)
        waits.append(
            {
                **_facts(session, ti, fields),
                "since": since and since.isoformat(),
                "timeout_at": timeout_at and timeout_at.isoformat(),
                "is_near_timeout": bool(
                    since and timeout_at and timeout_at - now <= NEAR_TIMEOUT * (timeout_at - since)
                ),
                "way": _WAYS[ti.state or ""],
            }
        )
    return waits, len(all_at_work) - len(at_work)


def _timeout_at(
    ti: TaskInstance, fields: dict[str, Any], since: datetime.datetime | None
) -> datetime.datetime | None:
    """Return the time of a task's timeout; None if it has none, or if it is not known."""
    if ti.trigger_timeout:
        # a sensor's trigger ends the wait itself; Airflow would end it later, if the triggerer is down
        is_sensor = (ti.operator or "").endswith("Sensor")
        timeout_at: datetime.datetime = ti.trigger_timeout - GRACE if is_sensor else ti.trigger_timeout
        return timeout_at
    seconds = fields.get("timeout")
    if since is None or not isinstance(seconds, int | float):
        return None
    try:
        return since + datetime.timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None


def _failures(
    session: Session, dag_ids: Collection[str], now: datetime.datetime
) -> tuple[list[dict[str, Any]], int]:
    """Return the latest failures, open failures first, and the number of open failures that are left out.

    A failure is open if no later run of the task has succeeded.
    """
    since = now - datetime.timedelta(days=OPEN_DAYS)
    is_recent = and_(TaskInstance.state.in_(FAILED), TaskInstance.end_date >= since)
    failed = _tasks(session, dag_ids, is_recent, TaskInstance.end_date)
    last_success = {
        tuple(task): ended_at
        for *task, ended_at in session.execute(
            select(*_TASK, func.max(TaskInstance.end_date))
            .where(
                IS_OURS,
                TaskInstance.dag_id.in_({ti.dag_id for ti, _ in failed}),
                TaskInstance.state == TaskInstanceState.SUCCESS,
                TaskInstance.end_date >= since,
            )
            .group_by(*_TASK)
        )
    }
    open_ones, recovered = [], []
    for ti, fields in failed:
        ended_well = last_success.get((ti.dag_id, ti.task_id, ti.map_index))
        ended_at = ti.end_date
        assert ended_at
        if not (ended_well and ended_well > ended_at):
            open_ones.append((ti, fields, None))
        elif ended_at >= now - datetime.timedelta(hours=RECOVERED_HOURS):
            recovered.append((ti, fields, ended_well))
    failures = [
        {
            **_facts(session, ti, fields),
            "ended_at": ti.end_date and ti.end_date.isoformat(),
            "will_retry": ti.state == TaskInstanceState.UP_FOR_RETRY,
            "recovered_at": recovered_at and recovered_at.isoformat(),
        }
        for ti, fields, recovered_at in [*open_ones, *recovered][:MOST_TASKS]
    ]
    return failures, max(0, len(open_ones) - MOST_TASKS)


def _tasks(
    session: Session, dag_ids: Collection[str] | None, condition: ColumnElement[bool], moment: Any
) -> Sequence[tuple[TaskInstance, dict[str, Any]]]:
    """Return the provider's task instances with their rendered arguments, the latest first."""
    rendered = RenderedTaskInstanceFields
    rows = session.execute(
        select(TaskInstance, rendered.rendered_fields)
        .outerjoin(rendered, is_same_task(rendered, TaskInstance))
        .where(IS_OURS, condition)
        .order_by(moment.desc())
    )
    return [(ti, fields or {}) for ti, fields in rows if dag_ids is None or ti.dag_id in dag_ids]


def is_same_task(one: Any, other: Any) -> ColumnElement[bool]:
    """Return the SQL condition that rows of two tables are about the same task instance."""
    return and_(*(getattr(one, name) == getattr(other, name) for name in IDENTITY))


def _facts(session: Session, ti: TaskInstance, fields: dict[str, Any]) -> dict[str, Any]:
    names = fields.get("collection_task_names")
    return {
        **{name: getattr(ti, name) for name in (*IDENTITY, "operator", "state", "try_number")},
        "webcollect_conn_id": fields.get("webcollect_conn_id"),
        "collection_task_ids": _ids(session, ti, fields),
        # a truncated argument is a text
        "collection_task_names": names if isinstance(names, dict) else {},
    }


def _ids(session: Session, ti: TaskInstance, fields: dict[str, Any]) -> list[str] | None:
    """Return the ids of an Airflow task's collection tasks; None if they are not known.

    If Airflow has truncated the arguments, these are the collection tasks that were started in the same run
    and task group, or those that the Airflow task has landed before. They must begin with the ids in the rest
    of the arguments.
    """
    ids = _named(fields)
    if ids is not None:
        return ids
    texts = [value for value in map(fields.get, _IDS) if isinstance(value, str)]
    cut = next((text for text in texts if text.startswith(_CUT)), "")
    in_text = (_KEPT_SOURCE if _KEPT_SOURCE.search(cut) else _KEPT).findall(cut)
    kept = _named({"sources": in_text})
    others = (look(session, ti) for look in (_started, _landed)) if kept else ()
    return next((other for other in others if kept and other and other[: len(kept)] == kept), None)


def _named(fields: dict[str, Any]) -> list[str] | None:
    """Return the ids of the collection tasks in arguments; None if one value can be neither id nor name."""
    ids: dict[str, None] = {}
    file = file_of_names()
    for value in filter(None, map(fields.get, _IDS)):
        entries = value
        if isinstance(value, str) and value.lstrip().startswith("["):
            # a template can render a list to JSON text
            try:
                entries = json.loads(value)
            except (ValueError, RecursionError):
                return None
        for entry in entries if isinstance(entries, list) else [entries]:
            task_id = recognized(file, entry.get("collection_task_id") if isinstance(entry, dict) else entry)
            if task_id is None:
                return None
            ids[task_id] = None
    return [*ids]


def recognized(file: CollectionTasks, value: object) -> str | None:
    """Return the id of the collection task that an id or a name means; None if the value can be neither."""
    try:
        key = id_or_name("collection_task_id", value)
    except InvalidArgument:
        return None
    if key.startswith(_CUT) or _MASKED in key:
        return None
    task = file.find(key)
    return task.id if task else key


def _started(session: Session, ti: TaskInstance) -> list[str] | None:
    """Return the ids of the collection tasks that were started in the same run and task group.

    :return: None if the group does not have exactly one start operator with a result.
    """
    start, result = TaskInstance, XComModel
    rows = session.execute(
        select(start.task_id, result.value)
        .join(result, and_(is_same_task(start, result), result.key == "return_value"))
        .where(start.operator == "WebCollectStartSubTasksOperator")
        .where(start.dag_id == ti.dag_id, start.run_id == ti.run_id)
        .order_by(start.map_index)
    ).all()
    group = ti.task_id.rpartition(".")[0]
    started = [row for row in rows if row.task_id.rpartition(".")[0] == group]
    if len({row.task_id for row in started}) != 1:
        return None
    results: list[Any] = []
    for row in started:
        # the result of a start of several collection tasks is a list
        result = XComModel.deserialize_value(row)
        results += result if isinstance(result, list) else [result]
    # a custom XCom backend may store the value elsewhere: then the result is not a dict
    return _named({"sources": [result if isinstance(result, dict) else None for result in results]})


def _landed(session: Session, ti: TaskInstance) -> list[str] | None:
    """Return the ids of the collection tasks of a task's newest landing; None if it has none."""
    event = AssetEvent
    extra = session.scalar(
        select(event.extra)
        .where(event.source_dag_id == ti.dag_id, event.source_task_id == ti.task_id)
        .where(func.coalesce(event.source_map_index, -1) == ti.map_index)
        .order_by(event.id.desc())
        .limit(1)
    )
    landing = LandingEvent.of(extra)
    return _named({"sources": landing.tasks()}) if landing else None
