"""The example DAGs, loaded as the dag processor does; people whom they ask, warehouses that they load."""

from __future__ import annotations

import json
import os
import runpy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import airflow
import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_1_PLUS
from airflow.utils.session import create_session
from sqlalchemy import select, text

FOLDER = Path(__file__).parents[2] / "example_dags"
#: The folder where `make test` has installed the operators that load warehouses, if it has.
WAREHOUSES = os.environ.get("WEBCOLLECT_WAREHOUSES")
needs_warehouses = pytest.mark.skipif(not WAREHOUSES, reason="needs the operators that `make test` installs")
from_3_0 = pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="Airflow 3 has asset watchers")
from_3_1 = pytest.mark.skipif(not AIRFLOW_V_3_1_PLUS, reason="Airflow 3.1 can ask a person")
NEEDS = {
    "webcollect_on_finish": from_3_0,
    "webcollect_ask_about_rows": from_3_1,
    "webcollect_ask_about_start": from_3_1,
    "webcollect_incremental_to_warehouse": needs_warehouses,
}
NAMES = [pytest.param(path.stem, marks=NEEDS.get(path.stem, ())) for path in sorted(FOLDER.glob("*.py"))]


def load(name: str) -> Any:
    """Import an example's file as the dag processor does, and return its DAG."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))["dag"]


@pytest.fixture
def warehouses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the warehouses' operators importable. They cannot load anything: some dependencies are missing."""
    if WAREHOUSES:
        folder = Path(WAREHOUSES).resolve()
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(airflow, "__path__", [*airflow.__path__, str(folder / "airflow")])


def rendered(dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
    """Return the template fields of a task as they were when it ran."""
    query = (
        "select rendered_fields from rendered_task_instance_fields "
        "where dag_id = :dag_id and run_id = :run_id and task_id = :task_id"
    )
    task = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
    with create_session() as session:
        fields: dict[str, Any] = json.loads(session.execute(text(query), task).scalar_one())
    return fields


class Person:
    """Answers the questions of waiting tasks, always with the same option.

    :ivar bodies: the texts of the answered questions.
    """

    def __init__(self, option: str, **params: Any) -> None:
        self._option, self._params = option, params
        self.bodies: list[str] = []

    def __call__(self) -> None:
        """Answer open questions as Airflow's API does; to import the API would take seconds."""
        from airflow.models.hitl import HITLDetail
        from airflow.models.trigger import handle_event_submit
        from airflow.triggers.base import TriggerEvent

        with create_session() as session:
            for asked in session.scalars(select(HITLDetail).where(HITLDetail.responded_at.is_(None))):
                task = asked.task_instance
                if task.state != "awaiting_input":
                    continue
                assert self._option in asked.options
                asked.responded_by = {"id": "ada", "name": "ada"}
                asked.responded_at = datetime.now(UTC)
                asked.chosen_options, asked.params_input = [self._option], self._params
                answer = TriggerEvent(asked.as_resume_event_payload())
                handle_event_submit(answer, task_instance=task, session=session)
                self.bodies.append(asked.body or "")
