"""The twenty endpoints of the contract, each declared once as a function that returns a :class:`Call`.

The functions check their arguments and do no I/O; ``Client.send`` or ``AsyncClient.send`` sends the call.
Argument names are those of the contract in snake_case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import pendulum

from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import (
    ActionType,
    AnalyticsPage,
    CollectionMethod,
    CopiedTask,
    CopyResult,
    DataPage,
    DeprecatedApp,
    LoopType,
    Message,
    Moved,
    ParameterUpdate,
    RunningCounts,
    SubTask,
    TaskActions,
    TaskStatus,
    TimeGranularity,
    TokenRecord,
)
from airflow_provider_webcollect.service.responses import ANALYTICS, NOTHING, PAGE, Result, many, one

if TYPE_CHECKING:
    import datetime

    from airflow_provider_webcollect.service.url_file import UrlFile

T = TypeVar("T", covariant=True)


class Credential(Enum):
    """The credential that an endpoint requires (contract.md, Authentication)."""

    NONE = "none"
    TOKEN = "access token"
    KEY_OR_TOKEN = "API key or access token"
    DATAHUB_KEY = "data-app API key"


class Retry(Enum):
    """When a call may be sent again after a failure."""

    SAFE = "safe to repeat"
    ONLY_IF_UNSENT = "only if it surely did not take effect"


class RateLimit(Enum):
    """The rate limit that applies to an endpoint (contract.md, Limits; assumptions.md, Limits)."""

    GENERAL = "general"
    STATUS_V1 = "status v1"
    STATUS_V2 = "status v2"


TEAM_UP = ("Flagship+", "Enterprise", "Team")
ALL_PAID = ("Flagship", *TEAM_UP)


class Endpoint(msgspec.Struct, frozen=True):
    """An operation of the contract, declared once.

    :param number: the endpoint's number in the contract.
    :param name: the operation's name, which is also the hook's method.
    :param path: the path below the base URL; ``{app_id}`` is replaced by percent-encoded segments.
    :param with_key: what an API key alone can do instead, if this needs a token; empty for nothing.
    :param tiers: the plans that include the operation; empty means all, None that the contract does not say.
    :param errors: the error codes that the contract names for the operation.
    """

    number: int
    name: str
    method: str
    path: str
    credential: Credential = Credential.TOKEN
    retry: Retry = Retry.SAFE
    rate_limit: RateLimit = RateLimit.GENERAL
    with_key: str = ""
    tiers: tuple[str, ...] | None = TEAM_UP
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call of an endpoint: what is sent, and how the response is read. It does no I/O.

    :param result: reads the ``data`` of the response as ``T``.
    :param own_retry: replaces the endpoint's ``retry`` for this call, for example when it appends.
    :param body: the JSON body, if any.
    :param form: fields of a multipart body, sent with ``file``.
    """

    endpoint: Endpoint
    result: Result[T]
    _: KW_ONLY
    own_retry: Retry | None = None
    query: Mapping[str, str | int] = field(default_factory=dict)
    segments: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    form: Mapping[str, str] = field(default_factory=dict)
    file: UrlFile | None = None

    @property
    def retry(self) -> Retry:
        """When this call may be sent again after a failure."""
        return self.own_retry or self.endpoint.retry

    @property
    def task_id(self) -> str | None:
        """The task that the call is about; None for a call on several, or on none."""
        fields = {**self.query, **(self.body or {}), **self.form}
        return str(fields["taskId"]) if "taskId" in fields else None

    @property
    def target(self) -> str:
        """The path and query below the base URL; percent-encoded, but for slashes of an app."""
        path = self.endpoint.path.format_map(
            {name: quote(value, safe="/") for name, value in self.segments.items()}
        )
        return f"{path}?{urlencode(self.query, quote_via=quote, safe='')}" if self.query else path


#: Most rows in one page of data (contract.md, Limits).
MAX_DATA_SIZE = 1000
#: Most sub-tasks in one page (assumptions.md, Status).
MAX_SUBTASK_SIZE = 20
MAX_ANALYTICS_SIZE = 500
MAX_ANALYTICS_FILTER = 100
#: The spelling in the sample of endpoint 4, and all known ones (assumptions.md, Steps and URL files).
SAMPLED_URL_LIST = "URLList"
URL_LIST_SPELLINGS = (str(LoopType.URL_LIST), SAMPLED_URL_LIST)

