"""How operators fail: wrong arguments, refusals, lost answers, timeouts, workers that are shut down."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout, TaskGroup
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.settings import Session
from sqlalchemy import text

from airflow_provider_webcollect.common import INTERRUPTS
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectCopyTaskOperator,
    WebCollectCopyTasksOperator,
    WebCollectDeleteTaskGroupsOperator,
    WebCollectDeleteTasksOperator,
    WebCollectDeprecateDataAppOperator,
    WebCollectGetActionsOperator,
    WebCollectGetRunningCountsOperator,
    WebCollectMarkExportedOperator,
    WebCollectMetricsCheckOperator,
    WebCollectMoveTaskOperator,
    WebCollectQueryAnalyticsOperator,
    WebCollectRefreshTokenOperator,
    WebCollectReplaceUrlsOperator,
    WebCollectStartSubTasksOperator,
    WebCollectUpdateLoopItemsOperator,
    WebCollectUpdateTaskParametersOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.endpoints import ENDPOINTS
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import Connect, Task, execute, on_sandbox
from tests.airflow.proxy import proxy
from tests.interruption import PATIENCE, signalled_when

pytestmark = on_sandbox(stale_seconds=0)

RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}
GROUP, OTHER_GROUP = 1, 7
APP = "demo/price-watch"

TODAY = pendulum.now("UTC").date()
#: One operator for each endpoint but those of starts and renewals, by the endpoint's name.
MAKE: dict[str, Callable[..., Any]] = {
    "replace_urls": lambda task, **k: WebCollectReplaceUrlsOperator(
        **of(task), urls=["https://shop.example/1"], **k
    ),
    "update_loop_items": lambda task, **k: WebCollectUpdateLoopItemsOperator(
        **of(task), **loop(task, "y"), **k
    ),
    "copy_task": lambda task, **k: WebCollectCopyTaskOperator(**of(task), **k),
    "copy_tasks": lambda task, **k: WebCollectCopyTasksOperator(
        collection_task_ids=[task["task_id"]], task_group_ids=[GROUP], **k
    ),
    "move_task": lambda task, **k: WebCollectMoveTaskOperator(**of(task), task_group_id=GROUP, **k),
    "delete_tasks": lambda task, **k: WebCollectDeleteTasksOperator(collection_task_ids=["gone"], **k),
    "delete_task_groups": lambda task, **k: WebCollectDeleteTaskGroupsOperator(
        task_group_ids=[OTHER_GROUP], **k
    ),
    "update_task_parameters": lambda task, **k: WebCollectUpdateTaskParametersOperator(
        **of(task), loop_items=[{**loop(task, "x"), "is_append": True}], **k
    ),
    "mark_exported": lambda task, **k: WebCollectMarkExportedOperator(**of(task), **k),
    "query_analytics": lambda task, **k: WebCollectQueryAnalyticsOperator(start=TODAY, end=TODAY, **k),
    "get_actions": lambda task, **k: WebCollectGetActionsOperator(collection_task_ids=[task["task_id"]], **k),
    "get_running_counts": lambda task, **k: WebCollectGetRunningCountsOperator(**k),
    "deprecate_data_app": lambda task, **k: WebCollectDeprecateDataAppOperator(app_id=APP, **k),
}


def of(task: Task) -> dict[str, Any]:
    return {"collection_task_id": task["task_id"]}


def loop(task: Task, item: str) -> dict[str, Any]:
    """Return an update of the values of a task's first step."""
    return {"action_id": task["actions"][0]["action_id"], "loop_type": "TextList", "loop_items": [item]}


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


@pytest.fixture
def execute_interrupted(sandbox: Sandbox, set_connection: Connect) -> Iterator[Callable[[str, Any], None]]:
    """Executes an operator that a timeout interrupts when its endpoint, given by name, has acted."""
    held: dict[str, tuple[threading.Event, threading.Event]] = {}

    def hold(path: str, status: int, body: Any) -> tuple[int, Any]:
        for name, (acted, ended) in tuple(held.items()):
            if path.startswith(PATHS[name]):
                acted.set()
                ended.wait(PATIENCE)
        return status, body

    def execute_interrupted(name: str, operator: Any) -> None:
        acted, ended = held[name] = (threading.Event(), threading.Event())
        with signalled_when(acted.is_set, AirflowTaskTimeout):
            try:
                execute(operator)
            finally:
                ended.set()

    with proxy(sandbox.url, hold) as url:
        set_connection(host=url)
        yield execute_interrupted


