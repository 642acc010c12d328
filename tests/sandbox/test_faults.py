"""Responses that fail on demand."""

from __future__ import annotations

import time
from typing import Any

import pytest
import requests

from airflow_provider_webcollect.sandbox import SandboxError, demo
from tests.sandbox.plain_client import Client, data, refusal

STATS = "/cloudextraction/task/stats"
COPY = "/task/copy"


def copy(client: Client) -> requests.Response:
    return client.post(COPY, params={"taskId": demo.TASK_ID})


def tasks(client: Client) -> int:
    return len(client.control.tasks())


@pytest.mark.parametrize(
    ("planned", "statuses"),
    [
        ([(STATS, {"times": 2, "status": 503})], [503, 503, 200]),
        ([(STATS, {"after": 2, "status": 500})], [200, 200, 500, 200]),
        ([(STATS, {"status": 500}), ("*", {"status": 502}), (STATS, {"status": 503})], [500, 502, 503, 200]),
        ([("/task/copies", {"status": 500})], [200]),
    ],
    ids=["as often as asked for", "after some answers", "in the order planned", "its path only"],
)
def test_failures_strike_when_they_were_planned_for(
    client: Client, planned: list[tuple[str, dict[str, Any]]], statuses: list[int]
) -> None:
    for path, fault in planned:
        client.control.fail(path, **fault)
    assert [client.get(STATS).status_code for _ in statuses] == statuses


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ({"status": 401}, 401, "Invalid.Token"),
        ({"status": 403}, 403, "PermissionDenied"),
        ({"status": 429}, 429, "TooManyRequests"),
        ({}, 500, "ServerError"),
        ({"status": 400, "code": "Odd.Code"}, 400, "Odd.Code"),
        ({"status": 200}, 200, "ServerError"),
    ],
)
def test_an_error_has_the_given_parts(client: Client, fault: dict[str, Any], status: int, code: str) -> None:
    client.control.fail(STATS, **fault, headers={"Retry-After": "7"}, message="Slow down.")
    answer = client.get(STATS)
    assert refusal(answer) == (status, code)
    assert answer.headers["Retry-After"] == "7"
    assert answer.json()["error"]["message"] == "Slow down."


@pytest.mark.parametrize(("status", "words"), [(None, "Bad Gateway"), (413, "Too Large"), (599, "599")])
def test_a_gateway_answers_with_a_page(client: Client, status: int | None, words: str) -> None:
    client.control.fail(STATS, kind="html", status=status)
    answer = client.get(STATS)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status or 502, "text/html")
    assert "<html>" in answer.text
    assert words in answer.text


@pytest.mark.parametrize(
    "body",
    [b'{"data":{"taskId":"\xff"}}', b'{"data":' + b"[" * 3000 + b"]" * 3000 + b"}", bytes(range(256)), b""],
    ids=["no UTF-8", "nested 3,000 deep", "every byte", "nothing"],
)
def test_an_answer_can_be_any_bytes(client: Client, body: bytes) -> None:
    client.control.fail(STATS, kind="raw", body=body, headers={"content-type": "application/problem+json"})
    answer = client.get(STATS)
    assert (answer.status_code, answer.content) == (200, body)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert client.control.requests(STATS)[0]["status"] == 200
    client.control.fail(STATS, kind="raw", status=401)
    bare = client.get(STATS)
    assert (bare.status_code, bare.content, bare.headers.get("Content-Type")) == (401, b"", None)


@pytest.mark.parametrize("kind", ["status", "html", "raw"])
@pytest.mark.parametrize("done", [False, True])
def test_a_wrong_answer_can_come_after_the_deed(client: Client, kind: str, done: bool) -> None:
    before = tasks(client)
    client.control.fail(COPY, kind=kind, done=done)
    answer = copy(client)
    assert '"data"' not in answer.text
    assert tasks(client) == before + done


@pytest.mark.parametrize(
    ("fault", "error", "done", "status"),
    [
        ({"kind": "broken_json"}, requests.JSONDecodeError, 1, 200),
        ({"kind": "cut_body"}, requests.exceptions.ChunkedEncodingError, 1, 200),
        ({"kind": "drop"}, requests.ConnectionError, 0, 0),
        ({"kind": "drop", "done": True}, requests.ConnectionError, 1, 0),
    ],
)
def test_an_answer_is_torn_or_missing_before_or_after_the_deed(
    client: Client, fault: dict[str, Any], error: type[Exception], done: int, status: int
) -> None:
    before = tasks(client)
    client.control.fail(COPY, **fault)
    with pytest.raises(error):
        copy(client).json()
    assert tasks(client) == before + done
    assert client.control.requests(COPY)[0]["status"] == status
    assert data(copy(client))


@pytest.mark.parametrize("whose", ["one", "every"])
def test_a_slow_answer_comes_in_the_end(client: Client, whose: str) -> None:
    if whose == "one":
        client.control.fail(STATS, kind="slow", seconds=0.2)
    else:
        client.control.configure(latency=0.2)
    began = time.monotonic()
    assert client.get(STATS).status_code == 200
    assert time.monotonic() - began > 0.2


def test_an_answer_can_come_drop_by_drop(client: Client) -> None:
    client.control.fail(STATS, kind="drip", seconds=0.005)
    began = time.monotonic()
    answer = client.get(STATS)
    took = time.monotonic() - began
    assert data(answer) == data(client.get(STATS))
    assert took > 0.004 * len(answer.content)


def test_a_failure_for_all_strikes_unknown_paths_too(client: Client) -> None:
    client.control.fail("*", status=500)
    assert client.get("/nowhere").status_code == 500


def test_a_failure_without_end_lasts_until_it_is_cleared(client: Client) -> None:
    client.control.fail(STATS, times=None)
    assert {client.get(STATS).status_code for _ in range(5)} == {500}
    client.control.clear_faults()
    assert client.get(STATS).status_code == 200


def test_a_failure_can_be_a_matter_of_chance(client: Client) -> None:
    client.control.fail(STATS, times=None, probability=0.3)
    failed = [client.get(STATS).status_code for _ in range(100)].count(500)
    assert 15 < failed < 45


@pytest.mark.parametrize(
    "fault",
    [
        {"path": "/task/kopie"},
        {"path": STATS, "kind": "explode"},
        {"path": STATS, "times": 0},
        {"path": STATS, "probability": 2},
        {"path": STATS, "colour": "red"},
        {"path": STATS, "kind": "raw", "body": "not base64!"},
    ],
)
def test_a_failure_that_cannot_be_planned_is_refused(client: Client, fault: dict[str, Any]) -> None:
    with pytest.raises(SandboxError):
        client.control.fail(**fault)
