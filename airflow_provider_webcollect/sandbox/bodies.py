"""Bodies: the arguments of a request, which a function declares by its keyword-only parameters, and the
envelopes of results and of errors."""

from __future__ import annotations

import inspect
import re
import secrets
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

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
    return secrets.token_hex(16)


def invalid(message: str) -> ServiceError:
    """Return the error for a parameter with a wrong type or value."""
    return ServiceError("InvalidParameter", message)


def required(name: str) -> ServiceError:
    """Return the error for a missing parameter."""
    return ServiceError("InvalidParameter.Required", f"The parameter {name} is required.")


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
    """A record inside a body; unknown fields are refused, so that misspellings are noticed."""


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
    """
    The keyword-only parameters of a function; their annotations say which values are valid.

    :param function: the function.
    :param names: how the request names them: in ``camel`` case, or ``None``: as they are.
    """

    def __init__(self, function: Callable[..., object], names: Names = None) -> None:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        self.struct = msgspec.defstruct(
            function.__name__,
            [_field(parameter) for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY],
            kw_only=True,
            forbid_unknown_fields=True,
            rename=names,
        )
        fields = msgspec.structs.fields(self.struct)
        self._empty = {field.encode_name: _EMPTY if field.required else (*_EMPTY, []) for field in fields}
        self._integers = {field.encode_name for field in fields if field.type is not Text}

    def check(self, fields: Mapping[str, object]) -> dict[str, Any]:
        """
        Return the fields of a request as arguments; optional ones may be empty, as in the contract.

        :raises ServiceError: ``InvalidParameter`` or ``InvalidParameter.Required``.
        """
        filled = {name: value for name, value in fields.items() if value not in self._empty.get(name, ())}
        try:
            return msgspec.structs.asdict(msgspec.convert(filled, self.struct))
        except msgspec.ValidationError as error:
            missing = re.match(r"Object missing required field `(\w+)`", str(error))
            raise required(missing[1]) if missing else invalid(str(error)) from error

    def check_query(self, values: Mapping[str, str]) -> dict[str, Any]:
        """
        Return the values of a query as arguments; integers are texts there.

        :raises ServiceError: as :meth:`check`.
        """
        return self.check(
            {
                name: int(value) if name in self._integers and _INTEGER.fullmatch(value) else value
                for name, value in values.items()
            }
        )


def _field(parameter: inspect.Parameter) -> Any:
    required_field = (parameter.name, parameter.annotation)
    return required_field if parameter.default is parameter.empty else (*required_field, parameter.default)


def json_object(content_type: str, body: bytes) -> dict[str, Any]:
    """
    Decode a body that is a JSON object.

    :raises ServiceError: ``InvalidParameter``.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise invalid("The Content-Type must be application/json.")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"The body is not a JSON object: {error}") from error


def query_values(query: str) -> dict[str, str]:
    """
    Decode a query string.

    :raises ServiceError: a parameter is given twice.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    values = dict(pairs)
    if len(values) < len(pairs):
        raise invalid("A query parameter is given twice.")
    return values


def raw_path(request: Request) -> str:
    """Return the path as sent, still percent-encoded."""
    path: bytes = request.scope["raw_path"]
    return path.decode("latin-1")
