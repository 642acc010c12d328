"""Both drivers, driven alike, on a clock that tests can read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from airflow_provider_webcollect.service.aio import AsyncClient
from airflow_provider_webcollect.service.call import ClientContext
from airflow_provider_webcollect.service.limits import (
    RateLimiter,
    RateLimiters,
    shared_rate_limiters,
    status_rate_limiters,
)
from airflow_provider_webcollect.service.pauses import Stop
from airflow_provider_webcollect.service.settings import Credentials, Settings
from airflow_provider_webcollect.service.sync import Client
from airflow_provider_webcollect.service.tokens.renewal import Tokens
from airflow_provider_webcollect.service.tokens.store import MemoryTokenStore
from tests.conftest import RETRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.endpoints import Call
    from airflow_provider_webcollect.service.flow import Flow

T = TypeVar("T")


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


class Driver:
    """One of the two clients; its sleeps only move the clock, unless there is none."""

    def __init__(self, kind: str, context: ClientContext, clock: Clock | None) -> None:
        self.context = context
        self._client: Any
        self._runner: asyncio.Runner | None = None
        if kind == "requests":
            self._client = Client(context, **({"stop": clock} if clock else {}))
            return

        async def sleep(seconds: float) -> None:
            assert clock is not None
            clock.sleep(seconds)

        self._runner = asyncio.Runner()
        self._client = AsyncClient(context, **({"sleep": sleep, "stop": clock} if clock else {}))

    def send(self, call: Call[T]) -> T:
        return self._result(self._client.send(call))

    def run(self, flow: Flow[T]) -> T:
        return self._result(self._client.run(flow))

    def send_together(self, calls: list[Call[Any]]) -> list[Any]:
        """Send from one event loop at once; one after the other where there is none."""
        if self._runner is None:
            return [self.send(call) for call in calls]

        async def gathered() -> list[Any]:
            return await asyncio.gather(*(self._client.send(call) for call in calls))

        return self._runner.run(gathered())

    def close(self) -> None:
        if self._runner is None:
            self._client.close()
        else:
            self._runner.run(self._client.aclose())
            self._runner.close()

    def _result(self, outcome: Any) -> Any:
        return outcome if self._runner is None else self._runner.run(outcome)


class Drive(Protocol):
    """Makes drivers, see :func:`drive`."""

    def __call__(
        self, *, credentials: Credentials | None = ..., real_time: bool = ..., **settings: Any
    ) -> Driver: ...


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy and no certificate authorities in the environment."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["requests", "httpx"])
def drive(request: pytest.FixtureRequest, sandbox: Sandbox, clock: Clock) -> Iterator[Drive]:
    """Makes drivers of one kind, for the sandbox by default."""
    made: list[Driver] = []

    def make(*, credentials: Credentials | None = None, real_time: bool = False, **given: Any) -> Driver:
        settings = Settings(
            **{
                "base_url": sandbox.url,
                "datahub_url": sandbox.datahub_url,
                "retries": RETRIES,
                "requests_per_second": 0,
                **given,
            }
        )
        if real_time:
            rate_limiters = shared_rate_limiters(settings.base_url, settings.requests_per_second)
        else:
            rate = settings.requests_per_second
            rate_limiters = RateLimiters(
                RateLimiter(1 / rate if rate else 0, clock.now), status_rate_limiters(clock.now)
            )
        credentials = credentials or all_credentials(sandbox)
        name = f"{request.node.name}:{settings.base_url}"
        time_passes = {} if real_time else {"clock": clock.now}
        tokens = Tokens(credentials, name, MemoryTokenStore(name), **time_passes)
        context = ClientContext(settings, credentials, rate_limiters, tokens)
        made.append(Driver(request.param, context, None if real_time else clock))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.fixture
def driver(drive: Drive) -> Driver:
    """A driver with a token and a data-app key."""
    return drive()


def all_credentials(sandbox: Sandbox) -> Credentials:
    return Credentials(access_token=sandbox.access_token, datahub_api_key=sandbox.datahub_api_key)


@pytest.fixture
def sent(sandbox: Sandbox) -> Callable[..., list[dict[str, Any]]]:
    """What the sandbox has received, or what it has received on one path."""
    return sandbox.control.requests
