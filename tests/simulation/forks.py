"""Work in processes of their own, which get killed.

Everything is imported once; each line of JSON on the input is an order that a fork carries out, and each is
answered by how that ended, as ``subprocess`` says it: a signal below 0, or the exit status. An order says at
which call, or after how many seconds, its fork dies, so it repeats what has failed.
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
    """Carry out the orders."""
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
        """Return how the work on an order has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextlib.contextmanager
def running(server: str, *modules: str) -> Iterator[Forks]:
    """Run a module that serves.

    :param modules: what it needs, to be imported before the forks.
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
    """Return what changes methods so that something happens in the place of one of all their calls.

    :param number: which of the calls, from 1.
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
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(seconds: float) -> None:
    """End this process at once, some seconds from now: nothing handles the alarm."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
