"""What a landing has left that ended before its commit: the next goes on there, and no row is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_webcollect.landing.lease import Lease
from airflow_provider_webcollect.service.errors import RequestRejected
from tests.landing.conftest import (
    OTHER_RUN,
    Crash,
    Folder,
    Task,
)

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


class TestResuming:
    def test_it_goes_on_after_the_last_recorded_part_and_rereads_its_last_page_and_the_first(
        self, task: Task
    ) -> None:
        task.control.fail("/data/all", after=6, times=1, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            task.land(max_part_bytes=40_000)
        progress = json.loads(task.folder.read("_progress.json"))
        recorded = progress["parts"]
        assert recorded
        assert "_manifest.json" not in task.folder.names()
        task.control.clear_requests()
        manifest = task.land(max_part_bytes=40_000)
        # at the end the first page, since the rows may have changed between the attempts
        *offsets, first = task.offsets()
        assert (min(offsets), first) == (progress["last_page"]["offset"], 0)
        assert offsets[:2] == [progress["last_page"]["offset"], recorded[-1]["next_offset"]]
        assert [part.name for part in manifest.parts[: len(recorded)]] == [part["name"] for part in recorded]
        assert task.folder.rows() == task.rows()
        assert task.folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}
        assert manifest.started_at == progress["started_at"]

    def test_another_run_resumes_what_is_unfinished(self, task: Task, folder: Folder) -> None:
        task.control.fail("/data/all", after=6, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            task.land(max_part_bytes=1)
        task.control.clear_faults()
        task.control.clear_requests()
        assert task.land(max_part_bytes=1, run=OTHER_RUN).run == OTHER_RUN
        assert len(task.offsets()) < 10
        assert folder.rows() == task.rows()

    def test_what_was_read_but_not_committed_is_committed_by_the_next_try(
        self, task: Task, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(*arguments: Any) -> None:
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(Lease, "commit", crash)
            with pytest.raises(Crash):
                task.land()
        task.control.clear_requests()
        task.land()
        assert len(task.control.requests()) == 2
        assert task.folder.rows() == task.rows()

    def test_a_recorded_part_that_has_vanished_is_read_again(self, task: Task, folder: Folder) -> None:
        task.control.fail("/data/all", after=6, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            task.land(max_part_bytes=1)
        names = [part["name"] for part in json.loads(folder.read("_progress.json"))["parts"]]
        folder.fs.rm_file(f"{folder.root}/{names[1]}")
        folder.write(names[3], b"cut")
        task.land(max_part_bytes=1)
        assert folder.rows() == task.rows()
