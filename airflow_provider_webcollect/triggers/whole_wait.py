"""The former path of triggers: tasks that a version up to 0.2 has deferred name it in Airflow's database."""

from __future__ import annotations

from airflow_provider_webcollect.triggers.end_from_trigger import (
    SubTaskStatusEndTrigger as WholeSubTaskWait,
)
from airflow_provider_webcollect.triggers.end_from_trigger import (
    TaskStatusEndTrigger as WholeTaskWait,
)

__all__ = ["WholeSubTaskWait", "WholeTaskWait"]
