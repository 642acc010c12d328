"""Tasks, their steps and their groups: endpoints 3 to 11."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import demo
from tests.sandbox.plain_client import Client, data, refusal

ALL_TYPES = ["LoopAction", "NavigateAction", "EnterTextAction"]


def steps(client: Client, task_id: str = demo.TASK_ID) -> dict[str, dict[str, Any]]:
    """Return a task's steps by their type, as the service shows them."""
    [record] = data(client.post("/task/getActions", {"taskIds": [task_id], "actionTypes": ALL_TYPES}))
    return {step["actionType"]: step for step in record["actions"]}


def loop_request(client: Client, items: list[str], **changes: Any) -> dict[str, Any]:
    action_id = steps(client)["LoopAction"]["actionId"]
    request = {"taskId": demo.TASK_ID, "actionId": action_id, "loopType": "TextList", "loopItems": items}
    return {**request, "isAppend": False, **changes}


def upload(client: Client, content: bytes) -> Any:
    files = {"file": ("urls.txt", content)}
    return client.post("/task/urls:file", data={"taskId": demo.TASK_ID}, files=files)


def test_steps_of_unknown_tasks_are_left_out(client: Client) -> None:
    request = {"taskIds": ["unknown", demo.COLLEAGUES_TASK_ID], "actionTypes": ALL_TYPES}
    assert data(client.post("/task/getActions", request)) == []


@pytest.mark.parametrize("spelling", ["UrlList", "URLList", "urllist", "URLLIST"])
def test_a_loop_type_has_any_letter_case_and_is_echoed_as_sent(client: Client, spelling: str) -> None:
    data(client.post("/task/updateLoopItems", loop_request(client, ["HTTPS://A.example"], loopType=spelling)))
    assert client.control.task(demo.TASK_ID)["urls"] == ["HTTPS://A.example"]
    loop = loop_request(client, ["b"], loopType=spelling)
    del loop["taskId"]
    request = {"taskId": demo.TASK_ID, "loopItems": [loop]}
    [echo] = data(client.post("/task/updateTaskParameters", request))["updatedParameters"]["loopItems"]
    assert echo["loopType"] == spelling
    assert client.control.task(demo.TASK_ID)["urls"] == ["b"]
    assert steps(client)["LoopAction"]["loopType"] == "URLList"


def test_an_update_that_fails_in_part_changes_nothing(client: Client) -> None:
    loop = {"actionId": steps(client)["LoopAction"]["actionId"], "loopType": "TextList", "loopItems": ["x"]}
    request = {"taskId": demo.TASK_ID, "loopItems": [loop, {**loop, "actionId": "unknown"}]}
    assert refusal(client.post("/task/updateTaskParameters", request)) == (400, "TaskSettingsNotFound")
    assert steps(client)["LoopAction"]["loopItems"] == list(demo.LOOP_ITEMS)


def test_a_file_replaces_the_urls(client: Client) -> None:
    urls = ["HTTPS://a.example/1", "Http://b.example/ü"]
    assert data(upload(client, f"\ufeff{urls[0]}\r\n{urls[1]} \n\r\n \n".encode())) is None
    assert steps(client)["LoopAction"]["loopType"] == "URLList"
    assert client.control.task(demo.TASK_ID)["urls"] == urls


def test_a_file_is_refused_while_the_task_runs(client: Client) -> None:
    client.control.start_task(demo.TASK_ID)
    assert refusal(upload(client, b"https://a.example")) == (400, "TaskExecuting")


def test_a_copy_has_the_steps_for_itself_but_not_the_rows(client: Client) -> None:
    source = client.control.add_task(lots=[10], subtasks=7, loop_items=["only"], fields=["id", "word"])
    copy = client.control.task(client.copy(source["task_id"]))
    assert (copy["state"], copy["rows"], len(copy["subtasks"])) == ("Unexecuted", 0, 7)
    assert copy["actions"][0]["loop_items"] == ["only"]
    assert copy["fields"] == ["id", "word"]
    loop, *others = (action["action_id"] for action in copy["actions"])
    assert not {loop, *others} & {action["action_id"] for action in source["actions"]}
    changed = loop_request(client, ["x"], taskId=copy["task_id"], actionId=loop)
    data(client.post("/task/updateLoopItems", changed))
    assert client.control.task(copy["task_id"])["actions"][0]["loop_items"] == ["x"]
    assert client.control.task(source["task_id"])["actions"] == source["actions"]


def test_deleting_tasks_leaves_other_peoples_alone(client: Client) -> None:
    request = {"taskIds": [demo.TASK_ID, demo.COLLEAGUES_TASK_ID, "unknown", demo.TASK_ID]}
    assert data(client.post("/task/deleteTasks", request)) == []
    assert data(client.post("/task/deleteTasks", request)) == []
    left = {task["task_id"] for task in client.control.tasks()}
    assert demo.TASK_ID not in left
    assert demo.COLLEAGUES_TASK_ID in left


def test_tasks_of_a_deleted_group_go_to_the_default_group(client: Client) -> None:
    assert data(client.post("/taskGroup/deleteGroups", {"groupIds": [2, 99]})) == []
    assert client.control.groups().keys() == {1, 3}
    assert client.control.task(demo.GROUPED_TASK_ID)["group_id"] == 1
