"""A clock that waits go by."""

from __future__ import annotations

import pytest

from airflow_provider_webcollect.waiting import conditions
from tests.waiting.statuses import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that waits are judged at."""
    clock = Clock()
    monkeypatch.setattr(conditions.time, "time", clock)
    return clock
