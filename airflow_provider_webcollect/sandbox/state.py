"""The state of a running sandbox: tokens, account, rate limits, planned failures and request log."""

from __future__ import annotations

import base64
import dataclasses
import random
import secrets
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.data import BlockCache, read_table
from airflow_provider_webcollect.sandbox.settings import Settings, make_settings
from airflow_provider_webcollect.sandbox.world import Clock, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclasses.dataclass(eq=False)
class ServiceError(Exception):
    """A response with an error envelope.

    :param code: the contract's error code.
    :param message: description.
    :param status: HTTP status; the main service uses 400 for nearly all errors.
    :param headers: further response headers.
    """

    code: str
    message: str
    status: int = 400
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def invalid(message: str) -> ServiceError:
    """Return the error for a parameter with a wrong type or value."""
    return ServiceError("InvalidParameter", message)


class Tokens:
    """The existing tokens, each with the first refresh token that it descends from.

    :param clock: the clock by which tokens expire.
    :param settings: settings with the lifetime of the demo account's first access token.
    :param first_refresh: a refresh token that is valid from the start, besides the demo account's.
    """

    def __init__(self, clock: Clock, settings: Settings, first_refresh: str) -> None:
        self._clock = clock
        self.first_refresh = first_refresh
        first = demo.REFRESH_TOKEN
        self._access = {demo.ACCESS_TOKEN: (first, clock.now() + settings.token_lifetime)}
        self._refresh = {demo.REFRESH_TOKEN: first, self.first_refresh: first}
        self._used: set[str] = set()
        self._revoked: set[str] = set()

    def accepts(self, access_token: str) -> bool:
        """Return whether an access token is valid: neither unknown nor expired nor revoked."""
        first, expires = self._access.get(access_token, ("", 0.0))
        return first not in self._revoked and self._clock.now() < expires

    def log_in(self, settings: Settings, username: str, password: str) -> dict[str, Any]:
        """Return a token record for a user name and password."""
        if (username, password) != (demo.USERNAME, demo.PASSWORD):
            raise ServiceError("Invalid.Grant", "The user name or password is wrong.")
        return self._issue(settings)

    def refresh(self, settings: Settings, refresh_token: str) -> dict[str, Any]:
        """Return a token record for a refresh token, which is then used up."""
        first = self._refresh.get(refresh_token)
        reused = refresh_token in self._used and settings.refresh_reuse != "allow"
        if first is not None and reused and settings.refresh_reuse == "revoke":
            self._revoked.add(first)
        if first is None or first in self._revoked or reused:
            raise ServiceError("Invalid.Grant", "The refresh token is invalid.")
        self._used.add(refresh_token)
        return self._issue(settings, first)

    def expire(self, refresh_tokens: bool = False) -> None:
        """Expire all access tokens, and optionally all refresh tokens."""
        self._access.clear()
        if refresh_tokens:
            self._refresh.clear()

    def _issue(self, settings: Settings, first: str | None = None) -> dict[str, Any]:
        # recognizable, so that tests can search for tokens in places where none may appear
        access = f"sandbox-access-{secrets.token_urlsafe(32)}"
        refresh = f"sandbox-refresh-{secrets.token_urlsafe(32)}"
        first = first or refresh
        self._access[access] = (first, self._clock.now() + settings.token_lifetime)
        self._refresh[refresh] = first
        return {
            "access_token": access,
            "expires_in": str(int(settings.token_lifetime)),
            "token_type": "Bearer",
            "refresh_token": refresh,
        }


#: The credential that callers of an operation send: an access token, an access token or an API key, the API
#: key of a data app's author, or none.
Credential = Literal["token", "token or key", "author", "none"]

_AUTHORS = {demo.DATAHUB_API_KEY: demo.USERNAME, demo.OTHER_DATAHUB_API_KEY: demo.STRANGER}


