"""The example DAGs, as the dag processor finds them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_1_PLUS

from tests.airflow.warehouses import needs_warehouses

FOLDER = Path(__file__).parents[2] / "example_dags"
NEED_AIRFLOW_3 = {"webcollect_on_finish"}
NEED_AIRFLOW_3_1 = {"webcollect_ask_about_rows", "webcollect_ask_about_start"}
NEED_WAREHOUSES = {"webcollect_incremental_to_warehouse"}
NAMES = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(
                name in NEED_AIRFLOW_3 and not AIRFLOW_V_3_0_PLUS, reason="Airflow 3 has asset watchers"
            ),
            pytest.mark.skipif(
                name in NEED_AIRFLOW_3_1 and not AIRFLOW_V_3_1_PLUS, reason="Airflow 3.1 can ask a person"
            ),
            *([needs_warehouses] if name in NEED_WAREHOUSES else []),
        ],
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
