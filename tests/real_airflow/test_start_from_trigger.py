"""Sensors whose whole wait is the triggerer's, and how deferred waits end, on a real Airflow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, Settings
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from demo.airflow_api import TaskInstance
    from demo.real_airflow import RealAirflow

pytestmark = [pytest.mark.real_airflow, pytest.mark.at_night]
DAGS = ("waits.py",)

STATUS = "/cloudextraction/statuses/v2"


@pytest.fixture(scope="module")
def sandbox(connect_to: Callable[..., None]) -> Iterator[Sandbox]:
    settings = Settings(
        enforce_limits=False, wait_seconds=0.2, run_seconds=0.5, stale_seconds=2, subtasks=2, rows_per_item=5
    )
    with Sandbox(settings) as sandbox:
        connect_to(sandbox, requests_per_second=0)
        yield sandbox


@pytest.fixture(scope="module")
def tasks(sandbox: Sandbox) -> dict[str, Any]:
    """The collection tasks that the DAGs wait for, as their params."""
    endless = sandbox.control.add_task(state="Dreaming")["task_id"]
    stopped = sandbox.control.add_task(state="Stopped")["task_id"]
    finished = [sandbox.control.add_task(lots=[10])["task_id"] for _ in range(2)]
    subtasks = [subtask["subtask_id"] for subtask in sandbox.control.task(finished[0])["subtasks"]]
    return {"endless": endless, "stopped": stopped, "ids": finished, "sub_task_ids": subtasks}


class Run:
    """A run of a DAG, and what came of its tasks."""

    def __init__(self, airflow: RealAirflow, dag_id: str, conf: dict[str, Any]) -> None:
        self.airflow = airflow
        self.dag_id = dag_id
        self.run_id = airflow.trigger(dag_id, conf)

    def wait(self) -> Run:
        """Wait until it is over."""
        self.airflow.wait(self.dag_id, self.run_id)
        return self

    def instances(self) -> dict[str, TaskInstance]:
        """The task instances by name."""
        return {task.name: task for task in self.airflow.task_instances(self.dag_id, self.run_id)}

    def log(self, name: str) -> str:
        """What a task has logged."""
        return self.airflow.task_log(self.dag_id, self.run_id, self.instances()[name])

    def xcom(self, task_id: str, map_index: int = -1) -> Any:
        """What a task has returned."""
        return self.airflow.xcom(self.dag_id, self.run_id, task_id, map_index=map_index)

    def had_a_worker(self, task_id: str) -> bool:
        """Whether a worker has run the task."""
        return bool(self._logs_of_workers(task_id))

    def logged_by_workers(self, task_id: str, map_index: int = -1) -> str:
        """What workers have logged in all attempts, also in one that Airflow took for lost and forgot."""
        return "".join(path.read_text() for path in self._logs_of_workers(task_id, map_index))

    def _logs_of_workers(self, task_id: str, map_index: int = -1) -> list[Path]:
        folder = self.airflow.home / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}"
        folder /= f"task_id={task_id}"
        if map_index >= 0:
            folder /= f"map_index={map_index}"
        return [path for path in folder.rglob("*.log") if ".trigger." not in path.name]


@pytest.fixture(scope="module")
def runs(airflow: RealAirflow, sandbox: Sandbox, tasks: dict[str, Any]) -> dict[str, Run]:
    """Runs of the DAGs that nobody acts on; they go on side by side."""
    fresh = sandbox.control.add_task(lots=[10], rows=20)["task_id"]
    return {
        "main": Run(airflow, "main", {"fresh": fresh}),
        "endings": Run(airflow, "endings", tasks),
        "workers": Run(airflow, "workers", tasks),
        "arguments": Run(airflow, "arguments", tasks),
    }


class TestTheMainJob:
    @pytest.fixture
    def run(self, runs: dict[str, Run]) -> Run:
        return runs["main"].wait()

    @pytest.mark.parametrize("task_id", ["wait", "templated", "subtasks"])
    def test_the_wait_ends_well_without_a_worker(self, run: Run, task_id: str) -> None:
        assert run.instances()[task_id].state == "success", run.log(task_id)
        assert not run.had_a_worker(task_id)

    @pytest.mark.parametrize("task_id", ["wait", "templated"])
    def test_the_finished_of_the_run_before_does_not_pass(self, run: Run, task_id: str) -> None:
        record = run.xcom(task_id)
        assert (record["status"], record["executed_times"]) == ("Finished", 2)

    def test_other_tasks_get_the_record_as_it_is(self, run: Run) -> None:
        read = run.xcom("read")
        assert (read["type"], read["value"]["status"]) == ("dict", "Finished")

    def test_the_records_of_subtasks_are_the_result(self, run: Run) -> None:
        assert [record["status"] for record in run.xcom("subtasks")] == ["Finished", "Finished"]


class TestEndings:
    @pytest.fixture
    def run(self, runs: dict[str, Run]) -> Run:
        return runs["endings"].wait()

    @pytest.mark.parametrize(
        ("task_id", "state", "tries"),
        [
            ("stopped", "failed", 1),
            ("stopped_with_retries", "failed", 1),
            ("stopped_and_lenient", "skipped", 1),
            ("stopped_and_never_failing", "skipped", 1),
            ("late", "failed", 1),
            ("late_with_retries", "failed", 1),
            ("late_and_lenient", "skipped", 1),
            ("wrong", "failed", 1),
            ("wrong_with_retries", "failed", 1),
            ("executing_too_long", "failed", 2),
            ("deferred_late", "failed", 1),
            ("deferred_late_and_lenient", "skipped", 1),
            ("deferred_executing_too_long", "failed", 2),
        ],
    )
    def test_a_wait_ends_as_when_poking(self, run: Run, task_id: str, state: str, tries: int) -> None:
        instance = run.instances()[task_id]
        assert (instance.state, instance.try_number) == (state, tries), run.log(task_id)

    # of those that end in the triggerer, it may lose the last lines
    @pytest.mark.parametrize(
        ("task_id", "why"),
        [
            ("stopped_with_retries", "is Stopped"),
            ("late_with_retries", "the wait was not over after 2 s"),
            ("wrong_with_retries", "`collection_task_id` is ''; it must be a non-empty string"),
            ("executing_too_long", "not over after the execution timeout, 0:00:02"),
            ("deferred_late", "the wait was not over after 5 s"),
            ("deferred_executing_too_long", "not over after the execution timeout, 0:00:05"),
        ],
    )
    def test_the_log_says_why(self, run: Run, task_id: str, why: str) -> None:
        assert why in run.log(task_id)

    def test_a_worker_is_needed_only_to_fail_a_task_that_has_retries(self, run: Run) -> None:
        # those Airflow gives to a worker too, if a busy triggerer has not ended them within a minute
        others = ("deferred", "late_and_lenient")
        zero = [name for name in run.instances() if not name.startswith(others) and name != "late"]
        assert {name for name in zero if run.had_a_worker(name)} == {
            "stopped_with_retries",
            "late_with_retries",
            "wrong_with_retries",
            "executing_too_long",
        }


class TestWhatOnlyAWorkerCanDo:
    @pytest.fixture
    def run(self, runs: dict[str, Run]) -> Run:
        return runs["workers"].wait()

    @pytest.mark.parametrize(
        ("task_id", "map_index", "why"),
        [
            ("mapped", 0, "Airflow cannot start mapped tasks in the triggerer"),
            (
                "with_outlets",
                -1,
                "it has outlets, and a task that ends in the triggerer makes no asset events",
            ),
        ],
    )
    def test_it_is_deferred_and_the_log_says_why(
        self, run: Run, task_id: str, map_index: int, why: str
    ) -> None:
        instances = [task for task in run.instances().values() if task.task_id == task_id]
        assert {task.state for task in instances} == {"success"}
        # once for each deferral: on a busy machine, Airflow takes one for lost and starts a worker again
        logs = run.logged_by_workers(task_id, map_index)
        deferrals = logs.count("Pausing task as DEFERRED")
        assert deferrals > 0
        assert logs.count(f"A worker begins this wait, and then defers it: {why}.") == deferrals

    def test_other_tasks_can_be_mapped_over_the_result(self, run: Run) -> None:
        assert [run.xcom("read", index)["value"]["status"] for index in range(2)] == ["Finished"] * 2


class TestArguments:
    """The triggerer makes of the arguments what a worker makes of them."""

    @pytest.fixture
    def run(self, runs: dict[str, Run]) -> Run:
        return runs["arguments"].wait()

    @pytest.mark.parametrize("name", ["result", "results", "template", "subtasks", "conn_id"])
    def test_results_of_other_tasks_are_the_same_as_in_a_worker(self, run: Run, name: str) -> None:
        zero, deferred = f"{name}_zero", f"{name}_deferred"
        assert run.instances()[zero].state == "success", run.log(zero)
        assert run.xcom(zero) == run.xcom(deferred) is not None
        assert not run.had_a_worker(zero)

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("no_task", "`collection_task_id` is None; it was given, but there is no such result"),
            ("no_tasks", "`collection_task_ids[0]` is None; it must be a non-empty string"),
            ("no_subtasks", "`sub_task_ids` is None; it was given, but there is no such result"),
            ("no_conn_id", "`webcollect_conn_id` is None; it was given, but there is no such result"),
            ("now", "the wait was not over after 10 s"),
            ("empty", "`after` is ''; it must be what WebCollectStartSubTasksOperator returned"),
            ("undefined", "no attribute 'typo'"),
        ],
    )
    @pytest.mark.parametrize("way", ["zero", "deferred"])
    def test_what_cannot_be_waited_for_ends_the_wait(self, run: Run, name: str, way: str, why: str) -> None:
        task_id = f"{name}_{way}"
        log = run.log(task_id)
        assert run.instances()[task_id].state == "failed", log
        assert why in log

    def test_what_the_status_shows_now_is_left_to_a_worker(self, run: Run) -> None:
        why = "only a worker can query what the status shows now"
        assert f"A worker begins this wait, and then defers it: {why}." in run.log("now_zero")


class TestActingOnADeferredWait:
    @pytest.fixture
    def run(self, airflow: RealAirflow, sandbox: Sandbox, tasks: dict[str, Any]) -> Run:
        run = Run(airflow, "handled", tasks)
        self.wait_for_looks(run, sandbox)
        return run

    def wait_for_looks(self, run: Run, sandbox: Sandbox) -> None:
        """Wait until both are deferred, and the service is queried."""
        sandbox.control.clear_requests()
        run.airflow.wait_for(
            lambda: (
                {task.state for task in run.instances().values()} == {"deferred"}
                and bool(sandbox.control.requests(STATUS))
            ),
            PATIENCE,
            "both waits to be deferred",
        )

    @pytest.mark.parametrize("state", ["success", "failed", "skipped"])
    def test_marking_it_ends_it_and_its_polls(self, run: Run, state: str, sandbox: Sandbox) -> None:
        for task_id in run.instances():
            path = f"dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}"
            run.airflow._api("PATCH", path, json={"new_state": state})
        run.wait()
        assert {name: task.state for name, task in run.instances().items()} == {
            "zero": state,
            "deferred": state,
        }

        def nobody_asks() -> bool:
            sandbox.control.clear_requests()
            time.sleep(1.5)
            return not sandbox.control.requests(STATUS)

        run.airflow.wait_for(nobody_asks, PATIENCE, "the polls to end")

    def test_clearing_it_begins_it_again(self, run: Run, sandbox: Sandbox) -> None:
        run.airflow.clear(run.dag_id, run.run_id)
        run.airflow.wait_for(
            lambda: all(task.try_number == 2 for task in run.instances().values()), PATIENCE, "the next try"
        )
        self.wait_for_looks(run, sandbox)
