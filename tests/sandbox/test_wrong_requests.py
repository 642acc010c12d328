"""Whatever is wrong with a request, the response is an error envelope, and the request has no effect."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_webcollect.sandbox import demo
from tests.sandbox.plain_client import Client, refusal

DELETE = "/task/deleteTasks"
UPDATE = "/task/updateTaskParameters"
LOOP_ITEMS = "/task/updateLoopItems"
URLS = "/task/urls:file"
COLLEAGUES = demo.COLLEAGUES_TASK_ID
LOOP = {"taskId": demo.TASK_ID, "actionId": "a", "loopType": "TextList", "loopItems": [], "isAppend": False}
REFRESH = {"grant_type": "refresh_token", "refresh_token": demo.REFRESH_TOKEN}
PASSWORD = {"grant_type": "password", "username": demo.USERNAME, "password": demo.PASSWORD}


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
        *(b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"taskIds": NaN}'),
        b'{"taskIds": ["\\ud800"]}',
        pytest.param(b'{"taskIds": ' + b"[" * 3000 + b"]" * 3000 + b"}", id="nested 3,000 deep"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client: Client, body: bytes) -> None:
    headers = {**client.bearer, "Content-Type": "application/json"}
    assert refusal(client.post(DELETE, headers=headers, data=body)) == (400, "InvalidParameter")


@pytest.mark.parametrize(
    ("content_type", "status"), [("text/plain", 400), ("Application/JSON; charset=utf-8", 200)]
)
def test_a_body_is_json_of_any_charset(client: Client, content_type: str, status: int) -> None:
    headers = {**client.bearer, "Content-Type": content_type}
    answer = client.post(DELETE, headers=headers, data=b'{"taskIds":["a"]}')
    assert answer.status_code == status
    assert status == 200 or refusal(answer) == (400, "InvalidParameter")


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (DELETE, {}, "InvalidParameter.Required"),
        (DELETE, {"taskIds": None}, "InvalidParameter.Required"),
        ("/data/markexported", {"taskId": ""}, "InvalidParameter.Required"),
        ("/taskGroup/deleteGroups", {"groupIds": [demo.DEFAULT_GROUP_ID]}, "InvalidParameter"),
        ("/task/copies", {"taskIds": ["unknown", COLLEAGUES], "groupIds": [2]}, "InvalidTaskId"),
        (LOOP_ITEMS, {**LOOP, "loopType": "UrlList\n"}, "InvalidParameter"),
        (LOOP_ITEMS, {**LOOP, "loopType": "UrlLi\u017ft"}, "InvalidParameter"),
        (LOOP_ITEMS, {**LOOP, "isAppend": None}, "InvalidParameter.Required"),
        (LOOP_ITEMS, {**LOOP, "actionId": "unknown"}, "TaskSettingsNotFound"),
        (UPDATE, {}, "RequestModelNull"),
        (UPDATE, {"taskId": demo.TASK_ID, "actions": [], "loopItems": None}, "RequestModelNull"),
        (UPDATE, {"taskId": demo.TASK_ID, "loopitems": [{}]}, "InvalidParameter"),
        ("/cloudextraction/statuses", {"taskIds": ["unknown"] * 101}, "InvalidTasks"),
        ("/cloudextraction/statuses/v2", {"taskIds": ["unknown"] * 101}, "InvalidTasks"),
    ],
)
def test_a_wrong_body_is_refused(client: Client, path: str, body: Any, code: str) -> None:
    assert refusal(client.post(path, body)) == (400, code)


@pytest.mark.parametrize("body", [b"", b" \r\n", b"null"])
def test_an_empty_body_is_an_update_of_nothing(client: Client, body: bytes) -> None:
    assert refusal(client.post(UPDATE, data=body)) == (400, "RequestModelNull")


#: The method and a valid query, without the task, of the operations that take a query.
QUERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "/task/copy": ("POST", {}),
    "/task/moveToGroup": ("POST", {"taskGroupId": 2}),
    "/cloudextraction/task/subtasks": ("GET", {"page": 1, "size": 20}),
    "/data/all": ("GET", {"offset": 0, "size": 10}),
    "/data/lotno/all": ("GET", {"offset": 0, "size": 10, "lotno": "000001"}),
}


def ask(client: Client, path: str, **changes: Any) -> tuple[int, str]:
    """Return status and code of the refusal of a valid query with changes; None removes a parameter."""
    method, right = QUERIES[path]
    query = {"taskId": demo.FINISHED_TASK_ID, **right, **changes}
    return refusal(client.call(method, path, params=query))


@pytest.mark.parametrize(
    ("path", "changes", "code"),
    [
        *(
            ("/data/all", wrong, "InvalidParameter.Required")
            for wrong in ({"taskId": None}, {"taskId": ""}, {"offset": None}, {"size": None})
        ),
        ("/data/all", {"size": "1e2"}, "InvalidParameter"),
        *(("/data/all", {"offset": wrong}, "InvalidParameter") for wrong in ("1.5", "1.0", "9" * 5000)),
        ("/data/all", {"taskId": [demo.TASK_ID, demo.TASK_ID]}, "InvalidParameter"),
        ("/cloudextraction/task/subtasks", {"size": None}, "InvalidParameter.Required"),
        ("/data/lotno/all", {"lotno": "1"}, "InvalidParameter"),
        ("/task/copy", {"taskGroupId": 99}, "GroupNotFound"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_query_is_refused(client: Client, path: str, changes: dict[str, Any], code: str) -> None:
    assert ask(client, path, **changes) == (400, code)


@pytest.mark.parametrize("task_id", ["unknown", demo.COLLEAGUES_TASK_ID, demo.STRANGERS_TASK_ID])
@pytest.mark.parametrize("path", QUERIES)
def test_a_task_that_is_not_ones_own_does_not_exist(client: Client, path: str, task_id: str) -> None:
    assert ask(client, path, taskId=task_id) == (400, "InvalidTaskId")


@pytest.mark.parametrize(
    ("form", "file", "code"),
    [
        ({"taskId": demo.TASK_ID}, b"", "InvalidParameter"),
        ({"taskId": demo.TASK_ID}, b"\n \n", "InvalidParameter"),
        ({"taskId": demo.TASK_ID}, b"\xef\xbb\xbf\n", "InvalidParameter"),
        ({"taskId": demo.TASK_ID}, b"https://a.example\n\nhttps://b.example", "InvalidParameter"),
        ({"taskId": demo.TASK_ID}, b"ftp://a", "InvalidParameter"),
        ({"taskId": demo.TASK_ID}, b"\xff\xfe\x00", "InvalidParameter"),
        ({"taskId": "unknown"}, b"https://a.example", "InvalidTaskId"),
        ({"task_id": "x"}, b"https://a", "InvalidParameter"),
        ({}, b"https://a", "InvalidParameter.Required"),
        ({"taskId": "x", "file": "https://a"}, {"taskId": b"x"}, "InvalidParameter"),
        ({}, {"taskId": (None, "x"), "file": (None, "https://a.example")}, "InvalidParameter.Required"),
    ],
)
def test_a_wrong_form_is_refused(client: Client, form: Any, file: Any, code: str) -> None:
    files = {"file": file} if isinstance(file, bytes) else file
    assert refusal(client.post(URLS, data=form, files=files)) == (400, code)


@pytest.mark.parametrize(
    "content_type", ["application/json", "multipart/form-data", "multipart/form-data; boundary=b"]
)
def test_a_body_that_is_no_form_is_refused(client: Client, content_type: str) -> None:
    headers = {**client.bearer, "Content-Type": content_type}
    answer = client.post(URLS, headers=headers, data=b"--c\r\nnonsense")
    assert refusal(answer) == (400, "InvalidParameter")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({**PASSWORD, "password": "wrong"}, "Invalid.Grant"),
        ({**REFRESH, "refresh_token": "wrong"}, "Invalid.Grant"),
        ({**PASSWORD, "refresh_token": "x"}, "InvalidParameter"),
        ({**REFRESH, "password": demo.PASSWORD}, "InvalidParameter"),
        ({**REFRESH, "grant_type": None}, "InvalidParameter.Required"),
        ({**REFRESH, "refresh_token": None}, "InvalidParameter.Required"),
        ({**PASSWORD, "password": None}, "InvalidParameter.Required"),
    ],
)
def test_a_wrong_grant_is_refused(client: Client, body: dict[str, str | None], code: str) -> None:
    given = {name: value for name, value in body.items() if value is not None}
    assert refusal(client.token(**given)) == (400, code)


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
