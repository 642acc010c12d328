"""Sources that are filled again: their rows are added to what has landed, or replace it; and restoring."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

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
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import RequestRejected
from tests.landing.checked_runs import Runs
from tests.landing.conftest import RUN, Crash, Folder, Landed, Task, crashing_at, rows_of_last_run
from tests.landing.interleaving import Held, kill
from tests.landing.pages import PAGE, Rows, job, serving, true_rows

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

DAY = 24 * 60 * 60
AllRows = list[dict[str, Any]]


class RunTask(Task):
    """A task that runs land incrementally, one after another."""

    number = 0

    def land(self, on_reset: str = "append", *, again: bool = False, **options: Any) -> Manifest:
        """Land it by the next run.

        :param again: by a retry of the run before.
        """
        self.number += not again
        run = msgspec.structs.replace(RUN, run_id=f"run {self.number}")
        return super().land(mode="incremental", on_reset=on_reset, run=run, **options)


@pytest.fixture
def task(sandbox: Sandbox, landing: Landed, folder: Folder) -> RunTask:
    """A task with 300 rows; after a reset, its second batch gets rows of its own."""
    return RunTask(sandbox, landing, folder, {"lots": [300, 0]})


class Refilled(Runs):
    """A source that was landed, emptied and filled again."""

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

    def land(self, run: str, on_reset: str = "append", **options: Any) -> Manifest:
        """Land them, each page as a part."""
        named = msgspec.structs.replace(RUN, run_id=run)
        return self.again(
            run=named, fetch=serving(self.rows, PAGE), on_reset=on_reset, max_part_bytes=1, **options
        ).manifest

    def killed(self, run: str, at: tuple[str, str], **options: Any) -> None:
        """Kill an attempt to land them before an operation of the storage."""
        kill(lambda place: self.land(run, folder=place, **options), self.folder.destination, at)


@pytest.fixture
def source(folder: Folder) -> Refilled:
    """A source without rows."""
    return Refilled(folder)


def contents(folder: Folder) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {name: folder.read(name) for name in folder.names()}


class TestAppend:
    @pytest.mark.parametrize("count", [40, 300, 700])
    def test_a_source_that_begins_anew_is_added(self, task: RunTask, folder: Folder, count: int) -> None:
        first, old = task.land(), task.rows()
        new = task.refill(count)
        second = task.land()
        assert folder.rows() == old + new
        assert (second.rows, second.earlier_rows, second.total) == (300 + count, 300, count)
        assert second.parts[: len(first.parts)] == first.parts
        assert rows_of_last_run(second) == count
        assert folder.names() == folder.needed()

    def test_a_source_without_rows_changes_nothing_may_be_marked_and_the_next_run_adds_what_comes(
        self, task: RunTask, folder: Folder
    ) -> None:
        first, old = task.land(), task.rows()
        before = contents(folder)
        task.refill(0)
        assert [task.land() for _ in range(2)] == [first, first]
        assert contents(folder) == before
        marked: list[int] = []
        manifest = task.land(mark=lambda: marked.append(1))
        assert (marked, manifest.rows, rows_of_last_run(manifest)) == ([1], 300, 300)
        assert folder.rows() == old
        task.grow(30)
        assert rows_of_last_run(task.land()) == 30
        assert folder.rows() == old + task.rows()

    @pytest.mark.parametrize("before", ["marked", "not marked", "mark failed"])
    def test_a_source_that_had_no_rows_for_a_while_goes_on(self, source: Refilled, before: str) -> None:
        def refuse() -> None:
            raise ConnectionError("the service is down")

        old = source.refill("old")
        if before == "mark failed":
            with pytest.raises(ConnectionError):
                source.land("r1", mark=refuse)
        else:
            source.land("r1")
        source.rows.clear()
        source.land("r2", mark=(lambda: None) if before == "not marked" else None)
        source.rows[:] = [*old, {"old": len(old)}]
        source.land("r3")
        assert source.folder.rows() == source.rows

    def test_what_the_source_adds_afterwards_is_all_that_is_new(self, task: RunTask, folder: Folder) -> None:
        task.land()
        old = task.rows()
        task.refill(250)
        second = task.land()
        task.grow(130)
        task.control.clear_requests()
        third = task.land()
        # the last page once more, which has new rows now, and another one
        assert task.offsets()[0] == second.last_page.offset
        assert len(task.offsets()) == 2
        assert (rows_of_last_run(third), third.earlier_rows) == (130, 300)
        assert folder.rows() == old + task.rows()
        assert task.land() == third


@pytest.mark.usefixtures("each_part_is_staged")
class TestAppendInterrupted:
    SMALL: dict[str, Any] = {"size": 50, "max_part_bytes": 1}  # noqa: RUF012

    def test_a_retry_goes_on_after_the_last_finished_part(self, task: RunTask, folder: Folder) -> None:
        task.land()
        old, new = task.rows(), task.refill(250)
        task.control.fail("/data/all", after=4, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            task.land(**self.SMALL)
        (staged,) = folder.staged()
        finished = [part["name"] for part in staged["parts"]]
        assert (staged["earlier_rows"], len(finished)) == (300, 3)
        assert folder.rows() == old
        task.control.clear_requests()
        manifest = task.land(again=True, **self.SMALL)
        # the last finished page, the two that are missing, and the first one again
        assert len(task.offsets()) == 4
        assert [part.name for part in manifest.parts[-5:-2]] == finished
        assert rows_of_last_run(manifest) == 250
        assert folder.rows() == old + new

    @pytest.mark.parametrize("on_reset", ["fail", "full"])
    def test_a_retry_told_otherwise_adds_nothing(self, task: RunTask, folder: Folder, on_reset: str) -> None:
        task.land()
        old, new = task.rows(), task.refill(250)
        with pytest.raises(Crash):
            task.land(read=crashing_at(5), **self.SMALL)
        if on_reset == "fail":
            with pytest.raises(SourceReset):
                task.land(on_reset, again=True, **self.SMALL)
        else:
            assert task.land(on_reset, again=True, **self.SMALL).earlier_rows == 0
        assert folder.rows() == (old if on_reset == "fail" else new)


class TestReplaced:
    def test_a_landing_that_is_replaced_is_kept_with_all_of_its_parts_and_its_rows_come_back_exactly(
        self, task: RunTask, folder: Folder
    ) -> None:
        first, old = task.land(), task.rows()
        new = task.refill(250)
        second = task.land("full")
        assert folder.rows() == new
        assert folder.names() == folder.needed() | {part.name for part in first.parts}
        assert second.replaced == tuple(part.name for part in first.parts)
        replaced = replaced_landing(folder.location)
        assert replaced is not None
        assert (replaced.rows, replaced.run, replaced.commit) == (300, first.run, first.commit)
        manifest = restore(folder.location)
        assert folder.rows() == folder.committed_rows() == old
        assert manifest.parts == first.parts
        assert decode(folder.read(MANIFEST), MANIFEST, Manifest) == manifest

    def test_one_generation_is_kept(self, source: Refilled) -> None:
        rows = []
        for number, name in enumerate(("first", "second", "third"), 1):
            rows.append(source.refill(name))
            source.land(f"r{number}", "full")
        for expected in (rows[1], rows[2], rows[1]):
            restore(source.folder.location)
            assert source.folder.rows() == expected

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
        before = contents(source.folder)
        with pytest.raises(PartsMissing, match=rf"{name} is not at .*; nothing was changed"):
            restore(source.folder.location)
        assert contents(source.folder) == before

    @pytest.mark.parametrize("runs", [0, 1, 2])
    def test_where_nothing_was_replaced_none_is_put_back(self, source: Refilled, runs: int) -> None:
        for number in range(runs):
            source.refill(f"rows {number}")
            source.land(f"r{number}")
        before = contents(source.folder)
        assert replaced_landing(source.folder.location) is None
        with pytest.raises(NothingLanded, match="has no landing that was replaced; nothing was changed"):
            restore(source.folder.location)
        assert contents(source.folder) == before

    def test_a_landing_that_was_not_replaced_after_all_cannot_be_put_back(self, source: Refilled) -> None:
        """The run that was to replace it was killed before its commit, and the source has its rows back."""
        old = source.refill("old")
        source.land("r1")
        source.refill("new")
        source.killed("r2", ("create", "00000002.json"), on_reset="full")
        source.rows[:] = [*old, {"old": len(old)}]
        source.land("r3", "fail")
        assert source.folder.rows() == source.rows
        assert replaced_landing(source.folder.location) is None

    def test_a_source_that_has_its_old_rows_again_is_gone_on_with(self, source: Refilled) -> None:
        old, _ = source.replaced()
        restore(source.folder.location)
        source.rows[:] = [*old, {"old": len(old)}]
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
    @pytest.mark.parametrize("mark", [None, lambda: None], ids=["", "marks"])
    def test_they_overwrite_nothing(self, task: RunTask, landing: Landed, folder: Folder, mark: Any) -> None:
        task.land()
        before = contents(folder)
        task.refill(0)
        with pytest.raises(SourceReset, match=r"has no rows now, and the 300 rows at .* are kept") as refusal:
            landing(task.id, mode="full", if_exists="overwrite", mark=mark)
        assert refusal.value.permanent
        assert contents(folder) == before

    def test_rows_shown_late_are_waited_for(self, task: RunTask, landing: Landed, folder: Folder) -> None:
        task.land()
        task.refill(0)

        def fill(seconds: float) -> None:
            task.grow(20)

        landing(task.id, mode="full", if_exists="overwrite", late_rows_delay=2, sleep=fill)
        assert folder.rows() == task.rows()
        assert len(task.rows()) == 20

    def test_one_without_rows_may_be_overwritten(
        self, task: RunTask, landing: Landed, folder: Folder
    ) -> None:
        task.refill(0)
        landing(task.id)
        manifest = landing(
            task.id, mode="full", if_exists="overwrite", run=msgspec.structs.replace(RUN, run_id="2")
        )
        assert (manifest.rows, manifest.run.run_id) == (0, "2")


class TestHosts:
    """A task of the same id at another service is another task."""

    TASK = "0f6a1f7e-AAAA"

    def land(self, folder: Folder, run: str, host: str | None, rows: int = 10, **options: Any) -> Manifest:
        source = Source(collection_task_id=options.pop("task", self.TASK), host=host)
        made = job(Rows(rows), folder.destination, run, **{"mode": "incremental", **options})
        return run_job(dataclasses.replace(made, source=source)).manifest

    @pytest.mark.parametrize(
        "options", [{}, {"on_reset": "full"}, {"mode": "full", "if_exists": "overwrite"}]
    )
    def test_that_of_another_service_is_refused(self, folder: Folder, options: dict[str, Any]) -> None:
        self.land(folder, "r1", "openapi.example.com")
        before = contents(folder)
        with pytest.raises(
            DestinationTaken,
            match=r"the first is of the service at openapi\.example\.com, the second at other\.example\.com",
        ) as refusal:
            self.land(folder, "r2", "other.example.com", **options)
        assert refusal.value.permanent
        assert contents(folder) == before

    @pytest.mark.parametrize(
        ("host", "task"),
        [("OpenAPI.Example.COM", TASK), ("openapi.example.com", TASK.upper()), (None, TASK.lower())],
        ids=["host", "task", "unknown host"],
    )
    def test_letter_case_makes_no_difference_nor_a_host_that_is_not_known(
        self, folder: Folder, host: str | None, task: str
    ) -> None:
        self.land(folder, "r1", "openapi.example.com")
        assert rows_of_last_run(self.land(folder, "r2", host, 15, task=task)) == 5
        assert folder.rows() == true_rows(15)
        assert rows_of_last_run(self.land(folder, "r3", "openapi.example.com", 20)) == 5
        assert folder.rows() == true_rows(20)

    def test_a_host_that_was_not_known_is_known_afterwards(self, folder: Folder) -> None:
        self.land(folder, "r1", None)
        self.land(folder, "r2", "openapi.example.com", 15)
        with pytest.raises(DestinationTaken):
            self.land(folder, "r3", "other.example.com", 20)
