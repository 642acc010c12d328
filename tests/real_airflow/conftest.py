"""One Airflow for all tests of this folder: its start takes a while, and it ends with the last of them.

The tests of a file have a sandbox of their own, the service behind ``webcollect_default``, and the DAGs whose
files they name by ``DAGS``. By day it runs the main job and shows
the page; all else is for the night.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings
from demo.real_airflow import RealAirflow
from tests.spans import Collector, collecting

if TYPE_CHECKING:
    from playwright.sync_api import Page

CONN_ID = "webcollect_default"
#: Who may sign in: the roles are their names, and their passwords.
PEOPLE = ("viewer", "admin")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out on Airflow 2 what needs ``airflow``: that starts Airflow 3's components.

    Its start counts as the first test's, and takes minutes on a busy machine.
    """
    for item in items:
        if "airflow" in getattr(item, "fixturenames", ()):
            # this one would be read before the timeout of a module
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1200))
            if version("apache-airflow").startswith("2."):
                item.add_marker(pytest.mark.skip(reason="starts Airflow 3's components"))


@pytest.fixture(scope="package")
def dags(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The folder of DAGs, with the example of the main job."""
    folder = tmp_path_factory.mktemp("dags")
    shutil.copy(pytestconfig.rootpath / "example_dags" / "webcollect_collect_and_land.py", folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def own_dags(request: pytest.FixtureRequest) -> None:
    """Add the DAGs that a file of tests needs: each costs time when it is read."""
    for name in getattr(request.module, "DAGS", ()):
        shutil.copy(request.path.parent / "dags" / name, request.getfixturevalue("dags"))


@pytest.fixture(scope="package")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the DAG that lands finished runs puts them."""
    return tmp_path_factory.mktemp("landing")


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    """Takes the spans of Airflow's traces."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="package")
def airflow(
    dags: Path, landing: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealAirflow]:
    """The Airflow, below a path, where people sign in; no process of it is left when the tests are over."""
    home = tmp_path_factory.mktemp("home")
    passwords = tmp_path_factory.mktemp("passwords") / "passwords.json"
    passwords.write_text(json.dumps({name: name for name in PEOPLE}))
    options = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{name}" for name in PEOPLE),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW_VAR_WEBCOLLECT_LANDING": landing.as_uri(),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        # a new file is read at once; reading the others again and again only takes time
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "1",
        # so that a new triggerer soon takes over what a killed one has left
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
        "AIRFLOW__TRACES__OTEL_ON": "True",
        "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.url,
    }
    with RealAirflow(home, dags, options, path="/team/airflow", person="admin") as airflow:
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
        conn_ids = {connection["connection_id"] for connection in airflow.get("connections")["connections"]}
        change = airflow.update_connection if CONN_ID in conn_ids else airflow.add_connection
        change(CONN_ID, "webcollect", **fields)

    return connect_to


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest, connect_to: Callable[..., None]) -> Iterator[Sandbox]:
    """The service of the tests of a file, which names its SETTINGS."""
    settings: Settings = request.module.SETTINGS
    with Sandbox(settings) as sandbox:
        connect_to(sandbox, **({} if settings.enforce_limits else {"requests_per_second": 0}))
        yield sandbox


@pytest.fixture(scope="package")
def sign_in(airflow: RealAirflow) -> Callable[..., None]:
    """Gives a browser the cookie that signing in gives it."""
    cookies = {person: airflow.token(person) for person in PEOPLE}

    def sign_in(page: Page, person: str = "admin") -> None:
        page.context.add_cookies([{"name": "_token", "value": cookies[person], "url": airflow.url}])

    return sign_in