def check_credential(headers: Mapping[str, str], credential: Credential, tokens: Tokens) -> str:
    """Check the credential of a request, and return the user that it belongs to; empty for ``none``.

    :param headers: request headers, names in lower case.
    :param credential: the credential that the operation takes.
    :raises ServiceError: HTTP 400 if both credentials are sent, or one to an operation that takes none; 401
        if none is valid.
    """
    token, api_key = headers.get("authorization"), headers.get("x-api-key")
    if credential == "none":
        if token is not None or api_key is not None:
            raise invalid("The token endpoint takes no Authorization and no x-api-key header.")
        return ""
    if token is not None and api_key is not None:
        raise invalid("Send either Authorization or x-api-key, not both.")
    scheme, _, value = (token or "").partition(" ")
    bearer = value.strip() if scheme.lower() == "bearer" else ""
    if credential == "author":
        if bearer not in _AUTHORS:
            raise ServiceError("unauthorized", "The API key is missing or invalid.", status=401)
        return _AUTHORS[bearer]
    if api_key is not None and credential == "token":
        raise _bad_token("This endpoint takes an access token, not an API key.")
    if not (tokens.accepts(bearer) if api_key is None else api_key == demo.API_KEY):
        raise _bad_token("The access token or API key is missing, invalid or expired.")
    return demo.USERNAME


def _bad_token(message: str) -> ServiceError:
    return ServiceError("Invalid.Token", message, status=401, headers={"WWW-Authenticate": "Bearer"})


STATUS_V1 = "status_v1"
STATUS_V2 = "status_v2"
#: The rate limits of the status endpoints: the number of requests, and the seconds that they count for.
_STATUS_LIMITS = {STATUS_V1: (1, 5.0), STATUS_V2: (5, 1.0)}


class Limits:
    """The rate limits of each caller address; refused requests do not count.

    :param now: function that returns the time of a monotonic clock, in seconds; by default the real clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._times: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)

    def check(self, settings: Settings, caller: str, status_limit: str | None) -> None:
        """Count a request, unless the caller has reached a limit.

        :param caller: caller address.
        :param status_limit: the limit that applies besides the general one: :data:`STATUS_V1`,
            :data:`STATUS_V2`, or ``None`` for no other.
        :raises ServiceError: ``TooManyRequests``, HTTP 429.
        """
        if not settings.enforce_limits:
            return
        windows = [("general", settings.general_rate, 1.0)]
        if status_limit is not None:
            windows.append((status_limit, *_STATUS_LIMITS[status_limit]))
        now = self._now()
        for name, allowed, seconds in windows:
            times = self._times[caller, name]
            while times and times[0] <= now - seconds:
                times.popleft()
            if len(times) >= allowed:
                raise ServiceError(
                    "TooManyRequests", f"At most {allowed} requests per {seconds:g} s.", status=429
                )
        for name, _, _ in windows:
            self._times[caller, name].append(now)


Kind = Literal["status", "html", "raw", "drop", "broken_json", "cut_body", "slow", "drip"]
#: The failures that replace the response; the operation is not carried out, unless ``done`` is set.
REPLACEMENTS: tuple[Kind, ...] = ("status", "html", "raw", "drop")


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """One planned failure; the fields are the arguments of :meth:`Control.fail`."""

    path: str
    kind: Kind = "status"
    times: Annotated[int, Meta(ge=1)] | None = 1
    after: Annotated[int, Meta(ge=0)] = 0
    probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    status: Annotated[int, Meta(ge=200, le=599)] | None = None
    code: str | None = None
    message: str = "Planned by the sandbox."
    headers: dict[str, str] = {}
    body: bytes = b""
    done: bool = False
    seconds: Annotated[float, Meta(ge=0)] = 1.0


MAX_ENTRIES = 20_000
MAX_BODY_BYTES = 256 * 1024
_SECRET_FIELDS = ("refresh_token", "password")
_CREDENTIAL_HEADERS = {"bearer": "authorization", "api_key": "x-api-key"}


class Entry(NamedTuple):
    """A request that was received completely; :meth:`Control.requests` describes the fields."""

    time: float
    method: str
    path: str
    endpoint: str
    query_string: str
    headers: Mapping[str, str]
    body: bytes
    status: int
    client_port: int


class RequestLog:
    """The last :data:`MAX_ENTRIES` requests, and counts of all requests."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Clear the log and the counters."""
        self._entries: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(self, entry: Entry) -> None:
        """Add a request."""
        self._entries.append(entry)
        self._counts[entry.endpoint][entry.status] += 1

    def entries(self, path: str | None = None) -> list[dict[str, Any]]:
        """Return the requests to a path, or all requests, as :meth:`Control.requests` describes them."""
        return [_logged(entry) for entry in self._entries if path in (None, entry.path, entry.endpoint)]

    def counters(self) -> dict[str, Counter[int]]:
        """Return the number of requests of each path, by status."""
        return self._counts


