"""The operators: what they do, what they return, what a result means, how they fail."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    ObjectStoragePath,
)
from airflow.providers.common.compat.standard.operators import PythonOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.utils.session import create_session
from sqlalchemy import text

from airflow_provider_webcollect.common import INTERRUPTS
from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectCopyTaskOperator,
    WebCollectCopyTasksOperator,
    WebCollectDeleteTaskGroupsOperator,
    WebCollectDeleteTasksOperator,
    WebCollectGetActionsOperator,
    WebCollectMarkExportedOperator,
    WebCollectMoveTaskOperator,
    WebCollectRefreshTokenOperator,
    WebCollectReplaceUrlsOperator,
    WebCollectStartSubTasksOperator,
    WebCollectUpdateLoopItemsOperator,
    WebCollectUpdateTaskParametersOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.endpoints import ENDPOINTS, Retry
from airflow_provider_webcollect.service.settings import ClientTiming
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import Connect, Said, Task, execute, loop_of, on_sandbox
from tests.interruption import PATIENCE, signalled_when
from tests.operations import PATHS, WITH_OPERATOR, Operation, Scene, each, holds
from tests.service.servers import answer, serving

pytestmark = on_sandbox(stale_seconds=0)

RETRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(0)}
GROUP, OTHER_GROUP = 1, 7
#: Operations whose operator sends a single call; a start queries the status first.
ONE_CALL = [operation for operation in WITH_OPERATOR if operation.name != "start_subtasks"]
#: Operations that are not safe to repeat.
UNSAFE = [operation for operation in WITH_OPERATOR if operation.doubt]
COPY = next(operation for operation in UNSAFE if operation.name == "copy_task")
READ = next(operation for operation in ONE_CALL if operation.name == "get_actions")
ERRORS = {endpoint.name: endpoint.errors for endpoint in ENDPOINTS}


@pytest.fixture
def groups(sandbox: Sandbox) -> list[int]:
    """Ids of two groups in addition to the usual one."""
    return [sandbox.control.add_task(group_id=group)["group_id"] for group in (OTHER_GROUP, OTHER_GROUP + 1)]


@pytest.mark.parametrize("by", ["id", "name"])
@each(WITH_OPERATOR)
def test_each_does_the_same_for_ids_and_for_names_of_the_file(
    scene: Scene, configure_tasks: Callable[..., Path], operation: Operation, by: str
) -> None:
    names = {"TASK": "Shop search", "OTHER": "Deli / 商店"} if by == "name" else {}
    configure_tasks(json.dumps([{"id": scene.words[word], "name": name} for word, name in names.items()]))
    operator = operation.make_operator(scene, words=names)
    result = execute(operator)
    operation.check(scene)
    assert operation.result is None or holds(result, scene.fill(operation.result))
    # the argument stays as the DAG has it, for the name of a mapped task and for further attempts
    if "collection_task_id" in (arguments := operation.operator or {}):
        assert operator.collection_task_id == scene.fill(arguments["collection_task_id"], **names)


@pytest.mark.parametrize(
    "kind",
    [str, "file://{}".format, lambda path: ObjectStoragePath(f"file://{path}")],
    ids=["path", "URL", "object"],
)
def test_urls_are_replaced_by_a_file(
    sandbox: Sandbox, task: Task, tmp_path: Path, kind: Callable[[Path], Any]
) -> None:
    urls = ["https://shop.example/1", "https://shop.example/2"]
    (file := tmp_path / "urls.txt").write_text("\n".join(urls))
    ids = {"task_id": "replace", "collection_task_id": task["task_id"]}
    result = execute(WebCollectReplaceUrlsOperator(**ids, urls_path=kind(file)))
    assert sandbox.control.task(task["task_id"])["urls"] == urls
    assert result == {"collection_task_id": task["task_id"], "count": 2}


class TestStartSubTasks:
    def start(self, task: Task, **arguments: Any) -> dict[str, Any]:
        ids = {"task_id": "start", "collection_task_id": task["task_id"]}
        return dict(execute(WebCollectStartSubTasksOperator(**ids, **arguments)))

    def test_it_leaves_those_that_run_alone(self, sandbox: Sandbox, task: Task) -> None:
        first, second, third = (subtask["subtask_id"] for subtask in task["subtasks"])
        self.start(task, sub_task_ids=[first])
        # by default, all of them
        rest, again = self.start(task), self.start(task)

        assert rest["started"] == [second, third]
        assert rest["already_active"] == [first]
        assert rest["after"]["running"]
        assert again["started"] == []
        assert len(sandbox.control.requests("/cloudextraction/subtasks:start")) == 2
        assert len(sandbox.control.task(task["task_id"])["runs"]) == 2

    def test_a_task_that_never_ran_can_be_started(self, sandbox: Sandbox) -> None:
        sandbox.control.configure(hide_unexecuted=True)

        assert self.start(sandbox.control.add_task())["after"] == {
            "executed_times": 0,
            "start_execute_time": None,
            "end_execute_time": None,
            "running": False,
        }


class TestTasksAndGroups:
    def test_the_log_tells_which_tasks_and_groups_are_deleted(self, groups: list[int], said: Said) -> None:
        execute(WebCollectDeleteTasksOperator(task_id="tasks", collection_task_ids=["a", "b"]))
        execute(WebCollectDeleteTaskGroupsOperator(task_id="groups", task_group_ids=groups))
        log = said()
        assert "Deleting tasks (2): a, b" in log
        assert f"Deleting task groups (2): {groups[0]}, {groups[1]}" in log

    def test_properties_may_be_pairs_and_the_log_tells_appending(self, task: Task, said: Said) -> None:
        loop, _, text = (step["action_id"] for step in task["actions"])
        entry = loop_of(task, "a")
        step = {"action_type": "EnterTextAction", "action_id": text}
        pairs = [{"name": "TextToSet", "value": "two"}]
        result = execute(
            WebCollectUpdateTaskParametersOperator(
                task_id="update",
                collection_task_id=task["task_id"],
                actions=[{**step, "properties": pairs}],
                loop_items=[entry, {**entry, "is_append": True}],
            )
        )
        assert result["actions"] == [{"action_id": text, "properties": ["TextToSet"]}]
        log = said()
        assert f"Replaced all values of step {loop} of task {task['task_id']}; number of values: 1." in log
        assert f"Appended to step {loop} of task {task['task_id']}; number of values: 1." in log

    def test_an_iterator_of_a_native_template_is_read_as_a_list(self, sandbox: Sandbox, task: Task) -> None:
        words = "{{ params.words | map('upper') }}"
        with make_dag(render_template_as_native_obj=True, params={"words": ["x", "y"]}) as dag:
            given = {**loop_of(task), "collection_task_id": task["task_id"], "loop_items": words}
            WebCollectUpdateLoopItemsOperator(task_id="append", is_append=True, **given)
        run = run_dag(dag)
        assert run.states == {"append": "success"}
        assert sandbox.control.task(task["task_id"])["actions"][0]["loop_items"][-3:] == ["two", "X", "Y"]
        assert run.xcoms["append"]["count"] == 2

    @pytest.mark.parametrize(
        ("text", "done", "values"),
        [("False", "Replaced all values of", ["a"]), ("true", "Appended to", ["one", "two", "a"])],
    )
    def test_whether_to_append_may_be_a_text(
        self, sandbox: Sandbox, task: Task, said: Said, text: Any, done: str, values: list[str]
    ) -> None:
        ids = {"task_id": "update", "collection_task_id": task["task_id"]}
        execute(WebCollectUpdateLoopItemsOperator(**ids, **loop_of(task, "a"), is_append=text))
        (loop, *_) = sandbox.control.task(task["task_id"])["actions"]
        assert loop["loop_items"] == values
        assert f"{done} step {loop['action_id']}; number of values: 1." in said()

    def test_all_can_be_mapped(self, sandbox: Sandbox, groups: list[int]) -> None:
        ids = [sandbox.control.add_task()["task_id"] for _ in range(2)]
        with make_dag() as dag:
            number = PythonOperator.partial(task_id="groups", python_callable=lambda text: int(text))
            new = number.expand(op_args=[[str(group)] for group in groups])
            # the results of a mapped task, as an argument
            both: Any = {"collection_task_ids": ids, "task_group_ids": new.output}
            WebCollectCopyTasksOperator(task_id="copy_all", **both)
            copies = WebCollectCopyTaskOperator.partial(task_id="copy").expand(collection_task_id=ids)
            move = WebCollectMoveTaskOperator.partial(task_id="move", task_group_id=groups[0])
            read = WebCollectGetActionsOperator.partial(task_id="read")
            # the results of all copies, as one list
            copied: Any = copies.output.map(lambda copy: copy["task_id"])
            gathered = WebCollectDeleteTasksOperator(task_id="delete", collection_task_ids=copied)
            moves = move.expand(collection_task_id=ids)
            moves >> read.expand(collection_task_ids=[[id_] for id_ in ids]) >> gathered
        run = run_dag(dag)

        assert run.state == "success"
        assert run.xcoms["copy_all"]["success_count"] == 4
        assert sorted(run.xcoms["delete"]) == sorted(run.xcoms[f"copy[{i}]"]["task_id"] for i in range(2))
        assert {sandbox.control.task(id_)["group_id"] for id_ in ids} == {groups[0]}
        assert len(json.dumps(run.xcoms["move[0]"])) < 200


class TestUpdatesOfSeveralTasks:
    PATH = "/task/updateTaskParameters"

    @pytest.fixture
    def updates(self, sandbox: Sandbox) -> list[Task]:
        """New loop items of two tasks."""
        tasks = [sandbox.control.add_task(loop_items=["old"]) for _ in range(2)]
        return [
            {"collection_task_id": task["task_id"], "loop_items": [loop_of(task, "a", "b")]} for task in tasks
        ]

    def update(self, updates: list[Task], *, tries: int = 1, **how: Any) -> Any:
        operator = WebCollectUpdateTaskParametersOperator(task_id="update", updates=updates, **how)
        return execute(operator, tries=tries)

    def values(self, sandbox: Sandbox, updates: list[Task]) -> list[list[str]]:
        ids = [update["collection_task_id"] for update in updates]
        return [sandbox.control.task(id_)["actions"][0]["loop_items"] for id_ in ids]

    def test_each_is_set(self, sandbox: Sandbox, updates: list[Task]) -> None:
        results = self.update(updates)
        assert [result["loop_items"][0]["count"] for result in results] == [2, 2]
        assert [result["collection_task_id"] for result in results] == [
            update["collection_task_id"] for update in updates
        ]
        assert self.values(sandbox, updates) == [["a", "b"]] * 2

    def test_if_one_fails_the_others_are_set(self, sandbox: Sandbox, updates: list[Task]) -> None:
        gone = {**updates[0], "collection_task_id": "gone"}
        with pytest.raises(AirflowFailException, match=r"^1 of 3 collection tasks failed\. gone: "):
            self.update([updates[0], gone, updates[1]])
        assert self.values(sandbox, updates) == [["a", "b"]] * 2

    def test_a_retry_sets_the_others(self, sandbox: Sandbox, updates: list[Task]) -> None:
        sandbox.control.fail(self.PATH, status=400, code="TaskExecuting", after=1)
        assert len(self.update(updates, tries=2)) == 2
        assert self.values(sandbox, updates) == [["a", "b"]] * 2

    @pytest.mark.parametrize("again", [False, True])
    def test_values_are_not_appended_again_unless_asked_for(
        self, sandbox: Sandbox, updates: list[Task], again: bool
    ) -> None:
        updates[0]["loop_items"][0]["is_append"] = True
        sandbox.control.fail(self.PATH, status=400, code="TaskExecuting", after=1)
        if again:
            self.update(updates, tries=2, retry_unknown_outcome=True)
            assert self.values(sandbox, updates) == [["old", "a", "b", "a", "b"], ["a", "b"]]
        else:
            with pytest.raises(AirflowFailException, match="A retry would append values again"):
                self.update(updates)
            assert self.values(sandbox, updates) == [["old", "a", "b"], ["old"]]


class TestMeaningOfResults:
    def test_partial_failures_are_logged_whatever_they_do(self, task: Task, said: Said) -> None:
        def copy(choice: Literal["fail", "skip", "ignore"]) -> Any:
            ids = {"collection_task_ids": [task["task_id"], "gone", "lost"], "task_group_ids": [GROUP]}
            return execute(WebCollectCopyTasksOperator(task_id="copy", on_partial_failure=choice, **ids))

        shortfall = "1 of 3 copies were made; these were not: gone: .*; lost: "
        with pytest.raises(AirflowFailException, match=shortfall):
            copy("fail")
        with pytest.raises(AirflowSkipException, match=shortfall):
            copy("skip")
        failed = {entry["task_id"]: bool(entry["reason"]) for entry in copy("ignore")["failed_tasks"]}
        assert failed == {"gone": True, "lost": True}
        assert re.search(shortfall, said())

    @pytest.mark.parametrize(
        ("operator", "data", "message"),
        [
            (
                WebCollectMoveTaskOperator(task_id="move", collection_task_id="t", task_group_id=1),
                {"moved": False},
                "the service did not move task",
            ),
            (
                WebCollectCopyTasksOperator(task_id="copy", collection_task_ids=["t"], task_group_ids=[1, 2]),
                {"requestCount": 2, "successCount": 1},
                "the service does not say which",
            ),
        ],
        ids=["move", "copies"],
    )
    def test_a_success_that_is_none_fails(
        self, set_connection: Connect, operator: Any, data: dict[str, object], message: str
    ) -> None:
        with serving(lambda _: answer(data)) as server:
            set_connection(host=server.url, extra={"access_token": "any"})
            with pytest.raises(AirflowFailException, match=message):
                execute(operator)

    def test_values_of_generators_are_sent(self, sandbox: Sandbox, task: Task) -> None:
        entry = {**loop_of(task), "loop_items": iter(["a", "b"])}
        with make_dag():
            operator = WebCollectUpdateTaskParametersOperator(
                task_id="update",
                collection_task_id=task["task_id"],
                loop_items=iter([entry]),  # type: ignore[arg-type]
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
    def test_an_empty_deletion_is_an_error(self, sandbox: Sandbox, operator: type[Any], name: str) -> None:
        arguments = {"task_id": "delete", name: "{{ params.found }}"}
        with make_dag(render_template_as_native_obj=True):
            strict, easy = operator(**arguments), operator(**{**arguments, "task_id": "e"}, ignore_empty=True)

        with pytest.raises(AirflowFailException, match=name):
            execute(strict, params={"found": []})
        assert execute(easy, params={"found": []}) == []
        assert sandbox.control.requests() == []


def test_ids_of_digits_survive_native_rendering(sandbox: Sandbox) -> None:
    sandbox.control.add_task(task_id="20260101", lots=[3], subtasks=2)
    with make_dag(render_template_as_native_obj=True):
        start = WebCollectStartSubTasksOperator(task_id="start", collection_task_id="{{ params.id }}")
        read = WebCollectGetActionsOperator(task_id="read", collection_task_ids="{{ [params.id | int] }}")
    started, (actions,) = (execute(operator, params={"id": "20260101"}) for operator in (start, read))
    assert (started["collection_task_id"], started["after"]["executed_times"]) == ("20260101", 1)
    assert actions["task_id"] == "20260101"


def test_a_users_own_operator_may_add_template_fields(sandbox: Sandbox, task: Task) -> None:
    class Confirm(WebCollectMarkExportedOperator):
        template_fields = (*WebCollectMarkExportedOperator.template_fields, "note")

        def __init__(self, *, note: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.note = note

    which = {"collection_task_id": "{{ params.which }}", "webcollect_conn_id": "webcollect_{{ 'default' }}"}
    confirm = Confirm(task_id="confirm", note="{{ ds }}", **which)
    result = execute(confirm, ds="2026-01-01", params={"which": task["task_id"]})

    assert (result, confirm.note) == ({"collection_task_id": task["task_id"]}, "2026-01-01")
    assert sandbox.control.task(task["task_id"])["exported"]


class TestRefreshToken:
    def renew(self, **arguments: Any) -> dict[str, Any]:
        return dict(execute(WebCollectRefreshTokenOperator(task_id="renew", **arguments)))

    def test_a_young_token_is_kept_unless_renewal_is_forced(self, sandbox: Sandbox) -> None:
        results = [self.renew(), self.renew(), self.renew(renew_after=0)]
        assert [result["renewed"] for result in results] == [True, False, True]
        expires_at = datetime.fromisoformat(results[0]["expires_at"])
        assert expires_at > datetime.now(UTC) + timedelta(hours=12)
        assert len(sandbox.control.requests("/token")) == 2

    def test_a_refused_credential_fails_without_retries(
        self, sandbox: Sandbox, said: Said, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "TIMING", ClientTiming(adoption=0.1))
        sandbox.control.fail("/token", status=400, code="Invalid.Grant", times=None)
        with pytest.raises(AirflowFailException, match=r"Invalid\.Grant") as failed:
            self.renew()
        assert sandbox.refresh_token not in f"{said()} {failed.value}"

    @pytest.mark.parametrize("extra", [{"api_key": "key"}, {"access_token": "token"}], ids=["key", "token"])
    def test_a_connection_that_can_get_no_token_says_so(
        self, sandbox: Sandbox, set_connection: Connect, extra: Any, said: Said
    ) -> None:
        set_connection(extra=extra)
        with pytest.raises(AirflowFailException, match="set its extra `refresh_token`") as failed:
            self.renew()

        assert "rejected" not in f"{said()} {failed.value}"
        assert sandbox.control.requests() == []


def state_of(dag_id: str) -> str:
    query = text("select state from task_instance where dag_id = :dag_id")
    with create_session() as session:
        return str(session.execute(query, {"dag_id": dag_id}).scalar_one())


def execute_interrupted(scene: Scene, operation: Operation, **arguments: Any) -> None:
    """Execute an operator that a timeout interrupts after its endpoint has acted, during the answer."""
    scene.control.fail(PATHS[operation.name], kind="drip", seconds=PATIENCE)
    with signalled_when(lambda: operation.received(scene), AirflowTaskTimeout):
        execute(operation.make_operator(scene, **arguments))


class TestErrors:
    """How operators fail: refusals, lost answers, timeouts, workers that are shut down."""

    @each(ONE_CALL)
    def test_permanent_errors_fail_without_retries(self, scene: Scene, operation: Operation) -> None:
        name = operation.name
        is_app = name == "deprecate_data_app"
        causes = [(401 if is_app else 400, code, "") for code in ERRORS[name][:1]]
        causes.append((403, "PermissionDenied", "" if is_app else ".*Check the account's plan"))
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
    def test_a_lost_answer_is_an_unknown_outcome_if_unsafe(
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
    def test_an_interrupting_timeout_is_an_unknown_outcome(self, scene: Scene, operation: Operation) -> None:
        with pytest.raises(AirflowFailException) as failed:
            execute_interrupted(scene, operation)
        operation.check(scene)
        said = str(failed.value)
        assert "interrupted before an answer (AirflowTaskTimeout)" in said
        assert f"{scene.fill(operation.doubt)} Clear the task" in said

    @pytest.mark.parametrize("operation", [COPY, READ], ids=["copy", "read"])
    def test_a_timeout_leaves_safe_ones_to_retries(self, scene: Scene, operation: Operation) -> None:
        with pytest.raises(AirflowTaskTimeout):
            execute_interrupted(scene, operation, retry_unknown_outcome=True)

    @each([operation for operation in UNSAFE if operation in ONE_CALL])
    def test_a_rate_limit_is_waited_out_and_retries_allowed(self, scene: Scene, operation: Operation) -> None:
        scene.control.fail(PATHS[operation.name], status=429, code="TooManyRequests")
        execute(operation.make_operator(scene))
        assert operation.received(scene) == 2
        scene.control.fail(PATHS[operation.name], kind="drop")
        execute(operation.make_operator(scene, retry_unknown_outcome=True), tries=2)
        assert operation.received(scene) == 4

    def test_a_worker_shut_down_makes_no_second_copy(
        self, scene: Scene, after_requests: Callable[..., None]
    ) -> None:
        with make_dag() as dag:
            COPY.make_operator(scene, **RETRIES)
        # slow enough for the signal; on Airflow 3, the task continues to the answer's end
        scene.control.fail(PATHS["copy_task"], kind="drip", seconds=0.01)
        # the signal that Airflow sends to the process of a task
        after_requests(1, PATHS["copy_task"], os.kill, os.getpid(), signal.SIGTERM)
        # the signal also ends `dag.test()` of Airflow 2
        with contextlib.suppress(*INTERRUPTS):
            run_dag(dag)

        # Airflow 3 lets the task end by itself
        assert state_of(dag.dag_id) == ("success" if AIRFLOW_V_3_0_PLUS else "failed")
        COPY.check(scene)
