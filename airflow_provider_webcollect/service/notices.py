"""Messages in the log about waits, such as one for the rate limit."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that a wait may last without a log message, and seconds between two messages of one wait.
SHORT, LINES_APART = 2.0, 15.0


class Notice:
    """Logs the reason of one wait: not if it is short, and not more often than every 15 seconds.

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

    def give(self, seconds: float, message: str, *arguments: object, level: int = logging.INFO) -> None:
        """Log a message before a pause.

        :param seconds: length of the pause, or of the wait up to now; short ones are not logged.
        :param message: the reason for the wait and its length, with the logger's placeholders.
        """
        now = self._clock()
        if seconds <= SHORT or now < self._next:
            return
        self._next = now + LINES_APART
        self._log.log(level, message, *arguments)
