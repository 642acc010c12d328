"""The demo's parts: processes that never outlive it, a verification that finds differences, and `make ui`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from demo.landing import LandingProblem, prove
from demo.processes import ProcessEnded, Processes
from tests.interruption import PATIENCE, until

ROOT = Path(__file__).resolve().parent.parent
ROWS: list[dict[str, Any]] = [
    {"name": "desk", "price": "120"},
    {"name": "chair\u2028", "price": None},
    {"name": "lamp", "price": "40"},
]

STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1:]:
    subprocess.Popen([sys.executable, __file__], process_group=0)
pathlib.Path(f"{os.getpid()}.up").touch()
time.sleep(3600)
"""
STARTER = """
import os, pathlib, signal, sys, time
from demo.processes import Processes
# who runs the tests in the background has them ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)
with Processes() as processes:
    here = pathlib.Path(sys.argv[1])
    command = [sys.executable, here / "stubborn.py", "parent"]
    processes.start("stubborn", command, log=here / "log", env=os.environ, cwd=here)
    time.sleep(3600)
"""

DEMO = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("demo", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_starter_however_it_ends(tmp_path: Path, ending: signal.Signals) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], cwd=ROOT) as starter:
        until(lambda: len(list(tmp_path.glob("*.up"))) == 2)
        pids = [int(path.stem) for path in tmp_path.glob("*.up")]
        starter.send_signal(ending)
    until(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended does not, even if its exit code has not been read."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_process_that_ended_is_named_with_its_last_words(tmp_path: Path) -> None:
    with Processes() as processes:
        command = [sys.executable, "-c", "import sys; sys.exit('out of paper')"]
        processes.start("printer", command, log=tmp_path / "log", env=os.environ, cwd=tmp_path)
        with pytest.raises(ProcessEnded, match=r"printer ended with exit code 1\nout of paper"):
            until(processes.check)


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    """Two parts and their manifest, as the transfer operator leaves them."""
    parts = []
    for number, rows in enumerate([ROWS[:2], ROWS[2:]]):
        data = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
        name = f"part-{number}.jsonl"
        (tmp_path / name).write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        parts.append({"name": name, "rows": len(rows), "bytes": len(data), "sha256": sha256})
    (tmp_path / "_manifest.json").write_text(json.dumps({"rows": len(ROWS), "parts": parts}))
    return tmp_path


def test_a_true_landing_is_proved(destination: Path) -> None:
    landed = prove(destination, ROWS)
    assert (landed.rows, landed.parts, landed.manifest) == (3, 2, destination / "_manifest.json")
    assert landed.bytes == sum(path.stat().st_size for path in destination.glob("part-*"))


def replace(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "expected", "complaint"),
    [
        (lambda folder: (folder / "_manifest.json").unlink(), ROWS, "nothing was committed"),
        (lambda folder: replace(folder / "part-1.jsonl", "40", "41"), ROWS, r"part-1\.jsonl: sha256"),
        (lambda folder: None, ROWS[:2], "3 rows, the service has 2"),
        (lambda folder: None, [*ROWS, ROWS[0]], "3 rows, the service has 4"),
        (lambda folder: None, [ROWS[1], ROWS[0], ROWS[2]], "Row 1 landed as"),
    ],
)
def test_a_landing_that_is_not_true_is_found(
    destination: Path, spoil: Callable[[Path], object], expected: list[dict[str, Any]], complaint: str
) -> None:
    spoil(destination)
    with pytest.raises(LandingProblem, match=complaint):
        prove(destination, expected)


@pytest.mark.real_airflow
@pytest.mark.at_night
def test_the_kept_interface_has_a_history_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    # a folder of its own, since another demo may be running here
    for name in ("demo", "example_dags"):
        shutil.copytree(ROOT / name, tmp_path / name)
    command = [sys.executable, "-c", DEMO, "--keep"]
    said = []
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            said.append(line.partition("] ")[2].strip())
            if match := re.search(r"interface: (\S+) \(Ctrl-C", line):
                break
        else:
            pytest.fail("\n".join(said))
        token = requests.get(f"{match[1]}/auth/token", timeout=PATIENCE).json()["access_token"]
        landings = requests.get(
            f"{match[1]}/webcollect/landings", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE
        ).json()["series"]
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()

    assert demo.returncode == 0
    runs = {series["dag_id"]: len(series["runs"]) for series in landings}
    assert runs["webcollect_collect_and_land"] == 1
    assert runs["books_daily"] == runs["shops_daily"] == 30
    history = said.index("Thirty days of landings are put into its database, as if they had run")
    starting = [step for step in said if step.startswith("Airflow is starting: ")]
    assert starting[0] == "Airflow is starting: its database is made"
    assert said.index(starting[-1]) < history < said.index("wait: success")