REFRESH_TOKEN = Endpoint(
    1, "refresh_token", "POST", "/token", credential=Credential.NONE, retry=Retry.ONLY_IF_UNSENT, tiers=()
)
QUERY_ANALYTICS = Endpoint(
    2,
    "query_analytics",
    "POST",
    "/taskanalytics/queries",
    tiers=("Flagship", "Flagship+", "Enterprise"),
    errors=("MemberNotAllowed",),
)
UPDATE_LOOP_ITEMS = Endpoint(
    3,
    "update_loop_items",
    "POST",
    "/task/updateLoopItems",
    credential=Credential.KEY_OR_TOKEN,
    errors=("TaskSettingsNotFound",),
)
UPDATE_TASK_PARAMETERS = Endpoint(
    4, "update_task_parameters", "POST", "/task/updateTaskParameters", errors=("RequestModelNull",)
)
GET_ACTIONS = Endpoint(5, "get_actions", "POST", "/task/getActions")
REPLACE_URLS = Endpoint(6, "replace_urls", "POST", "/task/urls:file", errors=("InvalidTaskId",))
COPY_TASK = Endpoint(
    7,
    "copy_task",
    "POST",
    "/task/copy",
    credential=Credential.KEY_OR_TOKEN,
    retry=Retry.ONLY_IF_UNSENT,
    errors=("InvalidTaskId",),
)
COPY_TASKS = Endpoint(
    8, "copy_tasks", "POST", "/task/copies", retry=Retry.ONLY_IF_UNSENT, errors=("InvalidTaskId",)
)
MOVE_TASK = Endpoint(9, "move_task", "POST", "/task/moveToGroup", errors=("InvalidTaskId",))
DELETE_TASKS = Endpoint(10, "delete_tasks", "POST", "/task/deleteTasks")
DELETE_TASK_GROUPS = Endpoint(
    11, "delete_task_groups", "POST", "/taskGroup/deleteGroups", tiers=("Enterprise", "Team")
)
GET_TASK_STATUSES = Endpoint(
    12, "get_task_statuses", "POST", "/cloudextraction/statuses", rate_limit=RateLimit.STATUS_V1
)
GET_TASK_STATUSES_V2 = Endpoint(
    13, "get_task_statuses_v2", "POST", "/cloudextraction/statuses/v2", rate_limit=RateLimit.STATUS_V2
)
GET_SUBTASKS = Endpoint(14, "get_subtasks", "GET", "/cloudextraction/task/subtasks")
START_SUBTASKS = Endpoint(
    15,
    "start_subtasks",
    "POST",
    "/cloudextraction/subtasks:start",
    credential=Credential.KEY_OR_TOKEN,
    retry=Retry.ONLY_IF_UNSENT,
)
GET_RUNNING_COUNTS = Endpoint(
    16, "get_running_counts", "GET", "/cloudextraction/task/stats", tiers=("Enterprise",)
)
READ_DATA = Endpoint(17, "read_data", "GET", "/data/all", with_key="read one batch (`lotno`)", tiers=ALL_PAID)
READ_BATCH_DATA = Endpoint(
    18, "read_batch_data", "GET", "/data/lotno/all", credential=Credential.KEY_OR_TOKEN, tiers=ALL_PAID
)
MARK_EXPORTED = Endpoint(
    19, "mark_exported", "POST", "/data/markexported", credential=Credential.KEY_OR_TOKEN, tiers=ALL_PAID
)
DEPRECATE_DATA_APP = Endpoint(
    20,
    "deprecate_data_app",
    "POST",
    "/v1/data-apps/{app_id}/deprecate",
    credential=Credential.DATAHUB_KEY,
    tiers=None,
    errors=("unauthorized",),
)

#: All endpoints, in the order of their declarations.
ENDPOINTS = tuple(value for value in globals().values() if isinstance(value, Endpoint))


def refresh_token(refresh_token: str) -> Call[TokenRecord]:
    """Exchange a refresh token for a new access token and a new refresh token (contract.md, endpoint 1)."""
    body = {"refresh_token": arguments.text("refresh_token", refresh_token), "grant_type": "refresh_token"}
    return Call(REFRESH_TOKEN, one(TokenRecord), body=body)


def first_token(username: str, password: str) -> Call[TokenRecord]:
    """Obtain the first tokens with login and password (assumptions.md, Tokens)."""
    body = {
        "username": arguments.encodable("login", username),
        "password": arguments.encodable("password", password),
        "grant_type": "password",
    }
    return Call(REFRESH_TOKEN, one(TokenRecord), own_retry=Retry.SAFE, body=body)


