"""Compactions that meet landings, readers and one another: one is held at each operation, or killed there.

Whatever they do, each reader finds the same rows, and each part is reported by one run.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.compacting import Compacted, Compaction
from airflow_provider_webcollect.landing.errors import DestinationBusy, RowsRewritten
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import MANIFEST
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from tests.conftest import ALL_HISTORIES
from tests.landing.conftest import Crash, Folder
from tests.landing.interleaving import LOST, Held, Losing, Stepping, outcome_of, with_storage
from tests.landing.pages import PAGE, Rows, job
from tests.landing.storages import local
from tests.landing.tables import Table, same

pytestmark = pytest.mark.at_night

#: Rows that have landed, two pages by each of three runs.
OLD = 6 * PAGE
ALL = OLD + PAGE + 2
FOREVER = datetime.datetime.max.replace(tzinfo=datetime.UTC)


class Site:
    """A landing of three runs, and what happens to it.

    :ivar reported: the names of the parts that runs have reported.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.reported: list[str] = []
        for number in (1, 2, 3):
            self.land(f"run {number}", 2 * number * PAGE)

    def landing(self, run: str, count: int) -> Callable[[Destination], Landed]:
        """Return what lands the first rows of the source."""
        options: dict[str, Any] = {"mode": "incremental"}
        if isinstance(self.folder, Table):
            options["file_format"] = make_format("parquet")

        def land(place: Destination) -> Landed:
            landed = run_job(job(Rows(count), place, run, **options))
            self.reported += [part.name for part in landed.new]
            return landed

        return land

    def land(self, run: str, count: int) -> Landed:
        return self.landing(run, count)(self.folder.destination)

    def read(self) -> LandedData:
        return read_landing(self.folder.location)

    def check(self, count: int) -> None:
        """All rows are there in their order, and every part was reported by one run."""
        assert numbers(self.folder.rows()) == list(range(count))
        landed = self.read()
        landed.verify()
        parts = [segment.name for part in landed.manifest.parts for segment in part.as_landed()]
        assert sorted(self.reported) == sorted(parts)

    def check_the_next_runs(self) -> None:
        """Runs go on from there, and what they do not need can be cleaned up."""
        assert self.land("run 5", ALL).new == ()
        assert len(self.land("run 6", ALL + 1).new) == 1
        self.check(ALL + 1)
        assert compaction(self.folder.destination).parts_after == 2
        with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)):
            clean(self.folder.location, older_than=datetime.timedelta(days=1))
        self.check(ALL + 1)
        if not isinstance(self.folder, Table):
            parts = {part.name for part in self.read().manifest.parts}
            assert self.folder.names() == {MANIFEST, *parts}


def numbers(rows: Any) -> list[int]:
    return [int(row["n"]) for row in rows]


def compaction(place: Destination) -> Compacted:
    return Compaction(place, FOREVER, 10_000).run()


