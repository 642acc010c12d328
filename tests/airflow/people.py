"""People whom tasks ask."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS, AIRFLOW_V_3_3_PLUS
from airflow.settings import Session
from sqlalchemy import text

asks = pytest.mark.skipif(not AIRFLOW_V_3_1_PLUS, reason="this Airflow cannot ask")
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
        """Answer a question, if there is one, by the function behind Airflow's API."""
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
        from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail

        waiting = text(
            "select body, dag_id, run_id, task_id, map_index "
            "from task_instance join hitl_detail on ti_id = id "
            "where state = 'awaiting_input' and responded_at is null"
        )
        with Session() as session:
            for body, dag_id, run_id, task_id, map_index in session.execute(waiting).all():
                payload = UpdateHITLDetailPayload(**self._answer)
                user = SimpleAuthManagerUser(username="ada", role="admin")
                update_hitl_detail(dag_id, run_id, task_id, payload, user, session, map_index)
                self.bodies.append(body)
            session.commit()
