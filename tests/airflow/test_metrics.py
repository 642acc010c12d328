"""The metrics that Airflow gets: on landings, on waits, and on the client's rate limit and token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import time_machine
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.sandbox import Sandbox
from tests.airflow.executions import Connect, Metric, execute, on_sandbox
from tests.airflow.landings import Landing, make_transfer
from tests.airflow.waits import for_task, outcome, until

pytestmark = on_sandbox(stale_seconds=0, run_seconds=10_000)

TABLE = Path(__file__).parents[2] / "docs/guides/find-out-what-runs.md"
ROW = re.compile(r"\| `(webcollect\.[\w.]+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|")
READ = "/data/all"
SHARE, AGE, WAITS = "webcollect.rate_limit.share", "webcollect.token.age", "webcollect.waits.running"
TEAM: dict[str, Any] = {"dag_run": SimpleNamespace(team_name="blue")}


def values(metrics: list[Metric], name: str) -> list[Any]:
    """Return the values of a metric, the latest last."""
    return [metric.value for metric in metrics if metric.name == name]


def test_the_documentation_has_what_is_sent(landing: Landing, metrics: list[Metric]) -> None:
    execute(make_transfer(landing.destination, landing.task), **TEAM)
    asyncio.run(outcome(for_task(landing.control.add_task(state="Finished"))))

    sent: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for metric in metrics:
        sent[metric.name, metric.kind] |= {*metric.tags}
    rows = [match.groups() for match in ROW.finditer(TABLE.read_text())]
    assert {(name, kind): {*re.findall(r"`(\w+)`", tags)} for name, kind, _, tags in rows} == sent


@pytest.mark.parametrize("rows", [1, 1000], ids=["lands", "fails its checks"])
def test_a_landing_is_tagged_by_its_outcome(landing: Landing, metrics: list[Metric], rows: int) -> None:
    sources = [{"collection_task_id": landing.task_id, "lotno": "000002"}]
    checks = {"rows": {"min": rows}}
    operator = make_transfer(landing.destination, sources=sources, checks=checks, mode=None)
    with pytest.raises(AirflowFailException) if rows > 1 else contextlib.nullcontext():
        execute(operator, **TEAM)

    tags = {"connection": "webcollect_default", "team_name": "blue"}
    outcomes = {**tags, "outcome": "failed" if rows > 1 else "success"}
    counted = ("rows", "bytes", "pages", "retries", "failed_checks", "duration")
    assert {metric.name for metric in metrics if metric.tags == outcomes} == {
        f"webcollect.landing.{name}" for name in counted
    }
    assert {metric.name for metric in metrics if metric.tags == tags} == {SHARE, AGE}
    assert values(metrics, "webcollect.landing.failed_checks") == [int(rows > 1)]


def test_tags_hold_no_secret_and_no_team(landing: Landing, sandbox: Sandbox, metrics: list[Metric]) -> None:
    landing.transfer()
    assert not any("team_name" in metric.tags for metric in metrics)
    sent = json.dumps([metric.tags for metric in metrics])
    assert not any(secret in sent for secret in (sandbox.access_token, sandbox.refresh_token))


def test_the_age_of_the_token_is_since_it_was_obtained(landing: Landing, metrics: list[Metric]) -> None:
    landing.transfer()
    assert 0 <= values(metrics, AGE)[-1] < 60

    with time_machine.travel(time.time() + 3600):
        landing.transfer(if_exists="overwrite")
    assert 3600 <= values(metrics, AGE)[-1] < 3660


def test_a_key_has_no_age(
    landing: Landing, sandbox: Sandbox, set_connection: Connect, metrics: list[Metric]
) -> None:
    set_connection(extra={"api_key": sandbox.api_key})
    landing.transfer(lotno="000001")
    assert values(metrics, SHARE)
    assert values(metrics, AGE) == []


def test_the_share_of_the_rate_falls_with_a_429(
    landing: Landing, sandbox: Sandbox, set_connection: Connect, metrics: list[Metric]
) -> None:
    credential = {"access_token": sandbox.access_token}
    # a rate of its own: clients of one address share the limiter
    set_connection(extra={**credential, "requests_per_second": 321})
    landing.transfer()
    assert values(metrics, SHARE)[-1] == 1

    sandbox.control.fail(READ, status=429)
    landing.transfer(if_exists="overwrite")
    assert 0 < values(metrics, SHARE)[-1] < 1


class TestWaits:
    async def test_each_is_counted_until_it_ends(self, sandbox: Sandbox, metrics: list[Metric]) -> None:
        running = [sandbox.control.add_task(state="Extracting") for _ in range(3)]
        waits = [asyncio.create_task(outcome(for_task(task))) for task in running]
        await until(lambda: 3 in values(metrics, WAITS))

        sandbox.control.stop_task(running[0]["task_id"])
        await until(lambda: values(metrics, WAITS)[-1] == 2)
        sandbox.control.advance(20_000)
        await asyncio.gather(*waits)
        await until(lambda: values(metrics, WAITS)[-1] == 0)

    @pytest.mark.parametrize(
        ("arguments", "ended"),
        [
            ({}, "done"),
            ({"target_states": ["Stopped"], "failure_states": ["Finished"]}, "failed"),
            ({"timeout": 0.3, "target_states": ["Stopped"], "failure_states": []}, "timeout"),
        ],
    )
    async def test_one_that_has_ended_says_how(
        self, sandbox: Sandbox, metrics: list[Metric], arguments: dict[str, Any], ended: str
    ) -> None:
        task = sandbox.control.add_task(state="Finished")
        assert (await outcome(for_task(task, **arguments)))["outcome"] == ended
        (metric,) = (metric for metric in metrics if metric.name == "webcollect.waits.ended")
        assert metric.tags == {"connection": "webcollect_default", "outcome": ended}

    async def test_one_whose_credential_is_refused_is_an_error(
        self, sandbox: Sandbox, set_connection: Connect, metrics: list[Metric]
    ) -> None:
        set_connection(extra={"access_token": "wrong"})
        await outcome(for_task(sandbox.control.add_task(), poke_interval=0.01))
        assert [metric.tags["outcome"] for metric in metrics if metric.name.endswith("ended")] == ["error"]
