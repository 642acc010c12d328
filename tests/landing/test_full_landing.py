"""Full landings: all rows land, each once and in order, or readers see none of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.errors import RowsMissing
from airflow_provider_webcollect.landing.log.commits import VERSION
from airflow_provider_webcollect.landing.write import copy, staging
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import RequestRejected, WebCollectError
from airflow_provider_webcollect.service.models import DataPage
from tests.interruption import PATIENCE
from tests.landing.conftest import Folder, Landed, Task, in_order, listed
from tests.landing.pages import Fetch, counted_page, serving
from tests.simulation.samples import ALL_HISTORIES
from tests.simulation.steps import stepping

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

TWO_ROWS = [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("why", ["long read", "wait", "mark"])
@pytest.mark.parametrize("change", ["reset", "newest first"])
def test_rows_that_change_while_they_are_read_are_not_committed(
    landing: Landed, folder: Folder, monkeypatch: pytest.MonkeyPatch, why: str, change: str
) -> None:
    rows = [{"n": f"{number}"} for number in range(300)]
    other = [{"n": f"other {number}"} for number in range(300)]

    def changing(pages: Iterator[DataPage]) -> Iterator[DataPage]:
        for number, page in enumerate(pages):
            yield page
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
    def test_the_manifest_describes_the_landing(self, task: Task, folder: Folder) -> None:
        task.land()
        manifest = folder.manifest()
        (part,) = manifest["parts"]
        assert part["commit"] == manifest["commit"] == 1
        assert manifest["version"] == VERSION
        assert manifest["format"] == "jsonl"
        assert manifest["compression"] is manifest["columns"] is None
        assert manifest["run"] == {"dag_id": "d", "task_id": "t", "run_id": "r1", "map_index": -1}
        assert manifest["provider_version"] == airflow_provider_webcollect.__version__
        assert manifest["started_at"] <= manifest["finished_at"]

    def test_progress_is_reported(self, task: Task) -> None:
        reported: list[tuple[int, int]] = []
        task.land(size=400, on_progress=lambda rows, total: reported.append((rows, total)))
        assert reported == [(400, 1000), (800, 1000), (1000, 1000)]

    def test_a_total_that_grows_late_is_read(self, landing: Landed, folder: Folder, sandbox: Sandbox) -> None:
        task = sandbox.control.add_task(rows=30, state="Finished")["task_id"]

        def told_early(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for page in pages:
                if page.total == 30:
                    sandbox.control.grow(task, 20)
                    page = msgspec.structs.replace(page, total=50)
                yield page

        assert landing(task, read=told_early).rows == 50
        assert folder.rows() == sandbox.control.true_rows(task)


def endless(total: Callable[[int], int]) -> Fetch:
    """Return a source that always gives two rows and says that eight are left."""
    return in_order(counted_page(TWO_ROWS, offset, total(offset), 8) for offset in itertools.count(2, 2))


def changing() -> Fetch:
    """Return a source that gives four rows, and different ones when it is read again."""
    pages = [counted_page(TWO_ROWS, 2, 6, 4), counted_page(TWO_ROWS, 4, 4, 0)]
    return in_order(itertools.chain(pages, itertools.repeat(counted_page([{"b": 1}], 2, 4, 2))))


SHRINKING = [counted_page(TWO_ROWS, 2, 10, 8), counted_page(TWO_ROWS, 4, 9, 5)]
#: Counts that make no sense: a function that returns a source with them, and what the error says.
COUNTS: dict[str, tuple[Callable[[], Fetch], str]] = {
    "fewer than announced": (lambda: listed([counted_page(TWO_ROWS, 9, 5, 0)]), "5 rows, and 2 came"),
    "more than announced": (lambda: listed([counted_page(TWO_ROWS, 9, 1, 0)]), "1 rows, and 2 came"),
    "a total that shrinks": (lambda: listed(SHRINKING), "announced 9 rows, and 4 came"),
    "a total that shrinks as rows change": (changing, "the first rows have changed"),
    "more and more": (lambda: endless(lambda offset: 10), "announced 10 rows, 12 came, and more are said"),
    "no end": (lambda: endless(lambda offset: offset + 8), "8 rows or more left for 1000 pages"),
}


@pytest.mark.parametrize("counts", COUNTS)
def test_more_or_fewer_than_announced_are_not_landed(landing: Landed, folder: Folder, counts: str) -> None:
    fetch, said = COUNTS[counts]
    with pytest.raises(RowsMissing, match=f"task t: .*{said}"):
        landing("t", fetch=fetch())
    assert folder.commits() == []
    assert folder.staged() == []


def test_a_total_that_shrinks_to_the_rows_that_came_is_believed(landing: Landed) -> None:
    asked: list[int] = []
    pages = listed([counted_page(TWO_ROWS, 2, 6, 4), counted_page(TWO_ROWS, 4, 4, 0)])

    def fetch(offset: int) -> DataPage:
        asked.append(offset)
        return pages(offset)

    assert landing("t", fetch=fetch).rows == 4
    # the first page is read again, since all rows may have been removed
    assert asked == [0, 2, 0]


FAULTS: dict[str, dict[str, Any]] = {
    "status": {},
    "too many requests": {"kind": "status", "status": 429},
    "token rejected": {"kind": "status", "status": 401},
    "error under 200": {"kind": "status", "status": 200},
    "html": {},
    # a redirect to the service itself would be followed: see tests/service
    "redirect": {"kind": "raw", "status": 307, "headers": {"Location": "http://elsewhere.invalid/"}},
    "drop": {},
    "no answer": {"kind": "drop", "done": True},
    "broken_json": {},
    "cut_body": {},
    "slow": {"seconds": 0.01},
}
PAGES = 500 if ALL_HISTORIES else 100


@pytest.mark.by_day(4)
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("folder", ["local"], indirect=True)
def test_faults_change_nothing(landing: Landed, folder: Folder, sandbox: Sandbox, kind: str) -> None:
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


def fail_later(task: Task, **options: Any) -> dict[str, Any]:
    """Have the service fail after six pages, and return what is staged."""
    task.control.fail("/data/all", after=6, times=1, status=400, code="Odd")
    with pytest.raises(RequestRejected, match="Odd"):
        task.land(**{"max_part_bytes": 1, **options})
    task.control.clear_requests()
    (staged,) = task.folder.staged()
    assert staged["parts"]
    return staged


def test_a_retry_goes_on_after_the_last_staged_part(task: Task) -> None:
    staged = fail_later(task, max_part_bytes=40_000)
    assert task.folder.commits() == []
    manifest = task.land(max_part_bytes=40_000)
    # the first page is read last, since the rows may have changed between the attempts
    *offsets, first = task.offsets()
    last, parts = staged["last_page"]["offset"], staged["parts"]
    assert (min(offsets), first) == (last, 0)
    assert offsets[:2] == [last, parts[-1]["next_offset"]]
    assert [part.name for part in manifest.parts[: len(parts)]] == [part["name"] for part in parts]
    assert task.folder.rows() == task.rows()
    assert task.folder.names() == task.folder.needed()


def test_each_retry_goes_on_after_the_furthest_part(task: Task, folder: Folder) -> None:
    staged = fail_later(task, size=20)
    (name,) = (name for name in folder.names() if name.startswith("_staged/"))
    for _ in range(4):
        before, staged = staged, fail_later(task, size=20)
        assert staged["parts"][: len(before["parts"])] == before["parts"]
        assert staged["total"] > before["total"]
        # as if killed before it could delete this record, the last one by name
        folder.write(f"{name[: -len('01234567.json')]}ffffffff.json", json.dumps(before).encode())
    task.land()
    assert task.folder.rows() == task.rows()
    assert task.folder.names() == task.folder.needed()


@pytest.mark.parametrize("content", [None, b"cut"], ids=["vanished", "cut"])
def test_a_damaged_staged_part_has_all_read_again(task: Task, folder: Folder, content: bytes | None) -> None:
    name = fail_later(task)["parts"][1]["name"]
    folder.damage(name, content)
    task.land(max_part_bytes=1)
    assert task.offsets()[0] == 0
    assert folder.rows() == task.rows()


def test_staging_once_a_second_at_most(task: Task, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert staging.INTERVAL == 1.0
    # longer than this test takes on the slowest machine
    monkeypatch.setattr(staging, "INTERVAL", PATIENCE)
    operations: list[str] = []
    destination = stepping(folder.destination, lambda operation, path: operations.append(operation))
    fail_later(task, folder=destination)
    assert operations.count("write") == 1
