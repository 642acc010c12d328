"""A file of 300 collection tasks, collected and landed by a task group in both arrangements."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.sandbox import Sandbox, Settings
from demo.real_airflow import RealAirflow

pytestmark = [pytest.mark.real_airflow, pytest.mark.at_night, pytest.mark.timeout(7200)]

#: Airflow starts a process for each of 900 tasks, and each reads the DAG's file.
PATIENCE = 3600
SHOPS = [f"shop_{number:03}" for number in range(300)]


@pytest.fixture(scope="module", autouse=True)
def own_dags(request: pytest.FixtureRequest, dags: Path) -> None:
    """Add the DAGs, after the file that they read."""
    (dags / "many_shops.yaml").write_text("".join(f"- id: {shop}\n  name: The {shop}\n" for shop in SHOPS))
    shutil.copy(request.path.parent / "dags/many_shops.py", dags)


@pytest.fixture(scope="module")
def sandbox(connect_to: Callable[..., None]) -> Iterator[Sandbox]:
    with Sandbox(Settings(enforce_limits=False, speed=60)) as sandbox:
        for shop in SHOPS:
            sandbox.control.add_task(shop, rows=3, lots=[2])
        connect_to(sandbox, requests_per_second=0)
        yield sandbox


@pytest.mark.parametrize("arrangement", ["together", "each"])
def test_every_row_of_hundreds_lands_once(
    airflow: RealAirflow, sandbox: Sandbox, landing: Path, arrangement: str
) -> None:
    dag_id = f"shops_{arrangement}"
    assert airflow.wait(dag_id, airflow.trigger(dag_id), PATIENCE) == "success"

    for shop in SHOPS:
        landed = read_landing(f"{landing.as_uri()}/{arrangement}/The~_{shop}")
        assert list(landed.iter_rows()) == sandbox.control.true_rows(shop) != []
