"""Work in threads that, unlike those of an executor, do not keep the process from ending."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
#: Seconds that a task which is interrupted waits for an upload to be dropped.
LONGEST_WAIT = 5.0


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Run ``work`` in a thread of its own, and return what will have its result or its error.

    :param name: of the thread.
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
    """Take steps that drop an upload which is not to be published; what goes wrong with them is ignored.

    :param error: why. If it interrupts the task (a timeout, say) and the storage hangs, the steps are left to
        their thread after :data:`LONGEST_WAIT`, and to the end of the process.
    """

    def take_steps() -> None:
        for step in steps:
            with contextlib.suppress(Exception):
                step()

    dropped = in_background(take_steps, "webcollect-drop")
    wait([dropped], None if isinstance(error, Exception) else LONGEST_WAIT)
