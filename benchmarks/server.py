"""The sandbox in a process of its own, so that what it takes is not the client's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Server(NamedTuple):
    """A sandbox that is being served."""

    url: str
    pid: int


@contextlib.contextmanager
def sandbox(*options: str) -> Iterator[Server]:
    """Run a sandbox on a free port while the block runs.

    :param options: for its command line.
    """
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "url"
        command = [sys.executable, "-m", "airflow_provider_webcollect.sandbox", "--port", "0", *options]
        process = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=subprocess.DEVNULL)
        try:
            while not ready.exists():
                time.sleep(0.02)
            yield Server(ready.read_text(), process.pid)
        finally:
            process.terminate()
            process.wait()
