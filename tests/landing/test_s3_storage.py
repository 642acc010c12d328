"""The folder of a landing on S3, and on stores that claim to be S3, reached through a relay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.landing.storage import Changed, Unconditional
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.storage.object_stores import S3, SMALL_BYTES
from tests.landing.relay import Relay, relayed
from tests.landing.storages import Storage

pytestmark = pytest.mark.xdist_group("s3")

MANIFEST = "_manifest.json"
PART = "part-00001-0123abcd.jsonl"


@pytest.fixture
def s3(storage_of: Callable[[str], Storage]) -> Storage:
    """An S3 server on loopback."""
    return storage_of("s3")


class TestS3:
    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What other tests have found out and said is forgotten: a relay may be given the port of another."""
        monkeypatch.setattr(S3, "known", {})
        monkeypatch.setattr(Unconditional, "warned", set())

    @pytest.fixture
    def through(self, s3: Storage) -> Iterator[tuple[Storage, Relay]]:
        """The server through a relay, and the relay."""
        with relayed(s3) as both:
            yield both

    @pytest.fixture
    def relay(self, through: tuple[Storage, Relay]) -> Relay:
        return through[1]

    @pytest.fixture
    def folder(self, through: tuple[Storage, Relay]) -> Folder:
        """A folder that is reached through the relay, and is not there yet."""
        storage, _ = through
        return Folder(storage.fs, storage.new_folder())

    def test_a_write_whose_answer_gets_lost_counts(self, folder: Folder, relay: Relay) -> None:
        relay.lose = ["PUT"]
        first = folder.replace(MANIFEST, b"one", None)
        relay.lose = ["PUT"]
        second = folder.replace(MANIFEST, b"two", first)
        assert relay.lose == []
        assert folder.read(MANIFEST) == (b"two", second)

    def test_a_write_that_meets_one_that_fails_is_repeated(self, folder: Folder, relay: Relay) -> None:
        version = folder.replace(MANIFEST, b"one", None)
        relay.conflicts = 2
        other = folder.replace(MANIFEST, b"two", version)
        assert relay.conflicts == 0
        assert folder.read(MANIFEST) == (b"two", other)

    def test_a_claim_whose_answers_get_lost_counts(self, folder: Folder, relay: Relay) -> None:
        relay.lose = ["PUT", "PUT", "DELETE"]
        version = folder.claim(MANIFEST, b"one", None)
        assert relay.lose == []
        assert folder.read(MANIFEST) == (b"one", version)

    def test_after_a_removal_whose_answer_gets_lost_the_file_is_absent(
        self, folder: Folder, relay: Relay
    ) -> None:
        version = folder.claim(MANIFEST, b"one", None)
        relay.lose = ["DELETE"] * 3
        with pytest.raises(Changed):
            folder.remove(MANIFEST, version)
        assert relay.lose == []
        assert folder.files() == {}

    @pytest.mark.by_day(3)
    @pytest.mark.parametrize("so", ["removed", "refused"])
    @pytest.mark.parametrize(
        "headers", [["if-match", "if-none-match"], ["if-match"], ["if-none-match"]], ids="+".join
    )
    def test_a_store_that_knows_no_conditions_is_found_out(
        self, folder: Folder, relay: Relay, caplog: pytest.LogCaptureFixture, headers: list[str], so: str
    ) -> None:
        getattr(relay, so).update(headers)
        with pytest.raises(Changed):
            folder.claim(MANIFEST, b"one", None)
        found = folder.read(MANIFEST)
        # a request that was refused has written nothing
        assert (found.content if found else None) in ((b"one",) if so == "removed" else (b"one", None))
        before = found.version if found else None
        version = folder.claim(MANIFEST, b"two", before)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"three", before)
        with pytest.raises(Changed):
            folder.remove(MANIFEST, "another")
        assert folder.read(MANIFEST) == (b"two", version)
        assert folder.files() == {MANIFEST: 3}
        assert folder.remove(MANIFEST, version)
        assert folder.files() == {}
        (warning,) = [each for each in caplog.messages if "on a condition" in each]
        assert warning.startswith("S3FileSystem cannot replace a file on a condition")

    @pytest.mark.parametrize("so", ["removed", "refused"])
    def test_where_deletes_know_no_conditions_a_claimed_file_stays(
        self, folder: Folder, relay: Relay, so: str
    ) -> None:
        relay.affected = {"DELETE"}
        getattr(relay, so).add("if-match")
        version = folder.claim(MANIFEST, b"one", None)
        assert not folder.remove(MANIFEST, version)
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"two", None)
        assert folder.read(MANIFEST) == (b"one", version)
        assert folder.files() == {MANIFEST: 3}

    def test_before_the_first_claim_no_file_is_removed(self, s3: Storage) -> None:
        folder = Folder(s3.fs, s3.new_folder())
        version = folder.replace(MANIFEST, b"one", None)
        assert not folder.remove(MANIFEST, version)
        assert folder.read(MANIFEST) == (b"one", version)

    def test_what_a_store_can_do_is_found_out_once(self, s3: Storage, folder: Folder, relay: Relay) -> None:
        folder.claim(MANIFEST, b"one", None)
        assert relay.methods == ["PUT", "PUT", "PUT", "DELETE"]
        relay.requests.clear()
        folder = Folder(folder.fs, s3.new_folder())
        version = folder.claim(MANIFEST, b"one", None)
        assert relay.methods == ["PUT"]
        assert folder.remove(MANIFEST, version)
        assert relay.methods == ["PUT", "DELETE"]

    def test_what_another_writes_during_a_claim_stays(
        self, s3: Storage, folder: Folder, relay: Relay
    ) -> None:
        path = f"{folder.root}/{MANIFEST}"
        # after the write, before the first request that must be refused
        relay.others = [lambda: None, partial(s3.fs.pipe_file, path, b"of another")]
        version = folder.claim(MANIFEST, b"one", None)
        assert relay.others == []
        with pytest.raises(Changed):
            folder.replace(MANIFEST, b"two", version)
        assert s3.fs.cat_file(path) == b"of another"

    def test_a_small_part_is_sent_in_one_request(self, s3: Storage, folder: Folder, relay: Relay) -> None:
        with folder.part(PART) as part:
            part.write(b"one\n")
            part.write(b"two\n")
        assert relay.methods == ["PUT"]
        assert s3.fs.cat_file(f"{folder.root}/{PART}") == b"one\ntwo\n"

    def test_a_part_that_is_not_small_is_sent_in_several_requests(
        self, s3: Storage, folder: Folder, relay: Relay
    ) -> None:
        with folder.part(PART) as part:
            part.write(bytes(SMALL_BYTES))
            part.write(b"one\n")
            part.write(b"two\n")
        assert relay.methods == ["POST", "PUT", "POST"]
        assert s3.fs.cat_file(f"{folder.root}/{PART}") == bytes(SMALL_BYTES) + b"one\ntwo\n"

    @pytest.mark.parametrize(
        ("size", "sent"),
        [(SMALL_BYTES, []), (10_000_000, ["POST", "PUT", "DELETE"])],
        ids=["small", "not small"],
    )
    def test_a_part_that_fails_is_not_published(
        self, folder: Folder, relay: Relay, size: int, sent: list[str]
    ) -> None:
        def write() -> None:
            with folder.part(PART) as part:
                part.write(bytes(size))
                raise EOFError("the source has failed")

        with pytest.raises(EOFError, match="the source has failed"):
            write()
        assert relay.methods == sent
        assert folder.files() == {}

    def test_what_the_filesystem_adds_to_all_requests_is_sent(self, s3: Storage) -> None:
        options = {**s3.options, "s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}
        folder = Folder(replace(s3, options=options).fs, s3.new_folder())
        folder.replace(MANIFEST, b"one", None)
        with folder.part(PART) as part:
            part.write(b"{}\n")
        for name in (MANIFEST, PART):
            bucket, _, key = f"{folder.root}/{name}".partition("/")
            assert s3.fs.call_s3("head_object", Bucket=bucket, Key=key)["ServerSideEncryption"] == "AES256"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "Access to s3://landings/closed/_manifest.json is denied"),
            (
                {"anon": True, "key": None, "secret": None},
                "There are no credentials for s3://landings/closed/",
            ),
        ],
        ids=["denied", "anonymous"],
    )
    def test_who_has_no_access_is_told_what_to_do(
        self, s3: Storage, options: dict[str, Any], message: str
    ) -> None:
        folder = Folder(replace(s3, options={**s3.options, **options}).fs, "landings/closed")
        with s3.denied("landings/closed/*"), pytest.raises(StorageError, match=message) as caught:
            folder.claim(MANIFEST, b"one", None)
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
            folder.claim(MANIFEST, b"one", None)
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
