"""Commands that change tasks, task groups and data apps, and commands that read what a change needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from tests.cli.conftest import Run, Show, Start, shown
from tests.interruption import PATIENCE, until
from tests.operations import URLS, WITH_COMMAND, Operation, Scene, each, holds
from tests.sandbox.plain_client import Client

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]

LATER = "Check in the service whether it took effect before repeating it."


@pytest.fixture(autouse=True)
def data_apps(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox is the data-app service too, and the key belongs to the apps' author."""
    monkeypatch.setenv("WEBCOLLECT_DATAHUB_URL", sandbox.datahub_url)
    monkeypatch.setenv("WEBCOLLECT_DATAHUB_API_KEY", sandbox.datahub_api_key)


@pytest.fixture
def idle(sandbox: Sandbox) -> str:
    """A task with three sub-tasks, none of which runs."""
    return str(sandbox.control.add_task(subtasks=3, name="Prices")["task_id"])


def sent(sandbox: Sandbox) -> list[str]:
    """Return the paths of the requests that can change something."""
    return [request["endpoint"] for request in sandbox.control.requests() if request["method"] == "POST"]


@pytest.mark.parametrize("by", ["id", "name"])
@each(WITH_COMMAND)
def test_each_does_the_same_for_ids_and_for_names_of_the_file(
    run: Run,
    scene: Scene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: Operation,
    by: str,
    output: str,
) -> None:
    names = {"TASK": "Shop search", "OTHER": "Deli / 商店"} if by == "name" else {}
    (file := tmp_path / "tasks.json").write_text(
        json.dumps([{"id": scene.words[word], "name": name} for word, name in names.items()])
    )
    monkeypatch.setenv("WEBCOLLECT_COLLECTION_TASKS", str(file))
    yes = ["--yes"] if operation.question else []
    ended = run(*scene.words_of(operation.command, **names), *yes, "-o", output)
    assert ended.code == 0, ended.err
    operation.check(scene)
    assert not operation.rows or holds(shown(ended, output), scene.fill(operation.rows))


def test_urls_can_be_piped(run: Run, scene: Scene, pipe: Callable[[str], None]) -> None:
    pipe("\n".join(URLS))
    assert run(*scene.words_of("task replace-urls TASK - --yes")).code == 0
    assert scene.control.task(scene.words["TASK"])["urls"] == URLS


class TestCopy:
    def test_several_tasks_are_copied_and_each_new_id_is_shown(
        self, run: Run, sandbox: Sandbox, idle: str, output: str, pipe: Callable[[str], None]
    ) -> None:
        pipe(f"{idle}\nunknown\n{demo.TASK_ID}\n")
        ended = run("task", "copy", "-", "-o", output)
        reason = "The task id is invalid (asked for task unknown)"
        assert ended.code == 1
        assert ended.err.startswith(f"2 of 3 copies were made; these were not: unknown: {reason}\n")
        first, failed, last = shown(ended, output)
        assert failed == {"task": "unknown", "failure": reason}
        assert [row["task"] for row in (first, last)] == [idle, demo.TASK_ID]
        for row in (first, last):
            assert sandbox.control.task(row["copy"])["name"] == row["name"]

    def test_each_task_is_copied_to_each_group(self, run: Run, sandbox: Sandbox, idle: str) -> None:
        ended = run("task", "copy", idle, demo.TASK_ID, "--group", 2, "--group", 3, "-o", "json")
        assert (ended.code, ended.err) == (0, "")
        wanted = [(task, group) for task in (idle, demo.TASK_ID) for group in ("2", "3")]
        assert [(row["task"], row["group"]) for row in ended.json] == wanted
        for row in ended.json:
            assert sandbox.control.task(row["copy"])["group_id"] == int(row["group"])

    def test_what_is_copied_before_an_error_is_shown(self, run: Run, sandbox: Sandbox, idle: str) -> None:
        sandbox.control.fail("/task/copy", kind="drop", done=True, after=1)
        ended = run("task", "copy", idle, demo.TASK_ID, demo.FINISHED_TASK_ID, "--group", 2, "-o", "json")
        assert ended.code == 3
        assert [row["task"] for row in ended.json] == [idle]
        assert (
            f"Stopped at task {demo.TASK_ID}; not tried: 1\nError: copy_task: the request was sent, but "
            in ended.err
        )
        assert LATER in ended.err

    def test_an_interrupt_leaves_the_outcome_open(self, start: Start, sandbox: Sandbox, idle: str) -> None:
        sandbox.control.fail("/task/copy", kind="drip", seconds=2 * PATIENCE)
        copying = start("task", "copy", idle)
        until(lambda: sandbox.control.counters().get("/task/copy"))
        copying.interrupt()
        assert copying.end() == 130
        assert copying.err.startswith("Interrupted: copy_task: ")
        assert LATER in copying.err


