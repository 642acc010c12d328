"""Rows of a run that has just finished, which the source shows later than those of older runs."""

from __future__ import annotations

import dataclasses
import time

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import threads
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import mark_exported
from tests.landing.conftest import OTHER_RUN, RUN, Folder, Landed, rows_of_last_run

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@dataclasses.dataclass
class Case:
    """A landing of a task with 300 rows in a batch, and 40 of a run that has finished but shows them later.

    :param slept: the waits that are expected.
    :param rows: how many rows are landed in the end.
    :param shown_after: seconds until the 40 are shown.
    :param has_landed: whether the 300 are landed already.
    :param grown: rows that it has got at once instead of the 40.
    :param delay: seconds that the landing waits at most.
    :param began: how many seconds ago the work on several sources began.
    """

    slept: list[float]
    rows: int = 340
    shown_after: float = 6
    has_landed: bool = True
    grown: int = 0
    marks: bool = False
    mode: str = "incremental"
    delay: float = 15
    began: float | None = None


CASES = {
    "a landing that grows waits for them": Case([15]),
    "before a mark, more may come": Case([15, 15], marks=True),
    "they land before they are marked, in pieces": Case([15], has_landed=False, marks=True),
    "also by a full landing": Case([15], has_landed=False, marks=True, mode="full"),
    "no longer than asked": Case([5], rows=300, delay=5, shown_after=15),
    "not if rows are found at once": Case([], rows=305, grown=5),
    "the time counts from when the work on several sources began": Case([], rows=300, began=100),
    "before a mark whenever that work began": Case([15, 15], marks=True, began=100),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_they_are_waited_for(
    landing: Landed, folder: Folder, sandbox: Sandbox, client: Client, case: Case
) -> None:
    task = sandbox.control.add_task(lots=[300], rows=40)["task_id"]
    if case.has_landed:
        landing(task, mode=case.mode)
    if case.grown:
        sandbox.control.grow(task, case.grown)
    else:
        # queued for 30 seconds, then at work for 240
        sandbox.control.configure(empty_after_finish_seconds=3600)
        sandbox.control.start_task(task)
        sandbox.control.advance(271)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) >= case.shown_after:
            sandbox.control.configure(empty_after_finish_seconds=0)

    manifest = landing(
        task,
        mode=case.mode,
        run=OTHER_RUN,
        late_rows_delay=case.delay,
        sleep=sleep,
        mark=(lambda: client.send(mark_exported(task))) if case.marks else None,
        began=None if case.began is None else time.monotonic() - case.began,
    )
    assert slept == case.slept
    assert len(folder.rows()) == manifest.rows == case.rows
    if case.has_landed and case.rows > 300:
        assert rows_of_last_run(manifest) == case.rows - 300
    exported = sum(run["exported_rows"] for run in sandbox.control.task(task)["runs"])
    assert exported == (case.rows if case.marks else 0)


@pytest.mark.parametrize(("late_rows_delay", "waits"), [(0, []), (1, [1]), (7, [2, 2, 2, 1])])
def test_an_empty_source_is_waited_for_once_by_each_run_which_says_how_long(
    landing: Landed,
    sandbox: Sandbox,
    late_rows_delay: float,
    waits: list[float],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(threads, "LINES_APART", 0.0)
    task, slept = sandbox.control.add_task()["task_id"], list[float]()
    for run in (RUN, OTHER_RUN):
        landing(task, mode="incremental", run=run, late_rows_delay=late_rows_delay, sleep=slept.append)
    assert slept == 2 * waits
    said = [message.split(" for all rows")[0] for message in caplog.messages if "for all rows" in message]
    assert said == (
        ["Waiting up to 7 s", "Waiting up to 5 s", "Waiting up to 3 s"] * 2 if late_rows_delay == 7 else []
    )
