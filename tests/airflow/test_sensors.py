"""The sensors, as tasks of DAG runs and executed without one."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectGetRunningCountsOperator,
    WebCollectStartSubTasksOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sandbox.state import Entry, RequestLog
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectCapacitySensor,
    WebCollectTaskStatusSensor,
)
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError
from tests.airflow.dag_runs import make_dag, run_dag, run_tasks
from tests.airflow.executions import Connect, Said, Task, execute, on_sandbox
from tests.airflow.waits import MODES, SENSORS, STATUS_PATHS, each_mode, outcome
from tests.interruption import PATIENCE

pytestmark = on_sandbox(wait_seconds=0.2, run_seconds=0.4, stale_seconds=0, subtasks=2)
KINDS = {**SENSORS, "capacity": WebCollectCapacitySensor}
#: How services may behave, as settings of the sandbox: see docs/contributing/assumptions.md, Status.
SERVICES: dict[str, dict[str, Any]] = {
    "shows the new run late": {},
    "counts a run at once": {"stale_shows": ["executed_times"]},
    "counts a run and shows its start at once": {"stale_shows": ["executed_times", "start_time"]},
    "shows a start at once": {"stale_shows": ["start_time"]},
    "counts ended runs": {"counted_runs": "ended"},
    "shows no ends": {"hide_end_times": True, "stale_shows": ["executed_times"]},
    "spells ids otherwise": {"echo_ids": "upper"},
}
USUAL = "counts a run at once"


def sensor(kind: str, task: Task | None = None, **arguments: Any) -> Any:
    """Return a sensor of a kind, which waits for ``task`` if it is given."""
    usual = {"task_id": "wait", "poke_interval": 0.1, "timeout": PATIENCE, "deferrable": False}
    waits_for = {"collection_task_id": task["task_id"]} if task else {}
    return KINDS[kind](**{**usual, **waits_for, **arguments})


def defer(sensor: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        execute(sensor)
    return deferred.value


@pytest.fixture
def finished(sandbox: Sandbox) -> dict[str, Any]:
    """A task that ran once."""
    return sandbox.control.add_task(lots=[1])


@pytest.fixture
def stopped(sandbox: Sandbox) -> dict[str, Any]:
    """A task whose run was stopped."""
    return sandbox.control.add_task(state="Stopped")


@pytest.fixture
def endless(sandbox: Sandbox) -> dict[str, Any]:
    """A task whose run does not end during a test."""
    sandbox.control.configure(run_seconds=10_000)
    return sandbox.control.add_task(state="Extracting")


class TestInDagRuns:
    """``test_end_of_waits.py`` tests what ends a wait, in each mode and with each lenience."""

    @each_mode("deferrable")
    def test_the_last_records_are_given_to_xcom(self, mode: str, sandbox: Sandbox) -> None:
        one, two = sandbox.control.add_task(lots=[40]), sandbox.control.add_task(lots=[1], subtasks=25)
        never = sandbox.control.add_task()
        ids = {name: [one["task_id"], task["task_id"]] for name, task in (("all", two), ("any", never))}
        with make_dag() as dag:
            sensor("task", one, task_id="one", **MODES[mode])
            for name in ("all", "any"):
                sensor("task", collection_task_ids=ids[name], wait_for=name, task_id=name, **MODES[mode])
            sensor("subtask", two, task_id="subtasks", **MODES[mode])
        xcoms = run_dag(dag).xcoms

        assert xcoms["one"]["task_id"] == one["task_id"]
        assert xcoms["one"]["status"] == "Finished"
        assert (xcoms["one"]["executed_times"], xcoms["one"]["sub_task_count"]) == (1, 2)
        assert datetime.datetime.fromisoformat(xcoms["one"]["end_execute_time"])
        statuses = {name: [(task["task_id"], task["status"]) for task in xcoms[name]] for name in ids}
        assert statuses["all"] == [(ids["all"][0], "Finished"), (ids["all"][1], "Finished")]
        assert statuses["any"] == [(ids["any"][0], "Finished"), (ids["any"][1], "Unexecuted")]
        assert xcoms["subtasks"] == [
            {"sub_task_id": subtask["subtask_id"], "status": "Finished"} for subtask in two["subtasks"]
        ]

    @each_mode("poke")
    def test_a_sensor_can_be_mapped_and_templated(self, mode: str, sandbox: Sandbox) -> None:
        ids = [sandbox.control.add_task(lots=[1])["task_id"] for _ in range(2)]
        run = run_tasks(
            lambda: WebCollectTaskStatusSensor.partial(
                task_id="wait",
                poke_interval=0.1,
                webcollect_conn_id="{{ params.connection }}",
                map_index_template="{{ task.collection_task_id }}",
                **MODES[mode],
            ).expand(collection_task_id=ids),
            params={"connection": "webcollect_default"},
        )

        assert run.states == {"wait[0]": "success", "wait[1]": "success"}
        assert [run.xcoms[f"wait[{index}]"]["task_id"] for index in range(2)] == ids
        assert run.names == {"wait[0]": ids[0], "wait[1]": ids[1]}

    def test_a_missing_result_is_no_argument(self, endless: Task, sandbox: Sandbox, said: Said) -> None:
        task_id = {"collection_task_id": endless["task_id"]}
        given: dict[str, tuple[str, dict[str, Any]]] = {
            "after": ("task", task_id),
            "collection_task_id": ("task", {}),
            "collection_task_ids": ("task", {}),
            "sub_task_ids": ("subtask", task_id),
            "webcollect_conn_id": ("subtask", task_id),
        }
        with make_dag() as dag:
            start = WebCollectGetRunningCountsOperator(task_id="start", do_xcom_push=False)
            for name, (kind, others) in given.items():
                arguments: dict[str, Any] = {**others, name: start.output}
                start >> sensor(kind, task_id=name, **arguments)
        run = run_dag(dag)

        assert run.states == {"start": "success", **dict.fromkeys(given, "failed")}
        logged = said()
        for name in given:
            assert (
                f"`{name}` is None; the DAG sets it to a template or a task's result, which resolved to None"
                in logged
            )
        assert not any(map(sandbox.control.requests, STATUS_PATHS.values()))


class TestPoking:
    @pytest.mark.parametrize("kind", SENSORS)
    def test_after_a_refusal_the_connection_is_read_again(
        self, kind: str, finished: Any, set_connection: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_connection(extra={"access_token": "wrong"})
        # somebody corrects the credential during the pause
        monkeypatch.setattr("time.sleep", lambda seconds: set_connection())
        assert execute(sensor(kind, finished))

    def test_two_refusals_end_no_wait_and_hold_no_worker(
        self, finished: Task, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        soon: dict[str, Any] = {"times": 2, "headers": {"Retry-After": "3600"}}
        sandbox.control.fail(STATUS_PATHS["task"], status=403, code="PermissionDenied", **soon)
        slept: list[float] = []
        monkeypatch.setattr("time.sleep", slept.append)

        assert execute(sensor("task", finished))
        assert len(slept) == 2
        assert max(slept) < 10

    def test_only_named_subtasks_are_waited_for_and_all_returned(self, sandbox: Sandbox) -> None:
        task = sandbox.control.add_task(lots=[1])
        first, second = (subtask["subtask_id"] for subtask in task["subtasks"])
        sandbox.control.configure(run_seconds=10_000)
        sandbox.control.start_task(task["task_id"])
        sandbox.control.stop_task(task["task_id"])
        named = {"sub_task_ids": [first], "target_states": ["Stopped"], "failure_states": []}
        records = execute(sensor("subtask", task, **named))

        assert second in {record["sub_task_id"] for record in records}
        with pytest.raises(AirflowFailException):
            execute(sensor("subtask", task))

    def test_changes_are_logged(
        self, sandbox: Sandbox, endless: Task, after_requests: Any, said: Said
    ) -> None:
        after_requests(5, STATUS_PATHS["subtask"], sandbox.control.advance, 10_000)
        execute(sensor("subtask", endless))
        logged = said()
        assert logged.count("0/2 Finished, 2 Extracting") == 1
        assert logged.count("2/2 Finished") == 1

    def test_called_directly_it_waits_for_the_run_after_now(self, finished: Task) -> None:
        assert not sensor("task", finished, after="now", mode="poke").poke({}).is_done

    def test_a_further_try_with_the_same_operator_begins_again(self, finished: Task, stopped: Task) -> None:
        waiting = sensor("task", stopped, mode="poke")
        context: Any = {"task": waiting, "ti": SimpleNamespace(xcom_push=lambda **_: None)}
        with pytest.raises(AirflowFailException):
            waiting.execute(context)
        waiting.collection_task_id = finished["task_id"]
        assert waiting.execute(context)["status"] == "Finished"


@pytest.mark.parametrize("written", [lambda start: start, json.dumps, lambda start: [json.dumps(start)]])
def test_the_result_of_a_start_is_the_baseline_of_its_task(written: Callable[[Any], Any]) -> None:
    start = {"collection_task_id": "A-TASK", "after": {"executed_times": 3}}
    waiting = sensor("task", {"task_id": "a-task"}, after=written(start), deferrable=True)
    (baseline,) = defer(waiting).trigger.condition["after"].items()
    assert (baseline[0], baseline[1]["executed_times"]) == ("a-task", 3)


@pytest.mark.parametrize("skipped", [None, "null"])
def test_a_start_that_was_skipped_is_no_baseline(skipped: Any, finished: Task, stopped: Task) -> None:
    """``after`` has the results of two starts; one of them is behind a branch that was not taken."""
    start = {"collection_task_id": finished["task_id"], "after": {"executed_times": 1}}
    ids = [finished["task_id"], stopped["task_id"]]
    waiting = sensor("task", None, collection_task_ids=ids, after=[start, skipped], deferrable=True)
    condition = defer(waiting).trigger.condition
    assert condition["task_ids"] == [*condition["after"]] == [finished["task_id"]]


class TestDeferring:
    @pytest.fixture(params=list(SENSORS))
    def sensor(self, request: pytest.FixtureRequest) -> Any:
        """A deferrable sensor of either kind."""
        return SENSORS[request.param](
            task_id="wait",
            collection_task_id="5a9d0b0e-0000-4000-8000-000000000001",
            deferrable=True,
            poke_interval=5,
            timeout=90,
        )

    def test_it_hands_a_small_trigger_to_the_triggerer(self, sensor: Any, sandbox: Sandbox) -> None:
        deferred = defer(sensor)

        path, arguments = deferred.trigger.serialize()
        assert path.startswith("airflow_provider_webcollect.triggers.webcollect.WebCollect")
        assert len(json.dumps(arguments)) < 300
        assert sandbox.refresh_token not in json.dumps(arguments)
        assert deferred.method_name == "execute_complete"
        assert arguments["timeout"] == 90
        # a minute more than the timeout, in case the triggerer is down
        assert deferred.timeout == datetime.timedelta(seconds=150)

    def test_an_execution_timeout_counts_as_when_poking(self, sensor: Any) -> None:
        sensor.execution_timeout = datetime.timedelta(seconds=30)
        assert defer(sensor).trigger.timeout == 30

    @pytest.mark.parametrize(
        "event",
        [
            *(None, {}, "done", []),
            *({"outcome": "done"}, {"outcome": "done", "reason": "no records"}, {"status": "success"}),
        ],
    )
    @pytest.mark.parametrize("soft_fail", [True, False])
    def test_a_lost_or_malformed_event_fails_it(self, sensor: Any, event: Any, soft_fail: bool) -> None:
        sensor.soft_fail = soft_fail
        with pytest.raises(WebCollectError, match="without an outcome"):
            sensor.resume_execution("execute_complete", {"event": event}, {})

    @pytest.mark.parametrize("default", [True, False])
    def test_the_configuration_is_the_default(self, default: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(default))
        usual: dict[str, Any] = {"task_id": "wait", "collection_task_id": "a"}
        assert WebCollectTaskStatusSensor(**usual).deferrable is default
        assert WebCollectTaskStatusSensor(**usual, deferrable=not default).deferrable is not default


class TestAfterNow:
    """The sensor takes the baseline itself: the run before does not count, whoever starts the next one."""

    def test_after_the_timeout_the_run_before_does_not_count(self, finished: Task) -> None:
        trigger = defer(sensor("task", finished, after="now", deferrable=True)).trigger
        trigger.began -= PATIENCE + 1  # the triggerer was down for a while
        assert asyncio.run(outcome(trigger))["outcome"] == "timeout"

    @pytest.mark.parametrize(
        ("times", "fault"),
        # a worker's client tries a call 7 times; it does not repeat a refused call
        [(8, {"status": 502}), (2, {"status": 403, "code": "PermissionDenied"})],
        ids=["it fails", "it refuses twice"],
    )
    def test_a_service_that_does_not_answer_at_first_is_asked_again(
        self, times: int, fault: dict[str, Any], after_requests: Any, finished: Task, sandbox: Sandbox
    ) -> None:
        sandbox.control.configure(wait_seconds=0, run_seconds=0)
        after_requests(times + 3, STATUS_PATHS["task"], sandbox.control.start_task, finished["task_id"])
        sandbox.control.fail(STATUS_PATHS["task"], times=times, **fault)
        # after a start, the run before would count by the third answer
        record = execute(sensor("task", finished, after="now", status_delay=0))
        sandbox.control.fail(STATUS_PATHS["task"], times=times, **fault)
        deferred = defer(sensor("task", finished, after="now", deferrable=True))

        assert record["executed_times"] == 2
        (baseline,) = deferred.trigger.condition["after"].values()
        assert baseline["executed_times"] == 2

    @pytest.mark.parametrize("mode", ["poke", "deferrable"])
    @pytest.mark.parametrize(
        ("options", "ending"),
        [
            ({}, AirflowFailException),
            ({"soft_fail": True}, AirflowSkipException),
            ({"never_fail": True}, AirflowSkipException),
        ],
    )
    def test_a_service_that_refuses_for_good_ends_the_wait_as_later(
        self, options: Any, ending: type[Exception], mode: str, finished: Task, sandbox: Sandbox
    ) -> None:
        sandbox.control.fail(STATUS_PATHS["task"], times=3, status=403, code="PermissionDenied")
        with pytest.raises(ending, match=None if options else "HTTP 403 PermissionDenied"):
            execute(sensor("task", finished, after="now", **MODES[mode], **options))

    @pytest.mark.parametrize("mode", ["poke", "deferrable"])
    def test_no_answer_ends_in_the_timeout(self, mode: str, finished: Task, sandbox: Sandbox) -> None:
        sandbox.control.fail(STATUS_PATHS["task"], times=None, status=502)
        with pytest.raises(AirflowSkipException):
            execute(sensor("task", finished, after="now", timeout=0.5, soft_fail=True, **MODES[mode]))

    def test_the_time_for_the_first_query_counts(self, finished: Task, sandbox: Sandbox) -> None:
        sandbox.control.fail(STATUS_PATHS["task"], times=8, status=502)
        waiting = sensor("task", finished, after="now", poke_interval=0.5, deferrable=True)
        assert defer(waiting).trigger.timeout <= PATIENCE - 0.5


class TestTheRunBefore:
    """The run before is not mistaken for the next one, whatever a service counts and shows after a start."""

    # in the service's time, each status query takes 1000 s; real time hardly counts
    pytestmark = on_sandbox(stale_seconds=3000, wait_seconds=4000, run_seconds=2500, subtasks=2)

    @pytest.fixture(autouse=True)
    def passing_time(self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        """Advance the service's time with each status query, so that all states show within few queries."""
        add = RequestLog.add

        def add_and_pass(log: RequestLog, entry: Entry) -> None:
            add(log, entry)
            if entry.endpoint == STATUS_PATHS["task"]:
                sandbox._state.clock.advance(seconds=1000)

        monkeypatch.setattr(RequestLog, "add", add_and_pass)

    @pytest.fixture
    def ran_once(self, sandbox: Sandbox, service: str) -> Task:
        """A task that ran once, on one of ``SERVICES``."""
        sandbox.control.configure(**SERVICES[service])
        return sandbox.control.add_task(lots=[10], rows=20)

    def start(self, task: Task, **arguments: Any) -> WebCollectStartSubTasksOperator:
        ids = {"task_id": "start", "collection_task_id": task["task_id"]}
        return WebCollectStartSubTasksOperator(**ids, **arguments)

    @pytest.mark.parametrize("service", SERVICES)
    def test_a_start_ends_with_its_own_run(self, ran_once: Task, sandbox: Sandbox) -> None:
        waits = {"wait_for_completion": True, "poll_interval": 0.02, "deferrable": False}
        result = execute(self.start(ran_once, **waits))
        assert sandbox.control.task(ran_once["task_id"])["state"] == "Finished"
        assert result["status"]["current_total_extract_count"] >= 20

    @pytest.mark.parametrize(
        ("service", "way"),
        [
            ("counts ended runs", "poke"),
            ("shows no ends", "deferrable"),
            pytest.param(USUAL, "reschedule", marks=pytest.mark.at_night),
        ],
    )
    def test_a_sensor_after_a_start_ends_with_it(self, way: str, ran_once: Task, sandbox: Sandbox) -> None:
        with make_dag() as dag:
            sensor("task", ran_once, after=self.start(ran_once).output, poke_interval=0.02, **MODES[way])
        run = run_dag(dag)

        assert run.states == {"start": "success", "wait": "success"}
        assert sandbox.control.task(ran_once["task_id"])["state"] == "Finished"
        assert run.xcoms["wait"]["executed_times"] == 2
        assert run.xcoms["wait"]["current_total_extract_count"] >= 20

    @pytest.mark.parametrize(
        ("service", "offset"),
        [*(pytest.param(name, 0, marks=pytest.mark.at_night) for name in SERVICES), (USUAL, -1)],
    )
    def test_a_sensor_after_now_ends_with_the_next_run(
        self, offset: int, ran_once: Task, sandbox: Sandbox, after_requests: Callable[..., None]
    ) -> None:
        def start() -> None:
            sandbox.control.start_task(ran_once["task_id"])
            # with this run, the count may begin again at 0
            sandbox.control.configure(executed_times_offset=offset)

        after_requests(1, STATUS_PATHS["task"], start)
        record = execute(sensor("task", ran_once, after="now", poke_interval=0.02))

        assert sandbox.control.task(ran_once["task_id"])["state"] == "Finished"
        assert record["current_total_extract_count"] >= 20


