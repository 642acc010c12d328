"""Writing behind: everything arrives in order, little is held in memory, and no error is lost."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.write.staging import BATCH_BYTES, write_behind
from airflow_provider_webcollect.service import threads
from tests.interruption import PATIENCE, ended_by, until_no_thread
from tests.landing.conftest import Store, StoreFile

BATCH = b"x" * BATCH_BYTES


class Sink:
    """A sink that takes pieces once ``let`` is set, as long as it has room for more."""

    def __init__(self, *, open_: bool = True, room: int = 99) -> None:
        self.room = room
        self.pieces: list[bytes] = []
        self.threads: set[threading.Thread] = set()
        self.waited_for = threading.Event()
        self.let = threading.Event()
        if open_:
            self.let.set()

    def write(self, data: bytes) -> None:
        self.threads.add(threading.current_thread())
        self.waited_for.set()
        assert self.let.wait(PATIENCE)
        if len(self.pieces) == self.room:
            raise OSError("disk full")
        self.pieces.append(data)


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("size", [0, 1, BATCH_BYTES - 1, BATCH_BYTES, 3 * BATCH_BYTES])
def test_everything_arrives_in_order(count: int, size: int) -> None:
    sink = Sink()
    with write_behind(sink) as behind:
        for number in range(count):
            behind.write(bytes([number]) * size)
        assert behind.bytes == count * size
    assert b"".join(sink.pieces) == b"".join(bytes([number]) * size for number in range(count))
    assert all(len(piece) >= BATCH_BYTES for piece in sink.pieces[:-1])


def test_the_caller_waits_only_for_a_second_batch() -> None:
    sink = Sink(open_=False)
    with write_behind(sink) as behind:
        behind.write(BATCH)
        behind.write(b"more")
        assert sink.pieces == []
        full = threading.Thread(target=behind.write, args=[BATCH])
        full.start()
        assert full.is_alive()
        sink.let.set()
        full.join(PATIENCE)
        assert not full.is_alive()
        assert sink.pieces[0] is BATCH
    assert sink.pieces == [BATCH, b"more" + BATCH]
    assert threading.current_thread() not in sink.threads


def write(sink: Sink, *pieces: bytes, fault: BaseException | None = None) -> None:
    """Write ``pieces`` to ``sink``, and fail at the end with ``fault``."""
    with write_behind(sink) as behind:
        for piece in pieces:
            behind.write(piece)
        if fault:
            raise fault


@pytest.mark.parametrize(
    ("pieces", "fault"),
    [([BATCH] * 4, AssertionError("went on after the error")), ([BATCH, b"last"], None)],
    ids=["before the end", "of the last batch"],
)
def test_after_an_error_nothing_more_is_written(pieces: list[bytes], fault: BaseException | None) -> None:
    sink = Sink(room=1)
    with pytest.raises(OSError, match="disk full"):
        write(sink, *pieces, fault=fault)
    assert sink.pieces == [BATCH]


def test_who_breaks_off_drops_what_was_not_handed_over() -> None:
    sink = Sink(open_=False)

    def let_in_a_moment() -> None:
        assert sink.waited_for.wait(PATIENCE)
        sink.let.set()

    threading.Thread(target=let_in_a_moment).start()
    with pytest.raises(KeyError):
        write(sink, BATCH, b"dropped", fault=KeyError())
    assert sink.pieces == [BATCH]


def test_a_process_that_is_interrupted_ends_though_a_write_hangs() -> None:
    script = """
import os, signal, threading
from airflow_provider_webcollect.landing.write.staging import BATCH_BYTES, write_behind

class Sink:
    def write(self, data):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()

with write_behind(Sink()) as behind:
    while True:
        behind.write(bytes(BATCH_BYTES))
"""
    assert ended_by(script) == "KeyboardInterrupt"


@pytest.mark.parametrize("hangs", ["write", "discard"])
def test_an_interrupted_part_is_never_published(hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # an interrupted caller waits a moment for a call that hangs, not seconds
    monkeypatch.setattr(threads, "LONGEST_WAIT", 0.1)
    hanging, let = threading.Event(), threading.Event()

    def hang(at: str) -> None:
        if at == hangs:
            hanging.set()
            assert let.wait(PATIENCE)

    class HangingFile(StoreFile):
        def _upload_chunk(self, final: bool = False) -> bool:
            hang("write")
            return super()._upload_chunk(final)

        def discard(self) -> None:
            hang("discard")
            super().discard()
            discarded.set()

    class HangingStore(Store):
        def _open(self, path: str, mode: str = "rb", **options: Any) -> StoreFile:
            return HangingFile(self, path, mode, block_size=BATCH_BYTES, autocommit=options["autocommit"])

    def interrupted() -> None:
        with folder.part("part-00001-0123abcd.jsonl") as part, write_behind(part) as behind:
            behind.write(BATCH)
            assert hangs == "discard" or hanging.wait(PATIENCE)
            raise KeyboardInterrupt

    discarded = threading.Event()
    store = HangingStore()
    folder = Folder(store, "bucket/prices")
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert hanging.wait(PATIENCE)
    let.set()
    assert discarded.wait(PATIENCE)
    for name in ("webcollect-write", "webcollect-drop"):
        until_no_thread(name)
    gc.collect()
    assert folder.files() == {}
