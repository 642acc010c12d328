"""The provider's Airflow tasks at work: those that run or wait, and those that have failed."""

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

#: How many days failures are shown.
OPEN_DAYS = 7
#: How long failures are shown after a later run has succeeded.
RECOVERED_HOURS = 24
#: How many tasks at work, and how many failures, are shown.
MOST_TASKS = 200
#: A wait is near its timeout when this share of it, or less, is left.
NEAR_TIMEOUT = 0.1

#: Where tasks are at work.
_WAYS: dict[str, str] = {
    TaskInstanceState.RUNNING: "on a worker",
    TaskInstanceState.DEFERRED: "in the triggerer",
    TaskInstanceState.UP_FOR_RESCHEDULE: "between two queries, without a worker",
}
AT_WORK = tuple(_WAYS)
FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)
#: The arguments that name collection tasks.
_IDS = ("collection_task_id", "collection_task_ids", "sources", "updates")
#: Airflow's text for a cut argument begins with the first; one that it has masked contains the second.
_CUT, _MASKED = "Truncated. You can change this behaviour in", "***"
#: An id or a name in what Airflow has kept of a cut argument: of a list, and of sources.
_KEPT, _KEPT_SOURCE = re.compile(r"'([^']+)'(?=,)"), re.compile(r"'collection_task_id': '([^']+)'")
#: The columns that identify a task instance.
IDENTITY = ("dag_id", "run_id", "task_id", "map_index")
#: The columns that identify an Airflow task in all its runs.
_TASK = (TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.map_index)


def read_activity(session: Session, dag_ids: Collection[str], now: datetime.datetime) -> dict[str, Any]:
    """Return the tasks at work and the failures of the last days for the page.

    :param session: of Airflow's database.
    :param dag_ids: the DAGs whose tasks are returned.
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


def waited_for(session: Session, conn_id: str, dag_ids: Collection[str] | None) -> list[str]:
    """Return the collection tasks that tasks at work name, the latest first.

    :param conn_id: the connection that they use.
    :param dag_ids: only tasks of these DAGs; None for all.
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
    """Return the latest tasks at work, and how many others there are."""
    all_at_work = _tasks(session, dag_ids, TaskInstance.state.in_(AT_WORK), TaskInstance.start_date)
    at_work = all_at_work[:MOST_TASKS]
    # a sensor that gives its worker back between two pokes has started at its first one
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
    """Return when the wait of a task ends; None if nothing ends it, or it is not known."""
    if ti.trigger_timeout:
        # a sensor's trigger ends the wait itself; Airflow does so later, if the triggerer is down
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
    """Return the latest failures, those that are open first, and how many other open ones there are."""
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
    """Return the condition that rows of two tables are about one task instance."""
    return and_(*(getattr(one, name) == getattr(other, name) for name in IDENTITY))


def _facts(session: Session, ti: TaskInstance, fields: dict[str, Any]) -> dict[str, Any]:
    names = fields.get("collection_task_names")
    return {
        **{name: getattr(ti, name) for name in (*IDENTITY, "operator", "state", "try_number")},
        "webcollect_conn_id": fields.get("webcollect_conn_id"),
        "collection_task_ids": _ids(session, ti, fields),
        # one that Airflow has cut is a text
        "collection_task_names": names if isinstance(names, dict) else {},
    }


def _ids(session: Session, ti: TaskInstance, fields: dict[str, Any]) -> list[str] | None:
    """Return the ids of the collection tasks of a task; None if they are not known.

    Where Airflow has cut the arguments, those that were started in the same run and task group are meant, or
    those that the task has landed before, if they begin with what is left of the arguments.
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
    """Return the ids that arguments name; None if one of them is no id."""
    ids: dict[str, None] = {}
    file = file_of_names()
    for value in filter(None, map(fields.get, _IDS)):
        entries = value
        if isinstance(value, str) and value.lstrip().startswith("["):
            # the JSON text of a list, out of a template
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
    """Return the id of a collection task by its id or its name; None if the value can be neither."""
    try:
        key = id_or_name("collection_task_id", value)
    except InvalidArgument:
        return None
    if key.startswith(_CUT) or _MASKED in key:
        return None
    task = file.find(key)
    return task.id if task else key


def _started(session: Session, ti: TaskInstance) -> list[str] | None:
    """Return the collection tasks started by the only start operator in the task's group, in its run."""
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
        # of several collection tasks, or of one
        result = XComModel.deserialize_value(row)
        results += result if isinstance(result, list) else [result]
    # a backend of XComs may keep a value elsewhere
    return _named({"sources": [result if isinstance(result, dict) else None for result in results]})


def _landed(session: Session, ti: TaskInstance) -> list[str] | None:
    """Return the collection tasks of the newest landing that a task has left."""
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
