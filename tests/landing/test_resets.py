"""Sources that are filled again: their rows are added to what has landed, or replace it; and restoring."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import msgspec
import pendulum
import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean, replaced_landing, restore
from airflow_provider_webcollect.landing.commits import Manifest, Source, decode
from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    LogContended,
    NothingLanded,
    PartsMissing,
    SourceReset,
)
from airflow_provider_webcollect.landing.names import MANIFEST
from airflow_provider_webcollect.service.models import DataPage
from tests.interruption import Pauses
from tests.landing.checked_runs import Runs
from tests.landing.conftest import RUN, Crash, Folder, crashing_at, rows_of_last_run
from tests.landing.interleaving import Held, kill
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

    def replaced(self) -> tuple[AllRows, AllRows]:
        """Land rows by run r1, and others by r2 in their place; return both."""
        old = self.refill("old")
        self.land("r1")
        new = self.refill("new")
        self.land("r2", "full")
        return old, new

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
class TestAppendInterrupted:
    @pytest.fixture
    def rows(self, source: Refilled) -> tuple[AllRows, AllRows]:
        """Rows that have landed, and others of which an attempt of run r2 has read three pages of five."""
        old = source.refill("old")
        source.land("r1")
        new = source.refill("new", 5 * PAGE)
        with pytest.raises(Crash):
            # the first page that is requested shows the reset
            source.land("r2", read=crashing_at(5))
        return old, new

    def test_a_retry_goes_on_after_the_last_finished_part(
        self, source: Refilled, folder: Folder, rows: tuple[AllRows, AllRows]
    ) -> None:
        old, new = rows
        (staged,) = folder.staged()
        finished = [part["name"] for part in staged["parts"]]
        assert (staged["earlier_rows"], len(finished)) == (len(old), 3)
        assert folder.rows() == old
        manifest = source.land("r2")
        # the last finished page, the two that are missing, and the first one again
        assert source.asked == [2 * PAGE, 3 * PAGE, 4 * PAGE, 0]
        assert [part.name for part in manifest.parts[-5:-2]] == finished
        assert rows_of_last_run(manifest) == len(new)
        assert folder.rows() == old + new

    def test_a_retry_told_otherwise_adds_nothing(
        self, source: Refilled, folder: Folder, rows: tuple[AllRows, AllRows]
    ) -> None:
        old, new = rows
        with pytest.raises(SourceReset):
            source.land("r2", "fail")
        assert folder.rows() == old
        assert source.land("r2", "full").earlier_rows == 0
        assert folder.rows() == new


class TestReplaced:
    def test_a_landing_that_is_replaced_is_kept_with_all_of_its_parts_and_its_rows_come_back_exactly(
        self, source: Refilled, folder: Folder
    ) -> None:
        old = source.refill("old")
        first = source.land("r1")
        new = source.refill("new", 3 * PAGE)
        second = source.land("r2", "full")
        assert folder.rows() == new
        assert folder.names() == folder.needed() | {part.name for part in first.parts}
        assert second.replaced == tuple(part.name for part in first.parts)
        replaced = replaced_landing(folder.location)
        assert replaced is not None
        assert (replaced.rows, replaced.run, replaced.commit) == (len(old), first.run, first.commit)
        manifest = restore(folder.location)
        assert folder.rows() == folder.committed_rows() == old
        assert manifest.parts == first.parts
        assert decode(folder.read(MANIFEST), MANIFEST, Manifest) == manifest

    def test_one_generation_is_kept(self, source: Refilled) -> None:
        rows = []
        for number, name in enumerate(("first", "second", "third"), 1):
            rows.append(source.refill(name))
            source.land(f"r{number}", "full")
        folder = source.folder
        assert folder.names() - folder.needed() == {*folder.manifest()["replaced"]}
        assert len(folder.parts()) == 4
        for expected in (rows[1], rows[2], rows[1]):
            restore(folder.location)
            assert folder.rows() == expected

    def test_earlier_rows_come_back_too(self, source: Refilled) -> None:
        old = source.refill("old")
        source.land("r1")
        new = source.refill("new")
        source.land("r2")
        source.refill("last")
        source.land("r3", "full")
        restore(source.folder.location)
        assert source.folder.rows() == old + new

    @pytest.mark.parametrize("damage", ["missing", "cut"])
    def test_without_all_of_its_parts_it_is_not_put_back(self, source: Refilled, damage: str) -> None:
        source.refill("old")
        first = source.land("r1")
        source.refill("new")
        source.land("r2", "full")
        name = first.parts[1].name
        if damage == "missing":
            source.folder.fs.rm_file(f"{source.folder.root}/{name}")
        else:
            source.folder.write(name, source.folder.read(name)[:-1])
        before = source.folder.contents()
        with pytest.raises(PartsMissing, match=rf"{name} is not at .*; nothing was changed"):
            restore(source.folder.location)
        assert source.folder.contents() == before

    @pytest.mark.parametrize("runs", [0, 1, 2])
    def test_where_nothing_was_replaced_none_is_put_back(self, source: Refilled, runs: int) -> None:
        for number in range(runs):
            source.refill(f"rows {number}")
            source.land(f"r{number}")
        before = source.folder.contents()
        assert replaced_landing(source.folder.location) is None
        with pytest.raises(NothingLanded, match="has no landing that was replaced; nothing was changed"):
            restore(source.folder.location)
        assert source.folder.contents() == before

    def test_a_landing_that_was_not_replaced_after_all_cannot_be_put_back(self, source: Refilled) -> None:
        """The run that was to replace it was killed before its commit, and the source has its rows back."""
        old = source.refill("old")
        source.land("r1")
        source.refill("new")
        source.killed("r2", ("create", "00000002.json"), on_reset="full")
        source.rows[:] = old
        source.grow("old", 1)
        source.land("r3", "fail")
        assert source.folder.rows() == source.rows
        assert replaced_landing(source.folder.location) is None

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

    def test_a_source_that_has_its_old_rows_again_is_gone_on_with(self, source: Refilled) -> None:
        old, _ = source.replaced()
        restore(source.folder.location)
        source.rows[:] = old
        source.grow("old", 1)
        assert rows_of_last_run(source.land("r3", "fail")) == 1
        assert source.folder.rows() == source.rows

    def test_a_landing_that_commits_meanwhile_is_not_replaced(self, source: Refilled) -> None:
        source.replaced()
        new = source.refill("new", 3 * PAGE)
        held = Held(restore, source.folder.destination, ("create", "00000003.json"))
        assert held.met
        source.land("r3", "full")
        assert isinstance(held.end(), LogContended)
        assert source.folder.rows() == new

    @pytest.mark.parametrize("folder", ["local"], indirect=True)
    @pytest.mark.parametrize("days", [0.5, 2])
    def test_clean_keeps_what_was_replaced_less_than_the_age_ago(self, source: Refilled, days: float) -> None:
        """However old its parts are."""
        old, new = source.replaced()
        for name in source.folder.parts():
            os.utime(f"{source.folder.root}/{name}", (0, 0))
        with time_machine.travel(pendulum.now("UTC").add(hours=24 * days)):
            removed = clean(source.folder.location, older_than=DAY)
        assert {file.name for file in removed} == (
            set() if days < 1 else set(source.folder.manifest()["replaced"])
        )
        assert source.folder.rows() == new
        if days < 1:
            restore(source.folder.location)
            assert source.folder.rows() == old
        else:
            assert source.folder.names() == source.folder.needed()


class TestSourcesWithoutRows:
    OVERWRITE: ClassVar = {"mode": "full", "if_exists": "overwrite"}

    def test_rows_shown_late_are_waited_for(self, source: Refilled) -> None:
        source.refill("old")
        source.land("r1")
        source.rows.clear()
        filling = Pauses(lambda seconds: source.refill("new"))
        source.land("r2", **self.OVERWRITE, late_rows_delay=2, stop=filling)
        assert source.folder.rows() == source.refill("new")

    def test_one_without_rows_may_be_overwritten(self, source: Refilled) -> None:
        source.land("r1")
        manifest = source.land("r2", **self.OVERWRITE)
        assert (manifest.rows, manifest.run.run_id) == (0, "r2")


TASK = "0f6a1f7e-AAAA"


def at(host: str | None, task: str = TASK) -> Source:
    """Return a task of the service at a host, None for one that is not known."""
    return Source(collection_task_id=task, host=host)


class TestHosts:
    """A task of the same id at another service is another task."""

    @pytest.mark.parametrize(
        "options", [{}, {"on_reset": "full"}, {"mode": "full", "if_exists": "overwrite"}]
    )
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
