"""Writing what was encoded while the next pages are fetched."""

from __future__ import annotations

import contextlib
import functools
from concurrent.futures import wait
from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.background import drop, in_background

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from airflow_provider_webcollect.landing.formats import SupportsWrite

#: Bytes that are handed over, and written, at a time. The threads wait for each other at every piece: with
#: small ones the second thread costs more than it wins.
BATCH_BYTES = 1024 * 1024


@contextlib.contextmanager
def write_behind(sink: SupportsWrite) -> Iterator[WriteBehind]:
    """Give a sink that passes on to ``sink`` in a thread; when it is left, all has arrived there.

    An error of ``sink`` is raised by a later write, or in the end. After an error nothing more is written. It
    waits for the write at work then, but not for long after what interrupts the task (a timeout, say).
    """
    behind = WriteBehind(sink)
    try:
        yield behind
        behind.finish()
    except BaseException as error:
        # whoever made the sink drops it next, and a write at work would come in between
        drop(error, behind.settle)
        raise


class WriteBehind:
    """Collects a batch while the one before is being written, and no more than that.

    :ivar bytes: how many were taken so far.
    """

    def __init__(self, sink: SupportsWrite) -> None:
        self._sink = sink
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

    def settle(self) -> None:
        """Wait until nothing is being written, whatever comes of it."""
        if self._writing is not None:
            wait([self._writing])

    def _hand_over(self) -> None:
        self._wait()
        self._writing = in_background(functools.partial(self._write_at_once, self._held), "webcollect-write")
        self._held, self._held_bytes = [], 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write_at_once(self, pieces: Sequence[bytes]) -> None:
        self._sink.write(b"".join(pieces))
