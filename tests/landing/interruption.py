"""Processes that are interrupted while something in them hangs."""

from __future__ import annotations

import subprocess
import sys

#: Whoever has started the tests in the background has them ignore SIGINT.
_TAKES_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def ended_by(script: str) -> str:
    """Run a script that interrupts itself, and return the name of the exception that has ended it."""
    command = [sys.executable, "-c", _TAKES_SIGINT + script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return ended.stderr.strip().rpartition("\n")[2]
