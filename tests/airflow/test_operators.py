"""The operators of the main job: what they do, what they hand on, and how they fail."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath
from airflow.providers.common.compat.standard.operators import PythonOperator

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectGetActionsOperator,
    WebCollectMarkExportedOperator,
    WebCollectReplaceUrlsOperator,
    WebCollectStartSubTasksOperator,
    WebCollectUpdateLoopItemsOperator,
)
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import make_dag, run_dag, run_tasks
from tests.airflow.executions import execute

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(stale_seconds=0, enforce_limits=False),
]

RETRIES = {"retries": 3, "retry_delay": timedelta(0)}


@pytest.fixture
def loop(task: dict[str, Any]) -> dict[str, Any]:
    """The usual arguments of an update of loop items."""
    return {
        "task_id": "update",
        "collection_task_id": task["task_id"],
        "action_id": task["actions"][0]["action_id"],
        "loop_type": "TextList",
    }


def subtask_ids(task: dict[str, Any]) -> list[str]:
    """Return the ids of a task's sub-tasks."""
    return [subtask["subtask_id"] for subtask in task["subtasks"]]


class TestUpdateLoopItems:
    def items(self, sandbox: Sandbox, task: dict[str, Any]) -> list[str]:
        items: list[str] = sandbox.control.task(task["task_id"])["actions"][0]["loop_items"]
        return items

    def test_it_replaces_the_values(
        self, sandbox: Sandbox, task: dict[str, Any], loop: dict[str, Any]
    ) -> None:
        run = run_tasks(lambda: WebCollectUpdateLoopItemsOperator(**loop, loop_items=["a", "b"]))

        assert self.items(sandbox, task) == ["a", "b"]
        result = run.xcoms["update"]
        assert isinstance(result.pop("message"), str)
        assert result == {
            "collection_task_id": task["task_id"],
            "action_id": loop["action_id"],
            "count": 2,
        }

    def test_it_appends_if_asked(self, sandbox: Sandbox, task: dict[str, Any], loop: dict[str, Any]) -> None:
        execute(WebCollectUpdateLoopItemsOperator(**loop, loop_items=["a"], is_append=True))

        assert self.items(sandbox, task) == ["one", "two", "a"]

    @pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.at_night)])
    def test_its_values_may_be_templates(
        self, sandbox: Sandbox, task: dict[str, Any], loop: dict[str, Any], native: bool
    ) -> None:
        items = "{{ params.terms }}" if native else ["{{ params.terms[0] }}", "{{ params.terms[1] }}"]
        run = run_tasks(
            lambda: WebCollectUpdateLoopItemsOperator(**loop, loop_items=items),
            params={"terms": ["x", "y"]},
            render_template_as_native_obj=native,
        )

        assert run.state == "success"
        assert self.items(sandbox, task) == ["x", "y"]

    def test_an_unknown_step_fails_without_retries(self, loop: dict[str, Any]) -> None:
        with pytest.raises(AirflowFailException):
            execute(
                WebCollectUpdateLoopItemsOperator(**{**loop, "action_id": "no-such-step"}, loop_items=["a"])
            )

    def test_an_append_whose_answer_is_lost_is_not_repeated(
        self, sandbox: Sandbox, task: dict[str, Any], loop: dict[str, Any]
    ) -> None:
        sandbox.control.fail("/task/updateLoopItems", kind="no_answer")
        with pytest.raises(AirflowFailException):
            execute(WebCollectUpdateLoopItemsOperator(**loop, loop_items=["a"], is_append=True))

        assert self.items(sandbox, task) == ["one", "two", "a"]

    def test_a_replacement_whose_answer_is_lost_is_repeated(
        self, sandbox: Sandbox, task: dict[str, Any], loop: dict[str, Any]
    ) -> None:
        sandbox.control.fail("/task/updateLoopItems", kind="no_answer")
        execute(WebCollectUpdateLoopItemsOperator(**loop, loop_items=["a"]))

        assert self.items(sandbox, task) == ["a"]

    @pytest.mark.at_night
    def test_it_can_be_mapped(self, sandbox: Sandbox, loop: dict[str, Any]) -> None:
        tasks = [sandbox.control.add_task() for _ in range(3)]
        del loop["collection_task_id"], loop["action_id"]
        run = run_tasks(
            lambda: WebCollectUpdateLoopItemsOperator.partial(**loop, loop_items=["mapped"]).expand_kwargs(
                [
                    {"collection_task_id": each["task_id"], "action_id": each["actions"][0]["action_id"]}
                    for each in tasks
                ]
            )
        )

        assert run.states == {f"update[{index}]": "success" for index in range(3)}
        assert [run.xcoms[f"update[{index}]"]["collection_task_id"] for index in range(3)] == [
            each["task_id"] for each in tasks
        ]
        assert [self.items(sandbox, each) for each in tasks] == [["mapped"]] * 3


