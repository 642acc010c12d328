"""The transfer: what lands, and what a retry and another run make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    ObjectStoragePath,
)

from airflow_provider_webcollect.service.pauses import Stop
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag, run_tasks
from tests.airflow.executions import execute
from tests.airflow.landings import RETRIES, attach, land, landed, make_transfer, manifest, transfer

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


@pytest.mark.parametrize("place", ["file", "memory"])
def test_every_row_lands_once(place: str, sandbox: Sandbox, source: dict[str, Any], destination: str) -> None:
    if place == "memory":
        attach("memory", fs=fsspec.filesystem("memory"))
        destination = f"memory://{source['task_id']}/landed"
    transfer(destination, source)

    assert landed(destination) == sandbox.control.true_rows(source["task_id"])
    assert not sandbox.control.task(source["task_id"])["exported"]


def test_the_manifest_names_the_run(source: dict[str, Any], destination: str) -> None:
    run = land(destination, source)
    named = manifest(destination)["run"]

    assert (named["task_id"], named["run_id"], named["map_index"]) == ("land", run.run_id, -1)
    assert run.xcoms["land"]["rows"] == 400


def test_one_batch_can_be_landed(sandbox: Sandbox, source: dict[str, Any], destination: str) -> None:
    summary = transfer(destination, source, lotno="000002")

    assert summary["rows"] == 150
    assert landed(destination) == sandbox.control.true_rows(source["task_id"], "000002")
    assert manifest(destination)["source"]["lotno"] == "000002"


@pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.at_night)])
def test_an_empty_batch_number_means_all(source: dict[str, Any], destination: str, native: bool) -> None:
    run = run_tasks(
        lambda: make_transfer(
            destination + "/{{ ds }}", collection_task_id="{{ params.task }}", lotno="{{ params.lotno }}"
        ),
        params={"lotno": "", "task": source["task_id"]},
        render_template_as_native_obj=native,
    )

    assert run.xcoms["land"]["rows"] == 400


@pytest.mark.parametrize("many", [False, True])
def test_ids_of_digits_survive_native_rendering(sandbox: Sandbox, destination: str, many: bool) -> None:
    sandbox.control.add_task(task_id="20260103", lots=[5])
    source = {"collection_task_id": "{{ params.task }}", "lotno": "{{ params.lotno }}"}
    what: dict[str, Any] = {"sources": [source, "{{ params.other }}"]} if many else source
    with make_dag(render_template_as_native_obj=True):
        operator = make_transfer(destination, **what)
    # the first of them is not there
    with pytest.raises(AirflowFailException):
        execute(operator, params={"task": "20260101", "lotno": "20260102", "other": "20260103"})

    (request,) = sandbox.control.requests("/data/lotno/all")
    assert (request["query"]["taskId"], request["query"]["lotno"]) == ("20260101", "20260102")
    if many:
        assert landed(f"{destination}/20260103") == sandbox.control.true_rows("20260103")


def test_it_can_be_mapped(sandbox: Sandbox, tmp_path: Path) -> None:
    tasks = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 7)]
    run = run_tasks(
        lambda: WebCollectToObjectStorageOperator.partial(task_id="land").expand_kwargs(
            [{"collection_task_id": task, "destination": f"file://{tmp_path}/{task}"} for task in tasks]
        )
    )

    assert [run.xcoms[f"land[{index}]"]["rows"] for index in range(2)] == [5, 7]
    assert manifest(f"file://{tmp_path}/{tasks[1]}")["run"]["map_index"] == 1


def test_a_destination_may_be_an_object_storage_path(source: dict[str, Any], destination: str) -> None:
    summary = transfer(ObjectStoragePath(destination), source)

    assert summary["destination"] == destination
    assert len(landed(destination)) == 400


class TestRetries:
    def test_a_retry_goes_on_after_what_is_safe(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        # the third page breaks the first try
        sandbox.control.fail("/data/all", after=2, status=400, code="TaskExecuting")
        run = land(destination, source, max_part_bytes=1, **RETRIES)

        assert (run.states, run.tries) == ({"land": "success"}, {"land": 2})
        assert landed(destination) == sandbox.control.true_rows(source["task_id"])
        offsets = [int(request["query"]["offset"]) for request in sandbox.control.requests("/data/all")]
        # the retry reads the first page again at the end
        assert [offset for offset in offsets if not offset] == [offsets[0], offsets[-1]]


class TestAnotherRun:
    def test_it_is_refused_and_not_retried(self, source: dict[str, Any], destination: str) -> None:
        transfer(destination, source, run_id="first")
        with pytest.raises(
            AirflowFailException, match=r"holds what run first of .* landed; land with mode='incremental'"
        ):
            transfer(destination, source)

        assert manifest(destination)["run"]["run_id"] == "first"


class TestMarkExported:
    def test_it_confirms_after_the_commit(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        transfer(destination, source, mark_exported=True)

        assert sandbox.control.task(source["task_id"])["exported"]
        paths = [request["endpoint"] for request in sandbox.control.requests()]
        assert paths.index("/data/markexported") > max(
            i for i, path in enumerate(paths) if path == "/data/all"
        )


class TestRowsThatComeLate:
    pytestmark = pytest.mark.webcollect_sandbox(speed=1e-9)

    @pytest.fixture(autouse=True)
    def passing_time(self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pauses take no time, but for the service."""

        def sleep(stop: Stop, seconds: float) -> None:
            stop.check()
            sandbox.control.advance(seconds)

        monkeypatch.setattr(Stop, "sleep", sleep)

    def test_they_are_waited_for(self, sandbox: Sandbox, destination: str) -> None:
        sandbox.control.configure(empty_after_finish_seconds=61.5)
        # its run ended a minute ago
        source = sandbox.control.add_task(rows=40, state="Finished")

        assert transfer(destination, source, late_rows_delay=10)["rows"] == 40


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
        assert transfer(destination, source, **options)["rows"] == 400
        written = manifest(destination)
        assert written["format"] == options["file_format"]
        if "columns" in options:
            assert written["columns"] == options["columns"]

    def test_an_empty_compression_means_the_usual_one(self, source: dict[str, Any], destination: str) -> None:
        transfer(destination, source, compression="{{ '' }}")

        assert manifest(destination)["compression"] is None


