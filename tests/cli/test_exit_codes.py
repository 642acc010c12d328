"""How commands end: the exit code, and what is said of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect import __version__
from airflow_provider_webcollect.service.settings import ClientTiming
from demo.ports import free_port
from tests.interruption import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.cli.conftest import Run
    from tests.cli.processes import Started

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.usefixtures("connected"),
]

COMMANDS = [
    ["status"],
    ["capacity"],
    ["analytics"],
    ["read"],
    ["land"],
    ["landing", "verify"],
    ["landing", "cat"],
    ["landing", "sql"],
    ["landing", "clean"],
    ["landing", "restore"],
    ["token", "status"],
    ["token", "refresh"],
]


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("command", [[], ["landing"], ["token"], *COMMANDS], ids=" ".join)
def test_every_command_explains_itself(run: Run, command: list[str], option: str) -> None:
    ended = run(*command, option)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"Usage: {' '.join(['webcollect', *command])}")


@pytest.mark.parametrize("command", [[], ["landing"], ["token"], ["follow"], *COMMANDS], ids=" ".join)
def test_no_help_is_cut_in_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    usage, _, text = run(*command, "--help").out.partition("\n\n")

    assert "..." not in text
    assert max(map(len, [*usage.splitlines(), *text.splitlines()])) <= 80


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert __version__ in run("--version").out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_option_that_there_is_not_is_named(run: Run, command: list[str]) -> None:
    ended = run(*command, "--colour")

    assert (ended.code, ended.out) == (2, "")
    assert "--colour" in ended.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["status", "--output", "xml"], "--output"),
        (["nothing"], "nothing"),
        (["read"], "TASK"),
        (["read", ""], "TASK"),
        (["read", "t", "-n", "0"], "--rows"),
        (["read", "t", "--offset", "-1"], "--offset"),
        (["read", "t", "--lotno", ""], "--lotno"),
        (["capacity", "--url", "ftp://host"], "--url is 'ftp://host'"),
        (["capacity", "--url", "localhost:8155"], "--url must begin with https:// or http://"),
        (["status", ""], "TASK"),
        (["analytics", "--from", "yesterday"], "yesterday"),
        (["analytics", "--by", "year"], "--by"),
        (["analytics", "--from", "2026-01-05", "--to", "2026-01-01"], "2026-01-05"),
        (["land", "t"], "DESTINATION"),
        (["land", "t", "FOLDER", "--format", "xml"], "--format"),
        (["land", "t", "FOLDER", "--format", "csv", "--compression", "snappy"], "--compression is 'snappy'"),
        (
            ["land", "t", "FOLDER", "--mode", "incremental", "--if-exists", "skip"],
            "--if-exists is 'skip'; it goes with mode='full' alone",
        ),
        (
            ["land", "t", "FOLDER", "--on-reset", "full"],
            "--on-reset is 'full'; it goes with mode='incremental' alone",
        ),
        (["land", "t", "FOLDER", "--partition", "today"], "--partition"),
        (["land", "t", "FOLDER", "--page-size", "1001"], "--page-size"),
        (["land", "t", "FOLDER", "--max-part-bytes", "0"], "--max-part-bytes"),
        (["land", "t", "FOLDER", "--settle", "-1"], "--settle"),
        (["land", "t", "nowhere://there"], "nowhere"),
        (["land", "t", ""], "DESTINATION"),
        (["land", "t", "my-bucket/prices"], "a scheme"),
        (["land", "t", "my-bucket/prices", "--storage-conn-id", "any"], "a scheme"),
        (["land", "t", "FOLDER", "--column", "a", "--column", "a"], "--column is 'a'"),
        (["analytics", "--from", "2026-01-05", "--to", "2026-01-01"], "--to is"),
        (["analytics", "--task", ""], "--task"),
        (
            ["landing", "verify", "my-bucket/prices"],
            "PATH is 'my-bucket/prices'; it needs a scheme (s3://bucket/folder), or ./",
        ),
        (["landing", "clean", "my-bucket/prices"], "a scheme"),
        (["landing", "verify", "nowhere://there"], "nowhere"),
        (["landing", "cat", "FOLDER", "-n", "x"], "--rows"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_argument_is_named_and_nothing_is_sent(
    run: Run, sandbox: Sandbox, tmp_path: Path, arguments: list[str], named: str
) -> None:
    folder = str(tmp_path / "landed")

    ended = run(*(folder if each == "FOLDER" else each for each in arguments))

    assert (ended.code, ended.out) == (2, "")
    assert named in ended.err
    assert sandbox.control.requests() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STATUS_BATCH_SIZE", "many"),
        ("REQUESTS_PER_SECOND", "-1"),
        ("TIMEZONE", "Mars/Olympus"),
        ("API_KEY_EVERYWHERE", "perhaps"),
    ],
)
def test_a_wrong_variable_of_the_environment_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"WEBCOLLECT_{name}", value)

    ended = run("capacity")

    assert ended.code == 2
    assert f"WEBCOLLECT_{name} is" in ended.err


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"ACCESS_TOKEN": "wrong"}, "access token"),
        ({"USERNAME": "demo", "PASSWORD": "wrong"}, "login and password were refused"),
        ({"REFRESH_TOKEN": "wrong"}, "the refresh token was refused"),
        ({}, "no credential"),
    ],
    ids=lambda wrong: " ".join(wrong) or "none" if isinstance(wrong, dict) else "",
)
def test_wrong_credentials_are_refused_and_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, no_pauses: list[float], wrong: dict[str, str], named: str
) -> None:
    monkeypatch.setattr("airflow_provider_webcollect.hooks.connection.TIMING", ClientTiming(adoption=0))
    monkeypatch.delenv("WEBCOLLECT_ACCESS_TOKEN")
    for name, value in wrong.items():
        monkeypatch.setenv(f"WEBCOLLECT_{name}", value)

    ended = run("capacity")

    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("Error: ")
    assert named in ended.err
    assert ended.err.splitlines()[-1] == (
        "Without Airflow, the connection is the environment: login and password are WEBCOLLECT_USERNAME and "
        "WEBCOLLECT_PASSWORD, and the extra `refresh_token` is WEBCOLLECT_REFRESH_TOKEN, as others are."
    )


def test_the_advice_on_a_wrong_password_is_not_on_refresh_tokens(
    run: Run, monkeypatch: pytest.MonkeyPatch, no_pauses: list[float]
) -> None:
    monkeypatch.delenv("WEBCOLLECT_ACCESS_TOKEN")
    monkeypatch.setenv("WEBCOLLECT_USERNAME", "demo")
    monkeypatch.setenv("WEBCOLLECT_PASSWORD", "never-shown")

    ended = run("capacity")

    assert "Put the right login and password into the connection" in ended.err
    assert "works once" not in ended.err
    assert "never-shown" not in ended.err


@pytest.mark.parametrize(
    "credentials", [{}, {"USERNAME": "demo", "PASSWORD": "wrong"}, {"REFRESH_TOKEN": "r"}]
)
@pytest.mark.parametrize(
    ("command", "origin"),
    [
        (["capacity"], "the environment variable WEBCOLLECT_URL"),
        (["status", "--url", "ADDRESS"], "--url"),
        (["analytics", "--url", "ADDRESS"], "--url"),
        (["token", "refresh", "--url", "ADDRESS"], "--url"),
    ],
    ids=" ".join,
)
def test_a_service_that_cannot_be_reached_is_named_within_seconds(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    no_pauses: list[float],
    command: list[str],
    origin: str,
    credentials: dict[str, str],
) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("WEBCOLLECT_URL", address)
    for name, value in credentials.items():
        monkeypatch.delenv("WEBCOLLECT_ACCESS_TOKEN", raising=False)
        monkeypatch.setenv(f"WEBCOLLECT_{name}", value)
    if command[0] == "token" and not credentials:
        monkeypatch.setenv("WEBCOLLECT_REFRESH_TOKEN", "r")

    ended = run(*(address if each == "ADDRESS" else each for each in command))

    # the service may be there later
    assert (ended.code, ended.out) == (4, "")
    assert ended.err.startswith("Error: ")
    assert f"no connection to {address} ({origin}): " in ended.err
    assert len(no_pauses) > 1
    assert sum(no_pauses) < 5


@pytest.mark.parametrize("command", [["read", "t"], ["land", "t", "FOLDER"]], ids=" ".join)
def test_a_long_command_goes_on_and_says_by_one_counter_what_it_waits_for(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    no_pauses: list[float],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    command: list[str],
) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    address = f"http://127.0.0.1:{free_port()}"
    monkeypatch.delenv("WEBCOLLECT_ACCESS_TOKEN")
    monkeypatch.setenv("WEBCOLLECT_USERNAME", "demo")
    monkeypatch.setenv("WEBCOLLECT_PASSWORD", "sandbox-password")
    folder = str(tmp_path / "landed")

    ended = run(*(folder if each == "FOLDER" else each for each in command), "--url", address)

    assert ended.code == 4
    assert f"no connection to {address} (--url): " in ended.err
    [message] = caplog.messages
    assert f"no connection to {address} (--url): " in message
    attempt = re.match(r"Attempt (\d) of at most 7 follows", message)
    assert attempt
    assert sum(no_pauses[: int(attempt[1]) - 2]) < 5
    assert len(no_pauses) == 6


def test_a_service_that_fails_may_work_later(run: Run, sandbox: Sandbox, no_pauses: list[float]) -> None:
    sandbox.control.fail("/cloudextraction/task/stats", times=None)

    assert run("capacity").code == 4

    sandbox.control.clear_faults()
    assert run("capacity").code == 0


def test_a_command_that_is_interrupted_ends_without_a_traceback(
    start: Callable[..., Started], sandbox: Sandbox
) -> None:
    sandbox.control.fail("/cloudextraction/task/stats", kind="drip", seconds=2 * PATIENCE)
    waiting = start("capacity")
    until(lambda: sandbox.control.counters().get("/cloudextraction/task/stats"))

    waiting.interrupt()

    assert waiting.end() == 130
    assert "Interrupted" in waiting.err
    assert "Traceback" not in waiting.err
