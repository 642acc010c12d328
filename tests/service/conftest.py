"""Clients on a clock that tests can read."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import rate_limit
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.models import DataPage
from airflow_provider_webcollect.service.rate_limit import RateLimiter
from airflow_provider_webcollect.service.settings import ClientTiming
from airflow_provider_webcollect.service.threads import Stop

#: Makes clients; arguments replace the usual settings, credentials and so on.
Connect: TypeAlias = "Callable[..., Client]"


class Clock(Stop):
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


class Crowd(Clock):
    """Time that jumps to the next wake-up once all threads, ``size`` in number, sleep or have left."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._awake, self._due, self._changed = size, list[float](), threading.Condition()

    def sleep(self, seconds: float) -> None:
        with self._changed:
            due = self.time + seconds
            heapq.heappush(self._due, due)
            self._one_less()
            self._changed.wait_for(lambda: self.time >= due)

    def leave(self) -> None:
        """Count this thread out: it will not sleep any more."""
        with self._changed:
            self._one_less()

    def _one_less(self) -> None:
        self._awake -= 1
        if self._due and not self._awake:
            self.time = self._due[0]
            while self._due and self._due[0] <= self.time:
                heapq.heappop(self._due)
                self._awake += 1
            self._changed.notify_all()


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove proxies and certificate authorities from the environment."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def on_clock(
    connect: Connect,
    sandbox: Sandbox,
    clock: Clock,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Connect:
    """Makes clients, as ``connect`` does, whose pauses, also for rate limits, only move the clock.

    Each client has its own limits. None prefetches, since this clock does not show how long a response takes.
    """
    usual = clock
    in_turn = ClientTiming(slow_response=math.inf)

    def make(*, clock: Clock = usual, timing: ClientTiming = in_turn, **given: Any) -> Client:
        sandbox._state.limits._now = clock.now
        monkeypatch.setattr(rate_limit, "_shared", {})
        monkeypatch.setattr(rate_limit, "RateLimiter", lambda interval: RateLimiter(interval, clock.now))
        return connect(name=request.node.name, stop=clock, clock=clock.now, timing=timing, **given)

    return make


@pytest.fixture
def client(on_clock: Connect) -> Client:
    """A client with a token and a data-app key, whose pauses only move the clock."""
    return on_clock()


def rows_of(pages: Iterable[DataPage]) -> list[dict[str, Any]]:
    return [row for page in pages for row in page.records()]
