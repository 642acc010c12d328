"""A run's new parts in a folder of their own, and templates that name it whatever has started the run."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pendulum
import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.landings import RETRIES, land, landed, manifest

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

DAY = "{{ (dag_run.data_interval_end or dag_run.run_after) | ds }}"
RUN = "{{ run_id | replace(':', '') | replace('+', '_') }}"
#: What starts runs: on a schedule, and, where Airflow has that, without a logical date.
STARTS: list[Any] = [pytest.param("@daily", {}, id="scheduled")]
if AIRFLOW_V_3_0_PLUS:
    # as a person's or an asset's event does
    STARTS.append(pytest.param(None, {"logical_date": None}, id="without a logical date"))


def folders(destination: str) -> list[str]:
    """Return the folders of the parts, in the order of the parts."""
    return [posixpath.dirname(part["name"]) for part in manifest(destination)["parts"]]


def test_each_run_has_a_folder_for_its_new_parts(
    sandbox: Sandbox, source: dict[str, Any], destination: str
) -> None:
    for day in ("dt=2026-01-01", "dt=2026-01-02", "dt=2026-01-02", ""):
        run = land(destination, source, mode="incremental", partition=day)
        sandbox.control.grow(source["task_id"], 30)

    assert folders(destination) == ["dt=2026-01-01", "dt=2026-01-02", "dt=2026-01-02", ""]
    assert landed(destination) == sandbox.control.true_rows(source["task_id"])[:490]
    assert run.xcoms["land"]["uris"] == [f"{destination}/{manifest(destination)['parts'][-1]['name']}"]


@pytest.mark.parametrize("partition", ["dt=2026-01-01/hour=07", "batch=7"])
def test_the_next_run_knows_the_files_as_its_own(
    sandbox: Sandbox, source: dict[str, Any], destination: str, partition: str
) -> None:
    # the first try leaves parts that nothing lists yet
    sandbox.control.fail("/data/all", after=2, status=400, code="TaskExecuting")
    land(destination, source, mode="incremental", partition=partition, max_part_bytes=1)
    run = land(destination, source, mode="incremental", partition=partition, **RETRIES)

    assert run.states == {"land": "success"}
    assert set(folders(destination)) == {partition}
    assert landed(destination) == sandbox.control.true_rows(source["task_id"])


def test_many_sources_have_it_each(sandbox: Sandbox, destination: str) -> None:
    tasks = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 7)]
    summary = land(destination, sources=tasks, partition="dt=2026-01-01").xcoms["land"]

    assert [uri.rpartition("/part-")[0] for uri in summary["uris"]] == [
        f"{destination}/{task}/dt=2026-01-01" for task in tasks
    ]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("schedule", "when"), STARTS)
def test_the_templates_of_the_docs_name_it_whatever_has_started_the_run(
    source: dict[str, Any], destination: str, schedule: str | None, when: dict[str, Any], native: bool
) -> None:
    with make_dag(schedule=schedule, render_template_as_native_obj=native) as dag:
        WebCollectToObjectStorageOperator(
            task_id="land",
            collection_task_id=source["task_id"],
            destination=f"{destination}/{RUN}",
            partition=f"dt={DAY}",
        )
    run = run_dag(dag, **when)

    place = run.xcoms["land"]["destination"]
    assert re.fullmatch(r"manual__[A-Za-z0-9._-]+", place.removeprefix(f"{destination}/"))
    (folder,) = set(folders(place))
    day = pendulum.parse(folder.removeprefix("dt="))
    assert isinstance(day, pendulum.DateTime)
    assert abs((pendulum.now("UTC") - day).in_days()) <= 1


def test_the_docs_have_these_templates() -> None:
    docs = Path(__file__).parents[2]
    guide = (docs / "docs/reference/landing.md").read_text()

    assert DAY in guide
    assert RUN in guide
    assert DAY in (docs / "README.md").read_text()
