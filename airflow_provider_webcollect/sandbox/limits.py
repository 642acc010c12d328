"""Rate limits per caller, counted over a sliding window."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from airflow_provider_webcollect.sandbox.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox.settings import Settings

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
