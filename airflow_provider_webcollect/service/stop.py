"""Ending work that goes on in other threads."""

from __future__ import annotations

import threading

from airflow_provider_webcollect.service.errors import Stopped


class Stop:
    """Ends the work that shares it: once it is set, or at the end of the ``with`` block that it is used in.

    Whoever does the work calls :meth:`check` right before each step that must not be taken any more, such as
    a request to the service, and pauses with :meth:`sleep`. A step that is under way is not recalled.
    """

    def __init__(self) -> None:
        self._is_set = threading.Event()

    def set(self) -> None:
        """End the work: pauses end at once, and no later check is passed."""
        self._is_set.set()

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *_: object) -> None:
        self.set()

    def check(self) -> None:
        """Raise :class:`Stopped` if the work is to end."""
        if self._is_set.is_set():
            raise Stopped("the task that this was done for has ended")

    def sleep(self, seconds: float) -> None:
        """Wait.

        :raises Stopped: as soon as the work is to end.
        """
        self._is_set.wait(seconds)
        self.check()
