"""The contract's twenty endpoints: what each takes from a request, what it does, and who may call it."""

from __future__ import annotations

import inspect
import itertools
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from airflow_provider_webcollect.sandbox import analytics, data, demo, world
from airflow_provider_webcollect.sandbox.state import (
    STATUS_V1,
    STATUS_V2,
    Credential,
    ServiceError,
    State,
    invalid,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[list[Text], Meta(min_length=1)]
# The largest integer that every JSON reader represents exactly.
MAX_INTEGER = 2**53 - 1
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
GroupIds = Annotated[list[Integer], Meta(min_length=1)]
PageNumber = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
# `TextList` or `UrlList` in the contract; public samples send `URLList`, and letter case varies.
LoopType = Annotated[str, Meta(pattern=r"(?ai)^(text|url)list\Z")]
ActionType = Literal["LoopAction", "NavigateAction", "EnterTextAction"]

Names = Literal["camel"] | None

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_EMPTY: tuple[object, ...] = ("", None)


class Record(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A record in a request body; unknown fields are refused, so that misspellings are noticed."""


class LoopItems(Record):
    """New loop values of a step."""

    action_id: Text
    loop_type: LoopType
    loop_items: list[str]
    is_append: bool | None = False


class Property(Record):
    """One parameter of a step."""

    name: Text
    value: str


class ActionParameters(Record):
    """New parameters of a step."""

    action_type: ActionType
    action_id: Text
    properties: list[Property]


class Parameters:
    """The parameters of a function except the first; their annotations say which values are valid.

    :param function: the function.
    :param names: ``camel`` if requests have the names in camel case; ``None`` if they have them as they are.
    """

    def __init__(self, function: Callable[..., object], names: Names = None) -> None:
        _, *parameters = inspect.signature(function, eval_str=True).parameters.values()
        self.struct = msgspec.defstruct(
            function.__name__,
            [
                (parameter.name, parameter.annotation)
                if parameter.default is parameter.empty
                else (parameter.name, parameter.annotation, parameter.default)
                for parameter in parameters
            ],
            kw_only=True,
            forbid_unknown_fields=True,
            rename=names,
        )
        fields = msgspec.structs.fields(self.struct)
        self._empty = {field.encode_name: _EMPTY if field.required else (*_EMPTY, []) for field in fields}
        self._integers = {field.encode_name for field in fields if field.type is not Text}

    def check(self, fields: Mapping[str, object]) -> dict[str, Any]:
        """Return the fields of a request as arguments.

        As in the contract, empty texts and nulls count as missing, and so do empty lists of optional fields.

        :raises ServiceError: ``InvalidParameter`` or ``InvalidParameter.Required``.
        """
        filled = {name: value for name, value in fields.items() if value not in self._empty.get(name, ())}
        try:
            return msgspec.structs.asdict(msgspec.convert(filled, self.struct))
        except msgspec.ValidationError as error:
            missing = re.match(r"Object missing required field `(\w+)`", str(error))
            raise required(missing[1]) if missing else invalid(str(error)) from error

    def check_query(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of a query string, in which integers are text, as arguments.

        :raises ServiceError: as in :meth:`check`.
        """
        return self.check(
            {
                name: int(value) if name in self._integers and _INTEGER.fullmatch(value) else value
                for name, value in values.items()
            }
        )


def required(name: str) -> ServiceError:
    """Return the error for a missing parameter."""
    return ServiceError("InvalidParameter.Required", f"The parameter {name} is required.")


def refresh_token(
    state: State,
    *,
    grant_type: Literal["password", "refresh_token"],
    refresh_token: Text | None = None,
    username: Text | None = None,
    password: Text | None = None,
) -> object:
    """Endpoint 1, which takes a refresh token, or user name and password for the first token."""
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
    today = datetime.fromtimestamp(state.clock.now(), UTC).date()
    if end > today or end < start:
        raise invalid("end must not be later than today (UTC) and not earlier than start.")
    if start < analytics.months_back(today, 3):
        raise invalid("Only the latest 3 months can be queried.")
    members = set(member_names) or {demo.USERNAME}
    if not members <= {demo.USERNAME, demo.COLLEAGUE}:
        raise ServiceError("MemberNotAllowed", "A member name is not one of your team.")
    wanted = {task.task_id for task in map(state.world.find, task_ids) if task}
    tasks = [
        task
        for task in state.world.tasks.values()
        if task.runs and task.owner in members and (not task_ids or task.task_id in wanted)
    ]
    methods = ["Cloud", "Local"] if collection_method == "All" else [collection_method]
    rows = analytics.records(state.settings.seed, tasks, start, end, time_granularity, methods)
    rows_of_page = rows[(page - 1) * page_size : page * page_size]
    if state.settings.null_metrics:
        rows_of_page = [
            row | {kind: dict.fromkeys(row[kind]) for kind in analytics.METRICS} for row in rows_of_page
        ]
    return {"total": len(rows), "data": rows_of_page}


def deprecate_data_app(state: State, *, app_id: str, author: str) -> object:
    """Endpoint 20."""
    app = state.world.apps.get(app_id)
    if app is None or app.namespace != author:
        raise ServiceError("NotFound", "There is no such data app.", status=404)
    app.status = "deprecated"
    return app


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
    task, now = own(state, task_id), state.clock.now()
    size = min(size, SUBTASK_PAGE_ROWS)
    numbered = list(enumerate(_listed_subtasks(state, task)))[(page - 1) * size : page * size]
    return [
        {"subTaskId": _echoed(state, subtask_id), "status": task.subtask_status(i, now)}
        for i, subtask_id in numbered
    ]


def start_subtasks(state: State, *, task_id: Text, sub_task_ids: Texts) -> None:
    """Endpoint 15."""
    task = own(state, task_id)
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
        "extractingCount": statuses.count(world.EXTRACTING),
        "waitingCount": statuses.count(world.WAITING),
        "finishedCount": statuses.count(world.FINISHED),
        "waitingSubTaskCount": subtasks.count(world.WAITING) + subtasks.count(world.SENT),
        "executingSubTaskCount": subtasks.count(world.EXTRACTING),
    }


def time_text(seconds: float) -> str:
    """Return a time in the contract's format: UTC with milliseconds, and without a zone."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def _with_status(state: State, task_ids: list[str]) -> list[world.Task]:
    if len(task_ids) > MOST_TASKS:
        raise ServiceError("InvalidTasks", f"A query names at most {MOST_TASKS} tasks.")
    tasks = own_tasks(state, task_ids)
    return [task for task in tasks if task.runs or task.marked or not state.settings.hide_unexecuted]


def _listed_subtasks(state: State, task: world.Task) -> list[str]:
    hidden = state.settings.hide_unexecuted_subtasks and not task.runs
    return [] if hidden else task.subtask_ids


def _status_record(state: State, task: world.Task, now: float) -> dict[str, Any]:
    settings, (status, run) = state.settings, task.seen(now)
    count = run.row_count(now) if run else 0
    latest = task.runs[-1] if task.runs else None
    counted = latest if "executed_times" in settings.stale_shows else run
    runs = counted.number if counted else 0
    if counted and settings.counted_runs == "ended" and counted.active(now):
        runs -= 1
    started = latest if "start_time" in settings.stale_shows else run
    record = {
        "taskId": _echoed(state, task.task_id),
        "status": status,
        # the service counts rows before it removes duplicates, here 1 more for every 40
        "currentTotalExtractCount": count + count // 40,
        "executedTimes": max(0, runs + settings.executed_times_offset),
        "subTaskCount": len(_listed_subtasks(state, task)),
        "nextExecuteTime": None,
        "startExecuteTime": time_text(started.began) if started else None,
    }
    if not settings.hide_end_times:
        record["endExecuteTime"] = time_text(run.ends()) if run and not run.active(now) else None
    return record


def _echoed(state: State, found_id: str) -> str:
    return found_id.upper() if state.settings.echo_ids == "upper" else found_id


PageSize = Annotated[int, Meta(ge=1, le=data.MAX_PAGE_ROWS)]


def read_data(state: State, *, task_id: Text, offset: Integer, size: PageSize) -> bytes:
    """Endpoint 17."""
    return data.read_page(visible_rows(state, own(state, task_id)), offset, size, state.blocks)


def read_batch_data(state: State, *, task_id: Text, lotno: Text, offset: Integer, size: PageSize) -> bytes:
    """Endpoint 18."""
    batch = visible_rows(state, own(state, task_id), lotno)
    if not batch:
        raise invalid("The task has no batch of this number.")
    return data.read_page(batch, offset, size, state.blocks)


def mark_exported(state: State, *, task_id: Text) -> None:
    """Endpoint 19: rows that exist now count as exported, later ones do not."""
    for run in own(state, task_id).runs:
        run.exported_rows = run.row_count(state.clock.now())


def visible_rows(state: State, task: world.Task, lotno: str | None = None) -> list[data.Span]:
    """Return the rows that a complete read of a task, or of one batch, returns now: a span for each batch."""
    now, delay = state.clock.now(), state.settings.empty_after_finish_seconds / state.settings.speed
    return [task.readable(run, now, delay) for run in task.runs if lotno in (None, run.lotno)]


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
    task = own(state, task_id)
    _set_loop_items(_step(task, action_id, world.LOOP_ACTION), loop_type, loop_items, is_append)
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
    task = own(state, task_id)
    # All steps are looked up before any is changed, so that a refused request changes nothing.
    steps = [_step(task, entry.action_id, entry.action_type) for entry in actions]
    loops = [_step(task, entry.action_id, world.LOOP_ACTION) for entry in loop_items]
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
    hides_files = state.settings.hide_url_files
    return [
        {
            "taskId": task.task_id,
            "actions": [
                _step_record(step, hides_files) for step in task.actions if step.action_type in action_types
            ],
        }
        for task in own_tasks(state, task_ids)
    ]


def replace_urls(state: State, *, task_id: Text, file: bytes) -> None:
    """Endpoint 6."""
    task = own(state, task_id)
    if task.running(state.clock.now()):
        raise ServiceError("TaskExecuting", "The task is running.")
    try:
        urls = [line.strip() for line in file.decode("utf-8-sig").rstrip().splitlines()]
    except UnicodeDecodeError as error:
        raise invalid("The file is not UTF-8 text.") from error
    if not urls or not all(url.lower().startswith(("http://", "https://")) for url in urls):
        raise invalid("The file must have one URL per line.")
    _set_loop_items(task.loop, "UrlList", urls, append=False)
    task.loop.is_from_file = True


def copy_task(state: State, *, task_id: Text, task_group_id: Integer | None = None) -> object:
    """Endpoint 7."""
    task = own(state, task_id)
    group_id = task.group_id if task_group_id is None else task_group_id
    copy = state.world.copy_task(task, known_group(state, group_id))
    return {"taskId": copy.task_id, "taskName": copy.name}


def copy_tasks(state: State, *, task_ids: Texts, group_ids: GroupIds) -> object:
    """Endpoint 8."""
    if not own_tasks(state, task_ids):
        raise ServiceError("InvalidTaskId", "None of the task ids is valid.")
    failed = []
    for task_id, group_id in itertools.product(task_ids, group_ids):
        try:
            state.world.copy_task(own(state, task_id), known_group(state, group_id))
        except ServiceError as refusal:
            failed.append({"taskId": task_id, "reason": refusal.message})
    count = len(task_ids) * len(group_ids)
    answer = {"requestCount": count, "successCount": count - len(failed)}
    return {**answer, "failedTasks": failed} if failed else answer


def move_task(state: State, *, task_id: Text, task_group_id: Integer) -> object:
    """Endpoint 9."""
    task = own(state, task_id)
    task.group_id = known_group(state, task_group_id)
    return {"moved": True}


def delete_tasks(state: State, *, task_ids: Texts) -> object:
    """Endpoint 10; unknown ids are ignored, so that a repeated request succeeds and changes nothing."""
    for task in own_tasks(state, task_ids):
        del state.world.tasks[task.task_id.lower()]
    return []


def delete_task_groups(state: State, *, group_ids: GroupIds) -> object:
    """Endpoint 11; unknown ids are ignored. Tasks of the deleted groups move to the default group."""
    if demo.DEFAULT_GROUP_ID in group_ids:
        raise invalid("The default group cannot be deleted.")
    for group_id in group_ids:
        state.world.groups.pop(group_id, None)
    for task in state.world.tasks.values():
        if task.group_id in group_ids:
            task.group_id = demo.DEFAULT_GROUP_ID
    return []


def own(state: State, task_id: str) -> world.Task:
    """Return a task of the account.

    :raises ServiceError: ``InvalidTaskId``, also if the task belongs to another user.
    """
    task = state.world.find(task_id)
    if task is None or task.owner != demo.USERNAME:
        raise ServiceError("InvalidTaskId", "The task id is invalid.")
    return task


def own_tasks(state: State, task_ids: Iterable[str]) -> list[world.Task]:
    """Return the account's tasks among the given ids, each once, in the order requested."""
    tasks = {task.task_id: task for task in map(state.world.find, task_ids) if task is not None}
    return [task for task in tasks.values() if task.owner == demo.USERNAME]


def known_group(state: State, group_id: int) -> int:
    """Return the id if the group exists.

    :raises ServiceError: there is no such group.
    """
    if group_id not in state.world.groups:
        raise ServiceError("GroupNotFound", f"There is no task group {group_id}.")
    return group_id


def _step(task: world.Task, action_id: str, action_type: str) -> world.Action:
    for action in task.actions:
        if (action.action_id, action.action_type) == (action_id, action_type):
            return action
    raise ServiceError("TaskSettingsNotFound", "The task has no such step.")


def _set_loop_items(loop: world.Action, loop_type: str, items: list[str], append: bool) -> None:
    loop.loop_type = _LOOP_TYPES[loop_type.lower()]
    loop.loop_items = [*loop.loop_items, *items] if append else list(items)
    loop.is_from_file = False


def _step_record(step: world.Action, hides_files: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"actionType": step.action_type, "actionId": step.action_id, "name": step.name}
    if step.action_type == world.LOOP_ACTION:
        items = [] if hides_files and step.is_from_file else step.loop_items
        record |= {"loopType": _SHOWN_LOOP_TYPES[step.loop_type], "loopItems": items}
    elif step.action_type == world.ENTER_TEXT_ACTION:
        record["properties"] = [{"name": name, "value": value} for name, value in step.properties.items()]
    return record


DATAHUB_PREFIX = "/datahub"

_ALL = ("Flagship", "Flagship+", "Enterprise", "Team")
_ANALYTICS = ("Flagship", "Flagship+", "Enterprise")
_TASKS = ("Flagship+", "Enterprise", "Team")


@dataclass(frozen=True)
class Operation:
    """One endpoint.

    :param handle: function that carries out the operation. It takes the state and the arguments of the
        request; for a data app, these are the app's id and the author who calls.
    :param path: the contract's path.
    :param tiers: plans that include the operation.
    :param takes: the part of the request that has the arguments; arguments elsewhere are refused.
    :param credential: the credential that callers must send.
    :param names: how requests name the arguments; see :class:`Parameters`.
    :param body_may_be_empty: whether no body, or null, counts as an empty object.
    :param status_limit: the rate limit that applies besides the general one; ``None`` for no other.
    """

    handle: Callable[..., object]
    method: str
    path: str
    tiers: tuple[str, ...] = _TASKS
    takes: Literal["json", "form", "query", "path"] = "json"
    credential: Credential = "token"
    names: Names = "camel"
    body_may_be_empty: bool = False
    status_limit: str | None = None

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters that its handler takes from a request."""
        return Parameters(self.handle, self.names)


_DEPRECATE = Operation(
    deprecate_data_app, "POST", "/v1/data-apps/{app_id}/deprecate", _ALL, "path", "author", names=None
)
OPERATIONS = (
    Operation(refresh_token, "POST", "/token", _ALL, credential="none", names=None),
    Operation(query_analytics, "POST", "/taskanalytics/queries", _ANALYTICS),
    Operation(update_loop_items, "POST", "/task/updateLoopItems", credential="token or key"),
    Operation(update_task_parameters, "POST", "/task/updateTaskParameters", body_may_be_empty=True),
    Operation(get_actions, "POST", "/task/getActions"),
    Operation(replace_urls, "POST", "/task/urls:file", takes="form"),
    Operation(copy_task, "POST", "/task/copy", takes="query", credential="token or key"),
    Operation(copy_tasks, "POST", "/task/copies"),
    Operation(move_task, "POST", "/task/moveToGroup", takes="query"),
    Operation(delete_tasks, "POST", "/task/deleteTasks"),
    Operation(delete_task_groups, "POST", "/taskGroup/deleteGroups", ("Enterprise", "Team")),
    Operation(get_task_statuses, "POST", "/cloudextraction/statuses", status_limit=STATUS_V1),
    Operation(get_task_statuses_v2, "POST", "/cloudextraction/statuses/v2", status_limit=STATUS_V2),
    Operation(get_subtasks, "GET", "/cloudextraction/task/subtasks", takes="query"),
    Operation(start_subtasks, "POST", "/cloudextraction/subtasks:start", credential="token or key"),
    Operation(get_running_counts, "GET", "/cloudextraction/task/stats", ("Enterprise",), takes="query"),
    Operation(read_data, "GET", "/data/all", _ALL, takes="query"),
    Operation(read_batch_data, "GET", "/data/lotno/all", _ALL, takes="query", credential="token or key"),
    Operation(mark_exported, "POST", "/data/markexported", _ALL, credential="token or key"),
    _DEPRECATE,
)

_BY_PATH = {operation.path: operation for operation in OPERATIONS if operation is not _DEPRECATE}


def find_operation(raw_path: str) -> tuple[Operation | None, str]:
    """Return the operation at a path, and the id of the data app in the path, which may be empty.

    A data app is named by one segment, whose slash is percent-encoded, or by a namespace and a name.

    :param raw_path: path as sent, still percent-encoded, so that an encoded slash stays inside its segment.
    """
    match raw_path.split("/"):
        case ["", "datahub", "v1", "data-apps", app_id, "deprecate"] if app_id:
            return _DEPRECATE, unquote(app_id)
        case ["", "datahub", "v1", "data-apps", namespace, name, "deprecate"] if namespace and name:
            return _DEPRECATE, unquote(f"{namespace}/{name}")
    # A colon may be sent plain or percent-encoded; nothing else in the paths is ever encoded.
    return _BY_PATH.get(raw_path.replace("%3A", ":").replace("%3a", ":")), ""
