"""The operators that copy, move, delete, read and change tasks, each as a task of a real DAG run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout
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
    WebCollectMoveTaskOperator,
    WebCollectUpdateTaskParametersOperator,
)
from airflow_provider_webcollect.service.endpoints import ENDPOINTS
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import execute
from tests.airflow.proxy import proxy
from tests.interruption import PATIENCE, signalled_when
from tests.service.servers import answer, serving

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(stale_seconds=0, enforce_limits=False),
]

RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}
GROUP, OTHER_GROUP = 1, 7
APP = "demo/price-watch"

#: One operator for every endpoint, by the endpoint's name.
MAKE: dict[str, Callable[..., Any]] = {
    "copy_task": lambda task, **k: WebCollectCopyTaskOperator(collection_task_id=task["task_id"], **k),
    "copy_tasks": lambda task, **k: WebCollectCopyTasksOperator(
        collection_task_ids=[task["task_id"]], task_group_ids=[GROUP], **k
    ),
    "move_task": lambda task, **k: WebCollectMoveTaskOperator(
        collection_task_id=task["task_id"], task_group_id=GROUP, **k
    ),
    "delete_tasks": lambda task, **k: WebCollectDeleteTasksOperator(collection_task_ids=["gone"], **k),
    "delete_task_groups": lambda task, **k: WebCollectDeleteTaskGroupsOperator(
        task_group_ids=[OTHER_GROUP], **k
    ),
    "update_task_parameters": lambda task, **k: WebCollectUpdateTaskParametersOperator(
        collection_task_id=task["task_id"],
        loop_items=[
            {
                "action_id": task["actions"][0]["action_id"],
                "loop_type": "TextList",
                "loop_items": ["x"],
                "is_append": True,
            }
        ],
        **k,
    ),
    "get_actions": lambda task, **k: WebCollectGetActionsOperator(collection_task_ids=[task["task_id"]], **k),
    "get_running_counts": lambda task, **k: WebCollectGetRunningCountsOperator(**k),
    "deprecate_data_app": lambda task, **k: WebCollectDeprecateDataAppOperator(app_id=APP, **k),
}
PATHS = {endpoint.name: endpoint.path for endpoint in ENDPOINTS}
ERRORS = {endpoint.name: endpoint.errors for endpoint in ENDPOINTS}
UNSAFE = {"copy_task", "copy_tasks", "update_task_parameters"}


def sent(sandbox: Sandbox, name: str) -> int:
    """Return how many requests an endpoint got."""
    return len(sandbox.control.requests(PATHS[name]))


def shut_down(dag_id: str, marked: str | None) -> None:
    """Do to this process what Airflow does to a task's; before that, a person may mark the task."""
    if marked:
        with Session() as session:
            update = text("update task_instance set state = :marked where dag_id = :dag_id")
            session.execute(update, {"marked": marked, "dag_id": dag_id})
            session.commit()
    os.kill(os.getpid(), signal.SIGTERM)


def state_of(dag_id: str) -> str:
    """Return the state of a DAG's only task."""
    query = text("select state from task_instance where dag_id = :dag_id")
    with Session() as session:
        return str(session.execute(query, {"dag_id": dag_id}).scalar_one())


def in_group(sandbox: Sandbox) -> int:
    """Return how many tasks the usual group has."""
    return sum(task["group_id"] == GROUP for task in sandbox.control.tasks())


@pytest.fixture
def groups(sandbox: Sandbox) -> list[int]:
    """Ids of two groups beside the usual one."""
    return [sandbox.control.add_task(group_id=group)["group_id"] for group in (OTHER_GROUP, OTHER_GROUP + 1)]


@pytest.fixture
def execute_interrupted(
    sandbox: Sandbox, set_connection: Callable[..., None]
) -> Iterator[Callable[[str, Any], None]]:
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


