"""Processes and threads that are interrupted while something in them waits or hangs; and their pauses."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from airflow_provider_webcollect.service.threads import Stop

#: Accepts SIGINT, which tests that run in the background ignore.
_TAKES_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


#: Seconds after which something expected counts as hanging; no test depends on the machine's speed.
PATIENCE = 300.0


def ended_by(script: str) -> str:
    """Run a script that interrupts itself, and return the name of the exception that has ended it."""
    command = [sys.executable, "-c", _TAKES_SIGINT + script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return ended.stderr.strip().rpartition("\n")[2]


def until(happened: Callable[[], object]) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.005)


def until_no_thread(name: str) -> None:
    """Wait until no thread whose name begins with ``name`` runs or is being started."""
    until(lambda: not any(thread.name.startswith(name) for thread in threading.enumerate()))


class Pauses(Stop):
    """Pauses that take no time, but call a function."""

    def __init__(self, pause: Callable[[float], object] = lambda seconds: None) -> None:
        super().__init__()
        self._pause = pause

    def sleep(self, seconds: float) -> None:
        self._pause(seconds)


class Signalled(BaseException):
    """The exception of a signal handler, as Airflow's handler raises one at a task's `execution_timeout`."""


@contextlib.contextmanager
def signalled_when(happened: Callable[[], object], error: type[BaseException] = Signalled) -> Iterator[None]:
    """Have a signal interrupt the main thread, with ``error``, once something has happened.

    Python drops an exception that is raised while it finalizes an object; then the signal is sent again.
    """
    unraisable_hook = sys.unraisablehook
    again: list[threading.Timer] = []

    def interrupt(*_: object) -> None:
        raise error

    def signal_again(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, error):
            # a signal right now would be raised, and dropped, within this hook
            again.append(threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1)))
            again[-1].start()
        else:
            unraisable_hook(dropped)

    def watch() -> None:
        while not happened():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    sys.unraisablehook = signal_again
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        watcher.join(PATIENCE)
        sys.unraisablehook = unraisable_hook
        for timer in again:
            timer.cancel()
        signal.signal(signal.SIGUSR1, before)
