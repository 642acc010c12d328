"""Files of URLs: from any source, checked line by line."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import FileUnreadable, InvalidArgument
from airflow_provider_webcollect.service.url_file import MAX_LINE_BYTES, url_file, url_list

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

URLS = ["https://a.example/1", "http://b.example/ü?x=1&y=2", "https://c.example"]
TEXT = "\n".join(URLS).encode() + b"\n"


class InPieces(io.RawIOBase):
    """A raw stream, as of a pipe, that returns fewer bytes than requested."""

    def __init__(self, content: bytes) -> None:
        self._left = content

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        piece, self._left = self._left[:7], self._left[7:]
        return piece


class NotSeekable:
    """A file that can only be read."""

    def __init__(self, content: bytes) -> None:
        self.read = io.BytesIO(content).read


def object_storage_path(path: Path) -> Any:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    return ObjectStoragePath(f"file://{path}")


def memory_file(path: Path) -> Any:
    fsspec.filesystem("memory").pipe_file("/urls/urls.txt", path.read_bytes())
    return fsspec.filesystem("memory").open("/urls/urls.txt", "rb")


SOURCES: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text": str,
    "object storage path": object_storage_path,
    "OpenFile": lambda path: fsspec.open(f"file://{path}", "rb"),
    "memory": memory_file,
    "handle": lambda path: path.open("rb"),
    "bytes": lambda path: io.BytesIO(path.read_bytes()),
    "in pieces": lambda path: InPieces(path.read_bytes()),
    "not seekable": lambda path: NotSeekable(path.read_bytes()),
}


@pytest.fixture(params=[*SOURCES.values()], ids=[*SOURCES])
def source(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Any]]:
    """Makes a source that a user may pass; an open file is closed after the test."""
    with contextlib.ExitStack() as opened:

        def make(path: Path) -> Any:
            given = request.param(path)
            if hasattr(given, "close"):
                opened.callback(given.close)
            return given

        yield make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "urls.txt"
    path.write_bytes(TEXT)
    return path


def test_urls_come_from_anywhere_and_retries_send_all_again(
    client: Client, sandbox: Sandbox, path: Path, source: Callable[[Path], Any]
) -> None:
    sandbox.control.fail("/task/urls:file", status=503, times=2)
    sandbox.control.fail("/task/urls:file", kind="drop")
    # neither the BOM nor the blank lines at the end are sent
    path.write_bytes(b"\xef\xbb\xbf" + TEXT + b"\r\n \t\r\n\n")
    file = url_file(source(path))
    client.send(endpoints.replace_urls(demo.TASK_ID, file))
    assert (file.count, file.content) == (3, TEXT)
    assert file.name == "urls.txt"
    assert sandbox.control.task(demo.TASK_ID)["urls"] == URLS
    requests = sandbox.control.requests()
    assert len(requests) == 4
    for request in requests:
        assert b"\r\n\r\n" + TEXT + b"\r\n--" in base64.b64decode(request["body"])


def test_an_open_file_stays_open_and_is_read_from_its_begin(client: Client, path: Path) -> None:
    with path.open("rb") as file:
        file.seek(7)
        client.send(endpoints.replace_urls(demo.TASK_ID, url_file(file)))
        assert not file.closed


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        (TEXT.replace(b"\n", b"\r\n"), TEXT),
        (TEXT.rstrip(), TEXT),
        (b"  https://a.example/1\t\r\n\thttps://c.example \n", b"https://a.example/1\nhttps://c.example\n"),
        (b"HTTPS://a.example\nHttp://b.example\n", b"HTTPS://a.example\nHttp://b.example\n"),
        (TEXT + b"\n", TEXT),
        (TEXT + b"\r\n" * 400_000, TEXT),
        (TEXT + b" \t", TEXT),
    ],
    ids=["CRLF", "no last line end", "white space", "capitals", "blank line", "blank lines", "blank end"],
)
def test_each_url_is_sent_with_a_line_feed_whatever_is_around_it(
    client: Client, sandbox: Sandbox, path: Path, text: bytes, sent: bytes
) -> None:
    path.write_bytes(text)
    urls = sent.decode().splitlines()
    for file in (url_file(path), url_list(iter(text.decode().strip().splitlines()))):
        assert (file.count, file.content) == (len(urls), sent)
        client.send(endpoints.replace_urls(demo.TASK_ID, file))
        assert sandbox.control.task(demo.TASK_ID)["urls"] == urls


class Troubled(io.BytesIO):
    """A file on a storage that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self, size: int | None = -1) -> bytes:
        raise self._error


class LibraryError(Exception):
    """An error of a storage's library that is not an ``OSError``."""


