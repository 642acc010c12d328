"""The folder of a landing on S3, and on stores that claim to be S3, reached through a relay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.landing.log.commits import Manifest
from airflow_provider_webcollect.landing.log.names import commit_name
from airflow_provider_webcollect.landing.storage import Exists
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog, Conflict
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.storage.object_stores import S3, SMALL_BYTES
from tests.landing.logs import commit_after
from tests.landing.relay import Relay, relayed
from tests.storages import Storage

pytestmark = pytest.mark.xdist_group("s3")

COMMIT = commit_name(1)
PART = "part-00001-0123abcd.jsonl"


def commit(folder: Folder, number: int) -> Manifest:
    """Add a commit of that number, which is like no other."""
    log = CommitLog(folder)
    state = log.read()
    assert number == (1 if state is None else state.commit + 1)
    return log.append(state, commit_after(state, 1, run=f"run {number}"))


@pytest.fixture
def s3(storage_of: Callable[[str], Storage]) -> Storage:
    """An S3 server on loopback."""
    return storage_of("s3")


class TestS3:
    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What other tests have found out and said is forgotten: a relay may be given the port of another."""
        monkeypatch.setattr(S3, "respects", {})
        monkeypatch.setattr("airflow_provider_webcollect.landing.storage.Storage.warned", set())

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

    @pytest.mark.parametrize(("before", "lost"), [(1, 1), (0, 1), (0, 2)])
    def test_a_commit_whose_answer_gets_lost_counts(
        self, folder: Folder, relay: Relay, before: int, lost: int
    ) -> None:
        for number in range(before):
            commit(folder, number + 1)
        relay.lose = ["PUT"] * lost
        state = commit(folder, before + 1)
        assert relay.lose == []
        assert CommitLog(folder).read() == state

    def test_of_a_commit_that_is_repeated_since_its_answer_was_lost_another_may_be_there(
        self, s3: Storage, folder: Folder, relay: Relay
    ) -> None:
        commit(folder, 1)
        relay.lose = ["PUT"]
        relay.others = [partial(commit, Folder(s3.fs, folder.root), 2)]
        with pytest.raises(Conflict):
            commit(folder, 2)
        assert relay.others == []

    def test_a_commit_that_meets_a_failing_request_can_be_made_again(
        self, folder: Folder, relay: Relay
    ) -> None:
        commit(folder, 1)
        relay.conflicts = 1
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
        (warning,) = [message for message in caplog.messages if "only if it is absent" in message]
        assert warning.startswith("S3FileSystem cannot create a file only if it is absent")

    @pytest.mark.parametrize("so", ["removed", "refused"])
    def test_such_a_store_does_not_overwrite_the_commit_of_another_when_it_is_tried(
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
    def test_a_small_part_is_sent_in_one_request_and_one_that_fails_is_not_published(
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
            ({}, "Access to s3://landings/closed/_commits/00000001.json is denied"),
            (
                {"anon": True, "key": None, "secret": None},
                "There are no credentials for s3://landings/closed/",
            ),
        ],
        ids=["denied", "anonymous"],
    )
    def test_who_has_no_access_is_told_what_to_do(self, s3: Storage, options: Any, message: str) -> None:
        folder = Folder(replace(s3, options={**s3.options, **options}).fs, "landings/closed")
        with s3.denied("landings/closed/*"), pytest.raises(StorageError, match=message) as caught:
            folder.create(COMMIT, b"one")
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
        with pytest.raises(StorageError, match=r"no credentials for s3://.*s3://my_connection@") as caught:
            folder.create(COMMIT, b"one")
        assert caught.value.permanent

    def test_a_server_that_is_away_may_come_back(self) -> None:
        options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
        fs = Storage(
            "s3fs.S3FileSystem", "", {**options, "config_kwargs": {"retries": {"max_attempts": 0}}}
        ).fs
        fs.retries = 1
        with pytest.raises(StorageError, match=f"has failed at s3://landings/prices/{COMMIT}") as caught:
            Folder(fs, "landings/prices").read(COMMIT)
        assert not caught.value.permanent
