"""How operators fail: wrong arguments, refusals, lost answers, timeouts, workers that are shut down."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout, TaskGroup
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.settings import Session
from sqlalchemy import text

import airflow_provider_webcollect
from airflow_provider_webcollect.common import INTERRUPTS
from airflow_provider_webcollect.operators.webcollect import WebCollectMarkExportedOperator
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.endpoints import ENDPOINTS
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import Task, execute, on_sandbox
from tests.interruption import PATIENCE, signalled_when

pytestmark = on_sandbox(stale_seconds=0)

RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}
GROUP, OTHER_GROUP = 1, 7
APP = "demo/price-watch"

TODAY = pendulum.now("UTC").date().isoformat()
#: Operators are named like their endpoints, but for letter case and underscores.
OPERATORS = {name.lower(): name for name in dir(airflow_provider_webcollect)}


def operator_of(name: str) -> type[Any]:
    """Return the operator of an endpoint."""
    class_name = OPERATORS[f"webcollect{name.replace('_', '')}operator"]
    return getattr(airflow_provider_webcollect, class_name)


def right_arguments(task: Task) -> dict[str, dict[str, Any]]:
    """Return arguments of operators that work on a task, by endpoint."""
    one, several = {"collection_task_id": task["task_id"]}, {"collection_task_ids": [task["task_id"]]}
    loop = {"action_id": task["actions"][0]["action_id"], "loop_type": "TextList"}
    days = {"start": TODAY, "end": TODAY}
    return {
        "refresh_token": {},
        "query_analytics": days,
        "metrics_check": days,
        "discover": {"collection_tasks": "/collection_tasks.yaml"},
        "replace_urls": {**one, "urls": ["https://shop.example/1"]},
        "update_loop_items": {**one, **loop, "loop_items": ["y"]},
        "update_task_parameters": {**one, "loop_items": [{**loop, "loop_items": ["x"], "is_append": True}]},
        "get_actions": several,
        "copy_task": one,
        "copy_tasks": {**several, "task_group_ids": [GROUP]},
        "move_task": {**one, "task_group_id": GROUP},
        "delete_tasks": {"collection_task_ids": ["gone"]},
        "delete_task_groups": {"task_group_ids": [OTHER_GROUP]},
        "start_subtasks": one,
        "get_running_counts": {},
        "mark_exported": one,
        "deprecate_data_app": {"app_id": APP},
    }


def make(name: str, task: Task, **arguments: Any) -> Any:
    """Make the operator of an endpoint, which works on a task."""
    return operator_of(name)(**{"task_id": name, **right_arguments(task)[name], **arguments})


#: A task that need not exist.
TASK: Task = {"task_id": "t", "actions": [{"action_id": "a-step"}]}
#: Operators with other calls: a start queries first, and a renewal belongs to no operation.
OTHERS = {"refresh_token", "metrics_check", "discover", "start_subtasks"}
NAMES = [name for name in right_arguments(TASK) if name not in OTHERS]
PATHS = {endpoint.name: endpoint.path for endpoint in ENDPOINTS}
ERRORS = {endpoint.name: endpoint.errors for endpoint in ENDPOINTS}
UNSAFE = {"copy_task", "copy_tasks", "update_task_parameters"}


def sent(sandbox: Sandbox, name: str) -> int:
    """Return how many requests an endpoint got."""
    return len(sandbox.control.requests(PATHS[name]))


def state_of(dag_id: str) -> str:
    """Return the state of a DAG's only task."""
    query = text("select state from task_instance where dag_id = :dag_id")
    with Session() as session:
        return str(session.execute(query, {"dag_id": dag_id}).scalar_one())


def in_group(sandbox: Sandbox) -> int:
    """Return how many tasks the usual group has."""
    return sum(task["group_id"] == GROUP for task in sandbox.control.tasks())


def execute_interrupted(sandbox: Sandbox, name: str, task: Task, **arguments: Any) -> None:
    """Execute an operator that a timeout interrupts when its endpoint has acted, and is answering."""
    sandbox.control.fail(PATHS[name], kind="drip", seconds=PATIENCE)
    with signalled_when(lambda: sent(sandbox, name), AirflowTaskTimeout):
        execute(make(name, task, **arguments))


