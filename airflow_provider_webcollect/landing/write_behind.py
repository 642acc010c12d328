"""Writing encoded data in a thread while the next pages are fetched."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from airflow_provider_webcollect.service.pauses import drop, first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from airflow_provider_webcollect.landing.formats import SupportsWrite

#: Bytes passed to the thread, and written, at a time. The threads synchronize for every batch: with small
#: batches the second thread costs more time than it saves.
BATCH_BYTES = 1024 * 1024


@contextlib.contextmanager
def write_behind(sink: SupportsWrite) -> Iterator[WriteBehind]:
    """Provide a sink that writes to ``sink`` in a thread; when the block ends, everything is written.

    An error of ``sink`` is raised by a later write or at the end, and nothing more is written after it. The
    context manager then waits for the write in flight, but only briefly if the task was interrupted, for
    example by a timeout.
    """
    behind = WriteBehind(sink)
    try:
        yield behind
        behind.finish()
    except BaseException as error:
        # the caller drops the sink next, which must not happen during a write
        drop(error, behind.settle)
        raise


class WriteBehind:
    """Collects one batch while the previous one is written.

    :ivar bytes: number of bytes accepted so far.
    """

    def __init__(self, sink: SupportsWrite) -> None:
        self._sink = sink
        self._writing: Future[None] | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Accept ``data``; if the batch is full, wait until the previous one is written."""
        self._held.append(data)
        self._held_bytes += len(data)
        self.bytes += len(data)
        if self._held_bytes >= BATCH_BYTES:
            self._hand_over()

    def finish(self) -> None:
        """Wait until everything is written."""
        if self._held:
            self._hand_over()
        self._wait()

    def settle(self) -> None:
        """Wait until no write is in flight, and ignore its result."""
        if self._writing is not None:
            first_done([self._writing])

    def _hand_over(self) -> None:
        self._wait()
        self._writing = in_background(functools.partial(self._write_at_once, self._held), "webcollect-write")
        self._held, self._held_bytes = [], 0

    def _wait(self) -> None:
        if self._writing is not None:
            first_done([self._writing])
            self._writing.result()

    def _write_at_once(self, pieces: Sequence[bytes]) -> None:
        self._sink.write(b"".join(pieces))
