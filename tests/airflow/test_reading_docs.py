"""The docs' code that reads landings, run as it stands there, on S3; and what warehouses are given."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import time_machine

from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.landings import land
from tests.airflow.warehouses import needs_warehouses, rendered, warehouses  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.landing.storages import Storage

pytest.importorskip("moto", reason="needs moto[server]")
pytest.importorskip("airflow.providers.amazon.aws.fs.s3", reason="needs the Amazon provider and s3fs")
pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected", "s3"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

DOCS = Path(__file__).parents[2] / "docs"
RECIPES, CLEANING, READER = (
    DOCS / page for page in ("guides/load-into-a-warehouse.md", "guides/clean-up.md", "reference/manifest.md")
)


def code(page: Path, heading: str) -> list[str]:
    """Return the blocks of Python under a heading of a page."""
    _, _, rest = page.read_text().partition(f"# {heading}\n")
    # up to the next heading; a comment in code has no empty line before it
    section = re.split(r"\n\n#+ ", rest)[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)


def run(block: str, names: dict[str, Any]) -> None:
    """Run a block of a page with ``names``, to which it adds its own."""
    exec(compile(block, "<docs>", "exec"), names)


def test_from_a_dag_to_a_query(sandbox: Sandbox) -> None:
    source = sandbox.control.add_task(lots=[25, 15])
    make, query = code(READER, "From a DAG to a query")
    names: dict[str, Any] = {}
    run(make, names)
    names["dag"].get_task("land").collection_task_id = source["task_id"]
    for rows_so_far in (40, 45):
        finished = run_dag(names["dag"])
        run(query, names)

        rows = sandbox.control.true_rows(source["task_id"])
        assert finished.states == {"land": "success"}
        assert names["table"].to_pylist() == rows
        assert len(rows) == rows_so_far
        assert dict(names["cities"].fetchall()) == Counter(row["city"] for row in rows)
        sandbox.control.grow(source["task_id"], 5)


def test_verifying(source: dict[str, Any]) -> None:
    land("s3://my-bucket/prices", source)
    names: dict[str, Any] = {}
    run(*code(CLEANING, "Verify"), names)

    assert run_dag(names["verify_dag"]).states == {"verify": "success"}


def test_cleaning(sandbox: Sandbox, s3: Storage, source: dict[str, Any]) -> None:
    land("s3://my-bucket/prices", source)
    s3.fs.pipe_file("my-bucket/prices/part-00009-0badcafe.jsonl", b"x")
    names: dict[str, Any] = {}
    with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)):
        run(*code(CLEANING, "Clean"), names)

    assert [file.name for file in names["leftovers"]] == ["part-00009-0badcafe.jsonl"]


class TestRecipes:
    @pytest.fixture
    def names(self, source: dict[str, Any]) -> dict[str, Any]:
        """What the recipes begin with: a landing in parts, with what a killed landing has left beside it."""
        land(
            "s3://my-bucket/prices-parquet",
            source,
            file_format="parquet",
            column_types={"price": "decimal(12,2)"},
            max_part_bytes=1,
        )
        names: dict[str, Any] = {}
        run(*code(RECIPES, "Recipes"), names)
        fs = fsspec.filesystem("s3")
        fs.copy(names["uris"][0], "s3://my-bucket/prices-parquet/part-00009-0badcafe.parquet")
        return names

    @pytest.fixture
    def rows(self, names: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows, in order."""
        assert len(names["uris"]) == 4
        return list(names["landed"].iter_rows())

    def test_duckdb(self, names: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        run(*code(RECIPES, "DuckDB"), names)

        prices = sorted((row["price"] for row in rows if row["price"] is not None), reverse=True)
        assert [row[3] for row in names["dearest"]] == prices[:3]

    def test_pandas(self, names: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        run(*code(RECIPES, "pandas"), names)

        assert list(names["frame"]["id"]) == [row["id"] for row in rows]

    def test_pyarrow(self, names: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        run(*code(RECIPES, "pyarrow"), names)

        nearby = [row["id"] for row in rows if row["city"] == "København"]
        assert names["nearby"]["id"].to_pylist() == nearby != []

    def test_polars(self, names: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        run(*code(RECIPES, "polars"), names)

        prices = [row["price"] for row in rows if row["price"] is not None]
        assert float(names["mean"]) == pytest.approx(float(sum(prices) / len(prices)))

    def test_athena_gets_the_list_of_files(self, names: dict[str, Any], s3: Storage) -> None:
        run(*code(RECIPES, "Athena"), names)

        listed = s3.fs.cat_file("my-bucket/prices-list/parts.txt").decode()
        assert listed.split() == names["landed"].uris()


@needs_warehouses
@pytest.mark.usefixtures("warehouses")
def test_warehouses_are_given_the_new_parts(sandbox: Sandbox, s3: Storage, source: dict[str, Any]) -> None:
    with make_dag(render_template_as_native_obj=True) as dag:
        names: dict[str, Any] = {
            "land": WebCollectToObjectStorageOperator(
                task_id="land",
                collection_task_id=source["task_id"],
                destination="s3://my-bucket/prices",
                redshift_manifest=True,
                multiple_outputs=True,
            )
        }
        for heading in ("BigQuery", "Snowflake", "Redshift"):
            run(*code(RECIPES, heading), names)
        names["land"] >> names["load_redshift"]
    finished = run_dag(dag)

    def given(task_id: str) -> dict[str, Any]:
        return rendered(dag.dag_id, finished.run_id, task_id)

    objects = [
        part["name"] for part in json.loads(s3.fs.cat_file("my-bucket/prices/_manifest.json"))["parts"]
    ]
    objects = [f"prices/{name}" for name in objects]
    # without connections none of them gets any further
    assert set(finished.states.values()) == {"success", "failed"}
    assert given("load_bigquery")["source_objects"] == objects
    assert given("load_snowflake")["files"] == objects
    redshift = given("load_redshift")
    manifest = json.loads(s3.fs.cat_file(f"{redshift['s3_bucket']}/{redshift['s3_key']}"))
    assert [entry["url"] for entry in manifest["entries"]] == [f"s3://my-bucket/{name}" for name in objects]
    assert redshift["copy_options"][0] == "MANIFEST"
