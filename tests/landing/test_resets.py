"""Sources that are filled again: their rows are added to what has landed, or replace it; and restoring."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.cleaning import Replaced, clean, replaced_landings, restore
from airflow_provider_webcollect.landing.errors import (
    DestinationBusy,
    DestinationTaken,
    NothingLanded,
    PartsMissing,
    SourceReset,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Job
from airflow_provider_webcollect.landing.job import Landed as Outcome
from airflow_provider_webcollect.landing.manifest import MANIFEST, PROGRESS, Manifest, Source
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.service.errors import RequestRejected
from tests.landing.all_formats import FORMATS, named
from tests.landing.conftest import RUN, Crash, Folder, Landed, Task, crashing_at
from tests.landing.interleaving import Held
from tests.landing.pages import PAGE, Rows, changed, finish, job, serving, true_rows

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

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


class Refilled:
    """A source of numbered rows that was landed, emptied and filled again."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.rows: AllRows = []

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

    def land(
        self, run: str, on_reset: str = "append", *, destination: Destination | None = None, **options: Any
    ) -> Manifest:
        """Land them, each page as a part."""
        return self.outcome(
            run, destination or self.folder.destination, on_reset=on_reset, **options
        ).manifest

    def outcome(self, run: str, destination: Destination, **options: Any) -> Outcome:
        """Return the whole result."""
        return run_job(self.made(run, destination, **options))

    def made(self, run: str, destination: Destination, **options: Any) -> Job:
        """Return what is to be landed."""
        made = job(Rows(0), destination, run, **{"mode": "incremental", **options})
        return changed(made, fetch=serving(self.rows, PAGE))

    def held(self, run: str, at: int | tuple[str, str], **options: Any) -> Held:
        """Land them, but stop before an operation of the storage."""
        return Held(
            lambda destination: self.outcome(run, destination, **options), self.folder.destination, at
        )


@pytest.fixture
def source(folder: Folder) -> Refilled:
    """A source without rows."""
    return Refilled(folder)


def total(manifest: Manifest) -> int:
    """Return how many rows the last run reports."""
    return sum(part.rows for part in manifest.new())


def contents(folder: Folder) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {name: folder.read(name) for name in folder.names()}


class TestAppend:
    @pytest.mark.parametrize("count", [40, 300, 700])
    def test_the_rows_of_a_source_that_begins_anew_are_added(
        self, task: RunTask, folder: Folder, count: int
    ) -> None:
        first, old = task.land(), task.rows()
        new = task.refill(count)

        second = task.land()

        assert folder.rows() == old + new
        assert (second.rows, second.earlier_rows, second.total) == (300 + count, 300, count)
        assert second.parts[: len(first.parts)] == first.parts
        assert total(second) == count
        assert folder.names() == {MANIFEST, *(part.name for part in second.parts)}

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
        assert (marked, manifest.rows, total(manifest)) == ([1], 300, 300)
        assert folder.rows() == old
        task.grow(30)
        assert total(task.land()) == 30
        assert folder.rows() == old + task.rows()

    @pytest.mark.parametrize("before", ["reported", "not reported", "not marked"])
    def test_a_source_that_had_no_rows_for_a_while_is_gone_on_with(
        self, source: Refilled, before: str
    ) -> None:
        def refuse() -> None:
            raise ConnectionError("the service is down")

        old = source.refill("old")
        if before == "not reported":
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
        assert (total(third), third.earlier_rows) == (130, 300)
        assert folder.rows() == old + task.rows()
        assert task.land() == third

    @pytest.mark.parametrize("options", [{"file_format": "jsonl"}, *FORMATS], ids=named)
    def test_all_of_it_can_be_read_in_every_format(self, source: Refilled, options: dict[str, Any]) -> None:
        file_format = make_format(**options)
        old = source.refill("old")
        source.land("r1", file_format=file_format)
        new = source.refill("new")
        source.land("r2", file_format=file_format)

        landed = read_landing(source.folder.location)
        landed.verify()
        texts = [
            {name: str(row[name]) if name in row else None for name in ("old", "new")} for row in old + new
        ]
        assert landed.to_arrow().to_pylist() == texts
        assert landed.to_arrow(new_only="r2").num_rows == len(new)
        if options["file_format"] == "jsonl":
            assert list(landed.iter_rows()) == old + new
            assert list(landed.iter_rows(new_only="r1")) == old
        else:
            assert list(landed.iter_rows()) == texts


