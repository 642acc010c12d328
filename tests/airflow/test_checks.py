"""Checks of the transfer: how the task ends, and what its result, event and log say."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.write.review import in_review
from airflow_provider_webcollect.operators.webcollect import WebCollectAcceptLandingOperator
from airflow_provider_webcollect.sandbox import Sandbox
from tests.airflow.executions import execute, on_sandbox
from tests.airflow.landings import GROWING, Landing, reported, rows_at, transfer

pytestmark = on_sandbox()

CHECKS: dict[str, Any] = {"rows": {"min": 10}, "columns": {"price": {"filled": 0.95}}}


@pytest.fixture
def changed(sandbox: Sandbox, destination: str) -> Landing:
    """A task with 30 rows whose prices are empty, and a folder to land in."""
    task = sandbox.control.add_task(lots=[30])
    sandbox.control.change_rows(task["task_id"], "price", "empty", from_row=0)
    return Landing(sandbox, task, destination)


@pytest.fixture
def failed(changed: Landing) -> Landing:
    """The task and folder of ``changed``, after run r1 has failed its checks."""
    with pytest.raises(AirflowFailException):
        changed.transfer(**GROWING, checks=CHECKS, run_id="r1")
    return changed


def decide(landing: Landing, **arguments: Any) -> WebCollectAcceptLandingOperator:
    """Return the operator that decides on quarantined rows; by default, it accepts them."""
    return WebCollectAcceptLandingOperator(task_id="decide", destination=landing.destination, **arguments)


class TestFail:
    def test_what_a_person_accepts_is_of_the_run_that_has_read_it(self, failed: Landing) -> None:
        assert execute(decide(failed, run_id="{{ 'r1' }}", decision="{{ 'accept' }}")) == {
            "destination": failed.destination,
            "run_id": "r1",
            "commit": 1,
            "rows": 30,
            "checks": ["columns.price.filled"],
        }
        assert failed.rows() == failed.truth()
        summaries = [failed.transfer(**GROWING, run_id=run) for run in ("r2", "r1")]
        facts = [(summary["rows"], summary["total_rows"], summary["commit"]) for summary in summaries]
        assert facts == [(0, 30, 2), (30, 30, 2)]
        assert rows_at(summaries[1]["uris"]) == failed.rows()

    def test_a_cleared_task_says_again_that_its_rows_wait(self, failed: Landing) -> None:
        assert failed.transfer(**GROWING, run_id="r2")["total_rows"] == 0
        said = "filled in 0 % of 30 rows.*30 rows of commit 1 are quarantined"
        with pytest.raises(AirflowFailException, match=said):
            failed.transfer(**GROWING, checks=CHECKS, run_id="r1")
        execute(decide(failed, commit=1, decision="discard"))
        summary = failed.transfer(**GROWING, checks=CHECKS, run_id="r1")
        assert (summary["rows"], summary["quarantined"], summary["uris"]) == (0, [], [])
        read_landing(failed.destination).verify()

    def test_a_retry_decides_once_and_a_cleared_task_again(self, failed: Landing) -> None:
        """The first try has committed its decision; after that, other rows are quarantined."""
        first = execute(decide(failed), run_id="d")
        failed.grow(30)
        with pytest.raises(AirflowFailException):
            failed.transfer(**GROWING, checks={"rows": {"min": 100}}, run_id="r2")
        assert execute(decide(failed), run_id="d") == first
        assert [rows.run.run_id for rows in in_review(failed.destination)] == ["r2"]
        assert execute(decide(failed), run_id="d", max_tries=5)["run_id"] == "r2"

    def test_a_source_may_have_checks_of_its_own(self, sandbox: Sandbox, destination: str) -> None:
        few, many = (sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 50))
        sources = [{"collection_task_id": few, "checks": {"rows": {"min": 5}}}, many]
        summary = transfer(destination, sources=sources, checks={"rows": {"min": 50}})
        assert [source["rows"] for source in summary["sources"]] == [5, 50]


class TestWarnAndQuarantine:
    def test_event_and_log_have_a_warning(self, changed: Landing, caplog: pytest.LogCaptureFixture) -> None:
        options = {"checks": CHECKS, "on_failed_checks": "warn", **GROWING}
        with caplog.at_level(logging.WARNING):
            extra = reported(changed.destination, changed.task, **options)
        assert "columns.price.filled: filled in 0 % of 30 rows" in caplog.text
        event = LandingEvent.of(extra)
        assert event
        assert isinstance(event.filled, dict)
        assert (event.rows, event.quarantined_rows, event.filled["price"]) == (30, 0, 0)
        assert extra["checks"] == [
            {"check": "rows.min", "state": "passed", "expected": "at least 10", "found": "30 rows"},
            {
                "check": "columns.price.filled",
                "state": "failed",
                "expected": "filled in at least 95 % of the rows",
                "found": "filled in 0 % of 30 rows",
                "examples": [{"value": "''", "offset": 0}],
            },
        ]

    def test_a_quarantine_is_a_success_that_says_so(self, changed: Landing) -> None:
        options = {"checks": CHECKS, "on_failed_checks": "quarantine", "skip_if_nothing_new": True, **GROWING}
        extra = reported(changed.destination, changed.task, mark_exported=True, **options)
        assert (extra["rows"], extra["uris"], extra["quarantined_rows"]) == (0, [], 30)
        assert changed.rows() == []
        assert not changed.control.task(changed.task_id)["exported"]
        read_landing(changed.destination).verify()
        changed.control.change_rows(changed.task_id, "price", renamed="cost")
        accepted = execute(decide(changed, commit=str(extra["quarantined"][0])))
        assert (accepted["rows"], accepted["commit"]) == (30, 1)
        assert changed.rows() == changed.truth()


def test_checks_may_come_from_templates(changed: Landing) -> None:
    checks = {"columns": {"{{ 'price' }}": {"filled": "{{ 0.95 }}"}}, "rows": {"min": "{{ 5 }}"}}
    summary = changed.transfer(checks=checks, on_failed_checks="{{ 'warn' }}")
    assert [check["state"] for check in summary["checks"]] == ["passed", "failed"]
