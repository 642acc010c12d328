"""`LandedData.to_dlt` in users' own pipelines: into DuckDB, and into Delta Lake by dlt's filesystem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlt
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from dlt import Pipeline

from airflow_provider_webcollect.landing.errors import LoadRefused
from airflow_provider_webcollect.landing.read.loading import PART, ROW
from airflow_provider_webcollect.landing.storage import causes_of
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.loading.databases import Database, Landing, product, products


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have dlt send no telemetry, and import no Airflow."""
    for name in ("RUNTIME__DLTHUB_TELEMETRY", "ENABLE_RUNTIME_TRACE", "PROVIDERS__ENABLE_AIRFLOW_SECRETS"):
        monkeypatch.setenv(name, "false")


def pipeline(folder: Path, destination: Any, dataset: str = "shop") -> Pipeline:
    return dlt.pipeline("own", pipelines_dir=str(folder), destination=destination, dataset_name=dataset)


@pytest.fixture
def in_delta(tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline into Delta Lake tables."""
    own = pipeline(tmp_path / "pipelines", dlt.destinations.filesystem(f"file://{tmp_path}/lake"))
    yield own
    if own.is_active:
        own.deactivate()


def rows_of(tmp_path: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of the Delta table, in the order of the landing."""
    names = ", ".join(columns)
    table = QueryBuilder().register("prices", DeltaTable(f"{tmp_path}/lake/shop/prices"))
    result = pa.table(table.execute(f"select {names} from prices order by {ROW}").read_all())
    return [tuple(row.values()) for row in result.to_pylist()]


def test_a_users_pipeline_loads_what_is_new(landing: Landing, in_duckdb: Database, tmp_path: Path) -> None:
    in_duckdb.table = "shop.offers"
    landing.land(*products(0, 7))
    for machine in ("one", "two"):
        own = pipeline(tmp_path / machine, dlt.destinations.duckdb(in_duckdb.address.replace("shop", "own")))
        own.run(landing.read().to_dlt(name="offers"))
        own.deactivate()
        landing.land(product(len(landing.source)))
    in_duckdb.address = in_duckdb.address.replace("shop", "own")
    assert in_duckdb.rows("n") == [(row["n"],) for row in landing.source[:8]]


def test_delta_lake_gets_each_part_once(landing: Landing, in_delta: Pipeline, tmp_path: Path) -> None:
    landing.land(*products(0, 7))
    for _ in range(2):
        in_delta.run(landing.read().to_dlt(name="prices"), table_format="delta")
    landing.land(product(7, seller="Ann"))
    in_delta.run(landing.read().to_dlt(name="prices"), table_format="delta")
    parts = [part.name for part in landing.read().manifest.parts]
    assert rows_of(tmp_path, "n") == [(row["n"],) for row in landing.source]
    assert sorted({name for (name,) in rows_of(tmp_path, PART)}) == parts


def test_a_load_without_its_state_is_repeated(landing: Landing, in_delta: Pipeline, tmp_path: Path) -> None:
    landing.land(*products(0, 7))
    in_delta.run(landing.read().to_dlt(name="prices"), table_format="delta")
    # no record of the load is left, and the next one runs on a machine that knows nothing of it
    for file in (tmp_path / "lake" / "shop").glob("_dlt_*/own__*"):
        file.unlink()
    landing.land(product(7))
    other = pipeline(tmp_path / "other", dlt.destinations.filesystem(f"file://{tmp_path}/lake"))
    other.run(landing.read().to_dlt(name="prices"), table_format="delta")
    other.deactivate()
    assert rows_of(tmp_path, "n") == [(row["n"],) for row in landing.source]


def test_a_pipeline_may_begin_after_a_commit(landing: Landing, in_delta: Pipeline, tmp_path: Path) -> None:
    for number in range(3):
        landing.land(product(number))
    for _ in range(2):
        in_delta.run(landing.read().to_dlt(name="prices", since=1), table_format="delta")
    assert rows_of(tmp_path, "n", ROW) == [("1", 1), ("2", 2)]
    with pytest.raises(InvalidArgument, match="`since` is 4; the last commit of"):
        landing.read().to_dlt(since=4)


def test_a_resource_checks_its_key(landing: Landing, in_delta: Pipeline) -> None:
    landing.land({"n": "0", "url": None})
    with pytest.raises(InvalidArgument, match=r"`primary_key\[1\]` is 'shop'; it must be one of n, url"):
        landing.read().to_dlt(primary_key=["n", "shop"])
    resource = landing.read().to_dlt(primary_key="url")
    assert resource.name == landing.folder.root.rpartition("/")[2]
    with pytest.raises(Exception, match="no value in a column of the key") as failed:
        in_delta.run(resource)
    assert LoadRefused in map(type, causes_of(failed.value))
