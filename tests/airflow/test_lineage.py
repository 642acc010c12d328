"""What lineage tools learn, through OpenLineage's own extraction and through Airflow's hook lineage."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
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
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.transfers.landing_to_warehouse import WebCollectLoadOperator
from tests.airflow.executions import Task, execute, on_sandbox
from tests.airflow.landings import GROWING, TABLE, Landing, make_transfer, transfer

pytestmark = on_sandbox()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> HookLineageCollector:
    """The collector that Airflow uses if a plugin reads hook lineage."""
    collector = HookLineageCollector()
    where = "airflow.providers.common.compat.sdk.get_hook_lineage_collector"
    monkeypatch.setattr(where, lambda: collector, raising=False)
    return collector


def executed(operator: Any, state: str = "success") -> Any:
    """Execute an operator, and return what OpenLineage's extraction finds."""
    manager = pytest.importorskip("airflow.providers.openlineage.extractors.manager").ExtractorManager()
    with pytest.raises(AirflowException) if state == "failed" else contextlib.nullcontext():
        execute(operator)
    run, ti = SimpleNamespace(run_id="run"), SimpleNamespace(try_number=1, map_index=-1)
    ended = TaskInstanceState(state)
    return manager.extract_metadata(run, operator, task_instance_state=ended, task_instance=ti)


class Extracted:
    """What OpenLineage's extraction finds after the transfer has been executed."""

    def __init__(self, landing: Landing, state: str = "success", **arguments: Any) -> None:
        source = None if "sources" in arguments else landing.task
        lineage = executed(make_transfer(landing.destination, source, **arguments), state)
        from openlineage.client.serde import Serde

        self.inputs = [(dataset.namespace, dataset.name) for dataset in lineage.inputs]
        self.outputs = [(dataset.namespace, dataset.name) for dataset in lineage.outputs]
        #: The outputs and the inputs, as OpenLineage sends them.
        self.sent: list[dict[str, Any]] = [json.loads(Serde.to_json(dataset)) for dataset in lineage.outputs]
        self.read: list[dict[str, Any]] = [json.loads(Serde.to_json(dataset)) for dataset in lineage.inputs]

    def rows_written(self) -> list[int]:
        return [dataset["outputFacets"]["outputStatistics"]["rowCount"] for dataset in self.sent]


