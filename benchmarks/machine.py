"""What the measurements were taken on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version


def machine() -> str:
    """Say what this runs on."""
    load = os.getloadavg()[0]
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at first; "
        f"Python {platform.python_version()}, Airflow {version('apache-airflow')}."
    )
