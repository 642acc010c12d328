"""Pages that are too large for the service: the client requests fewer rows, and later more again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_webcollect.service import errors
from airflow_provider_webcollect.service.call import TRIES_PER_SIZE
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.models import DataPage
from airflow_provider_webcollect.service.pages import PageReader, PageSize
from airflow_provider_webcollect.service.settings import TIMING, ClientTiming, Retries
from tests.interruption import PATIENCE
from tests.service import servers
from tests.service.conftest import rows_of
from tests.service.servers import Server, answer, query_number, refusal, serving

ROWS = 300


def sizes(server: Server) -> list[int]:
    return [query_number(request, b"size") for request in server.received]


def limited(most: int, refusal: bytes, recovers_at: int = ROWS) -> Callable[[bytes], bytes]:
    """Return an answer function: rows, but ``refusal`` to more than ``most`` before row ``recovers_at``."""

    def respond(request: bytes) -> bytes:
        offset, size = query_number(request), query_number(request, b"size")
        if size > most and offset < recovers_at:
            return refusal
        end = min(ROWS, offset + size)
        rows: list[object] = [{"n": number} for number in range(offset, end)]
        return answer({"offset": end, "total": ROWS, "restTotal": ROWS - end, "data": rows})

    return respond


def pages_of(client: Client, size: int) -> list[DataPage]:
    return list(PageReader(client, "t", size=size).pages())


def client_of(server: Server, timing: ClientTiming = TIMING, **retries: float) -> Client:
    """Return a client of a server; the client tries again at once."""
    quick: dict[str, Any] = {"first_wait": 0.0, "longest_wait": 0.0, **retries}
    limits = {"read_timeout": PATIENCE, "total_timeout": PATIENCE, "max_response_bytes": 100_000}
    return servers.client_of(server, timing, retries=Retries(**quick), **limits)


REFUSALS = {
    "too large": answer(b"<html>", 413, Content_Type="text/html"),
    "too large, said as usual": refusal("LimitTraffic"),
    "more than is read": answer(b" " * 200_000),
    "failing": answer({}, 500),
    "failing, said as usual": refusal("ServerError"),
    "timing out": answer(b"<html>", 504, Content_Type="text/html"),
    "cut": answer(b'{"data":{"offset":1', Content_Length="9000"),
    "torn": answer(b'{"data":{"offset":1'),
    "not answered": b"",
}


#: Refusals that are surely about the size; after others, the same size is tried again first.
SURELY_TOO_LARGE = {"too large, said as usual", "more than is read"}


@pytest.mark.parametrize("said", REFUSALS)
def test_fewer_rows_are_asked_for_until_they_come(said: str) -> None:
    with serving(limited(30, REFUSALS[said])) as server, client_of(server) as client:
        assert [row["n"] for row in rows_of(pages_of(client, 200))] == list(range(ROWS))
        requested = sizes(server)
    assert set(requested) == {200, 100, 50, 25}
    tries = 1 if said in SURELY_TOO_LARGE else TRIES_PER_SIZE
    assert requested[: 3 * tries + 1] == [200] * tries + [100] * tries + [50] * tries + [25]


def test_more_rows_are_asked_for_again_after_good_pages() -> None:
    with serving(limited(10, REFUSALS["too large"], recovers_at=40)) as server, client_of(server) as client:
        assert len(rows_of(pages_of(client, 80))) == ROWS
        requested = sizes(server)
    assert list(dict.fromkeys(requested))[:4] == [80, 40, 20, 10]
    assert max(requested[requested.index(10) :]) > 20


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("failing", errors.MalformedResponse),
        ("failing, said as usual", errors.ServiceFailure),
        ("too large", errors.MalformedResponse),
        ("too large, said as usual", errors.PageTooLarge),
        ("more than is read", errors.ResponseTooLarge),
    ],
)
def test_a_service_that_refuses_every_size_is_an_error(said: str, error: type[Exception]) -> None:
    with serving(limited(0, REFUSALS[said])) as server, client_of(server) as client:
        with pytest.raises(error):
            pages_of(client, 1000)
        assert sizes(server)[-1] == 1
        assert len(sizes(server)) <= 9 * TRIES_PER_SIZE + 7


def test_failures_that_are_not_about_size_keep_the_page_size() -> None:
    with serving(limited(0, refusal("TaskNotFound"))) as server, client_of(server) as client:
        with pytest.raises(errors.NotFound):
            pages_of(client, 1000)
        assert sizes(server) == [1000]
    for trouble, error in (
        (answer({}, 503), errors.MalformedResponse),
        (refusal("Odd", 503), errors.ServiceFailure),
    ):
        with serving(limited(0, trouble)) as server, client_of(server) as client:
            with pytest.raises(error):
                pages_of(client, 1000)
            assert set(sizes(server)) == {1000}


def test_a_page_that_fails_late_is_halved_at_once() -> None:
    # three tries of one page alone would take longer than the deadline
    respond = limited(30, REFUSALS["not answered"])

    def late(request: bytes) -> bytes:
        said = respond(request)
        time.sleep(0 if said else 0.2)
        return said

    timing = ClientTiming(long_failure=0.1)
    with serving(late) as server, client_of(server, timing, deadline=0.5) as client:
        assert len(rows_of(pages_of(client, 200))) == ROWS
        assert sizes(server)[:4] == [200, 100, 50, 25]


def test_a_size_that_failed_before_is_tried_again_later() -> None:
    size = PageSize(1000)
    for _ in range(6):
        size.halve()
    failed_after = []
    for good in range(1, 400):
        size.worked()
        if size.now > 15:
            failed_after.append(good)
            size.halve()
    assert failed_after == [5, 15, 35, 75, 155, 315]


def test_other_failures_in_between_do_not_keep_pages_large() -> None:
    answers = [answer({}, 503)] * (TRIES_PER_SIZE + 1)
    respond = limited(30, REFUSALS["failing"])
    with (
        serving(lambda request: answers.pop() if answers else respond(request)) as server,
        client_of(server) as client,
    ):
        assert len(rows_of(pages_of(client, 200))) == ROWS
