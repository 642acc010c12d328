"""What Airflow says of a wait's time: that a deferred one is over, and when a rescheduled one began."""

from __future__ import annotations

import contextlib
import datetime
from typing import TYPE_CHECKING, Any

import pytest
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.taskinstance import TaskInstance
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.settings import Session
from sqlalchemy import select, update

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectCapacitySensor,
    WebCollectTaskStatusSensor,
)
from tests.airflow.dag_runs import make_dag, run_tasks
from tests.interruption import PATIENCE

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


def test_a_deferred_wait_whose_time_is_over_ends_as_when_poking(
    timed_out: tuple[str, dict[str, Any]],
) -> None:
    def ending(**arguments: Any) -> type[BaseException]:
        sensor = WebCollectCapacitySensor(task_id="wait", max_active_tasks=1, timeout=90, **arguments)
        # of Airflow's timeouts, one is no Exception
        match = r"not over after (90 s|the execution timeout, 0:01:00)"
        with pytest.raises(BaseException, match=match) as ended:
            sensor.resume_execution(*timed_out, context={})
        return ended.type

    assert ending() is AirflowSensorTimeout
    assert ending(never_fail=True) is AirflowSensorTimeout
    assert ending(soft_fail=True) is AirflowSkipException
    assert ending(execution_timeout=MINUTE) is AirflowTaskTimeout
    assert ending(execution_timeout=MINUTE, soft_fail=True) is AirflowTaskTimeout


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        pytest.param({"timeout": 1}, "failed", marks=pytest.mark.at_night),
        ({"timeout": 1, "soft_fail": True}, "skipped"),
        pytest.param(
            {"timeout": PATIENCE, "execution_timeout": datetime.timedelta(seconds=1)},
            "failed",
            marks=[
                pytest.mark.at_night,
                pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="dag.test() of Airflow 2 raises it"),
            ],
        ),
    ],
)
def test_a_deferred_wait_is_over_in_time_in_dag_test_too(arguments: dict[str, Any], state: str) -> None:
    # Airflow's own timeout of a deferred task is the scheduler's, and there is none
    run = run_tasks(
        lambda: WebCollectTaskStatusSensor(
            task_id="wait",
            collection_task_id=demo.FINISHED_TASK_ID,
            after="now",
            deferrable=True,
            poke_interval=0.2,
            **arguments,
        )
    )

    assert run.states == {"wait": state}


@pytest.mark.skipif(AIRFLOW_V_3_0_PLUS, reason="Airflow 3 gives tasks the time of the first poke")
@pytest.mark.parametrize(("minutes", "state"), [(0, "up_for_reschedule"), (10, "failed")])
def test_a_rescheduled_wait_began_with_its_first_poke(minutes: int, state: str) -> None:
    from airflow.models.taskreschedule import TaskReschedule

    with make_dag() as dag:
        sensor = WebCollectTaskStatusSensor(
            task_id="wait", collection_task_id="gone", mode="reschedule", missing_timeout=60
        )
    now = datetime.datetime.now(datetime.UTC)
    run = dag.create_dagrun(run_id="run", run_type="manual", state="running", execution_date=now)
    instance = run.get_task_instance("wait")
    instance.refresh_from_task(sensor)
    first = now - minutes * MINUTE
    with Session() as session:
        session.add(TaskReschedule("wait", dag.dag_id, "run", instance.try_number, first, first, first))
        session.execute(update(TaskInstance).where(TaskInstance.run_id == "run").values(state="queued"))
        session.commit()
    with contextlib.suppress(AirflowFailException):
        instance.run()

    assert instance.state == state
