"""The transfer's arguments: which folders and partitions they name, and the docs' templates."""

from __future__ import annotations

import posixpath
import random
import re
import sys
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AssetAlias
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.landing.errors import ExtraMissing
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.landing.options import check_partition
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag, run_dag, run_tasks
from tests.airflow.executions import Task, execute, on_sandbox
from tests.airflow.landings import GROWING, Landing, make_transfer, manifest, transfer

pytestmark = on_sandbox()

DAY = "{{ (dag_run.data_interval_end or dag_run.run_after) | ds }}"
RUN = "{{ run_id | replace(':', '') | replace('+', '_') }}"
#: Schedules, and arguments of `run_dag`: on a schedule and, on Airflow 3, without a logical date.
STARTS: list[Any] = [pytest.param("@daily", {}, id="scheduled")]
if AIRFLOW_V_3_0_PLUS:
    # as a person or an asset event starts it
    STARTS.append(pytest.param(None, {"logical_date": None}, id="without a logical date"))
needs_partitions = pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="it has no partitions of assets")


@pytest.mark.skipif(AIRFLOW_V_3_0_PLUS, reason="it takes lists from an alias")
def test_airflow_2_is_not_given_an_alias() -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=r"`outlets.* requires Airflow 3\.0"):
        make_transfer("s3://bucket/prices", {"task_id": "t"}, outlets=[AssetAlias("prices")])


def test_a_missing_extra_is_named_while_the_dag_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    checks = {"columns": {"price": {"pattern": r"\d+"}}}
    with make_dag(), pytest.raises(ExtraMissing, match=r"webcollect\[patterns\]$"):
        make_transfer("s3://bucket/prices", {"task_id": "t"}, checks=checks)


class TestAssetPartition:
    """It is usually a template; what else it requires is checked when the DAG is parsed."""

    LITERAL, TEMPLATED = "s3://bucket/prices", "s3://bucket/{{ run_id }}"

    @pytest.mark.skipif(AIRFLOW_V_3_3_PLUS, reason="it has partitions of assets")
    def test_an_older_airflow_is_named_while_the_dag_is_parsed(self) -> None:
        with make_dag(), pytest.raises(InvalidArgument, match=r"`asset_partition.* requires Airflow 3.3"):
            make_transfer(self.LITERAL, {"task_id": "t"}, asset_partition="{{ ds }}")

    @needs_partitions
    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ({"destination": TEMPLATED}, "set `outlets`"),
            ({"destination": TEMPLATED, "asset_partition": "2026-01-01"}, "set `outlets`"),
            ({"destination": TEMPLATED, "outlets": [AssetAlias("prices")]}, "set `outlets`"),
            ({**GROWING, "skip_if_nothing_new": True}, "skip_if_nothing_new"),
            ({"asset_partition": ""}, "non-empty"),
            ({"asset_partition": " \n"}, "non-empty"),
            ({"asset_partition": "x" * 251}, "at most 250 characters, not 251"),
        ],
    )
    def test_what_cannot_have_it_fails_parsing(self, arguments: dict[str, Any], problem: str) -> None:
        usual = {"destination": self.LITERAL, "asset_partition": "{{ ds }}"}
        with make_dag(), pytest.raises(InvalidArgument, match=f"`asset_partition.*{problem}"):
            make_transfer(source={"task_id": "t"}, **{**usual, **arguments})

    @needs_partitions
    @pytest.mark.parametrize("rendered", ["", " ", "x" * 251])
    def test_a_wrong_key_sends_nothing(self, sandbox: Sandbox, destination: str, rendered: str) -> None:
        with pytest.raises(AirflowFailException, match="`asset_partition"):
            transfer(destination, {"task_id": "t"}, asset_partition=f"{{{{ '{rendered}' }}}}")
        assert sandbox.control.requests() == []

    @needs_partitions
    def test_a_mapped_task_without_outlets_fails(self, sandbox: Sandbox, destination: str) -> None:
        def mapped() -> object:
            usual = {"task_id": "land", "destination": destination, "asset_partition": "2026-01-01"}
            return WebCollectToObjectStorageOperator.partial(**usual).expand(collection_task_id=["t"])

        assert run_tasks(mapped).states == {"land[0]": "failed"}
        assert sandbox.control.requests() == []


