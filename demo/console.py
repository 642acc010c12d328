"""The demo's output: one line per event, with the seconds since the start."""

from __future__ import annotations

import sys
import time

GOOD, BAD = 32, 31
_COLOURS = {"success": GOOD, "failed": BAD, "upstream_failed": BAD}


class Console:
    """Prints lines with the time since its creation; colours only in a terminal."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._colours = sys.stdout.isatty()

    def say(self, line: str) -> None:
        """Print a line with the time."""
        print(f"[{time.monotonic() - self._start:6.1f} s] {line}", flush=True)

    def state(self, task: str, state: str | None) -> None:
        """Print the new state of a task."""
        word = state or "not yet scheduled"
        if self._colours and word in _COLOURS:
            word = f"\033[{_COLOURS[word]}m{word}\033[0m"
        self.say(f"  {task}: {word}")
