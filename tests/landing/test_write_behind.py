"""Writing behind: everything arrives, in order, little of it waits, and no error is lost."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_webcollect.landing.write_behind import BATCH_BYTES, write_behind

BATCH = b"x" * BATCH_BYTES


class Sink:
    """Takes what it is given when it is let."""

    def __init__(self, *, open_: bool = True) -> None:
        self.pieces: list[bytes] = []
        self.threads: set[threading.Thread] = set()
        self.let = threading.Event()
        if open_:
            self.let.set()

    def write(self, data: bytes) -> None:
        assert self.let.wait(60)
        self.threads.add(threading.current_thread())
        self.pieces.append(data)


class FullSink(Sink):
    """Takes one piece."""

    def write(self, data: bytes) -> None:
        if self.pieces:
            raise OSError("disk full")
        super().write(data)


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


def test_the_caller_goes_on_while_a_batch_is_written_but_not_for_long() -> None:
    sink = Sink(open_=False)
    with write_behind(sink) as behind:
        behind.write(BATCH)
        behind.write(b"more")
        assert sink.pieces == []
        full = threading.Thread(target=behind.write, args=[BATCH])
        full.start()
        assert full.is_alive()
        sink.let.set()
        full.join(60)
        assert not full.is_alive()
        assert sink.pieces[0] is BATCH
    assert sink.pieces == [BATCH, b"more" + BATCH]
    assert threading.current_thread() not in sink.threads


def write(sink: Sink, *pieces: bytes, fault: Exception | None = None) -> None:
    """Write ``pieces`` to ``sink``, and fail at the end with ``fault``."""
    with write_behind(sink) as behind:
        for piece in pieces:
            behind.write(piece)
        if fault:
            raise fault


def test_an_error_is_raised_and_nothing_is_written_after_it() -> None:
    sink = FullSink()
    with pytest.raises(OSError, match="disk full"):
        write(sink, BATCH, BATCH, BATCH, BATCH, fault=AssertionError("went on after the error"))
    assert sink.pieces == [BATCH]


def test_an_error_of_the_last_batch_is_raised_in_the_end() -> None:
    sink = FullSink()
    with pytest.raises(OSError, match="disk full"):
        write(sink, BATCH, b"last")
    assert sink.pieces == [BATCH]


def test_who_breaks_off_leaves_no_thread_and_what_was_not_handed_over_is_dropped() -> None:
    sink = Sink()
    with pytest.raises(KeyError):
        write(sink, BATCH, b"dropped", fault=KeyError())
    assert sink.pieces == [BATCH]
    assert not any(thread.is_alive() for thread in sink.threads)
