"""Rows of a run that has just finished, which the source shows later than those of older runs."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.service.endpoints import mark_exported
from tests.landing.conftest import (
    OTHER_RUN,
    RUN,
    Folder,
    Landed,
    rows_of_last_run,
)

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.client import Client

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@dataclasses.dataclass
class FinishedLate:
    """A task with 300 rows in a batch, and 40 of a run that has finished but shows them later.

    :param after: seconds until it shows them.
    """

    sandbox: Sandbox
    task: str
    after: float
    slept: list[float] = dataclasses.field(default_factory=list)

    def finish(self) -> None:
        # queued for 30 seconds, then at work for 240
        self.sandbox.control.configure(empty_after_finish_seconds=3600)
        self.sandbox.control.start_task(self.task)
        self.sandbox.control.advance(271)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if sum(self.slept) >= self.after:
            self.sandbox.control.configure(empty_after_finish_seconds=0)

    def exported(self) -> int:
        return sum(run["exported_rows"] for run in self.sandbox.control.task(self.task)["runs"])


class TestLateRows:
    """Rows of a run that has just finished, which the source shows later than those of older runs."""

    @pytest.fixture
    def late(self, sandbox: Sandbox) -> FinishedLate:
        return FinishedLate(sandbox, sandbox.control.add_task(lots=[300], rows=40)["task_id"], after=6)

    @pytest.fixture
    def options(self, late: FinishedLate, client: Client) -> dict[str, Any]:
        return {
            "late_rows_delay": 15,
            "sleep": late.sleep,
            "mark": lambda: client.send(mark_exported(late.task)),
        }

    @pytest.mark.parametrize("marks", [False, True], ids=["", "marks"])
    def test_a_growing_landing_waits_for_them(
        self, landing: Landed, folder: Folder, late: FinishedLate, options: dict[str, Any], marks: bool
    ) -> None:
        landing(late.task, mode="incremental")
        late.finish()
        options["mark"] = options["mark"] if marks else None
        manifest = landing(late.task, mode="incremental", run=OTHER_RUN, **options)
        # before a mark, more may come
        assert late.slept == ([15, 15] if marks else [15])
        assert rows_of_last_run(manifest) == len(folder.rows()) - 300 == 40
        assert late.exported() == (340 if marks else 0)

    @pytest.mark.parametrize("mode", ["full", "incremental"])
    def test_they_land_before_they_are_marked(
        self, landing: Landed, folder: Folder, late: FinishedLate, options: dict[str, Any], mode: str
    ) -> None:
        late.finish()
        landing(late.task, mode=mode, **options)
        assert len(folder.rows()) == late.exported() == 340
        # more may come in pieces
        assert late.slept == [15]

    def test_they_are_waited_for_no_longer_than_asked(
        self, landing: Landed, late: FinishedLate, options: dict[str, Any]
    ) -> None:
        first = landing(late.task, mode="incremental")
        late.finish()
        options["mark"] = None
        options["late_rows_delay"] = 5
        late.after = 15
        assert landing(late.task, mode="incremental", run=OTHER_RUN, **options).parts == first.parts
        assert late.slept == [5]

    def test_a_growing_landing_that_finds_rows_at_once_does_not_wait(
        self, landing: Landed, late: FinishedLate, sandbox: Sandbox, options: dict[str, Any]
    ) -> None:
        landing(late.task, mode="incremental")
        sandbox.control.grow(late.task, 5)
        options["mark"] = None
        assert landing(late.task, mode="incremental", run=OTHER_RUN, **options).rows == 305
        assert late.slept == []

    def test_an_empty_source_is_waited_for_once(
        self, landing: Landed, sandbox: Sandbox, late: FinishedLate, options: dict[str, Any]
    ) -> None:
        empty = sandbox.control.add_task()["task_id"]
        for run in (RUN, OTHER_RUN):
            landing(empty, mode="incremental", run=run, **{**options, "late_rows_delay": 2})
        assert late.slept == [2, 2]

    def test_the_time_counts_from_when_the_work_on_several_sources_began(
        self, landing: Landed, late: FinishedLate, options: dict[str, Any]
    ) -> None:
        landing(late.task, mode="incremental")
        began = time.monotonic() - 100
        landing(late.task, mode="incremental", run=OTHER_RUN, **{**options, "mark": None}, began=began)
        assert late.slept == []

    def test_before_a_mark_they_are_waited_for_whenever_that_work_began(
        self, landing: Landed, folder: Folder, late: FinishedLate, options: dict[str, Any]
    ) -> None:
        landing(late.task, mode="incremental")
        late.finish()
        landing(late.task, mode="incremental", run=OTHER_RUN, **options, began=time.monotonic() - 100)
        assert late.slept == [15, 15]
        assert len(folder.rows()) == late.exported() == 340
