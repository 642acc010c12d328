"""If responses take long, the next page is requested while the rows of the page before still arrive."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.client import HEAD_BYTES, Client
from airflow_provider_webcollect.service.errors import RequestRejected
from airflow_provider_webcollect.service.pages import GOOD_PAGES, PageReader
from airflow_provider_webcollect.service.responses import offset_before_rows
from airflow_provider_webcollect.service.settings import ClientTiming, Credentials
from tests.interruption import PATIENCE, Signalled, signalled_when
from tests.service.conftest import Clock, Connect, rows_of
from tests.service.servers import answer, client_of, query_number, refusal, serving
from tests.simulation.samples import SEED

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

SIZE, ROWS = 100, 500
STANDS_STILL = b'{"data":{"offset":7,"total":500,"restTotal":9,"data":[]},"requestId":"r"}'


FAULTS: list[dict[str, Any]] = [
    {"kind": "cut_body"},
    {"kind": "broken_json"},
    {"kind": "drop"},
    {"kind": "drop", "done": True},
    {"kind": "html", "status": 502},
    {"kind": "html", "status": 413},
    {"status": 429, "code": "TooManyRequests"},
    {"status": 500, "code": "ServerError"},
    {"kind": "raw", "body": STANDS_STILL},
]


#: Every response counts as slow, however fast the machine is.
SLOW = ClientTiming(slow_response=0.0, stuck_wait=0.0)


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect(timing=SLOW)


class Ticking(Clock):
    """Time that also passes, by a random step, whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._chance = random.Random(SEED)

    def now(self) -> float:
        self.time += self._chance.uniform(0, 0.04)
        return self.time


class Reader(PageReader):
    """A reader that counts its requests."""

    def __init__(self, client: Client, task_id: str = "t", size: int = SIZE) -> None:
        self.sent = 0
        super().__init__(client, task_id, size=size, sent=self._count)

    def _count(self) -> None:
        self.sent += 1

    def sent_by(self, offset: int) -> int:
        before = self.sent
        self.read(offset)
        return self.sent - before


def body_at(offset: int, size: int = SIZE) -> dict[str, Any]:
    """Return the page at ``offset``, whose cursor counts rows; it is longer than the head with the cursor."""
    end = min(ROWS, offset + size)
    rows = [{"n": number, "text": "t" * HEAD_BYTES} for number in range(offset, end)]
    return {"offset": end, "total": ROWS, "restTotal": ROWS - end, "data": rows}


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    return str(sandbox.control.add_task(rows=ROWS, state="Finished")["task_id"])


