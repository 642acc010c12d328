"""The contract's twenty endpoints: the handlers, and path, permissions and limits of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote

from msgspec import Meta

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.bodies import (
    ActionParameters,
    ActionType,
    GroupIds,
    Integer,
    LoopItems,
    LoopType,
    Names,
    PageNumber,
    Parameters,
    ServiceError,
    Text,
    Texts,
    invalid,
    required,
)
from airflow_provider_webcollect.sandbox.data import (
    MAX_PAGE_ROWS,
    Span,
    months_back,
    read_page,
    records,
    with_nulls,
)
from airflow_provider_webcollect.sandbox.state import STATUS_V1, STATUS_V2, State
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


def refresh_token(
    state: State,
    *,
    grant_type: Literal["password", "refresh_token"],
    refresh_token: Text | None = None,
    username: Text | None = None,
    password: Text | None = None,
) -> object:
    """Endpoint 1, and the first token by password."""
    if grant_type == "refresh_token":
        if username is not None or password is not None:
            raise invalid("With a refresh token there is no user name and no password.")
        if refresh_token is None:
            raise required("refresh_token")
        return state.tokens.refresh(state.settings, refresh_token)
    if refresh_token is not None:
        raise invalid("With a password there is no refresh token.")
    if username is None or password is None:
        raise required("username" if username is None else "password")
    return state.tokens.log_in(state.settings, username, password)


def query_analytics(
    state: State,
    *,
    start: date,
    end: date,
    page: PageNumber = 1,
    page_size: Annotated[int, Meta(ge=1, le=500)] = 20,
    task_ids: Annotated[tuple[Text, ...], Meta(max_length=100)] = (),
    member_names: Annotated[tuple[Text, ...], Meta(max_length=100)] = (),
    collection_method: Literal["Cloud", "Local", "All"] = "All",
    time_granularity: Literal["Day", "Week", "Month"] = "Day",
) -> object:
    """Endpoint 2."""
    today = datetime.fromtimestamp(state.clock.wall(), UTC).date()
    if end > today or end < start:
        raise invalid("end must not be later than today (UTC) and not earlier than start.")
    if start < months_back(today, 3):
        raise invalid("Only the latest 3 months can be queried.")
    members = set(member_names) or {demo.USERNAME}
    if not members <= {demo.USERNAME, demo.COLLEAGUE}:
        raise ServiceError("MemberNotAllowed", "A member name is not one of your team.")
    tasks = [
        task
        for task in state.world.tasks.values()
        if task.owner in members and (not task_ids or task.task_id in task_ids)
    ]
    methods = ["Cloud", "Local"] if collection_method == "All" else [collection_method]
    seed, null_share = state.settings.seed, state.settings.null_metrics
    found = records(seed, tasks, start, end, time_granularity, methods)
    shown = found[(page - 1) * page_size : page * page_size]
    return {"total": len(found), "data": [with_nulls(seed, record, null_share) for record in shown]}


def deprecate_data_app(state: State, *, app_id: str, author: str) -> object:
    """Endpoint 20."""
    app = state.world.apps.get(app_id)
    if app is None or app.author != author:
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


SUBTASK_PAGE_ROWS = 20
MOST_TASKS = 100


def get_task_statuses(state: State, *, task_ids: Texts) -> object:
    """Endpoint 12."""
    now = state.clock.now()
    return [
        {"taskId": _echoed(state, task.task_id), "taskName": task.name, "status": task.seen(now)[0]}
        for task in _with_status(state, task_ids)
    ]


def get_task_statuses_v2(state: State, *, task_ids: Texts) -> object:
    """Endpoint 13."""
    now = state.clock.now()
    return [_status_record(state, task, now) for task in _with_status(state, task_ids)]


def get_subtasks(state: State, *, task_id: Text, page: PageNumber, size: PageNumber) -> object:
    """Endpoint 14."""
    task, now = state.world.own(task_id), state.clock.now()
    size = min(size, SUBTASK_PAGE_ROWS)
    shown = list(enumerate(_listed_subtasks(state, task)))[(page - 1) * size : page * size]
    return [
        {"subTaskId": _echoed(state, subtask_id), "status": task.subtask_status(i, now)}
        for i, subtask_id in shown
    ]


def start_subtasks(state: State, *, task_id: Text, sub_task_ids: Texts) -> None:
    """Endpoint 15."""
    task = state.world.own(task_id)
    exact = state.settings.echo_ids == "as_sent"
    subtask_ids = {subtask_id if exact else subtask_id.lower() for subtask_id in sub_task_ids}
    if not subtask_ids <= set(task.subtask_ids):
        raise invalid("A sub-task id is not one of the task's.")
    state.world.start(task, subtask_ids)


def get_running_counts(state: State) -> object:
    """Endpoint 16."""
    now = state.clock.now()
    tasks = [task for task in state.world.tasks.values() if task.owner == demo.USERNAME]
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


def _with_status(state: State, task_ids: list[str]) -> list[Task]:
    if len(task_ids) > MOST_TASKS:
        raise ServiceError("InvalidTasks", f"A query names at most {MOST_TASKS} tasks.")
    tasks = state.world.owned(task_ids)
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


PageSize = Annotated[int, Meta(ge=1, le=MAX_PAGE_ROWS)]


def read_data(state: State, *, task_id: Text, offset: Integer, size: PageSize) -> bytes:
    """Endpoint 17."""
    return _page(state, visible_rows(state, state.world.own(task_id)), offset, size)


def read_batch_data(state: State, *, task_id: Text, lotno: Text, offset: Integer, size: PageSize) -> bytes:
    """Endpoint 18."""
    batch = visible_rows(state, state.world.own(task_id), lotno)
    if not batch:
        raise invalid("The task has no batch of this number.")
    return _page(state, batch, offset, size)


def mark_exported(state: State, *, task_id: Text) -> None:
    """Endpoint 19: rows that exist now count as exported, later ones do not."""
    for run in state.world.own(task_id).runs:
        run.exported_rows = run.row_count(state.clock.now())


def visible_rows(state: State, task: Task, lotno: str | None = None) -> list[Span]:
    """Return the rows of a complete read of a task, or of one of its batches."""
    now, delay = state.clock.now(), state.settings.empty_after_finish_seconds
    return [task.readable(run, now, delay) for run in task.runs if lotno in (None, run.lotno)]


def _page(state: State, spans: list[Span], offset: int, size: int) -> bytes:
    settings = state.settings
    refuse_large = settings.large_pages == "refuse"
    return read_page(spans, offset, size, settings.offset_jump, state.blocks, refuse_large)


_LOOP_TYPES = {"urllist": "UrlList", "textlist": "TextList"}
_SHOWN_LOOP_TYPES = {"UrlList": "URLList", "TextList": "TextList"}


def update_loop_items(
    state: State,
    *,
    task_id: Text,
    action_id: Text,
    loop_type: LoopType,
    loop_items: list[str],
    is_append: bool,
) -> object:
    """Endpoint 3."""
    task = state.world.own(task_id)
    _set_loop_items(_step(task, action_id, LOOP_ACTION), loop_type, loop_items, is_append)
    return {"message": "The loop items were updated."}


def update_task_parameters(
    state: State,
    *,
    task_id: Text | None = None,
    actions: tuple[ActionParameters, ...] = (),
    loop_items: tuple[LoopItems, ...] = (),
) -> object:
    """Endpoint 4."""
    if not actions and not loop_items:
        raise ServiceError("RequestModelNull", "The request has no parameters.")
    if task_id is None:
        raise required("taskId")
    task = state.world.own(task_id)
    # All steps are looked up before any is changed, so that a refused request changes nothing.
    steps = [_step(task, entry.action_id, entry.action_type) for entry in actions]
    loops = [_step(task, entry.action_id, LOOP_ACTION) for entry in loop_items]
    for step, parameters in zip(steps, actions, strict=True):
        step.properties = step.properties | {entry.name: entry.value for entry in parameters.properties}
    for loop, items in zip(loops, loop_items, strict=True):
        _set_loop_items(loop, items.loop_type, items.loop_items, bool(items.is_append))
    echoed = [
        {"actionId": loop.action_id, "loopType": items.loop_type, "loopItems": loop.loop_items}
        for loop, items in zip(loops, loop_items, strict=True)
    ]
    return {"taskId": task.task_id, "updatedParameters": {"actions": actions, "loopItems": echoed}}


def get_actions(
    state: State, *, task_ids: Texts, action_types: Annotated[list[ActionType], Meta(min_length=1)]
) -> object:
    """Endpoint 5."""
    return [
        {
            "taskId": task.task_id,
            "actions": [_step_record(step) for step in task.actions if step.action_type in action_types],
        }
        for task in state.world.owned(task_ids)
    ]


def replace_urls(state: State, *, task_id: Text, file: bytes) -> None:
    """Endpoint 6."""
    task = state.world.own(task_id)
    if task.running(state.clock.now()):
        raise ServiceError("TaskExecuting", "The task is running.")
    _set_loop_items(task.loop, "UrlList", _urls(file), append=False)


def copy_task(state: State, *, task_id: Text, task_group_id: Integer | None = None) -> object:
    """Endpoint 7."""
    task = state.world.own(task_id)
    group_id = task.group_id if task_group_id is None else task_group_id
    copy = state.world.copy_task(task, state.world.known_group(group_id))
    return {"taskId": copy.task_id, "taskName": copy.name}


def copy_tasks(state: State, *, task_ids: Texts, group_ids: GroupIds) -> object:
    """Endpoint 8."""
    world, failed = state.world, []
    if not world.owned(task_ids):
        raise ServiceError("InvalidTaskId", "None of the task ids is valid.")
    for task_id in task_ids:
        for group_id in group_ids:
            try:
                world.copy_task(world.own(task_id), world.known_group(group_id))
            except ServiceError as refusal:
                failed.append({"taskId": task_id, "reason": refusal.message})
    count = len(task_ids) * len(group_ids)
    answer = {"requestCount": count, "successCount": count - len(failed)}
    return {**answer, "failedTasks": failed} if failed else answer


def move_task(state: State, *, task_id: Text, task_group_id: Integer) -> object:
    """Endpoint 9."""
    task = state.world.own(task_id)
    task.group_id = state.world.known_group(task_group_id)
    return {"moved": True}


def delete_tasks(state: State, *, task_ids: Texts) -> object:
    """Endpoint 10; unknown ids are ignored, so that repeating it has no effect."""
    for task in state.world.owned(task_ids):
        del state.world.tasks[task.task_id.lower()]
    return []


def delete_task_groups(state: State, *, group_ids: GroupIds) -> object:
    """Endpoint 11; like endpoint 10."""
    if demo.DEFAULT_GROUP_ID in group_ids:
        raise invalid("The default group cannot be deleted.")
    for group_id in group_ids:
        state.world.delete_group(group_id)
    return []


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

    :param handle: carries it out, for the state and its arguments; the caller is an argument of data apps.
    :param path: the contract's path.
    :param tiers: plans that include it.
    :param takes: where its arguments are; arguments elsewhere are refused.
    :param names: how its arguments are named.
    :param body_may_be_empty: whether no body, or null, counts as an empty object.
    :param takes_api_key: whether ``x-api-key`` may replace the token.
    :param status_limit: its additional rate limit besides the general one.
    """

    handle: Callable[..., object]
    method: str
    path: str
    tiers: tuple[str, ...] = _TASKS
    takes: Literal["json", "form", "query", "path"] = "json"
    names: Names = "camel"
    body_may_be_empty: bool = False
    takes_api_key: bool = False
    needs_token: bool = True
    status_limit: str | None = None
    data_app: bool = False

    @cached_property
    def parameters(self) -> Parameters:
        """What its handler takes from a request."""
        return Parameters(self.handle, self.names)


OPERATIONS = (
    Operation(refresh_token, "POST", "/token", _ALL, names=None, needs_token=False),
    Operation(query_analytics, "POST", "/taskanalytics/queries", _ANALYTICS),
    Operation(update_loop_items, "POST", "/task/updateLoopItems", takes_api_key=True),
    Operation(update_task_parameters, "POST", "/task/updateTaskParameters", body_may_be_empty=True),
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
    Operation(get_running_counts, "GET", "/cloudextraction/task/stats", ("Enterprise",), takes="query"),
    Operation(read_data, "GET", "/data/all", _ALL, takes="query"),
    Operation(read_batch_data, "GET", "/data/lotno/all", _ALL, takes="query", takes_api_key=True),
    Operation(mark_exported, "POST", "/data/markexported", _ALL, takes_api_key=True),
    Operation(
        deprecate_data_app,
        "POST",
        "/v1/data-apps/{app_id}/deprecate",
        takes="path",
        names=None,
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
