"""Stopping work in other threads."""

from __future__ import annotations

import threading

from airflow_provider_webcollect.service.errors import Stopped


class Stop:
    """A signal that stops the work of all threads that share it.

    It is set by :meth:`set`, or at the end of its ``with`` block. The working threads call :meth:`check`
    right before each step that must not happen afterwards, such as a request to the service, and pause with
    :meth:`sleep`. A step that has already begun is not interrupted.
    """

    def __init__(self) -> None:
        self._is_set = threading.Event()

    def set(self) -> None:
        """Stop the work: pauses end at once, and every later check raises."""
        self._is_set.set()

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *_: object) -> None:
        self.set()

    def check(self) -> None:
        """Raise :class:`Stopped` if the work must stop."""
        if self._is_set.is_set():
            raise Stopped("the task that this was done for has ended")

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds.

        :raises Stopped: as soon as the work must stop.
        """
        self._is_set.wait(seconds)
        self.check()
