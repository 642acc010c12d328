"""The exactly-once move: all rows, each once, in order, or nothing that a reader could take for them."""

from __future__ import annotations

import functools
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import airflow_provider_webcollect
from airflow_provider_webcollect.landing import copy
from airflow_provider_webcollect.landing.errors import RowsMissing
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import pauses
from airflow_provider_webcollect.service.endpoints import read_data
from airflow_provider_webcollect.service.errors import RequestRejected
from airflow_provider_webcollect.service.models import DataPage
from airflow_provider_webcollect.service.responses import Response, read_response
from tests.landing.conftest import RUN, Folder, Landed, Task, listed
from tests.landing.pages import counted_page, serving

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.mark.parametrize("why", ["long read", "wait", "mark"])
@pytest.mark.parametrize("change", ["reset", "newest first"])
def test_rows_that_change_while_they_are_read_are_not_committed(
    landing: Landed, folder: Folder, monkeypatch: pytest.MonkeyPatch, why: str, change: str
) -> None:
    rows = [{"n": f"{number}"} for number in range(300)]
    other = [{"n": f"other {number}"} for number in range(300)]

    def changing(pages: Iterator[DataPage]) -> Iterator[DataPage]:
        for number, each in enumerate(pages):
            yield each
            if number == (1 if why == "wait" else 0):
                rows[:] = other if change == "reset" else [{"n": "new"}, *rows[:-1]]

    options: dict[str, Any] = {"read": changing}
    if why == "long read":
        monkeypatch.setattr(copy, "LONG_READ", 0.0)
    elif why == "wait":
        # the source shows no rows at first
        late, rows[:] = rows[:], []
        options |= {"late_rows_delay": 3.0, "sleep": lambda seconds: rows.__setitem__(slice(None), late)}
    else:
        options |= {"mark": lambda: pytest.fail("these rows must not be marked")}
    with pytest.raises(RowsMissing, match="the first rows have changed since they were read"):
        landing("t", fetch=serving(rows), max_part_bytes=1, **options)
    assert folder.commits() == []
    landing("t", fetch=serving(rows))
    assert folder.rows() == rows


