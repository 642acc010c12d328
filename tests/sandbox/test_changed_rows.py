"""Rows whose columns change from a certain row on, as after a change of the web site."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import SandboxError, demo
from tests.sandbox.plain_client import Client

TASK = demo.FINISHED_TASK_ID  # two batches with 120 rows each


def empty_prices(rows: list[dict[str, Any]]) -> list[int]:
    """Return the indexes of the rows whose price is empty."""
    return [index for index, row in enumerate(rows) if row["price"] == ""]


@pytest.mark.parametrize(
    ("to", "kind"),
    [("empty", str), ("null", type(None)), ("number", float), ("boolean", bool), ("list", list)],
)
def test_a_column_gets_another_value_from_a_row_on(client: Client, to: str, kind: type) -> None:
    before = client.control.true_rows(TASK)
    client.control.change_rows(TASK, "price", to, from_row=100)
    rows = client.control.true_rows(TASK)
    assert rows[:100] == before[:100]
    assert {type(row["price"]) for row in rows[100:]} == {kind}
    assert all(row["price"] != was["price"] for row, was in zip(rows[100:], before[100:], strict=True))
    assert [row | {"price": 0} for row in rows] == [row | {"price": 0} for row in before]


def test_a_column_is_missing_or_renamed_from_a_row_on(client: Client) -> None:
    before = client.control.true_rows(TASK)
    client.control.change_rows(TASK, "price", renamed="cost", from_row=100)
    client.control.change_rows(TASK, "city", "missing", from_row=100)
    rows = client.control.true_rows(TASK)
    assert rows[:100] == before[:100]
    kept = [{name: value for name, value in row.items() if name != "city"} for row in before[100:]]
    assert [list(row.values()) for row in rows[100:]] == [list(row.values()) for row in kept]
    assert {tuple(row) for row in rows[100:]} == {
        ("id", "keyword", "title", "cost", "seller", "url", "comment")
    }


@pytest.mark.by_day(4)
@pytest.mark.parametrize("border", [0, 999, 1150, 1301, 1700, 2400])
@pytest.mark.parametrize("size", [64, 1000])
def test_every_page_has_the_changes_from_the_border_on(client: Client, size: int, border: int) -> None:
    task_id = client.control.add_task(lots=[1300, 0, 1, 1200])["task_id"]
    client.control.change_rows(task_id, "price", "empty", from_row=border)
    rows = client.rows(task_id, size)
    assert rows == client.control.true_rows(task_id)
    assert empty_prices(rows) == list(range(border, 2501))
    for lotno, batch in (("000001", rows[:1300]), ("000003", rows[1300:1301]), ("000004", rows[1301:])):
        assert client.rows(task_id, size, lotno=lotno) == client.control.true_rows(task_id, lotno) == batch


def test_without_a_border_only_rows_that_come_later_change(client: Client) -> None:
    client.control.change_rows(TASK, "price", "empty")
    assert empty_prices(client.rows(TASK)) == []
    client.control.grow(TASK, 5)
    assert empty_prices(client.rows(TASK)) == [240, 241, 242, 243, 244]
    client.run(TASK)
    assert empty_prices(client.rows(TASK)) == list(range(240, 445))
    assert empty_prices(client.rows(TASK, lotno="000003")) == list(range(200))


def test_rows_after_a_removal_take_the_numbers_of_the_removed(client: Client) -> None:
    client.control.change_rows(TASK, "price", "empty", from_row=100)
    client.control.grow(TASK, -10)
    client.control.grow(TASK, 10)
    assert empty_prices(client.rows(TASK)) == list(range(100, 240))
    client.control.reset_data(TASK)
    client.control.grow(TASK, 110)
    assert empty_prices(client.rows(TASK)) == list(range(100, 110))


def test_changes_add_up_in_their_order(client: Client) -> None:
    before = client.control.true_rows(TASK)
    client.control.change_rows(TASK, "title", "null", from_row=50)
    client.control.change_rows(TASK, "price", renamed="cost", from_row=100)
    client.control.change_rows(TASK, "price", "empty", from_row=80)
    client.control.change_rows(TASK, "cost", "boolean", from_row=200)
    rows = client.rows(TASK)
    assert rows == client.control.true_rows(TASK)
    assert [row["title"] for row in rows] == [row["title"] for row in before[:50]] + [None] * 190
    assert empty_prices(rows[:100]) == list(range(80, 100))
    assert [row["cost"] for row in rows[100:200]] == [row["price"] for row in before[100:200]]
    assert [row["cost"] for row in rows[200:]] == [True] * 40


def test_given_rows_change_too_and_those_without_the_column_stay(client: Client) -> None:
    given = [{"name": "Ünal", "price": "1"}, {"name": "B"}]
    task_id = client.control.add_task(rows=given, lots=[4])["task_id"]
    client.control.change_rows(task_id, "price", "null", from_row=1)
    assert client.rows(task_id) == [*given, {"name": "Ünal", "price": None}, {"name": "B"}]


@pytest.mark.webcollect_sandbox(row_bytes=30_000)
def test_a_page_holds_as_many_rows_as_fit_with_the_changes(client: Client) -> None:
    task_id = client.control.add_task(lots=[300])["task_id"]
    assert len(client.page(task_id, size=200)["data"]) < 140
    client.control.change_rows(task_id, "comment", "empty", from_row=0)
    assert len(client.page(task_id, size=200)["data"]) == 200


def test_other_tasks_and_copies_do_not_change(client: Client) -> None:
    client.control.change_rows(TASK, "price", "missing", from_row=0)
    for task_id in (client.copy(TASK), demo.TASK_ID):
        client.run(task_id)
        assert all("price" in row for row in client.rows(task_id))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"task_id": "unknown"}, "there is no task unknown"),
        ({"column": "colour"}, "column must be one of city, comment, cost, .*, url, not 'colour'"),
        ({"to": "blank"}, "to must be one of empty, null, number, boolean, list, missing, not 'blank'"),
        ({"to": None}, "give one of to and renamed, not to=None and renamed=None"),
        ({"renamed": "x"}, "give one of to and renamed, not to='empty' and renamed='x'"),
        ({"to": None, "renamed": "title"}, "renamed must be a new name: there is a column 'title' already"),
        ({"to": None, "renamed": "cost"}, "renamed must be a new name: there is a column 'cost' already"),
        ({"from_row": -1}, r"`int` >= 0 - at `\$.from_row`"),
        ({"from_row": "first"}, r"\$.from_row"),
    ],
)
def test_a_senseless_change_is_refused(client: Client, arguments: dict[str, Any], problem: str) -> None:
    client.control.change_rows(TASK, "price", renamed="cost", from_row=200)
    before = client.control.true_rows(TASK)
    with pytest.raises(SandboxError, match=problem):
        client.control.change_rows(
            **{"task_id": TASK, "column": "title", "to": "empty", "from_row": 0, **arguments}
        )
    assert client.control.true_rows(TASK) == before


def test_the_columns_of_given_rows_are_those_that_may_change(client: Client) -> None:
    task_id = client.control.add_task(rows=[{"name": "A"}, {"name": "B", "note": ""}])["task_id"]
    with pytest.raises(SandboxError, match="column must be one of name, note, not 'price'"):
        client.control.change_rows(task_id, "price", "empty")