@pytest.mark.parametrize("seed", range(5))
def test_folders_in_one_another_are_named_in_any_order(seed: int) -> None:
    sources = [
        {"collection_task_id": "a", "destination": "s3://b/prices"},
        {"collection_task_id": "b", "destination": "s3://b/prices/old/"},
        *({"collection_task_id": f"c{number}"} for number in range(20)),
        # sorts between the two
        {"collection_task_id": "d", "destination": "s3://b/prices-old"},
    ]
    random.Random(seed).shuffle(sources)
    tasks = [source["collection_task_id"] for source in sources]
    rule = (
        f"its folder must not be in the folder of sources[{tasks.index('a')}]; give one its own `destination`"
    )
    with pytest.raises(InvalidArgument) as refused:
        sourced(sources)

    expected = InvalidArgument(f"sources[{tasks.index('b')}]", "s3://b/prices/old/", rule)
    assert str(refused.value) == str(expected)


def sourced(sources: list[Any]) -> None:
    """Check sources as parsing a DAG does."""
    WebCollectToObjectStorageOperator(task_id="land", sources=sources, destination="s3://b/others")


def test_a_source_may_name_a_connection_of_its_own() -> None:
    WebCollectToObjectStorageOperator(
        task_id="land",
        sources=["a", {"collection_task_id": "b", "destination": "s3://minio@b/own"}],
        destination="s3://b/all",
        object_storage_conn_id="storage",
    )


def test_a_source_may_have_none_of_an_option(sandbox: Sandbox, destination: str) -> None:
    rows = [{"url": "a", "price": "1"}]
    task = sandbox.control.add_task(rows=rows, lots=[1])["task_id"]
    of_all: dict[str, Any] = {"columns": ["url"], "checks": {"rows": {"min": 100}}, "partition": "dt=1"}
    own = dict.fromkeys(of_all)
    execute(make_transfer(destination, sources=[{"collection_task_id": task, **own}], **of_all))
    landed = read_landing(f"{destination}/{task}")
    assert list(landed.iter_rows()) == rows
    assert not landed.manifest.parts[0].name.startswith("dt=")


def test_whole_runs_may_be_compared_by_a_column_that_is_made(sandbox: Sandbox, destination: str) -> None:
    task = sandbox.control.add_task(rows=[{"link": "/1"}, {"link": "/2"}], lots=[2])["task_id"]
    link = {"type": "url", "from": "link", "base": "https://shop.example/"}
    options = {"columns": ["link"], "column_types": {"url": link}, "whole_runs_key": "url"}
    result = execute(make_transfer(destination, {"task_id": task}, mode="incremental", **options))
    assert result["changes"] == {"new": 2, "changed": 0, "gone": 0}


def test_each_source_lands_with_its_own_options(sandbox: Sandbox, destination: str) -> None:
    rows = [{"url": url, "price": "3.5"} for url in ("a", "b")]
    tasks = [sandbox.control.add_task(rows=rows, lots=[2])["task_id"] for _ in range(2)]
    typed = {"file_format": "parquet", "column_types": {"price": "float64"}, "whole_runs_key": "url"}
    sources = [tasks[0], {"collection_task_id": tasks[1], **typed}]
    result = execute(make_transfer(destination, sources=sources, mode="incremental"))
    formats = [read_landing(f"{destination}/{task}").manifest.format for task in tasks]
    assert formats == ["jsonl", "parquet"]
    changes = [facts.get("changes") for facts in result["sources"]]
    assert changes == [None, {"new": 2, "changed": 0, "gone": 0}]
    assert read_landing(f"{destination}/{tasks[1]}").to_arrow()["price"].to_pylist() == [3.5, 3.5]


@pytest.mark.at_night
def test_fifty_thousand_sources_can_be_checked() -> None:
    # comparing each with each would exceed the time limit of a test
    sourced([str(number) for number in range(50_000)])


