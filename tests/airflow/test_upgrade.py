"""What version 0.1 has left in Airflow's database is carried on.

`stored_by_0_1.json` holds it: rows of triggers (their arguments as Airflow 3.3 and 2.11 store them), events
that no worker has handled yet, and what the state stores of tasks and assets hold. In angle brackets stand
ids and times, which are other ones in every test.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.models.trigger import Trigger
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.settings import Session

from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectCapacitySensor,
    WebCollectSubTaskStatusSensor,
    WebCollectTaskStatusSensor,
)
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskFinishedTrigger
from tests.airflow.dag_runs import make_dag
from tests.airflow.end_triggers import build, ending, render, start, state
from tests.airflow.event_triggers import Store, triggerer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False, stale_seconds=0, run_seconds=10_000, subtasks=2),
]

STORED = (Path(__file__).with_name("stored_by_0_1.json")).read_text()
STATUS = "/cloudextraction/statuses/v2"
SUBTASKS = "/cloudextraction/task/subtasks"
STATS = "/cloudextraction/task/stats"
#: A newer Airflow reads what an older one has stored.
each_airflow = pytest.mark.parametrize("airflow", ["3.3", "2.11"] if AIRFLOW_V_3_3_PLUS else ["2.11"])
from_3_3 = pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow before 3.3 stores nothing of the kind")


def stored(task: dict[str, Any], *, other: str = "another", began: float | None = None) -> dict[str, Any]:
    """Return all that is stored, about a task of the sandbox.

    :param other: id of a second task.
    :param began: Unix time at which the waits began; by default now.
    """
    first, second = (subtask["subtask_id"] for subtask in task["subtasks"])
    start = task["runs"][-1]["start"] if task["runs"] else "2026-01-01T00:00:00"
    text = STORED.replace('"<began>"', str(time.time() if began is None else began))
    for name, value in {
        "task": task["task_id"],
        "other": other,
        "first sub-task": first,
        "second sub-task": second,
        "third sub-task": "of another task",
        "start": datetime.datetime.fromisoformat(start).isoformat(),
    }.items():
        text = text.replace(f"<{name}>", value)
    assert not re.search(r"<[\w -]+>", text)
    return json.loads(text)


def stored_row(name: str, airflow: str, *about: Any, **times: Any) -> Trigger:
    """Store a trigger as an Airflow of a version did, and read it back."""
    from airflow.models.crypto import get_fernet

    found = stored(*about, **times)["triggers"][name]
    row = Trigger(classpath=found["classpath"], kwargs={})
    row.encrypted_kwargs = get_fernet().encrypt(json.dumps(found["kwargs"][airflow]).encode()).decode()
    with Session() as session:
        session.add(row)
        session.commit()
        number = row.id
    with Session() as session:
        read = session.get(Trigger, number)
        assert read is not None
        session.expunge(read)
        return read


async def payload(trigger: Any) -> dict[str, Any]:
    """Run a trigger as the triggerer does, and return the payload of its one event."""
    return dict((await ending(trigger)).payload)


async def polls(sandbox: Sandbox, path: str, more: int = 2) -> None:
    """Wait until the service was queried some more times."""

    def queries() -> int:
        return sum(sandbox.control.counters().get(path, {}).values())

    enough = queries() + more
    async with asyncio.timeout(60):
        while queries() < enough:
            await asyncio.sleep(0.02)


@pytest.fixture
def running(sandbox: Sandbox) -> dict[str, Any]:
    """A task that is extracting, in its first run."""
    return sandbox.control.add_task(state="Extracting")


@pytest.fixture
def ended(sandbox: Sandbox) -> dict[str, Any]:
    """A task that ran once and has finished."""
    return sandbox.control.add_task(lots=[10])


@pytest.fixture
def through_a_run(sandbox: Sandbox) -> Callable[..., Awaitable[Any]]:
    """Awaits a wait while a task that does not run is started, and finishes."""

    async def through_a_run(waiting: Awaitable[Any], task_id: str) -> Any:
        wait = asyncio.ensure_future(waiting)
        await polls(sandbox, STATUS)
        assert not wait.done()
        sandbox.control.start_task(task_id)
        await polls(sandbox, STATUS)
        assert not wait.done()
        sandbox.control.advance(20_000)
        return await wait

    return through_a_run


@each_airflow
class TestDeferredWaits:
    @pytest.mark.parametrize(
        "name", ["task", "task, after joining a run", "sub-tasks", "sub-tasks, one of them"]
    )
    async def test_the_end_of_the_active_run_ends_the_wait(
        self, name: str, airflow: str, running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        waiting = asyncio.create_task(payload(build(stored_row(name, airflow, running))))
        await polls(sandbox, SUBTASKS if name.startswith("sub-tasks") else STATUS)
        assert not waiting.done()
        sandbox.control.advance(20_000)
        event = await waiting

        assert event["outcome"] == "done"
        assert {record["status"] for record in event["records"]} == {"Finished"}

    @pytest.mark.parametrize(
        ("name", "outcome"),
        [
            ("task", "failed"),
            ("task, after joining a run", "failed"),
            ("sub-tasks", "failed"),
            # of these two, Stopped is a target state
            ("tasks, any of them", "done"),
            ("sub-tasks, one of them", "done"),
        ],
    )
    async def test_a_stopped_run_ends_the_wait_as_its_arguments_say(
        self,
        name: str,
        outcome: str,
        airflow: str,
        running: dict[str, Any],
        ended: dict[str, Any],
        sandbox: Sandbox,
    ) -> None:
        if name == "tasks, any of them":
            running = ended
            sandbox.control.start_task(ended["task_id"])
        trigger = build(stored_row(name, airflow, running))
        waiting = asyncio.create_task(payload(trigger))
        await polls(sandbox, SUBTASKS if name.startswith("sub-tasks") else STATUS)
        sandbox.control.stop_task(running["task_id"])

        assert (await waiting)["outcome"] == outcome

    @pytest.mark.parametrize("name", ["task, after a run", "task, after now", "tasks, any of them"])
    async def test_the_run_before_does_not_end_the_wait(
        self, name: str, airflow: str, ended: dict[str, Any], sandbox: Sandbox, through_a_run: Any
    ) -> None:
        never_ran = sandbox.control.add_task()["task_id"]
        row = stored_row(name, airflow, ended, other=never_ran)
        event = await through_a_run(payload(build(row)), ended["task_id"])

        assert event["outcome"] == "done"
        assert event["records"][0]["executed_times"] == 2

    async def test_a_stale_status_with_the_new_start_does_not_end_the_wait(
        self, airflow: str, ended: dict[str, Any], sandbox: Sandbox
    ) -> None:
        sandbox.control.configure(stale_seconds=100, stale_shows=["start_time"])
        row = stored_row("task, after a run", airflow, ended)
        sandbox.control.start_task(ended["task_id"])
        waiting = asyncio.create_task(payload(build(row)))
        for seconds in (0, 1000):
            sandbox.control.advance(seconds)
            await polls(sandbox, STATUS)
            assert not waiting.done()
        sandbox.control.advance(20_000)

        assert (await waiting)["records"][0]["executed_times"] == 2

    async def test_the_first_run_ends_the_wait(
        self, airflow: str, sandbox: Sandbox, through_a_run: Any
    ) -> None:
        never_ran = sandbox.control.add_task()
        row = stored_row("task, after no run", airflow, never_ran)
        event = await through_a_run(payload(build(row)), never_ran["task_id"])

        assert (event["outcome"], event["records"][0]["executed_times"]) == ("done", 1)

    async def test_after_the_settle_time_a_final_state_counts(
        self, airflow: str, ended: dict[str, Any]
    ) -> None:
        event = await payload(build(stored_row("task, after a run", airflow, ended, began=time.time() - 91)))

        assert (event["outcome"], event["records"][0]["executed_times"]) == ("done", 1)

    async def test_with_now_no_time_makes_the_run_before_count(
        self, airflow: str, ended: dict[str, Any], through_a_run: Any
    ) -> None:
        row = stored_row("task, after now", airflow, ended, began=time.time() - 100_000)
        event = await through_a_run(payload(build(row)), ended["task_id"])

        assert event["records"][0]["executed_times"] == 2

    @pytest.mark.parametrize("name", ["task", "sub-tasks, one of them"])
    async def test_what_is_missing_since_the_wait_began_ends_it(
        self, name: str, airflow: str, sandbox: Sandbox
    ) -> None:
        sandbox.control.configure(hide_unexecuted_subtasks=True)
        row = stored_row(name, airflow, sandbox.control.add_task(), began=time.time() - 601)

        assert (await payload(build(row)))["outcome"] == "failed"

    async def test_capacity_ends_the_wait(
        self, airflow: str, running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        waiting = asyncio.create_task(payload(build(stored_row("capacity", airflow, running))))
        await polls(sandbox, STATS)
        assert not waiting.done()
        sandbox.control.advance(20_000)

        assert (await waiting)["outcome"] == "done"


@from_3_3
class TestWholeWaits:
    """The task is in the DAG as this version makes it."""

    @pytest.fixture
    def begin(self, running: dict[str, Any], ended: dict[str, Any], sandbox: Sandbox) -> Callable[..., Any]:
        """Begin a whole wait, as Airflow has stored it, with what it is about."""

        def begin(name: str, task: dict[str, Any], **arguments: Any) -> Any:
            never_ran = sandbox.control.add_task()["task_id"]
            row = stored_row(f"whole: {name}", "3.3", task, other=never_ran)
            kind = "subtask" if name.startswith("sub-tasks") else "task"
            return start(kind, task["task_id"], row=row, timeout=600, **arguments)

        return begin

    @pytest.mark.parametrize("name", ["task", "sub-tasks", "sub-tasks, one of them"])
    async def test_the_end_of_the_active_run_is_a_success(
        self, name: str, begin: Any, running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        waiting = asyncio.create_task(state(begin(name, running)))
        await polls(sandbox, SUBTASKS if name.startswith("sub-tasks") else STATUS)
        assert not waiting.done()
        sandbox.control.advance(20_000)

        assert await waiting == "success"

    @pytest.mark.parametrize(
        ("name", "end"), [("task", "failed"), ("sub-tasks", "failed"), ("sub-tasks, one of them", "skipped")]
    )
    async def test_a_stopped_run_ends_the_task_as_its_arguments_say(
        self, name: str, end: str, begin: Any, running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        sandbox.control.stop_task(running["task_id"])

        assert await state(begin(name, running)) == end

    @pytest.mark.parametrize("name", ["task, after a result", "tasks, any of them"])
    async def test_the_run_before_does_not_end_the_wait(
        self, name: str, begin: Any, ended: dict[str, Any], through_a_run: Any
    ) -> None:
        with make_dag() as dag:
            result = WebCollectStartSubTasksOperator(task_id="start", collection_task_id="a").output
        trigger = begin(name, ended, dag=dag, after=result)
        render(trigger, {"start": stored(ended)["next_kwargs"]["result"]}, id=ended["task_id"])

        assert await through_a_run(state(trigger), ended["task_id"]) == "success"

    async def test_a_failure_that_must_not_be_retried_is_still_left_to_a_worker(
        self, begin: Any, running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        sandbox.control.stop_task(running["task_id"])
        event = await payload(begin("task", running, retries=1))

        sensor = WebCollectTaskStatusSensor(task_id="wait", collection_task_id=running["task_id"], retries=1)
        with pytest.raises(AirflowFailException, match="is Stopped"):
            sensor.resume_execution("execute_complete", {"event": event}, {})


def make(what: str, task: dict[str, Any], **arguments: Any) -> Any:
    """Make the operator or sensor that an event is for."""
    ids = {"collection_task_id": task["task_id"]}
    with make_dag():
        match what:
            case "task":
                return WebCollectTaskStatusSensor(task_id="wait", **ids, **arguments)
            case "tasks":
                return WebCollectTaskStatusSensor(task_id="wait", collection_task_ids=["a"], **arguments)
            case "sub-tasks":
                return WebCollectSubTaskStatusSensor(task_id="wait", **ids, **arguments)
            case "capacity":
                return WebCollectCapacitySensor(task_id="wait", max_active_tasks=1, **arguments)
        return WebCollectStartSubTasksOperator(task_id="start", **ids, wait_for_completion=True, **arguments)


def context(operator: Any, **store: Any) -> Any:
    """Return what a worker gives an operator: ``store`` is the task's state store."""

    class TaskStore(dict[str, Any]):
        set = dict.__setitem__
        delete = dict.pop

    instance = SimpleNamespace(max_tries=2, xcom_push=lambda **_: None)
    return {"task": operator, "ti": instance, "task_state_store": TaskStore(store)}