class Sites:
    """As many landings as are asked for.

    :param kind: of all of them.
    """

    def __init__(self, kind: type[Folder], parent: Path) -> None:
        self._kind = kind
        self._storage = local(parent)

    def new(self) -> Site:
        return Site(self._kind(self._storage.fs, self._storage.new_folder()))

    def operations(self, first: int) -> Iterator[tuple[int, bool]]:
        """Yield the operations at which something is held, and whether it is killed there.

        Of a table, which takes longer, not all of them.
        """
        stride = 6 if self._kind is Table and not ALL_HISTORIES else 1
        for operation in itertools.count(first if stride > 1 else 1, stride):
            for kill in (True, False) if ALL_HISTORIES else ((operation // stride + first) % 2 == 0,):
                yield operation, kill


@pytest.fixture(params=[Folder, Table], ids=["folder", "table"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Sites:
    return Sites(request.param, tmp_path)


class TestAtEveryOperation:
    def test_beside_a_landing_and_readers(self, sites: Sites) -> None:
        done = 0
        for operation, kill in sites.operations(1):
            site = sites.new()
            before = site.read()
            begun = before.iter_rows()
            first = next(begun)
            held = Held(compaction, site.folder.destination, operation)
            if not held.met:
                break
            during = site.read()
            assert numbers(during.iter_rows()) == list(range(OLD))
            site.land("run 4", ALL)
            site.check(ALL)
            assert isinstance(held.end(kill=kill), Crash if kill else Compacted)
            assert numbers([first, *begun]) == numbers(before.iter_rows()) == list(range(OLD))
            assert numbers(during.iter_rows()) == list(range(OLD))
            site.check(ALL)
            site.check_the_next_runs()
            done += 1
        assert done > 2

    def test_a_landing_that_is_held_meanwhile_goes_on(self, sites: Sites) -> None:
        done = 0
        for operation, kill in sites.operations(2):
            site = sites.new()
            held = Held(site.landing("run 4", ALL), site.folder.destination, operation)
            if not held.met:
                break
            assert compaction(site.folder.destination).merged
            outcome = held.end(kill=kill)
            assert isinstance(outcome, Crash if kill else Landed)
            if kill:
                site.land("run 4", ALL)
            site.check(ALL)
            site.check_the_next_runs()
            done += 1
        assert done > 2

    def test_beside_another_one(self, sites: Sites) -> None:
        done = 0
        for operation, kill in sites.operations(3):
            site = sites.new()
            held = Held(compaction, site.folder.destination, operation)
            if not held.met:
                break
            compaction(site.folder.destination)
            held.end(kill=kill)
            site.check(OLD)
            site.land("run 4", ALL)
            site.check_the_next_runs()
            done += 1
        assert done > 2

    @pytest.mark.parametrize("error", list(LOST))
    def test_the_answer_of_a_change_may_be_lost_while_a_run_lands(self, sites: Sites, error: str) -> None:
        for at in itertools.count(1):
            site = sites.new()
            losing = Losing(
                site.folder.destination._storage, at, lambda site=site: site.land("run 4", ALL), LOST[error]
            )
            outcome = outcome_of(compaction, with_storage(site.folder.destination, losing))
            assert isinstance(outcome, Compacted) or losing.lost, outcome
            if not losing.lost:
                break
            site.check(ALL)
            site.check_the_next_runs()
        assert at > 1


@pytest.mark.parametrize("error", list(LOST))
def test_the_answer_of_a_change_of_a_landing_may_be_lost_while_parts_are_merged(
    sites: Sites, error: str
) -> None:
    last: Any = None
    for at in itertools.count(1):
        site = sites.new()

        def merge(site: Site = site) -> None:
            compaction(site.folder.destination)

        losing = Losing(site.folder.destination._storage, at, merge, LOST[error])
        outcome = outcome_of(site.landing("run 4", ALL), with_storage(site.folder.destination, losing))
        if not losing.lost:
            break
        last = outcome
        if not isinstance(outcome, Landed):
            site.land("run 4", ALL)
        site.check(ALL)
    # the last change ends the report: that it was made is found out
    assert isinstance(last, Landed)


def test_a_landing_that_loses_to_a_compaction_keeps_what_it_has_staged(tmp_path: Path) -> None:
    storage = local(tmp_path)
    site = Site(Folder(storage.fs, storage.new_folder()))
    held = Held(site.landing("run 4", ALL), site.folder.destination, ("replace", MANIFEST))
    staged = site.folder.names()
    compaction(site.folder.destination)
    landed = held.end()
    assert isinstance(landed, Landed)
    assert {part.name for part in landed.committed} <= staged
    assert len(landed.committed) == 2
    site.check(ALL)


def test_who_always_loses_says_that_the_folder_is_busy(tmp_path: Path) -> None:
    storage = local(tmp_path)
    site = Site(Folder(storage.fs, storage.new_folder()))
    counts = itertools.count(OLD + 1)

    def step(operation: str, path: str) -> None:
        if operation == "replace":
            site.land(f"run of {(count := next(counts))}", count)

    stepping = Stepping(site.folder.destination._storage, step)
    with pytest.raises(DestinationBusy, match=r"landings keep writing to .*; nothing was merged"):
        compaction(with_storage(site.folder.destination, stepping))
    site.check(OLD + 5)


def test_what_a_compaction_at_work_has_written_is_not_cleaned_up(tmp_path: Path) -> None:
    storage = local(tmp_path)
    site = Site(Folder(storage.fs, storage.new_folder()))
    held = Held(compaction, site.folder.destination, ("replace", MANIFEST))
    with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=23)):
        assert clean(site.folder.location, older_than=datetime.timedelta(days=1)) == ()
    assert isinstance(held.end(), Compacted)
    site.check(OLD)


class TestTables:
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        storage = local(tmp_path)
        return Site(Table(storage.fs, storage.new_folder()))

    def test_its_own_readers_find_the_same_rows(self, site: Site) -> None:
        assert isinstance(site.folder, Table)
        rows = [{"n": str(number)} for number in range(OLD)]
        assert compaction(site.folder.destination).parts_after == 3
        assert len(site.folder.table().file_uris()) == 3
        for name, read in site.folder.readers().items():
            assert same(read(), rows), name
        for run, first in (("run 1", 0), ("run 2", 2 * PAGE), ("run 3", 4 * PAGE)):
            assert numbers(site.read().iter_rows(new_only=run)) == list(range(first, first + 2 * PAGE))
        site.check(OLD)

    def test_its_log_says_that_no_row_has_changed(self, site: Site) -> None:
        compaction(site.folder.destination)
        log = max(site.folder.fs.find(f"{site.folder.root}/_delta_log"))
        entries = [json.loads(line) for line in site.folder.fs.cat_file(log).splitlines()]
        actions = [
            (kind, entry[kind]["dataChange"])
            for entry in entries
            for kind in entry
            if kind in ("add", "remove")
        ]
        assert sorted(actions) == [("add", False), *[("remove", False)] * 4]
        vacuumed = site.folder.table().vacuum(0, dry_run=True, enforce_retention_duration=False)
        assert len(vacuumed) == 4

    def test_versions_before_can_be_read_until_they_are_vacuumed(self, site: Site) -> None:
        assert isinstance(site.folder, Table)
        version = site.folder.table().version()
        compaction(site.folder.destination)
        with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=9)):
            clean(site.folder.location, older_than=0)
        table = site.folder.table()
        table.load_as_version(version)
        assert sorted(numbers(table.to_pyarrow_table().to_pylist())) == list(range(OLD))

    def test_parts_that_others_have_rewritten_are_left_alone(self, site: Site) -> None:
        assert isinstance(site.folder, Table)
        site.folder.table().optimize.compact()
        assert compaction(site.folder.destination).merged == ()
        for number in (4, 5, 6):
            site.land(f"run {number}", OLD + (number - 3) * PAGE)
        assert compaction(site.folder.destination).merged[0].parts == 2
        assert sorted(numbers(site.folder.rows())) == list(range(OLD + 3 * PAGE))
        with pytest.raises(RowsRewritten):
            site.read().uris(new_only="run 1")

    @pytest.mark.parametrize("kill", [False, True])
    def test_others_may_rewrite_parts_meanwhile(self, tmp_path: Path, kill: bool) -> None:
        storage = local(tmp_path)
        everywhere = itertools.count(1, 1 if ALL_HISTORIES else 6)
        for operation in itertools.chain([("commit", "table")], everywhere):
            table = Table(storage.fs, storage.new_folder())
            site = Site(table)
            held = Held(compaction, table.destination, operation)
            if not held.met:
                break
            table.table().optimize.compact()
            table.table().vacuum(0, dry_run=False, enforce_retention_duration=False)
            assert isinstance(held.end(kill=kill), Crash if kill else Compacted)
            assert sorted(numbers(table.rows())) == list(range(OLD))
            site.land("run 4", ALL)
            assert sorted(numbers(table.rows())) == list(range(ALL))
            for name, read in table.readers().items():
                assert sorted(numbers(read())) == list(range(ALL)), name
