"""Incremental landings: one folder that grows with its source."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pendulum
import pytest
import time_machine
from msgspec.structs import replace

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import DestinationTaken, RowsMissing, SourceReset
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.log.commits import MOST_RECORDS, Manifest, Run, Source
from airflow_provider_webcollect.landing.write import copy
from airflow_provider_webcollect.landing.write.job import Landed as Outcome
from airflow_provider_webcollect.landing.write.review import accept, discard
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import threads
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import mark_exported
from airflow_provider_webcollect.service.models import DataPage
from tests.interruption import Pauses
from tests.landing.checked_runs import OVERWRITE, Runs, goods
from tests.landing.conftest import (
    OTHER_RUN,
    RUN,
    Folder,
    Landed,
    Landing,
    Task,
    crashing_at,
    listed,
    rows_of_last_run,
)
from tests.landing.pages import PAGE, nothing, rows_of, serving, true_rows, unreachable, widening
from tests.simulation.steps import Crash, kill, stepping

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.usefixtures("each_part_is_staged"),
]

unexpected = functools.partial(pytest.fail, "these rows must not be marked")


@pytest.fixture
def task(sandbox: Sandbox, landing: Landed, folder: Folder) -> Task:
    """A task with 300 rows, which lands incrementally; after a reset, its second batch gets new rows."""
    return Task(sandbox, landing, folder, {"lots": [300, 0]}, mode="incremental")


class TestGrowth:
    @pytest.mark.parametrize("mode", ["incremental", "full"])
    def test_only_what_is_new_is_read(self, task: Task, folder: Folder, mode: str) -> None:
        first = task.land(mode=mode)
        task.grow(120)
        task.control.clear_requests()
        second = task.land(run=OTHER_RUN)
        # the last page once more, to see that the source still has it
        assert task.offsets()[0] == first.last_page.offset
        assert len(task.offsets()) == 3
        assert second.parts[: len(first.parts)] == first.parts
        assert rows_of_last_run(second) == 120
        assert (second.rows, second.run) == (420, OTHER_RUN)
        assert folder.rows() == task.rows()
        assert folder.names() == folder.needed()

    def test_with_nothing_new_nothing_is_written(self, task: Task, land_job: Landing, folder: Folder) -> None:
        first = land_job(task.id, mode="incremental")
        before = folder.read("_manifest.json")

        def refuse(operation: str, path: str) -> None:
            assert operation in {"read", "files"}

        destination = stepping(folder.destination, refuse)
        second = land_job(task.id, mode="incremental", run=OTHER_RUN, folder=destination)
        assert (second.manifest, second.new, second.committed) == (first.manifest, (), ())
        assert folder.read("_manifest.json") == before
        assert folder.names() == folder.needed()

    @pytest.mark.parametrize("file_format", ["csv", "parquet"])
    def test_new_columns_change_no_old_part(
        self, landing: Landed, folder: Folder, file_format: FormatName
    ) -> None:
        pages = widening()
        seen = [replace(page, total=6, rest_total=6 - page.offset) for page in pages[:3]]
        options: dict[str, Any] = {"file_format": make_format(file_format), "mode": "incremental"}
        first = landing("t", fetch=listed(seen), **options)
        old = folder.rows()

        def observed(given: Iterator[DataPage]) -> Iterator[DataPage]:
            for page in given:
                assert folder.rows() == old
                yield page

        second = landing("t", fetch=listed(pages), read=observed, run=OTHER_RUN, **options)
        assert folder.rows() == [{**dict.fromkeys(second.columns or ()), **row} for row in rows_of(pages)]
        assert rows_of_last_run(second) == 6
        assert second.parts[: len(first.parts)] == first.parts


class TestReset:
    @pytest.mark.parametrize("size", [100, 1000, 30])
    @pytest.mark.parametrize("count", [0, 40, 299, 300, 310, 700])
    def test_a_reset_fails_or_replaces_all(self, task: Task, folder: Folder, count: int, size: int) -> None:
        first = task.land()
        task.refill(count)
        said = r"300 have landed.*on_reset='full'.*on_reset='append' adds all rows to the landing"
        with pytest.raises(SourceReset, match=said) as refusal:
            task.land(run=OTHER_RUN, size=size)
        assert refusal.value.permanent
        assert folder.manifest()["commit"] == len(folder.commits()) == first.commit
        assert folder.names() == folder.needed()
        if count:
            replaced = task.land(run=OTHER_RUN, size=size, on_reset="full")
            assert folder.rows() == folder.committed_rows() == task.rows()
            assert replaced.earlier_rows == 0
            # the old parts stay for whoever reads them
            assert folder.names() == folder.needed() | {part.name for part in first.parts}

    @pytest.mark.parametrize("gone", ["rows", "rows and the first part"])
    @pytest.mark.parametrize(
        "options",
        [{"on_reset": "full"}, {**OVERWRITE, "mark": None}, {**OVERWRITE, "mark": nothing}],
        ids=["on_reset", "overwrite", "overwrite and mark"],
    )
    def test_no_rows_never_replace_a_landing(self, task: Task, options: dict[str, Any], gone: str) -> None:
        first = task.land()
        task.refill(0)
        if gone != "rows":
            task.folder.fs.rm_file(f"{task.folder.root}/{first.parts[0].name}")
        before = task.folder.contents()
        with pytest.raises(SourceReset, match=r"has no rows now.*is kept \(300 rows\)") as refusal:
            task.land(run=OTHER_RUN, **options)
        assert refusal.value.permanent
        assert task.folder.contents() == before

    @pytest.mark.parametrize("changed", range(4))
    def test_a_refill_is_noticed_after_runs_of_one_row_each(self, runs: Runs, changed: int) -> None:
        rows = [{"n": number} for number in range(6)]
        for row in rows[:4]:
            runs.land([row])
        runs.rows[:] = [*rows[:changed], {"n": "another"}, *rows[changed + 1 :]]
        with pytest.raises(SourceReset, match="The source does not continue after these"):
            runs.next()
        runs.rows[:] = rows
        runs.again()
        assert runs.folder.rows() == rows

    @pytest.mark.parametrize("size", [100, 1000, 30])
    def test_the_same_rows_laid_out_in_another_way_are_the_same(self, task: Task, size: int) -> None:
        def laid_out_again(page: DataPage) -> DataPage:
            rows = [dict(reversed(row.items())) for row in page.records()]
            texts = [json.dumps(row, separators=(" , ", " : ")).encode() for row in rows]
            return replace(page, rows=[*map(msgspec.Raw, texts)])

        task.land()
        task.grow(50)
        manifest = task.land(run=OTHER_RUN, read=functools.partial(map, laid_out_again), size=size)
        assert rows_of_last_run(manifest) == 50
        assert task.folder.rows() == task.rows()

    @pytest.mark.parametrize(
        ("total", "rest"), [(0, -1), (-1, 0)], ids=["rest counted early", "total counted early"]
    )
    @pytest.mark.parametrize("on_reset", ["fail", "full"])
    def test_skewed_counts_are_no_reset(self, task: Task, total: int, rest: int, on_reset: str) -> None:
        task.land()
        task.grow(30)
        skewed = iter([True] * (copy.COUNT_READS - 1))

        def counted_twice(page: DataPage) -> DataPage:
            counts = {"total": page.total + total, "rest_total": page.rest_total + rest}
            return replace(page, **counts) if next(skewed, False) else page

        manifest = task.land(run=OTHER_RUN, on_reset=on_reset, read=functools.partial(map, counted_twice))
        assert rows_of_last_run(manifest) == 30
        assert task.folder.rows() == task.rows()

    def test_counts_that_go_on_to_contradict_the_rows_are_believed(self, task: Task) -> None:
        task.land()
        task.control.clear_requests()

        # as if rows had been inserted before those that landed last
        more = functools.partial(map, lambda page: replace(page, total=page.total + 5))
        with pytest.raises(SourceReset, match="305 rows now, and 300 have landed"):
            task.land(run=OTHER_RUN, read=more)
        assert len(task.offsets()) == copy.COUNT_READS

    @pytest.mark.parametrize("on_reset", ["fail", "append"])
    @pytest.mark.parametrize("count", [0, 60, 299])
    def test_missing_rows_are_waited_for(self, task: Task, folder: Folder, count: int, on_reset: str) -> None:
        task.land(max_part_bytes=1)
        slept: list[float] = []

        def partly(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for page in pages:
                if len(slept) < 3:
                    first = max(0, page.offset - len(page.rows))
                    rows = page.rows[: max(0, count - first)]
                    page = DataPage(offset=count, total=count, rest_total=0, rows=rows)
                yield page

        task.grow(30)
        manifest = task.land(
            run=OTHER_RUN, read=partly, late_rows_delay=10, sleep=slept.append, on_reset=on_reset
        )
        assert slept == [2, 2, 2]
        assert (manifest.rows, manifest.earlier_rows) == (330, 0)
        assert folder.rows() == task.rows()

    def test_a_retry_notices_a_reset_before_it(self, landing: Landed, folder: Folder) -> None:
        rows: list[dict[str, Any]] = [{"old": number} for number in range(12)]

        def reset(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for number, page in enumerate(pages, 1):
                if number == 4:
                    raise Crash
                yield page
                if number == 2:
                    rows[:] = [{"new": number} for number in range(12)]

        with pytest.raises(Crash):
            landing("t", mode="incremental", fetch=serving(rows, 3), read=reset, max_part_bytes=1)
        assert sum(part["rows"] for staged in folder.staged() for part in staged["parts"]) == 9
        with pytest.raises(RowsMissing, match="the first rows have changed"):
            landing("t", mode="incremental", fetch=serving(rows, 3))
        landing("t", mode="incremental", fetch=serving(rows, 3))
        assert folder.rows() == rows

    def test_rows_that_were_not_committed_may_vanish(self, task: Task, folder: Folder) -> None:
        task.land()
        task.grow(900)
        with pytest.raises(Crash):
            task.land(run=OTHER_RUN, read=crashing_at(9), max_part_bytes=1)
        assert sum(part["rows"] for staged in folder.staged() for part in staged["parts"]) > 600
        task.control.grow(task.id, -500)
        before = folder.parts()
        manifest = task.land(run=OTHER_RUN)
        assert manifest.rows == 700
        assert folder.rows() == task.rows()
        assert folder.names() - folder.needed() <= before


class TestMark:
    def test_growth_after_the_last_page_lands_before_the_mark(self, task: Task, folder: Folder) -> None:
        marked: list[int] = []

        def late(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for page in pages:
                if page.rest_total == 0 and page.total == 300:
                    task.grow(30)
                yield page

        manifest = task.land(mode="full", read=late, mark=lambda: marked.append(folder.manifest()["rows"]))
        assert marked == [330]
        assert manifest.exported_at == folder.manifest()["exported_at"] is not None
        assert folder.rows() == task.rows()

    @pytest.mark.parametrize("more", [0, 25])
    def test_a_retry_lands_what_has_come_since_and_marks(self, task: Task, folder: Folder, more: int) -> None:
        def crash() -> None:
            raise Crash

        counted: list[Outcome] = []
        with pytest.raises(Crash):
            task.land(mode="full", mark=crash, on_commit=counted.append)
        first = folder.manifest()
        assert (first["rows"], first["exported_at"]) == (300, None)
        if more:
            task.grow(more)
        task.control.clear_requests()
        marked: list[int] = []
        options = {"mark": lambda: marked.append(folder.manifest()["rows"]), "on_commit": counted.append}
        second = task.land(mode="full", **options)
        assert marked == [300 + more]
        # each row counts once
        assert sum(part.rows for landed in counted for part in landed.committed) == 300 + more
        assert rows_of_last_run(second) == 300 + more
        assert more or len(task.control.requests()) == 1
        assert second.exported_at
        assert folder.rows() == task.rows()
        task.control.clear_requests()
        assert task.land(mode="full", mark=crash) == second
        assert task.control.requests() == []

    @pytest.mark.parametrize("count", [0, 200, 300, 400])
    def test_a_source_refilled_before_a_mark_is_not_marked(self, task: Task, count: int) -> None:
        with pytest.raises(ConnectionError):
            task.land(mark=unreachable)
        old = task.rows()
        with pytest.raises(RowsMissing, match="the first rows have changed"):
            task.land(mark=unexpected, late_rows_delay=15.0, sleep=lambda seconds: task.refill(count))
        self.check_what_comes_after_a_reset(task, old)

    @pytest.mark.usefixtures("long_reads")
    @pytest.mark.parametrize("was_empty", [False, True])
    def test_a_source_refilled_after_the_commit_is_not_marked(self, task: Task, was_empty: bool) -> None:
        old = task.refill(0) if was_empty else task.rows()
        with pytest.raises(RowsMissing, match="the first rows have changed"):
            task.land(mark=unexpected, on_commit=lambda landed: task.refill(300))
        self.check_what_comes_after_a_reset(task, old)

    @pytest.mark.usefixtures("long_reads")
    def test_rows_since_the_commit_land_before_they_are_marked(self, task: Task) -> None:
        task.land(mark=unexpected, on_commit=lambda landed: task.grow(5))
        assert task.folder.manifest()["exported_at"] is None
        task.land(run=OTHER_RUN, mark=nothing)
        assert task.folder.rows() == task.rows()
        assert task.folder.manifest()["exported_at"]

    def test_rows_that_are_announced_and_do_not_come_are_not_marked(self, task: Task) -> None:
        with pytest.raises(ConnectionError):
            task.land(mark=unreachable)
        waited: list[float] = []
        more = functools.partial(map, lambda page: replace(page, total=page.total + 5 * len(waited)))
        with pytest.raises(RowsMissing, match="announced 305 rows, and 300 came"):
            task.land(mark=unexpected, late_rows_delay=15.0, sleep=waited.append, read=more)
        assert task.folder.manifest()["exported_at"] is None

    def check_what_comes_after_a_reset(self, task: Task, old: list[dict[str, Any]]) -> None:
        """Check that landed rows stay, and a retry handles the new rows by `on_reset` before it marks."""
        assert task.folder.rows() == old
        assert task.folder.manifest()["exported_at"] is None
        if old:
            with pytest.raises(SourceReset):
                task.land(mark=unexpected)
        marked: list[int] = []
        task.land(on_reset="append", mark=lambda: marked.append(len(task.folder.rows())))
        assert task.folder.rows() == [*old, *task.rows()]
        assert marked == [len(old) + len(task.rows())]


class TestWhatOthersCommitMeanwhile:
    @pytest.mark.parametrize(
        ("rows", "is_known"),
        [("landed", True), ("accepted", False), ("landed, and others quarantined", True)],
    )
    def test_a_run_cleared_late_lands_no_other_rows(self, runs: Runs, rows: str, is_known: bool) -> None:
        """It is cleared after more other runs than the manifest has records of."""
        began = pendulum.now("UTC") if is_known else None
        bad: dict[str, Any] = {"checks": {"rows": {"min": 9}}, "on_failed_checks": "quarantine"}
        if rows == "accepted":
            runs.land(goods(1), **bad)
            accept(runs.folder.location)
        else:
            runs.land(goods(1))
        if rows == "landed, and others quarantined":
            with pytest.raises(ConnectionError):
                runs.again(mark=unreachable)
            runs.rows += goods(1)
            runs.again(mark=nothing, **bad)
            assert len(runs.folder.landed().manifest.quarantined) == 1
        for _ in range(MOST_RECORDS + 1):
            runs.land(goods(1))
        runs.rows += goods(1)
        before = runs.folder.contents()
        run = Run(dag_id="d", task_id="t", run_id="run 1")
        landed = runs.again(run=run, run_began=began, on_failed_checks="quarantine")
        assert [part.rows for part in landed.new] == [1]
        assert landed.new[0].name == runs.folder.manifest()["parts"][0]["name"]
        assert runs.folder.contents() == before
        # the same for a run whose rows are quarantined, of which the manifest has no record
        runs.land([], **bad)
        before = runs.folder.contents()
        assert runs.again(run_began=began, **bad).new == ()
        assert runs.folder.contents() == before

    def test_rows_another_run_quarantined_do_not_land_again(self, runs: Runs) -> None:
        """They begin with the first row of the source, as rows after a reset would."""
        options: dict[str, Any] = {"on_reset": "append", "max_part_bytes": 1}
        with pytest.raises(Crash):
            runs.land(goods(300), read=crashing_at(3), **options)
        other = Run(dag_id="d", task_id="t", run_id="other")
        runs.again({"rows": {"min": 301}}, run=other, on_failed_checks="quarantine", **options)
        assert runs.again(**options).new == ()
        accept(runs.folder.location)
        assert len(runs.folder.rows()) == 300

    @pytest.mark.parametrize("by", ["accept", "discard", "mark"])
    def test_a_long_read_goes_on_after_a_decision_or_a_mark(self, runs: Runs, by: str) -> None:
        """It reads no page again except the last one, and the first, by which it recognizes the source."""
        if by == "mark":
            runs.land(goods(100))
        else:
            runs.land(goods(100), {"rows": {"min": 101}}, on_failed_checks="quarantine")
        run = Run(dag_id="d", task_id="t", run_id="run 1")
        acts: dict[str, Callable[[], object]] = {
            "accept": lambda: accept(runs.folder.location),
            "discard": lambda: discard(runs.folder.location),
            "mark": lambda: runs.again(run=run, mark=nothing, fetch=serving(runs.rows[:100])),
        }
        asked: list[int] = []

        def fetch(offset: int) -> DataPage:
            if offset == 400 and 400 not in asked:
                acts[by]()
            asked.append(offset)
            return serving(runs.rows)(offset)

        landed = runs.land(goods(500), fetch=fetch, max_part_bytes=1)
        assert len(runs.folder.commits()) == 3
        assert sum(part.rows for part in landed.new) == 500
        assert [asked.count(offset) for offset in (200, 300, 400)] == [1, 1, 1]
        assert len(runs.folder.rows()) == (500 if by == "discard" else 600)


# Sources that are filled again: their rows are added to what has landed, or replace it.

AllRows = list[dict[str, Any]]


class Refilled:
    """A source that was landed, emptied and filled again.

    :ivar asked: the cursors of the requests for rows.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.asked: list[int] = []
        self._runs = Runs(folder, max_part_bytes=1)
        self.rows = self._runs.rows

    def refill(self, name: str, rows: int = 2 * PAGE) -> AllRows:
        """Replace the rows of the source, and return the new ones."""
        self.rows[:] = [{name: number} for number in range(rows)]
        return list(self.rows)

    def grow(self, name: str, rows: int) -> None:
        self.rows += [{name: number} for number in range(len(self.rows), len(self.rows) + rows)]

    def land(self, run: str, on_reset: str = "append", **options: Any) -> Manifest:
        """Land the rows of the source, with one part for each page."""
        self.asked.clear()
        named = replace(RUN, run_id=run)
        return self._runs.again(run=named, fetch=self._page, on_reset=on_reset, **options).manifest

    def _page(self, offset: int) -> DataPage:
        self.asked.append(offset)
        return serving(self.rows, PAGE)(offset)


