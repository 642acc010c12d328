"""Endpoints 12 to 16: the states of tasks and sub-tasks, and starting them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.sandbox import bodies
from airflow_provider_webcollect.sandbox.errors import ServiceError, invalid
from airflow_provider_webcollect.sandbox.runs import EXTRACTING, FINISHED, SENT, WAITING, Run

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox.settings import Settings
    from airflow_provider_webcollect.sandbox.state import Call, State
    from airflow_provider_webcollect.sandbox.world import Task

SUBTASK_PAGE_ROWS = 20
MOST_TASKS = 100


def get_task_statuses(state: State, call: Call) -> object:
    """Endpoint 12."""
    now = state.clock.now()
    return [
        {"taskId": _echoed(state, task.task_id), "taskName": task.name, "status": task.seen(now)[0]}
        for task in _with_status(state, call)
    ]


def get_task_statuses_v2(state: State, call: Call) -> object:
    """Endpoint 13."""
    now = state.clock.now()
    return [_status_record(state, task, now) for task in _with_status(state, call)]


def get_subtasks(state: State, call: Call) -> object:
    """Endpoint 14."""
    query = bodies.decode_query(call.query, needed=("taskId", "page", "size"))
    page, size = bodies.integer(query, "page", least=1), bodies.integer(query, "size", least=1)
    task, now = state.world.own(call.user, query["taskId"]), state.clock.now()
    size = min(size, SUBTASK_PAGE_ROWS)
    shown = list(enumerate(_listed_subtasks(state, task)))[(page - 1) * size : page * size]
    return [
        {"subTaskId": _echoed(state, subtask_id), "status": task.subtask_status(i, now)}
        for i, subtask_id in shown
    ]


def start_subtasks(state: State, call: Call) -> object:
    """Endpoint 15."""
    body = bodies.decode_body(call.content_type, call.body, bodies.SubTaskIds)
    task = state.world.own(call.user, body.task_id)
    exact = state.settings.echo_ids == "as_sent"
    subtask_ids = {subtask_id if exact else subtask_id.lower() for subtask_id in body.sub_task_ids}
    if not subtask_ids <= set(task.subtask_ids):
        raise invalid("A sub-task id is not one of the task's.")
    state.world.start(task, subtask_ids)
    return None


def get_running_counts(state: State, call: Call) -> object:
    """Endpoint 16."""
    now = state.clock.now()
    tasks = [task for task in state.world.tasks.values() if task.owner == call.user]
    statuses = [task.status(now) for task in tasks]
    subtasks = [
        run.subtask_status(i, now)
        for task in tasks
        if task.running(now)
        for run in task.runs[-1:]
        for i in run.started
    ]
    return {
        "extractingCount": statuses.count(EXTRACTING),
        "waitingCount": statuses.count(WAITING),
        "finishedCount": statuses.count(FINISHED),
        "waitingSubTaskCount": subtasks.count(WAITING) + subtasks.count(SENT),
        "executingSubTaskCount": subtasks.count(EXTRACTING),
    }


def time_text(seconds: float) -> str:
    """A time in the contract's format: milliseconds, no zone (it is UTC)."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def _with_status(state: State, call: Call) -> list[Task]:
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskIds)
    if len(body.task_ids) > MOST_TASKS:
        raise ServiceError("InvalidTasks", f"A query names at most {MOST_TASKS} tasks.")
    tasks = state.world.owned(call.user, body.task_ids)
    return [task for task in tasks if task.runs or task.marked or not state.settings.hide_unexecuted]


def _listed_subtasks(state: State, task: Task) -> list[str]:
    hidden = state.settings.hide_unexecuted_subtasks and not task.runs
    return [] if hidden else task.subtask_ids


def _status_record(state: State, task: Task, now: float) -> dict[str, Any]:
    settings, (status, run) = state.settings, task.seen(now)
    latest = task.runs[-1] if task.runs else None
    counted = latest if "executed_times" in settings.stale_shows else run
    started = latest if "start_time" in settings.stale_shows else run
    record = {
        "taskId": _echoed(state, task.task_id),
        "status": status,
        "currentTotalExtractCount": run.extract_count(now) if run else 0,
        "executedTimes": _executed_times(counted, now, settings),
        "subTaskCount": len(_listed_subtasks(state, task)),
        "nextExecuteTime": None,
        "startExecuteTime": time_text(started.began) if started else None,
    }
    if not settings.hide_end_times:
        record["endExecuteTime"] = time_text(run.ends()) if run and not run.active(now) else None
    return record | _execution_times(run, now, settings) if settings.execution_times else record


def _echoed(state: State, found_id: str) -> str:
    match state.settings.echo_ids:
        case "upper":
            return found_id.upper()
        case "lower":
            return found_id.lower()
    return found_id


def _executed_times(run: Run | None, now: float, settings: Settings) -> int:
    count = run.number if run else 0
    if run and settings.counted_runs == "ended" and run.active(now):
        count -= 1
    return max(0, count + settings.executed_times_offset)


def _execution_times(run: Run | None, now: float, settings: Settings) -> dict[str, str | None]:
    began = run.collects_from() if run else math.inf
    until = min(now, run.ends()) if run else now
    seconds, text = str(round(max(0.0, until - began))), settings.execution_seconds_text
    return {
        "ExecutingTime": time_text(began) if began <= until else None,
        "startExecuteTimeSeconds": seconds if text is None else text,
    }
