"""What a landing has left that ended before its commit: the next goes on there, and no row is lost."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.landing.lease import Lease
from airflow_provider_webcollect.service.errors import RequestRejected, ServiceFailure
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.conftest import (
    OTHER_RUN,
    Crash,
    Folder,
    Landed,
    StoreFile,
    crashing_at,
    offsets_asked,
)

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 1000 rows in two batches."""
    task_id: str = sandbox.control.add_task(rows=500, lots=2)["task_id"]
    return task_id


class TestResuming:
    def test_it_goes_on_after_the_last_recorded_part_and_rereads_its_last_page_and_the_first(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        sandbox.control.fail("/data/all", after=6, times=1, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task, max_part_bytes=40_000)
        progress = json.loads(folder.read("_progress.json"))
        recorded = progress["parts"]
        assert recorded
        assert "_manifest.json" not in folder.names()
        sandbox.control.clear_requests()
        manifest = landing(task, max_part_bytes=40_000)
        # at the end the first page, since the rows may have changed between the attempts
        *offsets, first = offsets_asked(sandbox)
        assert (min(offsets), first) == (progress["last_page"]["offset"], 0)
        assert offsets[:2] == [progress["last_page"]["offset"], recorded[-1]["next_offset"]]
        assert [part.name for part in manifest.parts[: len(recorded)]] == [part["name"] for part in recorded]
        assert folder.rows() == sandbox.control.true_rows(task)
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}
        assert manifest.started_at == progress["started_at"]

    @pytest.mark.by_day(3)
    @pytest.mark.parametrize("number", range(14))
    def test_it_survives_a_crash_at_every_page(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, number: int
    ) -> None:
        try:
            landing(task, size=90, max_part_bytes=30_000, read=crashing_at(number))
        except Crash:
            assert "_manifest.json" not in folder.names()
        landing(task, size=90, max_part_bytes=30_000)
        assert folder.rows() == sandbox.control.true_rows(task)

    @pytest.mark.by_day(5)
    @pytest.mark.parametrize("step", range(30))
    def test_it_survives_a_crash_at_every_change_of_the_destination(
        self,
        landing: Landed,
        folder: Folder,
        sandbox: Sandbox,
        task: str,
        step: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Crashes before the n-th opening, renaming, publishing or removal of a file, and in the retry."""
        crash_at(step, folder, monkeypatch)
        for _ in range(2):
            try:
                landing(task, size=200, max_part_bytes=30_000)
            except Crash:
                if "_manifest.json" in folder.names():
                    assert folder.rows() == sandbox.control.true_rows(task)
        monkeypatch.undo()
        manifest = landing(task, size=200, max_part_bytes=30_000)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}

    def test_a_part_that_was_not_finished_is_never_seen(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        seen: set[str] = set()

        def observed(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for number, each in enumerate(pages):
                seen.update(name for name in folder.names() if name.startswith("part-"))
                if number == 4:
                    raise ServiceFailure("in mid-read")
                yield each

        with pytest.raises(ServiceFailure):
            landing(task, read=observed)
        assert seen == set()
        assert folder.names() == set()

    @pytest.mark.parametrize("folder", ["store"], indirect=True)
    def test_an_upload_that_was_begun_is_aborted(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        sandbox.control.fail("/data/all", after=6, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task)
        gc.collect()
        *_, last = folder.fs.operations
        assert last.startswith("discard bucket/landing/part-00001-")
        assert not [each for each in folder.fs.operations if each.startswith("commit bucket/landing/part-")]

    def test_another_run_resumes_what_is_unfinished(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        sandbox.control.fail("/data/all", after=6, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task, max_part_bytes=1)
        sandbox.control.clear_faults()
        sandbox.control.clear_requests()
        assert landing(task, max_part_bytes=1, run=OTHER_RUN).run == OTHER_RUN
        assert len(offsets_asked(sandbox)) < 10
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_what_was_read_but_not_committed_is_committed_by_the_next_try(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(*arguments: Any) -> None:
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(Lease, "commit", crash)
            with pytest.raises(Crash):
                landing(task)
        sandbox.control.clear_requests()
        landing(task)
        assert len(sandbox.control.requests()) == 2
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_a_recorded_part_that_has_vanished_is_read_again(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        sandbox.control.fail("/data/all", after=6, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task, max_part_bytes=1)
        names = [part["name"] for part in json.loads(folder.read("_progress.json"))["parts"]]
        folder.fs.rm_file(f"{folder.root}/{names[1]}")
        folder.write(names[3], b"cut")
        landing(task, max_part_bytes=1)
        assert folder.rows() == sandbox.control.true_rows(task)


def crash_at(step: int, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the filesystem end the process before its ``step``-th change, and again in the retry."""
    left = step

    def crashing(change: Any) -> Any:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if change.__name__ != "_open" or "w" in options["mode"]:
                left -= 1
                if left == 0:
                    left = step // 2
                    raise Crash
            return change(*arguments, **options)

        return changed

    kind = type(folder.fs)
    for name in ("_open", "mv", "rm_file"):
        monkeypatch.setattr(kind, name, crashing(getattr(kind, name)))
    monkeypatch.setattr(StoreFile, "commit", crashing(StoreFile.commit))
