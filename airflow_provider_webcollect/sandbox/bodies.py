"""The contents of request bodies and queries, and the error for one that is wrong."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_CATEGORIES = {401: "forbidden", 404: "not_found"}


class ServiceError(Exception):
    """
    A response with an error envelope.

    :param code: the contract's error code.
    :param message: description.
    :param status: HTTP status; the main service uses 400 for nearly everything.
    :param headers: further response headers.
    """

    def __init__(
        self, code: str, message: str, status: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.headers = dict(headers or {})


def error_body(error: ServiceError, data_app: bool) -> bytes:
    """Return the error envelope of the main service or of the data-app service, which differ."""
    if not data_app:
        return msgspec.json.encode(
            {"error": {"code": error.code, "message": error.message}, "requestId": _request_id()}
        )
    server_fault = error.status >= 500
    category = _CATEGORIES.get(error.status, "internal" if server_fault else "invalid_request")
    fields = {"code": error.code, "category": category, "message": error.message, "retryable": server_fault}
    return msgspec.json.encode({"error": fields})


def success_body(data: object, data_app: bool) -> bytes:
    """Return a success envelope; ``bytes`` must be JSON already. Only the main service adds a request id."""
    if data_app:
        return msgspec.json.encode({"data": data})
    payload = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return b"".join((b'{"data":', payload, b',"requestId":"', _request_id().encode(), b'"}'))


def _request_id() -> str:
    return uuid.uuid4().hex


def invalid(message: str) -> ServiceError:
    """Return the error for a parameter with a wrong type or value."""
    return ServiceError("InvalidParameter", message)


def required(name: str) -> ServiceError:
    """Return the error for a missing parameter."""
    return ServiceError("InvalidParameter.Required", f"The parameter {name} is required.")


def invalid_task() -> ServiceError:
    """Return the error for a task that does not exist or belongs to another user, which look the same."""
    return ServiceError("InvalidTaskId", "The task id is invalid.")


Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[list[Text], msgspec.Meta(min_length=1)]
# The largest integer that every JSON reader represents exactly.
MAX_INTEGER = 2**53 - 1
GroupId = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Day = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
# `TextList` or `UrlList` in the contract; public samples send `URLList`, and letter case varies.
LoopType = Annotated[str, msgspec.Meta(pattern=r"(?ai)^(text|url)list\Z")]
ActionType = Literal["LoopAction", "NavigateAction", "EnterTextAction"]

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_EMPTY: tuple[object, ...] = ("", None)


class Body(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A request body; unknown fields are refused, so that misspellings are noticed."""


class PasswordGrant(Body, rename=None):
    """First token, by user name and password."""

    grant_type: Literal["password"]
    username: Text
    password: Text


class RefreshGrant(Body, rename=None):
    """Endpoint 1."""

    grant_type: Literal["refresh_token"]
    refresh_token: Text


class AnalyticsQuery(Body):
    """Endpoint 2."""

    start: Day
    end: Day
    page: Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)] = 1
    page_size: Annotated[int, msgspec.Meta(ge=1, le=500)] = 20
    task_ids: Annotated[list[Text], msgspec.Meta(max_length=100)] = []
    member_names: Annotated[list[Text], msgspec.Meta(max_length=100)] = []
    collection_method: Literal["Cloud", "Local", "All"] = "All"
    time_granularity: Literal["Day", "Week", "Month"] = "Day"


class LoopItems(Body):
    """New loop values of a step."""

    action_id: Text
    loop_type: LoopType
    loop_items: list[str]
    is_append: bool | None = False


class TaskLoopItems(Body):
    """Endpoint 3."""

    task_id: Text
    action_id: Text
    loop_type: LoopType
    loop_items: list[str]
    is_append: bool


class Property(Body):
    """One parameter of a step."""

    name: Text
    value: str


class ActionParameters(Body):
    """New parameters of a step."""

    action_type: ActionType
    action_id: Text
    properties: list[Property]


class TaskParameters(Body):
    """Endpoint 4."""

    task_id: Text
    actions: list[ActionParameters] = []
    loop_items: list[LoopItems] = []


class ActionsQuery(Body):
    """Endpoint 5."""

    task_ids: Texts
    action_types: Annotated[list[ActionType], msgspec.Meta(min_length=1)]


class Copies(Body):
    """Endpoint 8."""

    task_ids: Texts
    group_ids: Annotated[list[GroupId], msgspec.Meta(min_length=1)]


class TaskIds(Body):
    """Endpoints 10, 12 and 13."""

    task_ids: Texts


class GroupIds(Body):
    """Endpoint 11."""

    group_ids: Annotated[list[GroupId], msgspec.Meta(min_length=1)]


class SubTaskIds(Body):
    """Endpoint 15."""

    task_id: Text
    sub_task_ids: Texts


class TaskId(Body):
    """Endpoint 19."""

    task_id: Text


B = TypeVar("B", bound=Body)


def decode_body(content_type: str, body: bytes, kind: type[B]) -> B:
    """
    Decode a JSON request body; optional fields may be empty instead of absent, as in the contract.

    :raises ServiceError: ``InvalidParameter`` or ``InvalidParameter.Required``.
    """
    fields = decode_object(content_type, body)
    for field in msgspec.structs.fields(kind):
        if fields.get(field.encode_name) in (_EMPTY if field.required else (*_EMPTY, [])):
            fields.pop(field.encode_name, None)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        missing = re.match(r"Object missing required field `(\w+)`", str(error))
        raise required(missing[1]) if missing else invalid(str(error)) from error


def decode_object(content_type: str, body: bytes) -> dict[str, Any]:
    """
    Decode a JSON object.

    :raises ServiceError: ``InvalidParameter``.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise invalid("The Content-Type must be application/json.")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"The body is not a JSON object: {error}") from error


def decode_query(query: bytes, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, str]:
    """
    Decode query parameters; an optional one that is empty is left out.

    :raises ServiceError: a parameter is missing, unknown or given twice.
    """
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    values = dict(pairs)
    if len(values) < len(pairs):
        raise invalid("A query parameter is given twice.")
    for name in values:
        if name not in needed + optional:
            raise invalid(f"Unknown query parameter {name}.")
    for name in needed:
        if not values.get(name):
            raise required(name)
    return {name: value for name, value in values.items() if value}


def integer(values: Mapping[str, str], name: str, least: int = -MAX_INTEGER, most: int = MAX_INTEGER) -> int:
    """
    A query parameter as an integer.

    :raises ServiceError: it is not an integer, or is out of bounds.
    """
    text = values[name]
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        raise invalid(f"The parameter {name} must be an integer from {least} to {most}.")
    return int(text)
