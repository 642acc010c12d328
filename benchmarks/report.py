"""The output of benchmarks: a description of the machine, and tables."""

from __future__ import annotations

import itertools
import os
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def machine() -> str:
    """Return a description of the machine and the software."""
    load = os.getloadavg()[0]
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at first; "
        f"Python {platform.python_version()}, Airflow {version('apache-airflow')}."
    )


def table(columns: str, rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table, each row as soon as ``rows`` yields it.

    :param columns: the names of the columns, separated by `` | ``.
    """
    print()
    names = columns.split(" | ")
    for cells in itertools.chain((names, ["---"] * len(names)), rows):
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
