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
    began, began_cpu = time.perf_counter(), time.process_time()
    rows = work()
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    peak = megabytes(PEAK)
    taken = {"rows": rows, "seconds": seconds, "cpu": cpu, "peak": peak, "over": peak - before}
    print(json.dumps(taken), flush=True)


def megabytes(kind: str) -> float:
    """Return memory of this process in MB of 1,000,000 bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"{kind} is not in /proc/self/status")
