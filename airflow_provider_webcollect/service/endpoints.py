"""The twenty endpoints of the contract, each declared once, by a function that returns the content of a call.

The signature of the function has the endpoint's arguments, under their names in the contract, in snake_case.
Calling the decorated function parses the arguments by their annotations and returns a :class:`Call`, without
I/O; ``Client.send`` or ``AsyncClient.send`` sends the call.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Generic, ParamSpec, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import pendulum

from airflow_provider_webcollect.service.arguments import (
    AnyText,
    Flag,
    Length,
    Parser,
    Range,
    Word,
    date,
    encodable,
    items,
    parse,
    parse_call,
    parser_of,
    text,
)
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import (
    ActionType,
    CollectionMethod,
    CopiedTask,
    CopyResult,
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

P = ParamSpec("P")
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


KEY_OR_TOKEN, ONLY_IF_UNSENT = Credential.KEY_OR_TOKEN, Retry.ONLY_IF_UNSENT
TEAM_UP = ("Flagship+", "Enterprise", "Team")
ALL_PAID = ("Flagship", *TEAM_UP)


class Endpoint(msgspec.Struct, Generic[T], frozen=True):
    """An endpoint of the contract; it decorates the function that declares its arguments and its content.

    :param number: the endpoint's number in the contract.
    :param path: the path below the base URL; percent-encoded segments replace ``{app_id}``.
    :param result: the conversion of the response's ``data`` to a ``T``.
    :param with_key: what an API key alone can do instead, if the endpoint needs a token; empty for nothing.
    :param tiers: the plans that include the operation; empty for all, None if the contract does not say.
    :param errors: the error codes that the contract names for the operation.
    :ivar name: the operation's name, which is also the hook's method.
    """

    number: int
    method: str
    path: str
    result: Result[T]
    credential: Credential = Credential.TOKEN
    retry: Retry = Retry.SAFE
    rate_limit: RateLimit = RateLimit.GENERAL
    with_key: str = ""
    tiers: tuple[str, ...] | None = TEAM_UP
    errors: tuple[str, ...] = ()
    name: str = ""

    def __call__(self, function: Callable[P, Sent]) -> Operation[P, T]:
        endpoint = msgspec.structs.replace(self, name=function.__name__)
        ENDPOINTS.append(endpoint)
        return Operation(endpoint, function)


#: All endpoints, in the order of their declarations.
ENDPOINTS: list[Endpoint[Any]] = []


class Operation(Generic[P, T]):
    """A function that an endpoint decorates: calling it returns the :class:`Call` to send.

    :raises InvalidArgument: when it is called, if an argument breaks the rule of its annotation.
    """

    def __init__(self, endpoint: Endpoint[T], function: Callable[..., Sent]) -> None:
        self.endpoint = endpoint
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        sent = self._function(**parse_call(self._function, *args, **kwargs))
        return Call(self.endpoint, self.endpoint.result, **vars(sent))


@dataclass(frozen=True, slots=True)
class UrlFile:
    """A checked file of URLs, created by :mod:`~airflow_provider_webcollect.service.url_file`.

    :ivar name: the file name that is sent to the service.
    :ivar count: number of URLs.
    :ivar content: the URLs, each followed by a line feed.
    """

    name: str
    count: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The content of a call.

    :param own_retry: a value that replaces the endpoint's ``retry``, for example if the call appends; None to
        keep the endpoint's.
    :param query: the parameters of the URL's query.
    :param segments: the texts that replace names in the endpoint's path.
    :param body: the JSON body; None for no body.
    :param form: fields of a multipart body, sent with ``file``.
    :param file: the file of a multipart body; None for no file.
    """

    own_retry: Retry | None = None
    query: Mapping[str, str | int] = field(default_factory=dict)
    segments: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    form: Mapping[str, str] = field(default_factory=dict)
    file: UrlFile | None = None


