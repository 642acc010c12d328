"""What an attempt has left that ended before its commit: a retry goes on there, and no row is lost."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_webcollect.landing import staging
from airflow_provider_webcollect.service.errors import RequestRejected
from tests.interruption import PATIENCE
from tests.landing.conftest import Folder, Task
from tests.landing.interleaving import kill, stepping

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


def fail(task: Task, **options: Any) -> dict[str, Any]:
    """Have the service fail after six pages, and return what is staged."""
    task.control.fail("/data/all", after=6, times=1, status=400, code="Odd")
    with pytest.raises(RequestRejected, match="Odd"):
        task.land(**{"max_part_bytes": 1, **options})
    task.control.clear_requests()
    (staged,) = task.folder.staged()
    assert staged["parts"]
    return staged


def test_it_goes_on_after_the_last_part_and_rereads_its_last_page_and_the_first(task: Task) -> None:
    staged = fail(task, max_part_bytes=40_000)
    assert task.folder.commits() == []
    manifest = task.land(max_part_bytes=40_000)
    # at the end the first page, since the rows may have changed between the attempts
    *offsets, first = task.offsets()
    last, parts = staged["last_page"]["offset"], staged["parts"]
    assert (min(offsets), first) == (last, 0)
    assert offsets[:2] == [last, parts[-1]["next_offset"]]
    assert [part.name for part in manifest.parts[: len(parts)]] == [part["name"] for part in parts]
    assert task.folder.rows() == task.rows()
    assert task.folder.names() == task.folder.needed()


@pytest.mark.usefixtures("each_part_is_staged")
def test_what_was_read_but_not_committed_is_committed_by_the_next_try(task: Task) -> None:
    kill(
        lambda place: task.land(folder=place, max_part_bytes=1),
        task.folder.destination,
        ("create", "00000001.json"),
    )
    task.control.clear_requests()
    task.land()
    assert len(task.control.requests()) == 2
    assert task.folder.rows() == task.rows()


@pytest.mark.parametrize("content", [None, b"cut"], ids=["vanished", "cut"])
def test_of_what_is_staged_with_a_part_that_is_not_whole_all_is_read_again(
    task: Task, folder: Folder, content: bytes | None
) -> None:
    name = fail(task)["parts"][1]["name"]
    folder.damage(name, content)
    task.land(max_part_bytes=1)
    assert task.offsets()[0] == 0
    assert folder.rows() == task.rows()


@pytest.mark.parametrize("grown", [40, 2000])
def test_of_a_source_that_was_reset_meanwhile_all_is_read_again(
    task: Task, folder: Folder, grown: int
) -> None:
    fail(task)
    rows = task.refill(grown)
    task.land(max_part_bytes=1)
    assert folder.rows() == rows
    assert len(rows) == grown


def test_it_is_written_once_a_second_at_most_and_after_an_error(
    task: Task, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert staging.INTERVAL == 1.0
    # as long as that takes on the slowest machine
    monkeypatch.setattr(staging, "INTERVAL", PATIENCE)
    operations: list[str] = []
    destination = stepping(folder.destination, lambda operation, path: operations.append(operation))
    fail(task, folder=destination)
    assert operations.count("write") == 1
