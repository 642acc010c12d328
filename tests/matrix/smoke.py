"""What has to work wherever the wheel installs: ``make test-matrix`` runs it in a fresh environment.

It uses the installed package with its sandbox, pytest, and the demo with its DAGs, beside this file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import airflow_provider_webcollect
from airflow_provider_webcollect.get_provider_info import get_provider_info
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.sandbox import Sandbox, Settings
from airflow_provider_webcollect.sandbox.demo import TASK_ID

EXAMPLES = Path(__file__).with_name("example_dags")
AIRFLOW_2 = version("apache-airflow").startswith("2.")

IMPORT_ALL = """
import importlib, pkgutil, sys, warnings
import airflow_provider_webcollect as package
# what these warn of when they are first imported is Airflow's own
import airflow.models, airflow.providers_manager, airflow.triggers.base
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS as PAGE
if PAGE:
    import airflow.api_fastapi.app
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for name in names:
        # the page needs the API server of Airflow 3.1
        if PAGE or not name.startswith("airflow_provider_webcollect.ui.") or name.endswith(".plugin"):
            importlib.import_module(name)
for warning in warned:
    print("WARNED", f"{warning.filename}:{warning.lineno}: {warning.message}")
print("IMPORTED", len(names))
"""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of an Airflow with an empty database, for this process and those that it starts."""
    home = tmp_path_factory.mktemp("airflow")
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "NO_PROXY": "*",
    }
    airflow("db", "migrate")
    return home


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Settings(run_seconds=1, stale_seconds=0)) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def connection(home: Path, sandbox: Sandbox) -> str:
    """The id of a connection to the sandbox in Airflow's database."""
    added = ["webcollect_default", "--conn-type", "webcollect", "--conn-host", sandbox.url]
    airflow(
        "connections", "add", *added, "--conn-extra", json.dumps({"refresh_token": sandbox.refresh_token})
    )
    return "webcollect_default"


def airflow(*arguments: str) -> str:
    """Run an ``airflow`` command and return what it prints."""
    return run(sys.executable, "-m", "airflow", *arguments)


def run(*command: str) -> str:
    # only a command that hangs takes that long
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_installed_wheel_is_what_is_tested() -> None:
    assert Path(airflow_provider_webcollect.__file__).is_relative_to(sys.prefix)


def test_every_module_is_imported_without_a_warning(home: Path) -> None:
    said = run(sys.executable, "-c", IMPORT_ALL)

    assert "IMPORTED" in said
    assert "WARNED" not in said, said


def test_airflow_lists_the_provider(home: Path) -> None:
    providers = json.loads(airflow("providers", "list", "--output", "json"))

    versions = [p["version"] for p in providers if p["package_name"] == "airflow-provider-webcollect"]
    assert versions == [airflow_provider_webcollect.__version__]


def test_the_connection_is_tested_against_the_service(connection: str) -> None:
    assert "success" in airflow("connections", "test", connection).lower()


def test_a_dag_collects_waits_deferred_and_lands(home: Path, connection: str, sandbox: Sandbox) -> None:
    destination, name = home / "landed", "webcollect_collect_and_land"
    (home / "dags").mkdir()
    shutil.copy(EXAMPLES / f"{name}.py", home / "dags")
    step = sandbox.control.task(TASK_ID)["actions"][0]["action_id"]
    conf = {"collection_task_id": TASK_ID, "action_id": step, "destination": destination.as_uri()}

    airflow("dags", "test", name, "--conf", json.dumps(conf))

    rows = list(read_landing(destination.as_uri()).iter_rows())
    assert rows
    assert rows == sandbox.control.true_rows(TASK_ID)
    assert sandbox.control.task(TASK_ID)["exported"]


@pytest.mark.skipif(AIRFLOW_2, reason="the demo uses the REST API of Airflow 3")
def test_a_real_airflow_with_a_triggerer_runs_the_demo(home: Path) -> None:
    assert "it knows them as exported" in run(sys.executable, "-m", "demo")


def test_the_connection_form_has_all_fields(home: Path) -> None:
    (ours,) = get_provider_info()["connection-types"]

    assert (fields_of_airflow_2() if AIRFLOW_2 else fields_of_the_api()) == {*ours["conn-fields"]}


def fields_of_airflow_2() -> set[str]:
    from airflow.providers_manager import ProvidersManager

    prefix = "extra__webcollect__"
    widgets = ProvidersManager().connection_form_widgets
    return {name.removeprefix(prefix) for name in widgets if name.startswith(prefix)}


def fields_of_the_api() -> set[str]:
    """Return the fields that the web interface of Airflow 3 is given."""
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

    (form,) = [meta for meta in HookMetaService.hook_meta_data() if meta.connection_type == "webcollect"]
    return set(form.extra_fields or {})
