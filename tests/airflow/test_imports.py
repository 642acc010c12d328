"""What importing the provider costs a process: Airflow does it in every one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.get_provider_info import get_provider_info

HEAVY = ("requests", "httpx", "pyarrow", "starlette", "uvicorn", "fsspec", "flask_appbuilder", "wtforms")
#: Seconds of processor time.
MOST = 0.05
#: The same as a share of what importing Airflow takes, for slower machines.
MOST_OF_AIRFLOW = 0.05
#: The fastest of so many processes counts: others were slowed by what else the machine does.
PROCESSES = 5

IMPORT = """
import importlib, json, sys, time
start = time.process_time()
import airflow.{sdk}, airflow.providers.common.compat.sdk as sdk
from airflow.{triggers} import BaseTrigger
for name in {used}:
    getattr(sdk, name)
before = set(sys.modules)
began = time.process_time()
for module in {modules}:
    importlib.import_module(module)
seconds = time.process_time() - began
new = sorted(set(sys.modules) - before)
print(json.dumps({{"airflow": began - start, "seconds": seconds, "new": new}}))
"""


def imported(*modules: str) -> dict[str, Any]:
    """Import modules in a process of their own that has imported what DAG authors import anyway."""
    code = IMPORT.format(
        sdk="sdk" if AIRFLOW_V_3_0_PLUS else "models.dag",
        triggers="triggers.base",
        used=("BaseOperator", "BaseSensorOperator", "BaseHook", "conf", "Variable"),
        modules=modules,
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        # measuring coverage takes time of its own
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
    )
    return json.loads(done.stdout.splitlines()[-1])


def for_dags() -> list[str]:
    """Return the modules that DAG files import."""
    info = get_provider_info()
    operators = [
        m for kind in ("operators", "sensors") for entry in info[kind] for m in entry["python-modules"]
    ]
    return operators + [entry["python-module"] for entry in info["transfers"]]


def test_dags_import_nothing_heavy() -> None:
    result = imported(*for_dags())

    assert [name for name in result["new"] if name.partition(".")[0] in HEAVY] == []


def test_dags_import_it_in_50_ms_after_airflow() -> None:
    results = [imported(*for_dags()) for _ in range(PROCESSES)]
    seconds = min(result["seconds"] for result in results)
    airflow = min(result["airflow"] for result in results)

    assert seconds < max(MOST, MOST_OF_AIRFLOW * airflow), (seconds, airflow)


@pytest.mark.parametrize(
    "module",
    ["airflow_provider_webcollect.hooks.webcollect", "airflow_provider_webcollect.get_provider_info"],
)
def test_airflows_own_look_at_the_provider_imports_nothing_heavy(module: str) -> None:
    assert [name for name in imported(module)["new"] if name.partition(".")[0] in HEAVY] == []