@pytest.mark.beyond_the_contract
def test_a_task_that_is_not_moved_is_the_answer_no(run: Run, sandbox: Sandbox, idle: str) -> None:
    answer = b'{"data": {"moved": false}, "requestId": "1"}'
    sandbox.control.fail("/task/moveToGroup", kind="raw", body=answer)
    run("task", "move", idle, "--group", 3).refused(1, "did not move")


@pytest.mark.parametrize(
    ("answer", "code"), [("y", 0), ("n", 1), pytest.param("", 1, marks=pytest.mark.at_night)]
)
def test_before_tasks_are_deleted_it_is_asked_on_a_terminal(
    start: Start, sandbox: Sandbox, idle: str, answer: str, code: int
) -> None:
    deleting = start("task", "delete", idle, demo.TASK_ID, "-o", "csv", terminal=True)
    until(lambda: "Delete 2 tasks (" in deleting.err)
    deleting.type(f"{answer}\n")
    assert deleting.end() == code
    assert (idle in {task["task_id"] for task in sandbox.control.tasks()}) is bool(code)
    assert deleting.out == ("" if code else f"task\n{idle}\n{demo.TASK_ID}\n")
    if code:
        assert "Nothing was changed." in deleting.err
        assert sandbox.control.requests() == []


class TestSteps:
    def test_the_steps_of_tasks_are_shown_with_settings(self, run: Run, scene: Scene, output: str) -> None:
        assert run(*scene.words_of("task set-params TASK TEXT"), "TextToSet=red shoes").code == 0
        ended = run(*scene.words_of("task actions TASK"), "-o", output)
        loop, page, entry = shown(ended, output)
        assert ended.code == 0
        assert {row["task"] for row in (loop, page, entry)} == {scene.words["TASK"]}
        assert (loop["action_type"], loop["loop_type"], loop["values"]) == ("LoopAction", "TextList", "2")
        assert (page["action_type"], page["name"]) == ("NavigateAction", "Open page")
        assert (entry["action_id"], entry["action_type"]) == (scene.words["TEXT"], "EnterTextAction")
        if output == "json":
            typed_loop, _, typed_entry = ended.json
            assert typed_loop["loop_items"] == ["one", "two"]
            assert typed_entry["properties"] == [{"name": "TextToSet", "value": "red shoes"}]
        else:
            assert entry["properties"] == "TextToSet=red shoes"

    @pytest.mark.parametrize("is_piped", [False, True])
    def test_the_values_can_be_the_lines_of_a_file(
        self, run: Run, scene: Scene, tmp_path: Path, pipe: Callable[[str], None], is_piped: bool
    ) -> None:
        file, text = tmp_path / "words", "\ufeffred shoes\r\n\nbücher\n"
        file.write_bytes(text.encode())
        pipe(text)
        command = scene.words_of("task set-loop TASK LOOP --type TextList --yes --file")
        assert run(*command, "-" if is_piped else file).code == 0
        # an empty line is a value too
        assert scene.steps()[0]["loop_items"] == ["red shoes", "", "bücher"]