class TestAppendInterrupted:
    SMALL: dict[str, Any] = {"size": 50, "max_part_bytes": 1}  # noqa: RUF012

    def test_a_retry_goes_on_after_the_last_finished_part(self, task: RunTask, folder: Folder) -> None:
        task.land()
        old, new = task.rows(), task.refill(250)
        task.control.fail("/data/all", after=4, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            task.land(**self.SMALL)
        finished = folder.progress().parts
        assert (folder.progress().earlier_rows, len(finished)) == (300, 3)
        assert folder.rows() == old
        task.control.clear_requests()

        manifest = task.land(again=True, **self.SMALL)

        # the last finished page, the two that are missing, and the first one again
        assert len(task.offsets()) == 4
        assert [part.name for part in manifest.parts[-5:-2]] == [part.name for part in finished]
        assert total(manifest) == 250
        assert folder.rows() == old + new

    def test_a_source_that_begins_anew_once_more_is_read_from_its_beginning(
        self, task: RunTask, folder: Folder
    ) -> None:
        task.land()
        old = task.rows()
        task.refill(250)
        with pytest.raises(Crash):
            task.land(read=crashing_at(5), **self.SMALL)
        assert len(folder.progress().parts) == 3
        new = task.refill(20)

        manifest = task.land(again=True, **self.SMALL)

        assert (manifest.rows, manifest.earlier_rows) == (320, 300)
        assert folder.rows() == old + new
        assert folder.names() == {MANIFEST, *(part.name for part in manifest.parts)}

    @pytest.mark.parametrize("on_reset", ["fail", "full"])
    def test_a_retry_that_is_told_otherwise_adds_nothing(
        self, task: RunTask, folder: Folder, on_reset: str
    ) -> None:
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

    @pytest.mark.parametrize("folder", ["local"], indirect=True)
    @pytest.mark.parametrize("run", ["r2", "r3"], ids=["a retry", "the next run"])
    def test_wherever_it_is_killed_its_rows_are_added_once(self, folder: Folder, run: str) -> None:
        for operation in itertools.count(1):
            source = Refilled(Folder(folder.fs, f"{folder.root}-{operation}"))
            old = source.refill("old")
            source.land("r1")
            new = source.refill("new")
            killed = source.held("r2", operation, on_reset="append")
            killed.end(kill=True)
            if not killed.met:
                break
            assert source.folder.rows() in (old, old + new)

            source.land(run, attempt=2)

            assert source.folder.rows() == old + new, killed.met
            assert list(read_landing(source.folder.location).iter_rows(new_only=run)) == new
        assert operation > 10


def kept(folder: Folder) -> tuple[Replaced, ...]:
    """Return the landings in a folder that were replaced."""
    return replaced_landings(folder.location)


class TestReplaced:
    def test_a_landing_that_is_replaced_is_kept_with_all_of_its_parts_and_its_rows_come_back_exactly(
        self, task: RunTask, folder: Folder
    ) -> None:
        first, old = task.land(), task.rows()
        new = task.refill(250)

        second = task.land("full")

        [replaced] = kept(folder)
        assert replaced.manifest == first
        names = {part.name for part in (*first.parts, *second.parts)}
        assert folder.names() == {MANIFEST, replaced.name, *names}
        assert folder.rows() == new
        read_landing(folder.location).verify()

        manifest = restore(folder.location)

        assert folder.rows() == old
        assert manifest.parts == first.parts
        assert read_landing(folder.location).manifest == manifest
        read_landing(folder.location).verify()

    def test_what_it_takes_the_place_of_is_kept_in_turn(self, source: Refilled) -> None:
        old, new = source.replaced()

        for rows, others in ((old, new), (new, old), (old, new)):
            restore(source.folder.location)
            assert source.folder.rows() == rows
            [replaced] = kept(source.folder)
            assert replaced.manifest.rows == len(others)
            # all can be read
            read_landing(source.folder.location).verify()

    def test_of_several_the_latest_is_put_back_unless_another_is_named(self, source: Refilled) -> None:
        rows = []
        for number, name in enumerate(("first", "second", "third"), 1):
            rows.append(source.refill(name))
            source.land(f"r{number}", "full")
            time.sleep(0.002)
        assert [each.manifest.run.run_id for each in kept(source.folder)] == ["r2", "r1"]

        restore(source.folder.location)
        assert source.folder.rows() == rows[1]
        by_run = {each.manifest.run.run_id: each.name for each in kept(source.folder)}
        assert set(by_run) == {"r1", "r3"}
        restore(source.folder.location, by_run["r1"])
        assert source.folder.rows() == rows[0]
        assert {each.manifest.run.run_id for each in kept(source.folder)} == {"r2", "r3"}

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

    def test_where_no_landing_was_replaced_there_is_none_to_put_back(self, source: Refilled) -> None:
        with pytest.raises(NothingLanded, match="has no replaced landing; nothing was changed"):
            restore(source.folder.location)
        source.refill("old")
        source.land("r1")
        source.refill("new")
        source.land("r2")
        before = contents(source.folder)

        with pytest.raises(NothingLanded, match="has no replaced landing; nothing was changed"):
            restore(source.folder.location)
        assert (kept(source.folder), contents(source.folder)) == ((), before)

        source.refill("newer")
        source.land("r3", "full")
        before = contents(source.folder)
        for name in ("_manifest-0badcafe.json", MANIFEST, "../other/_manifest-0badcafe.json"):
            with pytest.raises(NothingLanded, match="has no replaced landing"):
                restore(source.folder.location, name)
        assert contents(source.folder) == before

    def test_a_landing_that_was_not_replaced_after_all_cannot_be_put_back(self, source: Refilled) -> None:
        """The run that was to replace it was killed before its commit, and the source has its rows back."""
        old = source.refill("old")
        source.land("r1")
        source.refill("new")
        killed = source.held("r2", ("replace", MANIFEST), on_reset="full")
        assert isinstance(killed.end(kill=True), Crash)
        assert kept(source.folder) == ()
        source.rows[:] = [*old, {"old": len(old)}]
        source.land("r3", "fail")
        assert source.folder.rows() == source.rows

        assert kept(source.folder) == ()
        with pytest.raises(NothingLanded, match="has no replaced landing"):
            restore(source.folder.location)


class TestRunsAfterRestore:
    def test_a_source_that_has_its_old_rows_again_is_gone_on_with(self, source: Refilled) -> None:
        old, _ = source.replaced()
        restore(source.folder.location)
        source.rows[:] = [*old, {"old": len(old)}]

        assert total(source.land("r3", "fail")) == 1
        assert source.folder.rows() == source.rows

    # on a storage without conditions, nobody may land meanwhile
    @pytest.mark.by_day(2)
    @pytest.mark.parametrize("folder", ["local", "memory"], indirect=True)
    @pytest.mark.parametrize(
        "options",
        [
            {"on_reset": "append"},
            {"on_reset": "fail"},
            {"on_reset": "full"},
            {"mode": "full", "if_exists": "overwrite"},
            {"on_reset": "append", "mark": lambda: None},
        ],
        ids=["appends", "fails", "replaces", "overwrites", "appends and marks"],
    )
    def test_a_landing_that_is_at_work_meanwhile_is_not_harmed(
        self, folder: Folder, options: dict[str, Any]
    ) -> None:
        seen = []
        for operation in itertools.count(1):
            source = Refilled(Folder(folder.fs, f"{folder.root}-{operation}"))
            old, _ = source.replaced()
            new = source.refill("new", 3 * PAGE)
            landing = source.held("r3", operation, **options)
            if landing.met is None:
                break

            restore(source.folder.location)
            outcome = landing.end()

            assert isinstance(outcome, Outcome | SourceReset), (landing.met, outcome)
            found = source.folder.rows()
            # the last of the two has its way
            expected = {"append": old + new, "fail": old, "full": new}[options.get("on_reset", "full")]
            assert found in (old, expected), landing.met
            seen.append(found)
            self.check_that_all_can_be_put_back(source.folder)
            restore(source.folder.location)
            source.land("r4", "full")
            assert source.folder.rows() == new, landing.met
        assert operation > 10
        assert seen[0] in (old, expected)
        assert seen[-1] == old

    def check_that_all_can_be_put_back(self, folder: Folder) -> None:
        """Whatever is kept has all of its parts."""
        assert kept(folder)
        for each in kept(folder):
            for part in each.manifest.parts:
                assert len(folder.read(part.name)) == part.bytes

    def test_an_overwriting_whose_report_ends_later_deletes_nothing_that_was_put_back(
        self, source: Refilled
    ) -> None:
        old = source.refill("old")
        first = source.land("r1")
        source.refill("new")
        name = f"_manifest-{first.landing_id}.json"
        # it is silent for so long that another takes over, and only then keeps what it will not replace
        slow = source.held("r2", ("upload", name), on_reset="full")
        assert slow.met
        overwriting = source.made("r3", source.folder.destination, mode="full", if_exists="overwrite")
        landed = run_job(overwriting, finish=False)
        slow.go_on(3)
        assert [each.name for each in kept(source.folder)] == [name]
        restore(source.folder.location)

        finish(landed)

        assert source.folder.rows() == old
        slow.end(kill=True)

    @pytest.mark.parametrize("operation", ["part", "replace"])
    def test_a_landing_that_commits_meanwhile_is_not_replaced(
        self, source: Refilled, monkeypatch: pytest.MonkeyPatch, operation: str
    ) -> None:
        source.replaced()
        new = source.refill("new", 3 * PAGE)
        really = getattr(Destination, operation)

        def meanwhile(folder: Destination, *arguments: Any) -> Any:
            monkeypatch.setattr(Destination, operation, really)
            source.land("r3")
            return really(folder, *arguments)

        monkeypatch.setattr(Destination, operation, meanwhile)
        with pytest.raises(DestinationBusy, match=r"another landing has committed to .*; try again"):
            restore(source.folder.location)
        assert source.folder.rows() == new

    def test_a_landing_that_had_begun_with_what_is_put_back_lands_and_reports_its_rows(
        self, source: Refilled
    ) -> None:
        """Another has had the folder since."""
        old = source.refill("old")
        source.land("r1")
        source.rows.extend([{"late": number} for number in range(PAGE)])
        grown = list(source.rows)
        slow = source.held("r2", ("replace", MANIFEST))
        assert slow.met
        source.refill("new")
        source.land("r3", "full")
        restore(source.folder.location)
        assert source.folder.rows() == old
        source.rows[:] = grown

        outcome = slow.end()

        assert isinstance(outcome, Outcome), outcome
        assert source.folder.rows() == grown
        assert sum(part.rows for part in outcome.new) == PAGE


class TestClean:
    @pytest.fixture(params=["local"])
    def folder(self, request: pytest.FixtureRequest, folder: Folder) -> Folder:
        """A folder whose files can be made older."""
        return folder

    def age(self, folder: Folder, names: set[str], days: float) -> None:
        """Have files written that many days ago."""
        then = time.time() - days * DAY
        for name in names:
            os.utime(f"{folder.root}/{name}", (then, then))

    def cleaned(self, folder: Folder) -> set[str]:
        """Remove what is older than a day, and return the names."""
        return {file.name for file in clean(folder.location, older_than=DAY)}

    @pytest.fixture
    def replaced(self, source: Refilled) -> set[str]:
        """Replace a landing, and return the names of its manifest and parts; all parts are old."""
        source.refill("old")
        first = source.land("r1")
        source.refill("new")
        second = source.land("r2", "full")
        self.age(source.folder, {part.name for part in (*first.parts, *second.parts)}, days=30)
        [manifest] = kept(source.folder)
        return {manifest.name, *(part.name for part in first.parts)}

    def test_a_landing_that_was_replaced_just_now_stays_with_its_old_parts(
        self, source: Refilled, replaced: set[str]
    ) -> None:
        before = contents(source.folder)

        assert self.cleaned(source.folder) == set()

        assert contents(source.folder) == before
        restore(source.folder.location)
        read_landing(source.folder.location).verify()

    def test_one_that_was_replaced_long_ago_goes_with_its_parts(
        self, source: Refilled, replaced: set[str]
    ) -> None:
        before, rows = source.folder.names(), source.folder.rows()
        self.age(source.folder, replaced, days=2)

        assert self.cleaned(source.folder) == replaced

        assert source.folder.names() == before - replaced
        assert (kept(source.folder), source.folder.rows()) == ((), rows)
        read_landing(source.folder.location).verify()

    def test_parts_that_are_landed_again_stay(self, source: Refilled, replaced: set[str]) -> None:
        restore(source.folder.location)
        [other] = kept(source.folder)
        names = {other.name, *(part.name for part in other.manifest.parts)}
        self.age(source.folder, source.folder.names(), days=30)

        assert self.cleaned(source.folder) == names

        read_landing(source.folder.location).verify()

    def test_of_one_that_could_not_be_replaced_the_parts_stay(self, source: Refilled) -> None:
        old = source.refill("old")
        source.land("r1")
        source.refill("new")
        killed = source.held("r2", ("replace", MANIFEST), on_reset="full")
        assert isinstance(killed.end(kill=True), Crash)
        self.age(source.folder, source.folder.names(), days=30)

        [name] = self.cleaned(source.folder)

        # what was to replace it is in the record, and may be gone on with
        assert name.startswith("_manifest-")
        assert PROGRESS in source.folder.names()
        assert source.folder.rows() == old
        source.land("r2", "full", attempt=2)
        assert source.folder.rows() == source.rows


class TestSourcesWithoutRows:
    @pytest.mark.parametrize("mark", [None, lambda: None], ids=["", "marks"])
    def test_they_overwrite_nothing(
        self, task: RunTask, landing: Landed, folder: Folder, mark: Callable[[], None] | None
    ) -> None:
        task.land()
        before = contents(folder)
        task.refill(0)

        with pytest.raises(SourceReset, match=r"has no rows now, and the 300 rows at .* are kept") as refusal:
            landing(task.id, mode="full", if_exists="overwrite", mark=mark)
        assert refusal.value.permanent
        assert contents(folder) == before

    def test_rows_that_are_shown_late_are_waited_for(
        self, task: RunTask, landing: Landed, folder: Folder
    ) -> None:
        task.land()
        task.refill(0)

        def fill(seconds: float) -> None:
            task.grow(20)

        landing(task.id, mode="full", if_exists="overwrite", late_rows_delay=2, sleep=fill)
        assert folder.rows() == task.rows()
        assert len(task.rows()) == 20

    def test_a_landing_without_rows_may_be_overwritten(
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

        assert total(self.land(folder, "r2", host, 15, task=task)) == 5
        assert folder.rows() == true_rows(15)
        assert total(self.land(folder, "r3", "openapi.example.com", 20)) == 5
        assert folder.rows() == true_rows(20)

    def test_a_host_that_was_not_known_is_known_afterwards(self, folder: Folder) -> None:
        self.land(folder, "r1", None)
        self.land(folder, "r2", "openapi.example.com", 15)

        with pytest.raises(DestinationTaken):
            self.land(folder, "r3", "other.example.com", 20)
