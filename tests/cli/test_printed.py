"""What is printed: JSON that every program can read, and texts that cannot control a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Run
from tests.cli.processes import on_terminal
from tests.landing.loading.databases import Landing
from tests.test_docs import templates

pytestmark = pytest.mark.usefixtures("connected")


def strictly(text: str) -> Any:
    """Decode JSON as other languages do, which do not accept `NaN`."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


#: Values that JSON does not have, written in DuckDB's SQL, and what is printed for them.
VALUES = {
    "[1.0, 'nan'::double, 'inf'::double]": [1.0, None, None],
    "['-inf'::float]::float[1]": [None],
    "{'a': {'b': 'nan'::double}}": {"a": {"b": None}},
    "map {1: 'nan'::double}": {"1": None},
    "map {date '2026-01-01': 'x'}": {"2026-01-01": "x"},
    "[timestamp '2026-01-01 10:00:00.5', null]": ["2026-01-01 10:00:00.500000", None],
    "'\\xAA'::blob": "qg==",
    "['\\x00'::blob]": ["AA=="],
    "[1.50::decimal(4, 2)]": ["1.50"],
    "time '10:00'": "10:00:00",
    "union_value(a := ['nan'::double])": [None],
}


class TestJson:
    @pytest.fixture
    def rows(self, tmp_path: Path) -> str:
        """The folder of a landing in Parquet."""
        landing = Landing(tmp_path)
        types = make_format("parquet", column_types={"a": "float64", "b": "float32"})
        landing.land({"a": "NaN", "b": "Infinity"}, {"a": "-inf", "b": "1.5"}, file_format=types)
        return str(landing.folder.root)

    def test_landed_rows_are_json_lines(self, run: Run, rows: str) -> None:
        lines = run("landing", "cat", rows).out.splitlines()
        assert [strictly(line) for line in lines] == [{"a": None, "b": None}, {"a": None, "b": 1.5}]

    def test_every_type_of_a_query_is_json(self, run: Run, rows: str) -> None:
        query = f"select {', '.join(f'{value} as v{index}' for index, value in enumerate(VALUES))} limit 1"
        (row,) = strictly(run("landing", "sql", rows, query, "-o", "json").out)
        assert [*row.values()] == [*VALUES.values()]


class TestRows:
    """How many rows of a table are shown: twenty on a terminal, all of them elsewhere."""

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize(
        "command",
        [
            ["landing", "latest", "./landed", "--key", "id"],
            ["landing", "sql", "./landed", "from landing"],
            ["subtasks", "prices"],
        ],
    )
    def test_a_terminal_gets_twenty_and_a_hint(
        self, run: Run, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        rows = [{"id": str(index)} for index in range(120)]
        sandbox.control.add_task("prices", rows=rows, lots=[120], subtasks=120)
        assert run("land", "prices", "./landed").code == 0
        _, *printed, last = on_terminal(*command)[1].splitlines()
        assert last == "100 more rows; --output json has all"
        assert len([line for line in printed if not line.startswith("Left out")]) == 20
        assert len(run(*command).out.splitlines()) == 1 + 120
        assert len(run(*command, "-o", "json").json) == 120

    def test_what_a_change_has_made_is_shown_whole(self, run: Run, sandbox: Sandbox, tmp_path: Path) -> None:
        ids = [sandbox.control.add_task(lots=[1], subtasks=1)["task_id"] for _ in range(21)]
        folder = tmp_path / "landed"
        assert run("land", ids[0], folder).code == 0
        for index in range(1, 22):
            (folder / f"part-{index:05}-0badcafe.jsonl").write_text("left")
        for command in (
            ["task", "copy", *ids],
            ["task", "delete", "--yes", *ids],
            ["landing", "clean", folder, "--older-than", "0s", "--yes"],
        ):
            _, printed = on_terminal(*command)
            assert len(re.findall(r"^[\w.-]{25,36} *", printed, re.MULTILINE)) == 21, printed


@pytest.mark.parametrize("package", ["cli", "landing", "service", "waiting"])
def test_what_only_airflow_has_is_named_as_such(package: str) -> None:
    means = re.compile(r"clear the task|let the task|XCom|max_active_runs|{{ ", re.I)
    messages = [text for text in templates(f"airflow_provider_webcollect/{package}") if means.search(text)]
    # a message must say that it is about a DAG, or be the code of one
    assert [message for message in messages if not re.search(r"in a DAG, |with DAG\(", message)] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "CLEAR"],
        ["status", "CLEAR"],
        ["CLEAR"],
        ["read", "t", "CLEAR"],
        ["read", "t", "--rows", "CLEAR"],
        ["read", "--CLEAR"],
        ["landing", "verify", "CLEAR"],
        ["landing", "verify", "/CLEAR"],
        ["landing", "sql", "/CLEAR", "x"],
        ["sandbox", "CLEAR"],
    ],
)
def test_words_control_no_terminal(
    run: Run, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        said = "".join(run(*(argument.replace("CLEAR", "\x1b[2J\x9bJ") for argument in arguments))[1:])
    except SystemExit:
        said = capsys.readouterr().err
    assert said
    assert {character for character in said if not character.isprintable()} <= {"\n"}


def test_a_line_of_the_log_controls_no_terminal(sandbox: Sandbox, tmp_path: Path) -> None:
    task = sandbox.control.add_task("clear\x1b[2J", lots=[1])["task_id"]
    printed = [on_terminal("-v", "land", task, tmp_path / "landed")[1] for _ in range(2)]
    assert "clear\ufffd[2J has nothing new for" in printed[1]
    assert "\x1b[2J" not in "".join(printed)
