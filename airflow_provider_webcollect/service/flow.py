"""The effects that client logic can request from its driver.

The logic (``exchange``, paging) is written as generators. They yield effects, and receive the outcomes or
have errors thrown into them. ``Client`` and ``AsyncClient`` are the drivers: loops that perform the effects,
one synchronously and one asynchronously.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.url_file import UrlFile

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request, ready to be sent. Its repr shows neither headers nor body.

    :ivar total_timeout: seconds for the whole response.
    """

    method: str
    url: str
    headers: dict[str, str]
    total_timeout: float
    content: bytes | None = None
    form: dict[str, str] | None = None
    file: UrlFile | None = None

    def __repr__(self) -> str:
        return f"Request({self.method} {self.url})"


class Send(NamedTuple):
    """Send a request; the outcome is a :class:`Response`, or the driver's exception is thrown in."""

    request: Request


class Sleep(NamedTuple):
    """Wait for this number of seconds."""

    seconds: float


class Authorize(NamedTuple):
    """Get an access token other than ``rejected``; the outcome is the token.

    :param failures: the number of failed attempts when this effect was created (``Tokens.failures``).
    """

    rejected: str | None
    failures: int


class Blocking(NamedTuple):
    """Call a function that may block, such as a secrets backend; the outcome is what it returns or raises."""

    function: Callable[[], Any]


Effect = Send | Sleep | Authorize | Blocking
#: A generator that a driver runs: yields effects, returns a ``T``.
Flow = Generator[Effect, Any, T]


def blocking(function: Callable[[], T]) -> Flow[T]:
    """Call a function that may block, and return what it returns."""
    return (yield Blocking(function))  # type: ignore[no-any-return]
