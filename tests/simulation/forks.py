"""Work in forks of a process, which get killed.

The process imports everything once. Each line of JSON on its input is an order that a fork carries out. The
answer is the fork's exit status, or the negative number of a signal, as in ``subprocess``. An order says at
which call, or after how many seconds, its fork dies, so a failure can be repeated.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.interruption import PATIENCE


def serve(work: Callable[[dict[str, Any]], object]) -> None:
    """Carry out the orders on standard input, each in a fork."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                work(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


class Forks:
    """A process that carries out orders in forks of itself."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, order: dict[str, Any]) -> int:
        """Have a fork carry out an order; return its exit status, or the negative number of a signal."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextlib.contextmanager
def running(server: str, *modules: str) -> Iterator[Forks]:
    """Run a module whose ``main`` serves.

    :param modules: modules that it needs, imported before the first fork.
    """
    code = f"import {', '.join([*modules, server])}; {server}.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield Forks(process)
    process.communicate(timeout=PATIENCE)


def disturbed_at(number: int, disturb: Callable[[], object]) -> Callable[[Any, str], None]:
    """Return a function that changes methods so that ``disturb`` is called before one of all their calls.

    :param number: number of that call, from 1.
    """
    left = number

    def change(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def worked(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                disturb()
            return work(*arguments, **options)

        setattr(owner, name, worked)

    return change


def die() -> None:
    """Kill this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(seconds: float) -> None:
    """Kill this process some seconds from now, by an alarm that nothing handles."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
