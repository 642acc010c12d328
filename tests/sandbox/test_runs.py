"""The life of a task in the cloud: endpoints 12 to 16.

A run waits for 30 seconds and collects for 240. For its first 20 seconds, statuses still show the run before.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import demo
from tests.sandbox.conftest import RealTime
from tests.sandbox.plain_client import Client, data, refusal

TASK = demo.TASK_ID


def test_a_task_that_never_ran_is_unexecuted(client: Client) -> None:
    assert client.status(TASK) == {
        "taskId": TASK,
        "status": "Unexecuted",
        "currentTotalExtractCount": 0,
        "executedTimes": 0,
        "subTaskCount": 4,
        "nextExecuteTime": None,
        "startExecuteTime": None,
        "endExecuteTime": None,
    }


@pytest.mark.webcollect_sandbox(hide_unexecuted=True)
def test_a_task_that_never_ran_can_be_missing(client: Client) -> None:
    def shown(version: str) -> list[str]:
        request = {"taskIds": [TASK, demo.FINISHED_TASK_ID]}
        records = data(client.post(f"/cloudextraction/statuses{version}", request))
        return [record["taskId"] for record in records]

    assert shown("/v2") == [demo.FINISHED_TASK_ID]
    client.control.start_task(TASK)
    assert shown("") == [TASK, demo.FINISHED_TASK_ID]


@pytest.mark.webcollect_sandbox(hide_unexecuted_subtasks=True)
def test_subtasks_can_be_missing_before_the_first_run(client: Client) -> None:
    subtask_id = client.control.task(TASK)["subtasks"][0]["subtask_id"]
    assert client.subtasks(TASK) == []
    assert client.status(TASK)["subTaskCount"] == 0
    assert len(client.subtasks(demo.FINISHED_TASK_ID)) == 4
    client.start(TASK, subtask_id)
    assert client.subtasks(TASK)[0] == {"subTaskId": subtask_id, "status": "Waiting"}
    assert client.status(TASK)["subTaskCount"] == 4


def test_version_1_names_the_task(client: Client) -> None:
    request = {"taskIds": [demo.FINISHED_TASK_ID, "unknown", demo.COLLEAGUES_TASK_ID]}
    assert data(client.post("/cloudextraction/statuses", request)) == [
        {"taskId": demo.FINISHED_TASK_ID, "taskName": "Price list", "status": "Finished"}
    ]


def test_a_run_waits_extracts_and_finishes(client: Client) -> None:
    client.start(TASK)
    records = []
    for seconds in (21, 60, 100, 100):
        client.control.advance(seconds)
        records.append(client.status(TASK))
    assert [r["status"] for r in records] == ["Waiting", "Extracting", "Extracting", "Finished"]
    counts = [record["currentTotalExtractCount"] for record in records]
    assert counts[0] == 0
    assert counts == sorted(set(counts))
    assert records[-1]["executedTimes"] == 1
    assert records[1]["endExecuteTime"] is None
    start, end = (datetime.fromisoformat(records[-1][f"{name}ExecuteTime"]) for name in ("start", "end"))
    assert (end - start).total_seconds() == pytest.approx(270, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "rows", "counted"),
    [
        # duplicates are removed from the rows, not from the count
        ({}, 5 * 40, 205),
        ({"rows": 7, "loop_items": ["a", "b"]}, 7, 7),
        ({"loop_items": []}, 0, 0),
    ],
    ids=["of the loop items", "fixed", "no loop items"],
)
def test_a_run_collects_its_rows(client: Client, arguments: dict[str, Any], rows: int, counted: int) -> None:
    task_id = client.control.add_task(**arguments)["task_id"]
    client.run(task_id)
    status = client.status(task_id)
    assert (status["status"], status["currentTotalExtractCount"]) == ("Finished", counted)
    assert client.page(task_id)["total"] == len(client.rows(task_id)) == rows


def test_rows_appear_while_extracting_and_stay(client: Client) -> None:
    client.start(TASK)
    seen: list[dict[str, Any]] = []
    for _ in range(10):
        client.control.advance(30)
        rows = client.rows(TASK)
        assert rows[: len(seen)] == seen
        seen = rows
    assert len(seen) == 200


@pytest.mark.parametrize(
    "shows", [(), ("executed_times",), ("start_time",), ("executed_times", "start_time")]
)
@pytest.mark.parametrize("task_id", [demo.FINISHED_TASK_ID, TASK], ids=["a further run", "the first run"])
def test_after_a_start_the_status_may_lag(client: Client, task_id: str, shows: tuple[str, ...]) -> None:
    before = client.status(task_id)
    client.control.configure(stale_shows=shows)
    client.start(task_id)
    assert client.control.task(task_id)["state"] == "Waiting"
    stale = client.status(task_id)
    assert shows or stale == before
    assert stale["executedTimes"] == before["executedTimes"] + ("executed_times" in shows)
    assert (stale["startExecuteTime"] != before["startExecuteTime"]) == ("start_time" in shows)
    own = {"executedTimes", "startExecuteTime"}
    assert {k: v for k, v in stale.items() if k not in own} == {
        k: v for k, v in before.items() if k not in own
    }
    client.control.advance(20.1)
    now = client.status(task_id)
    assert (now["status"], now["endExecuteTime"]) == ("Waiting", None)
    assert now["executedTimes"] == before["executedTimes"] + 1


def test_runs_can_be_counted_when_they_end(client: Client) -> None:
    client.control.configure(counted_runs="ended", stale_seconds=0)
    task_id, counts = demo.FINISHED_TASK_ID, []
    for step in (
        lambda: None,
        lambda: client.start(task_id),
        lambda: client.control.advance(300),
        lambda: client.start(task_id),
        lambda: client.control.stop_task(task_id),
    ):
        step()
        counts.append(client.status(task_id)["executedTimes"])
    assert counts == [2, 2, 3, 3, 4]


def test_the_count_of_runs_can_begin_again(client: Client) -> None:
    client.control.configure(executed_times_offset=-2, stale_seconds=0)
    assert client.status(TASK)["executedTimes"] == client.status(demo.FINISHED_TASK_ID)["executedTimes"] == 0
    client.start(demo.FINISHED_TASK_ID)
    assert client.status(demo.FINISHED_TASK_ID)["executedTimes"] == 1
    client.control.configure(executed_times_offset=10)
    assert client.status(demo.FINISHED_TASK_ID)["executedTimes"] == 13


def test_end_times_can_be_left_out(client: Client) -> None:
    client.control.configure(hide_end_times=True)
    record = client.status(demo.FINISHED_TASK_ID)
    assert "endExecuteTime" not in record
    assert record["startExecuteTime"] is not None


def test_ids_can_come_back_in_another_letter_case(client: Client) -> None:
    task_id = client.control.add_task("5A9d0b0e-0000-4000-8000-0000000000fF")["task_id"]
    client.control.configure(echo_ids="upper", stale_seconds=0)
    query = [task_id, task_id.swapcase()]
    for version in ("", "/v2"):
        [record] = data(client.post(f"/cloudextraction/statuses{version}", {"taskIds": query}))
        assert record["taskId"] == task_id.upper()
    ids = [subtask["subTaskId"] for subtask in client.subtasks(task_id.upper())]
    assert ids == [subtask_id.upper() for subtask_id in ids]
    client.start(task_id.lower(), *(subtask_id.swapcase() for subtask_id in ids))
    assert client.control.task(task_id)["runs"][0]["started_subtasks"] == 4
    data(client.post("/task/deleteTasks", {"taskIds": [task_id.swapcase()]}))
    assert task_id not in [task["task_id"] for task in client.control.tasks()]


@pytest.mark.webcollect_sandbox(speed=3000)
def test_a_run_is_as_fast_as_set_on_the_sandbox_clock(client: Client, real_time: RealTime) -> None:
    real_time.sleep(3600)
    began = real_time.now()
    client.start(TASK)
    real_time.sleep(0.089)
    assert client.status(TASK)["status"] == "Extracting"
    real_time.sleep(0.002)
    status = client.status(TASK)
    assert status["status"] == "Finished"
    times = [datetime.fromisoformat(f"{status[f'{name}ExecuteTime']}Z") for name in ("start", "end")]
    # the service gives times in milliseconds
    assert [time.timestamp() - began for time in times] == pytest.approx([0, 0.09], abs=0.002)


def test_each_run_is_a_new_batch(client: Client) -> None:
    for _ in range(2):
        client.run(TASK)
    runs = client.control.task(TASK)["runs"]
    first, second = (client.rows(TASK, lotno=run["lotno"]) for run in runs)
    assert [run["lotno"] for run in runs] == ["000001", "000002"]
    assert first != second
    assert client.rows(TASK) == first + second


def test_subtasks_go_one_after_the_other_through_their_states(client: Client) -> None:
    client.start(TASK)
    seen: list[set[str]] = []
    for _ in range(55):
        states = {subtask["status"] for subtask in client.subtasks(TASK)}
        if not seen or states != seen[-1]:
            seen.append(states)
        client.control.advance(5)
    assert seen[0] == {"Waiting"}
    assert {"Sent"} in seen
    assert {"Extracting", "Finished"} in seen
    assert seen[-1] == {"Finished"}


def test_a_page_of_subtasks_has_at_most_20(client: Client) -> None:
    task_id = client.control.add_task(subtasks=45)["task_id"]
    pages = [client.subtasks(task_id, page, size=50) for page in (1, 2, 3, 4)]
    assert [len(page) for page in pages] == [20, 20, 5, 0]
    assert len({subtask["subTaskId"] for page in pages for subtask in page}) == 45
    assert [s["subTaskId"] for s in client.subtasks(task_id, 2, size=7)] == [
        s["subTaskId"] for s in pages[0][7:14]
    ]


def test_a_run_of_some_subtasks_finishes_with_them(client: Client) -> None:
    first, second, *_ = (subtask["subTaskId"] for subtask in client.subtasks(TASK))
    client.start(TASK, first, second)
    client.control.advance(300)
    assert client.status(TASK)["status"] == "Finished"
    assert client.page(TASK)["total"] == 100
    assert [s["status"] for s in client.subtasks(TASK)] == ["Finished", "Finished", "Stopped", "Stopped"]


def test_more_subtasks_join_the_run(client: Client) -> None:
    first, *others = (subtask["subTaskId"] for subtask in client.subtasks(TASK))
    client.start(TASK, first)
    client.control.advance(60)
    client.start(TASK, *others)
    client.control.advance(300)
    assert client.status(TASK)["executedTimes"] == 1
    assert client.page(TASK)["total"] == 200


def test_starting_what_already_runs_changes_nothing(client: Client) -> None:
    client.start(TASK)
    client.control.advance(200)
    before = client.status(TASK)["startExecuteTime"]
    client.start(TASK)
    client.control.advance(100)
    status = client.status(TASK)
    assert (status["status"], status["executedTimes"], status["startExecuteTime"]) == ("Finished", 1, before)
    assert client.page(TASK)["total"] == 200


def test_unknown_subtasks_are_refused_and_none_is_started(client: Client) -> None:
    [first, *_] = client.subtasks(TASK)
    request = {"taskId": TASK, "subTaskIds": [first["subTaskId"], "unknown"]}
    assert refusal(client.post("/cloudextraction/subtasks:start", request)) == (400, "InvalidParameter")
    assert client.control.task(TASK)["state"] == "Unexecuted"


def test_a_stopped_run_keeps_what_it_has(client: Client) -> None:
    client.start(TASK)
    client.control.advance(150)
    client.control.stop_task(TASK)
    collected = client.page(TASK)["total"]
    client.control.advance(300)
    status = client.status(TASK)
    assert status["status"] == "Stopped"
    assert status["endExecuteTime"] is not None
    assert 0 < collected == client.page(TASK)["total"] < 200
    assert {subtask["status"] for subtask in client.subtasks(TASK)} == {"Stopped"}


def test_a_stopped_task_can_be_started_again(client: Client) -> None:
    client.start(TASK)
    client.control.stop_task(TASK)
    client.run(TASK)
    assert client.status(TASK)["executedTimes"] == 2
    assert client.status(TASK)["status"] == "Finished"
    # stopping a task that does not run changes nothing
    client.control.stop_task(TASK)
    assert client.status(TASK)["status"] == "Finished"


def test_the_counts_follow_the_tasks(client: Client) -> None:
    def counts() -> Any:
        return data(client.get("/cloudextraction/task/stats"))

    client.start(TASK)
    waiting = counts()
    client.control.advance(60)
    extracting = counts()

    assert (waiting["waitingCount"], waiting["waitingSubTaskCount"]) == (1, 4)
    assert (extracting["extractingCount"], extracting["executingSubTaskCount"]) == (1, 4)


@pytest.mark.parametrize("state", ["Waiting", "Extracting", "Stopped", "Finished", "Unexecuted", "Paused?"])
def test_a_task_can_be_made_in_any_state(client: Client, state: str) -> None:
    task_id = client.control.add_task(state=state, rows=100)["task_id"]
    assert client.status(task_id)["status"] == state


def test_an_unknown_word_is_shown_until_the_next_start(client: Client) -> None:
    client.control.mark_state(TASK, "Hibernating")
    assert client.status(TASK)["status"] == "Hibernating"
    client.start(TASK)
    client.control.advance(21)
    assert client.status(TASK)["status"] == "Waiting"
