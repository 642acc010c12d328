"""Whenever the process dies, the next try ends with every row once and in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.landing.conftest import Folder
from tests.landing.storages import Storage, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.timeout(300),
]

LANDER = Path(__file__).with_name("lander.py")
KILLS = 15
ROWS = 600


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A real storage of each kind."""
    if request.param == "local":
        yield Storage("file", str(tmp_path))
        return
    pytest.importorskip("moto", reason="needs moto[server] and s3fs")
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def lander() -> Iterator[subprocess.Popen[str]]:
    """What lands in forks of itself."""
    # what imports slowly is imported before the forks
    modules = "import s3fs.core, requests" if find_spec("s3fs") else "import requests"
    code = f"{modules}; import runpy; runpy.run_path({str(LANDER)!r}, run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(LANDER.parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate(timeout=10)


class Victim:
    """Lands a task in processes that get killed."""

    def __init__(self, lander: subprocess.Popen[str], sandbox: Sandbox, storage: Storage, task: str) -> None:
        self.lander = lander
        self.task = task
        self.folder = Folder(storage.fs, storage.new_folder())
        self.kills = 0
        self.order = {
            "url": sandbox.url,
            "token": sandbox.access_token,
            "protocol": storage.protocol,
            "storage": storage.options,
            "root": self.folder.root,
            "run": "r1",
            "task": task,
            "max_part_bytes": 20_000,
        }

    def land(self, **kill: float) -> bool:
        """Return whether it landed; if not, it was killed.

        :param kill: ``kill_at`` an operation, or ``kill_after`` so many seconds.
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


def test_every_row_lands_once_wherever_the_process_is_killed(
    lander: subprocess.Popen[str], sandbox: Sandbox, storage: Storage
) -> None:
    """Kills in the place of random requests, uploads, renames, listings and removals; then retries."""
    chance = random.Random(6)
    kills = 0
    while kills < KILLS:
        task = sandbox.control.add_task(rows=ROWS // 2, lots=2)["task_id"]
        victim = Victim(lander, sandbox, storage, task)
        while not victim.land(kill_at=chance.randint(1, 60)):
            check(victim, sandbox)
        check(victim, sandbox)
        assert victim.folder.manifest()["exported_at"]
        assert sandbox.control.task(task)["exported"]
        kills += victim.kills


def test_every_row_lands_once_whenever_the_process_is_killed(
    lander: subprocess.Popen[str], sandbox: Sandbox, storage: Storage
) -> None:
    """Kills after random times."""
    sandbox.control.configure(latency=0.02)
    chance = random.Random(7)
    kills = 0
    while kills < KILLS:
        task = sandbox.control.add_task(rows=ROWS // 2, lots=2)["task_id"]
        victim = Victim(lander, sandbox, storage, task)
        while victim.kills < 6 and not victim.land(kill_after=chance.uniform(0, 0.6)):
            check(victim, sandbox)
        assert victim.land()
        check(victim, sandbox)
        kills += victim.kills


@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_every_row_lands_once_after_a_kill_at_each_single_operation(
    lander: subprocess.Popen[str], sandbox: Sandbox, storage: Storage
) -> None:
    """Every request and every change of the storage in turn, mark and tidying included."""
    task = sandbox.control.add_task(rows=ROWS // 2, lots=2)["task_id"]
    operation = 1
    while True:
        victim = Victim(lander, sandbox, storage, task)
        if victim.land(kill_at=operation):
            break
        check(victim, sandbox)
        assert victim.land()
        assert victim.folder.rows() == sandbox.control.true_rows(task)
        assert victim.folder.manifest()["exported_at"]
        operation += 1
    assert operation > 40