class TestReplaceUrls:
    URLS = ("https://shop.example/1", "https://shop.example/2")

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """A file with the URLs."""
        file = tmp_path / "urls.txt"
        file.write_text("\n".join(self.URLS))
        return file

    def urls(self, sandbox: Sandbox, task: dict[str, Any]) -> tuple[str, ...]:
        return tuple(sandbox.control.task(task["task_id"])["urls"])

    def replace(self, task: dict[str, Any], **arguments: Any) -> WebCollectReplaceUrlsOperator:
        return WebCollectReplaceUrlsOperator(
            task_id="replace", collection_task_id=task["task_id"], **arguments
        )

    def test_it_takes_a_list(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        result = execute(self.replace(task, urls=list(self.URLS)))

        assert self.urls(sandbox, task) == self.URLS
        assert result == {"collection_task_id": task["task_id"], "count": 2}

    @pytest.mark.parametrize(
        "path", [str, "file://{}".format, lambda file: ObjectStoragePath(f"file://{file}")]
    )
    def test_it_takes_a_path(
        self, sandbox: Sandbox, task: dict[str, Any], file: Path, path: Callable[[Path], Any]
    ) -> None:
        execute(self.replace(task, urls_path=path(file)))

        assert self.urls(sandbox, task) == self.URLS

    def test_it_takes_what_an_upstream_task_returned(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        with make_dag() as dag:
            found = PythonOperator(task_id="find", python_callable=lambda: list(self.URLS))
            self.replace(task, urls=found.output)
        run = run_dag(dag)

        assert run.states == {"find": "success", "replace": "success"}
        assert self.urls(sandbox, task) == self.URLS

    def test_a_bad_line_is_named_before_anything_is_sent(
        self, sandbox: Sandbox, task: dict[str, Any], file: Path
    ) -> None:
        file.write_text("https://shop.example/1\n\nhttps://shop.example/2\n")
        with pytest.raises(AirflowFailException, match="line 2"):
            execute(self.replace(task, urls_path=str(file)))

        assert sandbox.control.requests() == []

    def test_a_file_that_is_not_there_fails_without_retries(
        self, task: dict[str, Any], tmp_path: Path
    ) -> None:
        with pytest.raises(AirflowFailException, match="`file` is 'none'; it must be readable"):
            execute(self.replace(task, urls_path=f"file://{tmp_path}/none"))

    def test_a_task_that_is_not_there_fails_without_retries(self) -> None:
        with pytest.raises(AirflowFailException, match="InvalidTaskId"):
            execute(self.replace({"task_id": "gone"}, urls=list(self.URLS)))

    def test_a_running_task_is_left_to_the_retries(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        sandbox.control.fail("/task/urls:file", status=400, code="TaskExecuting", times=2)
        run = run_tasks(lambda: self.replace(task, urls=list(self.URLS), **RETRIES))

        assert (run.states, run.tries) == ({"replace": "success"}, {"replace": 3})
        assert self.urls(sandbox, task) == self.URLS


class TestStartSubTasks:
    def start(self, task: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = execute(
            WebCollectStartSubTasksOperator(task_id="start", collection_task_id=task["task_id"], **arguments),
            params={"none": []},
        )
        return result

    def test_it_starts_all_of_them(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        result = self.start(task)

        assert sandbox.control.task(task["task_id"])["runs"][-1]["started_subtasks"] == 3
        after = result.pop("after")
        assert result == {
            "collection_task_id": task["task_id"],
            "started": subtask_ids(task),
            "already_active": [],
        }
        assert (after["executed_times"], after["running"]) == (1, False)

    def test_it_starts_those_that_are_given(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        result = self.start(task, sub_task_ids=subtask_ids(task)[:1])

        assert sandbox.control.task(task["task_id"])["runs"][-1]["started_subtasks"] == 1
        assert result["started"] == subtask_ids(task)[:1]

    def test_it_leaves_those_that_run_alone(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        first, second, third = subtask_ids(task)
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

    @pytest.mark.parametrize("kind", ["no_answer", "broken_json", "cut_body"])
    def test_a_start_whose_answer_is_lost_is_not_repeated(
        self, sandbox: Sandbox, task: dict[str, Any], kind: str
    ) -> None:
        sandbox.control.fail("/cloudextraction/subtasks:start", kind=kind)
        with pytest.raises(
            AirflowFailException, match=r"Check in the service whether it took effect before repeating it\."
        ):
            self.start(task)

        assert len(sandbox.control.requests("/cloudextraction/subtasks:start")) == 1

    def test_an_unknown_task_fails_without_retries(self) -> None:
        with pytest.raises(AirflowFailException):
            self.start({"task_id": "no-such-task"})

    def test_an_empty_list_is_refused_at_run_time(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        with (
            make_dag(render_template_as_native_obj=True),
            pytest.raises(AirflowFailException, match="sub_task_ids"),
        ):
            self.start(task, sub_task_ids="{{ params.none }}")

        assert sandbox.control.requests() == []


@pytest.mark.parametrize("kind", ["drop", "no_answer"])
def test_a_lost_answer_is_asked_for_again_where_that_is_safe(
    sandbox: Sandbox, task: dict[str, Any], loop: dict[str, Any], kind: str
) -> None:
    paths = ("/task/updateLoopItems", "/task/urls:file", "/data/markexported")
    for path in paths:
        sandbox.control.fail(path, kind=kind)
    which = {"collection_task_id": task["task_id"]}
    execute(WebCollectUpdateLoopItemsOperator(**loop, loop_items=["a"]))
    execute(WebCollectReplaceUrlsOperator(task_id="replace", urls=["https://shop.example/1"], **which))
    execute(WebCollectMarkExportedOperator(task_id="confirm", **which))

    assert [len(sandbox.control.requests(path)) for path in paths] == [2, 2, 2]


class TestMarkExported:
    def confirm(self, task_id: str, **arguments: Any) -> WebCollectMarkExportedOperator:
        return WebCollectMarkExportedOperator(task_id="confirm", collection_task_id=task_id, **arguments)

    def test_it_confirms_the_export(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        result = execute(self.confirm(task["task_id"]))

        assert result == {"collection_task_id": task["task_id"]}
        assert sandbox.control.task(task["task_id"])["exported"]

    @pytest.mark.parametrize(
        ("status", "code"), [(403, "PermissionDenied"), (400, "InvalidParameter"), (400, "SomethingNew")]
    )
    def test_what_cannot_get_better_is_not_retried(
        self, sandbox: Sandbox, task: dict[str, Any], status: int, code: str
    ) -> None:
        sandbox.control.fail("/data/markexported", status=status, code=code, message="so it is")
        with pytest.raises(
            AirflowFailException, match=rf"mark_exported: HTTP {status} {code}: so it is \(requestId "
        ):
            execute(self.confirm(task["task_id"]))

    def test_a_rejected_credential_fails_without_retries(
        self, set_connection: Callable[..., None], task: dict[str, Any]
    ) -> None:
        set_connection(extra={"access_token": "wrong"})
        run = run_tasks(lambda: self.confirm(task["task_id"], **RETRIES))

        assert (run.states, run.tries) == ({"confirm": "failed"}, {"confirm": 1})

    def test_the_connection_may_be_a_template(
        self, sandbox: Sandbox, task: dict[str, Any], set_connection: Callable[..., None]
    ) -> None:
        execute(
            self.confirm("{{ params.which }}", webcollect_conn_id="webcollect_{{ 'default' }}"),
            params={"which": task["task_id"]},
        )

        assert sandbox.control.task(task["task_id"])["exported"]


def test_ids_of_digits_survive_native_rendering(sandbox: Sandbox) -> None:
    sandbox.control.add_task(task_id="20260101", lots=[3], subtasks=2)
    digits = "{{ params.id }}"
    run = run_tasks(
        lambda: WebCollectStartSubTasksOperator(task_id="start", collection_task_id=digits),
        lambda: WebCollectMarkExportedOperator(task_id="confirm", collection_task_id=digits),
        lambda: WebCollectGetActionsOperator(task_id="read", collection_task_ids="{{ [params.id | int] }}"),  # type: ignore[arg-type]
        params={"id": "20260101"},
        render_template_as_native_obj=True,
    )

    assert run.state == "success"
    assert run.xcoms["start"]["collection_task_id"] == "20260101"
    assert run.xcoms["start"]["after"]["executed_times"] == 1
    assert run.xcoms["confirm"] == {"collection_task_id": "20260101"}
    assert run.xcoms["read"][0]["task_id"] == "20260101"


ID = "a-task"
WRONG: list[tuple[type[Any], dict[str, Any], str]] = [
    (WebCollectUpdateLoopItemsOperator, {"loop_items": []}, "loop_items"),
    (WebCollectUpdateLoopItemsOperator, {"loop_items": "laptop"}, "loop_items"),
    (WebCollectUpdateLoopItemsOperator, {"loop_items": [1]}, r"loop_items\[0\]"),
    (WebCollectUpdateLoopItemsOperator, {"loop_type": "Texts"}, "loop_type"),
    (WebCollectUpdateLoopItemsOperator, {"action_id": ""}, "action_id"),
    (WebCollectUpdateLoopItemsOperator, {"collection_task_id": None}, "collection_task_id"),
    (WebCollectUpdateLoopItemsOperator, {"is_append": "yes"}, "is_append"),
    (WebCollectReplaceUrlsOperator, {}, "either `urls` or `urls_path`"),
    (
        WebCollectReplaceUrlsOperator,
        {"urls": ["https://a"], "urls_path": "/f"},
        "either `urls` or `urls_path`",
    ),
    (WebCollectReplaceUrlsOperator, {"urls": ["ftp://a"]}, "urls"),
    (WebCollectReplaceUrlsOperator, {"urls": "https://a"}, "urls"),
    (WebCollectReplaceUrlsOperator, {"urls_path": ""}, "urls_path"),
    (WebCollectStartSubTasksOperator, {"sub_task_ids": []}, "sub_task_ids"),
    (WebCollectStartSubTasksOperator, {"sub_task_ids": "one"}, "sub_task_ids"),
    (WebCollectStartSubTasksOperator, {"collection_task_id": " "}, "collection_task_id"),
    (WebCollectMarkExportedOperator, {"collection_task_id": ""}, "collection_task_id"),
]
USUAL: dict[type[Any], dict[str, Any]] = {
    WebCollectUpdateLoopItemsOperator: {"action_id": "a-step", "loop_type": "TextList", "loop_items": ["a"]},
}


@pytest.mark.parametrize(("operator", "arguments", "name"), WRONG)
def test_a_wrong_literal_argument_fails_while_the_dag_is_parsed(
    operator: type[Any], arguments: dict[str, Any], name: str
) -> None:
    usual = {"collection_task_id": ID, **USUAL.get(operator, {})}
    with make_dag(), pytest.raises(InvalidArgument, match=name):
        operator(task_id="wrong", **{**usual, **arguments})


def test_a_wrong_one_that_is_rendered_or_mapped_fails_before_anything_is_sent(sandbox: Sandbox) -> None:
    for operator, arguments, name in WRONG:
        usual = {"collection_task_id": ID, **USUAL.get(operator, {}), **arguments}
        # one template suffices to put all checks off
        templated = operator(task_id="rendered", **usual, webcollect_conn_id="{{ 'webcollect_default' }}")
        with make_dag():
            mapped = operator.partial(task_id="mapped").expand_kwargs([usual])
        for each in (templated, mapped.unmap(usual)):
            with pytest.raises(AirflowFailException, match=name):
                execute(each)
    assert sandbox.control.requests() == []


def test_a_users_own_operator_may_add_template_fields(sandbox: Sandbox, task: dict[str, Any]) -> None:
    class Confirm(WebCollectMarkExportedOperator):
        template_fields = (*WebCollectMarkExportedOperator.template_fields, "note")

        def __init__(self, *, note: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.note = note

    execute(Confirm(task_id="confirm", collection_task_id=task["task_id"], note="{{ ds }}"), ds="2026-01-01")

    assert sandbox.control.task(task["task_id"])["exported"]


def test_results_are_small_json(sandbox: Sandbox, loop: dict[str, Any]) -> None:
    result = execute(WebCollectUpdateLoopItemsOperator(**loop, loop_items=["x" * 100] * 1000))

    assert len(json.dumps(result)) < 500
