"""The state of a running sandbox: tokens, account, rate limits, planned faults and the log of requests."""

from __future__ import annotations

import base64
import random
import secrets
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.bodies import ServiceError, invalid
from airflow_provider_webcollect.sandbox.data import BlockCache, load_table
from airflow_provider_webcollect.sandbox.settings import Settings, as_json, make_settings
from airflow_provider_webcollect.sandbox.world import Clock, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass
class _Family:
    """All tokens that were issued from one first token."""

    revoked: bool = False


class Tokens:
    """
    The existing tokens; times are those of :meth:`Clock.wall`.

    :param settings: the lifetime of the demo account's first access token.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        family = _Family()
        self._clock = clock
        #: Works at first, beside the demo account's refresh token. No other sandbox has it: a client that
        #: stores what it got for a refresh token must not take one sandbox for another.
        self.first_refresh = f"{demo.REFRESH_TOKEN}-{secrets.token_hex(8)}"
        self._access = {demo.ACCESS_TOKEN: (family, clock.wall() + settings.token_lifetime)}
        self._refresh = {demo.REFRESH_TOKEN: family, self.first_refresh: family}
        self._used: set[str] = set()

    def accepts(self, access_token: str) -> bool:
        """Return whether an access token is valid: neither unknown nor expired nor revoked."""
        family, expires = self._access.get(access_token, (None, 0.0))
        return family is not None and not family.revoked and self._clock.wall() < expires

    def log_in(self, settings: Settings, username: str, password: str) -> dict[str, Any]:
        """Return a token record for a user name and password."""
        if (username, password) != (demo.USERNAME, demo.PASSWORD):
            raise ServiceError("Invalid.Grant", "The user name or password is wrong.")
        return self._issue(settings, _Family())

    def refresh(self, settings: Settings, refresh_token: str) -> dict[str, Any]:
        """Return a token record for a refresh token, which is used up by this."""
        family = self._refresh.get(refresh_token)
        if family is not None and refresh_token in self._used and settings.refresh_reuse == "revoke":
            family.revoked = True
        reused = refresh_token in self._used and settings.refresh_reuse != "allow"
        if family is None or family.revoked or reused:
            raise ServiceError("Invalid.Grant", "The refresh token is invalid.")
        self._used.add(refresh_token)
        return self._issue(settings, family)

    def expire(self, *, refresh_tokens: bool = False) -> None:
        """Expire all access tokens, and optionally all refresh tokens."""
        self._access.clear()
        if refresh_tokens:
            self._refresh.clear()

    def _issue(self, settings: Settings, family: _Family) -> dict[str, Any]:
        # recognizable, so that a test can search for them in places where they must not appear
        access = f"sandbox-access-{secrets.token_urlsafe(32)}"
        refresh = f"sandbox-refresh-{secrets.token_urlsafe(32)}"
        self._access[access] = (family, self._clock.wall() + settings.token_lifetime)
        self._refresh[refresh] = family
        return {
            "access_token": access,
            "expires_in": str(int(settings.token_lifetime)),
            "token_type": "Bearer",
            "refresh_token": refresh,
        }


def check_credential(headers: Mapping[str, str], tokens: Tokens, takes_api_key: bool) -> None:
    """
    Check the credential of a main-service request.

    :param headers: request headers, names in lower case.
    :param takes_api_key: whether the endpoint accepts ``x-api-key`` instead of a token.
    :raises ServiceError: HTTP 400 if both credentials are sent, 401 if none is valid.
    """
    token, api_key = headers.get("authorization"), headers.get("x-api-key")
    if token is not None and api_key is not None:
        raise invalid("Send either Authorization or x-api-key, not both.")
    if api_key is None:
        if not tokens.accepts(_bearer(token)):
            raise _bad_token("The access token is missing, invalid or expired.")
    elif not takes_api_key:
        raise _bad_token("This endpoint takes an access token, not an API key.")
    elif api_key != demo.API_KEY:
        raise _bad_token("The API key is invalid.")


def refuse_credentials(headers: Mapping[str, str]) -> None:
    """Refuse credentials in the headers of a request to the token endpoint."""
    if "authorization" in headers or "x-api-key" in headers:
        raise invalid("The token endpoint takes no Authorization and no x-api-key header.")


def data_app_author(headers: Mapping[str, str]) -> str:
    """
    The author whose API key a data-app request carries as Bearer.

    :raises ServiceError: HTTP 400 if the main service's key is sent too, 401 if the key is not valid.
    """
    if "authorization" in headers and "x-api-key" in headers:
        raise invalid("Send Authorization only, not x-api-key.")
    authors = {demo.DATAHUB_API_KEY: demo.USERNAME, demo.OTHER_DATAHUB_API_KEY: demo.STRANGER}
    author = authors.get(_bearer(headers.get("authorization")))
    if author is None:
        raise ServiceError("unauthorized", "The API key is missing or invalid.", status=401)
    return author


def _bearer(header: str | None) -> str:
    scheme, _, value = (header or "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _bad_token(message: str) -> ServiceError:
    return ServiceError("Invalid.Token", message, status=401, headers={"WWW-Authenticate": "Bearer"})


STATUS_V1 = "status_v1"
STATUS_V2 = "status_v2"


class Limits:
    """
    Stores when each caller address sent requests; refused requests do not count.

    :param now: a monotonic clock, in seconds; by default that of real time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._times: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)

    def check(self, settings: Settings, caller: str, status_limit: str | None) -> None:
        """
        Count a request.

        :param caller: caller address.
        :param status_limit: :data:`STATUS_V1`, :data:`STATUS_V2` or ``None``: applied besides the general
            limit.
        :raises ServiceError: ``TooManyRequests``, HTTP 429.
        """
        if not settings.enforce_limits:
            return
        windows = [("general", settings.general_rate, 1.0)]
        if status_limit == STATUS_V1:
            windows.append((STATUS_V1, 1, settings.status_v1_period))
        elif status_limit == STATUS_V2:
            windows.append((STATUS_V2, settings.status_v2_rate, 1.0))
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


