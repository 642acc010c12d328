"""`whole_runs_key` of the transfer: numbers of new, changed and gone keys in result, event and log."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_provider_webcollect.landing.read.keyed import KeyedRows
from airflow_provider_webcollect.sandbox import Sandbox
from tests.airflow.executions import Said, on_sandbox
from tests.airflow.landings import TABLE, Landing, reported, transfer

pytestmark = on_sandbox()

COUNTED: dict[str, Any] = {"mode": "incremental", "whole_runs_key": "url"}
#: Prices by URL of three runs: the second has a new price of `b`, no `a` and a new `d`; the third, no `b`.
RUNS = [{"a": "1", "b": "2", "c": "3"}, {"b": "4", "c": "3", "d": "5"}, {"c": "3", "d": "5"}]
KINDS = ("new", "changed", "gone")
COUNTS = [dict(zip(KINDS, counts, strict=True)) for counts in ((3, 0, 0), (1, 1, 1), (0, 0, 1))]


@pytest.fixture
def shop(sandbox: Sandbox, destination: str) -> Landing:
    """A collection task with its first run; :meth:`~Landing.grow` adds the next ones."""
    rows = [{"url": url, "price": price} for run in RUNS for url, price in run.items()]
    return Landing(sandbox, sandbox.control.add_task(rows=rows, lots=[len(RUNS[0])]), destination)


@pytest.mark.parametrize("form", [{}, TABLE], ids=["folder", "table"])
def test_each_run_is_compared_with_the_run_before(shop: Landing, form: dict[str, Any]) -> None:
    def changes(run: str) -> dict[str, int] | None:
        counts: dict[str, int] | None = shop.transfer(**COUNTED, **form, run_id=run)["changes"]
        return counts

    first = [changes("r0")]
    for number in (1, 2):
        shop.grow(len(RUNS[number]))
        first.append(changes(f"r{number}"))
    assert first == COUNTS
    # a run without new rows has nothing to compare
    assert changes("r3") is None
    assert [changes(f"r{number}") for number in range(3)] == COUNTS


def test_the_event_and_the_log_have_the_counts(shop: Landing, said: Said) -> None:
    told = reported(shop.destination, shop.task, **COUNTED)
    assert told["changes"] == COUNTS[0]
    assert "since the previous whole run, by url: 3 new, 0 changed, 0 gone" in said()
    assert "changes" not in reported(shop.destination, shop.task, mode="incremental")


def test_several_sources_have_each_their_own_and_the_sums(shop: Landing) -> None:
    rows = [{"url": url, "price": "1"} for url in "xyx"]
    other = shop.control.add_task(rows=rows, lots=[3])["task_id"]
    options = {"sources": [shop.task_id, other], **COUNTED, "whole_runs_key": ["url", "price"]}
    first = transfer(shop.destination, **options)
    assert [each["changes"] for each in first["sources"]] == [COUNTS[0], {"new": 2, "changed": 0, "gone": 0}]
    assert first["changes"] == {"new": 5, "changed": 0, "gone": 0}
    shop.grow(3)
    told = reported(shop.destination, **options)
    assert told["changes"] == {"new": 2, "changed": 0, "gone": 2}


def test_sources_are_counted_one_by_one(shop: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count needs the memory of a DuckDB database, and eight landings may run at once."""
    other = shop.control.add_task(rows=[{"url": "x"}], lots=[1])["task_id"]
    threads, counts = [], KeyedRows.counts

    def noted(rows: KeyedRows) -> dict[str, int]:
        threads.append(threading.current_thread())
        return counts(rows)

    monkeypatch.setattr(KeyedRows, "counts", noted)
    transfer(shop.destination, sources=[shop.task_id, other], **COUNTED)
    assert threads == [threading.main_thread()] * 2


@pytest.mark.parametrize("error", [OSError("the storage is down"), MemoryError()])
def test_the_rows_have_landed_also_if_they_cannot_be_counted(
    shop: Landing, monkeypatch: pytest.MonkeyPatch, said: Said, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(KeyedRows, "counts", fail)
    result = shop.transfer(**COUNTED)
    assert (result["rows"], result["changes"]) == (3, None)
    assert "new, changed and gone keys are not counted" in said()


def test_a_key_column_that_no_row_has_is_a_warning(shop: Landing, said: Said) -> None:
    result = shop.transfer(mode="incremental", whole_runs_key="sku")
    assert (result["rows"], result["changes"]) == (3, None)
    assert "`key[0]` is 'sku'; it must be one of url, price, the columns of the landing" in said()