class TestEventsThatNobodyHasHandled:
    @pytest.mark.parametrize("what", ["task", "tasks", "sub-tasks", "capacity"])
    def test_a_good_end_is_the_sensors_result(self, what: str, ended: dict[str, Any]) -> None:
        event = stored(ended)["events"][f"{what}: done"]
        result = make(what, ended).resume_execution("execute_complete", {"event": event}, {})

        assert result == (event["records"][0] if what in ("task", "capacity") else event["records"])

    def test_a_good_end_is_the_start_operators_result(self, ended: dict[str, Any]) -> None:
        found = stored(ended)
        operator, event = make("start", ended), found["events"]["task: done"]
        store = context(operator, webcollect_start=found["task_state_store"]["sent"])
        result = operator.resume_execution(
            "execute_complete", {**found["next_kwargs"], "event": event}, store
        )

        assert result == {**found["next_kwargs"]["result"], "status": event["records"][0]}
        assert store["task_state_store"] == {}

    @pytest.mark.parametrize(
        ("what", "name"),
        [("task", "task: failed"), ("sub-tasks", "sub-tasks: failed"), ("start", "task: failed")],
    )
    def test_a_failure_state_fails_the_task_without_retries(
        self, what: str, name: str, ended: dict[str, Any]
    ) -> None:
        found = stored(ended)
        operator = make(what, ended)
        store = context(operator, webcollect_start=found["task_state_store"]["sent"])
        given = found["next_kwargs"] if what == "start" else {}
        with pytest.raises(AirflowFailException, match="Stopped"):
            operator.resume_execution("execute_complete", {**given, "event": found["events"][name]}, store)
        assert bool(store["task_state_store"]) == (what != "start")

    @pytest.mark.parametrize("what", ["task", "sub-tasks", "capacity", "start"])
    @pytest.mark.parametrize(
        ("name", "error"),
        [("refused by the service", AirflowFailException), ("error that passes", WebCollectError)],
    )
    def test_an_error_is_retried_only_if_that_may_help(
        self, what: str, name: str, error: type[Exception], ended: dict[str, Any]
    ) -> None:
        found = stored(ended)
        operator = make(what, ended)
        given = found["next_kwargs"] if what == "start" else {}
        with pytest.raises(error, match="get_task_statuses_v2"):
            operator.resume_execution(
                "execute_complete", {**given, "event": found["events"][name]}, context(operator)
            )

    @pytest.mark.parametrize("what", ["task", "sub-tasks"])
    @pytest.mark.parametrize("name", ["failed", "refused by the service"])
    def test_a_lenient_sensor_is_skipped(self, what: str, name: str, ended: dict[str, Any]) -> None:
        events = stored(ended)["events"]
        event = events.get(name) or events[f"{what}: {name}"]
        with pytest.raises(AirflowSkipException):
            make(what, ended, soft_fail=True).resume_execution("execute_complete", {"event": event}, {})

    @pytest.mark.parametrize("what", ["task", "sub-tasks"])
    @pytest.mark.parametrize(
        ("name", "error", "why"),
        [
            ("timeout", AirflowSensorTimeout, "the wait was not over"),
            ("refused", AirflowFailException, "it must be a non-empty string"),
        ],
    )
    def test_what_a_whole_wait_left_to_a_worker_ends_the_task(
        self, what: str, name: str, error: type[Exception], why: str, ended: dict[str, Any]
    ) -> None:
        sensor = make(what, ended, retries=1, start_from_trigger=True)
        with pytest.raises(error, match=why):
            sensor.resume_execution("execute_complete", {"event": stored(ended)["events"][name]}, {})

    async def test_a_whole_wait_for_the_next_run_is_begun_by_a_worker(
        self, ended: dict[str, Any], through_a_run: Any
    ) -> None:
        sensor = make("task", ended, after="{{ 'now' }}", start_from_trigger=True, poke_interval=0.2)
        sensor.after = "now"  # as the worker has rendered it
        left = {"event": stored(ended)["events"]["left"]}
        with pytest.raises(TaskDeferred) as deferred:
            sensor.resume_execution("execute_complete", left, context(sensor))
        event = await through_a_run(payload(deferred.value.trigger), ended["task_id"])

        assert event["records"][0]["executed_times"] == 2


