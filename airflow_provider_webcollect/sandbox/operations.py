"""The contract's twenty endpoints: the handlers, and path, permissions and limits of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from airflow_provider_webcollect.sandbox import bodies, demo
from airflow_provider_webcollect.sandbox.bodies import ServiceError, decode_query, invalid, required
from airflow_provider_webcollect.sandbox.data import (
    MAX_PAGE_ROWS,
    Span,
    months_back,
    read_page,
    records,
    with_nulls,
)
from airflow_provider_webcollect.sandbox.state import STATUS_V1, STATUS_V2, Call, State
from airflow_provider_webcollect.sandbox.world import (
    ENTER_TEXT_ACTION,
    EXTRACTING,
    FINISHED,
    LOOP_ACTION,
    SENT,
    WAITING,
    Action,
    Run,
    Task,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox.settings import Settings


def refresh_token(state: State, call: Call) -> object:
    """Endpoint 1, and the first token by password."""
    grant = bodies.decode_object(call.content_type, call.body).get("grant_type")
    if grant == "password":
        login = bodies.decode_body(call.content_type, call.body, bodies.PasswordGrant)
        return state.tokens.log_in(state.settings, login.username, login.password)
    body = bodies.decode_body(call.content_type, call.body, bodies.RefreshGrant)
    return state.tokens.refresh(state.settings, body.refresh_token)


def query_analytics(state: State, call: Call) -> object:
    """Endpoint 2."""
    query = bodies.decode_body(call.content_type, call.body, bodies.AnalyticsQuery)
    start, end = _period(query.start, query.end, datetime.fromtimestamp(state.clock.wall(), UTC).date())
    members = set(query.member_names) or {call.user}
    if not members <= {call.user, demo.COLLEAGUE}:
        raise ServiceError("MemberNotAllowed", "A member name is not one of your team.")
    tasks = [
        task
        for task in state.world.tasks.values()
        if task.owner in members and (not query.task_ids or task.task_id in query.task_ids)
    ]
    methods = ["Cloud", "Local"] if query.collection_method == "All" else [query.collection_method]
    seed, null_share = state.settings.seed, state.settings.null_metrics
    found = records(seed, tasks, start, end, query.time_granularity, methods)
    first = (query.page - 1) * query.page_size
    page = found[first : first + query.page_size]
    return {"total": len(found), "data": [with_nulls(seed, record, null_share) for record in page]}


def deprecate_data_app(state: State, call: Call) -> object:
    """Endpoint 20."""
    app = state.world.apps.get(call.path_id)
    if app is None or app.author != call.user:
        raise ServiceError("not_found", "There is no such data app.", status=404)
    app.status = "deprecated"
    version = {"version": app.version} if app.version else {}
    return {
        "app_name": app.app_name,
        "namespace": app.author,
        **version,
        "status": app.status,
        "missing_secrets": app.missing_secrets,
    }


def _period(start: str, end: str, today: date) -> tuple[date, date]:
    try:
        first, last = date.fromisoformat(start), date.fromisoformat(end)
    except ValueError as error:
        raise invalid(f"start and end must be dates: {error}") from error
    if last > today or last < first:
        raise invalid("end must not be later than today (UTC) and not earlier than start.")
    if first < months_back(today, 3):
        raise invalid("Only the latest 3 months can be queried.")
    return first, last


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


def read_data(state: State, call: Call) -> bytes:
    """Endpoint 17."""
    return _read(state, call, by_batch=False)


def read_batch_data(state: State, call: Call) -> bytes:
    """Endpoint 18."""
    return _read(state, call, by_batch=True)


def mark_exported(state: State, call: Call) -> object:
    """Endpoint 19: rows that exist now count as exported, later ones do not."""
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskId)
    for run in state.world.own(call.user, body.task_id).runs:
        run.exported_rows = run.row_count(state.clock.now())
    return None


def visible_rows(state: State, task: Task, lotno: str | None) -> list[Span]:
    """Return the rows of a complete read of a task, or of one of its batches."""
    now, delay = state.clock.now(), state.settings.empty_after_finish_seconds
    return [run.readable(now, delay) for run in task.runs if lotno in (None, run.lotno)]


def _read(state: State, call: Call, by_batch: bool) -> bytes:
    batch = ("lotno",) if by_batch else ()
    query = bodies.decode_query(call.query, needed=("taskId", *batch, "offset", "size"))
    offset, size = bodies.integer(query, "offset"), bodies.integer(query, "size", 1, MAX_PAGE_ROWS)
    spans = visible_rows(state, state.world.own(call.user, query["taskId"]), query.get("lotno"))
    if by_batch and not spans:
        raise invalid("The task has no batch of this number.")
    settings = state.settings
    return read_page(
        spans, offset, size, settings.offset_jump, state.blocks, settings.large_pages == "refuse"
    )


_LOOP_TYPES = {"urllist": "UrlList", "textlist": "TextList"}
_SHOWN_LOOP_TYPES = {"UrlList": "URLList", "TextList": "TextList"}


def update_loop_items(state: State, call: Call) -> object:
    """Endpoint 3."""
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskLoopItems)
    task = state.world.own(call.user, body.task_id)
    _set_loop_items(_step(task, body.action_id, LOOP_ACTION), body.loop_type, body.loop_items, body.is_append)
    return {"message": "The loop items were updated."}


def update_task_parameters(state: State, call: Call) -> object:
    """Endpoint 4."""
    if _updates_nothing(call):
        raise ServiceError("RequestModelNull", "The request has no parameters.")
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskParameters)
    task = state.world.own(call.user, body.task_id)
    # All steps are looked up before any is changed, so that a refused request changes nothing.
    steps = [_step(task, entry.action_id, entry.action_type) for entry in body.actions]
    loops = [_step(task, entry.action_id, LOOP_ACTION) for entry in body.loop_items]
    for step, parameters in zip(steps, body.actions, strict=True):
        step.properties |= {entry.name: entry.value for entry in parameters.properties}
    for loop, items in zip(loops, body.loop_items, strict=True):
        _set_loop_items(loop, items.loop_type, items.loop_items, bool(items.is_append))
    echoed = [
        {"actionId": loop.action_id, "loopType": items.loop_type, "loopItems": loop.loop_items}
        for loop, items in zip(loops, body.loop_items, strict=True)
    ]
    return {"taskId": task.task_id, "updatedParameters": {"actions": body.actions, "loopItems": echoed}}


def get_actions(state: State, call: Call) -> object:
    """Endpoint 5."""
    body = bodies.decode_body(call.content_type, call.body, bodies.ActionsQuery)
    return [
        {
            "taskId": task.task_id,
            "actions": [_step_record(step) for step in task.actions if step.action_type in body.action_types],
        }
        for task in state.world.owned(call.user, body.task_ids)
    ]


def replace_urls(state: State, call: Call) -> object:
    """Endpoint 6."""
    if call.form.keys() - {"taskId", "file"}:
        raise invalid("The form has a field that is neither taskId nor file.")
    task_id, file = call.form.get("taskId"), call.form.get("file")
    if not isinstance(task_id, str) or not task_id:
        raise required("taskId")
    if not isinstance(file, bytes):
        raise required("file")
    task = state.world.own(call.user, task_id)
    if task.running(state.clock.now()):
        raise ServiceError("TaskExecuting", "The task is running.")
    _set_loop_items(task.loop, "UrlList", _urls(file), append=False)
    return None


def copy_task(state: State, call: Call) -> object:
    """Endpoint 7."""
    query = bodies.decode_query(call.query, needed=("taskId",), optional=("taskGroupId",))
    task = state.world.own(call.user, query["taskId"])
    group = bodies.integer(query, "taskGroupId") if "taskGroupId" in query else task.group_id
    copy = state.world.copy_task(task, state.world.known_group(group))
    return {"taskId": copy.task_id, "taskName": copy.name}


def copy_tasks(state: State, call: Call) -> object:
    """Endpoint 8."""
    body = bodies.decode_body(call.content_type, call.body, bodies.Copies)
    world, failed = state.world, []
    if not world.owned(call.user, body.task_ids):
        raise ServiceError("InvalidTaskId", "None of the task ids is valid.")
    for task_id in body.task_ids:
        for group_id in body.group_ids:
            try:
                world.copy_task(world.own(call.user, task_id), world.known_group(group_id))
            except ServiceError as refusal:
                failed.append({"taskId": task_id, "reason": refusal.message})
    count = len(body.task_ids) * len(body.group_ids)
    answer = {"requestCount": count, "successCount": count - len(failed)}
    return {**answer, "failedTasks": failed} if failed else answer


def move_task(state: State, call: Call) -> object:
    """Endpoint 9."""
    query = bodies.decode_query(call.query, needed=("taskId", "taskGroupId"))
    group_id = bodies.integer(query, "taskGroupId")
    task = state.world.own(call.user, query["taskId"])
    task.group_id = state.world.known_group(group_id)
    return {"moved": True}


def delete_tasks(state: State, call: Call) -> object:
    """Endpoint 10; unknown ids are ignored, so that repeating it has no effect."""
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskIds)
    for task in state.world.owned(call.user, body.task_ids):
        del state.world.tasks[task.task_id.lower()]
    return []


def delete_task_groups(state: State, call: Call) -> object:
    """Endpoint 11; like endpoint 10."""
    body = bodies.decode_body(call.content_type, call.body, bodies.GroupIds)
    if demo.DEFAULT_GROUP_ID in body.group_ids:
        raise invalid("The default group cannot be deleted.")
    for group_id in body.group_ids:
        state.world.delete_group(group_id)
    return []


def _updates_nothing(call: Call) -> bool:
    if call.body.strip() in (b"", b"null"):
        return True
    fields = bodies.decode_object(call.content_type, call.body)
    known = fields.keys() <= {"taskId", "actions", "loopItems"}
    return known and not fields.get("actions") and not fields.get("loopItems")


def _step(task: Task, action_id: str, action_type: str) -> Action:
    action = task.action(action_id)
    if action is None or action.action_type != action_type:
        raise ServiceError("TaskSettingsNotFound", "The task has no such step.")
    return action


def _set_loop_items(loop: Action, loop_type: str, items: list[str], append: bool) -> None:
    loop.loop_type = _LOOP_TYPES[loop_type.lower()]
    loop.loop_items = [*loop.loop_items, *items] if append else list(items)


def _step_record(step: Action) -> dict[str, Any]:
    record: dict[str, Any] = {"actionType": step.action_type, "actionId": step.action_id, "name": step.name}
    if step.action_type == LOOP_ACTION:
        record |= {"loopType": _SHOWN_LOOP_TYPES[step.loop_type], "loopItems": step.loop_items}
    elif step.action_type == ENTER_TEXT_ACTION:
        record["properties"] = [{"name": name, "value": value} for name, value in step.properties.items()]
    return record


def _urls(file: bytes) -> list[str]:
    try:
        urls = [line.strip() for line in file.decode("utf-8-sig").rstrip().splitlines()]
    except UnicodeDecodeError as error:
        raise invalid("The file is not UTF-8 text.") from error
    if not urls or not all(url.lower().startswith(("http://", "https://")) for url in urls):
        raise invalid("The file must have one URL per line.")
    return urls


DATAHUB_PREFIX = "/datahub"

_ALL = ("Flagship", "Flagship+", "Enterprise", "Team")
_ANALYTICS = ("Flagship", "Flagship+", "Enterprise")
_TASKS = ("Flagship+", "Enterprise", "Team")


@dataclass(frozen=True)
class Operation:
    """
    One endpoint.

    :param path: the contract's path.
    :param tiers: plans that include it.
    :param takes: where its arguments are; arguments elsewhere are refused.
    :param takes_api_key: whether ``x-api-key`` may replace the token.
    :param status_limit: its additional rate limit besides the general one.
    """

    handle: Callable[[State, Call], object]
    method: str
    path: str
    tiers: tuple[str, ...] = _TASKS
    takes: Literal["json", "form", "query", "nothing"] = "json"
    takes_api_key: bool = False
    needs_token: bool = True
    status_limit: str | None = None
    data_app: bool = False


OPERATIONS = (
    Operation(refresh_token, "POST", "/token", _ALL, needs_token=False),
    Operation(query_analytics, "POST", "/taskanalytics/queries", _ANALYTICS),
    Operation(update_loop_items, "POST", "/task/updateLoopItems", takes_api_key=True),
    Operation(update_task_parameters, "POST", "/task/updateTaskParameters"),
    Operation(get_actions, "POST", "/task/getActions"),
    Operation(replace_urls, "POST", "/task/urls:file", takes="form"),
    Operation(copy_task, "POST", "/task/copy", takes="query", takes_api_key=True),
    Operation(copy_tasks, "POST", "/task/copies"),
    Operation(move_task, "POST", "/task/moveToGroup", takes="query"),
    Operation(delete_tasks, "POST", "/task/deleteTasks"),
    Operation(delete_task_groups, "POST", "/taskGroup/deleteGroups", ("Enterprise", "Team")),
    Operation(get_task_statuses, "POST", "/cloudextraction/statuses", status_limit=STATUS_V1),
    Operation(get_task_statuses_v2, "POST", "/cloudextraction/statuses/v2", status_limit=STATUS_V2),
    Operation(get_subtasks, "GET", "/cloudextraction/task/subtasks", takes="query"),
    Operation(start_subtasks, "POST", "/cloudextraction/subtasks:start", takes_api_key=True),
    Operation(
        get_running_counts,
        "GET",
        "/cloudextraction/task/stats",
        ("Enterprise",),
        takes="nothing",
    ),
    Operation(read_data, "GET", "/data/all", _ALL, takes="query"),
    Operation(read_batch_data, "GET", "/data/lotno/all", _ALL, takes="query", takes_api_key=True),
    Operation(mark_exported, "POST", "/data/markexported", _ALL, takes_api_key=True),
    Operation(
        deprecate_data_app,
        "POST",
        "/v1/data-apps/{app_id}/deprecate",
        _ALL,
        takes="nothing",
        data_app=True,
    ),
)

_BY_PATH = {operation.path: operation for operation in OPERATIONS if not operation.data_app}
_DEPRECATE = next(operation for operation in OPERATIONS if operation.data_app)


def find_operation(raw_path: str) -> tuple[Operation | None, str]:
    """
    Return the operation at a path, and the identifier in that path.

    :param raw_path: path as sent, still percent-encoded, so that an encoded slash stays inside its segment.
    """
    match raw_path.split("/"):
        case ["", "datahub", "v1", "data-apps", app_id, "deprecate"] if app_id:
            return _DEPRECATE, unquote(app_id)
    # A colon may be sent plain or percent-encoded; nothing else in the paths is ever encoded.
    return _BY_PATH.get(raw_path.replace("%3A", ":").replace("%3a", ":")), ""


def check_method(operation: Operation, method: str) -> None:
    """
    Accept only the contract's method.

    :raises ServiceError: HTTP 405.
    """
    if method != operation.method:
        raise ServiceError("MethodNotAllowed", f"Use {operation.method}.", 405, {"Allow": operation.method})


def check_tier(operation: Operation, tier: str) -> None:
    """
    Check that the account's plan includes the endpoint.

    :raises ServiceError: ``PermissionDenied``, HTTP 403.
    """
    if tier not in operation.tiers:
        raise ServiceError("PermissionDenied", f"The plan {tier} does not include this.", status=403)


def check_arguments(operation: Operation, query: bytes, body: bytes) -> None:
    """
    Accept a query or a body only if the operation takes one.

    :raises ServiceError: ``InvalidParameter``.
    """
    if operation.takes != "query":
        decode_query(query, needed=())
    if operation.takes in ("query", "nothing") and body:
        raise invalid("This endpoint takes no body.")
