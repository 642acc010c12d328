"""Processes that end with their starter, however it ends.

Each process becomes the leader of a new session, and is reported to a guard (this module, run as a program).
The starter ends the processes when it leaves the context. If it is killed before, the kernel closes the
guard's standard input, and the guard ends them instead. To end them means SIGTERM, and SIGKILL after a
grace period, for whole sessions: Airflow puts its task processes into separate process groups.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GRACE_SECONDS = 4.0


class ProcessEnded(RuntimeError):
    """A process that should be running has ended."""


class Processes:
    """Background processes by name; leaving the context ends them all and waits until they are gone."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, Path] = {}

    def __enter__(self) -> Self:
        # In a new session, a terminal's Ctrl-C does not reach the guard, which must outlive the starter.
        self._guard = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        end_sessions({process.pid for process in self._running.values()})
        for process in self._running.values():
            process.wait()
        self._guard.communicate()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        user: str | None = None,
    ) -> None:
        """Start a process whose output goes to the file ``log``.

        :param user: name of the user to run it as, which only root may set; None for the current user
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                user=user,
                start_new_session=True,
            )
        self._running[name] = process
        self._logs[name] = log
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"%d\n" % process.pid)
        self._guard.stdin.flush()

    def kill(self, name: str) -> None:
        """Kill a process and its descendants immediately, as a failure of the machine would."""
        process = self._running.pop(name)
        kill_sessions({process.pid})
        process.wait()

    def send_signal(self, name: str, number: signal.Signals, title: str = "") -> None:
        """Send a signal to a process and its descendants.

        :param title: signal only the processes whose command lines begin with this
        """
        _signal(self.pids(name, title), number)

    def pids(self, name: str, title: str = "") -> list[int]:
        """Return the ids of a process and its descendants.

        :param title: return only the processes whose command lines begin with this
        """
        members = _members({self._running[name].pid})
        return [pid for pid in members if _title(pid).startswith(title)]

    def check(self) -> None:
        """Check that all processes are still running.

        :raises ProcessEnded: naming the first that has ended, with the end of its output.
        """
        for name in self.ended():
            code = self._running[name].returncode
            raise ProcessEnded(f"{name} ended with exit code {code}\n{tail(self._logs[name])}")

    def ended(self) -> list[str]:
        """Return the names of the processes that have ended by themselves."""
        return [name for name, process in self._running.items() if process.poll() is not None]


def tail(log: Path, lines: int = 40) -> str:
    """Return the last lines of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def end_sessions(sessions: set[int], grace: float = GRACE_SECONDS) -> None:
    """End every process of the sessions: SIGTERM first, then SIGKILL."""
    _signal(_members(sessions), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while _members(sessions) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_sessions(sessions)


def kill_sessions(sessions: set[int]) -> None:
    """Kill every process of the sessions immediately."""
    while left := _members(sessions):
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)


def _members(sessions: set[int]) -> list[int]:
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def _title(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_sessions({int(line) for line in sys.stdin})
