"""Work in threads that nobody has to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Run ``work`` in a thread of its own, and return what will have its result or its error.

    Unlike an executor's threads, which are all joined at exit, it does not keep the process from ending.

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
