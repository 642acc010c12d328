"""The transfer to tables of Delta Lake: what it lands, reports and refuses, read by their own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import fsspec
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectVerifyLandingOperator,
)
from tests.airflow.dag_runs import run_tasks
from tests.airflow.executions import Task, execute, on_sandbox
from tests.airflow.landings import (
    TABLE,
    Landing,
    attach,
    landed,
    make_transfer,
    reported,
    table_rows,
    transfer,
)

pytestmark = on_sandbox()

GROWING: dict[str, Any] = {**TABLE, "mode": "incremental"}


def files_of(destination: str) -> list[str]:
    """Return the URIs of the files that have the table's rows."""
    return [f"file://{path}" for path in deltalake.DeltaTable(destination).file_uris()]


class TestRows:
    def test_every_row_is_in_the_table_once_and_the_run_in_its_log_and_no_credential(
        self, landing: Landing
    ) -> None:
        run = landing.run(max_part_bytes=1, **TABLE)

        assert landing.table() == landing.truth()
        (commit,) = deltalake.DeltaTable(landing.destination).history()
        assert commit["webcollect.run"].endswith(f".land {run.run_id}")
        assert "token" not in json.dumps(commit, default=str)
        # the result names the table instead of a manifest
        summary = run.xcoms["land"]
        assert sorted(summary["uris"]) == sorted(files_of(landing.destination))
        assert (summary["destination"], summary["manifest"]) == (landing.destination, landing.destination)
        sizes = [Path(uri.removeprefix("file://")).stat().st_size for uri in summary["uris"]]
        assert (summary["rows"], summary["parts"], summary["bytes"]) == (400, 4, sum(sizes))

    @pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.at_night)])
    def test_the_format_may_be_a_template(self, landing: Landing, native: bool) -> None:
        def to(folder: str, kind: str | None) -> str:
            place = f"{landing.destination}/{folder}"
            run_tasks(
                lambda: make_transfer(place, landing.task, table_format="{{ params.kind }}"),
                params={"kind": kind},
                render_template_as_native_obj=native,
            )
            return place

        assert table_rows(to("table", "delta")) == landing.truth()
        # JSON lines are the default of folders, as Parquet is that of tables
        assert landed(to("folder", None if native else "")) == landing.truth()

    def test_a_table_may_be_on_any_storage_that_airflow_has(self, source: Task) -> None:
        attach("memory", fs=fsspec.filesystem("memory"))
        folder = f"memory://{source['task_id']}/prices"
        transfer(folder, source, **TABLE)
        assert read_landing(ObjectStoragePath(folder)).to_arrow().num_rows == 400


def test_the_event_has_the_keys_that_it_has_for_a_folder(source: Task, destination: str) -> None:
    of_folder, of_table = (
        reported(f"{destination}/{name}", source, mode="incremental", file_format="parquet", **options)
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


def test_verify_says_what_has_landed_and_names_damage(source: Task, destination: str) -> None:
    def verify(where: str) -> WebCollectVerifyLandingOperator:
        return WebCollectVerifyLandingOperator(task_id="verify", destination=where)

    run = run_tasks(
        lambda: make_transfer(destination, source, max_part_bytes=1, **TABLE),
        lambda: verify("{{ ti.xcom_pull('land')['manifest'] }}"),
    )
    verified = run.xcoms["verify"]
    assert (verified["destination"], verified["rows"], verified["parts"]) == (destination, 400, 4)

    gone = Path(files_of(destination)[0].removeprefix("file://"))
    gone.unlink()
    with pytest.raises(AirflowFailException, match=f"{gone.name} is missing"):
        execute(verify(destination))
