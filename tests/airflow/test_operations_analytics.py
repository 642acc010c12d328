"""Analytics as rows in XCom or in files, their check against thresholds, and discovery."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath

from airflow_provider_webcollect.collection_tasks import read_collection_tasks
from airflow_provider_webcollect.operators import analytics
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectDiscoverOperator,
    WebCollectMetricsCheckOperator,
    WebCollectQueryAnalyticsOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.client import Client
from tests.airflow.executions import Connect, Said, execute, on_sandbox
from tests.service.servers import answer, serving

pytestmark = on_sandbox()

PATH = "/taskanalytics/queries"
TODAY = pendulum.now("UTC").date()
WEEK: dict[str, Any] = {"start": TODAY.subtract(days=6).isoformat(), "end": TODAY.isoformat()}
#: A row without metrics.
ROW: dict[str, Any] = {
    "taskId": "t",
    "dayKey": WEEK["start"],
    "collectionMethod": "Cloud",
    "dataVolumeMetrics": {},
    "executionMetrics": {},
    "resourceUsageMetrics": {},
}


def query(**arguments: Any) -> Any:
    operator = WebCollectQueryAnalyticsOperator(task_id="query", **{**WEEK, **arguments})
    return execute(operator, ds="2026-01-01")


def check(**arguments: Any) -> dict[str, Any]:
    return dict(execute(WebCollectMetricsCheckOperator(task_id="check", **{**WEEK, **arguments})))


def truth(client: Client, **arguments: Any) -> list[Any]:
    """Return the rows of the week, queried as one page."""
    days = {"start": WEEK["start"], "end": WEEK["end"], **arguments}
    return list(client.send(endpoints.query_analytics(**days, page_size=500)).rows)


class TestQuery:
    def test_rows_are_flat_and_plain(self, client: Client) -> None:
        rows = query(time_granularity="{{ 'Week' }}", collection_method="Cloud")
        expected = truth(client, time_granularity="Week", collection_method="Cloud")
        assert rows
        assert [(row["task_id"], row["total_collected"]) for row in rows] == [
            (row.task_id, row.data_volume_metrics.total_collected) for row in expected
        ]
        assert {tuple(row) for row in rows} == {analytics.COLUMNS}
        assert all(row["week_start_date"] and row["collection_method"] == "Cloud" for row in rows)

    def test_rows_go_to_a_file_of_any_format(self, client: Client, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        (tmp_path / "there.jsonl").write_text("of an earlier run")
        query(destination=ObjectStoragePath(f"file://{tmp_path}/there.jsonl"))
        written = query(destination=f"file://{tmp_path}/new/{{{{ ds }}}}.csv", file_format="csv")
        query(destination=f"file://{tmp_path}/there.parquet", file_format="parquet")
        with pytest.raises(AirflowFailException, match=r"`max_xcom_rows` is 1\): set `destination`"):
            query(max_xcom_rows=1)

        expected = truth(client)
        volumes = [row.data_volume_metrics.total_collected for row in expected]
        lines = [json.loads(line) for line in (tmp_path / "there.jsonl").read_text().splitlines()]
        (file,) = (tmp_path / "new").iterdir()
        in_csv = csv.DictReader(file.read_text().splitlines())
        table = pq.read_table(tmp_path / "there.parquet")
        assert [line["total_collected"] for line in lines] == volumes
        assert [float(row["total_collected"]) for row in in_csv] == volumes
        assert table["total_collected"].to_pylist() == volumes
        assert str(table.schema.field("success_rate").type) == "double"
        assert str(table.schema.field("day_key").type) == "string"
        counts = {"rows": len(expected), "bytes": file.stat().st_size}
        assert written == {"destination": f"file://{file}", **counts}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "there.jsonl", "there.parquet"]

    @pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
    def test_a_query_that_fails_leaves_the_file_of_an_earlier_run(
        self, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
    ) -> None:
        file = tmp_path / "report"
        file.write_text("of an earlier run")
        monkeypatch.setattr(endpoints, "MAX_ANALYTICS_SIZE", 20)
        sandbox.control.fail(PATH, after=1, kind="status", status=403, code="PermissionDenied")
        start = TODAY.subtract(days=34).isoformat()
        with pytest.raises(AirflowFailException):
            query(start=start, destination=f"file://{file}", file_format=file_format)

        assert len(sandbox.control.requests(PATH)) == 2
        assert file.read_text() == "of an earlier run"
        assert list(tmp_path.iterdir()) == [file]

    @pytest.mark.parametrize("name", ["collection_task_ids", "member_names"])
    def test_a_filter_that_is_none_at_run_time_queries_nothing(self, sandbox: Sandbox, name: str) -> None:
        filters: dict[str, Any] = {name: "{{ x }}"}
        operator = WebCollectQueryAnalyticsOperator(task_id="query", **WEEK, **filters)
        setattr(operator, name, None)
        with pytest.raises(AirflowFailException, match=f"`{name}` is None; the DAG sets it to a template"):
            execute(operator)
        assert sandbox.control.requests() == []

    def test_days_that_are_too_old_fail_when_the_task_runs(self, sandbox: Sandbox) -> None:
        with pytest.raises(AirflowFailException, match="only the latest 3 months can be queried"):
            query(start="2020-01-01", end="2020-01-02")
        assert sandbox.control.requests(PATH) == []


@pytest.fixture
def serve(set_connection: Connect) -> Iterator[Callable[..., None]]:
    """Has a service answer with rows, given by their metrics, of the week and of the week ``before`` it."""
    served: dict[tuple[str, str], Sequence[dict[str, Any]]] = {}

    def respond(request: bytes) -> bytes:
        query = json.loads(request.partition(b"\r\n\r\n")[2])
        rows = served.get((query["start"], query["end"]), [])
        return answer({"total": len(rows), "data": [{**ROW, **row} for row in rows]})

    def serve(*rows: dict[str, Any], before: Sequence[dict[str, Any]] = ()) -> None:
        first, last = (TODAY.subtract(days=days).isoformat() for days in (13, 7))
        served.update({(WEEK["start"], WEEK["end"]): rows, (first, last): before})

    with serving(respond) as server:
        set_connection(host=server.url, extra={"access_token": "any"})
        yield serve


def volume(number: Any) -> dict[str, Any]:
    return {"dataVolumeMetrics": {"totalCollected": number}}


def cost(number: Any) -> dict[str, Any]:
    return {"resourceUsageMetrics": {"balance": number}}


class TestCheck:
    def test_it_fails_or_warns_with_every_violation(self, serve: Callable[..., None], said: Said) -> None:
        runs = {"executionMetrics": {"runCount": 4, "successCount": 3}}
        serve({**runs, **volume(30), **cost(7.5)}, before=[volume(60), volume(40)])
        strict = {"min_success_rate": 0.8, "max_volume_drop": 0.5, "max_volume": 29, "max_cost": 7}
        violations = [
            "the success rate is 75.0%, below 80.0%",
            "30 rows were collected, 100 in the preceding period: a drop of 70.0%, above 50.0%",
            "30 rows were collected, above 29",
            "the cost is 7.5, above 7",
        ]
        metrics = {"success_rate": 0.75, "volume": 30, "previous_volume": 100, "cost": 7.5}
        with pytest.raises(AirflowFailException) as failed:
            check(**strict)
        assert check(**strict, on_violation="warn") == {**WEEK, **metrics, "violations": violations}
        log = said()
        for violation in violations:
            assert violation in log
            assert violation in str(failed.value)
        exact = {"min_success_rate": 0.75, "max_volume_drop": 0.7, "max_volume": 30, "max_cost": 7.5}
        assert check(**exact)["violations"] == []
        serve()
        assert check(max_volume=0, max_cost=0)["violations"] == []

    def test_each_task_is_checked_even_one_that_did_not_run(self, serve: Callable[..., None]) -> None:
        serve({"taskId": "a", **volume(50)}, {"taskId": "b", **volume(51)})
        checked = check(max_volume=50, per_task=True, on_violation="warn")
        assert {task: metrics["volume"] for task, metrics in checked["tasks"].items()} == {"a": 50, "b": 51}
        assert checked["violations"] == ["task b: 51 rows were collected, above 50"]

        serve()
        idle = check(min_success_rate=0, per_task=True, collection_task_ids=["idle"], on_violation="warn")
        assert set(idle["tasks"]) == {"idle"}
        (violation,) = idle["violations"]
        assert violation == "task idle: there was no run, so the success rate is not known to be 0.0% or more"

    def test_a_task_in_another_letter_case_is_one_task(self, serve: Callable[..., None]) -> None:
        serve({"taskId": "a", **volume(50)})
        checked = check(max_volume=50, per_task=True, collection_task_ids=["A"], on_violation="warn")
        assert {task: metrics["volume"] for task, metrics in checked["tasks"].items()} == {"A": 50}

    def test_a_period_whose_predecessor_is_too_old_is_explained(self) -> None:
        with pytest.raises(AirflowFailException, match="the preceding period begins on "):
            check(start=TODAY.subtract(days=60).isoformat(), max_volume_drop=0.5)


UNKNOWN = "the service does not say for {} of 2 analytics rows how many runs succeeded"
#: Metrics of a period's rows, the success rate that follows from them, and how a violation begins.
ENDS: list[tuple[list[dict[str, Any]], float | None, str]] = [
    ([{"runCount": 4, "successCount": 3}, {"runCount": 6, "successCount": None, "failureCount": 0}], 0.9, ""),
    ([{"runCount": 4, "failureCount": 1}, {"runCount": 4, "successRate": 0.25}], 0.5, ""),
    ([{"successCount": 1, "failureCount": 3}, {"runCount": 6, "failureRate": 0.5}], 0.4, ""),
    ([{"runCount": 10, "successRate": 0.7}, {"runCount": 0}], 0.7, ""),
    ([{"runCount": 4, "successCount": 3}, {"runCount": 96}], 0.75, UNKNOWN.format(1)),
    ([{"runCount": 4, "successCount": 3}, {"successRate": 0.1}], 0.75, UNKNOWN.format(1)),
    ([{"runCount": 4}, {"runCount": 0}], None, UNKNOWN.format(1)),
    ([{}, {"successCount": 5}], None, UNKNOWN.format(2)),
    ([{"runCount": 0}], None, "there was no run, so the success rate is not known to be 50.0%"),
]


class TestMetricsThatTheServiceLeavesOut:
    @pytest.mark.parametrize(("rows", "rate", "violation"), ENDS)
    def test_successes_are_read_off_what_there_is(
        self, serve: Callable[..., None], rows: list[dict[str, Any]], rate: float | None, violation: str
    ) -> None:
        serve(*({"executionMetrics": row} for row in rows))
        checked = check(min_success_rate=rate or 0.5, on_violation="warn")

        assert checked["success_rate"] == rate
        assert len(checked["violations"]) == bool(violation)
        assert all(told.startswith(violation) for told in checked["violations"])

    @pytest.mark.parametrize(
        ("volumes", "before", "violation"),
        [
            (
                [None],
                [50],
                "for 1 of 1 analytics rows how many .*; at least 0, and 50 in the preceding period",
            ),
            ([30, None], [50], "for 1 of 2 analytics rows how many .*; at least 30, and 50 in the preceding"),
            ([], [50], "0 rows were collected, 50 in the preceding period: a drop of 100.0%, above 30.0%"),
            ([50], [None, 50], "for 1 of 2 analytics rows of the preceding period how many rows were"),
            ([50], [], None),
            # no violation, whatever the other row has; 1 - 35 / 50 is a little more than 0.3
            ([35, None], [50], None),
        ],
    )
    def test_a_volume_that_is_not_known_is_not_compared_as_0(
        self,
        serve: Callable[..., None],
        volumes: list[int | None],
        before: list[int | None],
        violation: str | None,
    ) -> None:
        serve(*map(volume, volumes), before=[*map(volume, before)])
        checked = check(max_volume_drop=0.3, on_violation="warn")
        assert len(checked["violations"]) == bool(violation)
        assert all(re.search(str(violation), told) for told in checked["violations"])
        known = [number for number in volumes if number is not None]
        assert checked["volume"] == (None if volumes and not known else sum(known))

    @pytest.mark.parametrize(
        ("numbers", "unknown"),
        [([5, None], 1), ([5, "12,000,000"], 1), ([0, *[None] * 9], 9), ([None], 1), ([5, ...], 1)],
    )
    @pytest.mark.parametrize("limit", ["max_volume", "max_cost"])
    def test_a_number_that_a_row_lacks_refuses_and_says_for_how_many(
        self, serve: Callable[..., None], limit: str, numbers: list[Any], unknown: int
    ) -> None:
        serve(*({} if number is ... else {**volume(number), **cost(number)} for number in numbers))
        with pytest.raises(AirflowFailException) as refused:
            check(**{limit: 100})
        assert f" for {unknown} of {len(numbers)} analytics rows" in str(refused.value)
        assert "the total may be above 100" in str(refused.value)

    def test_a_limit_is_exceeded_whatever_other_rows_lack(self, serve: Callable[..., None]) -> None:
        serve({**volume(51), **cost(51)}, {})
        assert check(max_volume=50, max_cost=50, on_violation="warn")["violations"] == [
            *("51 rows were collected, above 50", "the cost is 51, above 50"),
        ]


class TestDiscovery:
    """``tests/cli/test_discover.py`` tests what a merge does to a file."""

    def test_the_configured_file_is_compared_and_with_merge_written(
        self, sandbox: Sandbox, configure_tasks: Callable[..., Path], said: Said
    ) -> None:
        shop = sandbox.control.add_task(lots=[30], name="Shop")["task_id"]
        text = f"- id: gone\n  name: Gone\n- id: {shop}\n  name: Mine\n  service_name: Before\n"
        file = configure_tasks(text)

        discovered = execute(WebCollectDiscoverOperator(task_id="discover"))
        assert discovered["gone"] == [{"id": "gone", "name": "Gone"}]
        assert discovered["renamed"] == [{"id": shop, "name": "Mine", "service_name": "Shop"}]
        assert discovered["new"][0].keys() == {"id", "name"}
        assert f"renamed: Mine ({shop}), which the service calls 'Shop'" in said()
        assert file.read_text() == text

        assert execute(WebCollectDiscoverOperator(task_id="discover", merge=True)) == discovered
        assert {task.name for task in read_collection_tasks(file).tasks} >= {"Gone", "Mine"}
        merged = execute(WebCollectDiscoverOperator(task_id="discover", collection_tasks=str(file)))
        assert merged == {**discovered, "new": [], "renamed": []}