class TestLanding:
    def test_every_row_lands_once_and_in_order(self, task: Task, folder: Folder) -> None:
        manifest = task.land()
        assert folder.rows() == task.rows()
        assert manifest.rows == 1000
        assert folder.names() == {"_manifest.json", "_commits/00000001.json", manifest.parts[0].name}
        assert len(task.control.requests()) == 10

    def test_one_batch_lands_alone(self, task: Task, folder: Folder) -> None:
        task.land("000002")
        assert folder.rows() == task.rows("000002")
        assert folder.manifest()["source"] == {"collection_task_id": task.id, "lotno": "000002", "host": None}

    def test_parts_end_with_the_page_that_reaches_the_size(self, task: Task, folder: Folder) -> None:
        manifest = task.land(size=70, max_part_bytes=20_000)
        assert folder.rows() == task.rows()
        assert len(manifest.parts) > 5
        assert all(part.bytes >= 20_000 for part in manifest.parts[:-1])
        assert all(part.bytes < 40_000 for part in manifest.parts)
        assert sorted(part.name for part in manifest.parts) == [part.name for part in manifest.parts]
        cursors = [part.start_offset for part in manifest.parts] + [manifest.next_offset]
        assert cursors[0] == 0
        assert [part.next_offset for part in manifest.parts] == cursors[1:]
        assert folder.names() == folder.needed()

    @pytest.mark.webcollect_sandbox(enforce_limits=False, row_bytes=12_000)
    def test_a_part_of_many_megabytes_arrives_whole(self, task: Task, folder: Folder) -> None:
        (part,) = task.land(size=1000).parts
        assert part.bytes > 10_000_000
        assert folder.rows() == task.rows()

    def test_the_manifest_says_what_where_whence_and_when(self, task: Task, folder: Folder) -> None:
        task.land()
        manifest = folder.manifest()
        assert set(manifest) == {
            *("version", "commit", "first_commit", "source", "rows", "bytes", "format", "compression"),
            *("encoding", "table_format", "columns", "next_offset", "last_page", "total", "earlier_rows"),
            *("run", "started_at", "finished_at", "exported_at", "provider_version", "checks", "history"),
            *("set_apart", "log_id", "profile", "replaced", "rows_commit", "part_count", "parts"),
        }
        (part,) = manifest["parts"]
        assert set(part) == {"name", "start_offset", "next_offset", "rows", "bytes", "sha256", "commit"}
        assert part["commit"] == manifest["commit"] == 1
        assert set(manifest["last_page"]) == {"offset", "rows", "sha256"}
        assert manifest["version"] == 1
        assert manifest["format"] == "jsonl"
        assert manifest["compression"] is manifest["columns"] is None
        assert manifest["run"] == {"dag_id": "d", "task_id": "t", "run_id": "r1", "map_index": -1}
        assert manifest["provider_version"] == airflow_provider_webcollect.__version__
        assert manifest["started_at"] <= manifest["finished_at"]

    def test_progress_is_told(self, task: Task) -> None:
        reported: list[tuple[int, int]] = []
        task.land(size=400, on_progress=lambda rows, total: reported.append((rows, total)))
        assert reported == [(400, 1000), (800, 1000), (1000, 1000)]

    def test_an_empty_source_is_committed(self, landing: Landed, folder: Folder, sandbox: Sandbox) -> None:
        empty = sandbox.control.add_task()["task_id"]
        manifest = landing(empty)
        assert (manifest.rows, manifest.parts) == (0, ())
        assert folder.rows() == []
        assert folder.names() == {"_manifest.json", "_commits/00000001.json"}

    @pytest.mark.parametrize(("late_rows_delay", "waits"), [(0, []), (1, [1]), (5, [2, 2, 1])])
    def test_an_empty_source_is_not_waited_for_longer_than_asked_and_a_long_wait_is_announced(
        self,
        landing: Landed,
        sandbox: Sandbox,
        late_rows_delay: float,
        waits: list[float],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO")
        empty = sandbox.control.add_task()["task_id"]
        slept: list[float] = []
        landing(empty, late_rows_delay=late_rows_delay, sleep=slept.append)
        assert slept == waits
        assert caplog.text.count("Waiting up to 5 s for all rows to be shown") == (late_rows_delay == 5)

    def test_a_long_wait_says_how_much_of_it_is_left(
        self,
        landing: Landed,
        sandbox: Sandbox,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        caplog.set_level("INFO")
        monkeypatch.setattr(pauses, "LINES_APART", 0.0)
        landing(sandbox.control.add_task()["task_id"], late_rows_delay=7, sleep=lambda seconds: None)
        said = [message for message in caplog.messages if message.startswith("Waiting up to")]
        assert [message.split(" for ")[0] for message in said] == [
            "Waiting up to 7 s",
            "Waiting up to 5 s",
            "Waiting up to 3 s",
        ]

    def test_rows_that_are_added_while_reading_are_landed_too(self, task: Task, folder: Folder) -> None:
        def growing(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for number, each in enumerate(pages):
                if number == 2:
                    task.grow(130)
                yield each

        assert task.land(read=growing).rows == 1130
        assert folder.rows() == task.rows()

    def test_a_total_that_has_grown_beyond_the_last_page_is_read_up_to(
        self, landing: Landed, folder: Folder, sandbox: Sandbox
    ) -> None:
        task = sandbox.control.add_task(rows=30, state="Finished")["task_id"]

        def told_early(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for each in pages:
                if each.total == 30:
                    sandbox.control.grow(task, 20)
                    each = msgspec.structs.replace(each, total=50)
                yield each

        assert landing(task, read=told_early).rows == 50
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_pretty_printed_rows_take_a_line_each(self, task: Task, folder: Folder) -> None:
        rows = [{"a": "x\ny", "b": [1, {"c": "\u2028"}]}, {}, {"d": "\r"}, {"e": 1}]
        page = {"data": {"offset": 9, "total": 4, "restTotal": 0, "data": rows}}
        pretty = json.dumps(page, indent=2, ensure_ascii=False).replace("\n", "\r\n").encode()
        pages = [read_response(read_data(task.id).result, Response(200, {}, pretty))]
        task.land(fetch=listed(pages))
        assert folder.rows() == rows

    # the other kinds keep the files themselves in memory
    @pytest.mark.parametrize("folder", ["local"], indirect=True)
    def test_memory_does_not_grow_with_the_rows(
        self, landing: Landed, sandbox: Sandbox, folder: Folder
    ) -> None:
        body = [msgspec.Raw(b'{"id":%d,"text":"%s"}' % (n, b"x" * 100)) for n in range(1000)]

        def give(count: int, offset: int) -> DataPage:
            rows = [msgspec.Raw(bytes(row)) for row in body]
            end = offset + 1000
            return DataPage(offset=end, total=count * 1000, rest_total=count * 1000 - end, rows=rows)

        def peak(count: int) -> int:
            tracemalloc.start()
            try:
                landing(
                    "t",
                    fetch=functools.partial(give, count),
                    max_part_bytes=1_000_000,
                    if_exists="overwrite",
                    run=msgspec.structs.replace(RUN, run_id=str(count)),
                )
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peak(5)
        # one page more or less may be held at a time
        assert peak(100) < 2 * peak(20)


class TestCounts:
    @pytest.mark.parametrize(("total", "rest"), [(5, 0), (1, 0)], ids=["fewer", "more"])
    def test_more_or_fewer_than_announced_are_not_landed(self, task: Task, total: int, rest: int) -> None:
        pages = [counted_page([{"a": 1}, {"a": 2}], 9, total, rest)]
        with pytest.raises(RowsMissing, match=f"task {task.id}: .* announced {total} rows, and 2 came"):
            task.land(fetch=listed(pages))
        assert task.folder.commits() == []

    @pytest.mark.parametrize("grown", [40, 2000])
    def test_rows_that_were_landed_in_part_and_then_reset_are_read_anew(self, task: Task, grown: int) -> None:
        task.control.fail("/data/all", after=6, times=1, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            task.land(max_part_bytes=1)
        task.refill(grown)
        task.land(max_part_bytes=1)
        assert task.folder.rows() == task.rows()
        assert len(task.folder.rows()) == grown
