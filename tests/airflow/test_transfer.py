"""The transfer, as a task of a DAG run: what lands, what a retry and another run make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag, run_tasks
from tests.airflow.landings import RETRIES, land, landed, manifest

if AIRFLOW_V_3_0_PLUS:
    from airflow.sdk.io import attach
else:
    from airflow.io.store import attach

if TYPE_CHECKING:
    from collections.abc import Callable
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
    run = land(destination, source)

    assert run.states == {"land": "success"}
    assert landed(destination) == sandbox.control.true_rows(source["task_id"])
    assert not sandbox.control.task(source["task_id"])["exported"]


def test_the_manifest_names_the_run(source: dict[str, Any], destination: str) -> None:
    run = land(destination, source)
    named = manifest(destination)["run"]

    assert (named["task_id"], named["run_id"], named["map_index"]) == ("land", run.run_id, -1)


def test_one_batch_can_be_landed(sandbox: Sandbox, source: dict[str, Any], destination: str) -> None:
    run = land(destination, source, lotno="000002")

    assert run.xcoms["land"]["rows"] == 150
    assert landed(destination) == sandbox.control.true_rows(source["task_id"], "000002")
    assert manifest(destination)["source"]["lotno"] == "000002"


@pytest.mark.parametrize("native", [True, False])
def test_an_empty_batch_number_means_all(source: dict[str, Any], destination: str, native: bool) -> None:
    run = run_tasks(
        lambda: WebCollectToObjectStorageOperator(
            task_id="land",
            collection_task_id="{{ params.task }}",
            lotno="{{ params.lotno }}",
            destination=destination + "/{{ ds }}",
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
    run_tasks(
        lambda: WebCollectToObjectStorageOperator(task_id="land", destination=destination, **what),
        params={"task": "20260101", "lotno": "20260102", "other": "20260103"},
        render_template_as_native_obj=True,
    )

    (request,) = sandbox.control.requests("/data/lotno/all")
    assert (request["query"]["taskId"], request["query"]["lotno"]) == ("20260101", "20260102")
    if many:
        assert landed(f"{destination}/20260103") == sandbox.control.true_rows("20260103")


def test_a_retry_goes_on_after_what_is_safe(
    sandbox: Sandbox, source: dict[str, Any], destination: str
) -> None:
    # the third page breaks the first try
    sandbox.control.fail("/data/all", after=2, status=400, code="TaskExecuting")
    run = land(destination, source, max_part_bytes=1, **RETRIES)

    assert (run.states, run.tries) == ({"land": "success"}, {"land": 2})
    assert landed(destination) == sandbox.control.true_rows(source["task_id"])
    offsets = [int(request["query"]["offset"]) for request in sandbox.control.requests("/data/all")]
    assert offsets.count(0) == 1


def test_a_retry_after_the_commit_lands_nothing_again(
    sandbox: Sandbox, source: dict[str, Any], destination: str, tmp_path: Path
) -> None:
    sandbox.control.fail("/data/markexported", status=400, code="TaskExecuting")
    run = land(destination, source, mark_exported=True, **RETRIES)

    assert (run.states, run.tries) == ({"land": "success"}, {"land": 2})
    assert len(sandbox.control.requests("/data/all")) == 6
    assert sandbox.control.task(source["task_id"])["exported"]
    assert run.xcoms["land"]["rows"] == 400


class TestAnotherRun:
    def test_it_is_refused_and_not_retried(
        self, source: dict[str, Any], destination: str, said: Callable[[], str]
    ) -> None:
        first = land(destination, source)
        second = land(destination, source, **RETRIES)

        assert (second.states, second.tries) == ({"land": "failed"}, {"land": 1})
        assert f"holds what run {first.run_id} landed; land with mode='incremental'" in said()
        assert manifest(destination)["run"]["run_id"] == first.run_id

    def test_it_may_overwrite(self, sandbox: Sandbox, source: dict[str, Any], destination: str) -> None:
        land(destination, source)
        sandbox.control.grow(source["task_id"], 30)
        second = land(destination, source, if_exists="overwrite")

        assert second.xcoms["land"]["rows"] == 430
        assert manifest(destination)["run"]["run_id"] == second.run_id
        assert landed(destination) == sandbox.control.true_rows(source["task_id"])

    def test_it_may_skip(self, sandbox: Sandbox, source: dict[str, Any], destination: str) -> None:
        first = land(destination, source)
        sandbox.control.grow(source["task_id"], 30)
        second = land(destination, source, if_exists="skip")

        assert second.xcoms["land"]["rows"] == 400
        assert manifest(destination)["run"]["run_id"] == first.run_id


class TestMarkExported:
    def test_it_confirms_after_the_commit(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        land(destination, source, mark_exported=True)

        assert sandbox.control.task(source["task_id"])["exported"]
        paths = [request["endpoint"] for request in sandbox.control.requests()]
        assert paths.index("/data/markexported") > max(
            i for i, path in enumerate(paths) if path == "/data/all"
        )

    def test_it_confirms_nothing_that_did_not_land(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        sandbox.control.fail("/data/all", after=2, status=403, times=None)
        run = land(destination, source, mark_exported=True, **RETRIES)

        assert (run.states, run.tries) == ({"land": "failed"}, {"land": 1})
        assert sandbox.control.requests("/data/markexported") == []


def test_rows_that_come_late_are_waited_for(sandbox: Sandbox, destination: str) -> None:
    sandbox.control.configure(empty_after_finish_seconds=61.5)
    # its run ended a minute ago
    source = sandbox.control.add_task(rows=40, state="Finished")
    run = land(destination, source, settle=10)

    assert run.xcoms["land"]["rows"] == 40


@pytest.mark.parametrize(
    "options",
    [{"mode": "incremental", "settle": 10}, {"mark_exported": True, "settle": 3}],
    ids=["incremental", "marked"],
)
def test_rows_that_come_late_are_waited_for_also_beside_older_batches(
    sandbox: Sandbox, destination: str, options: dict[str, Any]
) -> None:
    source = sandbox.control.add_task(lots=[30], rows=40)
    if "mode" in options:
        land(destination, source, **options)
    sandbox.control.configure(empty_after_finish_seconds=2.5)
    sandbox.control.start_task(source["task_id"])
    # the run has ended a second ago
    sandbox.control.advance(271)
    land(destination, source, **options)

    assert len(landed(destination)) == 70


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
    run = land(ObjectStoragePath(destination), source)

    assert run.xcoms["land"]["destination"] == destination
    assert len(landed(destination)) == 400


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"collection_task_id": ""}, "collection_task_id"),
        ({"lotno": " "}, "lotno"),
        ({"destination": ""}, "destination"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": 1001}, "page_size"),
        ({"max_part_bytes": 0}, "max_part_bytes"),
        ({"settle": -1}, "settle"),
        ({"if_exists": "append"}, "if_exists"),
    ],
)
class TestWrongArguments:
    def test_a_literal_one_fails_while_the_dag_is_parsed(self, arguments: dict[str, Any], name: str) -> None:
        usual = {"task_id": "land", "collection_task_id": "a", "destination": "file:///tmp/landed"}
        with make_dag(), pytest.raises(InvalidArgument, match=name):
            WebCollectToObjectStorageOperator(**{**usual, **arguments})

    def test_a_rendered_one_fails_before_anything_is_sent(
        self, arguments: dict[str, Any], name: str, sandbox: Sandbox, destination: str
    ) -> None:
        conn_id = "{{ 'webcollect_default' }}"
        usual = {"destination": destination, "webcollect_conn_id": conn_id, **RETRIES}
        run = land(**{"collection_task_id": "a", **usual, **arguments})

        assert (run.states, run.tries) == ({"land": "failed"}, {"land": 1})
        assert sandbox.control.requests() == []
