"""The transfer to tables of Delta Lake: what it lands, reports and refuses, read by their own reader."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import deltalake
import fsspec
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    Asset,
    ObjectStoragePath,
)

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectAcceptLandingOperator,
    WebCollectVerifyLandingOperator,
)
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import make_dag, run_tasks
from tests.airflow.executions import execute
from tests.airflow.landings import (
    attach,
    land,
    landed,
    make_transfer,
    table_rows,
    transfer,
)
from tests.airflow.test_checks import CHECKS

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

TABLE: dict[str, Any] = {"table_format": "delta"}
GROWING: dict[str, Any] = {**TABLE, "mode": "incremental"}


def files_of(destination: str) -> list[str]:
    """Return the URIs of the files that have the table's rows."""
    return [f"file://{path}" for path in deltalake.DeltaTable(destination).file_uris()]


def versions_of(destination: str) -> list[dict[str, Any]]:
    """Return what the table's log says of its commits, the first one first."""
    return deltalake.DeltaTable(destination).history()[::-1]


class TestRows:
    def test_every_row_is_in_the_table_once_and_the_run_in_its_log(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        run = land(destination, source, max_part_bytes=1, **TABLE)

        assert table_rows(destination) == sandbox.control.true_rows(source["task_id"])
        (commit,) = versions_of(destination)
        assert commit["webcollect.run"].endswith(f".land {run.run_id}")
        assert (commit["webcollect.collection_task_id"], commit["webcollect.rows"]) == (
            source["task_id"],
            "400",
        )

    def test_a_run_adds_what_is_new_and_one_without_news_commits_nothing(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        transfer(destination, source, **GROWING)
        sandbox.control.grow(source["task_id"], 30)
        transfer(destination, source, **GROWING)
        with pytest.raises(AirflowSkipException):
            transfer(destination, source, skip_if_nothing_new=True, **GROWING)

        assert table_rows(destination) == sandbox.control.true_rows(source["task_id"])
        assert [commit.get("webcollect.rows") for commit in versions_of(destination)][:2] == ["400", "30"]

    @pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.at_night)])
    def test_the_format_may_be_a_template(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, native: bool
    ) -> None:
        def to(folder: str, kind: str | None) -> None:
            run_tasks(
                lambda: make_transfer(f"{destination}/{folder}", source, table_format="{{ params.kind }}"),
                params={"kind": kind},
                render_template_as_native_obj=native,
            )

        to("table", "delta")
        to("folder", None if native else "")

        rows = sandbox.control.true_rows(source["task_id"])
        assert table_rows(f"{destination}/table") == rows
        # JSON lines are the default of folders, as Parquet is that of tables
        assert landed(f"{destination}/folder") == rows

    def test_a_table_may_be_on_any_storage_that_airflow_has(self, source: dict[str, Any]) -> None:
        attach("memory", fs=fsspec.filesystem("memory"))
        folder = f"memory://{source['task_id']}/prices"
        transfer(folder, source, **TABLE)

        assert read_landing(ObjectStoragePath(folder)).to_arrow().num_rows == 400

    def test_each_of_many_sources_has_a_table(self, sandbox: Sandbox, destination: str) -> None:
        tasks = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (20, 30)]
        summary = transfer(destination, sources=tasks, **TABLE)

        assert [each["manifest"] for each in summary["sources"]] == [
            f"{destination}/{task}" for task in tasks
        ]
        for task in tasks:
            assert table_rows(f"{destination}/{task}") == sandbox.control.true_rows(task)

    def test_the_partition_of_a_run_is_a_column_of_the_table(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        for day in ("2026-01-01", "2026-01-02"):
            transfer(destination, source, partition=f"dt={day}", **GROWING)
            sandbox.control.grow(source["task_id"], 30)

        days = [row["dt"] for row in table_rows(destination)]
        assert (days.count("2026-01-01"), days.count("2026-01-02")) == (400, 30)
        with pytest.raises(AirflowFailException, match="is partitioned by dt, and `partition` says hour"):
            transfer(destination, source, partition="hour=07", **GROWING)
        assert deltalake.DeltaTable(destination).metadata().partition_columns == ["dt"]


class TestRetries:
    def test_a_cleared_run_reports_none_of_the_rows_of_its_successor(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        first = transfer(destination, source, run_id="first", **GROWING)
        sandbox.control.grow(source["task_id"], 30)
        second = transfer(destination, source, run_id="second", **GROWING)
        cleared = transfer(destination, source, run_id="first", **GROWING)

        assert cleared["uris"] == first["uris"]
        assert sorted([*first["uris"], *second["uris"]]) == sorted(files_of(destination))
        assert table_rows(destination) == sandbox.control.true_rows(source["task_id"])


class TestReports:
    def test_the_result_names_the_table_instead_of_a_manifest(
        self, source: dict[str, Any], destination: str
    ) -> None:
        summary = land(destination, source, max_part_bytes=1, **TABLE).xcoms["land"]
        sizes = [Path(uri.removeprefix("file://")).stat().st_size for uri in summary["uris"]]

        assert sorted(summary["uris"]) == sorted(files_of(destination))
        assert {key: summary[key] for key in ("destination", "manifest", "rows", "parts", "bytes")} == {
            "destination": destination,
            "manifest": destination,
            "rows": 400,
            "parts": 4,
            "bytes": sum(sizes),
        }

    def test_the_event_has_the_keys_that_it_has_for_a_folder(
        self, source: dict[str, Any], destination: str
    ) -> None:
        def reported(folder: str, **options: Any) -> dict[str, Any]:
            asset, event = Asset(folder), SimpleNamespace(extra={})
            operator = make_transfer(folder, source, mode="incremental", outlets=[asset], **options)
            execute(operator, outlet_events={asset: event})
            extra: dict[str, Any] = event.extra
            return extra

        of_folder, of_table = (
            reported(f"{destination}/{name}", file_format="parquet", **options)
            for name, options in (("folder", {}), ("table", TABLE))
        )

        assert of_table.keys() == of_folder.keys()
        different = {key for key in of_table if of_table[key] != of_folder[key]}
        # how long each took may be the same, or not
        assert different - {"duration"} == {"destination", "manifest", "uris", "objects"}
        event = LandingEvent.of(of_table)
        assert event is not None
        assert event.all_manifests() == [f"{destination}/table"]
        assert read_landing(event.all_manifests()[0]).manifest.rows == 400

    def test_the_table_is_the_outlet_where_none_is_given(self, destination: str) -> None:
        with make_dag():
            assert make_transfer(destination, {"task_id": "t"}, **TABLE).outlets == [Asset(destination)]


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"table_format": "hudi"}, "`table_format` is 'hudi'"),
            ({"table_format": "delta", "file_format": "csv"}, "`file_format` is 'csv'.*goes with 'parquet'"),
            ({"table_format": "delta", "column_types": {"a": "int"}}, "`column_types"),
        ],
    )
    def test_wrong_arguments_fail_while_the_dag_is_parsed(
        self, arguments: dict[str, Any], message: str
    ) -> None:
        with make_dag(), pytest.raises(InvalidArgument, match=message):
            make_transfer("s3://bucket/prices", {"task_id": "t"}, **arguments)

    def test_a_partition_of_a_table_takes_no_landing(self, source: dict[str, Any], destination: str) -> None:
        transfer(destination, source, **GROWING)
        # VACUUM would remove its parts
        with pytest.raises(AirflowFailException, match="is inside the landing at"):
            transfer(f"{destination}/dt=2026-01-01", source)


