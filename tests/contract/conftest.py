"""The sandbox that is checked against the contract: one server for each module, reset for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings


@pytest.fixture(scope="module")
def running_sandbox() -> Iterator[Sandbox]:
    with Sandbox(Settings(enforce_limits=False, refresh_reuse="allow", speed=1000)) as running:
        yield running


@pytest.fixture
def sandbox(running_sandbox: Sandbox) -> Sandbox:
    running_sandbox.control.reset()
    return running_sandbox
