"""Whatever is wrong with a request, the answer is an error envelope that says what."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_webcollect.sandbox import demo
from tests.sandbox.plain_client import Client, refusal

DELETE = "/task/deleteTasks"
LOOP = {"taskId": demo.TASK_ID, "actionId": "a", "loopType": "TextList", "loopItems": [], "isAppend": False}


@pytest.mark.parametrize("path", ["/", "/nowhere", "/TaskGroup/deleteGroups", "/task/copy/", "/task%2Fcopy"])
def test_an_unknown_path_is_not_found(client: Client, path: str) -> None:
    assert refusal(client.post(path, {})) == (404, "NotFound")


def test_another_method_is_refused_and_the_right_one_named(client: Client) -> None:
    response = client.get("/task/copy", taskId=demo.TASK_ID)

    assert refusal(response) == (405, "MethodNotAllowed")
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"taskIds": NaN}',
        b'{"taskIds": ["\\ud800"]}',
        pytest.param(b'{"taskIds": ' + b"[" * 3000 + b"]" * 3000 + b"}", id="nested 3,000 deep"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client: Client, body: bytes) -> None:
    headers = {**client.bearer, "Content-Type": "application/json"}

    assert refusal(client.post(DELETE, headers=headers, data=body)) == (400, "InvalidParameter")


def test_another_content_type_is_refused(client: Client) -> None:
    headers = {**client.bearer, "Content-Type": "text/plain"}

    assert refusal(client.post(DELETE, headers=headers, data=b'{"taskIds":["a"]}')) == (
        400,
        "InvalidParameter",
    )


def test_a_content_type_may_name_its_charset(client: Client) -> None:
    headers = {**client.bearer, "Content-Type": "Application/JSON; charset=utf-8"}

    assert client.post(DELETE, headers=headers, data=b'{"taskIds":["a"]}').status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (DELETE, {}, "InvalidParameter.Required"),
        (DELETE, {"taskIds": None}, "InvalidParameter.Required"),
        (DELETE, {"taskIds": []}, "InvalidParameter"),
        (DELETE, {"taskIds": "a"}, "InvalidParameter"),
        (DELETE, {"taskIds": [1]}, "InvalidParameter"),
        (DELETE, {"taskIds": ["a"], "more": 1}, "InvalidParameter"),
        (DELETE, {"taskids": ["a"]}, "InvalidParameter"),
        ("/data/markexported", {"taskId": ""}, "InvalidParameter.Required"),
        ("/data/markexported", {"taskId": 5}, "InvalidParameter"),
        ("/taskGroup/deleteGroups", {"groupIds": ["2"]}, "InvalidParameter"),
        ("/taskGroup/deleteGroups", {"groupIds": [True]}, "InvalidParameter"),
        ("/task/getActions", {"taskIds": ["a"], "actionTypes": ["Click"]}, "InvalidParameter"),
        ("/task/getActions", {"taskIds": ["a"], "actionTypes": []}, "InvalidParameter"),
        ("/task/updateLoopItems", {**LOOP, "loopType": "UrlLists"}, "InvalidParameter"),
        ("/task/updateLoopItems", {**LOOP, "loopType": "UrlList\n"}, "InvalidParameter"),
        ("/task/updateLoopItems", {**LOOP, "loopType": "UrlLi\u017ft"}, "InvalidParameter"),
        ("/task/updateLoopItems", {**LOOP, "isAppend": None}, "InvalidParameter.Required"),
        ("/task/updateLoopItems", {**LOOP, "isAppend": "yes"}, "InvalidParameter"),
        ("/task/updateLoopItems", {**LOOP, "loopItems": [1]}, "InvalidParameter"),
        ("/cloudextraction/subtasks:start", {"taskId": "a", "subTaskIds": []}, "InvalidParameter"),
    ],
)
def test_a_wrong_body_is_refused(client: Client, path: str, body: Any, code: str) -> None:
    assert refusal(client.post(path, body)) == (400, code)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"offset": 0, "size": 1}, "InvalidParameter.Required"),
        ({"taskId": "", "offset": 0, "size": 1}, "InvalidParameter.Required"),
        ({"taskId": demo.TASK_ID, "size": 1}, "InvalidParameter.Required"),
        ({"taskId": demo.TASK_ID, "offset": 0}, "InvalidParameter.Required"),
        ({"taskId": demo.TASK_ID, "offset": 0, "size": 0}, "InvalidParameter"),
        ({"taskId": demo.TASK_ID, "offset": 0, "size": 1001}, "InvalidParameter"),
        ({"taskId": demo.TASK_ID, "offset": "1.5", "size": 1}, "InvalidParameter"),
        ({"taskId": demo.TASK_ID, "offset": "1.0", "size": 1}, "InvalidParameter"),
        ({"taskId": demo.TASK_ID, "offset": 0, "size": "1e2"}, "InvalidParameter"),
        ({"taskId": demo.TASK_ID, "offset": "9" * 5000, "size": 1}, "InvalidParameter"),
        ({"taskId": demo.TASK_ID, "offset": 0, "size": "ten"}, "InvalidParameter"),
        ({"taskId": demo.TASK_ID, "offset": 0, "size": 1, "page": 1}, "InvalidParameter"),
        ({"taskId": [demo.TASK_ID, demo.TASK_ID], "offset": 0, "size": 1}, "InvalidParameter"),
        ({"taskId": "unknown", "offset": 0, "size": 1}, "InvalidTaskId"),
    ],
)
def test_a_wrong_query_is_refused(client: Client, params: dict[str, Any], code: str) -> None:
    assert refusal(client.get("/data/all", **params)) == (400, code)


@pytest.mark.parametrize("task_id", ["unknown", demo.COLLEAGUES_TASK_ID, demo.STRANGERS_TASK_ID])
@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("POST", "/task/copy", {}),
        ("POST", "/task/moveToGroup", {"taskGroupId": 2}),
        ("GET", "/cloudextraction/task/subtasks", {"page": 1, "size": 20}),
        ("GET", "/data/all", {"offset": 0, "size": 10}),
        ("GET", "/data/lotno/all", {"offset": 0, "size": 10, "lotno": "000001"}),
    ],
)
def test_a_task_that_is_not_ones_own_does_not_exist(
    client: Client, task_id: str, method: str, path: str, more: dict[str, Any]
) -> None:
    params = {"taskId": task_id, **more}
    response = client.get(path, **params) if method == "GET" else client.post(path, params=params)

    assert refusal(response) == (400, "InvalidTaskId")


def test_a_client_that_goes_away_while_sending_has_no_effect(client: Client) -> None:
    address = urlsplit(client.sandbox.url)
    body = b'{"taskIds":["%s"]}' % demo.TASK_ID.encode()
    head = (
        f"POST {DELETE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {demo.ACCESS_TOKEN}\r\nContent-Length: {len(body) + 1}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + body)

    assert client.control.task(demo.TASK_ID)
    assert client.control.requests(DELETE) == []