class TestTheNextPage:
    def test_is_asked_for_before_the_rows_of_this_one_have_come(self) -> None:
        arrived: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        in_time: list[bool] = []

        def respond(request: bytes) -> Iterator[bytes]:
            arrived[query_number(request)].set()
            page = body_at(query_number(request))
            said = answer(page)
            yield said[:-1000]
            if page["restTotal"]:
                in_time.append(arrived[page["offset"]].wait(PATIENCE))
            yield said[-1000:]

        with serving(respond) as server, client_of(server, SLOW) as client:
            rows = rows_of(Reader(client).pages())
        assert [row["n"] for row in rows] == list(range(ROWS))
        assert in_time == [True] * (ROWS // SIZE - 1)

    def test_is_the_only_one_that_is_asked_for(self, client: Client, sandbox: Sandbox, task: str) -> None:
        reader = Reader(client, task)
        pages, sent = [], []
        for page in reader.pages():
            pages.append(page)
            sent.append(reader.sent)
        assert rows_of(pages) == sandbox.control.true_rows(task)
        assert sent == [2, 3, 4, 5, 5]
        assert len(sandbox.control.requests()) == 5
        # nothing is prefetched when an earlier page is read again
        assert reader.sent_by(0) == 1

    def test_is_seen_in_a_packed_answer(self) -> None:
        def respond(request: bytes) -> bytes:
            packed = gzip.compress(json.dumps({"data": body_at(query_number(request))}).encode())
            return answer(packed, Content_Encoding="gzip")

        with serving(respond) as server, client_of(server, SLOW) as client:
            assert Reader(client).sent_by(0) == 2

    def test_is_not_asked_for_where_its_offset_follows_the_rows(self) -> None:
        def respond(request: bytes) -> bytes:
            return answer(dict(reversed(body_at(query_number(request)).items())))

        with serving(respond) as server, client_of(server, SLOW) as client:
            reader = Reader(client)
            rows = rows_of(reader.pages())
        assert [row["n"] for row in rows] == list(range(ROWS))
        assert reader.sent == ROWS // SIZE

    def test_is_not_asked_for_out_of_its_turn(self, on_clock: Connect, clock: Clock) -> None:
        with serving(lambda request: answer(body_at(query_number(request)))) as server:
            reader = Reader(on_clock(base_url=server.url, requests_per_second=1, timing=SLOW))
            for offset in (0, 100, 200):
                assert reader.sent_by(offset) == 1
                clock.time += 1.0
        assert clock.slept == []

    @pytest.mark.webcollect_sandbox(enforce_limits=True)
    def test_is_within_the_rate_limit(self, on_clock: Connect, sandbox: Sandbox) -> None:
        task = sandbox.control.add_task(rows=300, state="Finished")["task_id"]
        clock = Ticking()
        client = on_clock(requests_per_second=18, timing=SLOW, clock=clock)
        reader = Reader(client, task, size=10)
        pages, ahead = [], []
        for page in reader.pages():
            pages.append(page)
            ahead.append(reader.sent - len(pages))
        assert rows_of(pages) == sandbox.control.true_rows(task)
        assert {request["status"] for request in sandbox.control.requests()} == {200}
        assert clock.slept
        assert set(ahead) == {0, 1}


class TestAnUnusedPrefetchedPage:
    def test_costs_one_request_and_pauses_prefetching(self, client: Client, sandbox: Sandbox) -> None:
        task = sandbox.control.add_task(rows=2000, state="Finished")["task_id"]
        reader = Reader(client, task)
        first = reader.read(0)
        assert reader.read(0) == first
        assert reader.sent == 3
        sent = []
        for _ in reader.pages(first.offset):
            sent.append(reader.sent)
        steps = [after - before for before, after in itertools.pairwise([3, *sent])]
        without = GOOD_PAGES - 1
        assert steps[: without + 2] == [1] * without + [2, 1]

    def test_is_read_once_more_after_as_long_as_the_service_wants(
        self, connect: Connect, sandbox: Sandbox, task: str, clock: Clock
    ) -> None:
        client = connect(stop=clock, timing=SLOW)
        sandbox.control.fail("/data/all", status=503, code="Busy", headers={"Retry-After": "9"}, after=1)
        with client:
            assert rows_of(Reader(client, task).pages()) == sandbox.control.true_rows(task)
            longest = client.context.settings.retries.longest_wait
        assert clock.slept == [longest]

    def test_ends_the_read_if_refused_for_good(self, client: Client, sandbox: Sandbox, task: str) -> None:
        sandbox.control.fail("/data/all", status=400, code="InvalidParameter", after=1)
        reader = Reader(client, task)
        first = reader.read(0)
        with pytest.raises(RequestRejected):
            reader.read(first.offset)
        assert reader.sent == 2

    @pytest.mark.by_day(18)
    @pytest.mark.parametrize("good", [0, 1, 2, 4])
    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: " ".join(map(str, fault.values()))[:20])
    def test_does_not_cost_or_repeat_a_row(
        self, client: Client, sandbox: Sandbox, task: str, fault: dict[str, Any], good: int
    ) -> None:
        sandbox.control.fail("/data/all", after=good, times=2, **fault)
        assert rows_of(Reader(client, task).pages()) == sandbox.control.true_rows(task)

    def test_may_have_been_asked_for_by_a_page_that_was_cut(self) -> None:
        cut = [answer(body_at(0))[:-1000]]

        def respond(request: bytes) -> bytes:
            return cut.pop() if cut else answer(body_at(query_number(request)))

        with serving(respond) as server, client_of(server, SLOW) as client:
            reader = Reader(client)
            # the cut page, the next page in advance, and the first page again
            assert reader.sent_by(0) == 3
            assert reader.sent_by(SIZE) == 1

    def test_may_have_been_too_large(self) -> None:
        sizes = []

        def respond(request: bytes) -> bytes:
            offset, size = query_number(request), query_number(request, b"size")
            sizes.append(size)
            return refusal("LimitTraffic") if offset == 10 and size > 2 else answer(body_at(offset, size))

        with serving(respond) as server, client_of(server, SLOW) as client:
            rows = rows_of(Reader(client, size=10).pages())
        assert [row["n"] for row in rows] == list(range(ROWS))
        # the next page in advance, again, and by halves; in the end as many rows as at first
        assert sizes[1:5] == [10, 10, 5, 2]
        assert sizes[-1] == 10

    def test_may_have_had_a_token_that_ended(self, connect: Connect, sandbox: Sandbox, task: str) -> None:
        client = connect(credentials=Credentials(refresh_token=sandbox.refresh_token), timing=SLOW)
        rows = []
        for number, page in enumerate(Reader(client, task).pages()):
            rows += page.records()
            if number == 1:
                sandbox.control.expire_tokens()
        assert rows == sandbox.control.true_rows(task)
        assert len(sandbox.control.requests("/token")) == 2


def test_a_task_that_is_ended_does_not_wait_for_the_answer() -> None:
    asked = threading.Event()

    def respond(request: bytes) -> bytes | None:
        if query_number(request) == 0:
            return answer(body_at(0))
        asked.set()
        return None

    with (
        serving(respond) as server,
        client_of(server, SLOW) as client,
        pytest.raises(Signalled),
        signalled_when(asked.is_set),
    ):
        rows_of(Reader(client).pages())


@pytest.mark.parametrize(
    ("head", "offset"),
    [
        (b'{"data":{"offset":1024,"total":9,"restTotal":5,"data":[{"a":1}', 1024),
        (b'{"data":{"restTotal":5,"offset":1024,"data":[', 1024),
        (b'{\n  "requestId": "r", "error": null,\n  "data": [ { "offset": 7, "restTotal": 5, "data": [', 7),
        (b'{"data":{"offset":1024,"total":9,"data":[{"restTotal":5}', None),
        (b'{"data":{"restTotal":5,"data":[{"offset":1024,"data":[', None),
        (b'{"data":{"data":[{"offset":1024,"total":9,"restTotal":5,"data":[', None),
        (b'{"data":[{"data":{"offset":1024,"total":9,"restTotal":5,"data":[', None),
        (b'{"data":{"offset":%s,"total":9,"restTotal":5,"data":[' % (b"9" * 5000), None),
        (b'{"data":{"offset":-1,"restTotal":5,"data":[', None),
        (b"<html>", None),
    ],
)
def test_an_offset_counts_only_before_the_rows(head: bytes, offset: int | None) -> None:
    assert offset_before_rows(head) == offset
