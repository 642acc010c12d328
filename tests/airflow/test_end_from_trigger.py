"""The triggers that hold a sensor's whole wait, made from a serialized DAG as a triggerer makes them."""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from jinja2 import UndefinedError

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.webcollect import WebCollectGetRunningCountsOperator
from tests.airflow.dag_runs import make_dag
from tests.airflow.end_triggers import SENSORS, ending, render, start, state

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import DAG

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.at_night,
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(stale_seconds=0, run_seconds=10_000, enforce_limits=False),
    pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow before 3.3 cannot start such a wait"),
]

STATUS_PATHS = {"task": "/cloudextraction/statuses/v2", "subtask": "/cloudextraction/task/subtasks"}
each_sensor = pytest.mark.parametrize("kind", SENSORS)


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


def missing(kind: str, running: str) -> dict[str, Any]:
    """Return the arguments of a wait for what the service never shows."""
    if kind == "subtask":
        return {"collection_task_id": running, "sub_task_ids": ["nowhere"]}
    return {"collection_task_id": "nowhere"}


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

    async def test_a_timeout_of_something_else_is_not_that_of_the_wait(
        self, kind: str, running: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def aload(hook: WebCollectHook) -> None:
            raise TimeoutError("the secrets backend does not answer")

        monkeypatch.setattr(WebCollectHook, "aload", aload)
        with pytest.raises(TimeoutError, match="secrets backend"):
            await state(start(kind, running, soft_fail=True))

    async def test_a_wait_begins_once_however_often_the_triggerer_restarts(
        self, kind: str, running: str
    ) -> None:
        assert await state(start(kind, running, timeout=1000, waited=999.5)) == "failed"

    @pytest.mark.parametrize(
        ("before", "now"),
        [
            ({"timeout": 5000}, {}),
            ({}, {"timeout": 5000}),
            ({"execution_timeout": datetime.timedelta(seconds=5000)}, {}),
        ],
        ids=["longer timeout", "shorter timeout", "no execution timeout"],
    )
    async def test_other_limits_in_an_edited_dag_do_not_move_the_beginning_of_the_wait(
        self, kind: str, running: str, before: dict[str, Any], now: dict[str, Any]
    ) -> None:
        usual = {"timeout": 100_000, "missing_timeout": 3600, "retries": 1, **missing(kind, running)}
        trigger = start(kind, waited=3700, **{**usual, **before})
        trigger.task_instance = start(kind, **{**usual, **now}).task_instance
        event = await ending(trigger)

        assert event.payload["outcome"] == "failed"
        assert " since 37" in event.payload["reason"]

    async def test_a_shorter_execution_timeout_in_an_edited_dag_does_not_put_the_beginning_into_the_future(
        self, kind: str, running: str
    ) -> None:
        usual = {"timeout": 100_000, "missing_timeout": 0.5, "retries": 1, **missing(kind, running)}
        trigger = start(kind, waited=10, **usual)
        limit = datetime.timedelta(seconds=5000)
        trigger.task_instance = start(kind, execution_timeout=limit, **usual).task_instance

        assert (await ending(trigger)).payload["outcome"] == "failed"

    async def test_an_execution_timeout_does_not_end_the_wait_before_its_time(
        self, kind: str, finished: str
    ) -> None:
        limit = datetime.timedelta(seconds=60)

        assert await state(start(kind, finished, timeout=30, execution_timeout=limit)) == "success"

    async def test_a_wrong_argument_fails_even_a_lenient_wait(self, kind: str, sandbox: Sandbox) -> None:
        trigger = start(kind, "{{ params.nothing }}", soft_fail=True)

        assert await state(render(trigger, nothing="")) == "failed"
        assert sandbox.control.requests() == []

    async def test_a_result_that_others_are_mapped_over_is_left_to_a_worker(
        self, kind: str, finished: str
    ) -> None:
        def map_over(sensor: Any) -> None:
            SENSORS[kind].partial(task_id="next").expand(collection_task_id=sensor.output)

        event = await ending(start(kind, finished, then=map_over))

        assert not hasattr(event, "task_instance_state")
        assert event.payload["outcome"] == "done"


class TestArguments:
    """What a real triggerer makes of them, and a worker too, is in ``test_start_from_trigger.py``."""

    @pytest.fixture
    def dag(self) -> DAG:
        """A DAG with two tasks whose results a wait is given."""
        with make_dag() as dag:
            for name in ("one", "two"):
                WebCollectGetRunningCountsOperator(task_id=name)
        return dag

    @each_sensor
    def test_templates_are_rendered_by_the_triggerer(self, kind: str) -> None:
        trigger = start(kind, "{{ params.id }}", webcollect_conn_id="{% do [] %}{{ params.id }}_default")
        _, arguments = render(trigger, id="from-params").serialize()

        assert arguments["collection_task_id"] == "from-params"
        assert arguments["webcollect_conn_id"] == "from-params_default"

    @each_sensor
    def test_a_name_that_is_not_there_is_no_empty_text(self, kind: str) -> None:
        trigger = start(kind, "task-{{ params.typo }}")

        with pytest.raises(UndefinedError, match="typo"):
            render(trigger)

    @each_sensor
    @pytest.mark.parametrize("result", ["a", 7, ["a", 7], {"id": "a"}])
    def test_results_of_other_tasks_are_had_as_they_are(self, kind: str, result: Any, dag: DAG) -> None:
        trigger = start(kind, dag.get_task("one").output, dag=dag)

        assert render(trigger, {"one": result}).collection_task_id == result

    def test_also_those_within_lists_and_objects(self, dag: DAG) -> None:
        one, two = dag.get_task("one").output, dag.get_task("two").output
        trigger = start(
            "task",
            None,
            collection_task_ids=[one, two, "c"],
            after=[{"collection_task_id": one, "after": two}],
            dag=dag,
        )
        render(trigger, {"one": 7, "two": {"executed_times": 1}})

        assert trigger.collection_task_ids == [7, {"executed_times": 1}, "c"]
        assert trigger.after == [{"collection_task_id": 7, "after": {"executed_times": 1}}]

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            ("task", "collection_task_id"),
            ("task", "collection_task_ids"),
            ("task", "after"),
            ("task", "webcollect_conn_id"),
            ("subtask", "collection_task_id"),
            ("subtask", "sub_task_ids"),
        ],
    )
    async def test_a_result_that_is_not_there_is_not_taken_for_nothing_given(
        self, kind: str, name: str, dag: DAG, sandbox: Sandbox
    ) -> None:
        arguments: dict[str, Any] = {
            "collection_task_id": None if name == "collection_task_ids" else "a",
            name: dag.get_task("one").output,
        }
        trigger = start(kind, retries=1, dag=dag, **arguments)
        event = await ending(render(trigger, {"one": None}))

        assert event.payload["outcome"] == "refused"
        assert event.payload["reason"] == f"`{name}` is None; it was given, but there is no such result"
        assert sandbox.control.requests() == []

    @pytest.mark.parametrize(
        "after", ["", "[]", "{}", "null", '"now"', "then", '[{"collection_task_id": "a"}]']
    )
    async def test_what_is_no_baseline_is_not_taken_for_none(self, after: str, finished: str) -> None:
        trigger = start("task", finished, after="{{ params.after }}", retries=1)
        event = await ending(render(trigger, after=after))

        assert event.payload["outcome"] == "refused"
        assert event.payload["reason"].startswith("`after` is ")

    async def test_a_baseline_holds_for_an_id_that_is_a_number(self, dag: DAG, sandbox: Sandbox) -> None:
        sandbox.control.add_task(task_id="7", lots=[1])
        one = dag.get_task("one").output
        after = {"collection_task_id": one, "after": {"executed_times": 1}}
        trigger = start("task", one, after=after, timeout=0.5, soft_fail=True, dag=dag)

        assert await state(render(trigger, {"one": 7})) == "skipped"

    @pytest.mark.parametrize("after", ["template", "result"])
    async def test_what_the_status_shows_now_is_left_to_a_worker(
        self, after: str, dag: DAG, finished: str
    ) -> None:
        given = {"template": "{{ params.after }}", "result": dag.get_task("one").output}
        trigger = start("task", finished, after=given[after], dag=dag)
        event = await ending(render(trigger, {"one": "now"}, after="now"))

        assert not hasattr(event, "task_instance_state")
        assert event.payload["outcome"] == "left"


@each_sensor
def test_a_trigger_survives_being_stored(kind: str, running: str) -> None:
    trigger = start(kind, running)
    path, arguments = trigger.serialize()
    again = type(trigger)(**json.loads(json.dumps(arguments)))

    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    assert again.serialize() == (path, arguments)
