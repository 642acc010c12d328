"""A sandbox's two clocks."""

from __future__ import annotations

import time


class Clock:
    """
    Sandbox time runs ``speed`` times faster than real time; tasks use it.

    ``wall`` is real time, changed only by :meth:`advance`; tokens and the calendar use it, since clients
    compare them with their own clock.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._advanced = 0.0
        self._base_real = self._base_sandbox = time.time()

    def now(self) -> float:
        """Sandbox time, seconds since 1970."""
        return self._base_sandbox + (time.time() - self._base_real) * self._speed

    def wall(self) -> float:
        """Real time plus all advances, seconds since 1970."""
        return time.time() + self._advanced

    def advance(self, seconds: float) -> None:
        """Move both clocks ahead."""
        self._base_sandbox += seconds
        self._advanced += seconds

    def set_speed(self, speed: float) -> None:
        """Continue from the current sandbox time at another speed."""
        self._base_sandbox, self._base_real = self.now(), time.time()
        self._speed = speed
