"""Work in threads that, unlike those of an executor, do not prevent the process from ending."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
#: Seconds that an interrupted task waits for an upload to be dropped.
LONGEST_WAIT = 5.0


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Run ``work`` in its own thread, and return a future of its result.

    :param name: name of the thread.
    """
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended


def drop(error: BaseException, *steps: Callable[[], object]) -> None:
    """Run steps that drop an unpublished upload; their errors are ignored.

    :param error: the reason. If it interrupts the task (such as a timeout) and the storage hangs, this
        returns after :data:`LONGEST_WAIT`, and the thread continues until the process ends.
    """

    def take_steps() -> None:
        for step in steps:
            with contextlib.suppress(Exception):
                step()

    dropped = in_background(take_steps, "webcollect-drop")
    wait([dropped], None if isinstance(error, Exception) else LONGEST_WAIT)
