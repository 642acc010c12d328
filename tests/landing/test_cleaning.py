"""Leftovers of landings: what `clean` removes, and what it never touches."""

from __future__ import annotations

import datetime
import functools
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import NothingLanded
from airflow_provider_webcollect.landing.write.review import accept
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.checked_runs import Runs, goods
from tests.landing.conftest import OTHER_RUN, Folder, Landed, crashing_at, listed
from tests.landing.pages import rows_of, widening
from tests.simulation.steps import Crash, Held
from tests.storages import local

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

DAY = datetime.timedelta(days=1)
#: What killed landings may leave.
LEFTOVERS = [
    "part-00007-0badcafe.jsonl",
    "part-123456-0badcafe.csv.gz",
    ".tmp-part-00007-0badcafe.parquet-12345678",
    ".tmp-_manifest.json-12345678",
    "_commits/.tmp-00000009.json-12345678",
    "_delta_log/.tmp-00000000000000000009.json-12345678",
    "_staged/0123456789ab-0badcafe.json",
    "_staged/.tmp-0123456789ab-0badcafe.json-12345678",
    "_quarantine/part-00007-0badcafe.jsonl",
    "dt=2026-01-01/part-00001-0badcafe.jsonl.zst",
    "dt=2026-01-01/hour=07/.tmp-part-00001-0badcafe.jsonl-12345678",
]
#: What others may keep beside a landing.
FOREIGN = [
    "README",
    "part-1.jsonl",
    "part-00007-0badcafe",
    "part-00007-0BADCAFE.jsonl",
    "my-part-00007-0badcafe.jsonl",
    ".tmp-mine",
    "_commits/notes.txt",
    "_staged/notes.json",
    "archive/part-00007-0badcafe.jsonl",
    "dt=2026-01-01/notes.txt",
    "dt=2026-01-01/_manifest.json",
    "dt=2026-01-01/_commits/00000001.json",
    "_commits/1.json",
    "2026-01-01/part-00007-0badcafe.jsonl",
]


def test_a_partition_of_a_landing_is_not_cleaned_on_its_own(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed(widening(2)), partition="dt=2026-01-01/hour=07")
    before = folder.names()
    for inside in ("dt=2026-01-01/hour=07", "dt=2026-01-01"):
        root = f"{folder.root}/{inside}"
        with pytest.raises(InvalidArgument, match=r"`landing`.*is inside the landing at .*/landing"):
            clean(SimpleNamespace(fs=folder.fs, path=root), older_than=0)
    assert folder.names() == before


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, folder: Folder) -> Folder:
    """A folder on a filesystem that says when a file was written."""
    return folder


def write(folder: Folder, *files: str) -> None:
    for name in files:
        folder.write(name, b"x")


def cleaned(folder: Folder, older_than: Any = DAY, in_days: float = 2) -> set[str]:
    """Clean ``in_days`` days from now, and return the names of the removed files."""
    then = datetime.datetime.now(datetime.UTC) + in_days * DAY
    with time_machine.travel(then):
        removed = clean(folder.location, older_than=older_than)
    return {file.name for file in removed}


def test_what_no_landing_needs_is_removed_and_nothing_else(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed(widening(3)), max_part_bytes=1, partition="dt=2026-01-01")
    kept = folder.names()
    write(folder, *LEFTOVERS, *FOREIGN)
    assert cleaned(folder) == set(LEFTOVERS)
    assert folder.names() == kept | set(FOREIGN)
    assert folder.rows() == rows_of(widening(3))
    assert cleaned(folder) == set()


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    """It may belong to another partition, or to another landing."""
    runs, other = (Runs(Folder.new(local(tmp_path)), partition="day=1") for _ in range(2))
    for each in (runs, other):
        each.land(goods(3))
    root = Path(runs.folder.root)
    (root / "day=latest").symlink_to(root / "day=1")
    (root / "day=0").symlink_to(Path(other.folder.root, "day=1"))
    assert clean(runs.folder.location, older_than=0) == ()
    for each in (runs, other):
        each.folder.landed().verify()


