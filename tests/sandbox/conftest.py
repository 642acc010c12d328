"""Sandboxes for the tests, each with a client, and the clock of these sandboxes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, state, world
from airflow_provider_webcollect.sandbox.settings import make_settings
from tests.sandbox.plain_client import Client

StartSandbox = Callable[..., Client]


class RealTime:
    """The real time of this process's sandboxes: it passes when a test sleeps.

    As with the machine's clock, each reading is later than the one before.
    """

    def __init__(self) -> None:
        self._moment = time.time()

    def now(self) -> float:
        self._moment += 1e-6
        return self._moment

    def sleep(self, seconds: float) -> None:
        self._moment += seconds


@pytest.fixture(autouse=True)
def real_time(monkeypatch: pytest.MonkeyPatch) -> RealTime:
    """The real time of the test's sandboxes, so that no test depends on the machine's speed."""
    real_time = RealTime()
    monkeypatch.setattr(world, "time", SimpleNamespace(time=real_time.now))
    monkeypatch.setattr(state, "Limits", functools.partial(state.Limits, real_time.now))
    return real_time


@pytest.fixture
def start_sandbox() -> Iterator[StartSandbox]:
    """Starts a sandbox with settings and returns a client of it."""
    with ExitStack() as stack:
        yield lambda **settings: Client(stack.enter_context(Sandbox(make_settings(settings))))


@pytest.fixture
def client(request: pytest.FixtureRequest, start_sandbox: StartSandbox) -> Client:
    """A client of a sandbox with the settings of the test's marker; by default, no limits are enforced."""
    marker = request.node.get_closest_marker("webcollect_sandbox")
    return start_sandbox(**{"enforce_limits": False, **(marker.kwargs if marker else {})})
