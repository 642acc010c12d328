"""The objects that all calls of one client share."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.service.auth.renewal import Tokens
from airflow_provider_webcollect.service.client.rate_limit import RateLimiters, shared_rate_limiters

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.service.auth.store import TokenStore
    from airflow_provider_webcollect.service.settings import Credentials, Settings


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Settings and credentials, the address's rate limiters, and the token.

    :ivar is_outdated: returns whether the connection has changed since settings and credentials were read
        from it; it may block.
    """

    settings: Settings
    credentials: Credentials
    rate_limiters: RateLimiters
    tokens: Tokens
    is_outdated: Callable[[], bool] = lambda: False

    def short_retries(self, attempts: int, deadline: float = math.inf) -> ClientContext:
        """Return this context with fewer attempts per call, and none after ``deadline`` seconds."""
        retries = self.settings.retries
        return self._with_retries(
            attempts=min(attempts, retries.attempts), deadline=min(deadline, retries.deadline)
        )

    def impatient(self, seconds: float) -> ClientContext:
        """Return this context with no attempt after ``seconds`` if there is no connection to the service."""
        return self._with_retries(unreachable=seconds)

    def _with_retries(self, **changes: Any) -> ClientContext:
        retries = dataclasses.replace(self.settings.retries, **changes)
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, retries=retries))


def make_context(
    settings: Settings,
    credentials: Credentials,
    name: str,
    store: TokenStore,
    learned: Callable[[str], None] = lambda secret: None,
    is_outdated: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    *,
    reads_only: bool = False,
) -> ClientContext:
    """Create the context of a client.

    :param name: names the connection.
    :param store: where the processes share the token.
    :param learned: called with every token obtained, for masking it in logs.
    :param is_outdated: returns whether the connection has changed since it was read; it may block.
    :param clock: a monotonic clock, in seconds, for the waits of the token's renewal.
    :param reads_only: only use the token that is stored, and neither renew it nor wait for another.
    """
    return ClientContext(
        settings=settings,
        credentials=credentials,
        rate_limiters=shared_rate_limiters(settings.base_url, settings.requests_per_second),
        tokens=Tokens(
            credentials,
            name,
            store,
            base_url=settings.base_url,
            keeper_only=settings.token_refresh == "keeper",
            reads_only=reads_only,
            timing=settings.timing,
            learned=learned,
            clock=clock,
        ),
        is_outdated=is_outdated,
    )