@dataclass(frozen=True)
class Call(Sent, Generic[T]):
    """One call of an endpoint: what is sent, and how the response is read. It does no I/O.

    :param result: the conversion of the response's ``data`` to a ``T``.
    """

    endpoint: Endpoint[Any]
    result: Result[T]

    @property
    def retry(self) -> Retry:
        """When this call may be sent again after a failure."""
        return self.own_retry or self.endpoint.retry

    @property
    def task_id(self) -> str | None:
        """The id of the task that the call is about; None for a call about several tasks, or about none."""
        fields = {**self.query, **(self.body or {}), **self.form}
        return str(fields["taskId"]) if "taskId" in fields else None

    @property
    def task_ids(self) -> Sequence[str]:
        """The ids of the tasks that the call is about."""
        return [self.task_id] if self.task_id else (self.body or {}).get("taskIds") or ()

    @property
    def target(self) -> str:
        """The path and query below the base URL, percent-encoded except for slashes in an app's reference."""
        path = self.endpoint.path.format_map(
            {name: quote(value, safe="/") for name, value in self.segments.items()}
        )
        return f"{path}?{urlencode(self.query, quote_via=quote, safe='')}" if self.query else path


#: Maximum number of rows in one page of data (contract.md, Limits).
MAX_DATA_SIZE = 1000
#: Maximum number of sub-tasks in one page (assumptions.md, Status).
MAX_SUBTASK_SIZE = 20
MAX_ANALYTICS_SIZE = 500
MAX_ANALYTICS_FILTER = 100
#: The spelling in endpoint 4's sample, and all known spellings (assumptions.md, Steps and URL files).
SAMPLED_URL_LIST = "URLList"
URL_LIST_SPELLINGS = (str(LoopType.URL_LIST), SAMPLED_URL_LIST)

ActionTypes: TypeAlias = Sequence[Annotated[str, Word(ActionType)]]
Day: TypeAlias = Annotated[str | datetime.date, date]
PageSize: TypeAlias = Annotated[int, Range(1, MAX_DATA_SIZE)]


@Endpoint(1, "POST", "/token", one(TokenRecord), Credential.NONE, ONLY_IF_UNSENT, tiers=())
def refresh_token(refresh_token: str) -> Sent:
    """Exchange a refresh token for a new access token and a new refresh token (contract.md, endpoint 1)."""
    return Sent(body={"refresh_token": refresh_token, "grant_type": "refresh_token"})


def first_token(username: str, password: str) -> Call[TokenRecord]:
    """Return the call that obtains the first tokens with login and password (assumptions.md, Tokens)."""
    body = {
        # None replaces a value that is not a string, which an error would show: it may be a secret too
        "username": encodable("login", username if isinstance(username, str) else None),
        "password": encodable("password", password if isinstance(password, str) else None),
        "grant_type": "password",
    }
    return Call(refresh_token.endpoint, one(TokenRecord), own_retry=Retry.SAFE, body=body)


