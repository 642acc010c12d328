"""The installed command in a separate process: its output in pipes, or on a terminal; and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.interruption import PATIENCE

WEBCOLLECT = Path(sys.executable).with_name("webcollect")
#: As a shell does: accepts SIGINT, which tests in the background ignore, and takes control of the terminal.
_AS_IN_A_SHELL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Started:
    """A running command.

    :param terminal: whether standard input and standard error are a terminal, whose text is in ``err``.
    :param reading: whether standard output is read as it comes; if not, the test reads ``stdout``.
    """

    def __init__(self, arguments: Sequence[str], *, terminal: bool = False, reading: bool = True) -> None:
        command = [sys.executable, "-ISc", _AS_IN_A_SHELL, str(WEBCOLLECT), *arguments]
        self._keyboard = -1
        self._readers: list[threading.Thread] = []
        self._texts: dict[str, list[bytes]] = {"out": [], "err": []}
        if terminal:
            self._keyboard, screen = pty.openpty()
            termios.tcsetwinsize(screen, (30, 120))
            self.process = subprocess.Popen(
                command, stdin=screen, stdout=subprocess.PIPE, stderr=screen, start_new_session=True
            )
            os.close(screen)
            self._read("err", os.fdopen(os.dup(self._keyboard), "rb", buffering=0))
        else:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
            assert self.process.stderr is not None
            self._read("err", self.process.stderr)
        assert self.process.stdout is not None
        self.stdout: IO[bytes] = self.process.stdout
        if reading:
            self._read("out", self.stdout)

    def _read(self, name: str, stream: IO[bytes]) -> None:
        def read() -> None:
            with contextlib.suppress(OSError), stream:  # a terminal whose program has ended gives EIO
                while piece := os.read(stream.fileno(), 65536):
                    self._texts[name].append(piece)

        self._readers.append(threading.Thread(target=read))
        self._readers[-1].start()

    @property
    def out(self) -> str:
        """Its output so far."""
        return b"".join(self._texts["out"]).decode()

    @property
    def err(self) -> str:
        """Its text on standard error so far."""
        return b"".join(self._texts["err"]).decode()

    def interrupt(self) -> None:
        if self._keyboard < 0:
            self.process.send_signal(signal.SIGINT)
        else:
            os.write(self._keyboard, b"\x03")

    def type(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def end(self) -> int:
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def kill(self) -> None:
        """Kill it if it has not ended, and close its files."""
        self.process.kill()
        self.end()
        self.stdout.close()
        if self._keyboard >= 0:
            os.close(self._keyboard)
            self._keyboard = -1


def on_terminal(*arguments: object, columns: int = 120) -> tuple[int, str]:
    """Run a command whose output and errors go to a terminal; return its exit code and the shown text."""
    keyboard, screen = pty.openpty()
    termios.tcsetwinsize(screen, (30, columns))
    command = [str(WEBCOLLECT), *map(str, arguments)]
    # only the variables that Python knows: the library readline adds COLUMNS to the process without Python
    environment = dict(os.environ)
    process = subprocess.Popen(command, stdin=screen, stdout=screen, stderr=screen, env=environment)
    os.close(screen)
    pieces = []
    # a terminal whose program has ended gives EIO
    with contextlib.suppress(OSError), os.fdopen(keyboard, "rb", buffering=0) as reader:
        while piece := reader.read(65536):
            pieces.append(piece)
    return process.wait(PATIENCE), b"".join(pieces).decode().replace("\r\n", "\n")
