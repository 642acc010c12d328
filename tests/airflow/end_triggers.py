"""Triggers made of rows of Airflow's database, and from a serialized DAG, as a triggerer makes them."""

from __future__ import annotations

import asyncio
import datetime
import importlib
from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectSubTaskStatusSensor,
    WebCollectTaskStatusSensor,
)
from tests.airflow.dag_runs import make_dag
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.models.trigger import Trigger
    from airflow.providers.common.compat.sdk import DAG
    from airflow.triggers.base import TriggerEvent

SENSORS = {"task": WebCollectTaskStatusSensor, "subtask": WebCollectSubTaskStatusSensor}


def _build(row: Trigger) -> Any:
    """Make a trigger of a row of Airflow's database, as a triggerer does."""
    kwargs = row.kwargs
    if AIRFLOW_V_3_0_PLUS:
        from airflow.serialization.decoders import smart_decode_trigger_kwargs

        kwargs = {name: smart_decode_trigger_kwargs(value) for name, value in kwargs.items()}
    module, _, name = row.classpath.rpartition(".")
    return getattr(importlib.import_module(module), name)(**kwargs)


def start(
    kind: str,
    collection_task_id: Any,
    *,
    waited: float = 0.0,
    then: Callable[[Any], Any] = id,
    dag: DAG | None = None,
    **arguments: Any,
) -> Any:
    """Return a sensor's trigger, ready to run.

    :param waited: how long ago Airflow began the wait, in seconds.
    :param then: adds tasks after the sensor.
    :param dag: holds the tasks whose results are among the arguments.
    """
    from airflow.models.trigger import Trigger
    from airflow.serialization.serialized_objects import DagSerialization

    # the result is stored by Airflow's triggerer, which is not here
    usual = {"poke_interval": 0.2, "timeout": PATIENCE, "do_xcom_push": False, "start_from_trigger": True}
    with dag or make_dag() as dag:
        then(SENSORS[kind](task_id="wait", collection_task_id=collection_task_id, **{**usual, **arguments}))
    task = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("wait")
    trigger = _build(Trigger(task.start_trigger_args.trigger_cls, task.start_trigger_args.trigger_kwargs))
    trigger.task_instance = SimpleNamespace(task=task, task_id="wait")
    limits = [task.start_trigger_args.timeout, task.execution_timeout]
    trigger.timeout_after = (
        datetime.datetime.now(datetime.UTC)
        + min(limit for limit in limits if limit)
        - datetime.timedelta(seconds=waited)
    )
    return trigger


def render(trigger: Any, results: dict[str, Any] | None = None, **params: Any) -> Any:
    """Render a trigger's arguments as the triggerer does; ``results`` are those of other tasks."""

    def pull(*, task_ids: str, key: str, map_indexes: int) -> Any:
        assert (key, map_indexes) == ("return_value", -1)
        return (results or {})[task_ids]

    ti = SimpleNamespace(xcom_pull=pull)
    trigger.render_template_fields({"params": params, "ti": ti})
    return trigger


async def ending(trigger: Any) -> TriggerEvent:
    """Run a trigger as the triggerer does, and return its one event."""
    async with asyncio.timeout(PATIENCE), aclosing(trigger.run()) as events:
        (event,) = [event async for event in events]
    return event


async def state(trigger: Any) -> str | None:
    """Return the state in which a trigger ends its task; None if it leaves that to a worker."""
    return getattr(await ending(trigger), "task_instance_state", None)
