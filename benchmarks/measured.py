"""One measurement in a process of its own. It needs only Linux and the standard library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

#: The names of memory figures in ``/proc/self/status``.
RESIDENT, PEAK = "VmRSS", "VmHWM"


def measured(work: Callable[[], int]) -> None:
    """Run ``work``, and print the time and the memory that it took as a line of JSON.

    Time counts from the beginning of this call, without earlier imports. ``peak`` is the peak of the whole
    process in MB; ``over`` is the peak without the memory that the process had at the beginning.

    :param work: does the work, and returns the number of rows that it has moved.
    """
    before = megabytes(RESIDENT)
    began, began_cpu = time.perf_counter(), time.process_time()
    rows = work()
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    peak = megabytes(PEAK)
    taken = {"rows": rows, "seconds": seconds, "cpu": cpu, "peak": peak, "over": peak - before}
    print(json.dumps(taken), flush=True)


def megabytes(kind: str) -> float:
    """Return a memory figure of this process in MB (1,000,000 bytes)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"{kind} is not in /proc/self/status")
