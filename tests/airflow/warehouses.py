"""Operators that load warehouses, where `make` has installed them, and what they were given in a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import airflow
import pytest
from airflow.settings import Session
from sqlalchemy import text

FOLDER = os.environ.get("WEBCOLLECT_WAREHOUSES")
needs_warehouses = pytest.mark.skipif(FOLDER is None, reason="needs the operators that `make test` installs")


@pytest.fixture
def warehouses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the operators importable; their packages are not all there, so that they cannot load anything."""
    if FOLDER is not None:
        folder = Path(FOLDER).resolve()
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(airflow, "__path__", [*airflow.__path__, str(folder / "airflow")])


def rendered(dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
    """Return the template fields of a task as they were when it ran."""
    with Session() as session:
        found = session.execute(
            text(
                "select rendered_fields from rendered_task_instance_fields "
                "where dag_id = :dag_id and run_id = :run_id and task_id = :task_id"
            ),
            {"dag_id": dag_id, "run_id": run_id, "task_id": task_id},
        ).scalar_one()
    return json.loads(found)
