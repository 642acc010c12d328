"""The sensors, each as a task of a DAG run: poking, rescheduling and deferred they decide alike."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
    task_group,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS
from jinja2 import Undefined

from airflow_provider_webcollect.assets import create_asset
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectGetRunningCountsOperator,
    WebCollectStartSubTasksOperator,
)
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectSubTaskStatusSensor,
    WebCollectTaskStatusSensor,
)
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError
from tests.airflow.dag_runs import FinishedRun, make_dag, run_dag, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(
        enforce_limits=False, wait_seconds=0.2, run_seconds=0.4, stale_seconds=0, subtasks=2
    ),
]

MODES: dict[str, dict[str, Any]] = {
    "poke": {"mode": "poke"},
    "reschedule": {"mode": "reschedule"},
    "deferrable": {"deferrable": True},
}
RETRIES = {"retries": 3, "retry_delay": datetime.timedelta(0)}
SENSORS = {"task": WebCollectTaskStatusSensor, "subtask": WebCollectSubTaskStatusSensor}
STATUS_PATHS = {"task": "/cloudextraction/statuses/v2", "subtask": "/cloudextraction/task/subtasks"}

each_mode = pytest.mark.parametrize("mode", MODES)
each_sensor = pytest.mark.parametrize("kind", SENSORS)


def wait(sensor: type[Any], mode: str, task: dict[str, Any] | str | None, **arguments: Any) -> FinishedRun:
    """Run a sensor in a mode; ``task`` is what it waits for."""
    if task is not None:
        arguments["collection_task_id"] = task if isinstance(task, str) else task["task_id"]
    usual = {"poke_interval": 0.1, "timeout": 60, **MODES[mode]}
    return run_tasks(lambda: sensor(task_id="wait", **{**usual, **arguments}))


@pytest.fixture
def running(sandbox: Sandbox) -> dict[str, Any]:
    """A task whose run is going to end."""
    task = sandbox.control.add_task(rows=20)
    sandbox.control.start_task(task["task_id"])
    return task


@pytest.fixture
def stopped(sandbox: Sandbox) -> dict[str, Any]:
    """A task whose run was stopped."""
    return sandbox.control.add_task(state="Stopped")


@pytest.fixture
def endless(sandbox: Sandbox) -> dict[str, Any]:
    """A task whose run does not end during a test."""
    sandbox.control.configure(run_seconds=10_000)
    return sandbox.control.add_task(state="Extracting")


@each_mode
@each_sensor
class TestBothSensors:
    def test_a_run_that_ends_well_ends_the_wait_well(
        self, kind: str, mode: str, endless: dict[str, Any], sandbox: Sandbox, after_requests: Any
    ) -> None:
        after_requests(1, STATUS_PATHS[kind], sandbox.control.advance, 10_000)
        run = wait(SENSORS[kind], mode, endless)

        assert run.states == {"wait": "success"}
        assert sandbox.control.task(endless["task_id"])["state"] == "Finished"
        assert len(sandbox.control.requests(STATUS_PATHS[kind])) >= 2

    def test_a_stopped_run_fails_the_wait_without_retries(
        self, kind: str, mode: str, stopped: dict[str, Any]
    ) -> None:
        run = wait(SENSORS[kind], mode, stopped, **RETRIES)

        assert (run.states, run.tries) == ({"wait": "failed"}, {"wait": 1})

    @pytest.mark.parametrize("lenient", ["soft_fail", "never_fail"])
    def test_a_stopped_run_skips_a_lenient_wait(
        self, kind: str, mode: str, lenient: str, stopped: dict[str, Any]
    ) -> None:
        run = wait(SENSORS[kind], mode, stopped, **{lenient: True})

        assert run.states == {"wait": "skipped"}

    @pytest.mark.parametrize(
        "states",
        [
            {"target_states": ["Stopped"], "failure_states": []},
            # a failure state by default, too
            {"target_states": ["Finished", "Stopped"]},
        ],
        ids=["one", "two"],
    )
    def test_states_may_be_chosen(
        self, kind: str, mode: str, states: dict[str, Any], stopped: dict[str, Any]
    ) -> None:
        run = wait(SENSORS[kind], mode, stopped, **states)

        assert run.states == {"wait": "success"}

    def test_an_error_that_cannot_get_better_is_not_retried(
        self, kind: str, mode: str, running: dict[str, Any], sandbox: Sandbox, said: Callable[[], str]
    ) -> None:
        sandbox.control.fail(STATUS_PATHS[kind], status=403, times=None)
        run = wait(SENSORS[kind], mode, running, **RETRIES)

        assert (run.states, run.tries) == ({"wait": "failed"}, {"wait": 1})
        assert "HTTP 403 PermissionDenied" in said()

    def test_a_lost_connection_does_not_end_the_wait(
        self, kind: str, mode: str, running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        sandbox.control.fail(STATUS_PATHS[kind], kind="drop", after=1, times=1)
        run = wait(SENSORS[kind], mode, running)

        assert (run.states, run.tries) == ({"wait": "success"}, {"wait": 1})

    def test_what_stays_missing_is_explained(
        self, kind: str, mode: str, sandbox: Sandbox, said: Callable[[], str]
    ) -> None:
        missing = sandbox.control.add_task()
        arguments = {"task": {}, "subtask": {"sub_task_ids": ["no-such-sub-task"]}}[kind]
        run = wait(SENSORS[kind], mode, missing, missing_timeout=0.5, **arguments, **RETRIES)

        assert (run.states, run.tries) == ({"wait": "failed"}, {"wait": 1})
        assert {
            "task": "is Unexecuted since 1 s: check the id and that something starts the task",
            "subtask": "not in the latest batch: no-such-sub-task since 1 s: check the ids",
        }[kind] in re.sub(r"since \d+ s", "since 1 s", said())


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
@each_sensor
@pytest.mark.parametrize(("lenient", "state"), [({}, "failed"), ({"soft_fail": True}, "skipped")])
def test_a_wait_that_takes_too_long_ends(
    kind: str, mode: str, lenient: dict[str, Any], state: str, endless: dict[str, Any]
) -> None:
    run = wait(SENSORS[kind], mode, endless, timeout=0.3, **lenient, **RETRIES)

    assert (run.states, run.tries) == ({"wait": state}, {"wait": 1})


@each_mode
def test_a_status_that_is_not_known_means_going_on(mode: str, sandbox: Sandbox, after_requests: Any) -> None:
    task = sandbox.control.add_task(state="Dreaming")
    after_requests(1, STATUS_PATHS["task"], sandbox.control.mark_state, task["task_id"], "Finished")
    run = wait(WebCollectTaskStatusSensor, mode, task)

    assert run.states == {"wait": "success"}
    assert len(sandbox.control.requests(STATUS_PATHS["task"])) >= 2


@each_mode
def test_the_finished_of_the_run_before_does_not_pass(mode: str, sandbox: Sandbox) -> None:
    sandbox.control.configure(stale_seconds=1.2)
    task = sandbox.control.add_task(lots=[10], rows=20)
    with make_dag() as dag:
        start = WebCollectStartSubTasksOperator(task_id="start", collection_task_id=task["task_id"])
        WebCollectTaskStatusSensor(
            task_id="wait",
            collection_task_id=task["task_id"],
            after=start.output,
            poke_interval=0.1,
            **MODES[mode],
        )
    run = run_dag(dag)

    assert run.states == {"start": "success", "wait": "success"}
    assert run.xcoms["wait"]["executed_times"] == 2
    assert run.xcoms["wait"]["current_total_extract_count"] >= 20


@each_mode
def test_after_a_settle_time_the_status_counts_anyway(mode: str, sandbox: Sandbox) -> None:
    task = sandbox.control.add_task(lots=[10])
    after = {"collection_task_id": task["task_id"], "after": {"executed_times": 1}}
    began = time.monotonic()
    run = wait(WebCollectTaskStatusSensor, mode, task, after=after, settle=0.5)

    assert run.states == {"wait": "success"}
    assert time.monotonic() - began > 0.5


def test_a_sensor_that_is_poked_directly_waits_for_the_run_after_now(sandbox: Sandbox) -> None:
    task = sandbox.control.add_task(lots=[10])
    sensor = WebCollectTaskStatusSensor(
        task_id="wait", collection_task_id=task["task_id"], after="now", mode="poke"
    )

    assert not sensor.poke({}).is_done


@each_mode
def test_one_task_gives_its_record_to_xcom(mode: str, sandbox: Sandbox) -> None:
    task = sandbox.control.add_task(lots=[40])
    record = wait(WebCollectTaskStatusSensor, mode, task).xcoms["wait"]

    assert {name: record[name] for name in ("task_id", "status", "executed_times", "sub_task_count")} == {
        "task_id": task["task_id"],
        "status": "Finished",
        "executed_times": 1,
        "sub_task_count": 2,
    }
    assert datetime.datetime.fromisoformat(record["end_execute_time"])


@each_mode
@pytest.mark.parametrize("how_many", ["all", "any"])
def test_many_tasks_give_their_records_to_xcom(mode: str, how_many: str, sandbox: Sandbox) -> None:
    first = sandbox.control.add_task(lots=[1])
    second = sandbox.control.add_task(lots=[1]) if how_many == "all" else sandbox.control.add_task()
    ids = [first["task_id"], second["task_id"]]
    run = wait(WebCollectTaskStatusSensor, mode, None, collection_task_ids=ids, wait_for=how_many)

    assert [(record["task_id"], record["status"]) for record in run.xcoms["wait"]] == [
        (ids[0], "Finished"),
        (ids[1], "Finished" if how_many == "all" else "Unexecuted"),
    ]


@each_mode
def test_one_stopped_task_fails_a_wait_for_all(
    mode: str, stopped: dict[str, Any], endless: dict[str, Any]
) -> None:
    ids = [endless["task_id"], stopped["task_id"]]
    run = wait(WebCollectTaskStatusSensor, mode, None, collection_task_ids=ids)

    assert run.states == {"wait": "failed"}


@each_mode
def test_one_stopped_task_does_not_fail_a_wait_for_any(
    mode: str, stopped: dict[str, Any], running: dict[str, Any]
) -> None:
    ids = [running["task_id"], stopped["task_id"]]
    run = wait(WebCollectTaskStatusSensor, mode, None, collection_task_ids=ids, wait_for="any")

    assert run.states == {"wait": "success"}


@each_mode
def test_subtasks_give_their_records_to_xcom(mode: str, sandbox: Sandbox) -> None:
    task = sandbox.control.add_task(lots=[1], subtasks=25)
    run = wait(WebCollectSubTaskStatusSensor, mode, task)

    assert run.xcoms["wait"] == [
        {"sub_task_id": subtask["subtask_id"], "status": "Finished"} for subtask in task["subtasks"]
    ]


@each_mode
def test_only_the_named_subtasks_are_waited_for(mode: str, sandbox: Sandbox) -> None:
    task = sandbox.control.add_task(lots=[1])
    first, second = (subtask["subtask_id"] for subtask in task["subtasks"])
    # the second's state would fail the wait
    sandbox.control.configure(run_seconds=10_000)
    sandbox.control.start_task(task["task_id"])
    sandbox.control.stop_task(task["task_id"])

    named = wait(
        WebCollectSubTaskStatusSensor,
        mode,
        task,
        sub_task_ids=[first],
        target_states=["Stopped"],
        failure_states=[],
    )
    everything = wait(WebCollectSubTaskStatusSensor, mode, task)

    assert named.states == {"wait": "success"}
    assert everything.states == {"wait": "failed"}
    assert second in {record["sub_task_id"] for record in named.xcoms["wait"]}


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_only_changes_are_logged(
    mode: str, sandbox: Sandbox, endless: dict[str, Any], after_requests: Any, said: Callable[[], str]
) -> None:
    after_requests(5, STATUS_PATHS["subtask"], sandbox.control.advance, 10_000)
    run = wait(WebCollectSubTaskStatusSensor, mode, endless)

    logged = said()
    assert run.states == {"wait": "success"}
    assert logged.count("0/2 Finished, 2 Extracting") == 1
    # the trigger says it in its own log, and the sensor when it goes on
    assert logged.count("2/2 Finished") == {"poke": 1, "deferrable": 2}[mode]


@pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="it ends `dag.test()` itself on Airflow 2")
def test_an_execution_timeout_is_for_retries(endless: dict[str, Any]) -> None:
    # long enough for one poll, so that it passes while the sensor sleeps
    limit = datetime.timedelta(seconds=4)
    run = wait(
        WebCollectTaskStatusSensor,
        "poke",
        endless,
        poke_interval=60,
        execution_timeout=limit,
        retries=1,
        retry_delay=datetime.timedelta(0),
    )

    assert (run.states, run.tries) == ({"wait": "failed"}, {"wait": 2})


@each_mode
@each_sensor
@pytest.mark.parametrize("lenient", [{}, {"never_fail": True}, {"soft_fail": True}])
def test_a_passing_trouble_ends_no_wait(
    kind: str, mode: str, lenient: dict[str, Any], running: dict[str, Any], sandbox: Sandbox
) -> None:
    # an error that the client does not repeat by itself
    sandbox.control.fail(STATUS_PATHS[kind], status=400, code="TaskExecuting")
    run = wait(SENSORS[kind], mode, running, **lenient)

    assert (run.states, run.tries) == ({"wait": "success"}, {"wait": 1})


@each_mode
@each_sensor
def test_a_refusal_that_does_not_come_three_times_in_a_row_ends_no_wait(
    kind: str, mode: str, running: dict[str, Any], sandbox: Sandbox
) -> None:
    sandbox.control.fail(STATUS_PATHS[kind], status=403, code="PermissionDenied", times=2)
    run = wait(SENSORS[kind], mode, running)

    assert (run.states, run.tries) == ({"wait": "success"}, {"wait": 1})


@each_mode
@each_sensor
def test_a_refusal_is_put_to_the_test_with_the_connection_read_again(
    kind: str,
    mode: str,
    running: dict[str, Any],
    sandbox: Sandbox,
    set_connection: Callable[..., None],
    after_requests: Callable[..., None],
    timing: Callable[..., None],
) -> None:
    # so that there is time to put the credential right
    timing(confirming=(0.5, 0.5), first_backoff=0.5)
    set_connection(extra={"access_token": "wrong"})
    after_requests(1, STATUS_PATHS[kind], set_connection)
    run = wait(SENSORS[kind], mode, running)

    assert (run.states, run.tries) == ({"wait": "success"}, {"wait": 1})


@each_mode
def test_a_sensor_can_be_mapped_and_templated(mode: str, sandbox: Sandbox) -> None:
    ids = [sandbox.control.add_task(lots=[1])["task_id"] for _ in range(2)]
    run = run_tasks(
        lambda: WebCollectTaskStatusSensor.partial(
            task_id="wait", poke_interval=0.1, webcollect_conn_id="{{ params.connection }}", **MODES[mode]
        ).expand(collection_task_id=ids),
        params={"connection": "webcollect_default"},
    )

    assert run.states == {"wait[0]": "success", "wait[1]": "success"}
    assert [run.xcoms[f"wait[{index}]"]["task_id"] for index in range(2)] == ids
    assert run.names == {"wait[0]": ids[0], "wait[1]": ids[1]}


def test_a_map_index_template_of_the_dag_stays_and_a_task_that_is_not_mapped_has_none(
    sandbox: Sandbox,
) -> None:
    id_ = sandbox.control.add_task(lots=[1])["task_id"]
    run = run_tasks(
        lambda: WebCollectTaskStatusSensor.partial(
            task_id="wait", poke_interval=0.1, map_index_template="mine: {{ task.collection_task_id }}"
        ).expand(collection_task_id=[id_]),
        lambda: WebCollectTaskStatusSensor(task_id="alone", poke_interval=0.1, collection_task_id=id_),
    )

    assert run.names == {"wait[0]": f"mine: {id_}", "alone": None}


@each_mode
@pytest.mark.parametrize("lenient", [{}, {"soft_fail": True}])
def test_a_rendered_argument_that_is_wrong_fails_even_a_lenient_sensor(
    mode: str, lenient: dict[str, Any], sandbox: Sandbox
) -> None:
    run = wait(WebCollectTaskStatusSensor, mode, "{{ '' }}", **lenient, **RETRIES)

    assert (run.states, run.tries) == ({"wait": "failed"}, {"wait": 1})
    assert sandbox.control.requests() == []


@pytest.mark.parametrize(
    ("sensor", "arguments", "name"),
    [
        (WebCollectTaskStatusSensor, {}, "either `collection_task_id` or `collection_task_ids`"),
        (
            WebCollectTaskStatusSensor,
            {"collection_task_id": "a", "collection_task_ids": ["b"]},
            "either `collection_task_id` or `collection_task_ids`",
        ),
        (WebCollectTaskStatusSensor, {"collection_task_id": ""}, "`collection_task_id`"),
        (WebCollectTaskStatusSensor, {"collection_task_ids": []}, "collection_task_ids"),
        (WebCollectTaskStatusSensor, {"collection_task_ids": "a"}, "collection_task_ids"),
        (WebCollectTaskStatusSensor, {"collection_task_id": "a", "wait_for": "some"}, "wait_for"),
        (WebCollectTaskStatusSensor, {"collection_task_id": "a", "target_states": []}, "target_states"),
        (
            WebCollectTaskStatusSensor,
            {"collection_task_id": "a", "target_states": "Finished"},
            "target_states",
        ),
        (WebCollectTaskStatusSensor, {"collection_task_id": "a", "failure_states": [""]}, "failure_states"),
        (WebCollectTaskStatusSensor, {"collection_task_id": "a", "after": "start"}, "after"),
        (WebCollectTaskStatusSensor, {"collection_task_id": "a", "after": {"executed_times": 1}}, "after"),
        *(
            (WebCollectTaskStatusSensor, {"collection_task_id": "a", "after": nothing}, "after")
            for nothing in ("", [], {"collection_task_id": "a", "after": {}})
        ),
        (WebCollectTaskStatusSensor, {"collection_task_id": "a", "after": [1]}, "after"),
        (WebCollectTaskStatusSensor, {"collection_task_id": "a", "after": "null"}, "after"),
        *(
            (
                WebCollectTaskStatusSensor,
                {
                    "collection_task_id": "a",
                    "after": {"collection_task_id": "a", "after": {time: "yesterday"}},
                },
                "`after`",
            )
            for time in ("start_execute_time", "end_execute_time")
        ),
        (WebCollectSubTaskStatusSensor, {"collection_task_id": ""}, "collection_task_id"),
        (WebCollectSubTaskStatusSensor, {"collection_task_id": "a", "sub_task_ids": []}, "sub_task_ids"),
        (WebCollectSubTaskStatusSensor, {"collection_task_id": "a", "sub_task_ids": "b"}, "sub_task_ids"),
    ],
)
def test_a_literal_argument_that_is_wrong_fails_while_the_dag_is_parsed(
    sensor: type[Any], arguments: dict[str, Any], name: str
) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=name):
        sensor(task_id="wrong", **arguments)


def test_a_further_try_with_the_same_operator_begins_again(sandbox: Sandbox) -> None:
    stopped, finished = sandbox.control.add_task(state="Stopped"), sandbox.control.add_task(lots=[1])
    sensor = WebCollectTaskStatusSensor(task_id="wait", collection_task_id=stopped["task_id"], mode="poke")
    context: Any = {"task": sensor, "ti": SimpleNamespace(xcom_push=lambda **_: None)}
    with pytest.raises(AirflowFailException):
        sensor.execute(context)
    sensor.collection_task_id = finished["task_id"]

    assert sensor.execute(context)["status"] == "Finished"


def defer(sensor: Any) -> TaskDeferred:
    """Execute a sensor, and return how it defers itself."""
    context = {"task": sensor, "ti": SimpleNamespace(xcom_push=lambda **_: None)}
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context)
    return deferred.value


class TestDeferring:
    @pytest.fixture(params=list(SENSORS))
    def sensor(self, request: pytest.FixtureRequest) -> Any:
        """A deferrable sensor of either kind."""
        return SENSORS[request.param](
            task_id="wait", collection_task_id="a-task", deferrable=True, poke_interval=5, timeout=90
        )

    def test_it_hands_a_small_trigger_to_the_triggerer(self, sensor: Any, sandbox: Sandbox) -> None:
        deferred = defer(sensor)

        path, arguments = deferred.trigger.serialize()
        assert path.startswith("airflow_provider_webcollect.triggers.webcollect.WebCollect")
        assert len(json.dumps(arguments)) < 300
        assert sandbox.refresh_token not in json.dumps(arguments)
        assert deferred.method_name == "execute_complete"
        assert deferred.timeout == datetime.timedelta(seconds=90)

    def test_an_execution_timeout_counts_as_when_poking(self, sensor: Any) -> None:
        sensor.execution_timeout = datetime.timedelta(seconds=30)
        assert defer(sensor).timeout == datetime.timedelta(seconds=30)

        error = "Trigger timeout" if AIRFLOW_V_3_0_PLUS else "Trigger/execution timeout"
        sensor.soft_fail = True
        with pytest.raises(AirflowTaskTimeout, match="execution timeout, 0:00:30"):
            sensor.resume_execution("__fail__", {"error": error}, {})

    def test_an_event_that_says_done_ends_it(self, sensor: Any) -> None:
        records = [{"task_id": "a-task", "status": "Finished"}]
        result = sensor.execute_complete({}, {"outcome": "done", "reason": "is so", "records": records})

        assert result in (records, records[0])

    def test_an_event_that_says_failed_fails_it(self, sensor: Any) -> None:
        with pytest.raises(AirflowFailException, match="is Stopped"):
            sensor.execute_complete({}, {"outcome": "failed", "reason": "is Stopped", "records": []})

    @pytest.mark.parametrize("permanent", [True, False])
    def test_an_event_of_an_error_is_retried_only_if_that_may_help(
        self, sensor: Any, permanent: bool
    ) -> None:
        event = {"outcome": "error", "reason": "it broke", "permanent": permanent}
        with pytest.raises(AirflowFailException if permanent else WebCollectError, match="it broke"):
            sensor.execute_complete({}, event)

    @pytest.mark.parametrize(
        "event",
        [
            None,
            {},
            "done",
            [],
            {"outcome": "done"},
            {"outcome": "done", "reason": "no records"},
            {"status": "success"},
        ],
    )
    @pytest.mark.parametrize("soft_fail", [True, False])
    def test_a_lost_or_malformed_event_fails_it(self, sensor: Any, event: Any, soft_fail: bool) -> None:
        sensor.soft_fail = soft_fail
        with pytest.raises(WebCollectError, match="without an outcome"):
            sensor.resume_execution("execute_complete", {"event": event}, {})

    @pytest.mark.parametrize(
        ("lenient", "ending"),
        [
            (None, AirflowSensorTimeout),
            ("soft_fail", AirflowSkipException),
            ("never_fail", AirflowSensorTimeout),
        ],
    )
    def test_a_timeout_ends_it_as_when_poking(
        self, sensor: Any, lenient: str | None, ending: type[Exception]
    ) -> None:
        if lenient:
            setattr(sensor, lenient, True)
        # what the schedulers of Airflow 3 and Airflow 2 write
        error = "Trigger timeout" if AIRFLOW_V_3_0_PLUS else "Trigger/execution timeout"
        with pytest.raises(ending, match="the wait was not over after 90 s"):
            sensor.resume_execution("__fail__", {"error": error}, {})

    @pytest.mark.parametrize("lenient", [None, "soft_fail"])
    def test_a_trigger_that_broke_fails_it(self, sensor: Any, lenient: str | None) -> None:
        if lenient:
            setattr(sensor, lenient, True)
        with pytest.raises(Exception, match="Trigger failure"):
            sensor.resume_execution("__fail__", {"error": "Trigger failure", "traceback": ["Boom"]}, {})

    @pytest.mark.parametrize("default", [True, False])
    def test_the_configuration_decides_unless_the_dag_does(
        self, default: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(default))
        usual = {"task_id": "wait", "collection_task_id": "a"}

        assert WebCollectTaskStatusSensor(**usual).deferrable is default
        assert WebCollectTaskStatusSensor(**usual, deferrable=not default).deferrable is not default


class TestAfterNow:
    """The sensor takes the baseline itself: whoever starts the task, the run before does not count."""

    def deferred(self, task: dict[str, Any], **options: Any) -> TaskDeferred:
        return defer(
            WebCollectTaskStatusSensor(
                task_id="wait",
                collection_task_id=task["task_id"],
                after="now",
                deferrable=True,
                timeout=60,
                **options,
            )
        )

    @pytest.mark.parametrize("mode", ["poke", "deferrable"])
    def test_the_next_run_is_waited_for(self, mode: str, sandbox: Sandbox, after_requests: Any) -> None:
        sandbox.control.configure(wait_seconds=0, run_seconds=0)
        task = sandbox.control.add_task(lots=[1])
        after_requests(3, STATUS_PATHS["task"], sandbox.control.start_task, task["task_id"])
        # by then a start's run before would count
        run = wait(WebCollectTaskStatusSensor, mode, task, after="now", settle=0)

        assert run.states == {"wait": "success"}
        assert run.xcoms["wait"]["executed_times"] == 2

    def test_a_look_after_the_timeout_does_not_take_the_run_before_for_the_next(
        self, sandbox: Sandbox
    ) -> None:
        task = sandbox.control.add_task(lots=[1])
        trigger = self.deferred(task, poke_interval=0.1).trigger
        trigger.began -= 61  # Airflow ends the wait a while later

        async def outcome() -> Any:
            return await asyncio.wait_for(anext(trigger.run()), 2)

        with pytest.raises(TimeoutError):
            asyncio.run(outcome())

    @pytest.mark.parametrize("mode", ["poke", "deferrable"])
    @pytest.mark.parametrize(
        ("times", "fault"),
        # the client of a worker tries a call 7 times; it does not repeat what was refused
        [(8, {"status": 502}), (2, {"status": 403, "code": "PermissionDenied"})],
        ids=["it fails", "it refuses twice"],
    )
    def test_a_service_that_does_not_answer_at_first_is_asked_again(
        self, times: int, fault: dict[str, Any], mode: str, sandbox: Sandbox, after_requests: Any
    ) -> None:
        sandbox.control.configure(wait_seconds=0, run_seconds=0)
        task = sandbox.control.add_task(lots=[1])
        sandbox.control.fail(STATUS_PATHS["task"], times=times, **fault)
        after_requests(times + 3, STATUS_PATHS["task"], sandbox.control.start_task, task["task_id"])
        run = wait(WebCollectTaskStatusSensor, mode, task, after="now", settle=0)

        assert run.states == {"wait": "success"}
        assert run.xcoms["wait"]["executed_times"] == 2

    @pytest.mark.parametrize("mode", ["poke", "deferrable"])
    @pytest.mark.parametrize(
        ("options", "state"),
        [({}, "failed"), ({"soft_fail": True}, "skipped"), ({"never_fail": True}, "skipped")],
        ids=["plain", "soft_fail", "never_fail"],
    )
    def test_a_service_that_refuses_for_good_ends_the_wait_as_later(
        self, options: dict[str, Any], state: str, mode: str, sandbox: Sandbox
    ) -> None:
        task = sandbox.control.add_task(lots=[1])
        sandbox.control.fail(STATUS_PATHS["task"], times=3, status=403, code="PermissionDenied")
        run = wait(WebCollectTaskStatusSensor, mode, task, after="now", **options)

        assert run.states == {"wait": state}

    @pytest.mark.parametrize("mode", ["poke", "deferrable"])
    def test_a_service_that_never_answers_ends_in_the_timeout(self, mode: str, sandbox: Sandbox) -> None:
        task = sandbox.control.add_task(lots=[1])
        sandbox.control.fail(STATUS_PATHS["task"], times=None, status=502)
        run = wait(WebCollectTaskStatusSensor, mode, task, after="now", timeout=1, soft_fail=True)

        assert run.states == {"wait": "skipped"}

    def test_the_time_for_the_first_query_counts(self, sandbox: Sandbox) -> None:
        task = sandbox.control.add_task(lots=[1])
        sandbox.control.fail(STATUS_PATHS["task"], times=8, status=502)

        assert self.deferred(task, poke_interval=1).timeout <= datetime.timedelta(seconds=59)

    def test_rescheduled_it_cannot_be(self) -> None:
        with make_dag(), pytest.raises(InvalidArgument, match=r"after.*now.*use deferrable=True"):
            WebCollectTaskStatusSensor(
                task_id="wait", collection_task_id="t", after="now", mode="reschedule", deferrable=False
            )

    def test_it_is_for_a_worker_to_see(self) -> None:
        sensor = WebCollectTaskStatusSensor(
            task_id="wait", collection_task_id="t", after="now", start_from_trigger=True
        )
        assert (sensor.start_from_trigger, sensor.deferrable) == (False, True)


class TestWhatWasGiven:
    def test_a_result_that_is_not_there_is_not_taken_for_nothing_given(self, endless: dict[str, Any]) -> None:
        with make_dag() as dag:
            start = WebCollectGetRunningCountsOperator(task_id="start", do_xcom_push=False)
            wait = WebCollectTaskStatusSensor(
                task_id="wait",
                collection_task_id=endless["task_id"],
                after=start.output,
                timeout=60,
                poke_interval=0.1,
            )
            start >> wait
        run = run_dag(dag)

        assert run.states == {"start": "success", "wait": "failed"}


class TestStartingFromTheTriggerer:
    """What a real triggerer makes of it is in ``test_start_from_trigger.py``."""

    @each_sensor
    def test_where_airflow_cannot_do_it_the_wait_is_deferred(
        self, kind: str, sandbox: Sandbox, endless: dict[str, Any], after_requests: Any
    ) -> None:
        # `dag.test()` runs every task in a worker, and so does Airflow before 3.3
        after_requests(1, STATUS_PATHS[kind], sandbox.control.advance, 10_000)
        run = wait(SENSORS[kind], "poke", endless, start_from_trigger=True)

        assert run.states == {"wait": "success"}

    def test_it_is_not_on_unless_asked_for(self) -> None:
        sensor = WebCollectTaskStatusSensor(task_id="wait", collection_task_id="a", deferrable=True)

        assert not sensor.start_from_trigger

    @pytest.mark.skipif(AIRFLOW_V_3_3_PLUS, reason="Airflow can do it")
    def test_the_log_tells_that_airflow_is_too_old(self, sandbox: Sandbox, said: Callable[[], str]) -> None:
        task = sandbox.control.add_task(lots=[1])
        wait(WebCollectTaskStatusSensor, "poke", task, start_from_trigger=True)

        assert said().count("defers it: Airflow before 3.3 cannot render its arguments") == 1


@pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow cannot do it")
class TestStartingFromTheTriggererOnNewAirflow:
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
