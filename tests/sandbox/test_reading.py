"""Reading rows by the offset cursor, and confirming that they were exported: endpoints 17 to 19."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.data import BlockCache
from tests.sandbox.conftest import StartSandbox
from tests.sandbox.plain_client import Client, data


def add(client: Client, *lots: int, **more: Any) -> str:
    return str(client.control.add_task(lots=list(lots), **more)["task_id"])


@pytest.mark.parametrize("offset", [0, -1, -500])
def test_no_offset_is_the_first_row(client: Client, offset: int) -> None:
    task_id = add(client, 10)
    assert client.page(task_id, offset)["data"] == client.control.true_rows(task_id)


def test_an_offset_in_between_starts_at_the_next_row(client: Client) -> None:
    task_id = add(client, 3000)
    rows = client.control.true_rows(task_id)
    assert client.page(task_id, 100, 1)["data"] == [rows[1]]
    assert client.page(task_id, 1024, 1)["data"] == [rows[100]]
    assert client.page(task_id, 924 + 1500, 1)["data"] == [rows[1000]]
    assert client.page(task_id, 2 * 924 + 1000, 1)["data"] == [rows[1000]]


def test_an_offset_stays_good_when_rows_are_added(client: Client) -> None:
    task_id = add(client, 100)
    end = client.page(task_id)["offset"]
    assert client.page(task_id, end) == {"offset": end, "total": 100, "restTotal": 0, "data": []}
    client.control.grow(task_id, 5)
    assert client.page(task_id, end)["data"] == client.control.true_rows(task_id)[100:]


def test_an_offset_past_the_end_gives_an_empty_page(client: Client) -> None:
    task_id = add(client, 10)
    assert client.page(task_id, 10**9) == {"offset": 10**9, "total": 10, "restTotal": 0, "data": []}


@pytest.mark.webcollect_sandbox(row_bytes=30_000)
def test_a_small_page_is_cut_at_4_megabytes_and_a_large_one_at_8(client: Client) -> None:
    task_id = add(client, 300)
    page = client.get("/data/all", taskId=task_id, offset=0, size=200)
    assert 3_900_000 < len(page.content) < 4_000_300
    assert 120 < len(page.json()["data"]["data"]) < 140
    assert len(client.page(task_id, size=201)["data"]) == 201
    assert 255 < len(client.page(task_id, size=1000)["data"]) < 280
    for size in (200, 1000):
        assert client.rows(task_id, size) == client.control.true_rows(task_id)


@pytest.mark.parametrize("lots", [[2], [1, 1]])
def test_a_row_larger_than_a_page_still_comes(client: Client, lots: list[int]) -> None:
    rows = [{"text": "x" * 4_100_000}, {"text": "y"}]
    task_id = client.control.add_task(rows=rows, lots=lots)["task_id"]
    assert [len(client.page(task_id, offset, 100)["data"]) for offset in (0, 925)] == [1, 1]
    assert client.rows(task_id, 100) == client.control.true_rows(task_id)


@pytest.mark.webcollect_sandbox(empty_after_finish_seconds=10)
def test_rows_can_come_some_time_after_the_end(client: Client) -> None:
    client.start(demo.TASK_ID)
    client.control.advance(275)
    assert client.status(demo.TASK_ID)["status"] == "Finished"
    assert client.page(demo.TASK_ID) == {"offset": 0, "total": 0, "restTotal": 0, "data": []}
    client.control.advance(6)
    assert client.page(demo.TASK_ID)["total"] == 200


def test_rows_can_disappear(client: Client) -> None:
    task_id = add(client, 30, 20)
    client.control.grow(task_id, -5)
    assert client.page(task_id)["total"] == 45
    client.control.reset_data(task_id)
    assert client.page(task_id)["total"] == 0
    assert client.control.true_rows(task_id) == []
    client.control.grow(task_id, 3)
    assert len(client.rows(task_id)) == 3


def test_marking_covers_what_is_there_and_not_what_comes_later(client: Client) -> None:
    task_id = demo.FINISHED_TASK_ID
    assert data(client.post("/data/markexported", {"taskId": task_id}, client.key)) is None
    assert client.control.task(task_id)["exported"] is True
    client.control.grow(task_id, 1)
    task = client.control.task(task_id)
    assert task["exported"] is False
    assert [(run["rows"], run["exported_rows"], run["exported"]) for run in task["runs"]] == [
        (120, 120, True),
        (121, 120, False),
    ]


def test_the_same_seed_gives_the_same_rows(start_sandbox: StartSandbox) -> None:
    one, same, other = (start_sandbox(seed=seed, general_rate=100) for seed in (1, 1, 2))
    rows, again, others = (client.rows(demo.FINISHED_TASK_ID) for client in (one, same, other))
    assert rows == again != others


def test_made_up_rows_look_like_the_web(client: Client) -> None:
    task_id = add(client, 1000)
    rows = client.rows(task_id)
    assert len({row["id"] for row in rows}) == 1000
    assert {row["keyword"] for row in rows} == set(demo.LOOP_ITEMS)
    assert {type(value) for row in rows for value in row.values()} == {str, type(None)}
    assert any(value == "" for row in rows for value in row.values())
    text = "".join(value or "" for row in rows for value in row.values())
    assert all(character in text for character in '"\\\n\t,京ö🎧س')
    assert 180 < len(json.dumps(rows, ensure_ascii=False).encode()) / 1000 < 320


@pytest.mark.parametrize(
    "fields", [["only"], ["id", "word"], ["编号", 'a "b"', "c", "d", "e", "f", "g", "h", "i"]]
)
def test_rows_have_the_fields_asked_for(client: Client, fields: list[str]) -> None:
    task_id = add(client, 5, fields=fields)
    assert [list(row) for row in client.rows(task_id)] == [fields] * 5


def test_a_run_collects_the_given_rows_and_repeats_them(client: Client) -> None:
    rows: list[dict[str, Any]] = [{"name": "Ünal", "price": "1"}, {"name": None, "price": ""}]
    task_id = client.control.add_task(rows=rows)["task_id"]
    client.run(task_id)
    assert client.rows(task_id) == rows
    client.control.grow(task_id, 3)
    assert client.rows(task_id) == [*rows, *rows, rows[0]]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        (
            "table.csv",
            '\ufeffname,note\n"Ünal","two\nlines"\nB,\n',
            [{"name": "Ünal", "note": "two\nlines"}, {"name": "B", "note": ""}],
        ),
        ("table.jsonl", '{"n": "1"}\n\n{"n": "2"}\n{"n": "3"}\n', [{"n": "1"}, {"n": "2"}, {"n": "3"}]),
    ],
)
def test_every_run_collects_a_file_and_repeats_it(
    start_sandbox: StartSandbox, tmp_path: Path, name: str, content: str, rows: list[dict[str, str]]
) -> None:
    table = tmp_path / name
    table.write_text(content, encoding="utf-8")
    client = start_sandbox(data=table, enforce_limits=False)
    client.run(demo.TASK_ID)
    assert client.rows(demo.TASK_ID) == rows
    assert client.rows(add(client, 7)) == (rows * 4)[:7]


@pytest.mark.webcollect_sandbox(data="products")
class TestProducts:
    @staticmethod
    def runs(client: Client, count: int, **task: Any) -> list[list[dict[str, Any]]]:
        """Return the rows of each run of a new task; each run has 40 rows."""
        task_id = add(client, *[40] * count, **task)
        return [client.rows(task_id, lotno=f"{number:06d}") for number in range(1, count + 1)]

    def test_runs_differ_by_a_product_and_a_quarter_of_the_prices(self, client: Client) -> None:
        own = ("id", "url", "price")
        for before, after in itertools.pairwise(self.runs(client, 8)):
            kept = [
                [{k: v for k, v in row.items() if k not in own} for row in rows]
                for rows in (before[1:], after[:-1])
            ]
            assert kept[0] == kept[1]
            pairs = zip(before[1:], after[:-1], strict=True)
            assert 9 <= sum(was["price"] != row["price"] for was, row in pairs) <= 10

    def test_each_has_a_key_but_the_first_of_each_third_run(self, client: Client) -> None:
        runs = self.runs(client, 8)
        for key in ("id", "url"):
            without = [[n for n, row in enumerate(rows) if not row[key]] for rows in runs]
            assert without == [[], [], [0], [], [], [0], [], []]
            assert len({row[key] for rows in runs for row in rows if row[key]}) == 40 + 7

    def test_tasks_and_seeds_have_others(self, client: Client, start_sandbox: StartSandbox) -> None:
        same, other = (start_sandbox(data="products", seed=seed, general_rate=100) for seed in (1, 2))
        all_runs = [self.runs(service, 2) for service in (client, client, same, other)]
        assert all_runs[0] == all_runs[2]
        urls = [{row["url"] for rows in runs for row in rows} for runs in all_runs[1:]]
        assert len(set.union(*urls)) == 3 * 41

    def test_their_fields_number_and_size_are_those_asked_for(self, client: Client) -> None:
        client.control.configure(row_bytes=5000)
        fields = ["sku", "keyword", "name", "cost", "text"]
        task_id = add(client, 3, fields=fields)
        client.control.grow(task_id, 1)
        rows = client.rows(task_id)
        assert [list(row) for row in rows] == [fields] * 4
        assert len({row["sku"] for row in rows}) == 4
        assert {round(len(json.dumps(row, ensure_ascii=False).encode()), -2) for row in rows} == {5000}
        assert list(client.rows(add(client, 3, fields=["sku"], loop_items=[]))[0]) == ["sku"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("table.csv", "name,note\n", "has no rows"),
        ("table.csv", "name,note\n1,2,3\n", "more values than the header"),
        ("table.csv", "a,a,b\n1,2,3\n", "the header has a name twice"),
        ("table.jsonl", '{"a": 1}\n[1]\n', "table.jsonl: line 2: Expected `object`"),
        ("table.jsonl", "{\n", "truncated"),
    ],
)
def test_a_file_that_is_no_table_is_refused(
    start_sandbox: StartSandbox, tmp_path: Path, name: str, content: str, problem: str
) -> None:
    table = tmp_path / name
    table.write_text(content)
    with pytest.raises(ValueError, match=problem):
        start_sandbox(data=table)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_may_have_a_byte_order_mark_and_pages(
    start_sandbox: StartSandbox, tmp_path: Path, suffix: str
) -> None:
    page = "x" * 300_000
    text = f"page\n{page}\n" if suffix == "csv" else json.dumps({"page": page})
    (table := tmp_path / f"table.{suffix}").write_text(text, encoding="utf-8-sig")
    client = start_sandbox(data=table)
    client.run(demo.TASK_ID)
    assert client.control.true_rows(demo.TASK_ID) == [{"page": page}]


def test_memory_for_rows_is_bounded(client: Client) -> None:
    client.sandbox._state.blocks = BlockCache(1_000_000)
    task_id = add(client, 20_000)
    assert len(client.rows(task_id)) == 20_000
    assert client.page(task_id)["data"] == client.control.true_rows(task_id)[:1000]