class TestSuccess:
    def test_tasks_are_copied_and_moved(
        self, sandbox: Sandbox, task: dict[str, Any], groups: list[int]
    ) -> None:
        other = sandbox.control.add_task()["task_id"]
        before = {each["task_id"] for each in sandbox.control.tasks()}
        with make_dag(render_template_as_native_obj=True, params={"group": groups[0]}) as dag:
            copy = WebCollectCopyTaskOperator(
                task_id="copy", collection_task_id=task["task_id"], task_group_id="{{ params.group }}"
            )
            move = WebCollectMoveTaskOperator(
                task_id="move",
                collection_task_id="{{ ti.xcom_pull('copy')['task_id'] }}",
                task_group_id=str(groups[1]),
            )
            copies = WebCollectCopyTasksOperator(
                task_id="copies", collection_task_ids=[task["task_id"], other], task_group_ids=groups
            )
            copy >> move >> copies
        run = run_dag(dag)

        assert run.state == "success"
        new = run.xcoms["copy"]["task_id"]
        assert new not in before
        assert run.xcoms["move"] == {"collection_task_id": new, "task_group_id": groups[1]}
        assert sandbox.control.task(new)["group_id"] == groups[1]
        assert run.xcoms["copies"] == {"request_count": 4, "success_count": 4, "failed_tasks": []}
        assert len(sandbox.control.tasks()) == len(before) + 5

    def test_a_copy_without_a_group_goes_to_its_own(self, sandbox: Sandbox, groups: list[int]) -> None:
        source = sandbox.control.add_task(group_id=groups[0])["task_id"]
        copy = execute(WebCollectCopyTaskOperator(task_id="copy", collection_task_id=source))

        assert sandbox.control.task(copy["task_id"])["group_id"] == groups[0]

    def test_tasks_and_groups_are_deleted_and_the_log_tells_which(
        self, sandbox: Sandbox, task: dict[str, Any], groups: list[int], said: Callable[[], str]
    ) -> None:
        id_ = task["task_id"]

        assert execute(WebCollectDeleteTasksOperator(task_id="tasks", collection_task_ids=[id_])) == [id_]
        assert execute(WebCollectDeleteTaskGroupsOperator(task_id="groups", task_group_ids=groups)) == groups
        assert id_ not in {each["task_id"] for each in sandbox.control.tasks()}
        assert not set(groups) & set(sandbox.control.groups())
        log = said()
        assert f"Deleting 1 tasks: {id_}" in log
        assert f"Deleting 2 task groups: {groups[0]}, {groups[1]}" in log

    def test_parameters_are_set_and_the_log_tells_append_from_replace(
        self, sandbox: Sandbox, task: dict[str, Any], said: Callable[[], str]
    ) -> None:
        loop, _, text = task["actions"]
        entry = {"action_id": loop["action_id"], "loop_type": "TextList"}

        def update(**arguments: Any) -> dict[str, Any]:
            result: dict[str, Any] = execute(
                WebCollectUpdateTaskParametersOperator(
                    task_id="update", collection_task_id=task["task_id"], **arguments
                )
            )
            return result

        step = {"action_type": "EnterTextAction", "action_id": text["action_id"]}
        update(loop_items=[{**entry, "loop_items": ["a", "b"]}])
        append = update(loop_items=[{**entry, "loop_items": ["c"], "is_append": True}])
        as_dict = update(actions=[{**step, "properties": {"TextToSet": "one"}}])
        as_pairs = update(actions=[{**step, "properties": [{"name": "TextToSet", "value": "two"}]}])

        steps = sandbox.control.task(task["task_id"])["actions"]
        assert steps[0]["loop_items"] == ["a", "b", "c"]
        assert steps[2]["properties"] == {"TextToSet": "two"}
        assert append == {
            "collection_task_id": task["task_id"],
            "actions": [],
            "loop_items": [{"action_id": loop["action_id"], "count": 1, "is_append": True}],
        }
        assert as_dict["actions"] == as_pairs["actions"]
        log = said()
        assert f"Replaced all values by 2 values of step {loop['action_id']}." in log
        assert f"Appended 1 values of step {loop['action_id']}." in log

    def test_steps_counts_and_apps_are_read(self, task: dict[str, Any]) -> None:
        ((found,), counts, app) = (
            execute(MAKE[name](task, task_id=name))
            for name in ("get_actions", "get_running_counts", "deprecate_data_app")
        )

        assert found["task_id"] == task["task_id"]
        assert [action["action_id"] for action in found["actions"]] == [
            action["action_id"] for action in task["actions"]
        ]
        assert found["actions"][0]["loop_items"] == task["actions"][0]["loop_items"]
        assert set(counts) >= {"extracting_count", "waiting_sub_task_count"}
        assert all(isinstance(count, int) for count in counts.values())
        assert {"app_name", "status"} <= set(app)

    def test_all_can_be_mapped(self, sandbox: Sandbox, groups: list[int]) -> None:
        ids = [sandbox.control.add_task()["task_id"] for _ in range(2)]
        with make_dag() as dag:
            copies = WebCollectCopyTaskOperator.partial(task_id="copy").expand(collection_task_id=ids)
            moves = WebCollectMoveTaskOperator.partial(task_id="move", task_group_id=groups[0]).expand(
                collection_task_id=ids
            )
            read = WebCollectGetActionsOperator.partial(task_id="read").expand(
                collection_task_ids=[[each] for each in ids]
            )
            # what all copies gave, as one list
            gathered = WebCollectDeleteTasksOperator(
                task_id="delete", collection_task_ids=copies.output.map(lambda copy: copy["task_id"])
            )
            moves >> read >> gathered
        run = run_dag(dag)

        assert run.state == "success"
        assert sorted(run.xcoms["delete"]) == sorted(run.xcoms[f"copy[{i}]"]["task_id"] for i in range(2))
        assert {sandbox.control.task(each)["group_id"] for each in ids} == {groups[0]}
        assert len(json.dumps(run.xcoms["move[0]"])) < 200


