"""What lineage tools learn, through OpenLineage's own extraction and through Airflow's hook lineage."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    Asset,
    HookLineageCollector,
    TaskInstanceState,
)

from airflow_provider_webcollect.assets import create_asset
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from tests.airflow.executions import execute
from tests.airflow.landings import make_transfer, manifest, transfer

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> HookLineageCollector:
    """The collector that Airflow has where a plugin reads hook lineage."""
    collector = HookLineageCollector()
    monkeypatch.setattr(
        "airflow.providers.common.compat.sdk.get_hook_lineage_collector", lambda: collector, raising=False
    )
    return collector


def extracted(state: str = "success", **arguments: Any) -> Any:
    """Execute the transfer, and return what OpenLineage's extraction finds afterwards."""
    manager = pytest.importorskip("airflow.providers.openlineage.extractors.manager").ExtractorManager()
    operator = make_transfer(**arguments)
    with pytest.raises(AirflowException) if state == "failed" else contextlib.nullcontext():
        execute(operator)
    run, ti = SimpleNamespace(run_id="run"), SimpleNamespace(try_number=1, map_index=-1)
    return manager.extract_metadata(
        run, operator, task_instance_state=TaskInstanceState(state), task_instance=ti
    )


def as_json(datasets: list[Any]) -> list[dict[str, Any]]:
    """Return datasets as OpenLineage sends them."""
    from openlineage.client.serde import Serde

    return [json.loads(Serde.to_json(dataset)) for dataset in datasets]


def names(datasets: list[Any]) -> list[tuple[str, str]]:
    return [(dataset.namespace, dataset.name) for dataset in datasets]


def rows_written(found: Any) -> list[int]:
    return [each["outputFacets"]["outputStatistics"]["rowCount"] for each in as_json(found.outputs)]