class TestStarts:
    """What the start operator has stored in the task's state store, for a retry."""

    def operator(self, task: dict[str, Any], **arguments: Any) -> Any:
        with make_dag():
            return WebCollectStartSubTasksOperator(
                task_id="start", collection_task_id=task["task_id"], **arguments
            )

    @pytest.mark.parametrize("name", ["sent", "about to be sent"])
    def test_a_retry_joins_the_run_that_was_started(
        self, name: str, ended: dict[str, Any], sandbox: Sandbox
    ) -> None:
        found = stored(ended)
        sandbox.control.start_task(ended["task_id"])
        operator = self.operator(ended)
        store = context(operator, webcollect_start=found["task_state_store"][name])

        assert operator.execute(store) == found["next_kwargs"]["result"]
        assert store["task_state_store"] == {}
        assert len(sandbox.control.task(ended["task_id"])["runs"]) == 2
        assert not sandbox.control.requests("/cloudextraction/subtasks:start")

    async def test_a_retry_waits_for_the_run_that_was_started(
        self, ended: dict[str, Any], sandbox: Sandbox, through_a_run: Any
    ) -> None:
        operator = self.operator(ended, wait_for_completion=True, deferrable=True, poll_interval=0.2)
        store = context(operator, webcollect_start=stored(ended)["task_state_store"]["sent"])
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(store)
        event = await through_a_run(payload(deferred.value.trigger), ended["task_id"])
        result = operator.resume_execution(
            deferred.value.method_name, {**(deferred.value.kwargs or {}), "event": event}, store
        )

        assert result["status"]["executed_times"] == 2
        assert not sandbox.control.requests("/cloudextraction/subtasks:start")

    @pytest.mark.parametrize(
        ("name", "wait"),
        [
            ("about to be sent with an API key", False),
            ("about to be sent with an API key", True),
            ("sent with an API key", True),
        ],
    )
    def test_a_start_of_which_nothing_is_known_is_not_repeated(
        self, name: str, wait: bool, ended: dict[str, Any], sandbox: Sandbox
    ) -> None:
        operator = self.operator(ended, wait_for_completion=wait)
        store = context(operator, webcollect_start=stored(ended)["task_state_store"][name])

        with pytest.raises(AirflowFailException, match="without the status from before"):
            operator.execute(store)
        assert not sandbox.control.requests("/cloudextraction/subtasks:start")

    def test_a_start_with_an_api_key_is_known_to_a_retry(
        self, ended: dict[str, Any], sandbox: Sandbox
    ) -> None:
        operator = self.operator(ended)
        found = stored(ended)["task_state_store"]["sent with an API key"]

        assert operator.execute(context(operator, webcollect_start=found)) == found["result"]
        assert not sandbox.control.requests("/cloudextraction/subtasks:start")


