"""Work in threads: stopping it, waiting for it, and logging a wait."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_webcollect.service.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

T = TypeVar("T")

#: Maximum number of seconds for which a wait for other threads keeps Python from running signal handlers.
SIGNALS_APART = 1.0
#: Maximum number of seconds for which an interrupted task waits until its upload is dropped.
LONGEST_WAIT = 5.0
#: Seconds up to which a wait is not logged, and minimum number of seconds between two messages of one wait.
SHORT, LINES_APART = 2.0, 15.0

_asking = threading.Lock()


class Stop:
    """A signal that stops the work of all threads that share it.

    The signal is set by :meth:`set`, or at the end of its ``with`` block. The working threads call
    :meth:`check` right before each step that must not happen after the signal, such as a request to the
    service, and pause with :meth:`sleep`. A step that has already begun is not interrupted.
    """

    def __init__(self) -> None:
        self._is_set = threading.Event()

    def set(self) -> None:
        """Stop the work: pauses end at once, and every later check raises :class:`Stopped`."""
        self._is_set.set()

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *_: object) -> None:
        self.set()

    def check(self) -> None:
        """Raise :class:`Stopped` if the work must stop."""
        if self._is_set.is_set():
            raise Stopped("the Airflow task that made this call has ended")

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds.

        An exception raised by a signal's handler is raised within a second, see :func:`first_done`.

        :raises Stopped: as soon as the work must stop.
        """
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0 and not self._is_set.wait(min(left, SIGNALS_APART)):
            pass
        self.check()


def first_done(futures: Collection[Future[T]]) -> set[Future[T]]:
    """Wait until at least one of the futures is done, and return the futures that are done.

    An exception raised by a signal's handler, such as a task's timeout, is raised within a second. A single
    long wait would miss a signal that arrives right before it, or that the kernel sends to another thread.
    """
    while not (done := wait(futures, SIGNALS_APART, FIRST_COMPLETED).done):
        pass
    return done


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Run ``work`` in a thread that, unlike an executor's threads, does not keep the process from ending.

    The thread has a copy of the caller's context variables, such as the current span.

    :param name: the name of the thread.
    :return: the future of the result.
    """
    ended: Future[T] = Future()
    # otherwise the end of an event loop could cancel the future
    ended.set_running_or_notify_cancel()

    def resolve() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # raised where the result is used
            ended.set_exception(error)

    run = contextvars.copy_context().run
    threading.Thread(target=run, args=(resolve,), name=name, daemon=True).start()
    return ended


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Serialize the requests of threads to a process that mixes up its responses to simultaneous requests.

    Airflow's supervisor does so in a ``dag.test()``, and the threads of an event loop may send requests at
    the same time. Coroutines do not wait for the lock: the thread that holds it may need the event loop to
    receive its response.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _asking:
            yield
    else:
        yield


@contextlib.contextmanager
def kept_alive() -> Iterator[None]:
    """Keep the process from ending before the block does, in any thread."""
    left = threading.Event()
    threading.Thread(target=left.wait, name="webcollect-keep", daemon=False).start()
    try:
        yield
    finally:
        left.set()


def drop(error: BaseException, *steps: Callable[[], object]) -> None:
    """Run steps that drop an unpublished upload; their errors are ignored.

    :param error: the reason for dropping it. If the error interrupts the task (such as a timeout) and the
        storage hangs, this function returns after :data:`LONGEST_WAIT`, and the steps continue in their
        thread until the process ends.
    """

    def take_steps() -> None:
        for step in steps:
            with contextlib.suppress(Exception):
                step()

    dropped = in_background(take_steps, "webcollect-drop")
    wait([dropped], None if isinstance(error, Exception) else LONGEST_WAIT)


class ThrottledLog:
    """Logs the reason for one wait, unless the wait is short, at most every 15 seconds.

    :param log: a logger.
    :param clock: a monotonic clock, in seconds.
    """

    __slots__ = ("_began", "_clock", "_log", "_next")

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._began = clock()
        self._next = -math.inf

    @property
    def lasted(self) -> float:
        """Seconds since the wait began."""
        return self._clock() - self._began

    def log(self, seconds: float, message: str, *arguments: object, level: int = logging.INFO) -> None:
        """Log a message before a pause.

        :param seconds: length of the pause, or of the wait up to now; a short one is not logged.
        :param message: the reason for the wait and its length, with the logger's placeholders.
        :param arguments: the values of the placeholders.
        :param level: the level of the message.
        """
        now = self._clock()
        if seconds <= SHORT or now < self._next:
            return
        self._next = now + LINES_APART
        self._log.log(level, message, *arguments)