def _or_none(kind: Any, most: int | None = None) -> Parser:
    """Return the parser of a list that accepts any empty value too, such as an empty rendered template."""
    return lambda argument, value: items(argument, value, parser_of(kind), most=most) if value else value


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None; only these are sent."""
    return {name: value for name, value in fields.items() if value is not None}


@Endpoint(
    2,
    "POST",
    "/taskanalytics/queries",
    ANALYTICS,
    tiers=("Flagship", "Flagship+", "Enterprise"),
    errors=("MemberNotAllowed",),
)
def query_analytics(
    start: Day,
    end: Day,
    *,
    page: Annotated[int | None, Range(1)] = None,
    page_size: Annotated[int | None, Range(1, MAX_ANALYTICS_SIZE)] = None,
    task_ids: Annotated[Sequence[str] | None, Length(MAX_ANALYTICS_FILTER)] = None,
    member_names: Annotated[
        Sequence[str] | None, _or_none(str, MAX_ANALYTICS_FILTER), Length(MAX_ANALYTICS_FILTER)
    ] = None,
    collection_method: Annotated[str | None, Word(CollectionMethod)] = None,
    time_granularity: Annotated[str | None, Word(TimeGranularity)] = None,
) -> Sent:
    """Query collection, execution and resource metrics by task and time (contract.md, endpoint 2).

    :param start: first day, a date or ``yyyy-MM-dd``, in UTC; within the latest 3 months.
    :param end: last day, not after the current UTC date.
    :param page: page number, from 1 (the service's default).
    :param page_size: rows per page, 1 to 500; the service's default is 20.
    :param task_ids: at most 100; None for all tasks.
    :param member_names: at most 100 members of the account's team; None for the account's own tasks.
    :param collection_method: ``Cloud``, ``Local`` or ``All``; None for all.
    :param time_granularity: ``Day``, which is the service's default, ``Week`` or ``Month``.
    :raises MemberNotAllowed: if a member may not be queried.
    """
    check_days(start, end)
    body = _given(
        start=str(start),
        end=str(end),
        page=page,
        pageSize=page_size,
        taskIds=task_ids,
        memberNames=member_names or None,
        collectionMethod=collection_method,
        timeGranularity=time_granularity,
    )
    return Sent(body=body)


def check_days(start: Any, end: Any) -> None:
    """Check the range of an analytics query: the latest 3 months in UTC (contract.md, endpoint 2).

    :param start: the first day, a date.
    :param end: the last day, a date.
    :raises InvalidArgument: if ``end`` is before ``start`` or in the future, or if ``start`` is too old.
    """
    today = pendulum.now("UTC").date()
    oldest = today.subtract(months=3)
    if end > today:
        raise InvalidArgument("end", str(end), f"it must not be after the current UTC date, {today}")
    if end < start:
        raise InvalidArgument("start", str(start), f"it must not be after `end`, {end}")
    if start < oldest:
        rule = f"only the latest 3 months can be queried, from {oldest} on"
        raise InvalidArgument("start", str(start), rule)


def _loop_type(argument: str, value: Any, url_list: str = LoopType.URL_LIST) -> str:
    """Return the loop type; a list of URLs keeps the caller's spelling if it is one of the known spellings.

    :param url_list: the spelling of a list of URLs in the endpoint's sample, for any other spelling.
    """
    loop_type = Word(LoopType)(argument, value)
    if loop_type != LoopType.URL_LIST:
        return loop_type
    return str(value) if value in URL_LIST_SPELLINGS else url_list


@Endpoint(3, "POST", "/task/updateLoopItems", one(Message), KEY_OR_TOKEN, errors=("TaskSettingsNotFound",))
def update_loop_items(
    task_id: str,
    action_id: str,
    loop_type: Annotated[str, _loop_type, Word(LoopType), "The type of the values."],
    loop_items: Annotated[Sequence[AnyText], "A value."],
    is_append: Annotated[Flag, "Keep the existing values."] = False,
) -> Sent:
    """Replace, or extend, the values of a loop step (contract.md, endpoint 3).

    A call that appends is repeated only if the first attempt certainly had no effect.
    """
    values = {"loopType": loop_type, "loopItems": loop_items, "isAppend": is_append}
    return Sent(
        own_retry=ONLY_IF_UNSENT if is_append else None,
        body={"taskId": task_id, "actionId": action_id, **values},
    )


class Property(msgspec.Struct):
    """A parameter of a step."""

    name: str
    value: AnyText


def _properties(argument: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        value = [{"name": name, "value": text} for name, text in value.items()]
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        rule = "it must be a dict, or a list of {name, value}, that is not empty"
        raise InvalidArgument(argument, value, rule)
    return parse(argument, list[Property], value)


class StepParameters(msgspec.Struct, rename="camel"):
    """New parameters of a step (contract.md, endpoint 4)."""

    action_type: Annotated[str, Word(ActionType), "The type of the step."]
    action_id: str
    properties: Annotated[list[Property], _properties]


class LoopList(msgspec.Struct, rename="camel"):
    """New values of a loop step (contract.md, endpoint 4)."""

    action_id: str
    loop_type: Annotated[str, functools.partial(_loop_type, url_list=SAMPLED_URL_LIST)]
    loop_items: list[AnyText]
    is_append: Flag = False


@Endpoint(4, "POST", "/task/updateTaskParameters", one(ParameterUpdate), errors=("RequestModelNull",))
def update_task_parameters(
    task_id: str,
    *,
    actions: Annotated[Sequence[Mapping[str, Any]] | None, _or_none(StepParameters)] = None,
    loop_items: Annotated[Sequence[Mapping[str, Any]] | None, _or_none(LoopList)] = None,
) -> Sent:
    """Update parameters of steps and loop lists in one call (contract.md, endpoint 4).

    :param task_id: the id of the service's task.
    :param actions: each ``{"action_type", "action_id", "properties"}``, with properties as a dict of
        names and values, or as a list of ``{"name", "value"}``.
    :param loop_items: each ``{"action_id", "loop_type", "loop_items"}`` and, optionally, ``"is_append"``.
    """
    if not actions and not loop_items:
        raise InvalidArgument("actions", actions, "`actions` or `loop_items` must hold at least one entry")
    body = {"taskId": task_id}
    if actions:
        body["actions"] = msgspec.to_builtins(actions)
    lists = msgspec.to_builtins(loop_items or ())
    if lists:
        body["loopItems"] = lists
    appends = any(entry["isAppend"] for entry in lists)
    return Sent(own_retry=ONLY_IF_UNSENT if appends else None, body=body)


@Endpoint(5, "POST", "/task/getActions", many(TaskActions))
def get_actions(
    task_ids: Sequence[str],
    action_types: Annotated[ActionTypes, "Only steps of this type."] = tuple(ActionType),
) -> Sent:
    """Read the steps of tasks (contract.md, endpoint 5).

    :param task_ids: ids of the service's tasks.
    :param action_types: any of ``LoopAction``, ``NavigateAction``, ``EnterTextAction``; all by default.
    """
    return Sent(body={"taskIds": task_ids, "actionTypes": [*map(str, action_types)]})


@Endpoint(6, "POST", "/task/urls:file", NOTHING, errors=("InvalidTaskId",))
def replace_urls(task_id: str, file: Annotated[UrlFile, lambda _, file: file]) -> Sent:
    """Replace the task's URLs with the URLs of a checked file (contract.md, endpoint 6)."""
    return Sent(form={"taskId": task_id}, file=file)


@Endpoint(7, "POST", "/task/copy", one(CopiedTask), KEY_OR_TOKEN, ONLY_IF_UNSENT, errors=("InvalidTaskId",))
def copy_task(
    task_id: str,
    group_id: Annotated[int | None, "The group of the copy; by default the task's own."] = None,
) -> Sent:
    """Copy a task, to its own group or to ``group_id`` (contract.md, endpoint 7).

    :param task_id: the id of the service's task.
    :param group_id: the id of the group to copy it to; None for the task's own group.
    :raises OutcomeUnknown: if there was no response; the copy may exist.
    """
    return Sent(query=_given(taskId=task_id, taskGroupId=group_id))


@Endpoint(8, "POST", "/task/copies", one(CopyResult), retry=Retry.ONLY_IF_UNSENT, errors=("InvalidTaskId",))
def copy_tasks(task_ids: Sequence[str], group_ids: Sequence[int]) -> Sent:
    """Copy each of the tasks to each of the groups (contract.md, endpoint 8).

    :param task_ids: ids of the service's tasks.
    :param group_ids: ids of the groups for the copies.
    :return: the counts, and ``failed_tasks``: the tasks that could not be copied, with the reasons.
    :raises OutcomeUnknown: if there was no response; copies may exist.
    """
    return Sent(body={"taskIds": task_ids, "groupIds": group_ids})


@Endpoint(9, "POST", "/task/moveToGroup", one(Moved), errors=("InvalidTaskId",))
def move_task(task_id: str, group_id: Annotated[int, "The group to move it to."]) -> Sent:
    """Move a task to a group (contract.md, endpoint 9)."""
    return Sent(query={"taskId": task_id, "taskGroupId": group_id})


@Endpoint(10, "POST", "/task/deleteTasks", NOTHING)
def delete_tasks(task_ids: Sequence[str]) -> Sent:
    """Delete tasks (contract.md, endpoint 10).

    :param task_ids: ids of the service's tasks.
    """
    return Sent(body={"taskIds": task_ids})


@Endpoint(11, "POST", "/taskGroup/deleteGroups", NOTHING, tiers=("Enterprise", "Team"))
def delete_task_groups(group_ids: Sequence[int]) -> Sent:
    """Delete task groups (contract.md, endpoint 11).

    :param group_ids: ids of the groups.
    """
    return Sent(body={"groupIds": group_ids})


@Endpoint(12, "POST", "/cloudextraction/statuses", many(TaskStatus), rate_limit=RateLimit.STATUS_V1)
def get_task_statuses(task_ids: Iterable[str]) -> Sent:
    """Read names and states of tasks, version 1, at most once in 5 seconds (contract.md, endpoint 12).

    :param task_ids: ids of the service's tasks, at most 100.
    """
    return Sent(body={"taskIds": task_ids})


@Endpoint(13, "POST", "/cloudextraction/statuses/v2", many(TaskStatus), rate_limit=RateLimit.STATUS_V2)
def get_task_statuses_v2(task_ids: Iterable[str]) -> Sent:
    """Read states, counts and times, version 2, at most 5 times a second (contract.md, endpoint 13).

    Tasks that never ran in the cloud may be missing from the response (assumptions.md, Status).

    :param task_ids: ids of the service's tasks, at most 100.
    """
    return Sent(body={"taskIds": task_ids})


@Endpoint(14, "GET", "/cloudextraction/task/subtasks", many(SubTask))
def get_subtasks(
    task_id: str,
    page: Annotated[int, Range(1)] = 1,
    size: Annotated[int, Range(1, MAX_SUBTASK_SIZE)] = MAX_SUBTASK_SIZE,
) -> Sent:
    """Read a page of the sub-tasks of the task's latest batch (contract.md, endpoint 14).

    :param task_id: the id of the service's task.
    :param page: page number, from 1.
    :param size: sub-tasks per page, 1 to 20.
    """
    return Sent(query={"taskId": task_id, "page": page, "size": size})


@Endpoint(15, "POST", "/cloudextraction/subtasks:start", NOTHING, KEY_OR_TOKEN, ONLY_IF_UNSENT)
def start_subtasks(task_id: str, subtask_ids: Sequence[str]) -> Sent:
    """Start sub-tasks of a task (contract.md, endpoint 15).

    :param task_id: the id of the service's task.
    :param subtask_ids: ids of the sub-tasks.
    :raises OutcomeUnknown: if there was no response; the sub-tasks may have been started.
    """
    return Sent(body={"taskId": task_id, "subTaskIds": subtask_ids})


@Endpoint(16, "GET", "/cloudextraction/task/stats", one(RunningCounts), tiers=("Enterprise",))
def get_running_counts() -> Sent:
    """Read how many tasks and sub-tasks are running and waiting (contract.md, endpoint 16)."""
    return Sent()


@Endpoint(17, "GET", "/data/all", PAGE, with_key="read one batch (`lotno`)", tiers=ALL_PAID)
def read_data(task_id: str, offset: int = 0, size: PageSize = MAX_DATA_SIZE) -> Sent:
    """Read rows of a task's whole history from an offset (contract.md, endpoint 17)."""
    return Sent(query={"taskId": task_id, "offset": offset, "size": size})


@Endpoint(18, "GET", "/data/lotno/all", PAGE, KEY_OR_TOKEN, tiers=ALL_PAID)
def read_batch_data(task_id: str, lotno: str, offset: int = 0, size: PageSize = MAX_DATA_SIZE) -> Sent:
    """Read rows of one batch of a task from an offset (contract.md, endpoint 18)."""
    return Sent(query={"taskId": task_id, "offset": offset, "size": size, "lotno": lotno})


@Endpoint(19, "POST", "/data/markexported", NOTHING, KEY_OR_TOKEN, tiers=ALL_PAID)
def mark_exported(task_id: str) -> Sent:
    """Confirm that the task's data has been exported (contract.md, endpoint 19).

    :param task_id: the id of the service's task.
    """
    return Sent(body={"taskId": task_id})


def _app_reference(argument: str, value: object) -> str:
    """Return ``value`` if it names a data app, by its id or as ``namespace/app_name``.

    No part may be ``.`` or ``..``: even percent-encoded, these would lead to another path.
    """
    reference = text(argument, value)
    parts = reference.split("/")
    if len(parts) > 2 or not {"", ".", ".."}.isdisjoint(parts):
        rule = "it must be the app's id, or namespace/app_name, with no part that is empty, . or .."
        raise InvalidArgument(argument, value, rule)
    return reference


@Endpoint(
    20,
    "POST",
    "/v1/data-apps/{app_id}/deprecate",
    one(DeprecatedApp),
    Credential.DATAHUB_KEY,
    tiers=None,
    errors=("unauthorized",),
)
def deprecate_data_app(app_id: Annotated[str, _app_reference]) -> Sent:
    """Deprecate a data app; only its author may do so (contract.md, endpoint 20).

    :param app_id: the data app: its id, or ``namespace/app_name``.
    :raises NotFound: if the caller is not the author, or there is no such app.
    """
    return Sent(segments={"app_id": app_id})