@pytest.fixture
def source(folder: Folder) -> Refilled:
    """A source without rows."""
    return Refilled(folder)


class TestAppend:
    @pytest.mark.parametrize("count", [PAGE - 1, 2 * PAGE, 4 * PAGE + 2])
    def test_a_source_that_begins_again_is_added(self, source: Refilled, folder: Folder, count: int) -> None:
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

    def test_a_source_without_rows_changes_nothing(self, source: Refilled, folder: Folder) -> None:
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


class TestInterrupted:
    def interrupted(self, source: Refilled, on_reset: str) -> tuple[AllRows, AllRows]:
        """Return the landed rows, and new ones, of whose five pages run r2 has read three."""
        old = source.refill("old")
        source.land("r1")
        new = source.refill("new", 5 * PAGE)
        with pytest.raises(Crash):
            # the first page that is requested shows the reset
            source.land("r2", on_reset, read=crashing_at(5))
        return old, new

    @pytest.mark.parametrize("on_reset", ["append", "full"])
    def test_a_retry_goes_on_after_its_parts(self, source: Refilled, folder: Folder, on_reset: str) -> None:
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
    def test_staging_of_a_commit_made_by_another_is_dropped(self, source: Refilled, folder: Folder) -> None:
        source.refill("old")
        source.land("r1")
        new = source.refill("new")
        kill(
            lambda place: source.land("r2", "full", folder=place),
            folder.destination,
            ("create", "00000002.json"),
        )
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
        with time_machine.travel(now.add(seconds=round(24 * 60 * 60 * (days + 1)))):
            removed = {file.name for file in clean(folder.location, older_than=24 * 60 * 60)}
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

    def test_a_landing_without_rows_may_be_overwritten(self, source: Refilled) -> None:
        source.land("r1")
        manifest = source.land("r2", **OVERWRITE)
        assert (manifest.rows, manifest.run.run_id) == (0, "r2")


