"""The example DAGs that land what is new, check it and load just that, run for real."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from airflow.models import Variable
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect import read_landing
from tests.airflow.dag_runs import run_dag
from tests.airflow.examples import load
from tests.airflow.executions import execute
from tests.airflow.landings import landed, table_rows
from tests.airflow.warehouses import needs_warehouses, rendered, warehouses  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


@pytest.fixture
def conf(source: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """What every of these DAGs is told."""
    return {"collection_task_id": source["task_id"], "destination": f"file://{tmp_path}/prices"}


def without_pauses(name: str) -> Any:
    """Return an example's DAG that neither waits for late rows nor retries."""
    dag = load(name)
    dag.get_task("land").late_rows_delay = 0
    for task in dag.tasks:
        task.retries = 0
    return dag


class TestDuckDB:
    @pytest.fixture
    def dag(self) -> Any:
        return without_pauses("webcollect_incremental_to_duckdb")

    @pytest.fixture
    def conf(self, conf: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
        return {**conf, "database": f"{tmp_path}/prices.duckdb"}

    def table(self, conf: dict[str, Any]) -> list[tuple[str, str]]:
        with duckdb.connect(conf["database"]) as db:
            return db.execute("select id, title from prices order by rowid").fetchall()

    def expected(self, sandbox: Sandbox, conf: dict[str, Any]) -> list[tuple[str, str]]:
        rows = sandbox.control.true_rows(conf["collection_task_id"])
        return [(row["id"], row["title"]) for row in rows]

    def load_again(self, dag: Any, conf: dict[str, Any]) -> int:
        """Do what a retry does, or clearing the task."""
        return dag.get_task("load").python_callable(conf["destination"], conf["database"])

    def test_each_run_adds_what_is_new_and_loading_again_changes_nothing(
        self, sandbox: Sandbox, dag: Any, conf: dict[str, Any]
    ) -> None:
        for rows, grown in ((400, 0), (440, 40), (465, 25), (465, 0)):
            sandbox.control.grow(conf["collection_task_id"], grown)
            run = run_dag(dag, conf)
            assert run.states == {"land": "success", "load": "success"}
            assert run.xcoms["load"] == rows
            assert self.table(conf) == self.expected(sandbox, conf)

        assert self.load_again(dag, conf) == 465
        assert self.table(conf) == self.expected(sandbox, conf)

    def test_what_a_failed_load_has_left_out_comes_with_the_next(
        self, sandbox: Sandbox, dag: Any, conf: dict[str, Any]
    ) -> None:
        run_dag(dag, conf)
        before = self.table(conf)
        sandbox.control.grow(conf["collection_task_id"], 40)
        # a run that dies after its commit
        execute(dag.get_task("land"), params=conf)
        sandbox.control.grow(conf["collection_task_id"], 25)
        execute(dag.get_task("land"), params=conf)
        part = Path(read_landing(conf["destination"]).uris(since=2)[0].removeprefix("file://"))
        content = part.read_bytes()
        part.write_bytes(content[:-20])
        with pytest.raises(duckdb.Error):
            self.load_again(dag, conf)
        assert self.table(conf) == before

        part.write_bytes(content)
        assert self.load_again(dag, conf) == 465
        assert self.table(conf) == self.expected(sandbox, conf)


class TestDeltaTable:
    def test_each_run_adds_what_is_new_and_says_how_much_that_is(
        self, sandbox: Sandbox, conf: dict[str, Any]
    ) -> None:
        dag = without_pauses("webcollect_delta_table")
        counts = []
        for grown in (0, 40):
            if grown:
                sandbox.control.grow(conf["collection_task_id"], grown)
            counts.append(run_dag(dag, conf).xcoms["count"])

        assert counts == [{"total": 400, "new": 400}, {"total": 440, "new": 40}]
        assert run_dag(dag, conf).states == {"land": "skipped", "count": "skipped"}
        assert [(row["id"], row["title"], str(row["price"])) for row in table_rows(conf["destination"])] == [
            (row["id"], row["title"], str(as_number(row["price"])))
            for row in sandbox.control.true_rows(conf["collection_task_id"])
        ]


def as_number(price: str) -> float | None:
    """Return a price as a column of numbers has it."""
    try:
        return float(price)
    except ValueError:
        return None


class TestChecks:
    @pytest.mark.parametrize("decision", ["accept", pytest.param("discard", marks=pytest.mark.at_night)])
    def test_rows_without_prices_land_only_if_a_person_accepts_them(
        self, sandbox: Sandbox, conf: dict[str, Any], decision: str
    ) -> None:
        dag = without_pauses("webcollect_checked_landing")
        task_id = conf["collection_task_id"]
        good = run_dag(dag, conf)
        assert good.xcoms["use"] == good.xcoms["land"]["uris"] != []
        sandbox.control.change_rows(task_id, "price", "empty")
        sandbox.control.grow(task_id, 40)

        bad = run_dag(dag, conf)
        assert bad.states == {"land": "failed", "use": "upstream_failed"}
        assert landed(conf["destination"]) == sandbox.control.true_rows(task_id)[:400]

        decided = run_dag(
            load("webcollect_decide_on_rows"),
            {"destination": conf["destination"], "run_id": bad.run_id, "decision": decision},
        )
        assert decided.xcoms["decide"] == {
            "destination": conf["destination"],
            "run_id": bad.run_id,
            "rows": 40,
            "state": "staged",
            "checks": ["columns.price.filled"],
        }
        rows = sandbox.control.true_rows(task_id)
        assert landed(conf["destination"]) == rows[: 440 if decision == "accept" else 400]


@needs_warehouses
@pytest.mark.usefixtures("warehouses")
def test_bigquery_is_given_what_is_not_loaded_yet(sandbox: Sandbox, conf: dict[str, Any]) -> None:
    # without a connection of Google's the load gets no further than its arguments
    dag = without_pauses("webcollect_incremental_to_warehouse")
    conf |= {"bucket": "my-bucket", "table": "my-project.shop.prices", "variable": "loaded"}

    def given() -> list[str]:
        # as a person starts it
        run = run_dag(dag, conf, **({"logical_date": None} if AIRFLOW_V_3_0_PLUS else {}))
        assert run.states == {
            "land": "success",
            "new_parts": "success",
            "load": "failed",
            "keep": "upstream_failed",
        }
        fields = rendered(dag.dag_id, run.run_id, "load")
        target = (fields["bucket"], fields["destination_project_dataset_table"])
        assert target == (conf["bucket"], conf["table"])
        assert all("/prices/dt=" in name for name in fields["source_objects"])
        return list(fields["source_objects"])

    first = given()
    sandbox.control.grow(conf["collection_task_id"], 40)
    second = given()
    assert (len(first), second[:1], len(second)) == (1, first, 2)

    Variable.set("loaded", 1)  # as `keep` does, once a load has succeeded
    assert given() == second[1:]
