"""How operators fail: refusals, lost answers, timeouts, workers that are shut down."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.settings import Session
from sqlalchemy import text

from airflow_provider_webcollect.common import INTERRUPTS
from airflow_provider_webcollect.service.endpoints import ENDPOINTS, Retry
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import execute, on_sandbox
from tests.interruption import PATIENCE, signalled_when
from tests.operations import PATHS, WITH_OPERATOR, Operation, Scene, each

pytestmark = on_sandbox(stale_seconds=0)

RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}
#: Operations of which the operator sends one call; a start queries first.
ONE_CALL = [operation for operation in WITH_OPERATOR if operation.name != "start_subtasks"]
#: Operations that are not safe to repeat.
UNSAFE = [operation for operation in WITH_OPERATOR if operation.doubt]
COPY = next(operation for operation in UNSAFE if operation.name == "copy_task")
READ = next(operation for operation in ONE_CALL if operation.name == "get_actions")
ERRORS = {endpoint.name: endpoint.errors for endpoint in ENDPOINTS}


def state_of(dag_id: str) -> str:
    """Return the state of a DAG's only task."""
    query = text("select state from task_instance where dag_id = :dag_id")
    with Session() as session:
        return str(session.execute(query, {"dag_id": dag_id}).scalar_one())


def execute_interrupted(scene: Scene, operation: Operation, **arguments: Any) -> None:
    """Execute an operator that a timeout interrupts when its endpoint has acted, and is answering."""
    scene.control.fail(PATHS[operation.name], kind="drip", seconds=PATIENCE)
    with signalled_when(lambda: operation.received(scene), AirflowTaskTimeout):
        execute(operation.make_operator(scene, **arguments))


class TestErrors:
    @each(ONE_CALL)
    def test_codes_of_the_contract_and_plans_that_are_too_low_fail_without_retries(
        self, scene: Scene, operation: Operation
    ) -> None:
        name = operation.name
        is_app = name == "deprecate_data_app"
        causes = [(401 if is_app else 400, code, "") for code in ERRORS[name][:1]]
        causes.append((403, "PermissionDenied", "" if is_app else ".*See `Required plan tiers` in the"))
        for status, code, advice in causes:
            # a rejected credential is tried twice
            scene.control.fail(PATHS[name], status=status, code=code, message="so it is", times=2)
            expected_code = "permission-denied" if is_app and status == 403 else code
            said = f"{name}: HTTP {status} {expected_code}: so it is{advice}"
            with pytest.raises(AirflowFailException, match=said):
                execute(operation.make_operator(scene))
            scene.control.clear_faults()

    @pytest.mark.parametrize("done", [False, True])
    @each(ONE_CALL)
    def test_a_lost_answer_is_asked_for_again_only_where_the_outcome_may_be_repeated(
        self, scene: Scene, operation: Operation, done: bool
    ) -> None:
        assert (operation.call(scene).retry is Retry.ONLY_IF_UNSENT) is bool(operation.doubt)
        scene.control.fail(PATHS[operation.name], kind="drop", done=done)
        if operation.doubt:
            with pytest.raises(AirflowFailException, match=re.escape(scene.fill(operation.doubt))):
                execute(operation.make_operator(scene))
        else:
            execute(operation.make_operator(scene))
        assert operation.received(scene) == (1 if operation.doubt else 2)
        # it has taken effect once, or not at all
        assert operation.then is None or bool(operation.then(scene)) is (done or not operation.doubt)

    @each(UNSAFE)
    def test_a_timeout_that_interrupts_one_counts_as_an_unknown_outcome(
        self, scene: Scene, operation: Operation
    ) -> None:
        with pytest.raises(AirflowFailException) as failed:
            execute_interrupted(scene, operation)
        operation.check(scene)
        said = str(failed.value)
        assert "interrupted before it answered (AirflowTaskTimeout)" in said
        assert f"{scene.fill(operation.doubt)} Clear the task" in said

    @pytest.mark.parametrize("operation", [COPY, READ], ids=["copy", "read"])
    def test_a_timeout_leaves_to_retries_what_may_be_repeated(
        self, scene: Scene, operation: Operation
    ) -> None:
        with pytest.raises(AirflowTaskTimeout):
            execute_interrupted(scene, operation, retry_unknown_outcome=True)

    @each([operation for operation in UNSAFE if operation in ONE_CALL])
    def test_a_rate_limit_is_waited_out_even_where_repeating_is_not_safe_and_retries_can_be_asked_for(
        self, scene: Scene, operation: Operation
    ) -> None:
        scene.control.fail(PATHS[operation.name], status=429, code="TooManyRequests")
        execute(operation.make_operator(scene))
        assert operation.received(scene) == 2
        scene.control.fail(PATHS[operation.name], kind="drop")
        execute(operation.make_operator(scene, retry_unknown_outcome=True), tries=2)
        assert operation.received(scene) == 4

    def test_a_worker_that_is_shut_down_makes_no_second_copy(
        self, scene: Scene, after_requests: Callable[..., None]
    ) -> None:
        with make_dag() as dag:
            COPY.make_operator(scene, **RETRIES)
        # on Airflow 3 the task goes on
        scene.control.fail(PATHS["copy_task"], kind="drip", seconds=0.01)
        # what Airflow does to the process of a task
        after_requests(1, PATHS["copy_task"], os.kill, os.getpid(), signal.SIGTERM)
        # `dag.test()` of Airflow 2 ends with it
        with contextlib.suppress(*INTERRUPTS):
            run_dag(dag)

        # Airflow 3 lets the task end by itself
        assert state_of(dag.dag_id) == ("success" if AIRFLOW_V_3_0_PLUS else "failed")
        COPY.check(scene)
