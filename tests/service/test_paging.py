"""Reads that take several calls: they follow the returned cursor to the end, and never go on for ever."""

from __future__ import annotations

import datetime
import math

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service.call import STUCK_TRIES
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import PagingError
from airflow_provider_webcollect.service.models import AnalyticsRow, DataPage
from airflow_provider_webcollect.service.pages import PageReader, all_analytics, all_subtasks
from airflow_provider_webcollect.service.settings import TIMING, ClientTiming
from tests.service.conftest import Clock, Connect, rows_of
from tests.service.servers import answer, serving

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


def read_all(client: Client, task_id: str, lotno: str | None = None, size: int = 1000) -> list[DataPage]:
    return list(PageReader(client, task_id, lotno, size=size).pages())


class TestRows:
    @pytest.mark.parametrize("size", [37, 100, 999, 1000])
    def test_every_row_comes_once_and_in_order(self, client: Client, sandbox: Sandbox, size: int) -> None:
        task = sandbox.control.add_task(rows=610, lots=4)["task_id"]
        pages = read_all(client, task, size=size)
        assert rows_of(pages) == sandbox.control.true_rows(task)
        assert pages[0].offset != size
        batch = read_all(client, task, "000002", size)
        assert rows_of(batch) == sandbox.control.true_rows(task, "000002")

    @pytest.mark.webcollect_sandbox(row_bytes=30_000)
    @pytest.mark.parametrize("size", [200, 1000])
    def test_short_pages_lose_nothing(self, client: Client, sandbox: Sandbox, size: int) -> None:
        task = sandbox.control.add_task(rows=600, state="Finished")["task_id"]
        pages = read_all(client, task, size=size)
        assert len(pages[0].rows) < size
        assert len(pages) > 600 / size
        assert rows_of(pages) == sandbox.control.true_rows(task)

    def test_an_empty_source_is_one_empty_page(self, client: Client) -> None:
        (page,) = read_all(client, demo.TASK_ID)
        assert (page.total, page.rest_total, page.rows) == (0, 0, [])

    def test_fast_answers_are_asked_for_when_wanted(self, connect: Connect, sandbox: Sandbox) -> None:
        client = connect(timing=ClientTiming(slow_response=math.inf))
        sent: list[None] = []
        reader = PageReader(client, demo.FINISHED_TASK_ID, size=100, sent=lambda: sent.append(None))
        first = reader.read(0)
        assert len(first.rows) == 100
        assert len(sandbox.control.requests()) == len(sent) == 1
        assert [len(page.rows) for page in reader.pages(first.offset)] == [100, 40]
        assert reader.read(0) == first
        assert len(sandbox.control.requests()) == len(sent) == 4
        (batch,) = PageReader(client, demo.FINISHED_TASK_ID, "000001").pages(-3)
        assert batch.records() == sandbox.control.true_rows(demo.FINISHED_TASK_ID, "000001")


def page(offset: int, total: int, rest: int, rows: int) -> bytes:
    return answer({"offset": offset, "total": total, "restTotal": rest, "data": [{"a": 1}] * rows or None})


class TestCursorThatStandsStill:
    @pytest.mark.parametrize(
        ("offset", "stuck"),
        [
            pytest.param(0, page(0, 10, 10, 0), id="nothing comes"),
            pytest.param(0, page(0, 10, 5, 5), id="at the start"),
            pytest.param(-7, page(0, 10, 5, 5), id="below the start"),
            pytest.param(50, page(50, 10, 5, 5), id="further on"),
            pytest.param(50, page(20, 10, 5, 5), id="backwards"),
            pytest.param(0, page(1024, 10, 10, 0), id="empty but moving"),
        ],
    )
    def test_is_an_error_in_the_end(self, on_clock: Connect, clock: Clock, offset: int, stuck: bytes) -> None:
        with serving(lambda _: stuck) as server:
            client = on_clock(base_url=server.url)
            with pytest.raises(PagingError, match=f"is stuck at offset {offset}") as failure:
                PageReader(client, "t", size=10).read(offset)
            assert failure.value.endpoint == "read_data"
            assert "of 10 rows are left" in str(failure.value)
            assert len(server.received) == STUCK_TRIES
        assert clock.slept == [TIMING.stuck_wait] * (STUCK_TRIES - 1)

    def test_is_passed_over_if_it_moves_again(self, on_clock: Connect, clock: Clock) -> None:
        answers = [page(0, 10, 10, 0), page(0, 10, 5, 5), page(1024, 10, 5, 5)]
        with serving(lambda _: answers.pop(0)) as server:
            client = on_clock(base_url=server.url)
            came = PageReader(client, "t", size=10).read(0)
        assert (came.offset, len(came.rows)) == (1024, 5)
        assert len(clock.slept) == 2

    @pytest.mark.parametrize("rest", [0, -3])
    def test_is_the_end_if_nothing_is_left(self, on_clock: Connect, rest: int) -> None:
        with serving(lambda _: page(0, 10, rest, 3)) as server:
            client = on_clock(base_url=server.url)
            assert len(PageReader(client, "t", size=10).read(0).rows) == 3


