"""The command ``webcollect``, run in this process, or in a separate process as a person runs it."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tests.airflow.conftest  # noqa: F401  # gives Airflow a home before anything imports it
from airflow_provider_webcollect.cli.main import main
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.threads import Stop
from tests.cli.processes import Started
from tests.simulation.samples import SEED


class Ended(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """The JSON lines of its output."""
        return json_lines(self.out)

    @property
    def json(self) -> list[dict[str, Any]]:
        """The rows of ``--output json``."""
        rows: list[dict[str, Any]] = json.loads(self.out)
        return rows

    @property
    def csv(self) -> list[dict[str, str]]:
        """The rows of ``--output csv``."""
        return list(csv.DictReader(io.StringIO(self.out, newline="")))

    def refused(self, code: int, *said: str) -> None:
        """Check that it failed with this exit code and no output, and that its error has these texts."""
        assert (self.code, self.out) == (code, "")
        for text in said:
            assert text in self.err


Run = Callable[..., Ended]
Show = Callable[..., list[dict[str, str]]]
Start = Callable[..., Started]
#: The formats of a result (``--output``).
OUTPUTS = ("table", "json", "csv")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``output`` in one format by day, drawn for the test, and in all at night."""
    if "output" in metafunc.fixturenames:
        drawn = random.Random(f"{SEED} {metafunc.definition.nodeid}").choice(OUTPUTS)
        at_night = pytest.mark.at_night
        values = [pytest.param(output, marks=() if output == drawn else at_night) for output in OUTPUTS]
        metafunc.parametrize("output", values)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives the commands a text on standard input."""

    def pipe(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return pipe


@pytest.fixture(autouse=True)
def log_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin with pytest's log handlers alone, and restore the handlers and the level afterwards.

    A command sets them for its whole process, in which Airflow may have set up logging before.
    """
    of_pytest = [each for each in logging.root.handlers if type(each).__module__.startswith("_pytest")]
    monkeypatch.setattr(logging.root, "handlers", of_pytest)
    log = logging.getLogger("airflow_provider_webcollect")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the variables of the person who runs the tests, and give the commands an empty state folder."""
    for name in [name for name in os.environ if name.startswith("WEBCOLLECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TERM", "xterm")
    # commands set this variable for their whole process, so have it removed after the test
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    monkeypatch.delenv("_AIRFLOW_PROCESS_CONTEXT")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def connected(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox is the service of all commands, and its access token their credential."""
    monkeypatch.setenv("WEBCOLLECT_URL", sandbox.url)
    monkeypatch.setenv("WEBCOLLECT_ACCESS_TOKEN", sandbox.access_token)
    monkeypatch.setenv("WEBCOLLECT_REQUESTS_PER_SECOND", "0")


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 1,800 rows in two batches."""
    return str(sandbox.control.add_task(lots=[1500, 300])["task_id"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to land in, which does not exist yet."""
    return tmp_path / "landed"


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have pauses between attempts only advance the clock; return their seconds."""
    pauses: list[float] = []
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + sum(pauses))

    def sleep(stop: Stop, seconds: float) -> None:
        pauses.append(seconds)
        stop.check()

    monkeypatch.setattr(Stop, "sleep", sleep)
    return pauses


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def show(run: Run, output: str) -> Show:
    """Runs a command in the format ``output``, checks that it prints no messages, and returns its rows."""

    def show(*arguments: object) -> list[dict[str, str]]:
        ended = run(*arguments, "-o", output)
        assert (ended.code, ended.err) == (0, "")
        return shown(ended, output)

    return show


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the installed command in a process of its own; see :class:`Started` for the options."""
    started: list[Started] = []

    def start(*arguments: object, **options: Any) -> Started:
        started.append(Started([str(argument) for argument in arguments], **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def shown(ended: Ended, output: str) -> list[dict[str, str]]:
    """Return the rows that a command has printed in any format, as texts by column name.

    Empty values are left out.
    """
    if output == "json":
        rows = [{name: as_text(value) for name, value in row.items()} for row in ended.json]
    elif output == "csv":
        rows = ended.csv
    else:
        header, *lines = [cells(line) for line in ended.out.splitlines()]
        names = [name.replace(" ", "_") for name in header]
        rows = [dict(zip(names, line, strict=True)) for line in lines]
        rows = [{name: cell.replace(",", "") for name, cell in row.items()} for row in rows]
    return [{name: value for name, value in row.items() if value not in {"", "–"}} for row in rows]


def json_lines(text: str) -> list[Any]:
    """Decode JSON lines."""
    return [json.loads(line) for line in text.split("\n") if line]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def as_text(value: object) -> str:
    """Return a value as tables and CSV have it."""
    return "" if value is None else str(value)
