"""The example DAGs, as the dag processor finds them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

FOLDER = Path(__file__).parents[2] / "example_dags"
NEED_AIRFLOW_3 = {"webcollect_on_finish"}
NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name in NEED_AIRFLOW_3 and not AIRFLOW_V_3_0_PLUS, reason="Airflow 3 has asset watchers"
        ),
    )
    for name in sorted(file.stem for file in FOLDER.glob("*.py"))
]


def load(name: str) -> Any:
    """Import an example's file as the dag processor does, and return its DAG."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dag