class TestCountsThatContradictTheRows:
    @pytest.mark.parametrize(
        ("begin", "pages", "said"),
        [
            (0, [page(5, 5, 0, 0)], "announced 5 rows, and 0 came"),
            (0, [page(1, 0, 0, 1)], "announced 0 rows, and 1 came"),
            (0, [page(1, 3, 2, 1), page(2, 3, 0, 1)], "announced 3 rows, and 2 came"),
            (0, [page(1, 3, 2, 1), page(2, 2, 0, 1)], "announced 3 rows, and then 2"),
            (0, [page(2, 1, 3, 2)], "announced 1 rows, 2 came, and more"),
            # a read from the middle on must return the rows that are left
            (9, [page(10, 20, 10, 1), page(20, 20, 0, 0)], "had 10 rows left; 0 came"),
        ],
    )
    def test_are_a_paging_error(self, connect: Connect, begin: int, pages: list[bytes], said: str) -> None:
        with serving(lambda _: pages.pop(0)) as server:
            reader = PageReader(connect(base_url=server.url), "t")
            with pytest.raises(PagingError, match=said) as failure:
                list(reader.pages(begin))
        assert failure.value.endpoint == "read_data"

    def test_are_not_checked_from_the_middle_on(self, connect: Connect) -> None:
        with serving(lambda _: page(9, 9, 0, 1)) as server:
            reader = PageReader(connect(base_url=server.url), "t")
            assert len(list(reader.pages(8))) == 1


class TestLists:
    @pytest.mark.parametrize("count", [1, 20, 40, 47])
    def test_all_subtasks_come(self, client: Client, sandbox: Sandbox, count: int) -> None:
        task = sandbox.control.add_task(subtasks=count)
        subtasks = all_subtasks(client, task["task_id"])
        assert [subtask.sub_task_id for subtask in subtasks] == [
            subtask["subtask_id"] for subtask in task["subtasks"]
        ]

    def test_a_service_that_repeats_a_page_for_ever_is_an_error(self, on_clock: Connect) -> None:
        same = answer([{"subTaskId": str(n), "status": "Waiting"} for n in range(20)])
        with serving(lambda _: same) as server:
            client = on_clock(base_url=server.url)
            assert len(all_subtasks(client, "t")) == 20
            assert len(server.received) == 2

    def test_all_analytics_come(self, client: Client, sandbox: Sandbox) -> None:
        today = datetime.datetime.now(datetime.UTC).date()
        start = today - datetime.timedelta(days=60)
        for _ in range(12):
            sandbox.control.add_task(lots=[1])
        rows = all_analytics(client, start=start, end=today)
        assert len(rows) > 500
        assert len({(row.task_id, row.day_key, row.collection_method) for row in rows}) == len(rows)
        assert len(sandbox.control.requests("/taskanalytics/queries")) == len(rows) // 500 + 1

    def test_tasks_have_the_latest_name_that_any_row_gives_them(self, on_clock: Connect) -> None:
        today = datetime.datetime.now(datetime.UTC).date()
        named = [
            ("a", "2026-01-03", None),
            ("a", "2026-01-02", "Prices"),
            ("a", "2026-01-01", "Shop search"),
            ("b", "2026-01-01", None),
        ]
        rows = [{"taskId": task, "dayKey": day, "taskName": name} for task, day, name in named]
        with serving(lambda _: answer({"total": 4, "data": rows})) as server:
            records = all_analytics(on_clock(base_url=server.url), start=today, end=today)
        assert AnalyticsRow.names(records) == {"a": "Prices", "b": None}

    def test_analytics_that_are_fewer_than_announced_are_an_error(self, on_clock: Connect) -> None:
        today = datetime.datetime.now(datetime.UTC).date()
        rows = [[{"taskId": "t", "dayKey": "d"}], []]
        with serving(lambda _: answer({"total": 9, "data": rows.pop(0)})) as server:
            client = on_clock(base_url=server.url)
            with pytest.raises(PagingError, match="announced 9 rows, and 1 came") as failure:
                all_analytics(client, start=today, end=today)
        assert failure.value.endpoint == "query_analytics"
