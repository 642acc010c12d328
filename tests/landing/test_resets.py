"""Sources that are filled again: their rows are added to what has landed, or replace it."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pendulum
import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import DestinationTaken, SourceReset
from airflow_provider_webcollect.landing.log.commits import Manifest, Source
from airflow_provider_webcollect.service.models import DataPage
from tests.interruption import Pauses
from tests.landing.checked_runs import OVERWRITE, Runs
from tests.landing.conftest import RUN, Crash, Folder, crashing_at, rows_of_last_run
from tests.landing.interleaving import kill
from tests.landing.pages import PAGE, nothing, serving, true_rows, unreachable

DAY = 24 * 60 * 60
AllRows = list[dict[str, Any]]


class Refilled(Runs):
    """A source that was landed, emptied and filled again.

    :ivar asked: the cursors with which rows were asked for.
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder, max_part_bytes=1)
        self.asked: list[int] = []

    def refill(self, name: str, rows: int = 2 * PAGE) -> AllRows:
        """Have it give other rows from now on, and return these."""
        self.rows[:] = [{name: number} for number in range(rows)]
        return list(self.rows)

    def grow(self, name: str, rows: int) -> None:
        """Have it give more rows."""
        self.rows += [{name: number} for number in range(len(self.rows), len(self.rows) + rows)]

    def land(self, run: str, on_reset: str = "append", **options: Any) -> Manifest:
        """Land them, each page as a part."""
        self.asked.clear()
        named = msgspec.structs.replace(RUN, run_id=run)
        return self.again(run=named, fetch=self._page, on_reset=on_reset, **options).manifest

    def killed(self, run: str, at: tuple[str, str], **options: Any) -> None:
        """Kill an attempt to land them before an operation of the storage."""
        kill(lambda place: self.land(run, folder=place, **options), self.folder.destination, at)

    def _page(self, offset: int) -> DataPage:
        self.asked.append(offset)
        return serving(self.rows, PAGE)(offset)


@pytest.fixture
def source(folder: Folder) -> Refilled:
    """A source without rows."""
    return Refilled(folder)


class TestAppend:
    @pytest.mark.parametrize("count", [PAGE - 1, 2 * PAGE, 4 * PAGE + 2])
    def test_a_source_that_begins_anew_is_added_and_after_it_what_it_adds(
        self, source: Refilled, folder: Folder, count: int
    ) -> None:
        old = source.refill("old")
        first = source.land("r1")
        new = source.refill("new", count)
        second = source.land("r2")
        assert folder.rows() == old + new
        assert (second.rows, second.earlier_rows, second.total) == (len(old) + count, len(old), count)
        assert second.parts[: len(first.parts)] == first.parts
        assert rows_of_last_run(second) == count
        source.grow("new", 3)
        third = source.land("r3")
        # the last page once more, and what is new
        assert source.asked[0] == second.last_page.offset
        assert len(source.asked) <= 2
        assert (rows_of_last_run(third), third.earlier_rows) == (3, len(old))
        assert folder.rows() == old + source.rows
        assert folder.names() == folder.needed()
        assert source.land("r4") == third

    def test_a_source_without_rows_changes_nothing_may_be_marked_and_the_next_run_adds_what_comes(
        self, source: Refilled, folder: Folder
    ) -> None:
        old = source.refill("old")
        first = source.land("r1")
        before = folder.contents()
        source.rows.clear()
        assert [source.land(run) for run in ("r2", "r3")] == [first, first]
        assert folder.contents() == before
        marked: list[int] = []
        manifest = source.land("r4", mark=lambda: marked.append(1))
        assert (marked, rows_of_last_run(manifest)) == ([1], len(old))
        assert folder.rows() == old
        new = source.refill("new", 3)
        assert rows_of_last_run(source.land("r5")) == 3
        assert folder.rows() == old + new

    @pytest.mark.parametrize("before", ["marked", "not marked", "mark failed"])
    def test_a_source_that_had_no_rows_for_a_while_goes_on(self, source: Refilled, before: str) -> None:
        old = source.refill("old")
        if before == "mark failed":
            with pytest.raises(ConnectionError):
                source.land("r1", mark=unreachable)
        else:
            source.land("r1")
        source.rows.clear()
        source.land("r2", mark=nothing if before == "not marked" else None)
        source.rows[:] = old
        source.grow("old", 1)
        source.land("r3")
        assert source.folder.rows() == source.rows


@pytest.mark.usefixtures("each_part_is_staged")
class TestInterrupted:
    def interrupted(self, source: Refilled, on_reset: str) -> tuple[AllRows, AllRows]:
        """Return rows that have landed, and others; of five pages of these, run r2 has read three."""
        old = source.refill("old")
        source.land("r1")
        new = source.refill("new", 5 * PAGE)
        with pytest.raises(Crash):
            # the first page that is requested shows the reset
            source.land("r2", on_reset, read=crashing_at(5))
        return old, new

    @pytest.mark.parametrize("on_reset", ["append", "full"])
    def test_a_retry_goes_on_after_the_last_finished_part(
        self, source: Refilled, folder: Folder, on_reset: str
    ) -> None:
        old, new = self.interrupted(source, on_reset)
        (staged,) = folder.staged()
        finished = [part["name"] for part in staged["parts"]]
        kept = old if on_reset == "append" else []
        assert (staged.get("earlier_rows", 0), len(finished)) == (len(kept), 3)
        assert folder.rows() == old
        manifest = source.land("r2", on_reset)
        # the last finished page, the two that are missing, and the first one again
        assert source.asked == [2 * PAGE, 3 * PAGE, 4 * PAGE, 0]
        assert [part.name for part in manifest.parts[-5:-2]] == finished
        assert rows_of_last_run(manifest) == len(new)
        assert folder.rows() == kept + new

    def test_a_retry_told_otherwise_adds_nothing(self, source: Refilled, folder: Folder) -> None:
        old, new = self.interrupted(source, "append")
        with pytest.raises(SourceReset):
            source.land("r2", "fail")
        assert folder.rows() == old
        assert source.land("r2", "full").earlier_rows == 0
        assert folder.rows() == new


