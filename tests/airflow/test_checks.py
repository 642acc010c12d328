"""Checks of the transfer: what becomes of the task, and who learns of them."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, Asset

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.review import in_review
from airflow_provider_webcollect.operators.webcollect import WebCollectAcceptLandingOperator
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import run_tasks
from tests.airflow.executions import execute
from tests.airflow.landings import (
    RETRIES,
    land,
    landed,
    make_transfer,
    rows_at,
    transfer,
    without_duration,
)

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

CHECKS: dict[str, Any] = {"rows": {"min": 10}, "columns": {"price": {"filled": 0.95}}}


@pytest.fixture
def changed(sandbox: Sandbox) -> dict[str, Any]:
    """A task with 30 rows whose prices are empty."""
    task = sandbox.control.add_task(lots=[30])
    sandbox.control.change_rows(task["task_id"], "price", "empty", from_row=0)
    return task


class TestFail:
    def test_the_task_fails_without_retries_and_nothing_is_published_or_marked(
        self, sandbox: Sandbox, changed: dict[str, Any], destination: str
    ) -> None:
        run = land(destination, changed, mode="incremental", checks=CHECKS, mark_exported=True, **RETRIES)
        assert run.states == {"land": "failed"}
        assert run.xcoms.get("land") is None
        with pytest.raises(Exception, match="nothing has landed at"):
            read_landing(destination)
        assert not sandbox.control.requests("/data/markexported")
        assert not sandbox.control.task(changed["task_id"])["exported"]
        # one try: a retry would begin with the first page once more
        first = [each for each in sandbox.control.requests("/data/all") if each["query"]["offset"] == "0"]
        assert len(first) == 2

    def test_what_a_person_accepts_in_a_dag_is_of_the_run_that_has_read_it(
        self, sandbox: Sandbox, changed: dict[str, Any], destination: str
    ) -> None:
        with pytest.raises(AirflowFailException):
            transfer(destination, changed, mode="incremental", checks=CHECKS, run_id="r1")
        run = run_tasks(
            lambda: WebCollectAcceptLandingOperator(
                task_id="accept", destination=destination, run_id="{{ 'r1' }}", decision="{{ 'accept' }}"
            )
        )
        assert run.xcoms["accept"] == {
            "destination": destination,
            "run_id": "r1",
            "rows": 30,
            "state": "staged",
            "checks": ["columns.price.filled"],
        }
        assert landed(destination) == sandbox.control.true_rows(changed["task_id"])
        summaries = [transfer(destination, changed, mode="incremental", run_id=run) for run in ("r2", "r1")]
        assert [(each["rows"], each["total_rows"], each["commit"]) for each in summaries] == [
            (0, 30, 1),
            (30, 30, 1),
        ]
        assert rows_at(summaries[1]["uris"]) == landed(destination)

    def test_a_person_sets_rows_apart_once_and_the_landing_goes_on_behind_them(
        self, changed: dict[str, Any], destination: str
    ) -> None:
        with pytest.raises(AirflowFailException):
            transfer(destination, changed, mode="incremental", checks=CHECKS, run_id="r1")
        operator = WebCollectAcceptLandingOperator(
            task_id="quarantine", destination=destination, decision="quarantine"
        )
        decided = execute(operator)
        assert (decided["rows"], decided["state"]) == (30, "staged")
        assert [each.state for each in in_review(destination)] == ["quarantined"]
        assert transfer(destination, changed, mode="incremental")["total_rows"] == 0
        read_landing(destination).verify()
        with pytest.raises(AirflowFailException, match="cannot be quarantined"):
            execute(operator)

    def test_nothing_to_decide_on_ends_the_task_without_retries(
        self, source: dict[str, Any], destination: str
    ) -> None:
        transfer(destination, source)
        operator = WebCollectAcceptLandingOperator(
            task_id="discard", destination=destination, run_id="r1", decision="discard"
        )
        with pytest.raises(AirflowFailException, match="no rows of r1 wait for a decision"):
            execute(operator)

    def test_of_many_sources_the_good_ones_land(
        self, source: dict[str, Any], changed: dict[str, Any], destination: str
    ) -> None:
        tasks = [source["task_id"], changed["task_id"]]
        with pytest.raises(AirflowFailException, match=r"1 of 2 sources did not land.*filled in 0 % of"):
            transfer(destination, sources=tasks, mode="incremental", checks=CHECKS)
        assert len(landed(f"{destination}/{tasks[0]}")) == 400


class TestWarnAndQuarantine:
    def reported(self, destination: str, task: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Return what the asset event says."""
        asset, event = Asset(f"{destination}-asset"), SimpleNamespace(extra={})
        execute(
            make_transfer(destination, task, mode="incremental", checks=CHECKS, outlets=[asset], **options),
            outlet_events={asset: event},
            run_id="r1",
        )
        extra: dict[str, Any] = event.extra
        return extra

    def test_a_warning_is_in_the_event_and_in_the_log(
        self, changed: dict[str, Any], destination: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            extra = self.reported(destination, changed, on_failed_checks="warn")
        assert "columns.price.filled: filled in 0 % of 30 rows" in caplog.text
        event = LandingEvent.of(extra)
        assert event is not None
        assert (event.rows, event.quarantined_rows, event.filled["price"]) == (30, 0, 0)  # type: ignore[index]
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

    def test_a_quarantine_is_a_success_that_says_so(
        self, sandbox: Sandbox, changed: dict[str, Any], destination: str
    ) -> None:
        options: dict[str, Any] = {"on_failed_checks": "quarantine", "mark_exported": True}
        extra = self.reported(destination, changed, skip_if_nothing_new=True, **options)
        assert (extra["rows"], extra["uris"], extra["quarantined_rows"]) == (0, [], 30)
        assert landed(destination) == []
        assert not sandbox.control.task(changed["task_id"])["exported"]
        read_landing(destination).verify()
        sandbox.control.change_rows(changed["task_id"], "price", renamed="cost")
        accepted = execute(WebCollectAcceptLandingOperator(task_id="accept", destination=destination))
        assert (accepted["rows"], accepted["state"]) == (30, "quarantined")
        assert landed(destination) == sandbox.control.true_rows(changed["task_id"])

    @pytest.mark.parametrize("form", [{}, {"table_format": "delta"}], ids=["folder", "table"])
    @pytest.mark.parametrize(("way", "rows", "apart"), [("quarantine", 0, 30), ("warn", 30, 0)])
    def test_a_retry_reports_the_same(
        self,
        changed: dict[str, Any],
        destination: str,
        form: dict[str, str],
        way: str,
        rows: int,
        apart: int,
    ) -> None:
        options = {"mode": "incremental", "checks": CHECKS, "on_failed_checks": way, "run_id": "r1", **form}
        first, second = (transfer(destination, changed, **options) for _ in range(2))
        assert without_duration(first) == without_duration(second)
        assert (second["rows"], second["quarantined_rows"], second["commit"]) == (rows, apart, 1)
        assert [each["state"] for each in second["checks"]] == ["passed", "failed"]

    def test_metrics_count_failed_checks(
        self, changed: dict[str, Any], destination: str, counted: dict[str, int]
    ) -> None:
        with pytest.raises(AirflowFailException):
            transfer(destination, changed, checks=CHECKS)
        assert counted["webcollect.landing.failed_checks"] == 1
        assert counted["webcollect.landing.rows"] == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"checks": {"row": {}}}, "`checks` is 'row'"),
        ({"checks": {"columns": {"price": {"pattern": "("}}}}, "it is no regular expression"),
        ({"on_failed_checks": "ignore"}, "`on_failed_checks` is 'ignore'"),
        ({"on_failed_checks": "quarantine"}, "it goes with mode='incremental' alone"),
    ],
)
def test_a_wrong_check_is_an_import_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make_transfer("s3://bucket/folder", {"task_id": "t"}, **wrong)


