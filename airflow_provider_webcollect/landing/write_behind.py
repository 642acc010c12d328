"""Writing what was encoded while the next pages are fetched."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_webcollect.landing.formats import SupportsWrite

#: Bytes that are handed over, and written, at a time. The threads wait for each other at every piece: with
#: small ones the second thread costs more than it wins.
BATCH_BYTES = 1024 * 1024


@contextlib.contextmanager
def write_behind(sink: SupportsWrite) -> Iterator[WriteBehind]:
    """Give a sink that passes on to ``sink`` in a thread; when it is left, all has arrived there.

    An error of ``sink`` is raised by a later write, or in the end. After an error nothing more is written.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="webcollect-write") as thread:
        behind = WriteBehind(sink, thread)
        yield behind
        behind.finish()


class WriteBehind:
    """Collects a batch while the one before is being written, and no more than that.

    :ivar bytes: how many were taken so far.
    """

    def __init__(self, sink: SupportsWrite, thread: ThreadPoolExecutor) -> None:
        self._sink = sink
        self._thread = thread
        self._writing: Future[None] | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Take ``data``, and wait for the batch before if another one is full."""
        self._held.append(data)
        self._held_bytes += len(data)
        self.bytes += len(data)
        if self._held_bytes >= BATCH_BYTES:
            self._hand_over()

    def finish(self) -> None:
        """Wait until all is written."""
        if self._held:
            self._hand_over()
        self._wait()

    def _hand_over(self) -> None:
        self._wait()
        self._writing = self._thread.submit(self._write_at_once, self._held)
        self._held, self._held_bytes = [], 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write_at_once(self, pieces: Sequence[bytes]) -> None:
        self._sink.write(b"".join(pieces))
