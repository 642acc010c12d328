"""A landing in a process that gets killed, and what a reader then sees."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.interruption import PATIENCE
from tests.landing.conftest import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.landing.storages import Storage

LANDER = Path(__file__).with_name("lander.py")


@contextlib.contextmanager
def running_lander(storage_module: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run what lands in forks of itself.

    :param storage_module: what the storage needs, to be imported before the forks.
    """
    modules = ", ".join(filter(None, ["requests", storage_module]))
    code = f"import {modules}; import runpy; runpy.run_path({str(LANDER)!r}, run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(LANDER.parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate(timeout=PATIENCE)


class Victim:
    """Lands a task in processes that get killed."""

    def __init__(
        self,
        lander: subprocess.Popen[str],
        sandbox: Sandbox,
        storage: Storage,
        task: str,
        table_format: str | None = None,
    ) -> None:
        self.lander = lander
        self.task = task
        self.folder = Folder(storage.fs, storage.new_folder())
        self.kills = 0
        self.order = {
            "url": sandbox.url,
            "token": sandbox.access_token,
            "kind": storage.kind,
            "storage": storage.options,
            "root": self.folder.root,
            "run": "r1",
            "task": task,
            "max_part_bytes": 20_000,
            "table_format": table_format,
            "format": {"file_format": "jsonl" if table_format is None else "parquet"},
        }

    def land(self, **kill: float) -> bool:
        """Return whether it landed; if not, it was killed.

        :param kill: ``kill_at`` an operation, or ``kill_after`` some seconds.
        """
        assert self.lander.stdin is not None
        assert self.lander.stdout is not None
        self.lander.stdin.write(json.dumps({**self.order, **kill}) + "\n")
        self.lander.stdin.flush()
        status = int(self.lander.stdout.readline())
        assert status in {0, -signal.SIGKILL}
        self.kills += status != 0
        return status == 0


def check(victim: Victim, sandbox: Sandbox) -> None:
    """What a reader sees is all or nothing; if it is all, no more and no less."""
    if "_manifest.json" in victim.folder.names():
        assert victim.folder.rows() == sandbox.control.true_rows(victim.task)
