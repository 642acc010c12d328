"""Processes that are interrupted while something in them hangs."""

from __future__ import annotations

import subprocess
import sys


def ended_by(script: str) -> str:
    """Run a script that interrupts itself, and return the name of the exception that has ended it."""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    return ended.stderr.strip().rpartition("\n")[2]
