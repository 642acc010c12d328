"""The stand-in service as a separate process, started as users start it."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from airflow_provider_webcollect.sandbox import Control
from demo.airflow_api import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from demo.processes import Processes


def start_sandbox(processes: Processes, folder: Path, *options: str) -> tuple[str, Control]:
    """Start the sandbox on a free port.

    :param folder: folder for its output; created if it is missing
    :param options: further arguments of its command line
    :return: its address, and the client that controls it
    :raises TimeoutError: if it does not listen in time
    """
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / "url"
    command = [sys.executable, "-m", "airflow_provider_webcollect.sandbox", "--port", "0"]
    processes.start(
        "sandbox",
        [*command, "--ready-file", str(ready), *options],
        log=folder / "output.log",
        env=os.environ,
        cwd=folder,
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (ready.exists() and ready.read_text()):
        processes.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"The sandbox does not listen after {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.05)
    url = ready.read_text()
    return url, Control(url)
