"""The triggers that hold a sensor's whole wait, made from a serialized DAG as a triggerer makes them."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import json
from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectSubTaskStatusSensor,
    WebCollectTaskStatusSensor,
)
from tests.airflow.dag_runs import make_dag

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.triggers.base import TriggerEvent

    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.triggers.whole_wait import _WholeWait

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(stale_seconds=0, run_seconds=10_000),
    pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow before 3.3 cannot start such a wait"),
]

SENSORS = {"task": WebCollectTaskStatusSensor, "subtask": WebCollectSubTaskStatusSensor}
STATUS_PATHS = {"task": "/cloudextraction/statuses/v2", "subtask": "/cloudextraction/task/subtasks"}
each_sensor = pytest.mark.parametrize("kind", SENSORS)


def start(
    kind: str,
    collection_task_id: str,
    *,
    waited: float = 0.0,
    then: Callable[[Any], Any] = id,
    **arguments: Any,
) -> _WholeWait:
    """Return a sensor's trigger, ready to run.

    :param waited: how long ago Airflow began the wait, in seconds.
    :param then: adds tasks after the sensor.
    """
    from airflow.models.trigger import Trigger
    from airflow.serialization.decoders import smart_decode_trigger_kwargs
    from airflow.serialization.serialized_objects import DagSerialization

    # the result is stored by Airflow's triggerer, which is not here
    usual = {"poke_interval": 0.2, "timeout": 60, "do_xcom_push": False, "start_from_trigger": True}
    with make_dag(params={"id": "from-params"}) as dag:
        then(SENSORS[kind](task_id="wait", collection_task_id=collection_task_id, **{**usual, **arguments}))
    task = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("wait")
    stored = Trigger(task.start_trigger_args.trigger_cls, task.start_trigger_args.trigger_kwargs)
    module, _, name = stored.classpath.rpartition(".")
    kwargs = {name: smart_decode_trigger_kwargs(value) for name, value in stored.kwargs.items()}
    trigger: _WholeWait = getattr(importlib.import_module(module), name)(**kwargs)
    trigger.task_instance = SimpleNamespace(task=task, task_id="wait")  # type: ignore[assignment]
    limits = [task.start_trigger_args.timeout, task.execution_timeout]
    trigger.timeout_after = (
        datetime.datetime.now(datetime.UTC)
        + min(limit for limit in limits if limit)
        - datetime.timedelta(seconds=waited)
    )
    return trigger


async def ending(trigger: _WholeWait) -> TriggerEvent:
    """Run a trigger as the triggerer does, and return its one event."""
    async with aclosing(trigger.run()) as events:  # type: ignore[type-var]
        (event,) = [event async for event in events]
    return event


async def state(trigger: _WholeWait) -> str | None:
    """Return the state in which a trigger ends its task; None if it leaves that to a worker."""
    return getattr(await ending(trigger), "task_instance_state", None)


@pytest.fixture
def finished(sandbox: Sandbox) -> str:
    """A task that has finished."""
    return str(sandbox.control.add_task(lots=[1])["task_id"])


@pytest.fixture
def running(sandbox: Sandbox) -> str:
    """A task that is extracting."""
    return str(sandbox.control.add_task(state="Extracting")["task_id"])


@pytest.fixture
def stopped(sandbox: Sandbox) -> str:
    """A task whose run was stopped."""
    return str(sandbox.control.add_task(state="Stopped")["task_id"])


@each_sensor
class TestEndings:
    async def test_a_run_that_ends_well_is_a_success(self, kind: str, running: str, sandbox: Sandbox) -> None:
        waiting = asyncio.create_task(state(start(kind, running)))
        while not sandbox.control.requests(STATUS_PATHS[kind]):
            await asyncio.sleep(0.05)
        sandbox.control.advance(10_000)

        assert await waiting == "success"

    async def test_a_stopped_run_is_a_failure(self, kind: str, stopped: str) -> None:
        assert await state(start(kind, stopped)) == "failed"

    @pytest.mark.parametrize("lenient", ["soft_fail", "never_fail"])
    async def test_a_stopped_run_skips_a_lenient_wait(self, kind: str, lenient: str, stopped: str) -> None:
        assert await state(start(kind, stopped, retries=3, **{lenient: True})) == "skipped"

    async def test_a_failure_that_must_not_be_retried_is_left_to_a_worker(
        self, kind: str, stopped: str
    ) -> None:
        event = await ending(start(kind, stopped, retries=3))

        assert not hasattr(event, "task_instance_state")
        assert event.payload["outcome"] == "failed"

    async def test_a_refusal_by_the_service_is_a_failure(
        self, kind: str, running: str, sandbox: Sandbox
    ) -> None:
        sandbox.control.fail(STATUS_PATHS[kind], status=403, times=None)

        assert await state(start(kind, running)) == "failed"

    @pytest.mark.parametrize(("lenient", "end"), [(None, "failed"), ("soft_fail", "skipped")])
    async def test_a_wait_that_takes_too_long_ends(
        self, kind: str, lenient: str | None, end: str, running: str
    ) -> None:
        lenience = {lenient: True} if lenient else {}
        assert await state(start(kind, running, timeout=0.5, **lenience)) == end

    async def test_a_wait_begins_once_however_often_the_triggerer_restarts(
        self, kind: str, running: str
    ) -> None:
        assert await state(start(kind, running, timeout=1000, waited=999.5)) == "failed"

    async def test_an_execution_timeout_does_not_end_the_wait_before_its_time(
        self, kind: str, finished: str
    ) -> None:
        limit = datetime.timedelta(seconds=60)

        assert await state(start(kind, finished, timeout=30, execution_timeout=limit)) == "success"

    async def test_a_wrong_argument_fails_even_a_lenient_wait(self, kind: str, sandbox: Sandbox) -> None:
        trigger = start(kind, "{{ params.nothing }}", soft_fail=True)
        trigger.render_template_fields({"params": {"nothing": ""}})  # type: ignore[typeddict-unknown-key]

        assert await state(trigger) == "failed"
        assert sandbox.control.requests() == []

    async def test_a_result_that_others_are_mapped_over_is_left_to_a_worker(
        self, kind: str, finished: str
    ) -> None:
        def map_over(sensor: Any) -> None:
            SENSORS[kind].partial(task_id="next").expand(collection_task_id=sensor.output)

        event = await ending(start(kind, finished, then=map_over))

        assert not hasattr(event, "task_instance_state")
        assert event.payload["outcome"] == "done"


@each_sensor
def test_arguments_are_rendered_by_the_triggerer(kind: str, sandbox: Sandbox) -> None:
    trigger = start(kind, "{{ params.id }}", webcollect_conn_id="{{ params.id }}_default")
    trigger.render_template_fields({"params": {"id": "from-params"}})  # type: ignore[typeddict-unknown-key]
    _, arguments = trigger.serialize()

    assert arguments["collection_task_id"] == "from-params"
    assert arguments["webcollect_conn_id"] == "from-params_default"


@each_sensor
def test_a_trigger_survives_being_stored(kind: str, running: str) -> None:
    trigger = start(kind, running)
    path, arguments = trigger.serialize()
    again = type(trigger)(**json.loads(json.dumps(arguments)))

    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    assert again.serialize() == (path, arguments)
