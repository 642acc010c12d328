"""The folder of a landing, on every kind of storage that creates a file only if it is absent."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from google.oauth2.credentials import Credentials as GoogleCredentials

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.errors import PartsMissing, StorageError
from airflow_provider_webcollect.landing.log.commits import Manifest
from airflow_provider_webcollect.landing.log.names import COMMITS, commit_name
from airflow_provider_webcollect.landing.storage import BLOCK_BYTES, Exists
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog, Conflict
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.storage.object_stores import S3, SMALL_BYTES
from tests.landing.conftest import Store
from tests.landing.logs import commit_after
from tests.simulation.relay import Relay, relayed
from tests.storages import AZURITE_KEY, Storage

COMMIT = commit_name(1)
PART = "part-00001-0123abcd.jsonl"
KINDS = ["disk", "memory", "s3", "azure", "gcs"]


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, storage_of: Callable[[str], Storage]) -> Storage:
    return storage_of(request.param)


@pytest.fixture
def folder(storage: Storage) -> Folder:
    """A folder that does not exist yet."""
    return Folder(storage.fs, storage.new_folder())


def of_another_process(storage: Storage, folder: Folder) -> Folder:
    """Return the same folder on a filesystem that shares no cache with the first one."""
    options = {**storage.options, "skip_instance_cache": True}
    return Folder(replace(storage, options=options).fs, folder.root)


@contextlib.contextmanager
def fails(said: str, *, for_good: bool = True) -> Iterator[None]:
    """Expect a storage error.

    :param for_good: whether the error is permanent, so that a retry cannot succeed.
    """
    with pytest.raises(StorageError, match=said) as caught:
        yield
    assert caught.value.permanent is for_good


def content_of_part(folder: Folder, name: str = PART) -> bytes:
    with folder.opened(name) as file:
        return file.read()


class TestSmallFiles:
    def test_a_file_is_created_only_if_it_is_absent(self, folder: Folder) -> None:
        assert folder.read(COMMIT) is None
        assert folder.files() == folder.files(COMMITS) == {}
        folder.create(COMMIT, b"one")
        for content in (b"two", b"one"):
            with pytest.raises(Exists):
                folder.create(COMMIT, content)
        assert folder.read(COMMIT) == b"one"
        assert folder.files() == folder.files(COMMITS) == {COMMIT: 3}
        folder.delete([COMMIT])
        assert folder.read(COMMIT) is None
        folder.create(COMMIT, b"three")
        assert folder.read(COMMIT) == b"three"

    def test_a_file_is_written_whether_it_is_there_or_not(self, folder: Folder) -> None:
        for content in (b"one", b"three", b"2"):
            folder.write(MANIFEST, content)
            assert folder.read(MANIFEST) == content
            assert folder.files() == {MANIFEST: len(content)}

    def test_one_of_many_creators_succeeds(self, storage: Storage, folder: Folder) -> None:
        start = threading.Barrier(8)
        # this finds out whether the storage respects conditions, so that all creators begin at once
        folder.create(MANIFEST, b"")

        def create(number: int) -> bytes | None:
            own = of_another_process(storage, folder)
            start.wait()
            with contextlib.suppress(Exists):
                own.create(COMMIT, b"of %d" % number)
                return b"of %d" % number
            return None

        with ThreadPoolExecutor(8) as threads:
            (winner,) = [content for content in threads.map(create, range(8)) if content]
        assert folder.read(COMMIT) == winner
        assert folder.files() == {COMMIT: len(winner), MANIFEST: 0}

    def test_two_processes_see_each_others_writes_at_once(self, storage: Storage, folder: Folder) -> None:
        other = of_another_process(storage, folder)
        assert other.files() == {}
        assert other.read(COMMIT) is None
        folder.create(COMMIT, b"one")
        assert other.read(COMMIT) == b"one"
        with folder.part(f"dt=2026-01-01/{PART}") as part:
            part.write(b"{}\n")
        assert other.files() == {COMMIT: 3, f"dt=2026-01-01/{PART}": 3}
        other.write(COMMIT, b"three")
        other.delete([f"dt=2026-01-01/{PART}"])
        assert folder.read(COMMIT) == b"three"
        assert folder.files() == {COMMIT: 5}

    def test_a_listing_in_the_filesystems_cache_hides_nothing(self, storage: Storage, folder: Folder) -> None:
        folder.write(MANIFEST, b"one")
        assert len(storage.fs.ls(folder.root)) == 1
        with of_another_process(storage, folder).part(PART) as part:
            part.write(b"{}\n")
        assert content_of_part(folder) == b"{}\n"
        assert folder.files() == {MANIFEST: 3, PART: 3}

    @pytest.mark.parametrize(
        ("storage", "cached", "work", "content"),
        [
            *((kind, False, "create", [b"one"]) for kind in ("s3", "azure", "gcs")),
            ("s3", True, "create", [b"one"]),
            *((kind, False, "read", []) for kind in ("s3", "azure")),
            *((kind, False, "files", []) for kind in ("s3", "gcs")),
        ],
        indirect=["storage"],
    )
    def test_an_absent_bucket_is_named_and_is_no_absent_file(
        self, storage: Storage, cached: bool, work: str, content: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fs = storage.fs
        monkeypatch.setattr(S3, "respects", {(fs, "elsewhere"): True} if cached else {})
        with fails("no bucket or container 'elsewhere'"):
            getattr(Folder(fs, "elsewhere/prices"), work)(COMMIT, *content)


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
        # nor may a file object publish the part when it is garbage-collected
        gc.collect()
        assert folder.files() == {}

    def test_a_part_that_is_absent_is_named(self, folder: Folder) -> None:
        folder.write(MANIFEST, b"one")
        with pytest.raises(PartsMissing, match=PART), folder.opened(PART):
            pass

    def test_parts_are_deleted_and_absent_ones_are_fine(self, folder: Folder) -> None:
        folder.delete([PART])
        with folder.part(PART) as part:
            part.write(b"one\n")
        folder.delete([PART, f"dt=1/{PART}"])
        assert folder.files() == {}


REFUSED = [
    ("s3", 400, {}, b"<Error><Code>ExpiredToken</Code></Error>"),
    ("s3", 403, {}, b"<Error><Code>RequestTimeTooSkewed</Code></Error>"),
    # gcsfs itself retries, for half a minute
    pytest.param(
        "gcs",
        401,
        {},
        b'{"error": {"code": 401, "message": "Invalid Credentials"}}',
        marks=pytest.mark.at_night,
    ),
    ("azure", 401, {"x-ms-error-code": "InvalidAuthenticationInfo"}, b""),
    (
        "azure",
        403,
        {"x-ms-error-code": "AuthenticationFailed", "Content-Type": "application/xml"},
        b"<Error><Code>AuthenticationFailed</Code><Message>No.</Message><AuthenticationErrorDetail>"
        b"Signature not valid in the specified time frame</AuthenticationErrorDetail></Error>",
    ),
]


@pytest.mark.parametrize(("storage", "status", "headers", "content"), REFUSED, indirect=["storage"], ids=str)
def test_expired_credentials_may_be_renewed(
    storage: Storage, status: int, headers: dict[str, str], content: bytes
) -> None:
    with relayed(storage) as (through, relay):
        if through.options.get("token") == "anon":
            # otherwise GCS is reached without credentials, so none can expire
            token = GoogleCredentials("expired")  # type: ignore[no-untyped-call]
            through = replace(through, options={**through.options, "token": token})
        folder = Folder(through.fs, storage.new_folder())
        relay.refusals = [(status, headers, content)] * 20
        with fails(r"credentials for .* are no longer valid", for_good=False):
            folder.write(MANIFEST, b"one")


#: Errors with which file systems refuse to create a link.
NO_LINKS = ["EACCES", "EINVAL", "EIO", "EMLINK", "ENOSYS", "ENOTSUP", "EPERM", "EXDEV"]


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:

    def refuse(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)


class TestDisk:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        return Folder(fsspec.filesystem("file"), str(tmp_path / "prices"))

    @pytest.mark.parametrize("below", ["", "/2026"])
    def test_a_file_in_the_place_of_a_folder_is_named(self, folder: Folder, below: str) -> None:
        Path(folder.root).write_text("a file")
        with fails(f"{folder.root}{below}/.*Not a directory"):
            Folder(fsspec.filesystem("file"), f"{folder.root}{below}").create(COMMIT, b"one")
        assert Path(folder.root).read_text() == "a file"

    @pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs Linux")
    @pytest.mark.parametrize("place", ["/sys", "/proc"], ids=["not even by root", "takes no files"])
    def test_a_folder_that_may_not_be_written_to_is_named(self, place: str) -> None:
        with fails(f"Access to {place}/prices/{COMMIT} is denied"):
            Folder(fsspec.filesystem("file"), f"{place}/prices").create(COMMIT, b"one")

    @pytest.mark.parametrize("links", [True, False], ids=["", "without links"])
    @pytest.mark.parametrize("operation", ["create", "write"])
    def test_a_full_disk_is_named_and_may_be_mended(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch, operation: str, links: bool
    ) -> None:
        """No torn file stays, even if links are refused and the file is written under its own name."""
        left = 1 if operation == "create" and not links else 0

        def fail(descriptor: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        if not links:
            refuse_links(monkeypatch, errno.EPERM)
        folder.write(MANIFEST, b"one")
        name = {"create": COMMIT, "write": MANIFEST}[operation]
        Path(folder.root, COMMITS).mkdir()
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", fail)
            with fails(f"No space is left to write {folder.root}/{name}", for_good=False):
                getattr(folder, operation)(name, b"two")
        assert folder.read(MANIFEST) == b"one"
        assert folder.files() == {MANIFEST: 3}
        getattr(folder, operation)(name, b"two")
        assert folder.read(name) == b"two"

    @pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
    def test_a_file_system_that_cannot_sync_folders_takes_files(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def fsync(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)
        folder.create(COMMIT, b"one")
        folder.write(MANIFEST, b"two")
        assert folder.files() == {COMMIT: 3, MANIFEST: 3}

    def test_a_name_that_is_too_long_is_refused_with_its_length(self, folder: Folder) -> None:
        name = f"dt={'x' * 300}/{PART}"
        with fails(r"does not take the path .* of \d+ bytes, 303 of them "):
            folder.write(name, b"one")

    def test_a_partition_may_be_on_another_disk(self, folder: Folder, tmp_path: Path) -> None:
        """The partition is a link; a link in it that leads back up is ignored."""
        elsewhere = tmp_path / "elsewhere"
        for made in (elsewhere, Path(folder.root)):
            made.mkdir()
        Path(folder.root, "dt=1").symlink_to(elsewhere)
        (elsewhere / "up").symlink_to(folder.root)
        with folder.part(f"dt=1/{PART}") as part:
            part.write(b"{}\n")
        assert folder.files() == {f"dt=1/{PART}": 3}

    @pytest.mark.parametrize("error", NO_LINKS)
    def test_without_links_a_file_is_created_only_if_absent(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch, error: str
    ) -> None:
        refuse_links(monkeypatch, getattr(errno, error))
        folder.create(COMMIT, b"one")
        with pytest.raises(Exists):
            folder.create(COMMIT, b"two")
        assert folder.read(COMMIT) == b"one"
        assert folder.files() == {COMMIT: 3}


def commit(folder: Folder, number: int) -> Manifest:
    """Append a commit with this number, which differs from all others, and return the new state."""
    log = CommitLog(folder)
    state = log.read()
    assert number == (1 if state is None else state.commit + 1)
    return log.append(state, commit_after(state, 1, run=f"run {number}"))


@pytest.mark.xdist_group("s3")
class TestS3:
    """S3, and stores that claim to be S3, reached through a relay."""

    @pytest.fixture
    def s3(self, storage_of: Callable[[str], Storage]) -> Storage:
        return storage_of("s3")

    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Forget what other tests found out and warned of: a relay may get the port of an earlier one."""
        monkeypatch.setattr(S3, "respects", {})
        monkeypatch.setattr("airflow_provider_webcollect.landing.storage.Storage.warned", set())

    @pytest.fixture
    def relay(self, s3: Storage) -> Iterator[Relay]:
        with relayed(s3) as (_, relay):
            yield relay

    @pytest.fixture
    def folder(self, s3: Storage, relay: Relay) -> Folder:
        """A folder that is reached through the relay, and does not exist yet."""
        through = replace(s3, options={**s3.options, "endpoint_url": relay.url})
        return Folder(through.fs, through.new_folder())

    @pytest.mark.parametrize(("before", "lost"), [(1, 1), (0, 1), (0, 2)])
    def test_an_unanswered_commit_counts(self, folder: Folder, relay: Relay, before: int, lost: int) -> None:
        for number in range(before):
            commit(folder, number + 1)
        relay.lose = ["PUT"] * lost
        state = commit(folder, before + 1)
        assert relay.lose == []
        assert CommitLog(folder).read() == state

    def test_a_repeated_commit_may_meet_another(self, s3: Storage, folder: Folder, relay: Relay) -> None:
        commit(folder, 1)
        relay.lose = ["PUT"]
        relay.others = [partial(commit, Folder(s3.fs, folder.root), 2)]
        with pytest.raises(Conflict):
            commit(folder, 2)
        assert relay.others == []

    def test_a_commit_that_meets_a_conflict_can_be_repeated(self, folder: Folder, relay: Relay) -> None:
        commit(folder, 1)
        relay.refusals = [(409, {}, b"<Error><Code>ConditionalRequestConflict</Code></Error>")]
        with pytest.raises(Conflict):
            commit(folder, 2)
        commit(folder, 2)

    @pytest.mark.parametrize("so", ["removed", "refused"])
    def test_a_store_that_knows_no_conditions_is_found_out_and_works(
        self, folder: Folder, relay: Relay, caplog: pytest.LogCaptureFixture, so: str
    ) -> None:
        getattr(relay, so).add("if-none-match")
        for number in (1, 2):
            folder.create(commit_name(number), b"one")
            for again in (folder, Folder(folder.fs, folder.root)):
                with pytest.raises(Exists):
                    again.create(commit_name(number), b"two")
            assert folder.read(commit_name(number)) == b"one"
        (warning,) = [message for message in caplog.messages if "no conditional create" in message]
        assert warning.startswith("S3FileSystem has no conditional create")

    @pytest.mark.parametrize("so", ["removed", "refused"])
    def test_a_store_without_conditions_overwrites_no_commit(
        self, s3: Storage, folder: Folder, relay: Relay, so: str
    ) -> None:
        getattr(relay, so).add("if-none-match")
        Folder(s3.fs, folder.root).write(COMMIT, b"of another")
        with pytest.raises(Exists):
            folder.create(COMMIT, b"one")
        assert folder.read(COMMIT) == b"of another"

    def test_what_a_store_can_do_is_found_out_once(self, s3: Storage, folder: Folder, relay: Relay) -> None:
        folder.create(COMMIT, b"one")
        assert relay.methods == ["GET", "PUT", "PUT"]
        relay.requests.clear()
        Folder(folder.fs, s3.new_folder()).create(COMMIT, b"one")
        assert relay.methods == ["PUT"]

    def test_what_another_creates_meanwhile_stays(self, s3: Storage, folder: Folder, relay: Relay) -> None:
        relay.others = [partial(s3.fs.pipe_file, f"{folder.root}/{COMMIT}", b"of another")]
        with pytest.raises(Exists):
            folder.create(COMMIT, b"one")
        assert folder.read(COMMIT) == b"of another"

    @pytest.mark.parametrize(
        ("size", "fails", "sent"),
        [
            (SMALL_BYTES, False, ["PUT"]),
            (SMALL_BYTES + 1, False, ["POST", "PUT", "POST"]),
            (SMALL_BYTES, True, []),
            (10_000_000, True, ["POST", "PUT", "DELETE"]),
        ],
    )
    def test_a_small_part_is_one_request_and_a_failed_one_none(
        self, folder: Folder, relay: Relay, size: int, fails: bool, sent: list[str]
    ) -> None:
        with contextlib.suppress(EOFError), folder.part(PART) as part:
            part.write(bytes(size - 4))
            part.write(b"end\n")
            if fails:
                raise EOFError("the source has failed")
        assert relay.methods == sent
        assert folder.files() == ({} if fails else {PART: size})
        if not fails:
            assert folder.fs.cat_file(f"{folder.root}/{PART}") == bytes(size - 4) + b"end\n"

    @pytest.mark.parametrize("size", [1, 300_000, 9_026_780], ids=["byte by byte", "small", "large"])
    def test_requests_for_a_part_have_one_size(self, folder: Folder, relay: Relay, size: int) -> None:
        """Cloudflare R2 refuses uploads in blocks of different sizes."""
        with folder.part(PART) as part:
            part.write(bytes(16_000_000))
            for _ in range(3):
                part.write(bytes(size))
        sent = [request.bytes for request in relay.requests if request.method == "PUT"]
        assert {*sent[:-1]} == {BLOCK_BYTES}
        assert sum(sent) == part.bytes
        assert len(folder.fs.cat_file(f"{folder.root}/{PART}")) == part.bytes

    def test_what_the_filesystem_adds_to_all_requests_is_sent(self, s3: Storage) -> None:
        options = {**s3.options, "s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}
        folder = Folder(replace(s3, options=options).fs, s3.new_folder())
        folder.create(COMMIT, b"one")
        with folder.part(PART) as part:
            part.write(b"{}\n")
        for name in (COMMIT, PART):
            bucket, _, key = f"{folder.root}/{name}".partition("/")
            assert s3.fs.call_s3("head_object", Bucket=bucket, Key=key)["ServerSideEncryption"] == "AES256"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, f"Access to s3://landings/closed/{COMMIT} is denied"),
            ({"anon": True, "key": None, "secret": None}, "no credentials for s3://landings/closed/"),
        ],
        ids=["denied", "anonymous"],
    )
    def test_who_has_no_access_is_told_what_to_do(self, s3: Storage, options: Any, message: str) -> None:
        folder = Folder(replace(s3, options={**s3.options, **options}).fs, "landings/closed")
        with s3.denied("landings/closed/*"), fails(message):
            folder.create(COMMIT, b"one")

    def test_without_any_credentials_it_is_told_what_to_do(
        self, s3: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        options = {"endpoint_url": s3.options["endpoint_url"], "skip_instance_cache": True}
        folder = Folder(replace(s3, options=options).fs, s3.new_folder())
        with fails(r"no credentials for s3://.*s3://my_connection@"):
            folder.create(COMMIT, b"one")

    def test_a_server_that_is_away_may_come_back(self) -> None:
        options: dict[str, Any] = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
        options["config_kwargs"] = {"retries": {"max_attempts": 0}}
        fs = Storage("s3fs.S3FileSystem", "", options).fs
        fs.retries = 1
        with fails(f"has failed at s3://landings/prices/{COMMIT}", for_good=False):
            Folder(fs, "landings/prices").read(COMMIT)


@pytest.mark.parametrize("storage", ["azure"], indirect=True)
def test_who_has_a_wrong_key_is_told_what_to_do(storage: Storage) -> None:
    key = AZURITE_KEY[::-1].lstrip("=") + "=="
    options = {"connection_string": storage.options["connection_string"].replace(AZURITE_KEY, key)}
    folder = Folder(replace(storage, options=options).fs, storage.new_folder())
    with fails(f"Access to abfs://{folder.root}/{COMMIT} is denied"):
        folder.create(COMMIT, b"one")


@pytest.mark.parametrize("storage", ["gcs"], indirect=True)
def test_the_default_class_of_gcsfs_creates_the_same_way(storage: Storage) -> None:
    from gcsfs.extended_gcsfs import BucketType

    fs = replace(storage, kind="gcsfs.GCSFileSystem").fs
    # otherwise it asks, for a minute, a server of another protocol, which does not exist here
    fs._storage_layout_cache[storage.parent.partition("/")[0]] = BucketType.NON_HIERARCHICAL
    folder = Folder(fs, storage.new_folder())
    folder.create(COMMIT, b"one")
    with pytest.raises(Exists):
        folder.create(COMMIT, b"two")
    assert folder.read(COMMIT) == b"one"


class OtherStore(Store):
    """A filesystem about which nothing is known."""


class TestOtherFilesystems:
    def test_missing_conditions_are_warned_of_once(self, caplog: pytest.LogCaptureFixture) -> None:
        folder = Folder(OtherStore(), "bucket/prices")
        assert folder.read(COMMIT) is None
        assert caplog.messages == []
        folder.create(COMMIT, b"one")
        Folder(OtherStore(), "bucket/prices").create(COMMIT, b"one")
        (warning,) = caplog.messages
        assert warning.startswith("OtherStore has no conditional create")
        with pytest.raises(Exists):
            folder.create(COMMIT, b"two")
        assert folder.read(COMMIT) == b"one"

    def test_a_listing_that_fails_is_no_empty_one(self) -> None:
        class Unlisted(Store):
            def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
                raise OSError("connection reset")

        with pytest.raises(StorageError, match="store://bucket/prices: OSError: connection reset"):
            Folder(Unlisted(), "bucket/prices").files()

    def test_folders_are_made_where_there_are_folders(self, tmp_path: Path) -> None:
        folder = Folder(DirFileSystem(str(tmp_path), fsspec.filesystem("file")), "prices/of/today")
        folder.create(COMMIT, b"one")
        with folder.part(f"dt=2026-01-01/{PART}") as part:
            part.write(b"one\n")
        assert folder.files() == {COMMIT: 3, f"dt=2026-01-01/{PART}": 4}
