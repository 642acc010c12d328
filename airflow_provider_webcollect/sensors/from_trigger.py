"""Whether Airflow can start a sensor's wait in the triggerer, and what the triggerer gets for it.

The triggerer renders templates with less than a worker has: to texts alone, without macros of the DAG's own,
and without an answer to what it must not ask, such as the XComs of all map indexes. What it cannot do is left
to a worker.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.triggers.asked import NOW

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseSensorOperator
    from airflow.triggers.base import StartTriggerArgs

#: The triggerer ends a wait at its timeout; so long after it Airflow does, should the triggerer be unable to.
GRACE = datetime.timedelta(seconds=60)


class NotFromTrigger(Exception):
    """Airflow cannot start the wait in the triggerer. The message says why."""


def start_trigger_args(sensor: BaseSensorOperator, trigger: str, asked: Sequence[str]) -> StartTriggerArgs:
    """Return what the triggerer needs to hold a sensor's whole wait.

    :param trigger: path of the trigger's class.
    :param asked: names of the sensor's arguments that say what is waited for.
    :raises NotFromTrigger: if only a worker can begin the wait.
    """
    from airflow.triggers.base import StartTriggerArgs

    _check(sensor)
    return StartTriggerArgs(
        trigger_cls=trigger,
        trigger_kwargs={
            "poke_interval": sensor.poke_interval,
            "timeout": sensor.timeout,
            "soft_fail": sensor.soft_fail,
            "never_fail": sensor.never_fail,
            **{name: _renderable(sensor, name) for name in ("webcollect_conn_id", *asked)},
        },
        next_method="execute_complete",
        timeout=datetime.timedelta(seconds=sensor.timeout) + GRACE,
    )


def _check(sensor: BaseSensorOperator) -> None:
    if getattr(sensor, "after", None) == NOW:
        raise NotFromTrigger("what the status shows now is for a worker to see")
    if not AIRFLOW_V_3_3_PLUS:
        raise NotFromTrigger("Airflow before 3.3 cannot render its arguments in the triggerer")
    if getattr(sensor, "_BaseOperator__from_mapped", False) or sensor.get_closest_mapped_task_group():
        raise NotFromTrigger("Airflow cannot start mapped tasks in the triggerer")
    if sensor.outlets:
        raise NotFromTrigger("it has outlets, and a task that ends in the triggerer makes no asset events")


def _renderable(sensor: BaseSensorOperator, name: str) -> Any:
    # a list or an object comes out of the triggerer's templates as a text
    filters = " | tojson" if name in sensor.template_fields_renderers else ""
    return _plain(sensor, getattr(sensor, name), filters)


def _plain(sensor: BaseSensorOperator, value: Any, filters: str) -> Any:
    """Return ``value`` as plain JSON, with references to results of other tasks as templates."""
    match value:
        case str():
            if "{{" in value or "{%" in value:
                _check_template(sensor, value)
            return value
        case Mapping():
            return {key: _plain(sensor, item, filters) for key, item in value.items()}
        case list() | tuple():
            return [_plain(sensor, item, filters) for item in value]
    return _template(value, filters) if hasattr(value, "resolve") else value


def _check_template(sensor: BaseSensorOperator, text: str) -> None:
    if text.count("xcom_pull") > text.count("map_indexes"):
        raise NotFromTrigger(
            "its `xcom_pull` has no `map_indexes=-1`, and would never return in the triggerer"
        )
    dag = sensor.get_dag()
    if sensor.render_template_as_native_obj or getattr(dag, "render_template_as_native_obj", False):
        raise NotFromTrigger("its templates are rendered as native objects")
    if getattr(dag, "user_defined_macros", None) or getattr(dag, "user_defined_filters", None):
        raise NotFromTrigger("its DAG has macros or filters of its own")


def _template(reference: Any, filters: str) -> str:
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    if not isinstance(reference, PlainXComArg) or _is_mapped(reference.operator):
        raise NotFromTrigger("only results of single tasks can be had in the triggerer")
    pull = f"task_ids={reference.operator.task_id!r}, key={reference.key!r}, map_indexes=-1"
    return f"{{{{ ti.xcom_pull({pull}){filters} }}}}"


def _is_mapped(operator: Any) -> bool:
    return operator.is_mapped or operator.get_closest_mapped_task_group() is not None
