"""``read``: rows are printed as they come, with the offset from which to go on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Run, Start, json_lines
from tests.interruption import PATIENCE, until

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]


def cursor(said: str) -> str:
    """Return the cursor that a read has printed at its end."""
    [offset] = re.findall(r"--offset (\d+)", said)
    return str(offset)


def test_all_rows_come_as_json_lines_and_none_is_marked(run: Run, sandbox: Sandbox, task: str) -> None:
    ended = run("read", task)
    assert ended.code == 0
    assert ended.lines == sandbox.control.true_rows(task)
    assert "1,800 rows" in ended.err
    assert not any(batch["exported"] for batch in sandbox.control.task(task)["runs"])
    assert {request["method"] for request in sandbox.control.requests()} == {"GET"}


def test_rows_of_one_batch_can_be_chosen(run: Run, sandbox: Sandbox, task: str) -> None:
    ended = run("read", task, "--lotno", "000002")
    assert ended.lines == sandbox.control.true_rows(task, "000002")
    assert len(ended.lines) == 300


@pytest.mark.parametrize("steps", [[1], [7, 1], [999, 1000], [1300], [1800], [5000]])
def test_a_read_goes_on_where_it_ended(run: Run, sandbox: Sandbox, task: str, steps: list[int]) -> None:
    offset = "0"
    rows: list[dict[str, Any]] = []
    for step in steps:
        ended = run("read", task, "-n", step, "--offset", offset)
        assert len(ended.lines) == min(step, 1800 - len(rows))
        rows += ended.lines
        offset = cursor(ended.err)
        assert f"{1800 - len(rows):,} are left" in ended.err
    rest = run("read", task, "--offset", offset)
    assert rows + rest.lines == sandbox.control.true_rows(task)
    assert "0 are left" in rest.err


def test_a_task_without_rows_gives_none(run: Run, sandbox: Sandbox) -> None:
    run("read", sandbox.control.add_task()["task_id"]).refused(0, "0 rows")


def test_no_more_rows_are_requested_than_wanted(run: Run, sandbox: Sandbox, task: str) -> None:
    run("read", task, "-n", 1200)
    assert [int(request["query"]["size"]) for request in sandbox.control.requests("/data/all")] == [1000, 200]


def test_rows_are_written_while_others_are_awaited(
    start: Start, run: Run, sandbox: Sandbox, task: str
) -> None:
    sandbox.control.fail("/data/all", kind="slow", seconds=2 * PATIENCE, times=None, after=1)
    reading = start("read", task)
    until(lambda: reading.out.count("\n") == 1000)
    assert reading.process.poll() is None
    reading.interrupt()
    assert reading.end() == 130
    assert "Traceback" not in reading.err
    sandbox.control.clear_faults()
    rest = run("read", task, "--offset", cursor(reading.err))
    assert json_lines(reading.out) + rest.lines == sandbox.control.true_rows(task)


def test_an_unknown_task_is_refused(run: Run) -> None:
    run("read", "unknown").refused(3, "InvalidTaskId")
