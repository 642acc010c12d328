"""Sensors whose wait is to start in the triggerer: what Airflow gets for it, and what is left to a worker.

What a real triggerer makes of it is in ``test_start_from_trigger.py``, what the trigger does in
``test_end_from_trigger.py``.
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import DAG, TaskDeferred, task_group
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from jinja2 import Undefined

from airflow_provider_webcollect.assets import create_asset
from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from tests.airflow.dag_runs import make_dag
from tests.airflow.end_triggers import SENSORS
from tests.airflow.executions import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [pytest.mark.at_night, pytest.mark.usefixtures("airflow_database", "connected")]

each_sensor = pytest.mark.parametrize("kind", SENSORS)


class TestOnEveryAirflow:
    @each_sensor
    def test_where_airflow_cannot_do_it_the_wait_is_deferred(self, kind: str) -> None:
        # as for a task that a worker got, and on Airflow before 3.3
        sensor = SENSORS[kind](task_id="wait", collection_task_id="a", start_from_trigger=True)
        with pytest.raises(TaskDeferred):
            execute(sensor)

    def test_it_is_not_on_unless_asked_for(self) -> None:
        sensor = WebCollectTaskStatusSensor(task_id="wait", collection_task_id="a", deferrable=True)

        assert not sensor.start_from_trigger

    @pytest.mark.skipif(AIRFLOW_V_3_3_PLUS, reason="Airflow can do it")
    def test_the_log_tells_that_airflow_is_too_old(self, said: Callable[[], str]) -> None:
        with pytest.raises(TaskDeferred):
            execute(
                WebCollectTaskStatusSensor(task_id="wait", collection_task_id="a", start_from_trigger=True)
            )

        assert said().count("defers it: Airflow before 3.3 cannot render its arguments") == 1


@pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow cannot do it")
class TestOnNewAirflow:
    def start(self, dag: DAG | None = None, **arguments: Any) -> Any:
        """Return a sensor that is to start from the triggerer."""
        usual = {"collection_task_id": "a"} if "collection_task_ids" not in arguments else {}
        with dag or make_dag():
            return WebCollectTaskStatusSensor(
                task_id="wait", start_from_trigger=True, **{**usual, **arguments}
            )

    def test_the_trigger_gets_plain_json_without_secrets(self, sandbox: Sandbox) -> None:
        sensor = self.start(timeout=90, poke_interval=5)
        kwargs = sensor.start_trigger_args.trigger_kwargs

        assert sensor.start_from_trigger
        assert json.loads(json.dumps(kwargs)) == kwargs
        assert sandbox.refresh_token not in json.dumps(kwargs)
        assert sensor.start_trigger_args.timeout == datetime.timedelta(seconds=150)

    def test_results_of_other_tasks_are_for_the_trigger_to_ask_for(self) -> None:
        with make_dag() as dag:
            first, second = (
                WebCollectStartSubTasksOperator(task_id=name, collection_task_id="a")
                for name in ("first", "second")
            )
        sensor = self.start(dag, collection_task_ids=first.output["ids"], after=[first.output, second.output])

        kwargs = sensor.start_trigger_args.trigger_kwargs
        assert kwargs["collection_task_ids"] == {
            "xcom_pull": {"task_ids": "first", "key": "ids", "map_indexes": -1}
        }
        assert kwargs["after"] == [
            {"xcom_pull": {"task_ids": name, "key": "return_value", "map_indexes": -1}}
            for name in ("first", "second")
        ]
        assert sensor.upstream_task_ids == {"first", "second"}

    @pytest.mark.parametrize(
        "template",
        [
            "{{ ti.xcom_pull('other') }}",
            "{{ ti.xcom_pull('other') }}{# map_indexes #}",
            "{{ ti.xcom_pull('other', key='map_indexes') }}",
            "{{ ti['xcom_pull']('other') }}",
            "{% set pull = ti.xcom_pull %}{{ pull('other') }}",
            "{{ ti.xcom_pull('one', map_indexes=-1, key='map_indexes') or ti.xcom_pull('other') }}",
        ],
    )
    def test_what_the_triggerer_would_never_get_an_answer_to_is_left_to_a_worker(self, template: str) -> None:
        sensor = self.start(collection_task_id=template)

        assert not sensor.start_from_trigger
        assert "map_indexes=-1" in sensor._why_from_worker

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"render_template_as_native_obj": True}, "native objects"),
            ({"user_defined_macros": {"mine": 1}}, "macros or filters of its own"),
            ({"user_defined_filters": {"mine": str}}, "macros or filters of its own"),
            ({"template_undefined": Undefined}, "Jinja environment of its own"),
            ({"jinja_environment_kwargs": {"trim_blocks": True}}, "Jinja environment of its own"),
        ],
    )
    def test_templates_that_the_triggerer_renders_otherwise_are_left_to_a_worker(
        self, options: dict[str, Any], why: str
    ) -> None:
        templated = self.start(make_dag(**options), collection_task_id="{{ params.id }}")
        literal = self.start(make_dag(**options))
        with make_dag(**options) as dag:
            first = WebCollectStartSubTasksOperator(task_id="first", collection_task_id="a")
        referring = self.start(dag, after=first.output)

        assert not templated.start_from_trigger
        assert why in templated._why_from_worker
        assert literal.start_from_trigger
        assert referring.start_from_trigger

    @pytest.mark.parametrize("result", ["mapped", "changed"])
    def test_more_than_the_result_of_a_single_task_is_left_to_a_worker(self, result: str) -> None:
        with make_dag() as dag:
            results = {
                "mapped": WebCollectStartSubTasksOperator.partial(task_id="mapped")
                .expand(collection_task_id=["a"])
                .output,
                "changed": WebCollectStartSubTasksOperator(task_id="one", collection_task_id="b").output.map(
                    dict
                ),
            }
        sensor = self.start(dag, after=results[result])

        assert not sensor.start_from_trigger
        assert "only results of single tasks" in sensor._why_from_worker

    def test_what_is_not_plain_json_is_left_to_a_worker(self) -> None:
        sensor = self.start(collection_task_ids={"a", "b"})

        assert not sensor.start_from_trigger
        assert "and plain JSON, are available in the triggerer" in sensor._why_from_worker

    def test_a_task_with_outlets_is_left_to_a_worker(self) -> None:
        sensor = self.start(outlets=[create_asset(collection_task_id="a")])

        assert not sensor.start_from_trigger
        assert "asset events" in sensor._why_from_worker

    def test_a_task_of_a_mapped_group_is_left_to_a_worker(self) -> None:
        @task_group
        def group(number: int) -> None:
            sensors.append(self.start(dag))

        sensors: list[Any] = []
        with make_dag() as dag:
            group.expand(number=[1, 2])

        assert not sensors[0].start_from_trigger
        assert "mapped" in sensors[0]._why_from_worker
