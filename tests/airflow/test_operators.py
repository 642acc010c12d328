"""The operators: what they do, what they hand on, what a result means."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath
from airflow.providers.common.compat.standard.operators import PythonOperator

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectCopyTaskOperator,
    WebCollectCopyTasksOperator,
    WebCollectDeleteTaskGroupsOperator,
    WebCollectDeleteTasksOperator,
    WebCollectDeprecateDataAppOperator,
    WebCollectGetActionsOperator,
    WebCollectGetRunningCountsOperator,
    WebCollectMarkExportedOperator,
    WebCollectMoveTaskOperator,
    WebCollectRefreshTokenOperator,
    WebCollectReplaceUrlsOperator,
    WebCollectStartSubTasksOperator,
    WebCollectUpdateLoopItemsOperator,
    WebCollectUpdateTaskParametersOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service.errors import ConnectionIncomplete
from airflow_provider_webcollect.service.settings import ClientTiming
from tests.airflow.dag_runs import make_dag, run_dag, run_tasks
from tests.airflow.executions import Connect, Said, Task, execute, on_sandbox
from tests.service.servers import answer, serving

pytestmark = on_sandbox(stale_seconds=0)

RETRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(0)}
GROUP, OTHER_GROUP = 1, 7


@pytest.fixture
def groups(sandbox: Sandbox) -> list[int]:
    """Ids of two groups beside the usual one."""
    return [sandbox.control.add_task(group_id=group)["group_id"] for group in (OTHER_GROUP, OTHER_GROUP + 1)]


@pytest.fixture
def loop(task: Task) -> dict[str, Any]:
    """The usual arguments of an update of loop items."""
    return {
        "task_id": "update",
        "collection_task_id": task["task_id"],
        "action_id": task["actions"][0]["action_id"],
        "loop_type": "TextList",
    }


class TestUpdateLoopItems:
    def items(self, sandbox: Sandbox, task: Task) -> list[str]:
        return sandbox.control.task(task["task_id"])["actions"][0]["loop_items"]

    def test_it_replaces_the_values(self, sandbox: Sandbox, task: Task, loop: dict[str, Any]) -> None:
        items = ["x" * 100] * 1000
        run = run_tasks(lambda: WebCollectUpdateLoopItemsOperator(**loop, loop_items=items))

        assert self.items(sandbox, task) == items
        result = run.xcoms["update"]
        assert isinstance(result.pop("message"), str)
        step = {name: loop[name] for name in ("collection_task_id", "action_id")}
        assert result == {**step, "count": 1000}

    @pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.at_night)])
    def test_its_values_may_be_templates(
        self, sandbox: Sandbox, task: Task, loop: dict[str, Any], native: bool
    ) -> None:
        items = "{{ params.terms }}" if native else ["{{ params.terms[0] }}", "{{ params.terms[1] }}"]
        run = run_tasks(
            lambda: WebCollectUpdateLoopItemsOperator(**loop, loop_items=items),
            params={"terms": ["x", "y"]},
            render_template_as_native_obj=native,
        )

        assert run.state == "success"
        assert self.items(sandbox, task) == ["x", "y"]

    def test_it_appends_if_asked_and_an_append_whose_answer_is_lost_is_not_repeated(
        self, sandbox: Sandbox, task: Task, loop: dict[str, Any]
    ) -> None:
        append = WebCollectUpdateLoopItemsOperator(**loop, loop_items=["a"], is_append=True)
        execute(append)
        assert self.items(sandbox, task) == ["one", "two", "a"]
        sandbox.control.fail("/task/updateLoopItems", kind="drop", done=True)
        with pytest.raises(AirflowFailException):
            execute(append)
        assert self.items(sandbox, task) == ["one", "two", "a", "a"]


class TestReplaceUrls:
    URLS = ("https://shop.example/1", "https://shop.example/2")

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """A file with the URLs."""
        file = tmp_path / "urls.txt"
        file.write_text("\n".join(self.URLS))
        return file

    def urls(self, sandbox: Sandbox, task: Task) -> tuple[str, ...]:
        return tuple(sandbox.control.task(task["task_id"])["urls"])

    def replace(self, task: Task, **arguments: Any) -> WebCollectReplaceUrlsOperator:
        return WebCollectReplaceUrlsOperator(
            task_id="replace", collection_task_id=task["task_id"], **arguments
        )

    @pytest.mark.parametrize(
        "given",
        [
            lambda file: {"urls": file.read_text().splitlines()},
            lambda file: {"urls_path": str(file)},
            lambda file: {"urls_path": f"file://{file}"},
            lambda file: {"urls_path": ObjectStoragePath(f"file://{file}")},
        ],
    )
    def test_it_takes_a_list_or_a_path(
        self, sandbox: Sandbox, task: Task, file: Path, given: Callable[[Path], Any]
    ) -> None:
        result = execute(self.replace(task, **given(file)))
        assert self.urls(sandbox, task) == self.URLS
        assert result == {"collection_task_id": task["task_id"], "count": 2}

    def test_a_bad_line_is_named_before_anything_is_sent(
        self, sandbox: Sandbox, task: Task, file: Path
    ) -> None:
        file.write_text("https://shop.example/1\n\nhttps://shop.example/2\n")
        with pytest.raises(AirflowFailException, match="line 2"):
            execute(self.replace(task, urls_path=str(file)))
        assert sandbox.control.requests() == []

    def test_it_takes_what_an_upstream_task_returned_and_leaves_a_running_task_to_the_retries(
        self, sandbox: Sandbox, task: Task
    ) -> None:
        sandbox.control.fail("/task/urls:file", status=400, code="TaskExecuting", times=2)
        with make_dag() as dag:
            urls = PythonOperator(task_id="find", python_callable=lambda: list(self.URLS))
            self.replace(task, urls=urls.output, **RETRIES)
        run = run_dag(dag)
        assert (run.state, run.tries) == ("success", {"find": 1, "replace": 3})
        assert self.urls(sandbox, task) == self.URLS


class TestStartSubTasks:
    def start(self, task: Task, **arguments: Any) -> dict[str, Any]:
        return execute(
            WebCollectStartSubTasksOperator(task_id="start", collection_task_id=task["task_id"], **arguments)
        )

    @pytest.mark.parametrize("count", [3, 1])
    def test_it_starts_all_of_them_or_those_that_are_given(
        self, sandbox: Sandbox, task: Task, count: int
    ) -> None:
        ids = [subtask["subtask_id"] for subtask in task["subtasks"][:count]]
        result = self.start(task, **({"sub_task_ids": ids} if count < 3 else {}))
        assert sandbox.control.task(task["task_id"])["runs"][-1]["started_subtasks"] == count
        after = result.pop("after")
        assert result == {"collection_task_id": task["task_id"], "started": ids, "already_active": []}
        assert (after["executed_times"], after["running"]) == (1, False)

    def test_it_leaves_those_that_run_alone(self, sandbox: Sandbox, task: Task) -> None:
        first, second, third = (subtask["subtask_id"] for subtask in task["subtasks"])
        self.start(task, sub_task_ids=[first])
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


def test_an_export_is_confirmed_also_of_a_template_through_one(sandbox: Sandbox, task: Task) -> None:
    which = {"collection_task_id": "{{ params.which }}", "webcollect_conn_id": "webcollect_{{ 'default' }}"}
    confirm = WebCollectMarkExportedOperator(task_id="confirm", **which)
    assert execute(confirm, params={"which": task["task_id"]}) == {"collection_task_id": task["task_id"]}
    assert sandbox.control.task(task["task_id"])["exported"]


class TestTasksAndGroups:
    def test_tasks_are_copied_and_moved(self, sandbox: Sandbox, task: Task, groups: list[int]) -> None:
        other = sandbox.control.add_task()["task_id"]
        before = {task["task_id"] for task in sandbox.control.tasks()}
        copied, ids = "{{ ti.xcom_pull('copy')['task_id'] }}", [task["task_id"], other]
        run = run_tasks(
            lambda: WebCollectCopyTaskOperator(
                task_id="copy", collection_task_id=ids[0], task_group_id="{{ params.group }}"
            ),
            lambda: WebCollectMoveTaskOperator(
                task_id="move", collection_task_id=copied, task_group_id=str(groups[1])
            ),
            lambda: WebCollectCopyTasksOperator(
                task_id="copies", collection_task_ids=ids, task_group_ids=groups
            ),
            render_template_as_native_obj=True,
            params={"group": groups[0]},
        )

        assert run.state == "success"
        new = run.xcoms["copy"]["task_id"]
        assert new not in before
        assert run.xcoms["move"] == {"collection_task_id": new, "task_group_id": groups[1]}
        assert sandbox.control.task(new)["group_id"] == groups[1]
        assert run.xcoms["copies"] == {"request_count": 4, "success_count": 4, "failed_tasks": []}
        assert len(sandbox.control.tasks()) == len(before) + 5
        # a copy without a group goes to that of its task
        source = sandbox.control.add_task(group_id=groups[0])["task_id"]
        copy = execute(WebCollectCopyTaskOperator(task_id="copy", collection_task_id=source))
        assert sandbox.control.task(copy["task_id"])["group_id"] == groups[0]

    def test_tasks_and_groups_are_deleted_and_the_log_tells_which(
        self, sandbox: Sandbox, task: Task, groups: list[int], said: Said
    ) -> None:
        id_ = task["task_id"]

        assert execute(WebCollectDeleteTasksOperator(task_id="tasks", collection_task_ids=[id_])) == [id_]
        assert execute(WebCollectDeleteTaskGroupsOperator(task_id="groups", task_group_ids=groups)) == groups
        assert id_ not in {task["task_id"] for task in sandbox.control.tasks()}
        assert not set(groups) & set(sandbox.control.groups())
        log = said()
        assert f"Deleting 1 tasks: {id_}" in log
        assert f"Deleting 2 task groups: {groups[0]}, {groups[1]}" in log

    def test_parameters_are_set_and_the_log_tells_append_from_replace(
        self, sandbox: Sandbox, task: Task, said: Said
    ) -> None:
        loop, _, text = task["actions"]
        entry = {"action_id": loop["action_id"], "loop_type": "TextList"}

        def update(**arguments: Any) -> dict[str, Any]:
            usual = {"task_id": "update", "collection_task_id": task["task_id"]}
            return execute(WebCollectUpdateTaskParametersOperator(**usual, **arguments))

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

    def test_steps_counts_and_apps_are_read(self, task: Task) -> None:
        ids = [task["task_id"]]
        (result,) = execute(WebCollectGetActionsOperator(task_id="steps", collection_task_ids=ids))
        counts = execute(WebCollectGetRunningCountsOperator(task_id="counts"))
        app = execute(WebCollectDeprecateDataAppOperator(task_id="app", app_id=demo.APP_ID))

        assert result["task_id"] == task["task_id"]
        of_task, of_steps = ([action["action_id"] for action in of["actions"]] for of in (task, result))
        assert of_steps == of_task
        assert result["actions"][0]["loop_items"] == task["actions"][0]["loop_items"]
        assert set(counts) >= {"extracting_count", "waiting_sub_task_count"}
        assert all(isinstance(count, int) for count in counts.values())
        assert {"app_name", "status"} <= set(app)

    def test_all_can_be_mapped(self, sandbox: Sandbox, groups: list[int]) -> None:
        ids = [sandbox.control.add_task()["task_id"] for _ in range(2)]
        with make_dag() as dag:
            copies = WebCollectCopyTaskOperator.partial(task_id="copy").expand(collection_task_id=ids)
            move = WebCollectMoveTaskOperator.partial(task_id="move", task_group_id=groups[0])
            read = WebCollectGetActionsOperator.partial(task_id="read")
            # the results of all copies, as one list
            copied = copies.output.map(lambda copy: copy["task_id"])
            gathered = WebCollectDeleteTasksOperator(task_id="delete", collection_task_ids=copied)
            moves = move.expand(collection_task_id=ids)
            moves >> read.expand(collection_task_ids=[[id_] for id_ in ids]) >> gathered
        run = run_dag(dag)

        assert run.state == "success"
        assert sorted(run.xcoms["delete"]) == sorted(run.xcoms[f"copy[{i}]"]["task_id"] for i in range(2))
        assert {sandbox.control.task(id_)["group_id"] for id_ in ids} == {groups[0]}
        assert len(json.dumps(run.xcoms["move[0]"])) < 200


class TestMeaningOfResults:
    def test_partial_failures_fail_skip_or_are_ignored_and_always_told(
        self, sandbox: Sandbox, task: Task, said: Said
    ) -> None:
        with make_dag() as dag:
            for choice in ("fail", "skip", "ignore"):
                ids = {"collection_task_ids": [task["task_id"], "gone", "lost"], "task_group_ids": [GROUP]}
                WebCollectCopyTasksOperator(task_id=choice, on_partial_failure=choice, **ids, **RETRIES)
        run = run_dag(dag)

        assert run.states == {"fail": "failed", "skip": "skipped", "ignore": "success"}
        assert run.tries == dict.fromkeys(run.states, 1)
        assert [failed["task_id"] for failed in run.xcoms["ignore"]["failed_tasks"]] == ["gone", "lost"]
        assert all(failed["reason"] for failed in run.xcoms["ignore"]["failed_tasks"])
        log = said()
        assert "1 of 3 copies were made; these were not: gone: " in log
        assert "; lost: " in log

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

    def test_what_a_generator_gives_is_sent_though_the_dag_checks_it_first(
        self, sandbox: Sandbox, task: Task
    ) -> None:
        tasks = [sandbox.control.add_task()["task_id"] for _ in range(2)]
        with make_dag():
            operator = WebCollectDeleteTasksOperator(
                task_id="delete", collection_task_ids=(f"{task}\n" for task in tasks), ignore_empty=True
            )

        assert execute(operator) == tasks
        (request,) = sandbox.control.requests("/task/deleteTasks")
        assert json.loads(request["body"]) == {"taskIds": tasks}
        # also within an argument
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


def test_ids_of_digits_survive_native_rendering(sandbox: Sandbox) -> None:
    sandbox.control.add_task(task_id="20260101", lots=[3], subtasks=2)
    digits = {"collection_task_id": "{{ params.id }}"}
    run = run_tasks(
        lambda: WebCollectStartSubTasksOperator(task_id="start", **digits),
        lambda: WebCollectMarkExportedOperator(task_id="confirm", **digits),
        lambda: WebCollectGetActionsOperator(task_id="read", collection_task_ids="{{ [params.id | int] }}"),
        params={"id": "20260101"},
        render_template_as_native_obj=True,
    )

    assert run.state == "success"
    assert run.xcoms["start"]["collection_task_id"] == "20260101"
    assert run.xcoms["start"]["after"]["executed_times"] == 1
    assert run.xcoms["confirm"] == {"collection_task_id": "20260101"}
    assert run.xcoms["read"][0]["task_id"] == "20260101"


def test_a_users_own_operator_may_add_template_fields(sandbox: Sandbox, task: Task) -> None:
    class Confirm(WebCollectMarkExportedOperator):
        template_fields = (*WebCollectMarkExportedOperator.template_fields, "note")

        def __init__(self, *, note: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.note = note

    execute(Confirm(task_id="confirm", collection_task_id=task["task_id"], note="{{ ds }}"), ds="2026-01-01")

    assert sandbox.control.task(task["task_id"])["exported"]


def test_the_results_of_a_mapped_task_can_be_an_argument(sandbox: Sandbox) -> None:
    ids = [sandbox.control.add_task(group_id=group_id)["task_id"] for group_id in (7, 8)]
    with make_dag() as dag:
        number = PythonOperator.partial(task_id="groups", python_callable=lambda text: int(text))
        groups = number.expand(op_args=[["7"], ["8"]])
        WebCollectCopyTasksOperator(task_id="copy", collection_task_ids=ids, task_group_ids=groups.output)
    run = run_dag(dag)

    assert run.xcoms["copy"]["success_count"] == 4


class TestRefreshToken:
    def renew(self, **arguments: Any) -> dict[str, Any]:
        """Execute the operator and return its result."""
        return execute(WebCollectRefreshTokenOperator(task_id="renew", **arguments))

    def test_a_young_token_is_kept_unless_it_is_to_be_renewed_in_any_case(self, sandbox: Sandbox) -> None:
        results = [self.renew(), self.renew(), self.renew(renew_after=0)]
        assert [result["renewed"] for result in results] == [True, False, True]
        assert pendulum.parse(results[0]["expires_at"]) > pendulum.now("UTC").add(hours=12)
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
    def test_a_connection_that_can_obtain_no_token_says_so_and_sends_nothing(
        self, sandbox: Sandbox, set_connection: Connect, extra: Any, said: Said
    ) -> None:
        set_connection(extra=extra)
        advice = "the connection has no credential to obtain an access token: set its extra `refresh_token`"
        with pytest.raises(AirflowFailException, match=advice) as failed:
            self.renew()

        assert "rejected" not in f"{said()} {failed.value}"
        with pytest.raises(ConnectionIncomplete, match="no credential to obtain an access token"):
            WebCollectHook().refresh_token()
        assert sandbox.control.requests() == []