#: Failures with a response of their own.
PlannedKind = Literal["status", "error_200", "html", "redirect", "raw"]
Kind = Literal[PlannedKind, "drop", "no_answer", "broken_json", "cut_body", "slow", "drip"]


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """One planned failure; the fields are the arguments of :meth:`Control.fail`."""

    path: str
    kind: Kind = "status"
    times: Annotated[int, msgspec.Meta(ge=1)] | None = 1
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    probability: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] | None = None
    code: str | None = None
    message: str = "Planned by the sandbox."
    headers: dict[str, str] = {}
    body: bytes = b""
    done: bool = False
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    to: str = "/"


class Faults:
    """The planned failures, oldest first."""

    def __init__(self, seed: int) -> None:
        self._planned: list[Fault] = []
        self._chance = random.Random(seed)

    def add(self, fault: Fault) -> None:
        """Plan a failure."""
        self._planned.append(fault)

    def clear(self) -> None:
        """Remove all planned failures."""
        self._planned.clear()

    def next(self, path: str) -> Fault | None:
        """Return the failure for this request, if any, and count it as used."""
        for fault in self._planned:
            if fault.path not in ("*", path):
                continue
            if fault.after > 0:
                fault.after -= 1
            elif fault.probability is None or self._chance.random() < fault.probability:
                if fault.times is not None:
                    fault.times -= 1
                if fault.times == 0:
                    self._planned.remove(fault)
                return fault
        return None


MAX_ENTRIES = 20_000
MAX_BODY_BYTES = 256 * 1024
_SECRET_FIELDS = ("refresh_token", "password")


class Entry(NamedTuple):
    """A completely received request; see :meth:`Control.requests` for the fields that both have."""

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

    def entries(self, *, path: str | None = None) -> list[dict[str, Any]]:
        """Return the requests to a path, or all, oldest first, as :meth:`Control.requests` describes."""
        return [_shown(entry) for entry in self._entries if path in (None, entry.path, entry.endpoint)]

    def counters(self) -> dict[str, Counter[int]]:
        """Return the number of requests of each path, by status."""
        return self._counts


def _shown(entry: Entry) -> dict[str, Any]:
    body, encoding = _shown_body(entry)
    return entry._asdict() | {
        "query": dict(parse_qsl(entry.query_string, keep_blank_values=True)),
        "headers": {name: _masked(name, value) for name, value in entry.headers.items()},
        "credential": _credential(entry.headers),
        "body": body,
        "body_encoding": encoding,
        "body_cut": len(entry.body) > MAX_BODY_BYTES,
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


def _shown_body(entry: Entry) -> tuple[str, str]:
    body = entry.body[:MAX_BODY_BYTES]
    if entry.headers.get("content-type", "").startswith("multipart/"):
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


class State:
    """The whole state; :meth:`reset` restores its beginning."""

    def __init__(self, settings: Settings) -> None:
        self._initial = make_settings(as_json(settings))
        self.reset()

    def reset(self) -> None:
        """Restore the initial state and settings."""
        self.settings = self._initial
        self.clock = Clock(self.settings.speed)
        self.tokens = Tokens(self.clock, self.settings)
        self.world = World(self.settings, self.clock)
        self.limits = Limits()
        self.faults = Faults(self.settings.seed)
        self.log = RequestLog()
        self.blocks = BlockCache(self.settings.cache_mb * 1_000_000)

    def configure(self, *, changes: dict[str, object]) -> dict[str, object]:
        """
        Change settings, and return all of them; existing objects do not change.

        :raises ValueError: a name is unknown or a value is invalid.
        :raises OSError: the table cannot be read.
        """
        settings = make_settings({**as_json(self.settings), **changes})
        self.world.table = load_table(settings)
        self.settings = self.world.settings = settings
        self.clock.set_speed(self.settings.speed)
        return as_json(settings)
