"""The declaration of an endpoint (:class:`Endpoint`), and one call of it (:class:`Call`)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_webcollect.service.api.results import Result
    from airflow_provider_webcollect.service.api.url_file import UrlFile

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


TEAM_UP = ("Flagship+", "Enterprise", "Team")
ALL_PAID = ("Flagship", *TEAM_UP)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An operation of the contract, declared once.

    :param number: the endpoint's number in the contract.
    :param name: the operation's name, which is also the hook's method.
    :param path: the path below the base URL; ``{app_id}`` is replaced by a percent-encoded segment.
    :param tiers: the plans that include the operation; empty means all, None that the contract does not say.
    :param errors: the error codes that the contract names for the operation.
    """

    number: int
    name: str
    method: str
    path: str
    _: KW_ONLY
    credential: Credential = Credential.TOKEN
    retry: Retry = Retry.SAFE
    rate_limit: RateLimit = RateLimit.GENERAL
    tiers: tuple[str, ...] | None = TEAM_UP
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call of an endpoint: what is sent, and how the response is read. It does no I/O.

    :param result: reads the ``data`` of the response as ``T``.
    :param own_retry: replaces the endpoint's ``retry`` for this call, for example when it appends.
    :param body: the JSON body, if any.
    :param form: fields of a multipart body, sent with ``file``.
    """

    endpoint: Endpoint
    result: Result[T]
    _: KW_ONLY
    own_retry: Retry | None = None
    query: Mapping[str, str | int] = field(default_factory=dict)
    segments: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    form: Mapping[str, str] = field(default_factory=dict)
    file: UrlFile | None = None

    @property
    def retry(self) -> Retry:
        """When this call may be sent again after a failure."""
        return self.own_retry or self.endpoint.retry

    @property
    def target(self) -> str:
        """The path and query below the base URL; every value is percent-encoded."""
        path = self.endpoint.path.format_map(
            {name: quote(value, safe="") for name, value in self.segments.items()}
        )
        return f"{path}?{urlencode(self.query, quote_via=quote, safe='')}" if self.query else path