class TestStart:
    def test_all_are_started_and_shown(self, run: Run, sandbox: Sandbox, idle: str) -> None:
        ended = run("task", "start", idle, "-o", "json")
        assert (ended.code, ended.err) == (0, "Started: 3; 0 already active\n")
        ids = [subtask["subtask_id"] for subtask in sandbox.control.task(idle)["subtasks"]]
        assert ended.json == [{"task": idle, "sub_task": id_} for id_ in ids]

    def test_what_runs_is_not_started_again(self, run: Run, sandbox: Sandbox, idle: str) -> None:
        first, second, _ = [subtask["subtask_id"] for subtask in sandbox.control.task(idle)["subtasks"]]
        assert run("task", "start", idle, "--subtask", first).code == 0
        sandbox.control.clear_requests()
        again = run("task", "start", idle, "--subtask", first, "--subtask", second, "-o", "json")
        none = run("task", "start", idle, "--subtask", second.upper(), "-o", "json")
        assert (again.code, again.err) == (0, "Started: 1; 1 already active\n")
        assert again.json == [{"task": idle, "sub_task": second}]
        assert (none.code, none.err, none.json) == (0, "Started: 0; 1 already active\n", [])
        assert sent(sandbox) == ["/cloudextraction/subtasks:start"]

    def test_an_api_key_alone_starts_what_is_named(
        self, run: Run, sandbox: Sandbox, idle: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("WEBCOLLECT_ACCESS_TOKEN")
        monkeypatch.setenv("WEBCOLLECT_API_KEY", sandbox.api_key)
        first = sandbox.control.task(idle)["subtasks"][0]["subtask_id"]
        assert run("task", "start", idle, "--subtask", first, "-o", "json").json == [
            {"task": idle, "sub_task": first}
        ]
        run("task", "start", idle).refused(
            3, "the connection has only an API key, and", "name them with --subtask, or add `refresh_token`"
        )

    def test_a_task_without_sub_tasks_is_the_answer_no(self, run: Run, sandbox: Sandbox, idle: str) -> None:
        answer = b'{"data": [], "requestId": "1"}'
        sandbox.control.fail("/cloudextraction/task/subtasks", kind="raw", body=answer)
        assert run("task", "start", idle).code == 1
        assert sent(sandbox) == []


def test_subtasks_are_shown_with_their_states(
    show: Show, run: Run, sandbox: Sandbox, pipe: Callable[[str], None]
) -> None:
    ids = [str(sandbox.control.add_task(subtasks=count)["task_id"]) for count in (2, 21)]
    assert run("task", "start", ids[0]).code == 0
    truth = [
        {"task": task, "sub_task": subtask["subTaskId"], "status": subtask["status"]}
        for task in ids
        for page in (1, 2)
        for subtask in Client(sandbox).subtasks(task, page)
    ]
    pipe(f"{ids[0]}\r\n\n  {ids[1]}\n")
    assert show("subtasks", "-") == truth
    assert len(truth) == 23


@each([operation for operation in WITH_COMMAND if operation.then or operation.question])
def test_a_dry_run_shows_what_would_be_sent_and_changes_nothing(
    run: Run, sandbox: Sandbox, scene: Scene, operation: Operation
) -> None:
    before = sandbox.control.tasks()
    ended = run(*scene.words_of(operation.command), "--dry-run", "-o", "json")
    assert (ended.code, ended.err) == (0, "Nothing was changed.\n")
    [row] = ended.json
    assert (row["endpoint"], row["method"]) == (operation.name, "POST")
    query = dict(parse_qsl(row["path"].partition("?")[2]))
    known = {"file": "urls.txt, 2 URLs"} if operation.sent is None else scene.fill(operation.sent)
    assert holds({**query, **(row["body"] or {})}, known)
    assert sent(sandbox) == []
    assert sandbox.control.tasks() == before
    for secret in (sandbox.access_token, sandbox.datahub_api_key):
        assert secret not in ended.out


def test_a_dry_run_as_csv_has_the_body_as_json(run: Run, scene: Scene) -> None:
    setting = scene.words_of("task set-loop TASK LOOP --type TextList --item 自行车 --dry-run -o csv")
    [row] = run(*setting).csv
    assert json.loads(row["body"])["loopItems"] == ["自行车"]


@each([operation for operation in WITH_COMMAND if operation.question])
def test_what_cannot_be_undone_needs_a_terminal_or_yes(
    run: Run, sandbox: Sandbox, scene: Scene, operation: Operation, pipe: Callable[[str], None]
) -> None:
    pipe("y\n")
    run(*scene.words_of(operation.command)).refused(2, scene.fill(operation.question), "--yes")
    assert sandbox.control.requests() == []


def test_a_question_names_five_of_many_ids(run: Run) -> None:
    run(*["task", "delete", "a", "b", "c", "d", "e", "f"]).refused(2, "Delete 6 tasks (a, b, c, d, e, …)?")


def test_analytics_of_a_member_and_of_a_method_of_collection(run: Run) -> None:
    assert {row["task"] for row in run("analytics", "--member", demo.COLLEAGUE, "-o", "json").json} == {
        demo.COLLEAGUES_TASK_ID
    }
    assert run("analytics", "--member", demo.STRANGER).code == 3
    by_method = {
        method: run("analytics", "--by", "day", "--method", method, "-o", "csv").csv
        for method in ("cloud", "local", "all")
    }
    assert {row["method"] for row in by_method["cloud"]} == {"Cloud"}
    assert {row["method"] for row in by_method["local"]} == {"Local"}
    assert len(by_method["all"]) == len(by_method["cloud"]) + len(by_method["local"])
