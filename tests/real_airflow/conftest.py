"""One Airflow for all tests of this folder: its start takes a while, and it ends after the last test.

Each file of tests has its own sandbox, the service of the connection ``webcollect_default``, and names the
files of its DAGs in ``DAGS``. By day, Airflow runs the main job and shows the page; the rest runs at night.
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
#: The people who may sign in: each name is also the role and the password.
PEOPLE = ("viewer", "admin")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of tests with ``airflow``; skip them on Airflow 2: it starts Airflow 3's components.

    The start counts as part of the first test, and takes minutes on a busy machine.
    """
    for item in items:
        if "airflow" in getattr(item, "fixturenames", ()):
            # a marker added here would precede the timeout of a module
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
    """Add only the DAGs that a file of tests needs: reading each takes time."""
    for name in getattr(request.module, "DAGS", ()):
        shutil.copy(request.path.parent / "dags" / name, request.getfixturevalue("dags"))


@pytest.fixture(scope="package")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that DAGs of these tests land in, unless a run names another one."""
    return tmp_path_factory.mktemp("landing")


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    """Collects the spans of Airflow's traces."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="package")
def airflow(
    dags: Path, landing: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealAirflow]:
    """An Airflow whose URL has a path, and where people sign in; it must leave no process after the tests."""
    home = tmp_path_factory.mktemp("home")
    passwords = tmp_path_factory.mktemp("passwords") / "passwords.json"
    passwords.write_text(json.dumps({name: name for name in PEOPLE}))
    options = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{name}" for name in PEOPLE),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW_VAR_WEBCOLLECT_LANDING": landing.as_uri(),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        # a new file is read at once; to read the others repeatedly only takes time
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
    """Connects all tasks to a sandbox from now on; ``more`` is added to the connection's extra."""

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
    """The sandbox of a file of tests, with the ``SETTINGS`` of this file."""
    settings: Settings = request.module.SETTINGS
    with Sandbox(settings) as sandbox:
        connect_to(sandbox, **({} if settings.enforce_limits else {"requests_per_second": 0}))
        yield sandbox


@pytest.fixture(scope="package")
def sign_in(airflow: RealAirflow) -> Callable[..., None]:
    """Sets the cookie in a browser that signing in would set."""
    cookies = {person: airflow.token(person) for person in PEOPLE}

    def sign_in(page: Page, person: str = "admin") -> None:
        page.context.add_cookies([{"name": "_token", "value": cookies[person], "url": airflow.url}])

    return sign_in