def date_range(start: object, end: object) -> tuple[str, str]:
    """Return an analytics range as ``yyyy-MM-dd`` texts (contract.md, endpoint 2: latest 3 months in UTC)."""
    first, last = arguments.date("start", start), arguments.date("end", end)
    today = pendulum.now("UTC").date()
    oldest = today.subtract(months=3)
    if last > today:
        raise InvalidArgument("end", end, f"it must not be after the current UTC date, {today}")
    if last < first:
        raise InvalidArgument("end", end, f"it must not be before `start`, {first}")
    if first < oldest:
        raise InvalidArgument("start", start, f"only the latest 3 months can be queried, from {oldest} on")
    return first.isoformat(), last.isoformat()


def query_analytics(
    start: str | datetime.date,
    end: str | datetime.date,
    *,
    page: int | None = None,
    page_size: int | None = None,
    task_ids: Sequence[str] | None = None,
    member_names: Sequence[str] | None = None,
    collection_method: str | None = None,
    time_granularity: str | None = None,
) -> Call[AnalyticsPage]:
    """Query collection, execution and resource metrics per task and time bucket (contract.md, endpoint 2)."""
    first, last = date_range(start, end)
    body: dict[str, Any] = {"start": first, "end": last}
    if page is not None:
        body["page"] = arguments.integer("page", page, 1)
    if page_size is not None:
        body["pageSize"] = arguments.integer("page_size", page_size, 1, MAX_ANALYTICS_SIZE)
    if task_ids is not None:
        body["taskIds"] = arguments.texts("task_ids", task_ids, most=MAX_ANALYTICS_FILTER)
    if member_names:
        body["memberNames"] = arguments.texts("member_names", member_names, most=MAX_ANALYTICS_FILTER)
    if collection_method is not None:
        body["collectionMethod"] = arguments.Word(CollectionMethod)("collection_method", collection_method)
    if time_granularity is not None:
        body["timeGranularity"] = arguments.Word(TimeGranularity)("time_granularity", time_granularity)
    return Call(QUERY_ANALYTICS, ANALYTICS, body=body)


def update_loop_items(
    task_id: str, action_id: str, loop_type: str, loop_items: Sequence[str], is_append: bool = False
) -> Call[Message]:
    """Replace, or extend, the values of a loop step (contract.md, endpoint 3).

    A call that appends is repeated only if the first attempt certainly had no effect.
    """
    entry = _loop_entry(action_id, loop_type, loop_items, is_append)
    return Call(
        UPDATE_LOOP_ITEMS,
        one(Message),
        own_retry=Retry.ONLY_IF_UNSENT if is_append else None,
        body={"taskId": arguments.text("task_id", task_id), **entry},
    )


def _loop_entry(
    action_id: Any,
    loop_type: Any,
    loop_items: Any,
    is_append: Any,
    *,
    prefix: str = "",
    url_list: str = LoopType.URL_LIST,
) -> dict[str, Any]:
    """Return a loop list to send.

    :param url_list: what a list of URLs is called in the endpoint's sample.
    """
    return {
        "actionId": arguments.text(f"{prefix}action_id", action_id),
        "loopType": _loop_type(f"{prefix}loop_type", loop_type, url_list),
        "loopItems": arguments.items(f"{prefix}loop_items", loop_items, arguments.encodable),
        "isAppend": arguments.boolean(f"{prefix}is_append", is_append, may_be_text=True),
    }


def _loop_type(argument: str, value: Any, url_list: str) -> str:
    """Return the loop type in the caller's spelling if that is a known one, otherwise in the sample's."""
    loop_type = arguments.Word(LoopType)(argument, value)
    if loop_type != LoopType.URL_LIST:
        return loop_type
    return str(value) if value in URL_LIST_SPELLINGS else url_list


