"""Starting sub-tasks and waiting for the run, through crashes, lost answers and failing runs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.settings import Session
from sqlalchemy import inspect, text

from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import FinishedRun, make_dag, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(speed=20, stale_seconds=10, enforce_limits=False),
]

START = "/cloudextraction/subtasks:start"
STATUS = "/cloudextraction/statuses/v2"
RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}


def start(task: dict[str, Any], **arguments: Any) -> FinishedRun:
    """Run the operator as a DAG run, with retries."""
    return run_tasks(
        lambda: WebCollectStartSubTasksOperator(
            task_id="start",
            collection_task_id=task["task_id"],
            **{"wait_for_completion": True, "poll_interval": 0.2, **RETRIES, **arguments},
        )
    )


def starts(sandbox: Sandbox) -> int:
    return len(sandbox.control.requests(START))


def has_memory() -> bool:
    """Return whether this Airflow can remember something from try to try."""
    with Session() as session:
        return bool(inspect(session.get_bind()).has_table("task_state_store"))


def remembered() -> int:
    """Return how many things tasks remember at the moment."""
    if not has_memory():
        return 0
    with Session() as session:
        return int(session.execute(text("select count(*) from task_state_store")).scalar_one())


@pytest.mark.parametrize("deferrable", [False, True])
class TestWaiting:
    def test_it_ends_with_the_run_that_it_started(
        self, sandbox: Sandbox, task: dict[str, Any], deferrable: bool
    ) -> None:
        # the status shows the Finished of the run before for a while
        run = start(task, deferrable=deferrable)

        assert (run.states, run.tries["start"]) == ({"start": "success"}, 1)
        result = run.xcoms["start"]
        assert (result["status"]["status"], result["status"]["executed_times"]) == ("Finished", 2)
        assert (result["after"]["executed_times"], len(result["started"])) == (1, 3)
        assert sandbox.control.task(task["task_id"])["state"] == "Finished"
        assert starts(sandbox) == 1
        assert remembered() == 0

    def test_a_run_that_is_stopped_fails_it_without_retries(
        self, sandbox: Sandbox, task: dict[str, Any], deferrable: bool, said: Callable[[], str]
    ) -> None:
        sandbox.control.mark_state(task["task_id"], "Stopped")
        sandbox.control.configure(stale_seconds=0, final_state="Stopped")
        run = start(task, deferrable=deferrable)

        assert (run.states, run.tries) == ({"start": "failed"}, {"start": 1})
        assert f"{task['task_id']} is Stopped" in said()
        assert remembered() == 0


class TestCrashes:
    @pytest.mark.webcollect_sandbox(speed=5)
    def test_a_retry_joins_the_run_that_an_earlier_try_started(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(STATUS, status=400, code="TaskExecuting", after=1)
        run = start(task)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert starts(sandbox) == 1

    @pytest.mark.parametrize("deferrable", [False, True])
    def test_a_retry_knows_of_a_run_that_has_ended_meanwhile(
        self, sandbox: Sandbox, task: dict[str, Any], deferrable: bool
    ) -> None:
        if not has_memory():
            pytest.skip("this Airflow cannot remember it")
        sandbox.control.configure(speed=10_000)
        # the second status query of the first try, and of what follows the first
        sandbox.control.fail(STATUS, status=401, code="Invalid.Token", after=1, times=2)
        sandbox.control.fail("/token", status=400, code="TaskExecuting")
        run = start(task, deferrable=deferrable)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert starts(sandbox) == 1
        assert len(run.xcoms["start"]["started"]) == 3
        assert remembered() == 0

    def test_a_lost_answer_to_the_start_is_looked_up_by_a_retry(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(START, kind="no_answer")
        run = start(task, retry_unknown_outcome=True)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert starts(sandbox) == 1

    def test_a_start_that_was_lost_on_the_way_is_sent_again_by_a_retry(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(START, kind="drop")
        run = start(task, retry_unknown_outcome=True)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert starts(sandbox) == 2
        assert len(sandbox.control.task(task["task_id"])["runs"]) == 2

    def test_after_an_unknown_outcome_nothing_is_remembered(
        self, sandbox: Sandbox, task: dict[str, Any], said: Callable[[], str]
    ) -> None:
        sandbox.control.fail(START, kind="no_answer")
        run = start(task)

        assert (run.states, run.tries) == ({"start": "failed"}, {"start": 1})
        assert remembered() == 0
        assert f"The status of task {task['task_id']} shows whether its sub-tasks run." in said()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"poll_interval": 0}, "poll_interval"), ({"failure_states": "Stopped"}, "failure_states")],
)
def test_wrong_arguments_fail_while_the_dag_is_parsed(arguments: dict[str, Any], name: str) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=name):
        WebCollectStartSubTasksOperator(task_id="wrong", collection_task_id="t", **arguments)


def test_what_the_service_asks_for_is_how_long_a_retry_waits(
    sandbox: Sandbox, task: dict[str, Any], said: Callable[[], str]
) -> None:
    sandbox.control.fail(START, status=400, code="TaskExecuting", headers={"Retry-After": "7"})
    run = start(task, wait_for_completion=False)

    assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
    if has_memory():
        assert "The service asked to wait 7 s before the next request." in said()
    assert AIRFLOW_V_3_0_PLUS or not has_memory()
