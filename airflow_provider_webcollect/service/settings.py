"""The settings of a client: addresses, timeouts, rate limits and credentials, as plain data."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import pendulum

from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument

#: Requests per second that the service allows from one address (assumptions.md, Limits).
GENERAL_RATE = 20.0
#: The lowest accepted number of requests per second; with fewer, calls would wait practically for ever.
LOWEST_RATE = 0.01
#: Maximum timeout in seconds; sockets do not accept arbitrarily long ones.
LONGEST_TIMEOUT = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and for how long, a call is attempted.

    :param attempts: maximum number of attempts, including the first one.
    :param deadline: seconds after which no further attempt is made.
    :param first_wait: upper bound of the random wait before the second attempt, in seconds; the bound doubles
        with each further attempt.
    :param longest_wait: upper bound of every wait in seconds; it also limits ``Retry-After``.
    :param unreachable: seconds after which no further attempt is made if there is no connection.
    """

    attempts: int = 7
    deadline: float = 180.0
    first_wait: float = 0.5
    longest_wait: float = 30.0
    unreachable: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTiming:
    """Waits of the client, in seconds, that a connection cannot set; tests shorten them.

    :param patience: how long a process waits for another process's renewal, or for the keeper's token; four
        times the store's ``write_bound`` is added.
    :param store_patience: how long a process without a usable token waits for a failing store.
    :param adoption: how long a process whose refresh token was refused waits for the token of the process
        that used it.
    :param youth: the period in which the calls of a process get at most two new tokens, if the service
        rejects them.
    :param late_reads: how long a read of the token store may still return a text that has been replaced.
    :param slow_response: the duration of a response from which on prefetching in another thread pays off.
    :param long_failure: the duration of a failed request for a page that may be too large, after which half
        as many rows are requested at once.
    :param stuck_wait: the pause before another request for a page whose cursor does not advance.
    """

    patience: float = 70.0
    store_patience: float = 10.0
    adoption: float = 15.0
    youth: float = 60.0
    late_reads: float = 30.0
    slow_response: float = 0.05
    long_failure: float = 10.0
    stuck_wait: float = 1.0


#: The waits in production.
TIMING = ClientTiming()


class Secret(str):
    """A string whose repr does not show it, since some tracebacks show the values of variables."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def digest(secret: str) -> str:
    """Return a digest that identifies a secret without revealing it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials of a connection. Their repr shows no secret.

    :param refresh_token: a token that can be exchanged once for an access token and a new refresh token.
    :param access_token: an access token, which is used until the service rejects it.
    :param login: the login; with ``password``, it obtains the first tokens.
    :param password: the password of ``login``.
    :param api_key: the key that five endpoints accept instead of a token.
    :param api_key_everywhere: whether every endpoint of the main service accepts the account's key.
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
        """Whether there is an access token, or a credential to obtain one."""
        return bool(self.access_token) or self.can_renew_tokens

    @property
    def can_renew_tokens(self) -> bool:
        """Whether there is a credential to obtain a new access token."""
        return bool(self.refresh_token or (self.login and self.password))

    @property
    def key_only(self) -> bool:
        """Whether only the endpoints of the main service that accept an API key can be called."""
        return bool(self.api_key) and not (self.api_key_everywhere or self.can_get_tokens)

    def secrets(self) -> tuple[str, ...]:
        """Return all values that must not appear in logs."""
        values = (self.refresh_token, self.access_token, self.password, self.api_key, self.datahub_api_key)
        return tuple(value for value in values if value)

    def lineage_at(self, base_url: str) -> str:
        """Return a digest that identifies the tokens that descend from these credentials.

        It is the digest of the refresh token; without one, of the service and the login; without a login, of
        the access token. So if a person edits anything else in the connection, the stored successor of its
        refresh token stays in use.

        :param base_url: the main service's base URL.
        """
        if self.refresh_token or not self.login:
            return digest(self.refresh_token or self.access_token or "")
        parts = urlsplit(base_url)
        place = (parts.scheme, *address_of(base_url), parts.path.rstrip("/"))
        return digest(repr((*place, self.login)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The service's addresses, and the limits of calls.

    :param base_url: the main service's base URL, with scheme.
    :param datahub_url: the data-app service's base URL.
    :param connect_timeout: maximum number of seconds to wait for a connection.
    :param read_timeout: maximum number of seconds to wait for each piece of a response.
    :param total_timeout: maximum number of seconds for a whole response.
    :param max_response_bytes: maximum size of a decompressed response; the contract's limit is 8 MB.
    :param ca_file: a file of certificate authorities to trust instead of the default ones.
    :param requests_per_second: maximum rate of all requests of this process to the service; 0 disables rate
        limiting. If several settings share an address, the lowest rate applies.
    :param timezone: the zone of the service's times; None leaves them naive.
    :param origin: the origin of the addresses, for messages: ``the connection webcollect_default``.
    :param token_refresh: ``auto`` to refresh the token when it is due; ``keeper`` to never refresh it for a
        call, but wait for the token keeper's new token.
    :param retries: how often, and for how long, a call is attempted.
    :param timing: the client's other waits.
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
    timing: ClientTiming = TIMING
    origin: str = ""

    @property
    def host(self) -> str:
        """The host of the main service, in lower case and without the port."""
        return address_of(self.base_url)[0]

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_url", _base_url("base_url", self.base_url))
        if self.datahub_url is not None:
            object.__setattr__(self, "datahub_url", _base_url("datahub_url", self.datahub_url))
        for name in ("connect_timeout", "read_timeout", "total_timeout"):
            if arguments.seconds(name, getattr(self, name)) > LONGEST_TIMEOUT:
                rule = f"it must be a number of seconds up to {LONGEST_TIMEOUT:.0f}"
                raise InvalidArgument(name, getattr(self, name), rule)
        arguments.integer("max_response_bytes", self.max_response_bytes, 1, 2**40)
        if not (self.requests_per_second == 0 or self.requests_per_second >= LOWEST_RATE):
            rule = f"it must be 0, or {LOWEST_RATE} or more"
            raise InvalidArgument("requests_per_second", self.requests_per_second, rule)
        try:
            if self.timezone is not None:
                pendulum.timezone(self.timezone)
        except (ValueError, OSError):
            rule = "it must name a time zone, such as Asia/Shanghai"
            raise InvalidArgument("timezone", self.timezone, rule) from None


def address_of(url: str) -> tuple[str, int | None]:
    """Return the host of a URL, in lower case and without a trailing dot, and its port."""
    parts = urlsplit(url)
    return (parts.hostname or "").rstrip("."), parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _base_url(name: str, url: str) -> str:
    rule = "it must be an http(s) URL without user, query and fragment"
    without_secrets = _without_secrets(url)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.port != 0
        usable = usable and url.isprintable() and " " not in url
        # only this encoding rejects a label of the host that is empty or too long
        usable = usable and bool((parts.hostname or "").encode("idna"))
    except ValueError:
        raise InvalidArgument(name, url, rule, as_text=without_secrets) from None
    if not usable or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidArgument(name, url, rule, as_text=without_secrets)
    scheme, _, rest = url.rstrip("/").partition("://")
    return f"{scheme.lower()}://{rest}"


def _without_secrets(url: str) -> str:
    """Return a URL as a message may show it: without password and query; only the length if it is invalid."""
    place = re.split("[?#]", url)[0]
    if "://" not in url or ("@" in url) != ("@" in place):
        return f"a string of {len(url)} characters"
    return repr((f"***@{place.rpartition('@')[2]}" if "@" in place else place)[:200])
