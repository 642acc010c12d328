"""Airflow's commands, as a person runs them in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def shell_environment(home: Path) -> dict[str, str]:
    """Return the environment of a shell that finds this Python's commands and has an Airflow of its own.

    :param home: its ``AIRFLOW_HOME``.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    return inherited | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }


def in_shell(environment: dict[str, str], *lines: str) -> str:
    """Run lines as a person pastes them, and return what they print; a line that fails is an error."""
    done = subprocess.run(
        ["/bin/sh", "-euc", "\n".join(lines)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
