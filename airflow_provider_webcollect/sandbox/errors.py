"""The services' ways to say no."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_CATEGORIES = {401: "forbidden", 404: "not_found"}


class ServiceError(Exception):
    """
    An answer that is an error envelope.

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
    """The main service's error envelope, or the data-app service's, which is another."""
    if not data_app:
        return msgspec.json.encode(
            {"error": {"code": error.code, "message": error.message}, "requestId": _request_id()}
        )
    server_fault = error.status >= 500
    category = _CATEGORIES.get(error.status, "internal" if server_fault else "invalid_request")
    fields = {"code": error.code, "category": category, "message": error.message, "retryable": server_fault}
    return msgspec.json.encode({"error": fields})


def success_body(data: object, data_app: bool) -> bytes:
    """A success envelope; ``bytes`` are taken for ready JSON. Only the main service numbers its answers."""
    if data_app:
        return msgspec.json.encode({"data": data})
    payload = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return b"".join((b'{"data":', payload, b',"requestId":"', _request_id().encode(), b'"}'))


def _request_id() -> str:
    return uuid.uuid4().hex


def invalid(message: str) -> ServiceError:
    """The refusal of a parameter that has the wrong type or value."""
    return ServiceError("InvalidParameter", message)


def required(name: str) -> ServiceError:
    """The refusal of a request that lacks a parameter."""
    return ServiceError("InvalidParameter.Required", f"The parameter {name} is required.")


def invalid_task() -> ServiceError:
    """The refusal of a task that does not exist or is not the caller's: the two look alike."""
    return ServiceError("InvalidTaskId", "The task id is invalid.")
