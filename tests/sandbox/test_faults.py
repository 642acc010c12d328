"""Answers that go wrong on demand."""

from __future__ import annotations

import gzip
import time
from typing import Any

import pytest
import requests

from airflow_provider_webcollect.sandbox import SandboxError, demo
from tests.interruption import PATIENCE
from tests.sandbox.plain_client import Client, data, refusal

STATS = "/cloudextraction/task/stats"
COPY = "/task/copy"


def copy(client: Client) -> requests.Response:
    return client.post(COPY, params={"taskId": demo.TASK_ID})


def tasks(client: Client) -> int:
    return len(client.control.tasks())


def test_a_status_is_answered_as_often_as_asked_for(client: Client) -> None:
    client.control.fail(STATS, times=2, status=503)

    assert [client.get(STATS).status_code for _ in range(3)] == [503, 503, 200]


def test_an_error_has_the_code_message_and_headers_asked_for(client: Client) -> None:
    client.control.fail(STATS, status=429, headers={"Retry-After": "7"}, message="Slow down.")
    client.control.fail(STATS, status=400, code="Odd.Code")

    first = client.get(STATS)
    assert refusal(first) == (429, "TooManyRequests")
    assert first.headers["Retry-After"] == "7"
    assert first.json()["error"]["message"] == "Slow down."
    assert refusal(client.get(STATS)) == (400, "Odd.Code")


@pytest.mark.parametrize(
    ("status", "code"), [(401, "Invalid.Token"), (403, "PermissionDenied"), (500, "ServerError")]
)
def test_a_status_has_its_usual_code(client: Client, status: int, code: str) -> None:
    client.control.fail(STATS, status=status)

    assert refusal(client.get(STATS)) == (status, code)


def test_an_error_can_hide_under_a_success(client: Client) -> None:
    client.control.fail(COPY, kind="error_200", code="ServerError")
    before = tasks(client)

    assert refusal(copy(client)) == (200, "ServerError")
    assert tasks(client) == before


def test_a_gateway_answers_with_a_page(client: Client) -> None:
    client.control.fail(STATS, kind="html")
    client.control.fail(STATS, kind="html", status=504)

    answer = client.get(STATS)
    assert (answer.status_code, answer.headers["Content-Type"]) == (502, "text/html")
    assert "<html>" in answer.text
    assert client.get(STATS).status_code == 504


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "Unauthorized"), (413, "Too Large"), (418, "Teapot"), (451, "Legal"), (599, "599")],
)
def test_a_page_names_its_status(client: Client, status: int, words: str) -> None:
    client.control.fail(STATS, kind="html", status=status)

    answer = client.get(STATS)

    assert answer.status_code == status
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


def test_an_answer_can_be_bare(client: Client) -> None:
    client.control.fail(STATS, kind="raw", status=401, headers={"WWW-Authenticate": 'Bearer error="expired"'})

    answer = client.get(STATS)

    assert (answer.status_code, answer.content) == (401, b"")
    assert answer.headers["WWW-Authenticate"] == 'Bearer error="expired"'
    assert "Content-Type" not in answer.headers


def test_an_answer_can_grow_when_it_is_unpacked(client: Client) -> None:
    packed = gzip.compress(bytes(10_000_000))
    client.control.fail(STATS, kind="raw", body=packed, headers={"Content-Encoding": "gzip"})

    answer = client.get(STATS)

    assert int(answer.headers["Content-Length"]) == len(packed) < 20_000
    assert answer.content == bytes(10_000_000)


@pytest.mark.parametrize("kind", ["status", "error_200", "html", "raw", "redirect"])
@pytest.mark.parametrize("done", [False, True])
def test_a_wrong_answer_can_come_after_the_deed(client: Client, kind: str, done: bool) -> None:
    before = tasks(client)
    client.control.fail(COPY, kind=kind, done=done)

    answer = client.session.post(
        client.sandbox.url + COPY,
        params={"taskId": demo.TASK_ID},
        headers=client.bearer,
        allow_redirects=False,
        timeout=PATIENCE,
    )

    assert '"data"' not in answer.text
    assert tasks(client) == before + done


def test_broken_json_comes_after_the_deed(client: Client) -> None:
    before = tasks(client)
    client.control.fail(COPY, kind="broken_json")

    answer = copy(client)

    assert answer.status_code == 200
    with pytest.raises(requests.JSONDecodeError):
        answer.json()
    assert tasks(client) == before + 1


def test_a_body_is_cut_after_the_deed(client: Client) -> None:
    before = tasks(client)
    client.control.fail(COPY, kind="cut_body")

    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        copy(client)
    assert tasks(client) == before + 1


@pytest.mark.parametrize(("kind", "done"), [("drop", 0), ("no_answer", 1)])
def test_a_connection_is_dropped_before_or_after_the_deed(client: Client, kind: str, done: int) -> None:
    before = tasks(client)
    client.control.fail(COPY, kind=kind)

    with pytest.raises(requests.ConnectionError):
        copy(client)
    assert tasks(client) == before + done
    assert client.control.requests(COPY)[0]["status"] == 0
    assert data(copy(client))


def test_a_slow_answer_comes_in_the_end(client: Client) -> None:
    client.control.fail(STATS, kind="slow", seconds=0.2)
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


def test_a_client_need_not_wait_for_the_last_drop(client: Client) -> None:
    client.control.fail(STATS, kind="drip", seconds=3600)

    with requests.get(
        client.sandbox.url + STATS, headers=client.bearer, stream=True, timeout=PATIENCE
    ) as answer:
        assert answer.raw.read(1) == b"{"

    assert client.get(STATS).status_code == 200


def test_every_answer_can_be_late(client: Client) -> None:
    client.control.configure(latency=0.1)
    began = time.monotonic()

    assert client.get(STATS).status_code == 200
    assert time.monotonic() - began > 0.1


def test_a_redirect_leads_elsewhere(client: Client) -> None:
    client.control.fail(STATS, kind="redirect", to="https://elsewhere.example/")

    answer = client.session.get(client.sandbox.url + STATS, allow_redirects=False, timeout=PATIENCE)

    assert (answer.status_code, answer.headers["Location"]) == (307, "https://elsewhere.example/")


def test_a_failure_can_let_some_answers_pass(client: Client) -> None:
    client.control.fail(STATS, after=2, status=500)

    assert [client.get(STATS).status_code for _ in range(4)] == [200, 200, 500, 200]


def test_failures_strike_in_the_order_in_which_they_were_planned(client: Client) -> None:
    client.control.fail(STATS, status=500)
    client.control.fail("*", status=502)
    client.control.fail(STATS, status=503)

    assert [client.get(STATS).status_code for _ in range(4)] == [500, 502, 503, 200]


def test_a_failure_strikes_its_path_only_unless_it_is_for_all(client: Client) -> None:
    client.control.fail("/task/copies", status=500)
    assert client.get(STATS).status_code == 200

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