def _logged(entry: Entry) -> dict[str, Any]:
    credentials = [kind for kind, name in _CREDENTIAL_HEADERS.items() if name in entry.headers]
    body, encoding = entry.body[:MAX_BODY_BYTES], "text"
    if entry.headers.get("content-type", "").startswith("multipart/"):
        body, encoding = base64.b64encode(body), "base64"
    elif any(secret.encode() in body for secret in _SECRET_FIELDS):
        body = _without_secrets(body)
    return entry._asdict() | {
        "query": dict(parse_qsl(entry.query_string, keep_blank_values=True)),
        "headers": {name: _masked(name, value) for name, value in entry.headers.items()},
        "credential": "+".join(credentials) or "none",
        "body": body.decode("utf-8", "replace"),
        "body_encoding": encoding,
        "body_cut": len(entry.body) > MAX_BODY_BYTES,
    }


def _masked(name: str, value: str) -> str:
    if name == "authorization":
        return f"{value.partition(' ')[0]} ***" if " " in value else "***"
    return "***" if name == "x-api-key" else value


def _without_secrets(body: bytes) -> bytes:
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b"***"
    return msgspec.json.encode({k: "***" if k in _SECRET_FIELDS else v for k, v in fields.items()})


class State:
    """The whole state of a sandbox; :meth:`reset` restores the initial one."""

    def __init__(self, settings: Settings) -> None:
        self._initial = make_settings(dataclasses.asdict(settings))
        #: Each sandbox has its own: a client that stores tokens by the refresh token it began with must not
        #: use one sandbox's tokens in another.
        self._first_refresh = f"{demo.REFRESH_TOKEN}-{secrets.token_hex(8)}"
        self.reset()

    def reset(self) -> None:
        """Restore the initial state and settings."""
        clock = Clock()
        # first, so that nothing has changed if the file of the table can no longer be read
        self.world = World(self._initial, clock)
        self.settings, self.clock = self._initial, clock
        self.tokens = Tokens(clock, self.settings, self._first_refresh)
        self.limits = Limits()
        self.faults: list[Fault] = []
        self.log = RequestLog()
        self.blocks = BlockCache()
        self._chance = random.Random(self.settings.seed)

    def configure(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Change settings, and return all of them; existing objects do not change.

        :raises ValueError: a name is unknown or a value is invalid.
        :raises OSError: the table cannot be read.
        """
        settings = make_settings({**dataclasses.asdict(self.settings), **changes})
        if "data" in changes:
            self.world.table = read_table(settings.data)
        self.settings = self.world.settings = settings
        return dataclasses.asdict(settings)

    def next_fault(self, path: str) -> Fault | None:
        """Return the planned failure of a request to a path, if there is one, and count it as used."""
        for fault in self.faults:
            if fault.path not in ("*", path):
                continue
            if fault.after > 0:
                fault.after -= 1
            elif fault.probability is None or self._chance.random() < fault.probability:
                if fault.times is not None:
                    fault.times -= 1
                if fault.times == 0:
                    self.faults.remove(fault)
                return fault
        return None
