"""The old import path of triggers, stored in Airflow's database by tasks that versions up to 0.2 deferred."""

from __future__ import annotations

from airflow_provider_webcollect.triggers.end_from_trigger import (
    SubTaskStatusEndTrigger as WholeSubTaskWait,
)
from airflow_provider_webcollect.triggers.end_from_trigger import (
    TaskStatusEndTrigger as WholeTaskWait,
)

__all__ = ["WholeSubTaskWait", "WholeTaskWait"]
