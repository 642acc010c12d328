"""``python -m airflow_provider_webcollect.sandbox``, in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.interruption import until

COMMAND = [sys.executable, "-m", "airflow_provider_webcollect.sandbox"]


class Running:
    """A sandbox in a separate process.

    :param tmp_path: an empty folder for its output.
    :param options: options of its command line.
    """

    def __init__(self, tmp_path: Path, *options: str) -> None:
        ready = tmp_path / "url"
        self._output = tmp_path / "output"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*COMMAND, "--port", "0", "--ready-file", str(ready), *options], stdout=output
            )
        until(lambda: ready.exists() or self.process.poll() is not None)
        assert self.process.poll() is None
        self.url = ready.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def line(self, beginning: str) -> str:
        """Return the only line of the output with this beginning."""
        (line,) = [line for line in self.output.splitlines() if line.startswith(beginning)]
        return line
