"""Leftovers of landings: what `clean` removes, and what it never touches."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import DestinationUnreadable, NothingLanded
from airflow_provider_webcollect.landing.manifest import redshift_manifest, replaced_manifest
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.conftest import OTHER_RUN, RUN, Crash, Folder, Landed, crashing_at, listed
from tests.landing.pages import page, rows_of, widening

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.models import DataPage

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

DAY = datetime.timedelta(days=1)
#: What killed landings may leave.
LEFTOVERS = [
    "part-00007-0badcafe.jsonl",
    "part-123456-0badcafe.csv.gz",
    ".tmp-part-00007-0badcafe.parquet-12345678",
    ".tmp-_manifest.json-12345678",
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
    ".tmp-_manifest.json.lock",
    "_redshift_manifest.json",
    "dt=2026-01-01/_redshift_manifest-0123456789abcdef.json",
    "archive/part-00007-0badcafe.jsonl",
    "dt=2026-01-01/notes.txt",
]


def test_a_partition_of_a_landing_is_not_cleaned_on_its_own(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed(widening(2)), partition="dt=2026-01-01/hour=07")
    before = names(folder)
    for inside in ("dt=2026-01-01/hour=07", "dt=2026-01-01"):
        root = f"{folder.root}/{inside}"
        # as older versions could leave it
        folder.fs.pipe_file(f"{root}/_manifest.json", folder.read("_manifest.json"))
        with pytest.raises(InvalidArgument, match=r"`path`.*is inside the landing at .*/landing"):
            clean(SimpleNamespace(fs=folder.fs, path=root), older_than=0)
        folder.fs.rm_file(f"{root}/_manifest.json")
    assert names(folder) == before


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, folder: Folder) -> Folder:
    """A folder on a filesystem that says when a file was written."""
    return folder


def names(folder: Folder) -> set[str]:
    """Return the names of all files in the folder and below."""
    folder.fs.invalidate_cache()
    return {path.removeprefix(f"{folder.root}/") for path in folder.fs.find(folder.root)}


def write(folder: Folder, *files: str) -> None:
    for name in files:
        path = f"{folder.root}/{name}"
        folder.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        folder.fs.pipe_file(path, b"x")


def cleaned(folder: Folder, older_than: Any = DAY, in_days: float = 2, **options: Any) -> set[str]:
    """Clean in some days and return the names of what was removed."""
    then = datetime.datetime.now(datetime.UTC) + in_days * DAY
    with time_machine.travel(then):
        found = clean(folder.location, older_than=older_than, **options)
    return {file.name for file in found}


def test_what_no_landing_needs_is_removed_and_nothing_else(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed(widening(3)), max_part_bytes=1, partition="dt=2026-01-01")
    kept = names(folder)
    write(folder, *LEFTOVERS, *FOREIGN)
    assert cleaned(folder) == set(LEFTOVERS)
    assert names(folder) == kept | set(FOREIGN)
    read_landing(folder.location).verify()
    assert cleaned(folder) == set()


def test_of_manifests_for_redshift_that_of_the_last_run_stays(landing: Landed, folder: Folder) -> None:
    manifests = [redshift_manifest(run) for run in (RUN, OTHER_RUN)]
    landing("t", fetch=listed(widening(1)), mode="incremental")
    write(folder, *manifests)
    assert cleaned(folder) == {manifests[1]}
    write(folder, *manifests)
    landing("t", fetch=listed(widening(2)), mode="incremental", run=OTHER_RUN)
    assert cleaned(folder, in_days=0.9) == set()
    assert cleaned(folder) == {manifests[0]}
    assert manifests[1] in names(folder)


def test_a_dry_run_only_says_what_would_go(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed(widening(1)))
    write(folder, *LEFTOVERS)
    before = names(folder)
    then = datetime.datetime.now(datetime.UTC) + 2 * DAY
    with time_machine.travel(then):
        found = clean(folder.location, older_than=DAY, dry_run=True)
    assert names(folder) == before
    assert [file.name for file in found] == sorted(LEFTOVERS)
    assert all(file.bytes == 1 and then - file.modified > DAY for file in found)


@pytest.mark.parametrize("older_than", [DAY, DAY.total_seconds(), 1e300, datetime.timedelta.max])
def test_what_is_young_stays(landing: Landed, folder: Folder, older_than: Any) -> None:
    landing("t", fetch=listed(widening(1)))
    write(folder, *LEFTOVERS)
    assert cleaned(folder, older_than, in_days=0.9) == set()
    assert set(LEFTOVERS) < names(folder)


class TestFilesThatAreBeingWritten:
    """On a disk, a manifest or record is written beside the old one for moments."""

    @pytest.fixture(
        params=[".tmp-_manifest.json-0123abcd", ".tmp-_progress.json-0123abcd"], ids=["manifest", "record"]
    )
    def hidden(self, request: pytest.FixtureRequest) -> str:
        """Their name until they are complete."""
        name: str = request.param
        return name

    def cleaned_after(self, seconds: float, folder: Folder) -> set[str]:
        """Clean what is of any age after some seconds."""
        return cleaned(folder, older_than=0, in_days=seconds / DAY.total_seconds())

    def test_for_a_minute_they_stay_whatever_the_age(
        self, landing: Landed, folder: Folder, hidden: str
    ) -> None:
        landing("t", fetch=listed(widening(2)))
        write(folder, hidden, LEFTOVERS[0], LEFTOVERS[2])

        assert self.cleaned_after(50, folder) == {LEFTOVERS[0], LEFTOVERS[2]}
        assert hidden in names(folder)

    def test_after_that_they_are_removed(self, landing: Landed, folder: Folder, hidden: str) -> None:
        landing("t", fetch=listed(widening(2)))
        write(folder, hidden)

        assert cleaned(folder, in_days=0.9) == set()
        assert self.cleaned_after(70, folder) == {hidden}
        assert hidden not in names(folder)

    @pytest.mark.parametrize("folder", ["local"], indirect=True)
    @pytest.mark.parametrize("name", ["_manifest.json", "_progress.json"])
    def test_what_is_complete_only_then_is_there(self, landing: Landed, folder: Folder, name: str) -> None:
        landing("t", fetch=listed(widening(2)))
        content = folder.read("_manifest.json")

        with folder.destination.part(name) as file:
            file.write(content)
            [hidden] = [each for each in names(folder) if each.startswith(f".tmp-{name}-")]
            assert self.cleaned_after(1, folder) == set()
        assert folder.read(name) == content
        assert hidden not in names(folder)

    @pytest.mark.parametrize("folder", ["local"], indirect=True)
    def test_of_a_manifest_that_would_be_kept_nothing_is_left(self, landing: Landed, folder: Folder) -> None:
        """Its writer was killed."""
        manifest = landing("t", fetch=listed(widening(2)), mode="incremental")
        kept = f".tmp-{replaced_manifest(manifest.landing_id)}-0123abcd"
        write(folder, kept)

        assert cleaned(folder, in_days=0.9) == set()
        assert cleaned(folder) == {kept}


class TestUnfinishedLandings:
    def test_what_a_killed_landing_can_go_on_from_stays(self, landing: Landed, folder: Folder) -> None:
        pages = widening(6)
        with pytest.raises(Crash):
            landing("t", fetch=listed(pages), read=crashing_at(4), max_part_bytes=1)
        left = names(folder)
        assert cleaned(folder) == set()
        assert names(folder) == left
        landing("t", fetch=listed(pages), max_part_bytes=1)
        assert folder.rows() == rows_of(pages)

    def test_the_unrecorded_part_of_a_landing_at_work_stays(self, landing: Landed, folder: Folder) -> None:
        def cleaning(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for each in pages:
                yield each
                if "_progress.json" in names(folder):
                    record = json.loads(folder.read("_progress.json"))
                    # what was written just now, before the record says so
                    unrecorded = f"part-00099-{record['landing_id']}.jsonl"
                    write(folder, unrecorded, LEFTOVERS[0])
                    seen.append((unrecorded, cleaned(folder)))

        seen: list[tuple[str, set[str]]] = []
        pages = [page([{"a": str(number)}], number, 4) for number in range(4)]
        landing("t", fetch=listed(pages), read=cleaning, max_part_bytes=1)
        assert len(seen) > 1
        assert all(removed == {LEFTOVERS[0]} for _, removed in seen)
        assert folder.rows() == rows_of(pages)

    def test_a_landing_that_commits_while_it_is_cleaned_keeps_all(
        self, landing: Landed, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow_provider_webcollect.landing.storage.folder import Folder as Destination

        pages = [page([{"a": str(number)}], number, 4) for number in range(4)]
        with pytest.raises(Crash):
            landing("t", fetch=listed(pages), read=crashing_at(3), max_part_bytes=1)
        reads: list[str] = []

        def read(self: Destination, name: str, really: Any = Destination.read) -> Any:
            reads.append(name)
            content = really(self, name)
            # the first one tells whether the folder is a table
            if len(reads) == 2:
                with monkeypatch.context() as patch:
                    patch.setattr(Destination, "read", really)
                    landing("t", fetch=listed(pages), max_part_bytes=1)
            return content

        with monkeypatch.context() as patch:
            patch.setattr(Destination, "read", read)
            assert cleaned(folder) == set()
        assert len(reads) == 3
        assert folder.rows() == rows_of(pages)

    def test_what_a_commit_that_was_killed_would_replace_stays(
        self, landing: Landed, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow_provider_webcollect.landing.lease import Lease

        landing("t", fetch=listed(widening(2)))

        def killed(*arguments: Any, **options: Any) -> str:
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(Lease, "commit", killed)
            with pytest.raises(Crash):
                landing("t", fetch=listed(widening(3)), run=OTHER_RUN, if_exists="overwrite")
        assert cleaned(folder) == set()
        assert folder.rows() == rows_of(widening(2))
        landing("t", fetch=listed(widening(3)), run=OTHER_RUN, if_exists="overwrite")
        assert folder.rows() == rows_of(widening(3))


class TestFoldersThatTellNothing:
    def test_of_parts_without_manifest_and_record_nothing_is_removed(
        self, landing: Landed, folder: Folder
    ) -> None:
        landing("t", fetch=listed(widening(2)))
        folder.fs.rm_file(f"{folder.root}/_manifest.json")
        left = names(folder)
        with pytest.raises(NothingLanded, match=r"has parts, but neither _manifest.json nor _progress.json"):
            cleaned(folder)
        assert names(folder) == left

    @pytest.mark.parametrize("file", ["_manifest.json", "_progress.json"])
    def test_neither_if_one_of_them_cannot_be_read(self, landing: Landed, folder: Folder, file: str) -> None:
        landing("t", fetch=listed(widening(2)))
        write(folder, file, *LEFTOVERS)
        with pytest.raises(DestinationUnreadable, match=file):
            cleaned(folder)
        assert set(LEFTOVERS) < names(folder)

    def test_a_folder_that_is_absent_or_has_no_parts_is_clean(self, folder: Folder) -> None:
        assert cleaned(folder) == set()
        write(folder, *FOREIGN)
        assert cleaned(folder) == set()

    def test_landings_in_folders_below_are_left_alone(self, landing: Landed, folder: Folder) -> None:
        inner = Folder(folder.fs, f"{folder.root}/dt=2026-01-01")
        landing("t", fetch=listed(widening(2)), folder=inner.destination)
        write(inner, LEFTOVERS[0])
        write(folder, "_manifest.json")
        folder.write("_manifest.json", json.dumps(inner.manifest() | {"parts": []}).encode())
        assert cleaned(folder) == set()
        with pytest.raises(InvalidArgument, match="is inside the landing at"):
            cleaned(inner)
        assert inner.rows() == rows_of(widening(2))


@pytest.mark.parametrize("older_than", [-1, "1d", None, True, float("nan"), datetime.timedelta(seconds=-1)])
def test_a_wrong_age_is_refused(folder: Folder, older_than: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"`older_than` is .*; it must be a number of seconds"):
        clean(folder.location, older_than=older_than)
