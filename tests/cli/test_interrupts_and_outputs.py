"""Interrupts at bad moments, and outputs that are closed, full, or support few characters."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from airflow_provider_webcollect.sandbox import Control, Sandbox, demo
from tests.cli.conftest import Run, Start, json_lines
from tests.cli.processes import WEBCOLLECT, Started
from tests.cli.test_read import cursor
from tests.interruption import until

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]


@pytest.mark.parametrize(
    ("command", "taken"),
    [
        (["read", "TASK"], 1),
        (["status"], 0),
        *(
            pytest.param(command, taken, marks=pytest.mark.at_night)
            for command, taken in (
                (["landing", "cat", "FOLDER"], 1),
                (["--help"], 0),
                (["status", "-o", "json"], 0),
                (["status", "-o", "csv"], 0),
                (["landing", "verify", "FOLDER"], 0),
                (["landing", "sql", "FOLDER", "from landing"], 0),
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_reader_that_ends_at_once_or_after_a_row_is_no_failure(
    start: Start, run: Run, sandbox: Sandbox, tmp_path: Path, command: list[str], taken: int
) -> None:
    task, folder = sandbox.control.add_task(lots=[4000])["task_id"], str(tmp_path / "landed")
    run("land", task, folder)
    writing = start(*({"TASK": task, "FOLDER": folder}.get(word, word) for word in command), reading=False)
    rows = [json.loads(writing.stdout.readline()) for _ in range(taken)]
    writing.stdout.close()
    assert (writing.end(), writing.err) == (0, "")
    assert rows == sandbox.control.true_rows(task)[:taken]


#: Runs the installed `webcollect`, and interrupts it when it first imports the named module.
INTERRUPTED_AT = """
import importlib.metadata, os, signal, sys

class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop()
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, AtImport())
[entry] = importlib.metadata.entry_points(group="console_scripts", name="webcollect")
sys.argv.append("capacity")
sys.exit(entry.load()())
"""


@pytest.mark.parametrize("module", ["click", "msgspec", "rich.table"])
def test_an_interrupt_during_imports_gives_no_traceback(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_AT, module]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr in {"", "Interrupted\n"}


def test_the_sandbox_serves_with_the_options_given_until_ctrl_c(
    start: Start, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "url"
    serving = start("sandbox", "--port", 0, "--ready-file", ready, "--speed", 50, "--no-enforce-limits")
    until(ready.exists)
    url = ready.read_text()
    until(lambda: "Ctrl-C" in serving.out)
    (export,) = [line for line in serving.out.splitlines() if line.startswith("export WEBCOLLECT_URL=")]
    for setting in export.split()[1:]:
        monkeypatch.setenv(*setting.split("="))
    assert Control(url).configure()["speed"] == 50
    [row] = run("status", demo.FINISHED_TASK_ID, "-o", "json").json
    assert row["status"] == "Finished"
    serving.interrupt()
    assert serving.end() == 0
    assert serving.err == ""


def test_json_has_letters_as_they_are_on_any_terminal(run: Run, sandbox: Sandbox) -> None:
    name = "Prix d'été 价格 \x9b2J\u202e"
    sandbox.control.add_task(lots=[30], name=name)
    said = run("status", "-o", "json").out
    assert "Prix d'été 价格 " in said
    assert {character for character in said if not character.isprintable()} == {"\n"}
    assert name in [row["name"] for row in json.loads(said)]
    ended = subprocess.run(
        [WEBCOLLECT, "status", "-o", "json"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert name in [row["name"] for row in json.loads(ended.stdout.decode("ascii"))]


def test_an_interrupted_read_says_its_offset(start: Start, run: Run, sandbox: Sandbox, task: str) -> None:
    reading = start("read", task, reading=False)
    waiting = [0]

    def is_full() -> bool:
        """Return whether the pipe has not grown for a while; with room, it grows much faster."""
        size = fcntl.ioctl(reading.stdout, termios.FIONREAD, b"\0" * 4)
        waiting.append(struct.unpack("i", size)[0])
        return waiting[-1] > 0 and len(set(waiting[-100:])) == 1

    until(is_full)
    reading.interrupt()
    taken = reading.stdout.read().decode()

    assert reading.end() == 130
    assert "Traceback" not in reading.err
    rest = run("read", task, "--offset", cursor(reading.err))
    assert taken.endswith("\n")
    assert json_lines(taken) + rest.lines == sandbox.control.true_rows(task)


@pytest.mark.parametrize(
    "command",
    [["status"], ["read", "TASK"], pytest.param(["capacity"], marks=pytest.mark.at_night)],
    ids=lambda words: words[0],
)
def test_an_output_that_cannot_be_written_gives_no_traceback(task: str, command: list[str]) -> None:
    arguments = [task if word == "TASK" else word for word in command]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([WEBCOLLECT, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 4
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_terminal_that_knows_no_such_characters_gets_others(task: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "iso-8859-1"}
    ended = subprocess.run([WEBCOLLECT, "status"], env=environment, capture_output=True)
    assert ended.returncode == 0
    assert b"Traceback" not in ended.stderr


@pytest.mark.at_night
def test_a_missing_airflow_database_is_said_in_a_sentence(
    start: Start, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))

    def ended(store: str, credential: dict[str, str], *command: str) -> Started:
        fields = {"conn_type": "webcollect", "host": sandbox.url, "extra": credential}
        monkeypatch.setenv("AIRFLOW_CONN_MY_SERVICE", json.dumps(fields))
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__TOKEN_STORE", store)
        return start(*command, "--conn-id", "my_service")

    # with an access token, a command needs nothing from the database
    status = ended("memory", {"access_token": sandbox.access_token}, "status")
    assert status.end() == 0
    for word in ("sqlite", "[SQL", "Traceback"):
        assert word not in status.err
    for command in (["capacity"], ["token", "status"], ["token", "refresh"]):
        keeping = ended("variable", {"refresh_token": sandbox.refresh_token}, *command)
        assert (keeping.end(), keeping.out) == (3, "")
        [said] = [line for line in keeping.err.splitlines() if "sqlite" in line or line.startswith("Error")]
        assert said.startswith(
            "Error: Airflow keeps the token of the connection my_service, but its database"
        )
        assert "`airflow db migrate` sets it up" in said
        assert "Traceback" not in keeping.err
    assert sandbox.control.requests("/token") == []


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [
        (">&-", 4, "Error: standard output is closed, so there is nowhere to write the result to\n"),
        ("2>&-", 0, ""),
        (">&- 2>&-", 4, ""),
    ],
)
def test_where_a_stream_is_closed_there_is_no_traceback(closed: str, code: int, said: str) -> None:
    command = ["sh", "-c", f'exec "$0" capacity {closed}', str(WEBCOLLECT)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, said)
