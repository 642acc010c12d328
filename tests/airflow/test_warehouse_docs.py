"""What warehouses are given by the guide's code, run as it stands there; it can load nothing here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.warehouses import needs_warehouses, rendered, warehouses  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.storages import Storage

pytest.importorskip("moto", reason="needs moto[server]")
pytest.importorskip("airflow.providers.amazon.aws.fs.s3", reason="needs the Amazon provider and s3fs")
pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected", "s3"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

PAGE = Path(__file__).parents[2] / "docs/guides/load-into-a-warehouse.md"


def code(heading: str) -> list[str]:
    """Return the blocks of Python under a heading of the page."""
    _, _, rest = PAGE.read_text().partition(f"# {heading}\n")
    # up to the next heading; a comment in code has no empty line before it
    section = re.split(r"\n\n#+ ", rest)[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)


@pytest.mark.at_night
@needs_warehouses
@pytest.mark.usefixtures("warehouses")
def test_warehouses_are_given_the_new_parts(
    sandbox: Sandbox, s3: Storage, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", s3.as_connection())
    names: dict[str, Any] = {}
    for block in code("Load with the operators of other providers"):
        exec(compile(block, PAGE.name, "exec"), names)
    with make_dag() as dag:
        land = WebCollectToObjectStorageOperator(
            task_id="land", collection_task_id=source["task_id"], destination="s3://my-bucket/prices"
        )
        names["new"] = names["new_parts"]()
        for heading in ("BigQuery", "Snowflake", "Redshift"):
            (block,) = code(heading)
            exec(compile(block, PAGE.name, "exec"), names)
        loads = [names["load_bigquery"], names["load_snowflake"], names["load_redshift"]]
        land >> names["new"] >> loads >> names["keep"](names["new"]["commit"])
    finished = run_dag(dag)

    def given(task_id: str) -> dict[str, Any]:
        return rendered(dag.dag_id, finished.run_id, task_id)

    objects = [
        part["name"] for part in json.loads(s3.fs.cat_file("my-bucket/prices/_manifest.json"))["parts"]
    ]
    objects = [f"prices/{name}" for name in objects]
    # without connections none of them gets any further
    assert {finished.states[load.task_id] for load in loads} == {"failed"}
    assert given("load_bigquery")["source_objects"] == objects
    assert given("load_snowflake")["files"] == objects
    redshift = given("load_redshift")
    manifest = json.loads(s3.fs.cat_file(f"{redshift['s3_bucket']}/{redshift['s3_key']}"))
    assert [entry["url"] for entry in manifest["entries"]] == [f"s3://my-bucket/{name}" for name in objects]
    assert redshift["copy_options"][0] == "MANIFEST"
