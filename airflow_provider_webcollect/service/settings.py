"""The settings of a client: addresses, time and rate limits, credentials. Plain data, from any source."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import pendulum

from airflow_provider_webcollect.service.api import validation
from airflow_provider_webcollect.service.errors import ConnectionIncomplete, InvalidArgument

#: Requests per second below which a queue would stand still.
LOWEST_RATE = 0.01
#: Requests per second that one address may make (assumptions.md, Limits).
GENERAL_RATE = 20.0
#: Seconds; sockets take no number without bound.
LONGEST_TIMEOUT = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often and how long a call is tried.

    :param attempts: tries in all.
    :param deadline: seconds after which no further try is begun.
    :param first_wait: seconds before the second try; later waits double, with jitter.
    :param longest_wait: upper bound of a wait in seconds, also of what ``Retry-After`` asks for.
    """

    attempts: int = 7
    deadline: float = 180.0
    first_wait: float = 0.5
    longest_wait: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What proves who is calling. Its repr shows none of it.

    :param refresh_token: exchanged for access tokens; works once.
    :param access_token: a ready access token, used until the service rejects it.
    :param login: with ``password``, obtains the first tokens.
    :param api_key: taken by five endpoints instead of a token.
    :param api_key_everywhere: whether the account's key is taken by every endpoint of the main service.
    :param datahub_api_key: the key of the data-app service.
    """

    refresh_token: str | None = field(default=None, repr=False)
    access_token: str | None = field(default=None, repr=False)
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    api_key_everywhere: bool = False
    datahub_api_key: str | None = field(default=None, repr=False)

    @property
    def can_get_tokens(self) -> bool:
        """Whether there is anything that leads to an access token."""
        return bool(self.access_token) or self.can_renew_tokens

    @property
    def can_renew_tokens(self) -> bool:
        """Whether there is anything that a new access token can be obtained with."""
        return bool(self.refresh_token or (self.login and self.password))

    @property
    def key_only(self) -> bool:
        """Whether only those few endpoints of the main service can be called that take an API key."""
        return bool(self.api_key) and not (self.api_key_everywhere or self.can_get_tokens)

    def secrets(self) -> tuple[str, ...]:
        """Return all that must not show in logs."""
        values = (self.refresh_token, self.access_token, self.password, self.api_key, self.datahub_api_key)
        return tuple(value for value in values if value)

    def fingerprint_at(self, base_url: str) -> str:
        """Return a digest of what leads to tokens, and where.

        It changes when a person puts a new credential, or another service, into the connection.
        """
        parts = (base_url, self.refresh_token, self.access_token, self.login, self.password)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the service is and how it is talked to.

    :param base_url: the main service's base URL, with scheme.
    :param datahub_url: the data-app service's base URL.
    :param connect_timeout: seconds to wait for a connection.
    :param read_timeout: seconds to wait for each piece of an answer.
    :param total_timeout: seconds for a whole answer.
    :param max_response_bytes: bytes that an answer may hold, unpacked; the contract's hold 8 MB at most.
    :param ca_file: a file of certificate authorities to trust instead of the usual ones.
    :param requests_per_second: rate of all requests of this process to the service; 0 disables rate limiting.
    :param timezone: the zone of the service's times; None leaves them naive.
    :param token_refresh: ``auto``, or ``keeper``: never refresh here, wait for the keeper's new token.
    """

    base_url: str
    datahub_url: str | None = None
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    total_timeout: float = 300.0
    max_response_bytes: int = 64 * 1024 * 1024
    ca_file: str | None = None
    requests_per_second: float = GENERAL_RATE
    timezone: str | None = None
    token_refresh: Literal["auto", "keeper"] = "auto"
    retries: Retries = Retries()

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_url", _base_url("base_url", self.base_url))
        if self.datahub_url is not None:
            object.__setattr__(self, "datahub_url", _base_url("datahub_url", self.datahub_url))
        for name in ("connect_timeout", "read_timeout", "total_timeout"):
            if validation.seconds(name, getattr(self, name)) > LONGEST_TIMEOUT:
                rule = f"it must be a number of seconds up to {LONGEST_TIMEOUT:.0f}"
                raise InvalidArgument(name, getattr(self, name), rule)
        validation.integer("max_response_bytes", self.max_response_bytes, 1, 2**40)
        if not (self.requests_per_second == 0 or self.requests_per_second >= LOWEST_RATE):
            rule = f"it must be 0, or {LOWEST_RATE} or more"
            raise InvalidArgument("requests_per_second", self.requests_per_second, rule)
        if self.timezone is not None:
            _check_timezone(self.timezone)

    def base_of(self, datahub: bool) -> str:
        """Return the base URL that a call goes to.

        :raises ConnectionIncomplete: if the data-app service is meant and its address is not set.
        """
        if not datahub:
            return self.base_url
        if self.datahub_url is None:
            raise ConnectionIncomplete(
                "the connection has no extra `datahub_url`, the data-app service's address"
            )
        return self.datahub_url


def _base_url(name: str, url: str) -> str:
    rule = "it must be an http(s) URL without user, query and fragment"
    shown = _without_secrets(url)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.port != 0
        usable = usable and url.isprintable() and " " not in url
        # a label that is empty or too long shows only here
        usable = usable and bool((parts.hostname or "").encode("idna"))
    except ValueError:
        raise InvalidArgument(name, url, rule, shown=shown) from None
    if not usable or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidArgument(name, url, rule, shown=shown)
    scheme, _, rest = url.rstrip("/").partition("://")
    return f"{scheme.lower()}://{rest}"


def _without_secrets(url: str) -> str:
    """Return what a message may show of a URL: no password, no query, nothing of a text that is no URL."""
    place = re.split("[?#]", url)[0]
    if "://" not in url or ("@" in url) != ("@" in place):
        return f"a string of {len(url)} characters"
    return repr((f"***@{place.rpartition('@')[2]}" if "@" in place else place)[:200])


def _check_timezone(name: str) -> None:
    try:
        pendulum.timezone(name)
    except (ValueError, OSError):
        raise InvalidArgument("timezone", name, "it must name a time zone, such as Asia/Shanghai") from None
