"""One measurement in a process of its own. Knows nothing but Linux and the standard library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

#: How a line of memory is called in ``/proc/self/status``.
RESIDENT, PEAK = "VmRSS", "VmHWM"


def measured(work: Callable[[], int]) -> None:
    """Run ``work``, which returns how many rows it moved, and print what that took as a line of JSON.

    Seconds and memory count from here, so that imports made before do not.
    """
    before = megabytes(RESIDENT)
    began = time.perf_counter()
    rows = work()
    seconds = time.perf_counter() - began
    peak = megabytes(PEAK)
    print(json.dumps({"rows": rows, "seconds": seconds, "peak": peak, "over": peak - before}), flush=True)


def megabytes(kind: str) -> float:
    """Return memory of this process in MB of 1,000,000 bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"{kind} is not in /proc/self/status")
