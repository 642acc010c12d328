"""The folder of a landing on S3, and on stores that claim to be S3, reached through a relay."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.landing.storage.conditional import Changed
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.storage.remote import Unconditional
from airflow_provider_webcollect.landing.storage.s3 import S3
from tests.landing.storages import Storage

MANIFEST = "_manifest.json"


@pytest.fixture
def s3(storage_of: Callable[[str], Storage]) -> Storage:
    """An S3 server on loopback."""
    return storage_of("s3")


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