@from_3_3
class TestWatches:
    async def reported(self, trigger: Any, task: dict[str, Any], name: str) -> list[dict[str, Any]]:
        """Return the first events of a watch that goes on from what is stored of a task."""
        found = stored(task)["asset_state_store"][name]
        store = Store()
        store.values[found["key"]] = json.dumps(found["value"])
        async with triggerer(trigger, store) as running:
            return await running.reported(1)

    async def test_a_run_that_ended_during_the_upgrade_is_reported(
        self, ended: dict[str, Any], sandbox: Sandbox
    ) -> None:
        before = sandbox.control.task(ended["task_id"])
        sandbox.control.start_task(ended["task_id"])
        sandbox.control.advance(20_000)
        (event,) = await self.reported(build(stored_row("finished", "3.3", before)), before, "ended")

        assert (event["first_run"], event["run"], event["status"]) == (2, 2, "Finished")

    @pytest.mark.parametrize("name", ["going on", "never ran"])
    async def test_a_first_run_that_ended_during_the_upgrade_is_reported(
        self, name: str, ended: dict[str, Any]
    ) -> None:
        (event,) = await self.reported(
            WebCollectTaskFinishedTrigger(collection_task_id=ended["task_id"], poke_interval=0.1), ended, name
        )

        assert (event["first_run"], event["run"]) == (1, 1)

    async def test_a_stored_watch_goes_on(
        self, ended: dict[str, Any], running: dict[str, Any], sandbox: Sandbox
    ) -> None:
        row = stored_row("finished or stopped", "3.3", ended, other=running["task_id"])
        async with triggerer(build(row), Store()) as watch:
            await polls(sandbox, STATUS)
            sandbox.control.stop_task(running["task_id"])
            (event,) = await watch.reported(1)

        assert (event["collection_task_id"], event["status"]) == (running["task_id"], "Stopped")