def test_after_may_be_the_results_of_starts_of_several(sandbox: Sandbox) -> None:
    tasks = [sandbox.control.add_task(state="Finished", lots=[2])["task_id"] for _ in range(3)]
    starts = [
        [{"collection_task_id": task_id, "after": {"executed_times": 0}} for task_id in ids]
        for ids in (tasks[:2], tasks[2:])
    ]
    wait = WebCollectTaskStatusSensor(task_id="wait", collection_task_ids=tasks, after=starts)
    assert [status["task_id"] for status in execute(wait)] == tasks


class TestWithoutNewRows:
    """``tests/waiting`` tests when the alarm comes, ``test_end_of_waits.py`` how it ends the task."""

    LIMIT = 1.0

    @pytest.mark.parametrize("mode", ["poke", "deferrable"])
    def test_while_rows_come_the_wait_goes_on(self, mode: str, sandbox: Sandbox) -> None:
        # 100 rows a second, for longer than the limit
        sandbox.control.configure(run_seconds=2.5)
        task = sandbox.control.add_task(rows=250)
        sandbox.control.start_task(task["task_id"])
        run = run_tasks(lambda: sensor("task", task, no_new_rows_for=self.LIMIT, **MODES[mode]))

        assert run.states == {"wait": "success"}
        assert set(sandbox.control.counters()) == {"/token", STATUS_PATHS["task"]}

    def test_rescheduled_it_is_refused_since_every_poke_is_the_first(self, task: Task) -> None:
        with pytest.raises(InvalidArgument, match=r"`no_new_rows_for` is 1.0; .*use deferrable=True"):
            sensor("task", task, no_new_rows_for=self.LIMIT, mode="reschedule")


