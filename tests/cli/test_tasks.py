"""``status``, ``capacity`` and ``analytics``: what the service says about the account's tasks."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from tests.cli.conftest import Run, Show, as_text, shown
from tests.sandbox.plain_client import Client, data

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]

#: Sequences that set a terminal's title, clear its screen (in two forms) and reverse the text's direction.
CONTROLS = "\x1b]0;title\x07 \x1b[2J \x9b2J \u202e"


def analytics(sandbox: Sandbox, **query: Any) -> list[dict[str, Any]]:
    """Return the service's analytics of the last 30 days, by a separate request."""
    today = datetime.datetime.now(datetime.UTC).date()
    days = {"start": str(today - datetime.timedelta(days=30)), "end": str(today)}
    answer = Client(sandbox).post("/taskanalytics/queries", {**days, "pageSize": 500, **query})
    rows: list[dict[str, Any]] = data(answer)["data"]
    return rows


def test_status_shows_what_the_service_says_of_each_task(show: Show, sandbox: Sandbox) -> None:
    ran = sandbox.control.add_task(lots=[30, 20], subtasks=3)["task_id"]
    running = sandbox.control.add_task(state="Extracting", subtasks=2)["task_id"]
    new = sandbox.control.add_task(subtasks=1)["task_id"]
    client = Client(sandbox)

    rows = show("status", new, ran, running)

    assert [(row["task"], row["status"], row["sub_tasks"], row["runs"]) for row in rows] == [
        (new, "Unexecuted", "1", "0"),
        (ran, "Finished", "3", "2"),
        (running, "Extracting", "2", "1"),
    ]
    for row in rows:
        truth = client.status(row["task"])
        assert "name" not in row
        assert row["collected"] == str(truth["currentTotalExtractCount"])
        times = [truth[name] for name in ("startExecuteTime", "endExecuteTime", "nextExecuteTime")]
        assert [row.get(name, "") for name in ("started", "ended", "next_run")] == [
            (time or "").replace("T", " ").partition(".")[0] for time in times
        ]


def test_status_without_ids_shows_the_tasks_that_ran(run: Run, sandbox: Sandbox) -> None:
    added = sandbox.control.add_task(lots=[30], name="Prices of shops")["task_id"]
    names = {row["task"]: row["name"] for row in run("status", "-o", "json").json}
    assert names == {demo.FINISHED_TASK_ID: "Price list", added: "Prices of shops"}


def test_ids_can_be_piped(run: Run, sandbox: Sandbox, pipe: Callable[[str], None]) -> None:
    ids = [task["task_id"] for task in sandbox.control.tasks()][:2]
    pipe("\n".join(ids))
    assert [row["task"] for row in run("status", "-", "-o", "json").json] == ids


def test_an_unknown_task_is_shown_with_its_id_and_code_1(run: Run, sandbox: Sandbox) -> None:
    task_id = sandbox.control.add_task(lots=[30])["task_id"]
    ended = run("status", "unknown", task_id, "-o", "json")
    assert ended.code == 1
    assert ended.err.startswith("The service does not know unknown.\n")
    unknown, other = ended.json
    assert {name: value for name, value in unknown.items() if value is not None} == {"task": "unknown"}
    assert (other["task"], other["status"]) == (task_id, "Finished")


@pytest.mark.parametrize("command", ["status", "task actions"])
def test_a_table_of_unknown_tasks_says_only_that(run: Run, command: str) -> None:
    run(*command.split(), "one", "two").refused(1, "The service does not know one, two.")
    assert len(run(*command.split(), "one", "two", "-o", "json").json) == (2 if command == "status" else 0)


