"""What importing the provider costs a process: Airflow does it in every one."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

import airflow_provider_webcollect
from airflow_provider_webcollect.get_provider_info import get_provider_info

HEAVY = (
    "requests",
    "httpx",
    "pyarrow",
    "deltalake",
    "dlt",
    "fastapi",
    "starlette",
    "uvicorn",
    "fsspec",
    "flask_appbuilder",
    "wtforms",
)

#: What is imported when work begins.
MACHINERY = {
    "hooks.connection",
    "hooks.token_store",
    "landing.formats.base",
    "landing.run",
    "landing.job",
    "landing.storage",
    "landing.storage.folder",
    "landing.tables.delta",
    "landing.tables.table",
    "service.call",
    "service.client",
    "service.pages",
    "service.tokens",
    "waiting.poll",
}

IMPORT = """
import importlib, json, os, sys
import airflow.{sdk}, airflow.providers.common.compat.sdk as sdk
from airflow.{triggers} import BaseTrigger
for name in {used}:
    getattr(sdk, name)
def new(modules):
    before = set(sys.modules)
    for module in modules:
        importlib.import_module(module)
    return sorted(set(sys.modules) - before)
for_dags = new({for_dags})
# one import hides what the other would need
if child := os.fork():
    os.waitpid(child, 0)
    new({worker})
    print("new:", json.dumps(new({plugin})))
else:
    print("new:", json.dumps([for_dags, new({look})]), flush=True)
"""


@dataclass
class Imported:
    """What is imported in a process that has imported what DAG authors import anyway.

    :ivar for_dags: by DAG files.
    :ivar look: by Airflow's own look at the provider, after them.
    :ivar plugin: with the plugin, by a task's process, after them.
    """

    for_dags: list[str]
    look: list[str]
    plugin: list[str]


@pytest.fixture(scope="module")
def imported() -> Imported:
    """What a process of its own imports."""
    code = IMPORT.format(
        sdk="sdk" if AIRFLOW_V_3_0_PLUS else "models.dag",
        triggers="triggers.base",
        used=("BaseOperator", "BaseSensorOperator", "BaseHook", "conf", "Variable"),
        for_dags=for_dags(),
        worker=["airflow.plugins_manager"],
        plugin=["airflow_provider_webcollect.ui"],
        look=[
            f"airflow_provider_webcollect.{name}" for name in ("get_provider_info", "hooks.webcollect", "ui")
        ],
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # beside what Airflow logs
    said = [line.removeprefix("new:") for line in done.stdout.splitlines() if line.startswith("new:")]
    (dags, look), plugin = map(json.loads, said)
    return Imported(dags, look, plugin)


def for_dags() -> tuple[str, ...]:
    """Return the modules that DAG files import."""
    info = get_provider_info()
    operators = [
        m for kind in ("operators", "sensors") for entry in info[kind] for m in entry["python-modules"]
    ]
    return (*operators, *(entry["python-module"] for entry in info["transfers"]))


def test_dags_import_nothing_but_the_provider_parts_of_airflow_and_msgspec(imported: Imported) -> None:
    # what is imported decides what it costs; seconds would tell of the machine's load
    packages = {name.partition(".")[0] for name in imported.for_dags}

    assert packages - sys.stdlib_module_names <= {"airflow", "airflow_provider_webcollect", "msgspec"}


def test_dags_import_what_is_declared_and_no_machinery(imported: Imported) -> None:
    package = "airflow_provider_webcollect."
    own = {name.removeprefix(package) for name in imported.for_dags if name.startswith(package)}

    assert len(own) <= 41
    assert own.isdisjoint(MACHINERY)


def test_what_dags_use_can_be_imported_from_the_package_itself() -> None:
    used = {name for module in for_dags() for name in vars(importlib.import_module(module))}
    ours = {name for name in used if name.startswith("WebCollect") and name.endswith(("Operator", "Sensor"))}
    bases = {"WebCollectOperator", "WebCollectTaskOperator"}

    assert ours - bases <= {*dir(airflow_provider_webcollect)}
    assert bases.isdisjoint(dir(airflow_provider_webcollect))
    for name in dir(airflow_provider_webcollect):
        assert getattr(airflow_provider_webcollect, name) is not None
    with pytest.raises(ImportError, match="WebCollectNothing"):
        from airflow_provider_webcollect import WebCollectNothing  # noqa: F401


def test_airflows_own_look_at_the_provider_imports_nothing_heavy(imported: Imported) -> None:
    new = [*imported.for_dags, *imported.look]

    assert [name for name in new if name.partition(".")[0] in HEAVY] == []
    # a task's process has imported the provider's operators when it loads the plugins, or will
    assert 1 <= len(imported.plugin) <= 5, imported.plugin


def imported_alone(module: str) -> set[str]:
    """Import a module in a process without Airflow, and return the names of all that this imports."""
    code = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*done.stdout.split()}


def test_the_package_itself_imports_none_of_its_modules() -> None:
    names = imported_alone("airflow_provider_webcollect")

    assert {name for name in names if name.startswith("airflow")} == {"airflow_provider_webcollect"}


def test_the_provider_info_needs_nothing_but_the_standard_library() -> None:
    names = imported_alone("airflow_provider_webcollect.get_provider_info")
    packages = {name.partition(".")[0] for name in names}

    assert packages - sys.stdlib_module_names == {"airflow_provider_webcollect"}
