"""Which run reports a part: the one that has landed it, unless it ends before it has finished its report."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pendulum
import pytest
import time_machine

from airflow_provider_webcollect.landing.errors import LeaseLost
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import MANIFEST, PROGRESS
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.conftest import Crash, Folder
from tests.landing.interleaving import Held
from tests.landing.pages import Rows, finish, job, true_rows

#: Of this many operations a run is killed at one.
STRIDE = 1 if ALL_HISTORIES else 3


class Source:
    """A source that runs land incrementally, and that grows."""

    def __init__(self, folder: Folder) -> None:
        self.rows = Rows(10)
        self._folder = folder

    def land(
        self, run: str, *, finish: bool = False, destination: Destination | None = None, **options: Any
    ) -> Landed:
        """Land its rows; by default the report is left unfinished."""
        options = {"mode": "incremental", **options}
        return run_job(job(self.rows, destination or self._folder.destination, run, **options), finish=finish)

    def held(self, run: str, at: int | tuple[str, str], **options: Any) -> Held:
        """Land its rows and finish the report, but stop before an operation of the storage."""
        return Held(
            lambda destination: self.land(run, finish=True, destination=destination, **options),
            self._folder.destination,
            at,
        )


@pytest.fixture
def source(folder: Folder) -> Source:
    """A source with ten rows, in two parts."""
    return Source(folder)


def count(landed: Landed) -> int:
    """Return how many rows a run reports."""
    return sum(part.rows for part in landed.new)


def reported(folder: Folder, run: str) -> list[Any]:
    """Return the rows that a reader gets for a run."""
    landed = read_landing(folder.location)
    landed.verify()
    return list(landed.iter_rows(new_only=run))


class TestTheNextRun:
    def test_it_reports_what_the_run_before_has_not_finished_to_report(
        self, source: Source, folder: Folder
    ) -> None:
        first = source.land("r1")
        assert reported(folder, "r1") == true_rows(10)
        source.rows.count = 15

        second = source.land("r2")

        assert [part.name for part in second.new][:2] == [part.name for part in first.new]
        assert (count(second), sum(part.rows for part in second.committed)) == (15, 5)
        assert reported(folder, "r2") == folder.rows() == true_rows(15)
        assert reported(folder, "r1") == []

    def test_a_part_that_it_takes_over_keeps_the_time_of_its_commit(
        self, source: Source, folder: Folder
    ) -> None:
        first = source.land("r1")
        source.rows.count = 15
        with time_machine.travel(pendulum.now("UTC").add(days=1)):
            second = source.land("r2")

        times = [part["landed_at"] for part in folder.manifest()["parts"]]
        assert times == [first.manifest.finished_at] * 2 + [second.manifest.finished_at]
        assert first.manifest.finished_at < second.manifest.finished_at

    def test_of_more_runs_only_the_reports_that_are_not_finished_are_taken_over(
        self, source: Source, folder: Folder
    ) -> None:
        for run, rows in enumerate((10, 15, 20, 25), 1):
            source.rows.count = rows
            source.land(f"r{run}", finish=run == 1)

        assert reported(folder, "r1") == true_rows(10)
        assert reported(folder, "r2") == reported(folder, "r3") == []
        assert reported(folder, "r4") == true_rows(25)[10:]


class TestFinish:
    def test_whoever_was_taken_over_learns_it_when_it_finishes_its_report(
        self, source: Source, folder: Folder
    ) -> None:
        first = source.land("r1")
        second = source.land("r2")

        with pytest.raises(LeaseLost, match=r"attempt 1 of run r2 of d.t has the lease"):
            finish(first)
        finish(second)

        assert PROGRESS not in folder.names()
        assert reported(folder, "r2") == true_rows(10)

    @pytest.mark.parametrize("run", ["r1", "r2"])
    def test_of_all_who_report_a_part_one_can_finish(self, source: Source, run: str, folder: Folder) -> None:
        reports = [source.land("r1"), source.land(run, attempt=2), source.land(run, attempt=3)]
        outcomes = []
        for landed in (reports[1], reports[0], reports[2]):
            try:
                finish(landed)
            except LeaseLost:
                outcomes.append("lost")
            else:
                outcomes.append("finished")

        assert outcomes == ["lost", "lost", "finished"]
        assert folder.rows() == true_rows(10)


class TestKilled:
    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("rows", [10, 15], ids=["nothing new", "more rows"])
    @pytest.mark.parametrize("options", [{}, {"mark": lambda: None}], ids=["", "marks"])
    def test_wherever_a_run_is_killed_that_takes_over_a_report_the_third_reports_all(
        self, source: Source, folder: Folder, rows: int, options: dict[str, Any]
    ) -> None:
        first = random.Random(f"{SEED} {rows} {[*options]}").randint(1, STRIDE)
        for operation in itertools.count(first, STRIDE):
            within = Folder(folder.fs, f"{folder.root}-{operation}")
            each = Source(within)
            each.land("r1", **options)
            each.rows.count = rows
            second = each.held("r2", operation, **options)
            outcome = second.end(kill=True)
            if not second.met:
                break
            assert isinstance(outcome, Crash)
            each.rows.count = rows + 5

            third = each.land("r3", finish=True, **options)

            assert count(third) == rows + 5, second.met
            assert reported(within, "r3") == true_rows(rows + 5)
            assert reported(within, "r1") == reported(within, "r2") == []
        assert isinstance(outcome, Landed)
        assert operation > 8


class TestOwnRetry:
    def test_it_reports_its_parts_again_and_then_finishes(self, source: Source, folder: Folder) -> None:
        first = source.land("r1")

        retry = source.land("r1", attempt=2)

        assert (retry.new, retry.committed) == (first.new, ())
        assert PROGRESS in folder.names()
        finish(retry)
        assert PROGRESS not in folder.names()
        source.rows.count = 15
        assert count(source.land("r2")) == 5

    def test_it_adds_nothing_that_has_come_since(self, source: Source, folder: Folder) -> None:
        source.land("r1")
        source.rows.count = 15

        assert count(source.land("r1", attempt=2, finish=True)) == 10
        assert folder.rows() == true_rows(10)

    def test_a_run_whose_report_was_taken_over_reports_only_what_it_newly_lands(
        self, source: Source, folder: Folder
    ) -> None:
        source.land("r1")
        source.land("r2", finish=True)

        assert source.land("r1", attempt=2, finish=True).new == ()
        source.rows.count = 15
        again = source.land("r1", attempt=3, finish=True)

        assert (count(again), reported(folder, "r1")) == (5, true_rows(15)[10:])
        assert reported(folder, "r2") == true_rows(10)

    def test_it_takes_its_report_back_from_a_run_that_has_not_finished_it(
        self, source: Source, folder: Folder
    ) -> None:
        source.land("r1")
        source.land("r2")

        back = source.land("r1", attempt=2, finish=True)

        assert (count(back), reported(folder, "r1")) == (10, true_rows(10))
        assert reported(folder, "r2") == []


class TestOverwrite:
    FULL: dict[str, Any] = {"mode": "full", "if_exists": "overwrite"}  # noqa: RUF012

    def test_what_it_replaces_stays_until_its_report_is_finished(
        self, source: Source, folder: Folder
    ) -> None:
        old = source.land("r1", finish=True)
        source.rows.count = 15

        second = source.land("r2", **self.FULL)

        assert folder.rows() == reported(folder, "r2") == true_rows(15)
        assert folder.names() >= {part.name for part in old.new}
        finish(second)
        assert folder.names() == {MANIFEST, *(part.name for part in second.new)}

    def test_a_run_that_adds_to_it_takes_its_report_over(self, source: Source, folder: Folder) -> None:
        source.land("r1", finish=True)
        second = source.land("r2", **self.FULL)
        source.rows.count = 15

        third = source.land("r3", finish=True)

        assert (count(third), reported(folder, "r3")) == (15, true_rows(15))
        with pytest.raises(LeaseLost):
            finish(second)
        assert folder.rows() == true_rows(15)

    def test_a_run_that_skips_it_leaves_its_report_to_it(self, source: Source, folder: Folder) -> None:
        first = source.land("r1", **self.FULL)

        second = source.land("r2", finish=True, mode="full", if_exists="skip")

        assert (second.own, second.new) == (False, ())
        finish(first)
        assert reported(folder, "r1") == true_rows(10)
