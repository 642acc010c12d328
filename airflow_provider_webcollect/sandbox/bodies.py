"""The bodies of responses: the envelopes of results and of errors."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

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
    return secrets.token_hex(16)


def invalid(message: str) -> ServiceError:
    """Return the error for a parameter with a wrong type or value."""
    return ServiceError("InvalidParameter", message)


def required(name: str) -> ServiceError:
    """Return the error for a missing parameter."""
    return ServiceError("InvalidParameter.Required", f"The parameter {name} is required.")
