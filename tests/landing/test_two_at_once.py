"""Two landings in one folder: heartbeats keep the lease, and the other stays away or takes over."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from airflow_provider_webcollect.landing.errors import DestinationBusy, LeaseLost
from airflow_provider_webcollect.landing.job import LeaseTiming
from airflow_provider_webcollect.service.models import DataPage
from tests.interruption import PATIENCE
from tests.landing.conftest import (
    OTHER_RUN,
    Folder,
    Landed,
    in_order,
)

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

#: Heartbeats in quick succession.
QUICK = LeaseTiming(heartbeat_interval=0.001, progress_interval=0)


class Heart:
    """The timing of a landing whose heartbeats come in quick succession, unless they are held back."""

    progress_interval = 0.0
    watch_interval = LeaseTiming.watch_interval
    abandoned_after = LeaseTiming.abandoned_after

    def __init__(self) -> None:
        self._beating = threading.Event()
        self._beating.set()

    @property
    def heartbeat_interval(self) -> float:
        assert self._beating.wait(PATIENCE)
        return 0.001

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no heartbeat come while the block runs, but for one that is on its way."""
        self._beating.clear()
        yield
        self._beating.set()


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 300 rows."""
    task_id: str = sandbox.control.add_task(rows=300, lots=1)["task_id"]
    return task_id


def until_the_next_heartbeat(folder: Folder) -> Callable[[float], None]:
    """Return what waits, instead of for some seconds, until the record in a folder has changed."""

    def wait(seconds: float) -> None:
        before = folder.destination.read("_progress.json")
        while folder.destination.read("_progress.json") == before:
            time.sleep(0.001)

    return wait


class TestTwoAtOnce:
    # where a heartbeat is written on a condition
    @pytest.mark.parametrize("folder", ["local", "memory"], indirect=True)
    def test_another_run_keeps_away_from_one_that_is_alive(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        refusals: list[DestinationBusy] = []

        def crowded(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for number, each in enumerate(pages):
                if number == 1:
                    with pytest.raises(DestinationBusy, match=r"run r1 .* is landing there") as refusal:
                        landing(task, run=OTHER_RUN, sleep=until_the_next_heartbeat(folder))
                    refusals.append(refusal.value)
                yield each

        landing(task, size=50, read=crowded, timing=QUICK)
        assert [refusal.permanent for refusal in refusals] == [False]
        assert folder.rows() == sandbox.control.true_rows(task)

    @pytest.mark.parametrize("folder", ["local", "memory"], indirect=True)
    def test_an_attempt_keeps_away_from_a_later_one_and_loses_to_it(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        def crowded(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for number, each in enumerate(pages):
                if number == 1:
                    with pytest.raises(DestinationBusy, match=r"attempt 2 of run r1 .* is landing there"):
                        landing(task, attempt=1, sleep=until_the_next_heartbeat(folder))
                    with heart.held():
                        landing(task, attempt=3)
                yield each

        heart = Heart()
        with pytest.raises(LeaseLost, match="taken over from this landing"):
            landing(task, size=50, read=crowded, attempt=2, max_part_bytes=1, timing=heart)
        assert folder.rows() == sandbox.control.true_rows(task)

    # the same file in memory cannot be read by two threads at once

    @pytest.mark.parametrize("folder", ["local", "memory"], indirect=True)
    def test_whoever_is_taken_over_stops_in_the_midst_of_a_part(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        def endless() -> Iterator[DataPage]:
            for number in itertools.count(1):
                if number == 2:
                    with heart.held():
                        landing(task, run=OTHER_RUN, timing=LeaseTiming(abandoned_after=0))
                yield DataPage(
                    offset=number, total=10**9, rest_total=10**9 - number, rows=[msgspec.Raw(b"{}")]
                )

        heart = Heart()
        with pytest.raises(LeaseLost):
            landing(task, fetch=in_order(endless()), timing=heart)
        assert folder.manifest()["run"]["run_id"] == "r2"
        assert folder.rows() == sandbox.control.true_rows(task)
