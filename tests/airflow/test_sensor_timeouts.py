"""What becomes of a deferred sensor whose time is over, by what Airflow's scheduler has it resume with."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pytest
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.taskinstance import TaskInstance
from airflow.providers.common.compat.sdk import (
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow.settings import Session
from sqlalchemy import select, update

from airflow_provider_webcollect.sensors.webcollect import WebCollectCapacitySensor
from tests.airflow.dag_runs import run_tasks

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

MINUTE = datetime.timedelta(minutes=1)


@pytest.fixture
def timed_out(sandbox: Sandbox) -> tuple[str, dict[str, Any]]:
    """What the scheduler has a deferred task resume with once its time is over."""
    run = run_tasks(lambda: WebCollectCapacitySensor(task_id="wait", max_active_tasks=10))
    of_run = TaskInstance.run_id == run.run_id
    past = datetime.datetime.now(datetime.UTC) - MINUTE
    with Session() as session:
        session.execute(update(TaskInstance).where(of_run).values(state="deferred", trigger_timeout=past))
        session.commit()
    SchedulerJobRunner(job=Job()).check_trigger_timeouts()
    with Session() as session:
        resumed = session.scalars(select(TaskInstance).where(of_run)).one()
        return resumed.next_method, resumed.next_kwargs


@pytest.mark.parametrize(
    ("arguments", "ending"),
    [
        ({}, AirflowSensorTimeout),
        ({"never_fail": True}, AirflowSensorTimeout),
        ({"soft_fail": True}, AirflowSkipException),
        ({"execution_timeout": MINUTE}, AirflowTaskTimeout),
        ({"execution_timeout": MINUTE, "soft_fail": True}, AirflowTaskTimeout),
    ],
)
def test_a_deferred_wait_whose_time_is_over_ends_as_when_poking(
    arguments: dict[str, Any], ending: type[Exception], timed_out: tuple[str, dict[str, Any]]
) -> None:
    sensor = WebCollectCapacitySensor(task_id="wait", max_active_tasks=1, timeout=90, **arguments)

    with pytest.raises(ending, match=r"not over after (90 s|the execution timeout, 0:01:00)"):
        sensor.resume_execution(*timed_out, context={})
