"""Clients with the sandbox's refresh token, whose time passes only while they wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.settings import Credentials
from tests.service.conftest import Clock
from tests.service.tokens.cases import Account


@pytest.fixture
def connect(connect: Callable[..., Client], sandbox: Sandbox, clock: Clock) -> Callable[..., Client]:
    """Makes clients as the fixture of the same name does."""

    def make(**options: Any) -> Client:
        credentials = Credentials(refresh_token=sandbox.refresh_token)
        return connect(**{"credentials": credentials, "stop": clock, "clock": clock.now, **options})

    return make


@pytest.fixture
def account(connect: Callable[..., Client], sandbox: Sandbox) -> Account:
    return Account(sandbox, connect)
