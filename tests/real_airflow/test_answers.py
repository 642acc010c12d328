"""What a person answers about unknown outcomes, by the API that Airflow's web interface uses.

``make test-matrix`` runs it on other versions of Airflow too, with the demo beside it and nothing else.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.sandbox import Sandbox, Settings
from demo.airflow_api import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from demo.airflow_api import TaskInstance
    from demo.real_airflow import RealAirflow

pytestmark = [pytest.mark.real_airflow, pytest.mark.at_night]
DAGS = ("asks.py",)

START = "/cloudextraction/subtasks:start"
COPY = "/task/copy"
#: From Airflow 3.3 on, and before.
WAITING = ("awaiting_input", "deferred")


@pytest.fixture(scope="module")
def sandbox(connect_to: Callable[..., None]) -> Iterator[Sandbox]:
    settings = Settings(enforce_limits=False, wait_seconds=0.2, run_seconds=0.5, stale_seconds=0, subtasks=2)
    with Sandbox(settings) as sandbox:
        connect_to(sandbox, requests_per_second=0)
        yield sandbox


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """The id of a collection task that has run once."""
    return str(sandbox.control.add_task(lots=[10])["task_id"])


class Asking:
    """A run of a DAG whose task ``ask`` asks a person."""

    def __init__(self, airflow: RealAirflow, dag_id: str, **conf: Any) -> None:
        self.airflow = airflow
        self.dag_id = dag_id
        self.run_id = airflow.trigger(dag_id, conf)

    def instance(self, map_index: int = -1) -> TaskInstance | None:
        """The task instance, once there is one."""
        found = self.airflow.task_instances(self.dag_id, self.run_id)
        return next((each for each in found if each.map_index == map_index), None)

    def question(self, map_index: int = -1) -> dict[str, Any]:
        """Wait until the task waits for an answer, and return what is asked."""

        def is_asked() -> bool:
            instance = self.instance(map_index)
            if instance is None or instance.state not in WAITING:
                return False
            return not self._api("GET", map_index)["response_received"]

        self.airflow.wait_for(is_asked, PATIENCE_SECONDS, f"{self.run_id} of {self.dag_id} to ask")
        # Airflow's scheduler takes a task that is answered at once for one that was lost, and retries it
        time.sleep(2)
        asked: dict[str, Any] = self._api("GET", map_index)
        return asked

    def answer(self, option: str, map_index: int = -1, **params: Any) -> None:
        """Answer, as soon as it is asked."""
        self.question(map_index)
        self._api("PATCH", map_index, json={"chosen_options": [option], "params_input": params})

    def wait(self) -> str:
        """Wait until the run is over, and return its state."""
        return self.airflow.wait(self.dag_id, self.run_id)

    def result(self, map_index: int = -1) -> Any:
        """What the task has returned."""
        return self.airflow.xcom(self.dag_id, self.run_id, "ask", map_index=map_index)

    def log(self) -> str:
        """What the task has logged."""
        instance = self.instance()
        assert instance
        return self.airflow.task_log(self.dag_id, self.run_id, instance)

    def _api(self, method: str, map_index: int, **request: Any) -> Any:
        path = f"dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/ask/{map_index}/hitlDetails"
        return self.airflow._api(method, path, **request)


def starts(sandbox: Sandbox, task: str) -> int:
    """Return how many starts of a task took effect."""
    return len(sandbox.control.task(task)["runs"]) - 1


def test_a_start_that_took_effect_is_waited_for(airflow: RealAirflow, sandbox: Sandbox, task: str) -> None:
    sandbox.control.fail(START, kind="no_answer")
    run = Asking(airflow, "asks_about_start", task=task)
    asked = run.question()

    assert asked["subject"] == f"Did the start of task {task} take effect?"
    assert asked["options"] == ["it runs", "send again", "fail"]
    assert "Check in the service whether it took effect" in asked["body"]
    assert "executed_times 2" in asked["body"]
    assert not any(secret in str(asked) for secret in ("sandbox-access-", "sandbox-refresh-"))

    run.answer("it runs")
    assert run.wait() == "success"
    assert run.result()["status"]["executed_times"] == 2
    assert len(run.result()["started"]) == 2
    assert starts(sandbox, task) == 1


def test_a_start_that_was_lost_is_sent_once_for_each_answer(
    airflow: RealAirflow, sandbox: Sandbox, task: str
) -> None:
    sandbox.control.fail(START, kind="drop", times=2)
    before = len(sandbox.control.requests(START))
    run = Asking(airflow, "asks_about_start", task=task)
    for sent in (1, 2):
        run.question()
        assert len(sandbox.control.requests(START)) - before == sent
        run.answer("send again")

    assert run.wait() == "success"
    instance = run.instance()
    assert instance
    assert instance.try_number == 1
    assert len(sandbox.control.requests(START)) - before == 3
    assert starts(sandbox, task) == 1


def test_a_task_fails_without_retries_and_says_who_wanted_that(
    airflow: RealAirflow, sandbox: Sandbox, task: str
) -> None:
    sandbox.control.fail(START, kind="no_answer")
    run = Asking(airflow, "asks_about_start", task=task)
    run.answer("fail")

    assert run.wait() == "failed"
    instance = run.instance()
    assert instance
    assert instance.try_number == 1
    assert "`fail` was chosen by " in run.log()
    assert starts(sandbox, task) == 1


def test_the_default_counts_if_nobody_answers_in_time(
    airflow: RealAirflow, sandbox: Sandbox, task: str
) -> None:
    sandbox.control.fail(START, kind="no_answer")
    run = Asking(airflow, "asks_about_start_for_a_moment", task=task)

    assert run.wait() == "failed"
    instance = run.instance()
    assert instance
    assert instance.try_number == 1
    assert "Nobody answered in time, so the default `fail` was taken at " in run.log()
    assert starts(sandbox, task) == 1


def test_a_copy_has_the_id_that_the_person_found(airflow: RealAirflow, sandbox: Sandbox) -> None:
    tasks = [sandbox.control.add_task()["task_id"] for _ in range(2)]
    sandbox.control.fail(COPY, kind="no_answer", times=2)
    before = len(sandbox.control.requests(COPY))
    run = Asking(airflow, "asks_about_copies", tasks=tasks)
    # without an id it is asked again
    run.answer("it was made", 0, new_task_id="")
    run.answer("it was made", 0, new_task_id="4711")
    run.answer("send again", 1, new_task_id=None)

    assert run.wait() == "success"
    assert run.result(0) == {"task_id": "4711", "task_name": None}
    assert run.result(1)["task_name"]
    assert len(sandbox.control.requests(COPY)) - before == 3


def test_a_task_that_is_cleared_while_it_waits_sends_nothing_again(
    airflow: RealAirflow, sandbox: Sandbox
) -> None:
    if not has_store(airflow):
        pytest.skip("this Airflow stores nothing for later tries")
    tasks = [sandbox.control.add_task()["task_id"] for _ in range(2)]
    sandbox.control.fail(COPY, kind="no_answer", times=2)
    before = len(sandbox.control.requests(COPY))
    run = Asking(airflow, "asks_about_copies", tasks=tasks)
    run.question(0)
    run.question(1)
    airflow.clear(run.dag_id, run.run_id)

    def is_second_try() -> bool:
        return all(found.try_number == 2 for found in airflow.task_instances(run.dag_id, run.run_id))

    airflow.wait_for(is_second_try, PATIENCE_SECONDS, "the second try")
    for index in (0, 1):
        run.answer("it was made", index, new_task_id="4711")

    assert run.wait() == "success"
    assert len(sandbox.control.requests(COPY)) - before == 2


def has_store(airflow: RealAirflow) -> bool:
    """Whether this Airflow stores values of a task over its tries."""
    version = airflow.get("version")["version"]
    return tuple(map(int, version.split(".")[:2])) >= (3, 3)


@pytest.fixture
def changed(sandbox: Sandbox, task: str) -> str:
    """The id of a collection task whose rows have no price any more."""
    sandbox.control.change_rows(task, "price", "empty", from_row=0)
    return task


def test_a_person_accepts_rows_that_have_failed_their_checks(
    airflow: RealAirflow, sandbox: Sandbox, changed: str, tmp_path: Path
) -> None:
    run = Asking(airflow, "asks_about_rows", task=changed, destination=f"file://{tmp_path}/landed")
    asked = run.question()
    assert "columns.price.filled: filled in 0 % of 10 rows" in asked["body"]
    assert asked["options"] == ["accept", "quarantine", "discard", "fail"]
    assert not (tmp_path / "landed" / "_manifest.json").exists()

    run.answer("accept")
    assert run.wait() == "success"
    assert (run.result()["rows"], len(run.result()["uris"])) == (10, 1)
    assert list(read_landing(tmp_path / "landed").iter_rows()) == sandbox.control.true_rows(changed)


def test_rows_that_nobody_decides_on_in_time_become_what_the_default_says(
    airflow: RealAirflow, changed: str, tmp_path: Path
) -> None:
    destination = f"file://{tmp_path}/landed"
    run = Asking(airflow, "asks_about_rows_for_a_moment", task=changed, destination=destination)
    assert run.wait() == "success"
    assert (run.result()["rows"], run.result()["quarantined_rows"]) == (0, 10)
    read_landing(tmp_path / "landed").verify()
