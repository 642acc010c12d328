"""Rate limiting of requests to the service.

The service counts requests per client address, so all clients of a process that use one address share its
limiters, across threads and event loops. Requests are spread evenly, at a rate a little below the limit:
delays on the network can bunch requests together, and the margin allows for that.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_provider_webcollect.service.api.call import RateLimit
from airflow_provider_webcollect.service.pauses import Notice
from airflow_provider_webcollect.service.settings import GENERAL_RATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

#: Seconds between two requests (contract.md, Limits: v1 1 per 5 s, v2 5 per s), with a margin for bunching:
#: at this interval four queries are sent in any second, and a delayed one may arrive with them as the fifth.
STATUS_INTERVALS = {RateLimit.STATUS_V1: 5.25, RateLimit.STATUS_V2: 0.25}
#: Share of the general rate that is used.
GENERAL_SHARE = 0.9
#: After responses 429, a limiter is at most this many times slower.
SLOWEST = 8.0
#: Seconds without a 429 after which a limiter halves that factor.
RECOVERY = 10.0


class RateLimiter:
    """Assigns the moments at which requests may be sent.

    :param interval: seconds between two requests; 0 for no limit.
    """

    def __init__(self, interval: float, now: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._now = now
        self._lock = threading.Lock()
        self._next = 0.0
        self._slowness = 1.0
        self._recovers_at = 0.0
        #: Logs that requests have to wait.
        self.notice = Notice(log)

    def reserve(self) -> float:
        """Reserve the next moment and return the seconds until it."""
        with self._lock:
            now = self._now()
            while self._slowness > 1.0 and now >= self._recovers_at:
                self._slowness /= 2
                self._recovers_at += RECOVERY
            moment = max(now, self._next)
            self._next = moment + self._interval * self._slowness
            return moment - now

    def is_free(self) -> bool:
        """Return whether a request may be sent now."""
        with self._lock:
            return self._next <= self._now()

    def slow_down(self, seconds: float | None = None) -> None:
        """React to a 429: pause for ``seconds`` (at least an interval), then be slower for a while."""
        with self._lock:
            now = self._now()
            self._slowness = min(SLOWEST, self._slowness * 2)
            self._recovers_at = now + RECOVERY
            self._next = max(self._next, now + max(seconds or 0.0, self._interval))


class RateLimiters:
    """The rate limiters of one address.

    :param general: the limiter of all requests.
    :param status: further limiters, of the status endpoints.
    """

    def __init__(self, general: RateLimiter, status: Mapping[RateLimit, RateLimiter]) -> None:
        self._limiters: Mapping[RateLimit, RateLimiter] = {RateLimit.GENERAL: general, **status}

    def of(self, limit: RateLimit) -> tuple[RateLimiter, ...]:
        """Return the limiters that apply; that of a status endpoint first, since its wait is longer."""
        general = self._limiters[RateLimit.GENERAL]
        return (general,) if limit is RateLimit.GENERAL else (self._limiters[limit], general)


_general: dict[tuple[str, float], RateLimiter] = {}
_status: dict[str, Mapping[RateLimit, RateLimiter]] = {}
_lock = threading.Lock()


def status_rate_limiters(now: Callable[[], float] = time.monotonic) -> Mapping[RateLimit, RateLimiter]:
    """Return new limiters of the two status endpoints."""
    return {limit: RateLimiter(interval, now) for limit, interval in STATUS_INTERVALS.items()}


def shared_rate_limiters(base_url: str, requests_per_second: float = GENERAL_RATE) -> RateLimiters:
    """Return the limiters that all clients of this process share for the address in ``base_url``.

    :param requests_per_second: the general limit; 0 for none. The limits of the status endpoints always
        apply, and clients with different general limits share them.
    """
    address = urlsplit(base_url).netloc.lower()
    interval = 1 / (requests_per_second * GENERAL_SHARE) if requests_per_second else 0.0
    with _lock:
        general = _general.setdefault((address, requests_per_second), RateLimiter(interval))
        return RateLimiters(general, _status.setdefault(address, status_rate_limiters()))
