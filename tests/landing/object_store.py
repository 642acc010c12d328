"""What holds for landings on every object store; each store's tests add a server, and what is its own."""

from __future__ import annotations

import datetime
import gc
import itertools
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import LandingDamaged
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.service.errors import ServiceFailure
from airflow_provider_webcollect.service.models import DataPage
from tests.conftest import SEED
from tests.landing.all_formats import read
from tests.landing.conftest import OTHER_RUN, Folder, Landed, in_order, listed
from tests.landing.pages import rows_of, widening
from tests.landing.victim import Victim, check, running_lander

if TYPE_CHECKING:
    import subprocess

    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.landing.storages import Storage


def big_pages(count: int) -> Iterator[DataPage]:
    """Pages of 1 MB."""
    for number in range(1, count + 1):
        rows = [msgspec.Raw(b'{"id":%d,"x":"%s"}' % (number, b"x" * 1000)) for _ in range(1000)]
        yield DataPage(
            offset=number * 1000, total=count * 1000, rest_total=(count - number) * 1000, rows=rows
        )


class _Tasks:
    @pytest.fixture
    def task(self, sandbox: Sandbox) -> str:
        """A task with 600 rows."""
        task_id: str = sandbox.control.add_task(rows=300, lots=2)["task_id"]
        return task_id


class LandingsOnAnObjectStore(_Tasks):
    """The tests; a module that derives from them has a fixture ``storage``."""

    @pytest.fixture
    def folder(self, storage: Storage) -> Folder:
        """A folder in a bucket that is not there yet."""
        return Folder(storage.fs, storage.new_folder())

    def test_every_row_lands_once_and_in_order(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        manifest = landing(task, max_part_bytes=40_000)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}

    def test_a_part_larger_than_a_block_is_uploaded_in_pieces(self, landing: Landed, folder: Folder) -> None:
        manifest = landing("t", fetch=in_order(big_pages(20)))
        (part,) = manifest.parts
        assert part.bytes > 2 * 8 * 1024 * 1024
        assert len(folder.rows()) == 20_000

    @pytest.mark.parametrize("pages", [1, 12], ids=["before the first block", "after it"])
    def test_nothing_is_published_of_a_part_that_fails(
        self, landing: Landed, folder: Folder, pages: int
    ) -> None:
        def failing() -> Iterator[DataPage]:
            yield from itertools.islice(big_pages(20), pages)
            raise ServiceFailure("in mid-read")

        with pytest.raises(ServiceFailure):
            landing("t", fetch=in_order(failing()))
        # a file object that is collected may not publish either
        gc.collect()
        assert folder.names() == set()

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("file_format", ["csv", "parquet"])
    def test_columns_that_appear_late_are_in_every_part(
        self, landing: Landed, folder: Folder, file_format: str
    ) -> None:
        pages = widening()
        chosen = make_format(file_format)
        manifest = landing("t", fetch=listed(pages), file_format=chosen, max_part_bytes=1)
        assert read(folder) == [{**dict.fromkeys(manifest.columns or ()), **row} for row in rows_of(pages)]
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}

    def test_it_grows(self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str) -> None:
        landing(task, mode="incremental")
        sandbox.control.grow(task, 50)
        landing(task, mode="incremental", run=OTHER_RUN)
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_what_is_overwritten_stays_readable_until_the_new_rows_are_there(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        landing(task)
        old = folder.rows()
        sandbox.control.grow(task, 50)

        def observed(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for each in pages:
                assert folder.rows() == old
                yield each

        manifest = landing(task, run=OTHER_RUN, if_exists="overwrite", read=observed, max_part_bytes=1)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
    def test_it_can_be_read_back_and_its_leftovers_removed(
        self, landing: Landed, folder: Folder, file_format: str
    ) -> None:
        pages = widening()
        chosen = make_format(file_format)
        landing("t", fetch=listed(pages), file_format=chosen, max_part_bytes=1, partition="dt=2026-01-01")
        leftover = "dt=2026-01-01/part-00001-0badcafe.jsonl"
        folder.fs.pipe_file(f"{folder.root}/{leftover}", b"x")
        where = SimpleNamespace(fs=folder.fs, path=folder.root)
        before = clean(where, older_than=3600)
        with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)):
            after = clean(where, older_than=3600)
        assert ([*before], [(file.name, file.bytes) for file in after]) == ([], [(leftover, 1)])
        landed = read_landing(where)
        landed.verify()
        whole = dict.fromkeys(landed.manifest.columns or rows_of(pages)[-1])
        assert landed.to_arrow().to_pylist() == [{**whole, **row} for row in rows_of(pages)]
        folder.fs.rm_file(f"{folder.root}/{landed.manifest.parts[0].name}")
        with pytest.raises(LandingDamaged, match=f"{landed.manifest.parts[0].name} is missing"):
            landed.verify()


class LandingsThatGetKilled(_Tasks):
    """The same with processes that are killed.

    :cvar module: what the storage needs, to be imported before they are forked.
    """

    module: str

    @pytest.fixture(scope="class")
    @classmethod
    def lander(cls) -> Iterator[subprocess.Popen[str]]:
        """What lands in forks of itself."""
        with running_lander(cls.module) as process:
            yield process

    @pytest.mark.at_night
    def test_every_row_lands_once_wherever_the_process_is_killed(
        self, lander: subprocess.Popen[str], sandbox: Sandbox, storage: Storage, task: str
    ) -> None:
        chance = random.Random(f"{SEED} {self.module}")
        kills = 0
        while kills < 6:
            victim = Victim(lander, sandbox, storage, task)
            while not victim.land(kill_at=chance.randint(5, 50)):
                check(victim, sandbox)
            check(victim, sandbox)
            assert victim.folder.manifest()["exported_at"]
            kills += victim.kills