class TestManySources:
    def test_each_has_a_folder_of_its_own(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, tmp_path: Path
    ) -> None:
        others = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 7)]
        own = f"file://{tmp_path}/elsewhere"
        summary = transfer(
            destination,
            sources=[
                {"collection_task_id": source["task_id"], "lotno": "000002"},
                others[0],
                {"collection_task_id": others[1], "destination": own},
            ],
        )

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
        transfer(destination, tries=2, sources=tasks, max_concurrency=1)

        read = [request["query"]["taskId"] for request in sandbox.control.requests("/data/all")]
        assert read == [*tasks, tasks[2]]
        assert all(landed(f"{destination}/{task}") == sandbox.control.true_rows(task) for task in tasks)

    def test_those_without_new_rows_wait_for_late_ones_together(
        self, sandbox: Sandbox, destination: str
    ) -> None:
        tasks = [sandbox.control.add_task(lots=[10])["task_id"] for _ in range(4)]
        options = {"sources": tasks, "mode": "incremental", "max_concurrency": 1}
        transfer(destination, run_id="first", **options)
        sandbox.control.clear_requests()
        transfer(destination, run_id="second", late_rows_delay=0.3, **options)

        read = [request["query"]["taskId"] for request in sandbox.control.requests("/data/all")]
        # who waits reads a second time; after the first has waited, the time is over for the others
        assert [read.count(task) for task in tasks[1:]] == [1, 1, 1]

    def test_if_all_failures_are_permanent_there_is_no_retry_and_all_are_named(
        self, sandbox: Sandbox, destination: str
    ) -> None:
        good = sandbox.control.add_task(lots=[10])["task_id"]
        with pytest.raises(AirflowFailException, match="2 of 3 sources did not land") as failed:
            transfer(destination, sources=[good, "no-such-1", "no-such-2"])

        assert landed(f"{destination}/{good}") == sandbox.control.true_rows(good)
        assert "task no-such-1 to" in str(failed.value)
        assert "task no-such-2 to" in str(failed.value)


class TestGrowing:
    def test_a_later_run_adds_what_is_new(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        summaries = [transfer(destination, source, mode="incremental")]
        sandbox.control.grow(source["task_id"], 30)
        summaries += [transfer(destination, source, mode="incremental") for _ in range(2)]
        with pytest.raises(AirflowSkipException):
            transfer(destination, source, mode="incremental", skip_if_nothing_new=True)

        facts = [(summary["rows"], summary["total_rows"]) for summary in summaries]
        assert facts == [(400, 400), (30, 430), (0, 430)]
        assert landed(destination) == sandbox.control.true_rows(source["task_id"])

    def test_a_reset_source_fails_for_good_unless_told_otherwise(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        transfer(destination, source, mode="incremental")
        sandbox.control.reset_data(source["task_id"])
        sandbox.control.grow(source["task_id"], 20)
        with pytest.raises(AirflowFailException):
            transfer(destination, source, mode="incremental")

        assert transfer(destination, source, mode="incremental", on_reset="full")["rows"] == 20