def update_task_parameters(
    task_id: str,
    *,
    actions: Sequence[Mapping[str, Any]] | None = None,
    loop_items: Sequence[Mapping[str, Any]] | None = None,
) -> Call[ParameterUpdate]:
    """Update parameters of steps and loop lists in one call (contract.md, endpoint 4).

    :param actions: each ``{"action_type", "action_id", "properties"}``, with properties as a dict of names
        and values, or as a list of ``{"name", "value"}``.
    :param loop_items: each ``{"action_id", "loop_type", "loop_items"}`` and, optionally, ``"is_append"``.
    """
    if not actions and not loop_items:
        raise InvalidArgument("actions", actions, "`actions` or `loop_items` must hold at least one entry")
    body: dict[str, Any] = {"taskId": arguments.text("task_id", task_id)}
    if actions:
        entries = arguments.items("actions", actions)
        body["actions"] = [_action_entry(f"actions[{i}]", entry) for i, entry in enumerate(entries)]
    if loop_items:
        entries = arguments.items("loop_items", loop_items)
        body["loopItems"] = [_loop_item_entry(f"loop_items[{i}]", entry) for i, entry in enumerate(entries)]
    appends = any(entry["isAppend"] for entry in body.get("loopItems", ()))
    return Call(
        UPDATE_TASK_PARAMETERS,
        one(ParameterUpdate),
        own_retry=Retry.ONLY_IF_UNSENT if appends else None,
        body=body,
    )


def _entry(argument: str, entry: Any, required: set[str], optional: set[str]) -> Mapping[str, Any]:
    keys = set(entry) if isinstance(entry, Mapping) else set()
    if not required <= keys or not keys <= required | optional:
        wanted = ", ".join(sorted(required)) + "".join(f", optionally {name}" for name in sorted(optional))
        raise InvalidArgument(argument, entry, f"it must be a dict with {wanted}")
    return entry  # type: ignore[no-any-return]


def _loop_item_entry(argument: str, entry: Any) -> dict[str, Any]:
    fields = _entry(argument, entry, {"action_id", "loop_type", "loop_items"}, {"is_append"})
    return _loop_entry(
        fields["action_id"],
        fields["loop_type"],
        fields["loop_items"],
        fields.get("is_append", False),
        prefix=f"{argument}.",
        url_list=SAMPLED_URL_LIST,
    )


def _action_entry(argument: str, entry: Any) -> dict[str, Any]:
    fields = _entry(argument, entry, {"action_type", "action_id", "properties"}, set())
    return {
        "actionType": arguments.Word(ActionType)(f"{argument}.action_type", fields["action_type"]),
        "actionId": arguments.text(f"{argument}.action_id", fields["action_id"]),
        "properties": _properties(f"{argument}.properties", fields["properties"]),
    }


def _properties(argument: str, properties: Any) -> list[dict[str, str]]:
    if isinstance(properties, Mapping):
        properties = [{"name": name, "value": value} for name, value in properties.items()]
    if not isinstance(properties, Sequence) or isinstance(properties, str) or not properties:
        raise InvalidArgument(
            argument, properties, "it must be a dict, or a list of {name, value}, that is not empty"
        )
    pairs = []
    for index, entry in enumerate(properties):
        pair = _entry(f"{argument}[{index}]", entry, {"name", "value"}, set())
        value = arguments.encodable(f"{argument}[{index}].value", pair["value"])
        pairs.append({"name": arguments.text(f"{argument}[{index}].name", pair["name"]), "value": value})
    return pairs


def get_actions(
    task_ids: Sequence[str], action_types: Sequence[str] = tuple(ActionType)
) -> Call[list[TaskActions]]:
    """Read the steps of tasks, of all types by default (contract.md, endpoint 5)."""
    body = {
        "taskIds": arguments.texts("task_ids", task_ids),
        "actionTypes": arguments.items("action_types", action_types, arguments.Word(ActionType)),
    }
    return Call(GET_ACTIONS, many(TaskActions), body=body)


def replace_urls(task_id: str, file: UrlFile) -> Call[None]:
    """Replace the task's URLs by those of a checked file (contract.md, endpoint 6)."""
    form = {"taskId": arguments.text("task_id", task_id)}
    return Call(REPLACE_URLS, NOTHING, form=form, file=file)


def copy_task(task_id: str, group_id: int | None = None) -> Call[CopiedTask]:
    """Copy a task, to its own group or to ``group_id`` (contract.md, endpoint 7)."""
    query: dict[str, str | int] = {"taskId": arguments.text("task_id", task_id)}
    if group_id is not None:
        query["taskGroupId"] = arguments.integer("group_id", group_id)
    return Call(COPY_TASK, one(CopiedTask), query=query)


def copy_tasks(task_ids: Sequence[str], group_ids: Sequence[int]) -> Call[CopyResult]:
    """Copy each of the tasks to each of the groups (contract.md, endpoint 8)."""
    body = {
        "taskIds": arguments.texts("task_ids", task_ids),
        "groupIds": arguments.items("group_ids", group_ids, arguments.integer),
    }
    return Call(COPY_TASKS, one(CopyResult), body=body)