def test_checks_may_come_from_templates(changed: dict[str, Any], destination: str) -> None:
    checks = {"columns": {"{{ 'price' }}": {"filled": "{{ 0.95 }}"}}, "rows": {"min": "{{ 5 }}"}}
    run = land(destination, changed, checks=checks, on_failed_checks="{{ 'warn' }}")
    assert [each["state"] for each in run.xcoms["land"]["checks"]] == ["passed", "failed"]


class TestOpenLineage:
    @pytest.mark.parametrize("way", ["fail", "warn"])
    def test_data_quality_is_told_of_the_source(
        self, changed: dict[str, Any], destination: str, way: str
    ) -> None:
        pytest.importorskip("airflow.providers.openlineage")
        from openlineage.client.serde import Serde

        operator = make_transfer(destination, changed, checks=CHECKS, on_failed_checks=way)
        if way == "fail":
            with pytest.raises(AirflowFailException):
                execute(operator)
            found = operator.get_openlineage_facets_on_failure(None)
        else:
            execute(operator)
            found = operator.get_openlineage_facets_on_complete(None)
        (task,) = (json.loads(Serde.to_json(each)) for each in found.inputs)
        assertions = task["inputFacets"]["dataQualityAssertions"]["assertions"]
        assert [(each["assertion"], each["success"], each.get("column")) for each in assertions] == [
            ("rows.min", True, None),
            ("columns.price.filled", False, "price"),
        ]
        assert len(found.outputs) == (0 if way == "fail" else 1)
        metrics = task["inputFacets"].get("dataQualityMetrics")
        if way == "warn":
            assert metrics["rowCount"] == 30
            assert metrics["columnMetrics"]["price"]["count"] == 0
        else:
            assert metrics is None
