"""A consumer that runs when all shops of a day have landed, even if their tasks are retried or cleared."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings
from demo.real_airflow import RealAirflow
from tests.interruption import PATIENCE

pytestmark = [
    pytest.mark.real_airflow,
    pytest.mark.at_night,
    pytest.mark.skipif(
        tuple(map(int, version("apache-airflow").split(".")[:2])) < (3, 3),
        reason="Airflow has partitions of assets from 3.3 on",
    ),
]

DAGS = ("shops_of_a_day.py",)
SETTINGS = Settings(enforce_limits=False)
SHOPS = ("shop_a", "shop_b", "shop_c")
WITHOUT_KEY = "shop_without_key"
FIRST, SECOND = "2026-01-01", "2026-01-02"


def test_it_runs_once_for_each_day(airflow: RealAirflow, sandbox: Sandbox, landing: Path) -> None:
    def land(shop: str, day: str = "") -> str:
        run_id = airflow.trigger(shop, {"day": day})
        assert airflow.wait(shop, run_id) == "success"
        return run_id

    def land_again(shop: str, run_id: str) -> None:
        airflow.clear(shop, run_id)
        assert airflow.wait(shop, run_id) == "success"

    def runs(consumer: str) -> list[dict[str, Any]]:
        dag_runs: list[dict[str, Any]] = airflow.get(f"dags/{consumer}/dagRuns", order_by="id")["dag_runs"]
        return dag_runs

    def wait_for_runs(consumer: str, count: int) -> None:
        # until a run has started, Airflow 3.3.2 cannot list the events that have created it
        def are_started() -> bool:
            return len([run for run in runs(consumer) if run["start_date"]]) >= count

        airflow.wait_for(are_started, PATIENCE, f"{count} runs of {consumer}")

    def shops_of(run: dict[str, Any]) -> dict[str, int]:
        path = f"dags/whole_day/dagRuns/{run['dag_run_id']}/upstreamAssetEvents"
        return Counter(Path(event["uri"]).name for event in airflow.get(path)["asset_events"])

    for shop in (*SHOPS, WITHOUT_KEY):
        sandbox.control.add_task(shop, lots=[30])
    for consumer in ("whole_day", "each_landing", "plain"):
        airflow.unpause(consumer)
    cleared = land("shop_a", FIRST)
    land_again("shop_a", cleared)
    retried = land("shop_b", FIRST)
    # it has failed once after its commit
    assert [task.try_number for task in airflow.task_instances("shop_b", retried)] == [2]
    for shop in ("shop_a", "shop_b"):
        land(shop, SECOND)
    wait_for_runs("each_landing", 3)
    assert runs("whole_day") == []

    late = land("shop_c", FIRST)
    wait_for_runs("whole_day", 1)
    land("shop_c", SECOND)
    wait_for_runs("whole_day", 2)
    land_again("shop_c", late)
    # when the scheduler has seen a later event, it has seen all earlier ones
    land(WITHOUT_KEY)
    wait_for_runs("plain", 1)

    first, second = runs("whole_day")
    assert [run["partition_key"] for run in (first, second)] == [FIRST, SECOND]
    assert shops_of(first) == {"shop_a": 2, "shop_b": 1, "shop_c": 1}
    assert shops_of(second) == {"shop_a": 1, "shop_b": 1, "shop_c": 1}
    assert [run["partition_key"] for run in runs("each_landing")] == [FIRST, FIRST, SECOND]
    assert [run["partition_key"] for run in runs("plain")] == [None]

    land_again("shop_a", cleared)
    land_again("shop_b", retried)
    wait_for_runs("whole_day", 3)
    assert [run["partition_key"] for run in runs("whole_day")] == [FIRST, SECOND, FIRST]
