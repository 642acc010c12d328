"""The demo's own parts: processes that never outlive it, and a proof that finds what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo.landing import LandingProblem, prove
from demo.processes import ProcessEnded, Processes
from tests.interruption import until

ROOT = Path(__file__).resolve().parent.parent
ROWS = [
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
time.sleep(60)
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
    time.sleep(60)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_starter_however_it_ends(tmp_path: Path, ending: signal.Signals) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], cwd=ROOT) as starter:
        until(lambda: len(list(tmp_path.glob("*.up"))) == 2)
        pids = [int(path.stem) for path in tmp_path.glob("*.up")]
        starter.send_signal(ending)

    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


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


def test_without_a_manifest_nothing_landed(destination: Path) -> None:
    (destination / "_manifest.json").unlink()

    with pytest.raises(LandingProblem, match="nothing was committed"):
        prove(destination, ROWS)


def test_a_changed_part_is_found(destination: Path) -> None:
    part = destination / "part-1.jsonl"
    part.write_bytes(part.read_bytes().replace(b"40", b"41"))

    with pytest.raises(LandingProblem, match=r"part-1\.jsonl: sha256"):
        prove(destination, ROWS)


@pytest.mark.parametrize(
    ("expected", "complaint"),
    [
        (ROWS[:2], "3 rows, the service has 2"),
        ([*ROWS, ROWS[0]], "3 rows, the service has 4"),
        ([ROWS[1], ROWS[0], ROWS[2]], "Row 1 landed as"),
    ],
)
def test_rows_that_are_not_the_services_are_found(
    destination: Path, expected: list[dict[str, Any]], complaint: str
) -> None:
    with pytest.raises(LandingProblem, match=complaint):
        prove(destination, expected)