def test_many_tasks_take_several_queries(run: Run, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [sandbox.control.add_task(lots=[number + 1])["task_id"] for number in range(5)]
    monkeypatch.setenv("WEBCOLLECT_STATUS_BATCH_SIZE", "2")
    rows = run("status", *ids, "-o", "json").json
    assert [(row["task"], row["status"]) for row in rows] == [(task_id, "Finished") for task_id in ids]
    assert len(sandbox.control.requests("/cloudextraction/statuses/v2")) == 3


def test_no_control_character_of_a_name_reaches_a_terminal(run: Run, sandbox: Sandbox) -> None:
    sandbox.control.add_task(lots=[30], name=f"before{CONTROLS}after")
    for command in (["status"], ["analytics"], ["analytics", "--by", "week"]):
        said = run(*command).out
        assert "before" in said
        assert "after" in said
        assert {character for character in said if not character.isprintable()} == {"\n"}
    # JSON, which programs read, has the name unchanged
    assert f"before{CONTROLS}after" in {row["name"] for row in run("status", "-o", "json").json}


def test_a_table_wider_than_a_terminal_is_not_cut(run: Run, sandbox: Sandbox) -> None:
    sandbox.control.add_task(lots=[30], name="long " * 40 + "end")
    line = next(line for line in run("status").out.splitlines() if "long" in line)
    assert "long " * 40 + "end" in line
    assert "Finished" in line


def sums(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the analytics of a task as one row."""
    runs = sum(row["executionMetrics"]["runCount"] for row in rows)
    succeeded = sum(row["executionMetrics"]["successCount"] for row in rows)
    seconds = sum(row["executionMetrics"]["totalExecutionSeconds"] for row in rows)
    return {
        "task": rows[0]["taskId"],
        "name": rows[0]["taskName"],
        "collected": str(sum(row["dataVolumeMetrics"]["totalCollected"] for row in rows)),
        "rows_without_duplicates": str(sum(row["dataVolumeMetrics"]["deduplicatedVolume"] for row in rows)),
        "runs": str(runs),
        "succeeded": str(round(succeeded / runs, 6)),
        "seconds_per_run": str(round(seconds / runs, 1)),
        "cost": str(round(sum(row["resourceUsageMetrics"]["balance"] for row in rows), 2)),
    }


def test_analytics_shows_a_row_for_each_task(show: Show, sandbox: Sandbox, output: str) -> None:
    for name in ("Prices", "Offers", "Reviews"):
        sandbox.control.add_task(lots=[30], name=name)
    printed = show("analytics")
    by_task = defaultdict(list)
    for row in analytics(sandbox):
        by_task[row["taskId"]].append(row)
    truth = [sums(rows) for rows in by_task.values()]
    assert len(truth) == 4
    for row in (*printed, *truth):
        row["cost"] = as_text(float(row["cost"]))
    if output == "table":
        for row in truth:
            row["succeeded"] = f"{float(row['succeeded']) * 100:.4g} %"
    assert printed == truth


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_analytics_by_day_week_or_month_has_a_row_for_each(run: Run, sandbox: Sandbox, unit: str) -> None:
    truth = [
        {unit: row["dayKey"]} | sums([row]) for row in analytics(sandbox, timeGranularity=unit.capitalize())
    ]
    for output in ("table", "json", "csv"):
        rows = shown(run("analytics", "--by", unit, "-o", output), output)
        assert [(row[unit], row["task"], row["collected"], row["runs"]) for row in rows] == [
            (row[unit], row["task"], row["collected"], row["runs"]) for row in truth
        ]


@pytest.mark.webcollect_sandbox(null_metrics=True)
def test_numbers_that_the_service_does_not_give_are_left_open(run: Run) -> None:
    columns = [
        *("task", "name", "collected", "rows_without_duplicates"),
        *("runs", "succeeded", "seconds_per_run", "cost"),
    ]
    [row] = run("analytics", "--task", demo.FINISHED_TASK_ID, "-o", "json").json
    assert row == dict.fromkeys(columns) | {"task": demo.FINISHED_TASK_ID, "name": "Price list"}
    [row] = run("analytics", "--task", demo.FINISHED_TASK_ID, "-o", "csv").csv
    assert row == dict.fromkeys(columns, "") | {"task": demo.FINISHED_TASK_ID, "name": "Price list"}
    assert run("analytics", "--task", demo.FINISHED_TASK_ID).out.splitlines()[0].split() == ["task", "name"]
