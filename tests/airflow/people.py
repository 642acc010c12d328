"""People whom tasks ask."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.settings import Session
from sqlalchemy import select

# `dag.test()` of earlier versions wants a triggerer's connection to the API server
waits = pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="this Airflow's `dag.test()` does not wait")


class Person:
    """Answers the next question of each task that waits.

    :ivar bodies: what was asked.
    """

    def __init__(self, option: str, **params: Any) -> None:
        self._answer = {"chosen_options": [option], "params_input": params}
        self.bodies: list[str] = []

    def __call__(self) -> None:
        """Answer a question, if there is one, as Airflow's API does: to import that takes seconds."""
        from airflow.models.hitl import HITLDetail
        from airflow.models.trigger import handle_event_submit
        from airflow.triggers.base import TriggerEvent

        with Session() as session:
            for asked in session.scalars(select(HITLDetail).where(HITLDetail.responded_at.is_(None))):
                task = asked.task_instance
                if task.state != "awaiting_input":
                    continue
                assert set(self._answer["chosen_options"]) <= set(asked.options)
                asked.responded_by = {"id": "ada", "name": "ada"}
                asked.responded_at = datetime.now(UTC)
                asked.chosen_options = self._answer["chosen_options"]
                asked.params_input = self._answer["params_input"]
                answer = TriggerEvent(asked.as_resume_event_payload())
                handle_event_submit(answer, task_instance=task, session=session)
                self.bodies.append(asked.body)
            session.commit()