def test_partitions_that_differ_in_letter_case_alone_stay(tmp_path: Path) -> None:
    runs = Runs(Folder(local(tmp_path).fs, str(tmp_path / "landing")), max_part_bytes=1)
    runs.land(goods(1), partition="country=US")
    # both names mean one folder, as on disks that ignore letter case; it is listed under the first
    (tmp_path / "landing" / "country=us").symlink_to("country=US")
    runs.land(goods(1), partition="country=us")
    assert len(runs.folder.parts()) == 2
    assert cleaned(runs.folder) == set()
    assert runs.folder.rows() == runs.rows


@pytest.mark.parametrize("older_than", [DAY, DAY.total_seconds(), 1e300, datetime.timedelta.max])
def test_what_is_young_stays(landing: Landed, folder: Folder, older_than: Any) -> None:
    landing("t", fetch=listed(widening(1)))
    write(folder, *LEFTOVERS)
    assert cleaned(folder, older_than, in_days=0.9) == set()
    assert set(LEFTOVERS) < folder.names()


@pytest.mark.usefixtures("each_part_is_staged")
class TestUnfinishedLandings:
    def test_a_killed_attempt_stays_until_another_run_lands(self, landing: Landed, folder: Folder) -> None:
        pages = widening(6)
        with pytest.raises(Crash):
            landing("t", fetch=listed(pages), read=crashing_at(4), max_part_bytes=1)
        left = folder.names()
        assert left
        assert cleaned(folder) == set()
        assert folder.names() == left
        landing("t", fetch=listed(pages), max_part_bytes=1, run=OTHER_RUN)
        assert cleaned(folder) == left
        assert folder.rows() == rows_of(pages)
        assert folder.names() == folder.needed()

    @pytest.mark.parametrize("decided", [False, True], ids=["a landing", "a decision"])
    def test_what_is_committed_meanwhile_stays(self, tmp_path: Path, decided: bool) -> None:
        """Even if it is old by the clock of the storage."""
        for operation in itertools.count(1):
            runs = Runs(Folder.new(local(tmp_path)), max_part_bytes=1)
            runs.land(goods(2))
            if decided:
                runs.land(goods(250), {"rows": {"min": 251}}, on_failed_checks="quarantine")
            else:
                with pytest.raises(Crash):
                    runs.land(goods(250), read=crashing_at(3))
            with time_machine.travel(datetime.datetime.now(datetime.UTC) + 2 * DAY):
                held = Held(functools.partial(clean, older_than=DAY), runs.folder.destination, operation)
                if held.met is None:
                    break
                accept(runs.folder.location) if decided else runs.again()
                held.end()
            assert runs.folder.rows() == runs.rows, held.met
        assert operation > 4


class TestFoldersThatTellNothing:
    def test_parts_without_commits_stay(self, landing: Landed, folder: Folder) -> None:
        landing("t", fetch=listed(widening(2)))
        for name in ("_manifest.json", "_commits/00000001.json"):
            folder.fs.rm_file(f"{folder.root}/{name}")
        left = folder.names()
        with pytest.raises(NothingLanded, match="has files of landings, and no commit"):
            cleaned(folder)
        assert folder.names() == left

    def test_a_folder_that_is_absent_or_has_no_parts_is_clean(self, folder: Folder) -> None:
        assert cleaned(folder) == set()
        write(folder, *FOREIGN)
        assert cleaned(folder) == set()


@pytest.mark.parametrize("older_than", [-1, "1d", None, True, float("nan"), datetime.timedelta(seconds=-1)])
def test_a_wrong_age_is_refused(folder: Folder, older_than: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"`older_than` is .*; it must be a number of seconds"):
        clean(folder.location, older_than=older_than)
