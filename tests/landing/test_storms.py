"""A service in trouble, and one whose counts make no sense."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_webcollect.landing.errors import RowsMissing
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.models import DataPage
from tests.conftest import ALL_HISTORIES
from tests.landing.conftest import Folder, Landed, in_order, listed
from tests.landing.pages import counted_page

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

FAULTS: dict[str, dict[str, Any]] = {
    "status": {},
    "too many requests": {"kind": "status", "status": 429},
    "token rejected": {"kind": "status", "status": 401},
    "error under 200": {"kind": "status", "status": 200},
    "html": {},
    # to its own address would be followed: see tests/service
    "redirect": {"kind": "raw", "status": 307, "headers": {"Location": "http://elsewhere.invalid/"}},
    "drop": {},
    "no answer": {"kind": "drop", "done": True},
    "broken_json": {},
    "cut_body": {},
    "slow": {"seconds": 0.01},
}
PAGES = 500 if ALL_HISTORIES else 100
TWO_ROWS = [{"a": 1}, {"a": 2}]


@pytest.mark.by_day(4)
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("folder", ["local"], indirect=True)
def test_faults_at_a_twentieth_of_the_pages_change_nothing(
    landing: Landed, folder: Folder, sandbox: Sandbox, kind: str
) -> None:
    task = sandbox.control.add_task(rows=PAGES * 4, lots=1)["task_id"]
    sandbox.control.fail("*", times=None, probability=0.05, **{"kind": kind, **FAULTS[kind]})
    given_up = 0
    while "_manifest.json" not in folder.names():
        try:
            landing(task, size=4, max_part_bytes=10_000)
        except WebCollectError:
            # left to Airflow's retries
            given_up += 1
            assert given_up < 100
    sandbox.control.clear_faults()
    if kind not in {"redirect", "token rejected"}:
        assert given_up == 0
    assert folder.rows() == sandbox.control.true_rows(task)


class TestCountsThatMakeNoSense:
    def test_a_total_that_shrinks(self, landing: Landed, folder: Folder) -> None:
        pages = [counted_page(TWO_ROWS, 2, 10, 8), counted_page(TWO_ROWS, 4, 9, 5)]
        with pytest.raises(RowsMissing, match="announced 9 rows, and 4 came"):
            landing("t", fetch=listed(pages))
        assert "_manifest.json" not in folder.names()

    def test_a_total_that_shrinks_to_the_rows_that_came(self, landing: Landed, folder: Folder) -> None:
        asked: list[int] = []
        pages = [counted_page(TWO_ROWS, 2, 6, 4), counted_page(TWO_ROWS, 4, 4, 0)]

        def fetch(offset: int) -> DataPage:
            asked.append(offset)
            return listed(pages)(offset)

        assert landing("t", fetch=fetch).rows == 4
        # and the first page, since all rows may have been taken away
        assert asked == [0, 2, 0]

    def test_a_total_that_shrinks_since_the_source_was_reset(self, landing: Landed, folder: Folder) -> None:
        pages = iter([counted_page(TWO_ROWS, 2, 6, 4), counted_page(TWO_ROWS, 4, 4, 0)])
        others = [{"b": 1}, {"b": 2}]

        def fetch(offset: int) -> DataPage:
            return next(pages, counted_page(others, 2, 4, 2))

        with pytest.raises(RowsMissing, match="the first rows have changed"):
            landing("t", fetch=fetch)
        assert "_manifest.json" not in folder.names()
        assert folder.staged() == []

    @pytest.mark.parametrize(
        ("total", "said"),
        [
            (lambda offset: 10, "announced 10 rows, 12 came, and more are said to be left"),
            (lambda offset: offset + 8, "8 rows or more left for 1000 pages"),
        ],
        ids=["more rows than announced", "what is left never becomes less"],
    )
    def test_a_read_without_an_end(self, landing: Landed, total: Callable[[int], int], said: str) -> None:
        pages = (counted_page(TWO_ROWS, offset, total(offset), 8) for offset in itertools.count(2, 2))
        with pytest.raises(RowsMissing, match=said):
            landing("t", fetch=in_order(pages))
