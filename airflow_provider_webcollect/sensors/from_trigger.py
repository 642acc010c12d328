"""Whether Airflow can start a sensor's wait in the triggerer, and which arguments the trigger gets.

The triggerer renders templates with restrictions: results are strings, the DAG's own Jinja settings are
missing, and some requests get no response, such as for the XComs of all map indexes. A sensor that needs more
begins its wait in a worker.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.common import GRACE, NOW_NEEDS_WORKER, XCOM_PULL, is_unmapped
from airflow_provider_webcollect.waiting.arguments import NOW

if TYPE_CHECKING:
    from airflow.triggers.base import StartTriggerArgs

    from airflow_provider_webcollect.sensors.webcollect import WaitSensor


class NotFromTrigger(Exception):
    """Airflow cannot start the wait in the triggerer. The message says why."""


def start_trigger_args(sensor: WaitSensor, trigger: str, names: Sequence[str]) -> StartTriggerArgs:
    """Return Airflow's arguments for a wait that runs entirely in the triggerer.

    :param trigger: path of the trigger's class.
    :param names: names of the sensor's arguments that define the condition.
    :raises NotFromTrigger: if only a worker can begin the wait.
    """
    from airflow.triggers.base import StartTriggerArgs

    _check(sensor)
    given = {name: value for name in names if (value := getattr(sensor, name)) is not None}
    return StartTriggerArgs(
        trigger_cls=trigger,
        trigger_kwargs={
            "poke_interval": sensor.poke_interval,
            "timeout": sensor.timeout,
            "execution_timeout": sensor.execution_timeout and sensor.execution_timeout.total_seconds(),
            "soft_fail": sensor.soft_fail,
            "never_fail": sensor.never_fail,
            "webcollect_conn_id": _plain(sensor, sensor.webcollect_conn_id),
            **{name: _plain(sensor, value) for name, value in given.items()},
        },
        next_method="execute_complete",
        timeout=datetime.timedelta(seconds=sensor.timeout) + GRACE,
    )


def _check(sensor: WaitSensor) -> None:
    if getattr(sensor, "after", None) == NOW:
        raise NotFromTrigger(NOW_NEEDS_WORKER)
    if not AIRFLOW_V_3_3_PLUS:
        raise NotFromTrigger("Airflow before 3.3 cannot render its arguments in the triggerer")
    if is_unmapped(sensor) or sensor.get_closest_mapped_task_group():
        raise NotFromTrigger("Airflow cannot start mapped tasks in the triggerer")
    if sensor.outlets:
        raise NotFromTrigger("it has outlets, and a task that ends in the triggerer makes no asset events")


def _plain(sensor: WaitSensor, value: Any) -> Any:
    """Return ``value`` as plain JSON, with references instead of other tasks' results."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            if "{{" in value or "{%" in value:
                _check_template(sensor, value)
            return value
        case dict():
            return {key: _plain(sensor, item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(sensor, item) for item in value]
    return {XCOM_PULL: _pull(value)}


def _check_template(sensor: WaitSensor, text: str) -> None:
    from jinja2 import StrictUndefined

    if _lacks_map_index(sensor, text):
        raise NotFromTrigger(
            "its `xcom_pull` has no `map_indexes=-1`, and would never return in the triggerer"
        )
    dag: Any = sensor.get_dag()
    if sensor.render_template_as_native_obj or getattr(dag, "render_template_as_native_obj", False):
        raise NotFromTrigger("its templates are rendered as native objects")
    if getattr(dag, "user_defined_macros", None) or getattr(dag, "user_defined_filters", None):
        raise NotFromTrigger("its DAG has macros or filters of its own")
    if dag and (dag.jinja_environment_kwargs or dag.template_undefined is not StrictUndefined):
        raise NotFromTrigger("its DAG has a Jinja environment of its own")


def _lacks_map_index(sensor: WaitSensor, text: str) -> bool:
    """Return whether a template may call ``xcom_pull`` without ``map_indexes``, which requests all."""
    from jinja2 import TemplateSyntaxError, nodes

    try:
        calls = sensor.get_template_env().parse(text).find_all(nodes.Call)
    except TemplateSyntaxError:
        return False  # rendering fails in the triggerer as it would in a worker
    named = [
        call
        for call in calls
        if getattr(call.node, "attr", None) == "xcom_pull"
        and any(each.key == "map_indexes" for each in call.kwargs)
    ]
    # any other occurrence may be such a call, for example through an alias
    return text.count("xcom_pull") > len(named)


def _pull(reference: Any) -> dict[str, Any]:
    """Return the arguments of the ``xcom_pull`` that gets the result of another task."""
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    if not isinstance(reference, PlainXComArg) or _is_mapped(reference.operator):
        raise NotFromTrigger("only results of single tasks, and plain JSON, are available in the triggerer")
    # without a map index, the triggerer would send a request that gets no response
    return {"task_ids": reference.operator.task_id, "key": reference.key, "map_indexes": -1}


def _is_mapped(operator: Any) -> bool:
    return operator.is_mapped or operator.get_closest_mapped_task_group() is not None
