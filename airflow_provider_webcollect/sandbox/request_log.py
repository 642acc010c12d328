"""The log of requests and their responses, without secrets."""

from __future__ import annotations

import base64
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ENTRIES = 20_000
MAX_BODY_BYTES = 256 * 1024
_SECRET_FIELDS = ("refresh_token", "password")


@dataclass(frozen=True)
class Request:
    """A completely received request; header names are in lower case."""

    method: str
    raw_path: str
    query: bytes
    headers: Mapping[str, str]
    body: bytes
    client: tuple[str, int]


@dataclass(frozen=True)
class Entry:
    """A request, its contract path, and the response's status: 0 if the connection was dropped."""

    time: float
    request: Request
    endpoint: str
    status: int


class RequestLog:
    """The last :data:`MAX_ENTRIES` requests, and counts of all requests."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Clear the log and the counters."""
        self._entries: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self._counts: Counter[tuple[str, int]] = Counter()

    def add(self, entry: Entry) -> None:
        """Add a request."""
        self._entries.append(entry)
        self._counts[entry.endpoint, entry.status] += 1

    def entries(self, path: str | None) -> list[dict[str, Any]]:
        """Return the requests to a path, or all, oldest first, as :meth:`Control.requests` describes."""
        return [
            _shown(entry) for entry in self._entries if path in (None, entry.request.raw_path, entry.endpoint)
        ]

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the number of requests of each path, by status."""
        counts: dict[str, dict[str, int]] = {}
        for (path, status), count in self._counts.items():
            counts.setdefault(path, {})[str(status)] = count
        return counts


def _shown(entry: Entry) -> dict[str, Any]:
    request = entry.request
    query = request.query.decode("latin-1")
    body, encoding = _shown_body(request)
    return {
        "time": entry.time,
        "method": request.method,
        "path": request.raw_path,
        "endpoint": entry.endpoint,
        "query": dict(parse_qsl(query, keep_blank_values=True)),
        "query_string": query,
        "headers": {name: _masked(name, value) for name, value in request.headers.items()},
        "credential": _credential(request.headers),
        "body": body,
        "body_encoding": encoding,
        "body_cut": len(request.body) > MAX_BODY_BYTES,
        "status": entry.status,
        "client_port": request.client[1],
    }


def _masked(name: str, value: str) -> str:
    if name == "authorization":
        return f"{value.partition(' ')[0]} ***" if " " in value else "***"
    return "***" if name == "x-api-key" else value


def _credential(headers: Mapping[str, str]) -> str:
    kinds = [
        kind for kind, name in (("bearer", "authorization"), ("api_key", "x-api-key")) if name in headers
    ]
    return "+".join(kinds) or "none"


def _shown_body(request: Request) -> tuple[str, str]:
    body = request.body[:MAX_BODY_BYTES]
    if request.headers.get("content-type", "").startswith("multipart/"):
        return base64.b64encode(body).decode(), "base64"
    if any(secret.encode() in body for secret in _SECRET_FIELDS):
        body = _without_secrets(body)
    return body.decode("utf-8", "replace"), "text"


def _without_secrets(body: bytes) -> bytes:
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b"***"
    return msgspec.json.encode({k: "***" if k in _SECRET_FIELDS else v for k, v in fields.items()})
