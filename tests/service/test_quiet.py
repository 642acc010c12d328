"""What httpx logs of requests: nothing of ours, all of others'."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import httpx
import pytest

from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.client.aio import AsyncClient

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.client.sync import Client


async def test_our_requests_leave_no_line_in_the_log_and_those_of_others_do(
    client: Client, webcollect_sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "httpx"):
        async with AsyncClient(client.context) as ours:
            await ours.send(endpoints.get_running_counts())
        assert [record for record in caplog.records if record.name == "httpx"] == []
        async with httpx.AsyncClient() as other:
            await other.get(f"{webcollect_sandbox.url}/nowhere")
    assert "httpx" in [record.name for record in caplog.records if "/nowhere" in record.getMessage()]