class TestErrors:
    def test_codes_of_the_contract_and_plans_that_are_too_low_fail_without_retries(
        self, sandbox: Sandbox, task: Task
    ) -> None:
        for name in NAMES:
            is_app = name == "deprecate_data_app"
            causes = [(401 if is_app else 400, code, "") for code in ERRORS[name][:1]]
            causes.append((403, "PermissionDenied", "" if is_app else ".*See `Required plan tiers` in the"))
            for status, code, advice in causes:
                # a rejected credential is tried twice
                sandbox.control.fail(PATHS[name], status=status, code=code, message="so it is", times=2)
                expected_code = "permission-denied" if is_app and status == 403 else code
                said = f"{name}: HTTP {status} {expected_code}: so it is{advice}"
                with pytest.raises(AirflowFailException, match=said):
                    execute(make(name, task))
                sandbox.control.clear_faults()

    @pytest.mark.parametrize("done", [False, True])
    def test_a_lost_answer_is_asked_for_again_only_where_that_is_safe(
        self, sandbox: Sandbox, task: Task, done: bool
    ) -> None:
        count = in_group(sandbox)
        unknown = {}
        for name in NAMES:
            sandbox.control.fail(PATHS[name], kind="drop", done=done)
            try:
                execute(make(name, task))
            except AirflowFailException as error:
                unknown[name] = str(error)

        assert unknown.keys() == UNSAFE
        assert {name: sent(sandbox, name) for name in NAMES} == {
            name: 1 if name in UNSAFE else 2 for name in NAMES
        }
        assert in_group(sandbox) - count == (2 if done else 0)
        loop = sandbox.control.task(task["task_id"])["actions"][0]["loop_items"]
        assert loop == ["y", *(["x"] if done else [])]
        assert f"A copy of task {task['task_id']} may be in its own group by now." in unknown["copy_task"]
        assert f"Copies of 1 tasks may be in the groups {GROUP} by now." in unknown["copy_tasks"]
        assert "The values may have been appended already to" in unknown["update_task_parameters"]

    def test_retries_of_an_unknown_outcome_can_be_asked_for(self, sandbox: Sandbox, task: Task) -> None:
        for name in UNSAFE:
            sandbox.control.fail(PATHS[name], kind="drop")
            execute(make(name, task, retry_unknown_outcome=True), tries=2)

    def test_a_timeout_that_interrupts_one_counts_as_an_unknown_outcome(
        self, sandbox: Sandbox, task: Task
    ) -> None:
        count = in_group(sandbox)
        said = {}
        names = {*UNSAFE, "start_subtasks"}
        for name in names:
            with pytest.raises(AirflowFailException) as failed:
                execute_interrupted(sandbox, name, task)
            said[name] = str(failed.value)

        assert {name: sent(sandbox, name) for name in names} == dict.fromkeys(names, 1)
        assert in_group(sandbox) - count == 2
        assert sandbox.control.task(task["task_id"])["actions"][0]["loop_items"] == ["one", "two", "x"]
        assert all("interrupted before it answered (AirflowTaskTimeout)" in error for error in said.values())
        advice = f"A copy of task {task['task_id']} may be in its own group by now. Clear the task"
        assert advice in said["copy_task"]
        start_advice = f"The status of task {task['task_id']} shows whether its sub-tasks run."
        assert start_advice in said["start_subtasks"]

    @pytest.mark.parametrize("name", ["copy_task", "get_actions"])
    def test_a_timeout_leaves_to_retries_what_may_be_repeated(
        self, sandbox: Sandbox, task: Task, name: str
    ) -> None:
        with pytest.raises(AirflowTaskTimeout):
            execute_interrupted(sandbox, name, task, retry_unknown_outcome=True)

    def test_a_worker_that_is_shut_down_makes_no_second_copy(
        self, sandbox: Sandbox, task: Task, after_requests: Callable[..., None]
    ) -> None:
        count = in_group(sandbox)
        with make_dag() as dag:
            make("copy_task", task, **RETRIES)
        # on Airflow 3 the task goes on
        sandbox.control.fail(PATHS["copy_task"], kind="drip", seconds=0.01)
        # what Airflow does to the process of a task
        after_requests(1, PATHS["copy_task"], os.kill, os.getpid(), signal.SIGTERM)
        # `dag.test()` of Airflow 2 ends with it
        with contextlib.suppress(*INTERRUPTS):
            run_dag(dag)

        # Airflow 3 lets the task end by itself
        assert state_of(dag.dag_id) == ("success" if AIRFLOW_V_3_0_PLUS else "failed")
        assert sent(sandbox, "copy_task") == 1
        assert in_group(sandbox) - count == 1

    def test_a_rate_limit_is_waited_out_even_where_repeating_is_not_safe(
        self, sandbox: Sandbox, task: Task
    ) -> None:
        for name in UNSAFE:
            sandbox.control.fail(PATHS[name], status=429, code="TooManyRequests")
            execute(make(name, task))
        assert {name: sent(sandbox, name) for name in UNSAFE} == dict.fromkeys(UNSAFE, 2)