class TestOpenLineage:
    @pytest.mark.parametrize("form", [{"file_format": "parquet"}, TABLE])
    def test_a_folder_or_table_has_its_schema_and_row_count(
        self, landing: Landing, folder: tuple[str, str], form: dict[str, str]
    ) -> None:
        types: dict[str, Any] = {"columns": ["title", "price"], "column_types": {"price": "float64"}}
        extracted = Extracted(landing, on_cast_error="null", **types, **form)

        netloc = urlsplit(landing.sandbox.url).netloc
        assert extracted.inputs == [(f"webcollect://{netloc}", landing.task_id)]
        assert extracted.outputs == [folder]
        (sent,) = extracted.sent
        fields = [(field["name"], field["type"]) for field in sent["facets"]["schema"]["fields"]]
        assert fields == [("title", "string"), ("price", "float64")]
        assert extracted.rows_written() == [400]
        if "file_format" in form:
            assert sent["outputFacets"]["outputStatistics"]["size"] == landing.manifest()["bytes"]

    @pytest.fixture
    def folder(self, destination: str) -> tuple[str, str]:
        """The namespace and the name of the destination."""
        return "file", destination.removeprefix("file://")

    def test_each_of_many_sources_has_a_folder(self, landing: Landing, folder: tuple[str, str]) -> None:
        other = landing.control.add_task(lots=[7])["task_id"]
        batch = {"collection_task_id": landing.task_id, "lotno": "000002"}
        called = {landing.task_id: "Shop {search}"}
        extracted = Extracted(landing, sources=[batch, other], collection_task_names=called)

        names = [f"{landing.task_id}/000002", other]
        assert [name for _, name in extracted.inputs] == names
        assert [name for _, name in extracted.outputs] == [f"{folder[1]}/{name}" for name in names]
        assert extracted.rows_written() == [150, 7]
        assert all({*dataset["facets"]} - {"documentation"} == {"version"} for dataset in extracted.sent)
        for sent in (extracted.read, extracted.sent):
            told = [dataset["facets"].get("documentation", {}).get("description") for dataset in sent]
            assert told == ["Shop {search}", None]

    def test_what_did_not_land_is_not_claimed(self, landing: Landing, folder: tuple[str, str]) -> None:
        extracted = Extracted(landing, "failed", collection_task_id="no-such-task")

        # if a task reports no datasets, the listener names its outlets
        assert (extracted.inputs, extracted.outputs) == ([], [folder])
        assert not any(dataset.get("outputFacets") or dataset["facets"] for dataset in extracted.sent)
        # of many sources, only those that landed are claimed
        extracted = Extracted(landing, "failed", sources=[landing.task_id, "no-such-task"])
        assert [name for _, name in extracted.inputs] == [landing.task_id]
        assert extracted.rows_written() == [400]

    def test_what_another_run_landed_is_not_claimed(self, landing: Landing, folder: tuple[str, str]) -> None:
        landing.transfer()
        extracted = Extracted(landing, if_exists="skip")
        assert (extracted.outputs, extracted.rows_written()) == ([folder], [0])

    def test_an_incremental_landing_has_written_what_was_new(self, landing: Landing) -> None:
        landing.transfer(**GROWING)
        landing.grow()
        for rows in (30, 0):
            assert Extracted(landing, **GROWING).rows_written() == [rows]

    @pytest.mark.parametrize("form", [{}, TABLE], ids=["folder", "table"])
    @pytest.mark.usefixtures("database")
    def test_the_version_is_the_commit_that_landed_or_was_loaded(
        self, landing: Landing, folder: tuple[str, str], form: dict[str, str]
    ) -> None:
        names: dict[str, Any] = {"warehouse_conn_id": "warehouse", "table": "shop.prices"}
        for version in ("1", "2"):
            (sent,) = Extracted(landing, **GROWING, **form).sent
            assert sent["facets"]["version"]["datasetVersion"] == version

            loaded = executed(WebCollectLoadOperator(task_id="load", landing=landing.destination, **names))
            (read,) = loaded.inputs
            assert (read.namespace, read.name) == folder
            assert read.facets["version"].datasetVersion == version
            landing.grow()

    def test_a_failed_load_has_read_nothing(self, destination: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "mysql"}))
        names: dict[str, Any] = {"warehouse_conn_id": "warehouse", "table": "shop.prices"}
        operator = WebCollectLoadOperator(task_id="load", landing=destination, **names)
        assert executed(operator, "failed").inputs == []

    @pytest.mark.parametrize(("state", "way"), [("failed", "fail"), ("success", "warn")])
    def test_what_checks_found_is_told_of_the_source(self, landing: Landing, state: str, way: str) -> None:
        landing.control.change_rows(landing.task_id, "price", "empty", from_row=0)
        checks = {"rows": {"min": 10}, "columns": {"price": {"filled": 0.95}}}
        extracted = Extracted(landing, state, checks=checks, on_failed_checks=way)

        facets = extracted.read[0]["inputFacets"]
        assertions = facets["dataQualityAssertions"]["assertions"]
        assert [(check["assertion"], check["success"], check.get("column")) for check in assertions] == [
            ("rows.min", True, None),
            ("columns.price.filled", False, "price"),
        ]
        assert len(extracted.outputs) == (0 if state == "failed" else 1)
        assert ("dataQualityMetrics" in facets) is (state == "success")
        if state == "success":
            assert facets["dataQualityMetrics"]["rowCount"] == 400
            assert facets["dataQualityMetrics"]["columnMetrics"]["price"]["count"] == 0

    def test_openlineage_translates_assets_of_collection_tasks(self, sandbox: Sandbox) -> None:
        utils = pytest.importorskip("airflow.providers.openlineage.utils.utils")
        batch = create_asset(collection_task_id="a/b", lotno="7")
        for asset, name in ((batch, "a/b/7"), (create_asset(collection_task_id="c"), "c")):
            dataset = utils.translate_airflow_asset(Asset(asset.uri), None)
            assert dataset.namespace == f"webcollect://{urlsplit(sandbox.url).netloc}"
            assert dataset.name == name


class TestHookLineage:
    def test_the_transfer_is_reported(self, collector: HookLineageCollector, landing: Landing) -> None:
        landing.transfer(lotno="000002", collection_task_names={landing.task_id: "Prices"})
        reported = collector.collected_assets
        assert [info.asset.extra for info in reported.inputs] == [{"collection_task_name": "Prices"}]
        task = f"webcollect://webcollect_default/{landing.task_id}/000002"
        assert [info.asset.uri for info in reported.inputs] == [task]
        assert [info.asset.uri for info in reported.outputs] == [landing.destination]

    @pytest.mark.parametrize("name", ["größe", "/".join(["a" * 200] * 16)], ids=["not of ASCII", "long"])
    def test_a_folder_that_can_be_no_asset_lands_all_the_same(
        self, name: str, collector: HookLineageCollector, source: Task, tmp_path: Path
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
    def test_what_a_task_reads_with_the_hook_is_its_input(
        self, collector: HookLineageCollector, source: Task, read: Callable[..., Any], lotno: str
    ) -> None:
        read(WebCollectHook(), source["task_id"])
        (reported,) = collector.collected_assets.inputs
        assert reported.asset.uri == f"webcollect://webcollect_default/{source['task_id']}{lotno}"


def test_it_works_without_openlineage(source: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("openlineage", "airflow.providers.openl"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("openlineage", "airflow.providers.openlineage"):
        # makes imports of it fail
        monkeypatch.setitem(sys.modules, name, None)
    assert transfer(f"file://{tmp_path}", source)["rows"] == 400