def test_names_of_folders_are_safe_and_stay_different() -> None:
    names = {"a-B_1.2": "a-B_1.2", "a/b": "a~2fb", "..": "~2e~2e", "~2f": "~7e2f", "ä": "~c3~a4"}
    folder = Location.parse("destination", "s3://b")
    assert {name: folder.child("sources", name).key for name in names} == names


class TestNamesOfPartitions:
    @pytest.mark.parametrize(
        ("given", "partition"),
        [
            *((name, name) for name in ("dt=2026-01-01", "dt=2026-01-01/hour=07", "a.b-c_d=E")),
            ("d=20260101T000000", "d=20260101T000000"),
            # the line end of a template
            ("dt=1\n", "dt=1"),
            (None, None),
            ("", None),
        ],
    )
    def test_names_of_folders_are_taken(self, given: str | None, partition: str | None) -> None:
        assert check_partition("partition", given) == partition

    @pytest.mark.parametrize(
        "partition",
        [
            *("2026/01/01", "dt=", 20260101, "/", "dt=1/", "/dt=1", "a//b", ".", "..", "a/..", "../a", "..."),
            *("_dt=1", ".dt=1", "a/_b"),
            *("dt=2026-01-01T00:00:00", "run=a+b", "dt=1 2", "a\\b", "größe", "dt=1\n2", "a::b", "dt=*", " "),
            *(["dt=1"], 1.5, True),
            # a reader would find only one of the two columns
            *("dt=1/dt=2", "dt=1/hour=7/DT=2"),
        ],
    )
    def test_what_a_reader_might_not_find_is_refused(self, partition: object) -> None:
        with pytest.raises(InvalidArgument, match="`partition`"):
            check_partition("partition", partition)


def folders(destination: str) -> list[str]:
    """Return the folders of the parts, in the order of the parts."""
    return [posixpath.dirname(part["name"]) for part in manifest(destination)["parts"]]


def test_each_run_has_a_folder_for_its_new_parts(landing: Landing) -> None:
    days = ["dt=2026-01-01", "dt=2026-01-02", "dt=2026-01-02", ""]
    for day in days:
        summary = landing.transfer(partition=day, **GROWING)
        landing.grow()

    assert folders(landing.destination) == days
    assert landing.rows() == landing.truth()[:490]
    assert summary["uris"] == [f"{landing.destination}/{landing.manifest()['parts'][-1]['name']}"]


@pytest.mark.parametrize("partition", ["dt=2026-01-01/hour=07", "batch=7"])
def test_the_next_run_knows_the_files_as_its_own(landing: Landing, partition: str) -> None:
    # the first try leaves parts that nothing lists yet
    landing.control.fail("/data/all", after=2, status=400, code="TaskExecuting")
    with pytest.raises(WebCollectError):
        landing.transfer(partition=partition, max_part_bytes=1, **GROWING)
    landing.transfer(partition=partition, **GROWING)
    assert set(folders(landing.destination)) == {partition}
    assert landing.rows() == landing.truth()


@pytest.mark.by_day(2)
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("schedule", "when"), STARTS)
def test_the_templates_of_the_docs_name_it_for_any_run(
    source: Task, destination: str, schedule: str | None, when: dict[str, Any], native: bool
) -> None:
    with make_dag(schedule=schedule, render_template_as_native_obj=native) as dag:
        make_transfer(f"{destination}/{RUN}", source, partition=f"dt={DAY}")
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
    assert DAY in (docs / "docs/guides/collect-and-land-on-a-schedule.md").read_text()


def test_sources_may_be_an_iterator_of_a_native_template(sandbox: Sandbox, destination: str) -> None:
    tasks = [sandbox.control.add_task(lots=[2])["task_id"] for _ in range(2)]
    operator: Any = make_transfer(destination, sources="{{ ids | map('trim') }}")
    # as Airflow renders it in a DAG with `render_template_as_native_obj`
    operator.sources = map(str.strip, tasks)
    assert execute(operator)["rows"] == 4