#: By endpoint, wrong arguments of its operator, of which the error names the first.
_WRONG: dict[str, list[dict[str, Any]]] = {
    "copy_task": [{"collection_task_id": ""}, {"task_group_id": "one"}],
    "copy_tasks": [{"collection_task_ids": []}, {"task_group_ids": 1}, {"on_partial_failure": "hope"}],
    "move_task": [{"collection_task_id": None}, {"task_group_id": None}],
    "delete_tasks": [{"collection_task_ids": []}, {"collection_task_ids": "t", "ignore_empty": True}],
    "delete_task_groups": [{"task_group_ids": ["a"]}, {"task_group_ids": "", "ignore_empty": True}],
    "update_task_parameters": [{"actions": None, "loop_items": None}, {"actions": [{"action_id": "a"}]}],
    "update_loop_items": [
        *({"loop_items": items} for items in ([], "laptop", [1])),
        *({"loop_type": "Texts"}, {"action_id": ""}, {"collection_task_id": None}, {"is_append": "yes"}),
    ],
    "get_actions": [{"action_types": ["Fly"]}, {"collection_task_ids": "t"}],
    "replace_urls": [
        *({"urls": urls} for urls in (None, ["ftp://a"], "https://a")),
        {"urls": ["https://a"], "urls_path": "/f"},
        {"urls_path": "", "urls": None},
    ],
    "start_subtasks": [
        *({"sub_task_ids": ids} for ids in ([], "one")),
        *({"collection_task_id": " "}, {"poll_interval": 0}, {"failure_states": "Stopped"}),
        {"no_new_rows_for": 60},
        {"no_new_rows_for": 0, "wait_for_completion": True},
    ],
    "mark_exported": [{"collection_task_id": ""}],
    "deprecate_data_app": [{"app_id": ".."}],
    "query_analytics": [
        *({"start": "yesterday"}, {"end": "2020-01-01"}, {"collection_task_ids": ["t"] * 101}),
        *({"member_names": "me"}, {"collection_method": "Magic"}, {"time_granularity": "Year"}),
        *({"max_xcom_rows": -1}, {"destination": "s3://bucket/folder/"}),
        {"file_format": "xls", "destination": "/f"},
    ],
    "metrics_check": [
        *({"min_success_rate": share} for share in (None, 95)),
        *(
            {"max_volume_drop": -0.1},
            {"max_volume": -1},
            {"max_cost": "10"},
            {"on_violation": "cry", "max_cost": 1},
        ),
    ],
    "discover": [{"collection_tasks": "in/this/folder.yaml"}, {"merge": "yes"}],
    "refresh_token": [{"renew_after": share} for share in (-0.1, 1.5, "0.5")],
}
#: Each operator with arguments of which one is wrong, and the name of that one.
WRONG = [
    (operator_of(name), {**right_arguments(TASK)[name], **wrong}, next(iter(wrong)))
    for name, cases in _WRONG.items()
    for wrong in cases
]


class TestArguments:
    """They are checked while the DAG is parsed, or by the task where they are not known before."""

    @pytest.mark.parametrize(
        ("operator", "arguments", "name"), WRONG, ids=[f"{case[0].__name__}-{case[2]}" for case in WRONG]
    )
    def test_a_wrong_literal_argument_fails_while_the_dag_is_parsed(
        self, operator: type[Any], arguments: dict[str, Any], name: str
    ) -> None:
        with make_dag(), pytest.raises(InvalidArgument, match=f"`{name}"):
            operator(task_id="wrong", **arguments)

    def test_a_wrong_one_that_is_rendered_or_mapped_fails_before_anything_is_sent(
        self, sandbox: Sandbox
    ) -> None:
        for operator, arguments, name in WRONG:
            with make_dag():
                mapped = operator.partial(task_id="mapped").expand_kwargs([arguments])
            tasks = [mapped.unmap(arguments)]
            # one template defers all checks but those of a single argument
            if name not in {"collection_task_id", "renew_after"}:
                connection = "{{ 'webcollect_default' }}"
                tasks.append(operator(task_id="rendered", **arguments, webcollect_conn_id=connection))
            for task in tasks:
                with pytest.raises(AirflowFailException, match=f"`{name}"):
                    execute(task)
        assert sandbox.control.requests() == []

    def test_a_wrong_one_that_is_mapped_fails_the_task_once_and_its_callback_is_called(
        self, sandbox: Sandbox
    ) -> None:
        ended: list[str] = []
        note = {"on_failure_callback": lambda context: ended.append(context["ti"].task_id)}

        def mark(task_id: str) -> None:
            mapped = WebCollectMarkExportedOperator.partial(task_id=task_id, **RETRIES, **note)
            mapped.expand(collection_task_id=[""])

        with make_dag() as dag:
            mark("alone")
            with TaskGroup("group"):
                mark("in")
        run = run_dag(dag)

        assert run.states == {"alone[0]": "failed", "group.in[0]": "failed"}
        assert run.tries == {"alone[0]": 1, "group.in[0]": 1}
        assert sorted(ended) == ["alone", "group.in"]
        assert sandbox.control.requests() == []

    def test_a_literal_one_is_checked_in_every_place_and_beside_a_template(self) -> None:
        wrong = {"task_id": "wrong", "collection_task_id": ""}
        refused = pytest.raises(InvalidArgument, match="`collection_task_id`")
        with refused:
            WebCollectMarkExportedOperator(**wrong)
        with make_dag(), TaskGroup("group"), refused:
            WebCollectMarkExportedOperator(**wrong)
        with make_dag(), pytest.raises(InvalidArgument, match="`renew_after"):
            make("refresh_token", TASK, renew_after=2, webcollect_conn_id="{{ params.c }}")
