"""The folder of a landing, on every kind of storage that replaces files on a condition."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from airflow_provider_webcollect.landing.errors import PartsMissing, StorageError
from airflow_provider_webcollect.landing.manifest import redshift_manifest
from airflow_provider_webcollect.landing.storage import Changed
from airflow_provider_webcollect.landing.storage.disk import Disk
from airflow_provider_webcollect.landing.storage.folder import Folder, is_ours
from airflow_provider_webcollect.landing.storage.object_stores import SMALL_BYTES
from tests.landing.conftest import RUN, Store
from tests.landing.storages import AZURITE_KEY, Storage

MANIFEST = "_manifest.json"
PART = "part-00001-0123abcd.jsonl"
KINDS = ["disk", "memory", "s3", "azure", "gcs"]


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, storage_of: Callable[[str], Storage]) -> Storage:
    """A storage of each kind."""
    return storage_of(request.param)


@pytest.fixture
def folder(storage: Storage) -> Folder:
    """A folder that is not there yet."""
    return Folder(storage.fs, storage.new_folder())


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads are switched every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def of_another_process(storage: Storage, folder: Folder) -> Folder:
    """Return the same folder by a filesystem that shares no cache with the first."""
    options = {**storage.options, "skip_instance_cache": True}
    return Folder(replace(storage, options=options).fs, folder.root)


def content_of(folder: Folder) -> bytes:
    """Return the content of the manifest, which is there."""
    found = folder.read(MANIFEST)
    assert found is not None
    return found.content


def content_of_part(folder: Folder, name: str = PART) -> bytes:
    """Return the content of a part."""
    with folder.opened(name) as file:
        return file.read()


class TestSmallFiles:
    def test_what_is_absent_is_none(self, folder: Folder) -> None:
        assert folder.read(MANIFEST) is None
        assert folder.files() == {}

    def test_content_is_read_with_its_version(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        assert folder.read(MANIFEST) == (b"one", version)
        other = folder.replace(MANIFEST, b"two", version)
        assert folder.read(MANIFEST) == (b"two", other)
        assert other != version
        assert folder.files() == {MANIFEST: 3}

    def test_a_file_that_is_there_is_not_created(self, folder: Folder) -> None:
        folder.replace(MANIFEST, b"one", None)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"two", None)
        assert content_of(folder) == b"one"

    def test_a_file_that_has_changed_is_not_replaced(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        folder.replace(MANIFEST, b"two", version)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"three", version)
        assert content_of(folder) == b"two"

    def test_a_file_that_was_removed_is_not_replaced(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        folder.delete([MANIFEST])
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"two", version)
        assert folder.read(MANIFEST) is None

    def test_a_write_that_is_repeated_since_its_answer_was_lost_counts(self, folder: Folder) -> None:
        first = folder.replace(MANIFEST, b"one", None)
        assert folder.replace(MANIFEST, b"one", None) == first
        second = folder.replace(MANIFEST, b"two", first)
        assert folder.replace(MANIFEST, b"two", first) == second

    def test_of_many_that_create_a_file_one_succeeds(self, folder: Folder) -> None:
        start = threading.Barrier(8)

        def create(number: int) -> bytes | None:
            start.wait()
            with suppress(Changed):
                folder.replace(MANIFEST, b"of %d" % number, None)
                return b"of %d" % number
            return None

        with ThreadPoolExecutor(8) as threads:
            (winner,) = [each for each in threads.map(create, range(8)) if each]
        assert content_of(folder) == winner
        assert folder.files() == {MANIFEST: len(winner)}

    @pytest.mark.by_day(2)
    @pytest.mark.usefixtures("quick_switches")
    def test_no_increment_of_many_is_lost(self, storage: Storage, folder: Folder) -> None:
        folder.replace(MANIFEST, b"0", None)

        def count(number: int) -> None:
            own, left = of_another_process(storage, folder), 5
            while left:
                found = own.read(MANIFEST)
                assert found is not None
                with suppress(Changed):
                    # what differs by who wrote it is no repetition
                    own.replace(
                        MANIFEST, b"%d by %d" % (int(found.content.split()[0]) + 1, number), found.version
                    )
                    left -= 1

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(count, range(4)))
        assert content_of(folder).startswith(b"20 by ")

    def test_a_removed_file_is_gone(self, folder: Folder) -> None:
        version = folder.claim(MANIFEST, b"one", None)
        assert folder.remove(MANIFEST, version)
        assert folder.files() == {}

    def test_a_file_that_has_changed_is_not_removed(self, folder: Folder) -> None:
        version = folder.claim(MANIFEST, b"one", None)
        folder.replace(MANIFEST, b"two", version)
        with pytest.raises(Changed):
            folder.remove(MANIFEST, version)
        assert content_of(folder) == b"two"
        assert folder.files() == {MANIFEST: 3}

    def test_a_file_that_another_has_removed_is_not_removed_again(self, folder: Folder) -> None:
        version = folder.claim(MANIFEST, b"one", None)
        folder.delete([MANIFEST])
        with pytest.raises(Changed):
            folder.remove(MANIFEST, version)
        assert folder.files() == {}

    def test_nothing_is_removed_from_a_folder_that_is_absent(self, storage: Storage, folder: Folder) -> None:
        version = Folder(storage.fs, storage.new_folder()).claim(MANIFEST, b"one", None)
        with pytest.raises(Changed):
            folder.remove(MANIFEST, version)
        assert folder.files() == {}

    def test_two_processes_see_each_others_writes_at_once(self, storage: Storage, folder: Folder) -> None:
        other = of_another_process(storage, folder)
        assert other.files() == {}
        assert other.read(MANIFEST) is None
        version = folder.replace(MANIFEST, b"one", None)
        assert other.read(MANIFEST) == (b"one", version)
        with folder.part(f"dt=2026-01-01/{PART}") as part:
            part.write(b"{}\n")
        assert other.files() == {MANIFEST: 3, f"dt=2026-01-01/{PART}": 3}
        other.replace(MANIFEST, b"three", version)
        other.delete([f"dt=2026-01-01/{PART}"])
        assert content_of(folder) == b"three"
        assert folder.files() == {MANIFEST: 5}

    def test_a_listing_in_the_filesystems_cache_hides_nothing(self, storage: Storage, folder: Folder) -> None:
        folder.replace(MANIFEST, b"one", None)
        assert len(storage.fs.ls(folder.root)) == 1
        with of_another_process(storage, folder).part(PART) as part:
            part.write(b"{}\n")
        assert content_of_part(folder) == b"{}\n"
        assert folder.files() == {MANIFEST: 3, PART: 3}


class TestParts:
    @pytest.mark.parametrize("name", [PART, f"dt=2026-01-01/country=de/{PART}"])
    def test_a_part_is_there_once_it_is_whole(self, folder: Folder, name: str) -> None:
        with folder.part(name) as part:
            part.write(b"one\n")
            assert name not in folder.files()
            part.write(b"two\n")
        assert part.bytes == 8
        assert folder.files() == {name: 8}
        assert content_of_part(folder, name) == b"one\ntwo\n"

    @pytest.mark.parametrize(
        "size", [SMALL_BYTES, SMALL_BYTES + 1, 20_000_000], ids=["small", "not small", "of several blocks"]
    )
    def test_a_part_has_what_was_written_in_its_order(self, folder: Folder, size: int) -> None:
        content = random.Random(size).randbytes(size)
        with folder.part(PART) as part:
            for start in range(0, size, 300_000):
                part.write(content[start : start + 300_000])
        assert folder.files() == {PART: part.bytes} == {PART: size}
        assert hashlib.sha256(content_of_part(folder)).hexdigest() == part.sha256

    @pytest.mark.parametrize(
        "size", [0, 10, 2_000_000, 20_000_000], ids=["empty", "small", "not small", "of several blocks"]
    )
    def test_a_part_that_fails_is_not_there(self, folder: Folder, size: int) -> None:
        def write() -> None:
            with folder.part(PART) as part:
                part.write(bytes(size))
                raise EOFError("the source has failed")

        with pytest.raises(EOFError, match="the source has failed"):
            write()
        # a file object that is collected may not publish either
        gc.collect()
        assert folder.files() == {}

    def test_a_part_that_is_absent_is_named(self, folder: Folder) -> None:
        folder.replace(MANIFEST, b"one", None)
        with pytest.raises(PartsMissing, match=PART), folder.opened(PART):
            pass

    def test_parts_are_deleted_and_absent_ones_are_fine(self, folder: Folder) -> None:
        folder.delete([PART])
        with folder.part(PART) as part:
            part.write(b"one\n")
        folder.delete([PART, f"dt=1/{PART}"])
        assert folder.files() == {}


class TestClaims:
    def test_nothing_is_there_but_the_claimed_file(self, storage: Storage, folder: Folder) -> None:
        around = Folder(storage.fs, storage.parent)
        # other tests have left theirs
        before = around.files()
        version = folder.claim(MANIFEST, b"one", None)
        assert folder.read(MANIFEST) == (b"one", version)
        assert around.files() == {**before, f"{folder.root.rpartition('/')[2]}/{MANIFEST}": 3}

    def test_a_file_that_is_there_is_claimed_by_its_version(self, folder: Folder) -> None:
        version = folder.claim(MANIFEST, b"two", folder.replace(MANIFEST, b"one", None))
        assert folder.read(MANIFEST) == (b"two", version)
        assert folder.files() == {MANIFEST: 3}

    def test_a_file_with_another_version_is_not_claimed(self, folder: Folder) -> None:
        first = folder.replace(MANIFEST, b"one", None)
        second = folder.replace(MANIFEST, b"two", first)
        for other in (None, first):
            with pytest.raises(Changed):
                folder.claim(MANIFEST, b"three", other)
        assert folder.read(MANIFEST) == (b"two", second)

    def test_a_file_that_was_removed_is_not_claimed(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        folder.delete([MANIFEST])
        with pytest.raises(Changed):
            folder.claim(MANIFEST, b"two", version)
        assert folder.files() == {}

    def test_a_claimed_file_is_replaced_by_its_version(self, folder: Folder) -> None:
        version = folder.claim(MANIFEST, b"one", None)
        other = folder.replace(MANIFEST, b"two", version)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"three", version)
        assert folder.read(MANIFEST) == (b"two", other)

    @pytest.mark.parametrize("storage", ["s3", "azure", "gcs"], indirect=True)
    def test_an_absent_bucket_is_named(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="no bucket or container 'elsewhere'") as caught:
            Folder(storage.fs, "elsewhere/prices").claim(MANIFEST, b"one", None)
        assert caught.value.permanent

    @pytest.mark.parametrize("storage", ["s3", "azure"], indirect=True)
    def test_an_absent_bucket_is_no_absent_file(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="'elsewhere'"):
            Folder(storage.fs, "elsewhere/prices").read(MANIFEST)


class TestDisk:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        return Folder(fsspec.filesystem("file"), str(tmp_path / "prices"))

    @pytest.mark.parametrize("below", ["", "/2026"])
    def test_a_file_in_the_place_of_a_folder_is_named(self, folder: Folder, below: str) -> None:
        Path(folder.root).write_text("a file")
        with pytest.raises(StorageError, match=f"{folder.root}{below}/.*Not a directory") as caught:
            Folder(fsspec.filesystem("file"), f"{folder.root}{below}").claim(MANIFEST, b"one", None)
        assert caught.value.permanent
        assert Path(folder.root).read_text() == "a file"

    @pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder that even root cannot write to")
    def test_a_folder_that_may_not_be_written_to_is_named(self) -> None:
        with pytest.raises(StorageError, match=f"Access to /sys/prices/{MANIFEST} is denied") as caught:
            Folder(fsspec.filesystem("file"), "/sys/prices").claim(MANIFEST, b"one", None)
        assert caught.value.permanent

    def test_a_full_disk_is_named_and_may_be_mended(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        version = folder.replace(MANIFEST, b"one", None)
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", fail)
            with pytest.raises(
                StorageError, match=f"No space is left to write {folder.root}/{MANIFEST}"
            ) as caught:
                folder.claim(MANIFEST, b"two", version)
        assert not caught.value.permanent
        assert folder.read(MANIFEST) == (b"one", version)
        assert folder.files() == {MANIFEST: 3}
        folder.claim(MANIFEST, b"two", version)

    def test_a_lock_that_a_killed_process_left_is_no_obstacle(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        Path(folder.root, f".tmp-{MANIFEST}.lock").touch()
        folder.replace(MANIFEST, b"two", version)
        assert folder.files() == {MANIFEST: 3}

    def test_it_is_said_once_if_the_locks_of_a_file_system_do_nothing(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.claim(MANIFEST, b"one", None)
        assert caplog.messages == []
        # as on mounts without locks
        monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
        monkeypatch.setattr(Disk, "warned", False)
        version = folder.replace(MANIFEST, b"two", hashlib.sha256(b"one").hexdigest())
        for content in (b"three", b"four"):
            version = folder.claim(MANIFEST, content, version)
        (warning,) = caplog.messages
        assert warning.startswith(f"The locks of the file system at {folder.root} do nothing")
        assert folder.files() == {MANIFEST: 4}

    def test_processes_exclude_each_other(self, folder: Folder) -> None:
        folder.replace(MANIFEST, b"0", None)
        script = (
            "import fsspec, os, sys\n"
            "from airflow_provider_webcollect.landing.storage import Changed\n"
            "from airflow_provider_webcollect.landing.storage.folder import Folder\n"
            "folder, left = Folder(fsspec.filesystem('file'), sys.argv[1]), 50\n"
            "children = []\n"
            "while len(children) < 3 and (child := os.fork()):\n"
            "    children.append(child)\n"
            "while left:\n"
            "    found = folder.read('_manifest.json')\n"
            "    content = b'%d by %d' % (int(found.content.split()[0]) + 1, os.getpid())\n"
            "    try:\n"
            "        folder.replace('_manifest.json', content, found.version)\n"
            "    except Changed:\n"
            "        continue\n"
            "    left -= 1\n"
            "if child:\n"
            "    assert [os.waitpid(each, 0)[1] for each in children] == [0] * 3\n"
        )
        assert subprocess.run([sys.executable, "-c", script, folder.root]).returncode == 0
        assert content_of(folder).startswith(b"200 by ")
        assert folder.files().keys() == {MANIFEST}


class TestAzure:
    @pytest.mark.parametrize("storage", ["azure"], indirect=True)
    def test_who_has_a_wrong_key_is_told_what_to_do(self, storage: Storage) -> None:
        wrong = storage.options["connection_string"].replace(
            AZURITE_KEY, AZURITE_KEY[::-1].lstrip("=") + "=="
        )
        folder = Folder(replace(storage, options={"connection_string": wrong}).fs, storage.new_folder())
        with pytest.raises(
            StorageError, match=f"Access to abfs://{folder.root}/{MANIFEST} is denied"
        ) as caught:
            folder.claim(MANIFEST, b"one", None)
        assert caught.value.permanent


class TestGoogleCloudStorage:
    @pytest.mark.parametrize("storage", ["gcs"], indirect=True)
    def test_the_class_that_gcsfs_gives_by_default_replaces_in_the_same_way(self, storage: Storage) -> None:
        folder = Folder(replace(storage, kind="gcsfs.GCSFileSystem").fs, storage.new_folder())
        version = folder.claim(MANIFEST, b"one", None)
        other = folder.replace(MANIFEST, b"two", version)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"three", version)
        with pytest.raises(Changed):
            folder.remove(MANIFEST, version)
        assert folder.read(MANIFEST) == (b"two", other)
        assert folder.remove(MANIFEST, other)
        assert folder.read(MANIFEST) is None

    @pytest.mark.parametrize("storage", ["gcs"], indirect=True)
    def test_a_store_that_ignores_conditions_is_found_out(
        self, storage: Storage, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fs = storage.fs
        send = fs._call

        async def send_without_conditions(*arguments: Any, **options: Any) -> Any:
            options.pop("ifGenerationMatch", None)
            return await send(*arguments, **options)

        monkeypatch.setattr(fs, "_call", send_without_conditions)
        with pytest.raises(Changed):
            folder.claim(MANIFEST, b"one", None)
        found = folder.read(MANIFEST)
        assert found is not None
        assert found.content == b"one"
        version = folder.claim(MANIFEST, b"two", found.version)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"three", found.version)
        assert folder.read(MANIFEST) == (b"two", version)


class OtherStore(Store):
    """A filesystem that nothing is known of."""


class TestOtherFilesystems:
    def test_it_is_said_once_that_they_know_no_conditions(self, caplog: pytest.LogCaptureFixture) -> None:
        folder = Folder(OtherStore(), "bucket/prices")
        assert folder.read(MANIFEST) is None
        assert caplog.messages == []
        version = folder.claim(MANIFEST, b"one", None)
        Folder(OtherStore(), "bucket/prices").replace(MANIFEST, b"one", None)
        (warning,) = caplog.messages
        assert warning.startswith("OtherStore cannot replace a file on a condition")
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"two", None)
        assert folder.read(MANIFEST) == (b"one", version)
        assert folder.remove(MANIFEST, version)

    def test_a_listing_that_fails_is_no_empty_one(self) -> None:
        class Unlisted(Store):
            def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
                raise OSError("connection reset")

        with pytest.raises(StorageError, match="store://bucket/prices: OSError: connection reset"):
            Folder(Unlisted(), "bucket/prices").files()

    def test_folders_are_made_where_there_are_folders(self, tmp_path: Path) -> None:
        folder = Folder(DirFileSystem(str(tmp_path), fsspec.filesystem("file")), "prices/of/today")
        folder.claim(MANIFEST, b"one", None)
        with folder.part(f"dt=2026-01-01/{PART}") as part:
            part.write(b"one\n")
        assert folder.files() == {MANIFEST: 3, f"dt=2026-01-01/{PART}": 4}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("_manifest.json", True),
        ("_progress.json", True),
        ("_redshift_manifest.json", False),
        (redshift_manifest(RUN), True),
        (f"dt=2026-01-01/{redshift_manifest(RUN)}", False),
        ("_redshift_manifest-mine.json", False),
        (PART, True),
        (f"dt=2026-01-01/{PART}", True),
        (f"dt=2026-01-01/country=de/{PART}", True),
        (".tmp-part-00001-0123abcd.jsonl-0123abcd", True),
        ("dt=2026-01-01/.tmp-part-00001-0123abcd.jsonl-0123abcd", True),
        ("dt=2026-01-01/_manifest.json", False),
        ("dt=2026-01-01/notes.txt", False),
        (f"2026-01-01/{PART}", False),
        ("part-1.jsonl", False),
        ("notes.txt", False),
    ],
)
def test_files_of_others_are_known_by_their_names(name: str, ours: bool) -> None:
    assert is_ours(name) is ours
