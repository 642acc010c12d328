"""The transfer's formats, its many sources at once, and its growing landings."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowTaskTimeout, Asset
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.transfers.sources import safe_name
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag
from tests.airflow.landings import RETRIES, land, landed, manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


class TestFormats:
    @pytest.mark.parametrize(
        "options",
        [
            {"file_format": "csv", "compression": "gzip", "sanitize_formulas": True},
            {"file_format": "parquet", "column_types": {"price": "float64"}, "on_cast_error": "null"},
            {"file_format": "jsonl", "compression": "zstd", "columns": ["title", "price"]},
        ],
        ids=lambda options: options["file_format"],
    )
    def test_a_format_can_be_chosen(
        self, source: dict[str, Any], destination: str, options: dict[str, Any]
    ) -> None:
        run = land(destination, source, **options)

        assert run.xcoms["land"]["rows"] == 400
        written = manifest(destination)
        assert written["format"] == options["file_format"]
        if "columns" in options:
            assert written["columns"] == options["columns"]

    def test_an_empty_compression_means_the_usual_one(self, source: dict[str, Any], destination: str) -> None:
        land(destination, source, compression="{{ '' }}")

        assert manifest(destination)["compression"] is None


class TestManySources:
    def test_each_has_a_folder_of_its_own(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, tmp_path: Path
    ) -> None:
        others = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 7)]
        own = f"file://{tmp_path}/elsewhere"
        run = land(
            destination,
            sources=[
                {"collection_task_id": source["task_id"], "lotno": "000002"},
                others[0],
                {"collection_task_id": others[1], "destination": own},
            ],
        )

        summary = run.xcoms["land"]
        folders = [f"{destination}/{source['task_id']}/000002", f"{destination}/{others[0]}", own]
        assert [each["destination"] for each in summary["sources"]] == folders
        assert (summary["rows"], summary["parts"]) == (162, 3)
        assert landed(folders[0]) == sandbox.control.true_rows(source["task_id"], "000002")
        assert landed(folders[1]) == sandbox.control.true_rows(others[0])
        assert landed(folders[2]) == sandbox.control.true_rows(others[1])

    def test_one_that_fails_does_not_stop_the_others_and_only_it_is_retried(
        self, sandbox: Sandbox, destination: str
    ) -> None:
        tasks = [sandbox.control.add_task(lots=[10])["task_id"] for _ in range(6)]
        sandbox.control.fail("/data/all", after=2, status=400, code="TaskExecuting")
        run = land(destination, sources=tasks, max_concurrency=1, **RETRIES)

        assert (run.states, run.tries) == ({"land": "success"}, {"land": 2})
        read = [request["query"]["taskId"] for request in sandbox.control.requests("/data/all")]
        assert read == [*tasks, tasks[2]]
        assert all(landed(f"{destination}/{task}") == sandbox.control.true_rows(task) for task in tasks)

    def test_if_all_failures_are_permanent_there_is_no_retry_and_all_are_named(
        self, sandbox: Sandbox, destination: str, said: Callable[[], str]
    ) -> None:
        good = sandbox.control.add_task(lots=[10])["task_id"]
        run = land(destination, sources=[good, "no-such-1", "no-such-2"], **RETRIES)

        assert (run.states, run.tries) == ({"land": "failed"}, {"land": 1})
        assert landed(f"{destination}/{good}") == sandbox.control.true_rows(good)
        log = said()
        assert "2 of 3 sources did not land" in log
        assert "task no-such-1 to" in log

    def test_a_task_that_took_too_long_commits_and_marks_nothing_afterwards(
        self, sandbox: Sandbox, destination: str
    ) -> None:
        task = sandbox.control.add_task(lots=[10])["task_id"]
        # all rows are there at once, and then the mark waits for late ones
        limits = {"settle": 60, "execution_timeout": timedelta(seconds=4)}
        # on Airflow 2 it comes through
        with contextlib.suppress(AirflowTaskTimeout):
            land(destination, sources=[task], mark_exported=True, **limits)
        for thread in threading.enumerate():
            if thread.name.startswith("webcollect-land"):
                thread.join()

        assert len(sandbox.control.requests("/data/all")) > 0
        assert sandbox.control.requests("/data/markexported") == []
        with pytest.raises(FileNotFoundError):
            manifest(destination + f"/{task}")

    def test_names_of_folders_are_safe_and_stay_different(self) -> None:
        assert safe_name("a-B_1.2") == "a-B_1.2"
        assert safe_name("a/b") == "a~2fb"
        assert safe_name("..") == "~2e~2e"
        assert safe_name("~2f") == "~7e2f"
        assert safe_name("ä") == "~c3~a4"


class TestGrowing:
    def test_a_later_run_adds_what_is_new(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        first = land(destination, source, mode="incremental")
        sandbox.control.grow(source["task_id"], 30)
        second = land(destination, source, mode="incremental")
        third = land(destination, source, mode="incremental")
        fourth = land(destination, source, mode="incremental", skip_if_nothing_new=True)

        facts = [
            (run.xcoms["land"]["rows"], run.xcoms["land"]["total_rows"]) for run in (first, second, third)
        ]
        assert facts == [(400, 400), (30, 430), (0, 430)]
        assert fourth.states == {"land": "skipped"}
        assert landed(destination) == sandbox.control.true_rows(source["task_id"])

    def test_the_cursor_is_in_the_state_store_of_outlet_assets_where_airflow_has_one(
        self, source: dict[str, Any], destination: str
    ) -> None:
        asset = Asset(f"{destination}-growing")
        stored: list[Any] = []

        def remember(context: Any, result: Any) -> None:
            store = context.get("asset_state_store")
            stored.append(store[asset].get("webcollect_next_offset") if store else None)

        run = land(
            destination,
            source,
            mode="incremental",
            outlets=[asset],
            post_execute=remember,
        )

        assert run.states == {"land": "success"}
        assert stored == [manifest(destination)["next_offset"] if AIRFLOW_V_3_3_PLUS else None]

    def test_a_reset_source_fails_for_good_unless_told_otherwise(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        land(destination, source, mode="incremental")
        sandbox.control.reset_data(source["task_id"])
        sandbox.control.grow(source["task_id"], 20)
        refused = land(destination, source, mode="incremental", **RETRIES)
        again = land(destination, source, mode="incremental", on_reset="full")

        assert (refused.states, refused.tries) == ({"land": "failed"}, {"land": 1})
        assert again.xcoms["land"]["rows"] == 20


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"sources": ["a"], "collection_task_id": "b"}, "collection_task_id"),
        ({"sources": []}, "sources"),
        ({"sources": "a"}, "sources"),
        ({"sources": [{"task": "a"}]}, r"sources\[0\]"),
        ({"sources": [{"collection_task_id": ""}]}, r"sources\[0\].collection_task_id"),
        ({"sources": ["a", "a"]}, r"sources\[0\]"),
        ({"sources": ["a", {"collection_task_id": "a", "lotno": "1"}]}, r"sources\[1\]"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"mode": "append"}, "mode"),
        ({"on_reset": "full"}, "on_reset"),
        ({"skip_if_nothing_new": True}, "skip_if_nothing_new"),
        ({"mode": "incremental", "if_exists": "skip"}, "if_exists"),
        ({"file_format": "xml"}, "file_format"),
        ({"compression": "snappy"}, "compression"),
        ({"columns": []}, "columns"),
        ({"column_types": {"a": "int64"}}, "column_types"),
        ({"sanitize_formulas": True}, "sanitize_formulas"),
        ({"partition": "dt=2026-01-01T00:00:00"}, "partition"),
        ({"redshift_manifest": True}, "redshift_manifest"),
        ({"redshift_manifest": 1, "destination": "s3://b/c"}, "redshift_manifest"),
        (
            {
                "redshift_manifest": True,
                "destination": "s3://b/c",
                "sources": ["a", {"collection_task_id": "b", "destination": "gs://b/c"}],
            },
            "redshift_manifest",
        ),
    ],
)
def test_bad_combinations_fail_while_the_dag_is_parsed(arguments: dict[str, Any], name: str) -> None:
    usual = {"task_id": "land", "destination": "file:///tmp/landed"}
    if "sources" not in arguments:
        usual["collection_task_id"] = "a"
    with make_dag(), pytest.raises(InvalidArgument, match=f"`{name}"):
        WebCollectToObjectStorageOperator(**{**usual, **arguments})