def move_task(task_id: str, group_id: int) -> Call[Moved]:
    """Move a task to a group (contract.md, endpoint 9)."""
    query: dict[str, str | int] = {
        "taskId": arguments.text("task_id", task_id),
        "taskGroupId": arguments.integer("group_id", group_id),
    }
    return Call(MOVE_TASK, one(Moved), query=query)


def delete_tasks(task_ids: Sequence[str]) -> Call[None]:
    """Delete tasks (contract.md, endpoint 10)."""
    body = {"taskIds": arguments.texts("task_ids", task_ids)}
    return Call(DELETE_TASKS, NOTHING, body=body)


def delete_task_groups(group_ids: Sequence[int]) -> Call[None]:
    """Delete task groups (contract.md, endpoint 11)."""
    body = {"groupIds": arguments.items("group_ids", group_ids, arguments.integer)}
    return Call(DELETE_TASK_GROUPS, NOTHING, body=body)


def get_task_statuses(task_ids: Iterable[str]) -> Call[list[TaskStatus]]:
    """Read the states of tasks, version 1: name and state (contract.md, endpoint 12)."""
    return _statuses(GET_TASK_STATUSES, task_ids)


def get_task_statuses_v2(task_ids: Iterable[str]) -> Call[list[TaskStatus]]:
    """Read the states of tasks, version 2: state, counts and times (contract.md, endpoint 13)."""
    return _statuses(GET_TASK_STATUSES_V2, task_ids)


def _statuses(endpoint: Endpoint, task_ids: Iterable[str]) -> Call[list[TaskStatus]]:
    body = {"taskIds": arguments.texts("task_ids", task_ids)}
    return Call(endpoint, many(TaskStatus), body=body)


def get_subtasks(task_id: str, page: int = 1, size: int = MAX_SUBTASK_SIZE) -> Call[list[SubTask]]:
    """Read a page, from 1 on, of the sub-tasks of the task's latest batch (contract.md, endpoint 14)."""
    query: dict[str, str | int] = {
        "taskId": arguments.text("task_id", task_id),
        "page": arguments.integer("page", page, 1),
        "size": arguments.integer("size", size, 1, MAX_SUBTASK_SIZE),
    }
    return Call(GET_SUBTASKS, many(SubTask), query=query)


def start_subtasks(task_id: str, subtask_ids: Sequence[str]) -> Call[None]:
    """Start sub-tasks of a task (contract.md, endpoint 15)."""
    body = {
        "taskId": arguments.text("task_id", task_id),
        "subTaskIds": arguments.texts("subtask_ids", subtask_ids),
    }
    return Call(START_SUBTASKS, NOTHING, body=body)


def get_running_counts() -> Call[RunningCounts]:
    """Read how many tasks and sub-tasks are running and waiting (contract.md, endpoint 16)."""
    return Call(GET_RUNNING_COUNTS, one(RunningCounts))


def read_data(task_id: str, offset: int = 0, size: int = MAX_DATA_SIZE) -> Call[DataPage]:
    """Read rows of a task's whole history from an offset (contract.md, endpoint 17)."""
    return Call(READ_DATA, PAGE, query=_window(task_id, offset, size))


def read_batch_data(task_id: str, lotno: str, offset: int = 0, size: int = MAX_DATA_SIZE) -> Call[DataPage]:
    """Read rows of one batch of a task from an offset (contract.md, endpoint 18)."""
    query = {**_window(task_id, offset, size), "lotno": arguments.text("lotno", lotno)}
    return Call(READ_BATCH_DATA, PAGE, query=query)


def _window(task_id: Any, offset: Any, size: Any) -> dict[str, str | int]:
    return {
        "taskId": arguments.text("task_id", task_id),
        "offset": arguments.integer("offset", offset),
        "size": arguments.integer("size", size, 1, MAX_DATA_SIZE),
    }


def mark_exported(task_id: str) -> Call[None]:
    """Confirm that the task's data has been exported (contract.md, endpoint 19)."""
    body = {"taskId": arguments.text("task_id", task_id)}
    return Call(MARK_EXPORTED, NOTHING, body=body)


def deprecate_data_app(app_id: str) -> Call[DeprecatedApp]:
    """Deprecate a data app of the key's owner (contract.md, endpoint 20).

    :param app_id: its id, or ``namespace/app_name``.
    """
    segments = {"app_id": arguments.app_reference("app_id", app_id)}
    return Call(DEPRECATE_DATA_APP, one(DeprecatedApp), segments=segments)
