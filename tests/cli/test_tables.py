"""Tables on a terminal: whole numbers, times and ids, however narrow it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.sandbox import demo
from tests.cli.conftest import cells
from tests.sandbox.plain_client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.cli.conftest import Run
    from tests.cli.processes import Started

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.usefixtures("connected"),
]


def screen(start: Callable[..., Started], columns: int, *arguments: object) -> list[str]:
    """Return what a command leaves on a terminal."""
    ended = start(*arguments, columns=columns)
    assert ended.end() == 0, ended.err
    return ended.screen


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
def test_what_has_no_room_is_left_out_and_named_and_the_rest_is_whole(
    start: Callable[..., Started], sandbox: Sandbox, columns: int
) -> None:
    ids = [sandbox.control.add_task(lots=[30], name=f"Prices of shops {n}")["task_id"] for n in range(2)]
    times = {Client(sandbox).status(each)["startExecuteTime"].partition(".")[0] for each in ids}

    lines = screen(start, columns, "status", *ids)

    said = next((line for line in lines if line.startswith("Left out in")), "")
    table = lines[: lines.index(said)] if said else lines
    headings = cells(table[0])
    assert [line.split()[0] for line in table[1:]] == ids
    assert all(len(line.rstrip()) <= columns for line in table)
    left_out = said.partition(": ")[2].partition(";")[0].split(", ") if said else []
    assert headings + left_out == ["task", "status", "collected", "started", "ended", "sub tasks", "runs"]
    assert (
        left_out
        == {
            40: ["status", "collected", "started", "ended", "sub tasks", "runs"],
            80: ["ended", "sub tasks", "runs"],
            100: ["sub tasks", "runs"],
            200: [],
        }[columns]
    )
    if columns > 40:
        assert {cells(line)[3].replace(" ", "T") for line in table[1:]} == times
    assert (f"Left out in {columns} columns: " in said) == (columns < 200)
    assert not said or said.endswith("; --output json has all")


def test_a_name_is_broken_between_words_rather_than_leave_out_what_follows(
    start: Callable[..., Started], sandbox: Sandbox
) -> None:
    name = "Prices of all the shops of the town and of those around it"
    task = sandbox.control.add_task(lots=[1234], name=name)["task_id"]

    lines = screen(start, 100, "status")

    shown = next(line for line in lines if line.startswith(task))
    assert "Finished" in shown
    assert f"{Client(sandbox).status(task)['currentTotalExtractCount']:,}" in shown
    first = lines[0].index("name")
    width = lines[0].index("collected") - first
    following = lines[lines.index(shown) :]
    column = " ".join(line[first : first + width].strip() for line in following[:4])
    assert column.startswith(name)


@pytest.mark.parametrize(
    ("columns", "command", "headings"),
    [
        (50, ["status"], ["task", "status"]),
        (50, ["subtasks", demo.TASK_ID], ["sub task", "status"]),
        (80, ["subtasks", demo.TASK_ID], ["sub task", "status"]),
        (50, ["task", "start", demo.TASK_ID], ["sub task"]),
        (80, ["analytics", "--by", "day"], ["task", "collected per day", "collected"]),
    ],
)
def test_what_a_command_is_asked_for_has_room_before_the_rest(
    start: Callable[..., Started], columns: int, command: list[str], headings: list[str]
) -> None:
    assert cells(screen(start, columns, *command)[0]) == headings


def test_one_record_is_a_line_for_each_value(
    start: Callable[..., Started], run: Run, sandbox: Sandbox, tmp_path: Path
) -> None:
    task = sandbox.control.add_task(lots=[1234])["task_id"]
    run("land", task, tmp_path / "landed")
    [facts] = run("landing", "verify", tmp_path / "landed", "-o", "json").json

    lines = screen(start, 80, "landing", "verify", tmp_path / "landed")

    found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert found["folder"] == str(tmp_path / "landed")
    assert found["rows"] == "1,234"
    assert found["source"] == facts["source"]
    assert found["finished at"] == facts["finished_at"]
    assert len({line.index(value) for line in lines if (value := line.partition(":")[2].strip())}) == 1


def test_a_share_is_a_percentage_in_tables_alone(run: Run) -> None:
    header, first, *_ = run("analytics").out.splitlines()

    [share] = [cell for cell in cells(first) if cell.endswith(" %")]
    assert cells(first).index(share) == cells(header).index("succeeded")
    row = run("analytics", "-o", "json").json[0]
    assert share == f"{row['succeeded'] * 100:.4g} %"
    assert run("analytics", "-o", "csv").csv[0]["succeeded"] == str(row["succeeded"])
