"""What the tests cost: CPU seconds, also of each file, and their ratio to a fixed piece of work.

The work runs on the same machine, since machines differ in speed, and both before and after the tests, since
many machines change their speed. CONTRIBUTING.md has the ratio to aim for; no test fails because of it.
"""

from __future__ import annotations

import hashlib
import json
import resource
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

DEAREST = 10


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the child processes that it has waited for."""
    usages = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def fixed_work() -> float:
    """Run interpreted and compiled code, as the tests do, three times; return the least CPU seconds."""
    return min(_seconds_of_work() for _ in range(3))


def _seconds_of_work() -> float:
    begun = time.process_time()
    rows = [{"number": number, "name": f"row {number}", "price": number / 7} for number in range(20_000)]
    for _ in range(5):
        lines = [json.dumps(row, sort_keys=True) for row in rows]
        rows = [json.loads(line) for line in lines]
    hashlib.sha256("\n".join(lines).encode() * 20).hexdigest()
    return time.process_time() - begun


class Meter:
    """Measures in each process that runs tests, and adds up in the process that reports."""

    def __init__(self, *, is_worker: bool) -> None:
        self._counted = 0.0
        self._work = 0.0 if is_worker else fixed_work()
        self._files: Counter[str] = Counter()
        self._begun = time.monotonic()

    def pytest_collection_finish(self) -> None:
        self._counted = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = cpu_seconds()
        # a worker of xdist sends a report with all its attributes
        report.cpu_seconds, self._counted = now - self._counted, now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._files[report.nodeid.partition("::")[0]] += report.cpu_seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._work:
            return
        cpu, wall = cpu_seconds() - 3 * self._work, time.monotonic() - self._begun
        least, most = sorted((self._work, fixed_work()))
        terminalreporter.section("what it cost")
        for file, seconds in self._files.most_common(DEAREST):
            terminalreporter.write_line(f"{seconds:7.1f} CPU s  {file}")
        terminalreporter.write_line(f"{sum(self._files.values()):7.1f} CPU s  all tests")
        terminalreporter.write_line(f"{cpu:7.1f} CPU s  with collection and servers, in {wall:.0f} s")
        terminalreporter.write_line(
            f"{cpu / most:7.0f} to {cpu / least:.0f} x the fixed work, "
            f"which took {least:.2f} to {most:.2f} CPU s (aim: CONTRIBUTING.md)"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Register the meter, in each process."""
    config.pluginmanager.register(Meter(is_worker=hasattr(config, "workerinput")), "meter")
