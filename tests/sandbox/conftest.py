"""Sandboxes for the tests, each with a client to talk to it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sandbox.settings import make_settings
from tests.sandbox.plain_client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def start_sandbox() -> Iterator[Callable[..., Client]]:
    """Starts a sandbox with settings and gives a client of it."""
    with ExitStack() as stack:
        yield lambda **settings: Client(stack.enter_context(Sandbox(make_settings(settings))))


@pytest.fixture
def client(start_sandbox: Callable[..., Client]) -> Client:
    """A client of a sandbox that tolerates any speed of calling."""
    return start_sandbox(enforce_limits=False)