class TestErrors:
    def test_codes_of_the_contract_fail_without_retries(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        names = [name for name in MAKE if ERRORS[name]]
        for name in names:
            status = 401 if name == "deprecate_data_app" else 400
            # a rejected credential is tried twice
            sandbox.control.fail(
                PATHS[name], status=status, code=ERRORS[name][0], message="so it is", times=2
            )
            with pytest.raises(AirflowFailException, match=f"{ERRORS[name][0]}: so it is"):
                execute(MAKE[name](task, task_id=name))

    def test_ids_that_are_not_there_and_plans_that_are_too_low_fail_without_retries(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        for name in MAKE:
            sandbox.control.fail(PATHS[name], status=403, code="PermissionDenied", message="no", times=2)
            advice = "" if name == "deprecate_data_app" else ".*See `Required plan tiers` in the contract"
            with pytest.raises(AirflowFailException, match=f"{name}: HTTP 403 PermissionDenied: no{advice}"):
                execute(MAKE[name](task, task_id=name))

    @pytest.mark.parametrize("kind", ["drop", "no_answer"])
    def test_a_lost_answer_is_asked_for_again_only_where_that_is_safe(
        self, sandbox: Sandbox, task: dict[str, Any], kind: str
    ) -> None:
        count = in_group(sandbox)
        unknown = {}
        for name in MAKE:
            sandbox.control.fail(PATHS[name], kind=kind)
            try:
                execute(MAKE[name](task, task_id=name))
            except AirflowFailException as error:
                unknown[name] = str(error)

        assert unknown.keys() == UNSAFE
        assert {name: sent(sandbox, name) for name in MAKE} == {
            name: 1 if name in UNSAFE else 2 for name in MAKE
        }
        acted = kind == "no_answer"
        assert in_group(sandbox) - count == (2 if acted else 0)
        loop = sandbox.control.task(task["task_id"])["actions"][0]["loop_items"]
        assert loop == ["one", "two", *(["x"] if acted else [])]
        assert f"A copy of task {task['task_id']} may be in its own group by now." in unknown["copy_task"]
        assert f"Copies of 1 tasks may be in the groups {GROUP} by now." in unknown["copy_tasks"]
        assert "The values may have been appended already to" in unknown["update_task_parameters"]

    def test_retries_of_an_unknown_outcome_can_be_asked_for(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        for name in UNSAFE:
            sandbox.control.fail(PATHS[name], kind="drop")
            execute(MAKE[name](task, task_id=name, retry_unknown_outcome=True), tries=2)

    def test_a_timeout_that_interrupts_one_counts_as_an_unknown_outcome(
        self, sandbox: Sandbox, task: dict[str, Any], execute_interrupted: Callable[[str, Any], None]
    ) -> None:
        count = in_group(sandbox)
        said = {}
        for name in UNSAFE:
            with pytest.raises(AirflowFailException) as failed:
                execute_interrupted(name, MAKE[name](task, task_id=name))
            said[name] = str(failed.value)

        assert {name: sent(sandbox, name) for name in UNSAFE} == dict.fromkeys(UNSAFE, 1)
        assert in_group(sandbox) - count == 2
        assert sandbox.control.task(task["task_id"])["actions"][0]["loop_items"] == ["one", "two", "x"]
        assert all("interrupted before it answered (AirflowTaskTimeout)" in each for each in said.values())
        advice = f"A copy of task {task['task_id']} may be in its own group by now. Clear the task"
        assert advice in said["copy_task"]

    @pytest.mark.parametrize("name", ["copy_task", "get_actions"])
    def test_a_timeout_leaves_to_retries_what_may_be_repeated(
        self, task: dict[str, Any], execute_interrupted: Callable[[str, Any], None], name: str
    ) -> None:
        with pytest.raises(AirflowTaskTimeout):
            execute_interrupted(name, MAKE[name](task, task_id=name, retry_unknown_outcome=True))

    @pytest.mark.parametrize("marked", [None, pytest.param("success", marks=pytest.mark.at_night)])
    def test_a_worker_that_is_shut_down_makes_no_second_copy(
        self,
        sandbox: Sandbox,
        task: dict[str, Any],
        set_connection: Callable[..., None],
        marked: str | None,
    ) -> None:
        count = in_group(sandbox)
        with make_dag() as dag:
            MAKE["copy_task"](task, task_id="copy", **RETRIES)

        def shut_down_meanwhile(path: str, status: int, body: Any) -> tuple[int, Any]:
            if path.startswith(PATHS["copy_task"]):
                shut_down(dag.dag_id, marked)
                # on Airflow 3 the task goes on
                time.sleep(0.2)
            return status, body

        # `dag.test()` of Airflow 2 ends with it
        with proxy(sandbox.url, shut_down_meanwhile) as url, contextlib.suppress(*INTERRUPTS):
            set_connection(host=url)
            run_dag(dag)

        # Airflow 3 lets the task end by itself
        assert state_of(dag.dag_id) == (marked or ("success" if AIRFLOW_V_3_0_PLUS else "failed"))
        assert sent(sandbox, "copy_task") == 1
        assert in_group(sandbox) - count == 1

    def test_a_rate_limit_is_waited_out_even_where_repeating_is_not_safe(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        for name in UNSAFE:
            sandbox.control.fail(PATHS[name], status=429, code="TooManyRequests")
            execute(MAKE[name](task, task_id=name))

        assert {name: sent(sandbox, name) for name in UNSAFE} == dict.fromkeys(UNSAFE, 2)


class TestMeaningOfResults:
    def test_partial_failures_fail_skip_or_are_ignored_and_always_told(
        self, sandbox: Sandbox, task: dict[str, Any], said: Callable[[], str]
    ) -> None:
        with make_dag() as dag:
            for choice in ("fail", "skip", "ignore"):
                WebCollectCopyTasksOperator(
                    task_id=choice,
                    collection_task_ids=[task["task_id"], "gone", "lost"],
                    task_group_ids=[GROUP],
                    on_partial_failure=choice,  # type: ignore[arg-type]
                    **RETRIES,
                )
        run = run_dag(dag)

        assert run.states == {"fail": "failed", "skip": "skipped", "ignore": "success"}
        assert run.tries == dict.fromkeys(run.states, 1)
        assert [failed["task_id"] for failed in run.xcoms["ignore"]["failed_tasks"]] == ["gone", "lost"]
        assert all(failed["reason"] for failed in run.xcoms["ignore"]["failed_tasks"])
        log = said()
        assert "1 of 3 copies were made; these were not: gone: " in log
        assert "; lost: " in log

    @pytest.mark.parametrize(
        ("name", "data", "message"),
        [
            ("move_task", {"moved": False}, "the service did not move task"),
            ("copy_tasks", {"requestCount": 2, "successCount": 1}, "the service does not say which"),
        ],
    )
    def test_a_success_that_is_none_fails(
        self,
        set_connection: Callable[..., None],
        task: dict[str, Any],
        name: str,
        data: dict[str, object],
        message: str,
    ) -> None:
        with serving(lambda _: answer(data)) as server:
            set_connection(host=server.url, extra={"access_token": "any"})
            with pytest.raises(AirflowFailException, match=message):
                execute(MAKE[name](task, task_id=name))

    def test_ids_from_a_generator_are_deleted_though_the_dag_checks_them_first(
        self, sandbox: Sandbox
    ) -> None:
        tasks = [sandbox.control.add_task()["task_id"] for _ in range(2)]
        with make_dag():
            operator = WebCollectDeleteTasksOperator(
                task_id="delete", collection_task_ids=(f"{task}\n" for task in tasks), ignore_empty=True
            )

        assert execute(operator) == tasks
        (request,) = sandbox.control.requests("/task/deleteTasks")
        assert json.loads(request["body"]) == {"taskIds": tasks}

    def test_values_from_a_generator_within_an_argument_are_sent_too(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        loop = task["actions"][0]["action_id"]
        entry = {"action_id": loop, "loop_type": "TextList", "loop_items": iter(["a", "b"])}
        with make_dag():
            operator = WebCollectUpdateTaskParametersOperator(
                task_id="update", collection_task_id=task["task_id"], loop_items=iter([entry])
            )

        assert execute(operator)["loop_items"][0]["count"] == 2
        (request,) = sandbox.control.requests("/task/updateTaskParameters")
        assert json.loads(request["body"])["loopItems"][0]["loopItems"] == ["a", "b"]

    @pytest.mark.parametrize(
        ("operator", "name"),
        [
            (WebCollectDeleteTasksOperator, "collection_task_ids"),
            (WebCollectDeleteTaskGroupsOperator, "task_group_ids"),
        ],
    )
    def test_an_empty_deletion_is_an_error_unless_it_is_expected(
        self, sandbox: Sandbox, operator: type[Any], name: str
    ) -> None:
        arguments = {"task_id": "delete", name: "{{ params.found }}"}
        with make_dag(render_template_as_native_obj=True):
            strict, easy = operator(**arguments), operator(**{**arguments, "task_id": "e"}, ignore_empty=True)

        with pytest.raises(AirflowFailException, match=name):
            execute(strict, params={"found": []})
        assert execute(easy, params={"found": []}) == []
        assert sandbox.control.requests() == []


WRONG: list[tuple[type[Any], dict[str, Any], str]] = [
    (WebCollectCopyTaskOperator, {"collection_task_id": ""}, "collection_task_id"),
    (WebCollectCopyTaskOperator, {"collection_task_id": "t", "task_group_id": "one"}, "task_group_id"),
    (
        WebCollectCopyTasksOperator,
        {"collection_task_ids": [], "task_group_ids": [1]},
        "collection_task_ids",
    ),
    (
        WebCollectCopyTasksOperator,
        {"collection_task_ids": ["t"], "task_group_ids": 1},
        "task_group_ids",
    ),
    (
        WebCollectCopyTasksOperator,
        {"collection_task_ids": ["t"], "task_group_ids": [1], "on_partial_failure": "hope"},
        "on_partial_failure",
    ),
    (WebCollectMoveTaskOperator, {"collection_task_id": None, "task_group_id": 1}, "collection_task_id"),
    (WebCollectMoveTaskOperator, {"collection_task_id": "t", "task_group_id": None}, "task_group_id"),
    (WebCollectDeleteTasksOperator, {"collection_task_ids": []}, "collection_task_ids"),
    (
        WebCollectDeleteTasksOperator,
        {"collection_task_ids": "t", "ignore_empty": True},
        "collection_task_ids",
    ),
    (WebCollectDeleteTaskGroupsOperator, {"task_group_ids": ["a"]}, "task_group_ids"),
    (WebCollectDeleteTaskGroupsOperator, {"task_group_ids": "", "ignore_empty": True}, "task_group_ids"),
    (WebCollectUpdateTaskParametersOperator, {"collection_task_id": "t"}, "actions"),
    (
        WebCollectUpdateTaskParametersOperator,
        {"collection_task_id": "t", "actions": [{"action_id": "a"}]},
        "actions",
    ),
    (WebCollectGetActionsOperator, {"collection_task_ids": ["t"], "action_types": ["Fly"]}, "action_types"),
    (WebCollectGetActionsOperator, {"collection_task_ids": "t"}, "collection_task_ids"),
    (WebCollectDeprecateDataAppOperator, {"app_id": ".."}, "app_id"),
]


@pytest.mark.parametrize(("operator", "arguments", "name"), WRONG)
def test_a_wrong_literal_argument_fails_while_the_dag_is_parsed(
    operator: type[Any], arguments: dict[str, Any], name: str
) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=name):
        operator(task_id="wrong", **arguments)


def test_a_wrong_one_that_is_rendered_or_mapped_fails_before_anything_is_sent(sandbox: Sandbox) -> None:
    for operator, arguments, name in WRONG:
        templated = operator(task_id="rendered", **arguments, webcollect_conn_id="{{ 'webcollect_default' }}")
        with make_dag():
            mapped = operator.partial(task_id="mapped").expand_kwargs([arguments])
        for each in (templated, mapped.unmap(arguments)):
            with pytest.raises(AirflowFailException, match=f"`{name}"):
                execute(each)
    assert sandbox.control.requests() == []
