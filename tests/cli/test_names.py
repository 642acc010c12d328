"""Names from the file of collection tasks: commands accept and show them in place of ids."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from tests.airflow.conftest import airflow_database, airflow_home  # noqa: F401  # fixtures
from tests.cli.conftest import Run
from tests.cli.processes import on_terminal

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]

NAME = "Prices of shops"
VARIABLE = "WEBCOLLECT_COLLECTION_TASKS"
#: An id that the service does not know, and a file that names it.
GONE = "00000000-0000-4000-8000-000000000000"
FILE_OF_GONE = f"- id: {GONE}\n  name: Gone\n"


@pytest.fixture
def other(sandbox: Sandbox) -> str:
    """A task that runs, and is in the file as `News`."""
    return str(sandbox.control.add_task(state="Extracting", subtasks=2)["task_id"])


@pytest.fixture
def path(tmp_path: Path, task: str, other: str) -> Path:
    """The path of the file, which no environment variable names yet."""
    path = tmp_path / "collection_tasks.yaml"
    path.write_text(f"- id: {task}\n  name: {NAME}\n- id: {other}\n  name: News\n")
    return path


@pytest.fixture
def file(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(path))
    return path


@pytest.mark.usefixtures("file")
class TestTaken:
    def test_rows_are_read_by_name(self, run: Run, sandbox: Sandbox, task: str, folder: Path) -> None:
        assert run("read", NAME).lines == sandbox.control.true_rows(task)
        assert run("land", NAME, folder).code == 0
        assert run("landing", "verify", folder, "-o", "json").json[0]["source"] == f"task {NAME} ({task})"

    def test_a_task_that_is_given_twice_is_one(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, task: str, other: str
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{NAME}\nnews\n{task}\n".encode())))
        for command in (["subtasks", "-"], ["status", NAME, "news", task]):
            rows = run(*command, "-o", "json").json
            assert list(dict.fromkeys(row["task"] for row in rows)) == [task, other]
            assert len(rows) == (2 if command[0] == "status" else 6)

    @pytest.mark.parametrize(
        "command",
        [
            *(["status", "Price of shop"], ["follow", "Price of shop"], ["read", "Price of shop"]),
            *(["subtasks", NAME, "Price of shop"], ["task", "start", "Price of shop"]),
            ["analytics", "--task", "Price of shop"],
        ],
        ids=" ".join,
    )
    def test_an_unknown_name_is_refused_with_the_nearest_names(
        self, run: Run, sandbox: Sandbox, path: Path, command: list[str]
    ) -> None:
        argument = "--task" if command[0] == "analytics" else "TASK"
        run(*command).refused(
            2,
            f"Error: {argument} is 'Price of shop'; no collection task in {path} has this name or id; ",
            f"the nearest: {NAME!r}",
        )
        assert sandbox.control.requests() == []

    def test_a_uuid_that_is_not_in_the_file_goes_to_the_service(self, run: Run, sandbox: Sandbox) -> None:
        task = sandbox.control.add_task(lots=[1])["task_id"]
        assert run("status", task, "-o", "json").json[0]["status"] == "Finished"
        ended = run("status", GONE)
        assert (ended.code, ended.err) == (1, f"The service does not know {GONE}.\n")


class TestWhichFile:
    @pytest.fixture
    def through_airflow(self, connected: None, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        """The default Airflow connection leads to the sandbox, and no variable has its address."""
        monkeypatch.delenv("WEBCOLLECT_URL")
        extra = {"access_token": sandbox.access_token}
        connection = {"conn_type": "webcollect", "host": sandbox.url, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT", json.dumps(connection))

    @pytest.mark.usefixtures("airflow_database", "through_airflow")
    def test_through_airflow_it_is_that_of_the_deployment(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, path: Path, task: str
    ) -> None:
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__COLLECTION_TASKS", str(path))
        [row] = run("status", NAME, "-o", "json").json
        assert (row["task"], row["name"]) == (task, NAME)

    @pytest.mark.usefixtures("airflow_database", "through_airflow", "file")
    def test_the_variable_goes_before_airflows(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, task: str
    ) -> None:
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__COLLECTION_TASKS", "/nowhere.yaml")
        assert run("status", NAME, "-o", "json").json[0]["task"] == task

    def test_the_option_goes_before_the_variable(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, path: Path, task: str, other: str
    ) -> None:
        monkeypatch.setenv(VARIABLE, "nowhere.yaml")
        option = ["--collection-tasks", path]
        assert [row["name"] for row in run("status", NAME, other, *option, "-o", "json").json] == [
            NAME,
            "News",
        ]
        assert run("analytics", "--task", "News", *option).code == 0
        assert run("task", "start", NAME, "--dry-run", *option, "-o", "json").code == 0
        path.write_text(FILE_OF_GONE)
        assert run("status", "gone", *option).err == f"The service does not know Gone ({GONE}).\n"
        run("status", NAME, "--collection-tasks", "gone.yaml").refused(
            2, "--collection-tasks is 'gone.yaml'; it cannot be read"
        )

    @pytest.mark.usefixtures("airflow_database", "through_airflow")
    def test_with_an_address_the_deployment_s_is_not_read(
        self, run: Run, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, path: Path
    ) -> None:
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__COLLECTION_TASKS", str(path))
        monkeypatch.setenv("WEBCOLLECT_ACCESS_TOKEN", sandbox.access_token)
        assert run("status", NAME, "--url", sandbox.url).code == 1
        monkeypatch.setenv("WEBCOLLECT_URL", sandbox.url)
        assert run("status", NAME).code == 1
        assert run("status", NAME, "--conn-id", "webcollect_default").code == 0

    @pytest.mark.parametrize(
        "command",
        [
            *(["status", NAME], ["task", "actions", NAME], ["task", "copy", NAME]),
            *(["read", NAME], ["task", "start", NAME]),
        ],
        ids=" ".join,
    )
    def test_without_names_an_unknown_task_hints_at_them(self, run: Run, command: list[str]) -> None:
        ended = run(*command)
        assert ended.code in {1, 3}
        hint = f"If {NAME!r} is a name, a file of collection tasks must list it"
        setting = f"{VARIABLE} or, with Airflow, `[webcollect] collection_tasks`"
        assert ended.err.endswith(f"{hint}: set {setting}, or use the id.\n")

    def test_a_wrong_file_fails_only_what_needs_a_name(self, run: Run, file: Path, task: str) -> None:
        file.write_text(f"- id: {task}\n  title: {NAME}\n")
        run("status", NAME).refused(2, f"`{file}, line 2, title` is {NAME!r}; a collection task has no")
        ended = run("status", task, "-o", "json")
        assert (ended.code, ended.json[0]["name"]) == (0, None)
        assert ended.err.startswith(
            f"No names of the file of collection tasks are shown: `{file}, line 2, title`"
        )

    def test_a_missing_one_is_said_by_its_variable(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, "nowhere.yaml")
        run("read", NAME).refused(
            2, f"the environment variable {VARIABLE} is 'nowhere.yaml'; it cannot be read"
        )


@pytest.mark.usefixtures("file")
class TestShown:
    def test_names_of_the_file_go_before_the_services(self, run: Run, sandbox: Sandbox, task: str) -> None:
        unnamed = sandbox.control.add_task(lots=[5], name="Called so by the service")["task_id"]
        for command in (["status"], ["analytics"]):
            names = {row["task"]: row["name"] for row in run(*command, "-o", "json").json}
            assert (names[task], names[unnamed]) == (NAME, "Called so by the service")

    def test_runs_are_followed_by_name(self, run: Run, task: str) -> None:
        ended = run("follow", task, "-o", "json")
        assert f"{NAME} Finished, 4/4 sub-tasks" in ended.err
        assert [row["name"] for row in ended.json] == [NAME]

    def test_a_narrow_table_keeps_names_without_ids(self, sandbox: Sandbox, task: str, other: str) -> None:
        code, printed = on_terminal("status", task, "news", columns=60)
        head, first, second, left_out = printed.splitlines()
        assert code == 0
        assert "collected" in head
        assert first.startswith(f"{NAME}  ")
        assert second.startswith("News  ")
        assert task not in printed
        assert left_out.startswith("Left out in 60 columns: task, ")
        wide = on_terminal("status", task, "news", columns=100)[1]
        assert task in wide
        assert NAME in wide

    def test_it_keeps_the_ids_where_the_file_does_not_name_all(self, sandbox: Sandbox, task: str) -> None:
        unnamed = sandbox.control.add_task(lots=[5])["task_id"]
        printed = on_terminal("status", task, unnamed, columns=60)[1]
        assert task in printed
        assert unnamed in printed

    def test_a_question_has_name_and_id(self, run: Run, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
        asked: list[str] = []
        monkeypatch.setattr("airflow_provider_webcollect.cli.steering.ask", asked.append)
        run("task", "delete", NAME)
        run("task", "delete", task)
        assert asked == [f"Delete 1 task ({NAME} ({task}))?"] * 2

    @pytest.mark.parametrize("command", [["read"], ["subtasks"], ["task", "start"], ["land"]], ids=" ".join)
    def test_an_error_names_the_task_that_the_service_does_not_know(
        self, run: Run, path: Path, folder: Path, command: list[str]
    ) -> None:
        path.write_text(FILE_OF_GONE)
        where = [folder] if command == ["land"] else []
        run(*command, GONE, *where).refused(3, f"(asked for task Gone ({GONE}))")

    def test_a_copy_that_was_not_made_is_named(self, run: Run, path: Path, task: str) -> None:
        path.write_text(FILE_OF_GONE)
        assert f"these were not: Gone ({GONE}): " in run("task", "copy", task, GONE).err

    def test_a_landing_names_its_task_and_the_one_before(
        self, run: Run, task: str, other: str, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        checks = ["--checks", '{"rows": {"min": 10000}}', "--on-failed-checks"]
        named = f"task {NAME} ({task})"
        assert run("land", task, folder, *checks, "warn").code == 0
        assert f"Check of {named}, rows.min" in caplog.text
        run("land", other, folder).refused(3, f"holds {named}, not task News ({other})")
