"""One Airflow for all tests of this folder: its start takes a while, and it ends with the last of them.

The tests of a file bring a sandbox of their own; ``connect_to`` makes it the service behind
``webcollect_default``.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from typing import TYPE_CHECKING

import psutil
import pytest

from demo.real_airflow import RealAirflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

CONN_ID = "webcollect_default"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out on Airflow 2 what needs ``airflow``: that starts Airflow 3's components."""
    if version("apache-airflow").startswith("2."):
        skip = pytest.mark.skip(reason="starts Airflow 3's components")
        for item in items:
            if "airflow" in getattr(item, "fixturenames", ()):
                item.add_marker(skip)


@pytest.fixture(scope="package")
def dags(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The folder of DAGs: the example of the main job, and those of these tests."""
    root = pytestconfig.rootpath
    folder = tmp_path_factory.mktemp("folder") / "dags"
    shutil.copytree(root / "tests" / "real_airflow" / "dags", folder)
    shutil.copy(root / "example_dags" / "webcollect_collect_and_land.py", folder)
    return folder


@pytest.fixture(scope="package")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the DAG that lands finished runs puts them."""
    return tmp_path_factory.mktemp("landing")


@pytest.fixture(scope="package")
def airflow(dags: Path, landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAirflow]:
    """The Airflow; no process of it is left when the tests are over."""
    home = tmp_path_factory.mktemp("home")
    options = {
        "AIRFLOW_VAR_WEBCOLLECT_LANDING": landing.as_uri(),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        # a new file is read at once; reading the others again and again only takes time
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "1",
        # so that a new triggerer soon takes over what a killed one has left
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    }
    with RealAirflow(home, dags, options) as airflow:
        yield airflow
    assert [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(home)] == []


@pytest.fixture(scope="package")
def connect_to(airflow: RealAirflow) -> Callable[..., None]:
    """Makes a sandbox the service that all tasks reach from now on; ``more`` goes into the extra."""

    def connect_to(sandbox: Sandbox, **more: float) -> None:
        extra = {"refresh_token": sandbox.refresh_token, "api_key": sandbox.api_key, **more}
        fields = {
            "host": sandbox.url,
            "login": sandbox.username,
            "password": sandbox.password,
            "extra": json.dumps(extra),
        }
        known = {each["connection_id"] for each in airflow.get("connections")["connections"]}
        change = airflow.update_connection if CONN_ID in known else airflow.add_connection
        change(CONN_ID, "webcollect", **fields)

    return connect_to
