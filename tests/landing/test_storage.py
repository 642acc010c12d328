"""The folder of a landing, on every kind of storage that replaces files on a condition."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from airflow_provider_webcollect.landing.errors import PartsMissing, StorageError
from airflow_provider_webcollect.landing.manifest import redshift_manifest_of
from airflow_provider_webcollect.landing.storage.conditional import Changed
from airflow_provider_webcollect.landing.storage.errors import storage_errors
from airflow_provider_webcollect.landing.storage.folder import Folder, is_ours
from airflow_provider_webcollect.landing.storage.remote import Unconditional
from airflow_provider_webcollect.landing.storage.s3 import S3
from tests.landing.conftest import RUN, Store
from tests.landing.storages import AZURITE_KEY, Storage, running

MANIFEST = "_manifest.json"
PART = "part-00001-0123abcd.jsonl"
KINDS = ["disk", "memory", "s3", "azure", "gcs"]


@pytest.fixture(scope="module", params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A storage of each kind."""
    with running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """An S3 server on loopback."""
    with running("s3", tmp_path_factory.mktemp("s3")) as found:
        yield found


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
        assert folder.read(MANIFEST)[0] == b"one"

    def test_a_file_that_has_changed_is_not_replaced(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        folder.replace(MANIFEST, b"two", version)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"three", version)
        assert folder.read(MANIFEST)[0] == b"two"

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
        assert folder.read(MANIFEST)[0] == winner
        assert folder.files() == {MANIFEST: len(winner)}

    @pytest.mark.usefixtures("quick_switches")
    def test_no_increment_of_many_is_lost(self, storage: Storage, folder: Folder) -> None:
        folder.replace(MANIFEST, b"0", None)

        def count(number: int) -> None:
            own, left = of_another_process(storage, folder), 5
            while left:
                found = own.read(MANIFEST)
                with suppress(Changed):
                    # what differs by who wrote it is no repetition
                    own.replace(
                        MANIFEST, b"%d by %d" % (int(found.content.split()[0]) + 1, number), found.version
                    )
                    left -= 1

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(count, range(4)))
        assert folder.read(MANIFEST)[0].startswith(b"20 by ")

    def test_a_removed_file_is_gone(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        assert folder.remove(MANIFEST, version)
        assert folder.files() == {}

    def test_a_file_that_has_changed_is_not_removed(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        folder.replace(MANIFEST, b"two", version)
        with pytest.raises(Changed):
            folder.remove(MANIFEST, version)
        assert folder.read(MANIFEST)[0] == b"two"
        assert folder.files() == {MANIFEST: 3}

    def test_a_file_that_another_has_removed_counts_as_removed(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        folder.delete([MANIFEST])
        assert folder.remove(MANIFEST, version)
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
        assert folder.read(MANIFEST)[0] == b"three"
        assert folder.files() == {MANIFEST: 5}

    def test_a_listing_in_the_filesystems_cache_hides_nothing(self, storage: Storage, folder: Folder) -> None:
        folder.replace(MANIFEST, b"one", None)
        assert len(storage.fs.ls(folder.root)) == 1
        with of_another_process(storage, folder).part(PART) as part:
            part.write(b"{}\n")
        with folder.opened(PART) as file:
            assert file.read() == b"{}\n"
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
        with folder.opened(name) as file:
            assert file.read() == b"one\ntwo\n"

    @pytest.mark.parametrize("size", [10, 20_000_000], ids=["small", "of several blocks"])
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


class TestTryOut:
    def test_nothing_is_left(self, storage: Storage, folder: Folder) -> None:
        around = Folder(storage.fs, storage.parent)
        # processes that other tests have killed may have left theirs
        before = around.files()
        folder.try_out()
        assert around.files() == before

    def test_a_file_that_is_there_stays(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        folder.try_out()
        assert folder.read(MANIFEST) == (b"one", version)
        assert folder.files() == {MANIFEST: 3}

    @pytest.mark.parametrize("storage", ["s3", "azure", "gcs"], indirect=True)
    def test_an_absent_bucket_is_named(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="no bucket or container 'elsewhere'") as caught:
            Folder(storage.fs, "elsewhere/prices").try_out()
        assert caught.value.permanent

    @pytest.mark.parametrize("storage", ["s3", "azure"], indirect=True)
    def test_an_absent_bucket_is_no_absent_file(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="'elsewhere'"):
            Folder(storage.fs, "elsewhere/prices").read(MANIFEST)


class TestDisk:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        return Folder(fsspec.filesystem("file"), str(tmp_path / "prices"))

    def test_a_folder_that_is_tried_is_not_made(self, folder: Folder) -> None:
        folder.try_out()
        assert not Path(folder.root).exists()

    def test_a_file_in_the_place_of_a_folder_is_named(self, folder: Folder) -> None:
        Path(folder.root).write_text("a file")
        with pytest.raises(StorageError, match=f"{folder.root}/2026.*Not a directory") as caught:
            Folder(fsspec.filesystem("file"), f"{folder.root}/2026").try_out()
        assert caught.value.permanent

    @pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder that even root cannot write to")
    def test_a_folder_that_may_not_be_written_to_is_named(self) -> None:
        with pytest.raises(StorageError, match="Access to /sys/prices is denied") as caught:
            Folder(fsspec.filesystem("file"), "/sys/prices").try_out()
        assert caught.value.permanent

    def test_a_full_disk_is_named_and_may_be_mended(self, folder: Folder) -> None:
        def write() -> None:
            with (
                storage_errors(fsspec.filesystem("file"), "/data/part"),
                Path("/dev/full").open("wb", 0) as full,
            ):
                full.write(b"one")

        with pytest.raises(StorageError, match="No space is left to write /data/part") as caught:
            write()
        assert not caught.value.permanent

    def test_a_lock_that_a_killed_process_left_is_no_obstacle(self, folder: Folder) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        Path(folder.root, f".tmp-{MANIFEST}.lock").touch()
        folder.replace(MANIFEST, b"two", version)
        assert folder.files() == {MANIFEST: 3}

    def test_processes_exclude_each_other(self, folder: Folder) -> None:
        folder.replace(MANIFEST, b"0", None)
        script = (
            "import fsspec, os, sys\n"
            "from airflow_provider_webcollect.landing.storage.conditional import Changed\n"
            "from airflow_provider_webcollect.landing.storage.folder import Folder\n"
            "folder, left = Folder(fsspec.filesystem('file'), sys.argv[1]), 50\n"
            "while left:\n"
            "    found = folder.read('_manifest.json')\n"
            "    content = b'%d by %d' % (int(found.content.split()[0]) + 1, os.getpid())\n"
            "    try:\n"
            "        folder.replace('_manifest.json', content, found.version)\n"
            "    except Changed:\n"
            "        continue\n"
            "    left -= 1\n"
        )
        counting = [subprocess.Popen([sys.executable, "-c", script, folder.root]) for _ in range(4)]
        assert [each.wait() for each in counting] == [0] * 4
        assert folder.read(MANIFEST)[0].startswith(b"200 by ")
        assert folder.files().keys() == {MANIFEST}


class Relay(ThreadingHTTPServer):
    """Passes requests on to a server.

    :param removed: headers that do not arrive, as if the server knew nothing of them.
    """

    daemon_threads = True

    def __init__(self, server: str, removed: Collection[str] = ()) -> None:
        super().__init__(("127.0.0.1", 0), _Relayed)
        self.server = server.removeprefix("http://")
        self.removed = {"expect", *(each.lower() for each in removed)}
        #: headers that are refused, as some stores do that do not know them
        self.refused: set[str] = set()
        #: what others do before a write arrives, one after another
        self.others: list[Callable[[], object]] = []
        #: how many writes are refused since they have met others
        self.conflicts = 0
        #: methods of requests whose answers get lost, one after another
        self.lose: list[str] = []
        #: methods of the requests that have come
        self.methods: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Relayed(BaseHTTPRequestHandler):
    server: Relay
    # which answers `Expect: 100-continue`
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        self.server.methods.append(self.command)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in self.server.removed
        }
        if self.server.refused.intersection(map(str.lower, headers)):
            self._answer(501, {}, b"<Error><Code>NotImplemented</Code></Error>")
            return
        if self.command == "PUT" and self.server.conflicts:
            self.server.conflicts -= 1
            self._answer(409, {}, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
            return
        upstream = HTTPConnection(self.server.server)
        if self.command == "PUT" and self.server.others:
            self.server.others.pop()()
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        self.close_connection = True
        if self.command in self.server.lose:
            self.server.lose.remove(self.command)
            return
        self._answer(answer.status, dict(answer.getheaders()), content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in {"connection", "content-length", "transfer-encoding"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = _pass_on  # noqa: N815  # as the base class calls them

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def relayed(storage: Storage, **options: Any) -> Iterator[tuple[Storage, Relay]]:
    """Reach a storage through a relay."""
    with Relay(storage.options["endpoint_url"], **options) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        try:
            yield replace(storage, options={**storage.options, "endpoint_url": relay.url}), relay
        finally:
            relay.shutdown()


class TestS3:
    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What other tests have found out and said is forgotten: a relay may be given the port of another."""
        monkeypatch.setattr(S3, "known", {})
        monkeypatch.setattr(Unconditional, "warned", set())

    def test_a_write_whose_answer_gets_lost_counts(self, s3: Storage) -> None:
        with relayed(s3) as (storage, relay):
            folder = Folder(storage.fs, storage.new_folder())
            relay.lose = ["PUT"]
            first = folder.replace(MANIFEST, b"one", None)
            relay.lose = ["PUT"]
            second = folder.replace(MANIFEST, b"two", first)
            assert relay.lose == []
            assert folder.read(MANIFEST) == (b"two", second)

    def test_a_write_that_meets_one_that_fails_is_repeated(self, s3: Storage) -> None:
        with relayed(s3) as (storage, relay):
            folder = Folder(storage.fs, storage.new_folder())
            version = folder.replace(MANIFEST, b"one", None)
            relay.conflicts = 2
            folder.replace(MANIFEST, b"two", version)
            assert relay.conflicts == 0
            assert folder.read(MANIFEST)[0] == b"two"

    def test_a_removal_whose_answer_gets_lost_counts(self, s3: Storage) -> None:
        with relayed(s3) as (storage, relay):
            folder = Folder(storage.fs, storage.new_folder())
            version = folder.replace(MANIFEST, b"one", None)
            relay.lose = ["DELETE"] * 3
            assert folder.remove(MANIFEST, version)
            assert relay.lose == []
            assert folder.files() == {}

    @pytest.mark.parametrize(
        "ignored", [["If-Match", "If-None-Match"], ["If-Match"], ["If-None-Match"]], ids="+".join
    )
    def test_a_store_that_ignores_conditions_is_found_out(
        self, s3: Storage, caplog: pytest.LogCaptureFixture, ignored: list[str]
    ) -> None:
        with relayed(s3, removed=ignored) as (storage, _):
            folder = Folder(storage.fs, storage.new_folder())
            folder.try_out()
            assert folder.files() == {}
            version = folder.replace(MANIFEST, b"one", None)
            assert "S3FileSystem cannot replace a file on a condition" in caplog.text
            with pytest.raises(Changed):
                folder.replace(MANIFEST, b"two", None)
            assert folder.remove(MANIFEST, version)
            assert folder.files() == {}

    def test_a_store_that_refuses_conditions_is_written_to_without_them(self, s3: Storage) -> None:
        with relayed(s3) as (storage, relay):
            relay.refused = {"if-match", "if-none-match"}
            storage.options["config_kwargs"] = {"retries": {"max_attempts": 0}}
            folder = Folder(storage.fs, storage.new_folder())
            folder.try_out()
            version = folder.replace(MANIFEST, b"one", None)
            assert folder.read(MANIFEST) == (b"one", version)

    @pytest.mark.parametrize("so", ["removed", "refused"])
    def test_where_deletes_know_no_conditions_the_file_stays(self, s3: Storage, so: str) -> None:
        with relayed(s3) as (storage, relay):
            storage.options["config_kwargs"] = {"retries": {"max_attempts": 0}}
            folder = Folder(storage.fs, storage.new_folder())
            version = folder.replace(MANIFEST, b"one", None)
            getattr(relay, so).add("if-match")
            assert not folder.remove(MANIFEST, version)
            assert folder.files() == {MANIFEST: 3}

    def test_a_file_that_a_killed_process_has_left_is_removed_by_the_next_test(self, s3: Storage) -> None:
        folder = Folder(s3.fs, s3.new_folder())
        s3.fs.pipe_file(f"{folder.root}/.tmp-probe", b"probe")
        folder.try_out()
        assert folder.files() == {}

    def test_a_test_is_not_misled_by_others_that_remove_their_file(
        self, s3: Storage, caplog: pytest.LogCaptureFixture
    ) -> None:
        with relayed(s3) as (storage, relay):
            folder = Folder(storage.fs, storage.new_folder())
            relay.others = [partial(s3.fs.rm_file, f"{folder.root}/.tmp-probe")] * 3
            folder.try_out()
            assert relay.others == []
            folder.replace(MANIFEST, b"one", None)
            assert "cannot replace a file on a condition" not in caplog.text
            assert folder.files() == {MANIFEST: 3}

    def test_what_a_store_can_do_is_found_out_once(self, s3: Storage) -> None:
        with relayed(s3) as (storage, relay):
            for _ in range(2):
                relay.methods.clear()
                folder = Folder(storage.fs, storage.new_folder())
                folder.try_out()
                folder.remove(MANIFEST, folder.replace(MANIFEST, b"one", None))
                methods = relay.methods[:]
            assert methods == ["PUT", "PUT", "DELETE"]

    def test_what_the_filesystem_adds_to_all_requests_is_sent(self, s3: Storage) -> None:
        options = {**s3.options, "s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}
        folder = Folder(replace(s3, options=options).fs, s3.new_folder())
        folder.replace(MANIFEST, b"one", None)
        bucket, _, key = f"{folder.root}/{MANIFEST}".partition("/")
        assert s3.fs.call_s3("head_object", Bucket=bucket, Key=key)["ServerSideEncryption"] == "AES256"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "Access to s3://closed/prices is denied"),
            ({"anon": True, "key": None, "secret": None}, "There are no credentials for s3://closed/prices"),
        ],
        ids=["denied", "anonymous"],
    )
    def test_who_has_no_access_is_told_what_to_do(
        self, s3: Storage, options: dict[str, Any], message: str
    ) -> None:
        s3.fs.call_s3("create_bucket", Bucket="closed")
        everything = {"Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "arn:aws:s3:::closed/*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
        s3.fs.call_s3("put_bucket_policy", Bucket="closed", Policy=policy)
        folder = Folder(replace(s3, options={**s3.options, **options}).fs, "closed/prices")
        with pytest.raises(StorageError, match=message) as caught:
            folder.try_out()
        assert caught.value.permanent

    def test_without_any_credentials_it_is_told_what_to_do(
        self, s3: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        options = {"endpoint_url": s3.options["endpoint_url"], "skip_instance_cache": True}
        folder = Folder(replace(s3, options=options).fs, s3.new_folder())
        with pytest.raises(StorageError, match=r"no credentials for s3://.*object_storage_conn_id") as caught:
            folder.try_out()
        assert caught.value.permanent

    def test_a_server_that_is_away_may_come_back(self) -> None:
        options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
        fs = Storage(
            "s3fs.S3FileSystem", "", {**options, "config_kwargs": {"retries": {"max_attempts": 0}}}
        ).fs
        fs.retries = 1
        with pytest.raises(
            StorageError, match=r"has failed at s3://landings/prices/_manifest.json"
        ) as caught:
            Folder(fs, "landings/prices").read(MANIFEST)
        assert not caught.value.permanent


class TestAzure:
    @pytest.mark.parametrize("storage", ["azure"], indirect=True)
    def test_who_has_a_wrong_key_is_told_what_to_do(self, storage: Storage) -> None:
        wrong = storage.options["connection_string"].replace(
            AZURITE_KEY, AZURITE_KEY[::-1].lstrip("=") + "=="
        )
        folder = Folder(replace(storage, options={"connection_string": wrong}).fs, storage.new_folder())
        with pytest.raises(StorageError, match=r"Access to abfs://landings/of/[0-9a-f]+ is denied") as caught:
            folder.try_out()
        assert caught.value.permanent


class TestGoogleCloudStorage:
    @pytest.mark.parametrize("storage", ["gcs"], indirect=True)
    def test_the_class_that_gcsfs_gives_by_default_replaces_in_the_same_way(self, storage: Storage) -> None:
        folder = Folder(replace(storage, kind="gcsfs.GCSFileSystem").fs, storage.new_folder())
        folder.try_out()
        version = folder.replace(MANIFEST, b"one", None)
        other = folder.replace(MANIFEST, b"two", version)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"three", version)
        with pytest.raises(Changed):
            folder.remove(MANIFEST, version)
        assert folder.read(MANIFEST) == (b"two", other)
        assert folder.remove(MANIFEST, other)
        assert folder.read(MANIFEST) is None


class OtherStore(Store):
    """A filesystem that nothing is known of."""


class TestOtherFilesystems:
    def test_it_is_said_once_that_they_know_no_conditions(self, caplog: pytest.LogCaptureFixture) -> None:
        folder = Folder(OtherStore(), "bucket/prices")
        assert folder.read(MANIFEST) is None
        assert caplog.messages == []
        version = folder.replace(MANIFEST, b"one", None)
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
        folder.try_out()
        assert list(tmp_path.iterdir()) == []
        folder.replace(MANIFEST, b"one", None)
        with folder.part(f"dt=2026-01-01/{PART}") as part:
            part.write(b"one\n")
        assert folder.files() == {MANIFEST: 3, f"dt=2026-01-01/{PART}": 4}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("_manifest.json", True),
        ("_progress.json", True),
        ("_redshift_manifest.json", False),
        (redshift_manifest_of(RUN), True),
        (f"dt=2026-01-01/{redshift_manifest_of(RUN)}", False),
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