TASK = "0f6a1f7e-AAAA"


def at(host: str | None, task: str = TASK) -> Source:
    """Return a collection task at a host; None if the host is not known."""
    return Source(collection_task_id=task, host=host)


class TestHosts:
    """A task with the same id at another service is another task."""

    @pytest.mark.parametrize("options", [{}, {"on_reset": "full"}, OVERWRITE])
    def test_a_task_of_another_service_is_refused(self, source: Refilled, options: dict[str, Any]) -> None:
        source.refill("old")
        source.land("r1", source=at("openapi.example.com"))
        before = source.folder.contents()
        said = r"of the service at openapi\.example\.com, and the connection leads to other\.example\.com"
        with pytest.raises(DestinationTaken, match=said) as refusal:
            source.land("r2", source=at("other.example.com"), **options)
        assert refusal.value.permanent
        assert source.folder.contents() == before

    @pytest.mark.parametrize(
        "same",
        [at("OpenAPI.Example.COM"), at("openapi.example.com", TASK.upper()), at(None, TASK.lower())],
        ids=["host", "task", "unknown host"],
    )
    def test_letter_case_and_unknown_hosts_make_no_difference(self, source: Refilled, same: Source) -> None:
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


@dataclasses.dataclass
class Late:
    """A landing of a task with a batch of 300 rows, and a finished run whose 40 rows are shown late.

    :param slept: the expected waits, in seconds.
    :param rows: how many rows are landed in the end.
    :param shown_after: seconds until the 40 are shown.
    :param has_landed: whether the 300 are landed already.
    :param grown: number of rows that are shown at once, instead of the 40.
    :param delay: maximum wait of the landing, in seconds.
    :param began: how many seconds ago the work on several sources began; None for a single source.
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


LATE = {
    "a landing that grows waits for them": Late([15]),
    "before a mark, more may come": Late([15, 15], marks=True),
    "they land before they are marked, in pieces": Late([15], has_landed=False, marks=True),
    "also by a full landing": Late([15], has_landed=False, marks=True, mode="full"),
    "no longer than asked": Late([5], rows=300, delay=5, shown_after=15),
    "not if rows are found at once": Late([], rows=305, grown=5),
    "the time counts from when the work on several sources began": Late([], rows=300, began=100),
    "before a mark whenever that work began": Late([15, 15], marks=True, began=100),
}


@pytest.mark.parametrize("case", LATE.values(), ids=LATE)
def test_rows_that_are_shown_late_are_waited_for(
    landing: Landed, folder: Folder, sandbox: Sandbox, client: Client, case: Late
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


#: The waits for an empty source and the log lines about them, by the maximum wait; all in seconds.
WAITS: dict[int, tuple[list[float], list[str]]] = {
    0: ([], []),
    1: ([1], []),
    7: ([2, 2, 2, 1], ["Waiting up to 7 s", "Waiting up to 5 s", "Waiting up to 3 s"]),
}


@pytest.mark.parametrize("delay", WAITS)
def test_each_run_waits_once_for_an_empty_source(
    task: Task, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, delay: int
) -> None:
    waits, lines = WAITS[delay]
    caplog.set_level("INFO")
    monkeypatch.setattr(threads, "LINES_APART", 0.0)
    task.refill(0)
    slept: list[float] = []
    for run in (RUN, OTHER_RUN):
        task.land(run=run, late_rows_delay=delay, sleep=slept.append)
    assert slept == 2 * waits
    said = [message.split(" for the")[0] for message in caplog.messages if "to show all rows" in message]
    assert said == lines * 2