@pytest.mark.parametrize("kind", [TimeoutError, LibraryError, PermissionError])
def test_a_storage_failure_is_retryable_and_no_wrong_argument(kind: type[Exception]) -> None:
    with pytest.raises(FileUnreadable, match="the storage does not answer") as failure:
        url_file(Troubled(kind("the storage does not answer")))
    assert not failure.value.permanent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it must hold at least one URL"),
        (b"\xef\xbb\xbf\r\n", "it must hold at least one URL"),
        (b"\nhttps://a.example\n", "`file, line 1` is ''; only the last lines may be blank"),
        (b"https://a.example\n \t\r\n\nhttps://b.example", "`file, line 2` is ''; only the last lines"),
        (b"https://a.example\n\xc2\xa0\n", "`file, line 2` is ''; no line may be blank"),
        (b"https://a.example\xc2\xa0\n", "`file, line 1` is 'https://a.example\\xa0'; it must be one http"),
        (b"a.example\n", "`file, line 1` is 'a.example'"),
        (b"https://\n", "`file, line 1` is 'https://'"),
        (b"https:///a\n", "`file, line 1` is 'https:///a'; it must be one http(s) URL"),
        (b"http://?a\n", "`file, line 1` is 'http://?a'"),
        (b"https://a.example https://b.example\n", "`file, line 1`"),
        (b"https://a.example\ta title\n", "`file, line 1`"),
        (b"https://a.example\rhttps://b.example\r", "`file, line 1`"),
        (b"\xef\xbb\xbf\xef\xbb\xbfhttps://a.example\n", "`file, line 1` is '\\ufeffhttps://a.example'"),
        (b"https://a.example\n\xef\xbb\xbfhttps://b.example\n", "`file, line 2` is '\\ufeffhttps://b"),
        (b"\xff\xfeh\x00t\x00", "it must be UTF-8"),
        (
            b"https://a.example\nhttps://\xfc.example\n",
            "`file, line 2` is b'https://\\xfc.example'; it must be UTF-8",
        ),
        (b"https://a.example/" + b"x" * MAX_LINE_BYTES + b"\n", "at most 65536 bytes"),
        (b"https://a.example\nhttps://" + b"x" * 3_000_000, "`file, line 2`"),
    ],
    ids=lambda value: repr(value[:60]),
)
def test_a_wrong_line_is_refused(
    client: Client, sandbox: Sandbox, path: Path, text: bytes, said: str
) -> None:
    path.write_bytes(text)
    with pytest.raises(InvalidArgument) as refusal:
        client.send(endpoints.replace_urls(demo.TASK_ID, url_file(path)))
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 400
    assert sandbox.control.requests() == []


def test_a_line_of_the_greatest_length_is_taken(path: Path) -> None:
    path.write_bytes(b"https://a.example/".ljust(MAX_LINE_BYTES, b"x") + b"\n")
    assert url_file(path).count == 1


def test_a_blank_may_be_in_a_url(path: Path) -> None:
    for url in ("https://a.example/a b?c=d e", "https://a.example/s?q=red shoes&next=https://b.example/x"):
        path.write_text(f"{url}\n")
        assert url_file(path).count == url_list([url]).count == 1


@pytest.mark.parametrize(
    "name", [os.fsdecode(b"na\xefve.txt"), 'a "b".txt', "a\nb.txt", "ü 自行车.txt", "a;b=c.txt"]
)
def test_a_file_may_have_any_name(client: Client, sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(TEXT)
    client.send(endpoints.replace_urls(demo.TASK_ID, url_file(tmp_path / name)))
    assert sandbox.control.task(demo.TASK_ID)["urls"] == URLS


def test_what_cannot_be_read_as_bytes_is_refused(tmp_path: Path) -> None:
    closed = io.BytesIO(b"https://a.example")
    closed.close()
    unreadable = (
        tmp_path / "none.txt",
        str(tmp_path),
        object_storage_path(tmp_path / "none.txt"),
        fsspec.open(f"file://{tmp_path}/none.txt", "rb"),
        closed,
        "urls\0.txt",
    )
    no_bytes: tuple[Any, ...] = (
        5,
        ["https://a.example"],
        io.StringIO("https://a.example\n"),
        fsspec.open("memory://urls/urls.txt", "rt"),
    )
    for source in (*unreadable, *no_bytes):
        with pytest.raises(InvalidArgument, match=r"`file` is .*; it must be ") as refusal:
            url_file(source)
        assert ("it must be readable" in str(refusal.value)) is (source in unreadable)


def test_a_too_large_file_is_refused_before_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_webcollect.service import url_file as module

    line = b"https://a.example/".ljust(49, b"x") + b"\n"
    assert module.MAX_FILE_BYTES == 64 * 1024**2
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 5 * 1024**2)
    path.write_bytes(line * (module.MAX_FILE_BYTES // len(line)))
    assert peak_of(lambda: url_file(path)) < 5 * module.MAX_FILE_BYTES
    with path.open("ab") as file:
        file.write(line * 1_000_000)

    def check() -> None:
        with pytest.raises(InvalidArgument, match=r"`file` is 'urls.txt'; it must be at most 5 MiB"):
            url_file(path)

    with pytest.raises(InvalidArgument, match=r"`urls` is '120000 URLs'; it must be at most 5 MiB"):
        url_list([line.decode()] * 120_000)

    assert peak_of(check) < 2 * module.MAX_FILE_BYTES


def peak_of(work: Callable[[], Any]) -> int:
    """Return how many bytes of memory ``work`` needed at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