class TestRowsThatFailTheirChecks:
    @pytest.fixture
    def changed(self, sandbox: Sandbox, destination: str) -> dict[str, Any]:
        """A task whose first 30 rows are in the table; the prices of 20 more are empty."""
        task = sandbox.control.add_task(lots=[30])
        transfer(destination, task, **GROWING)
        sandbox.control.grow(task["task_id"], 20)
        sandbox.control.change_rows(task["task_id"], "price", "empty", from_row=30)
        return task

    @pytest.mark.parametrize(
        "on_failed_checks", [pytest.param("fail", marks=pytest.mark.at_night), "quarantine"]
    )
    def test_they_are_none_of_the_tables_until_a_person_accepts_them(
        self, sandbox: Sandbox, changed: dict[str, Any], destination: str, on_failed_checks: str
    ) -> None:
        options = {**GROWING, "checks": CHECKS, "on_failed_checks": on_failed_checks, "run_id": "r1"}
        fails = on_failed_checks == "fail"
        with pytest.raises(AirflowFailException) if fails else contextlib.nullcontext():
            transfer(destination, changed, **options)
        assert len(table_rows(destination)) == 30

        accepted = execute(WebCollectAcceptLandingOperator(task_id="accept", destination=destination))
        summary = transfer(destination, changed, **options)

        assert (accepted["rows"], accepted["run_id"]) == (20, "r1")
        assert table_rows(destination) == sandbox.control.true_rows(changed["task_id"])
        assert (summary["rows"], len(summary["uris"]), summary["quarantined_rows"]) == (20, 1, 0)


class TestOperatorsOnTables:
    def test_verify_says_what_has_landed_and_names_damage(
        self, source: dict[str, Any], destination: str
    ) -> None:
        run = run_tasks(
            lambda: make_transfer(destination, source, max_part_bytes=1, **TABLE),
            lambda: WebCollectVerifyLandingOperator(
                task_id="verify", destination="{{ ti.xcom_pull('land')['manifest'] }}"
            ),
        )
        verified = run.xcoms["verify"]
        assert (verified["destination"], verified["rows"], verified["parts"]) == (destination, 400, 4)

        gone = Path(files_of(destination)[0].removeprefix("file://"))
        gone.unlink()
        with pytest.raises(AirflowFailException, match=f"{gone.name} is missing"):
            execute(WebCollectVerifyLandingOperator(task_id="verify", destination=destination))


def test_no_credentials_are_in_the_log_of_a_table(source: dict[str, Any], destination: str) -> None:
    transfer(destination, source, **GROWING)

    (commit,) = versions_of(destination)
    assert {key for key in commit if key.startswith("webcollect.")} == {
        "webcollect.collection_task_id",
        "webcollect.run",
        "webcollect.rows",
        "webcollect.next_offset",
    }
    assert "token" not in json.dumps(commit, default=str)