class TestErrors:
    def test_codes_of_the_contract_and_plans_that_are_too_low_fail_without_retries(
        self, sandbox: Sandbox, task: Task
    ) -> None:
        for name in MAKE:
            is_app = name == "deprecate_data_app"
            causes = [(401 if is_app else 400, code, "") for code in ERRORS[name][:1]]
            causes.append((403, "PermissionDenied", "" if is_app else ".*See `Required plan tiers` in the"))
            for status, code, advice in causes:
                # a rejected credential is tried twice
                sandbox.control.fail(PATHS[name], status=status, code=code, message="so it is", times=2)
                said = f"{name}: HTTP {status} {code}: so it is{advice}"
                with pytest.raises(AirflowFailException, match=said):
                    execute(MAKE[name](task, task_id=name))
                sandbox.control.clear_faults()

    @pytest.mark.parametrize("done", [False, True])
    def test_a_lost_answer_is_asked_for_again_only_where_that_is_safe(
        self, sandbox: Sandbox, task: Task, done: bool
    ) -> None:
        count = in_group(sandbox)
        unknown = {}
        for name in MAKE:
            sandbox.control.fail(PATHS[name], kind="drop", done=done)
            try:
                execute(MAKE[name](task, task_id=name))
            except AirflowFailException as error:
                unknown[name] = str(error)

        assert unknown.keys() == UNSAFE
        assert {name: sent(sandbox, name) for name in MAKE} == {
            name: 1 if name in UNSAFE else 2 for name in MAKE
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
            execute(MAKE[name](task, task_id=name, retry_unknown_outcome=True), tries=2)

    def test_a_timeout_that_interrupts_one_counts_as_an_unknown_outcome(
        self, sandbox: Sandbox, task: Task, execute_interrupted: Callable[[str, Any], None]
    ) -> None:
        count = in_group(sandbox)
        said = {}
        start = WebCollectStartSubTasksOperator(task_id="start", collection_task_id=task["task_id"])
        operators = {name: MAKE[name](task, task_id=name) for name in UNSAFE} | {"start_subtasks": start}
        for name, operator in operators.items():
            with pytest.raises(AirflowFailException) as failed:
                execute_interrupted(name, operator)
            said[name] = str(failed.value)

        assert {name: sent(sandbox, name) for name in operators} == dict.fromkeys(operators, 1)
        assert in_group(sandbox) - count == 2
        assert sandbox.control.task(task["task_id"])["actions"][0]["loop_items"] == ["one", "two", "x"]
        assert all("interrupted before it answered (AirflowTaskTimeout)" in each for each in said.values())
        advice = f"A copy of task {task['task_id']} may be in its own group by now. Clear the task"
        assert advice in said["copy_task"]
        shown = f"The status of task {task['task_id']} shows whether its sub-tasks run."
        assert shown in said["start_subtasks"]

    @pytest.mark.parametrize("name", ["copy_task", "get_actions"])
    def test_a_timeout_leaves_to_retries_what_may_be_repeated(
        self, task: Task, execute_interrupted: Callable[[str, Any], None], name: str
    ) -> None:
        with pytest.raises(AirflowTaskTimeout):
            execute_interrupted(name, MAKE[name](task, task_id=name, retry_unknown_outcome=True))

    def test_a_worker_that_is_shut_down_makes_no_second_copy(
        self, sandbox: Sandbox, task: Task, set_connection: Connect
    ) -> None:
        count = in_group(sandbox)
        with make_dag() as dag:
            MAKE["copy_task"](task, task_id="copy", **RETRIES)

        def shut_down_meanwhile(path: str, status: int, body: Any) -> tuple[int, Any]:
            if path.startswith(PATHS["copy_task"]):
                # what Airflow does to the process of a task
                os.kill(os.getpid(), signal.SIGTERM)
                # on Airflow 3 the task goes on
                time.sleep(0.2)
            return status, body

        # `dag.test()` of Airflow 2 ends with it
        with proxy(sandbox.url, shut_down_meanwhile) as url, contextlib.suppress(*INTERRUPTS):
            set_connection(host=url)
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
            execute(MAKE[name](task, task_id=name))
        assert {name: sent(sandbox, name) for name in UNSAFE} == dict.fromkeys(UNSAFE, 2)


_TODAY = {"start": TODAY.isoformat(), "end": TODAY.isoformat()}
ONE = {"collection_task_id": "t"}
_LOOP = {**ONE, "action_id": "a-step", "loop_type": "TextList", "loop_items": ["a"]}
#: By operator, its usual arguments, and wrong ones, of which the error names the first.
_WRONG: dict[type[Any], tuple[dict[str, Any], list[dict[str, Any]]]] = {
    WebCollectCopyTaskOperator: (ONE, [{"collection_task_id": ""}, {"task_group_id": "one"}]),
    WebCollectCopyTasksOperator: (
        {"collection_task_ids": ["t"], "task_group_ids": [1]},
        [{"collection_task_ids": []}, {"task_group_ids": 1}, {"on_partial_failure": "hope"}],
    ),
    WebCollectMoveTaskOperator: (
        {**ONE, "task_group_id": 1},
        [{"collection_task_id": None}, {"task_group_id": None}],
    ),
    WebCollectDeleteTasksOperator: (
        {},
        [{"collection_task_ids": []}, {"collection_task_ids": "t", "ignore_empty": True}],
    ),
    WebCollectDeleteTaskGroupsOperator: (
        {},
        [{"task_group_ids": ["a"]}, {"task_group_ids": "", "ignore_empty": True}],
    ),
    WebCollectUpdateTaskParametersOperator: (ONE, [{"actions": None}, {"actions": [{"action_id": "a"}]}]),
    WebCollectUpdateLoopItemsOperator: (
        _LOOP,
        [
            *({"loop_items": items} for items in ([], "laptop", [1])),
            *({name: wrong} for name, wrong in (("loop_type", "Texts"), ("action_id", ""))),
            {"collection_task_id": None},
            {"is_append": "yes"},
        ],
    ),
    WebCollectGetActionsOperator: (
        {"collection_task_ids": ["t"]},
        [{"action_types": ["Fly"]}, {"collection_task_ids": "t"}],
    ),
    WebCollectReplaceUrlsOperator: (
        ONE,
        [
            *({"urls": urls} for urls in (None, ["ftp://a"], "https://a")),
            {"urls": ["https://a"], "urls_path": "/f"},
            {"urls_path": ""},
        ],
    ),
    WebCollectStartSubTasksOperator: (
        ONE,
        [
            *({"sub_task_ids": ids} for ids in ([], "one")),
            *({"collection_task_id": " "}, {"poll_interval": 0}, {"failure_states": "Stopped"}),
        ],
    ),
    WebCollectMarkExportedOperator: ({}, [{"collection_task_id": ""}]),
    WebCollectDeprecateDataAppOperator: ({}, [{"app_id": ".."}]),
    WebCollectQueryAnalyticsOperator: (
        _TODAY,
        [
            *({"start": "yesterday"}, {"end": "2020-01-01"}, {"collection_task_ids": ["t"] * 101}),
            *({"member_names": "me"}, {"collection_method": "Magic"}, {"time_granularity": "Year"}),
            *({"max_xcom_rows": -1}, {"destination": "s3://bucket/folder/"}),
            {"file_format": "xls", "destination": "/f"},
        ],
    ),
    WebCollectMetricsCheckOperator: (
        _TODAY,
        [
            *({"min_success_rate": share} for share in (None, 95)),
            {"max_volume_drop": -0.1},
            {"max_cost": "10"},
            {"on_violation": "cry", "max_cost": 1},
        ],
    ),
    WebCollectRefreshTokenOperator: ({}, [{"renew_after": share} for share in (-0.1, 1.5, "0.5")]),
}
#: Each operator with arguments of which one is wrong, and the name of that one.
WRONG = [
    (operator, {**usual, **wrong}, next(iter(wrong)))
    for operator, (usual, cases) in _WRONG.items()
    for wrong in cases
]


class TestArguments:
    """They are checked while the DAG is parsed, or by the task where they are not known before."""

    @pytest.mark.parametrize(("operator", "arguments", "name"), WRONG)
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
            each = [mapped.unmap(arguments)]
            # one template suffices to put all checks off, but those of an argument by itself
            if name not in {"collection_task_id", "renew_after"}:
                connection = "{{ 'webcollect_default' }}"
                each.append(operator(task_id="rendered", **arguments, webcollect_conn_id=connection))
            for task in each:
                with pytest.raises(AirflowFailException, match=f"`{name}"):
                    execute(task)
        assert sandbox.control.requests() == []

    def test_a_share_is_checked_beside_a_template(self) -> None:
        connection = "{{ params.c }}"
        with make_dag(), pytest.raises(InvalidArgument, match="`renew_after"):
            WebCollectRefreshTokenOperator(task_id="renew", renew_after=2, webcollect_conn_id=connection)

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

    @pytest.mark.parametrize("places", [[], [make_dag, lambda: TaskGroup("group")]])
    def test_a_literal_one_is_checked_in_every_place(self, places: list[Callable[[], Any]]) -> None:
        with contextlib.ExitStack() as stack:
            for place in places:
                stack.enter_context(place())
            with pytest.raises(InvalidArgument, match="`collection_task_id`"):
                WebCollectMarkExportedOperator(task_id="wrong", collection_task_id="")