@each_mode("deferrable")
def test_a_task_that_nothing_has_started_is_not_waited_for(
    mode: str, sandbox: Sandbox, finished: dict[str, Any], stopped: dict[str, Any], said: Said
) -> None:
    """For example, a task that was added to the file between a task group's start and its wait."""
    with make_dag() as dag:
        start = WebCollectStartSubTasksOperator.partial(task_id="start")
        started = start.expand(collection_task_id=[finished["task_id"]])
        ids = [finished["task_id"], stopped["task_id"]]
        sensor("task", None, collection_task_ids=ids, after=started.output, **MODES[mode])
    run = run_dag(dag)

    assert run.states == {"start[0]": "success", "wait": "success"}
    assert [record["task_id"] for record in run.xcoms["wait"]] == [finished["task_id"]]
    assert f"Not waiting for tasks without a start in `after`: {stopped['task_id']}" in said()


class TestCapacity:
    STATS = "/cloudextraction/task/stats"

    @pytest.fixture
    def busy(self, sandbox: Sandbox) -> list[str]:
        """The only two active tasks: both are extracting, with three sub-tasks each."""
        sandbox.control.configure(run_seconds=10_000)
        assert all(task["state"] not in {"Extracting", "Waiting"} for task in sandbox.control.tasks())
        return [sandbox.control.add_task(state="Extracting", subtasks=3)["task_id"] for _ in range(2)]

    @pytest.mark.parametrize(
        ("mode", "limit"),
        [
            ("poke", {"max_active_tasks": 2}),
            ("reschedule", {"max_active_sub_tasks": 6}),
            ("deferrable", {"max_active_tasks": "{{ 1 + 1 }}"}),
        ],
    )
    def test_the_wait_ends_with_the_run_that_used_the_capacity(
        self, mode: str, limit: dict[str, Any], sandbox: Sandbox, busy: list[str], after_requests: Any
    ) -> None:
        after_requests(1, self.STATS, sandbox.control.stop_task, busy[0])
        run = run_tasks(lambda: sensor("capacity", **MODES[mode], **limit))
        assert run.states == {"wait": "success"}
        assert run.xcoms["wait"]["extracting_count"] == 1
        assert len(sandbox.control.requests(self.STATS)) >= 2