class TestReplaced:
    @pytest.mark.parametrize("append", [False, True])
    def test_the_landing_has_the_new_rows_alone_and_the_old_parts_stay_for_whoever_reads_them(
        self, source: Refilled, folder: Folder, append: bool
    ) -> None:
        source.refill("old")
        old = source.land("r1")
        if append:
            source.refill("older")
            old = source.land("r2")
        source.refill("new", 3 * PAGE)
        new = source.land("r3", "full")
        assert folder.rows() == folder.committed_rows() == source.rows
        assert new.earlier_rows == 0
        assert folder.names() == folder.needed() | {part.name for part in old.parts}

    @pytest.mark.usefixtures("each_part_is_staged")
    def test_what_was_staged_for_a_commit_that_another_run_has_made_is_not_gone_on_with(
        self, source: Refilled, folder: Folder
    ) -> None:
        source.refill("old")
        source.land("r1")
        new = source.refill("new")
        source.killed("r2", ("create", "00000002.json"), on_reset="full")
        assert folder.staged()
        landed = source.land("r3", "full")
        assert source.land("r2", "full") == landed
        assert folder.rows() == new

    @pytest.mark.parametrize("folder", ["local"], indirect=True)
    @pytest.mark.parametrize("days", [0.5, 1.5, 3])
    def test_clean_keeps_what_was_replaced_less_than_the_age_ago(self, source: Refilled, days: float) -> None:
        """However old its parts are, and however often the landing has begun again since."""
        folder, kept = source.folder, []
        now = pendulum.now("UTC")
        for number in range(3):
            source.refill(f"{number}")
            with time_machine.travel(now.add(hours=24 * number)):
                kept.append({part.name for part in source.land(f"r{number}", "full").parts})
        for name in folder.parts():
            os.utime(f"{folder.root}/{name}", (0, 0))
        with time_machine.travel(now.add(hours=24 * (days + 1))):
            removed = {file.name for file in clean(folder.location, older_than=DAY)}
        # the first was replaced after a day, the second after two
        assert removed == set().union(*kept[: sum(days > age for age in (1, 2))])
        assert folder.rows() == source.rows


class TestSourcesWithoutRows:
    def test_rows_shown_late_are_waited_for(self, source: Refilled) -> None:
        source.refill("old")
        source.land("r1")
        source.rows.clear()
        filling = Pauses(lambda seconds: source.refill("new"))
        source.land("r2", **OVERWRITE, late_rows_delay=2, stop=filling)
        assert source.folder.rows() == source.refill("new")

    def test_one_without_rows_may_be_overwritten(self, source: Refilled) -> None:
        source.land("r1")
        manifest = source.land("r2", **OVERWRITE)
        assert (manifest.rows, manifest.run.run_id) == (0, "r2")


TASK = "0f6a1f7e-AAAA"


def at(host: str | None, task: str = TASK) -> Source:
    """Return a task of the service at a host, None for one that is not known."""
    return Source(collection_task_id=task, host=host)


class TestHosts:
    """A task of the same id at another service is another task."""

    @pytest.mark.parametrize("options", [{}, {"on_reset": "full"}, OVERWRITE])
    def test_that_of_another_service_is_refused(self, source: Refilled, options: dict[str, Any]) -> None:
        source.refill("old")
        source.land("r1", source=at("openapi.example.com"))
        before = source.folder.contents()
        said = r"the first is of the service at openapi\.example\.com, the second at other\.example\.com"
        with pytest.raises(DestinationTaken, match=said) as refusal:
            source.land("r2", source=at("other.example.com"), **options)
        assert refusal.value.permanent
        assert source.folder.contents() == before

    @pytest.mark.parametrize(
        "same",
        [at("OpenAPI.Example.COM"), at("openapi.example.com", TASK.upper()), at(None, TASK.lower())],
        ids=["host", "task", "unknown host"],
    )
    def test_letter_case_makes_no_difference_nor_a_host_that_is_not_known(
        self, source: Refilled, same: Source
    ) -> None:
        for run, origin in enumerate([at("openapi.example.com"), same, at("openapi.example.com")]):
            source.grow("n", PAGE)
            assert rows_of_last_run(source.land(f"r{run}", source=origin)) == PAGE
        assert source.folder.rows() == true_rows(3 * PAGE)

    def test_a_host_that_was_not_known_is_known_afterwards(self, source: Refilled) -> None:
        for host in (None, "openapi.example.com"):
            source.grow("n", PAGE)
            source.land(f"at {host}", source=at(host))
        with pytest.raises(DestinationTaken):
            source.land("r3", source=at("other.example.com"))