class TestOpenLineage:
    @pytest.mark.parametrize("form", [{"file_format": "parquet"}, {"table_format": "delta"}])
    def test_a_task_goes_into_a_folder_or_table_with_schema_and_counts(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str, form: dict[str, str]
    ) -> None:
        types = {"columns": ["title", "price"], "column_types": {"price": "float64"}}
        found = extracted(
            collection_task_id=source["task_id"],
            destination=destination,
            on_cast_error="null",
            **types,
            **form,
        )

        assert names(found.inputs) == [(f"webcollect://{urlsplit(sandbox.url).netloc}", source["task_id"])]
        (folder,) = as_json(found.outputs)
        assert (folder["namespace"], folder["name"]) == ("file", destination.removeprefix("file://"))
        fields = [(field["name"], field["type"]) for field in folder["facets"]["schema"]["fields"]]
        assert fields == [("title", "string"), ("price", "float64")]
        assert rows_written(found) == [400]
        if "file_format" in form:
            written = folder["outputFacets"]["outputStatistics"]
            assert written["size"] == manifest(destination)["bytes"]

    def test_each_of_many_sources_has_a_folder(
        self, sandbox: Sandbox, source: dict[str, Any], tmp_path: Path
    ) -> None:
        other = sandbox.control.add_task(lots=[7])["task_id"]
        found = extracted(
            sources=[{"collection_task_id": source["task_id"], "lotno": "000002"}, other],
            destination=f"file://{tmp_path}",
        )

        assert [name for _, name in names(found.inputs)] == [f"{source['task_id']}/000002", other]
        assert [name for _, name in names(found.outputs)] == [
            f"{tmp_path}/{source['task_id']}/000002",
            f"{tmp_path}/{other}",
        ]
        assert rows_written(found) == [150, 7]
        assert all("schema" not in each["facets"] for each in as_json(found.outputs))

    def test_what_did_not_land_is_not_claimed(self, destination: str) -> None:
        found = extracted("failed", collection_task_id="no-such-task", destination=destination)

        # the listener names the outlets of a task that says nothing else
        folder = ("file", destination.removeprefix("file://"))
        assert (found.inputs, names(found.outputs)) == ([], [folder])
        assert not any(each.get("outputFacets") or each["facets"] for each in as_json(found.outputs))

    def test_of_many_sources_those_that_landed_are_claimed_though_another_failed(
        self, sandbox: Sandbox, source: dict[str, Any], tmp_path: Path
    ) -> None:
        found = extracted(
            "failed", sources=[source["task_id"], "no-such-task"], destination=f"file://{tmp_path}"
        )

        assert [name for _, name in names(found.inputs)] == [source["task_id"]]
        assert rows_written(found) == [400]

    def test_what_another_run_has_landed_is_not_claimed_as_written(
        self, source: dict[str, Any], destination: str
    ) -> None:
        arguments = {"collection_task_id": source["task_id"], "destination": destination}
        transfer(**arguments)
        found = extracted(if_exists="skip", **arguments)

        assert names(found.outputs) == [("file", destination.removeprefix("file://"))]
        assert rows_written(found) == [0]

    def test_an_incremental_landing_has_written_what_was_new(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        arguments = {"collection_task_id": source["task_id"], "destination": destination}
        transfer(**arguments, mode="incremental")
        sandbox.control.grow(source["task_id"], 30)

        for rows in (30, 0):
            assert rows_written(extracted(**arguments, mode="incremental")) == [rows]

    def test_what_a_task_declares_about_collection_tasks_is_understood(self, sandbox: Sandbox) -> None:
        utils = pytest.importorskip("airflow.providers.openlineage.utils.utils")
        for asset in (
            create_asset(collection_task_id="a/b", lotno="7"),
            create_asset(collection_task_id="c"),
        ):
            found = utils.translate_airflow_asset(Asset(asset.uri), None)

            assert found.namespace == f"webcollect://{urlsplit(sandbox.url).netloc}"
            assert found.name in {"a/b/7", "c"}


class TestHookLineage:
    def test_the_transfer_reports_task_and_folder(
        self, collector: HookLineageCollector, source: dict[str, Any], tmp_path: Path
    ) -> None:
        transfer(f"file://{tmp_path}/landed", source, lotno="000002")

        reported = collector.collected_assets
        assert [each.asset.uri for each in reported.inputs] == [
            f"webcollect://webcollect_default/{source['task_id']}/000002"
        ]
        assert [each.asset.uri for each in reported.outputs] == [f"file://{tmp_path}/landed"]

    @pytest.mark.parametrize("name", ["größe", "/".join(["a" * 200] * 16)], ids=["not of ASCII", "long"])
    def test_a_folder_that_can_be_no_asset_lands_all_the_same(
        self, name: str, collector: HookLineageCollector, source: dict[str, Any], tmp_path: Path
    ) -> None:
        transfer(f"file://{tmp_path}/{name}", source)

        assert len(collector.collected_assets.inputs) == 1
        assert collector.collected_assets.outputs == []

    @pytest.mark.parametrize(
        ("read", "lotno"),
        [
            (lambda hook, task: list(hook.iter_rows(task, "000001")), "/000001"),
            (lambda hook, task: hook.read_data(task), ""),
            (lambda hook, task: hook.read_batch_data(task, "000001"), "/000001"),
        ],
        ids=["iter_rows", "read_data", "read_batch_data"],
    )
    def test_what_a_task_of_ones_own_reads_with_the_hook_is_its_input(
        self,
        collector: HookLineageCollector,
        source: dict[str, Any],
        read: Callable[[WebCollectHook, str], Any],
        lotno: str,
    ) -> None:
        read(WebCollectHook(), source["task_id"])

        (reported,) = collector.collected_assets.inputs
        assert reported.asset.uri == f"webcollect://webcollect_default/{source['task_id']}{lotno}"


def test_without_openlineage_everything_works(
    source: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("openlineage", "airflow.providers.openl"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("openlineage", "airflow.providers.openlineage"):
        # an import of it fails now
        monkeypatch.setitem(sys.modules, name, None)

    assert transfer(f"file://{tmp_path}", source)["rows"] == 400
