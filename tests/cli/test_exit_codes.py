"""How commands end: exit codes and messages."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from airflow_provider_webcollect import __version__
from airflow_provider_webcollect.cli.main import main, webcollect
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.settings import ClientTiming
from demo.ports import free_port
from tests.cli.conftest import Run

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]


def paths(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words by which a command and its subcommands are called."""
    yield path
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from paths(subcommand, (*path, name))


@pytest.mark.parametrize(
    "command", [path for path in paths(webcollect) if path != ("sandbox",)], ids=" ".join
)
def test_every_command_explains_itself_in_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = run(*command, "--help")
    usage, _, text = ended.out.partition("\n\n")
    assert (ended.code, ended.err) == (0, "")
    assert usage.startswith(f"Usage: {' '.join(['webcollect', *command])}")
    assert text
    assert "..." not in text, "a line is cut"
    assert max(map(len, [*usage.splitlines(), *text.splitlines()])) <= 80
    assert run(*command, "-h") == ended


def test_the_help_of_the_sandbox_is_its_own_by_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith("usage: webcollect sandbox ")
    assert "--refresh-reuse" in said


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert __version__ in run("--version").out


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("nothing", "nothing"),
        ("read", "TASK"),
        ("read t -n 0", "--rows"),
        ("capacity --url ftp://host", "--url is 'ftp://host'"),
        ("capacity --url localhost:8155", "--url must begin with https:// or http://"),
        ("status --colour", "--colour"),
        ("analytics --from yesterday", "yesterday"),
        ("analytics --from 2026-01-05 --to 2026-01-01", "--from is '2026-01-05'; it must not be after --to"),
        ("analytics --member ''", "--member is ''"),
        ("land t", "DESTINATION"),
        ("land t FOLDER --format csv --compression snappy", "--compression is 'snappy'"),
        ("land t FOLDER --lotno ''", "--lotno is ''"),
        ("land t FOLDER --run-id ''", "--run-id is ''"),
        ("discover --merge ''", "--merge is ''"),
        ("discover --dry-run", "it needs --merge FILE"),
        ("land t FOLDER --if-exists skip", "--if-exists is 'skip'; it requires --mode full"),
        ("land t my-bucket/prices", "a scheme"),
        ("land t FOLDER --column a --column a", "--column is 'a'"),
        ("landing clean nowhere://there", "nowhere"),
        ("landing cat FOLDER --reasons", "--reasons requires --quarantined"),
        ("landing cat FOLDER --reasons --quarantined 1 --new-only", "--reasons requires --quarantined"),
        ("landing cat FOLDER --reasons --quarantined 1 --since 0", "--reasons requires --quarantined"),
        (f"task copy t --group {2**63}", str(2**63)),
        ("task set-loop t a --item x --type Numbers", "--type"),
        ("task set-loop t a --type TextList", "--item is []"),
        ("task set-params t a =x", "=x"),
        ("task replace-urls t WORDS", "FILE, line 2 is 'shoes'"),
        ("task start t --subtask s --subtask ' '", "--subtask is ''"),
        ("group delete shops", "shops"),
        ("app deprecate ..", "APP is"),
        ("subtasks t ''", "TASK is ''"),
    ],
)
def test_a_wrong_argument_sends_nothing(
    run: Run, sandbox: Sandbox, tmp_path: Path, command: str, named: str
) -> None:
    (tmp_path / "WORDS").write_text("https://shop.example/1\nshoes\n")
    words = [str(tmp_path / word) if word.isupper() else word for word in shlex.split(command)]
    run(*words).refused(2, named)
    assert sandbox.control.requests() == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("task set-loop t a --type TextList --file LATIN", "--file is 'LATIN'; it must be UTF-8"),
        ("task delete - --yes", "TASK is '-'; there are no ids on standard input"),
        ("task set-params t a TextToSet", "NAME=VALUE is 'TextToSet'; it must be of the form NAME=VALUE"),
        ("land t FOLDER --checks {price", "--checks is '{price'; it must be JSON: "),
        ("land t FOLDER --checks [NaN]", "--checks is '[NaN]'; it must be JSON: NaN"),
        (
            "land t ./FOLDER --table-format delta --format csv",
            "--format is 'csv'; --table-format delta requires 'parquet'",
        ),
        pytest.param(f"land t ./FOLDER --checks {'[' * 60_000}", "--checks is '[[[[", id="nested too deeply"),
        (
            """land t ./FOLDER --checks '{"rows": {"min": 0}}'""",
            "--checks['rows']['min'] is 0; it must be an",
        ),
    ],
)
def test_a_wrong_value_is_named_without_the_usage(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, said: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    (tmp_path / "LATIN").write_bytes("bücher".encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    ended = run(*shlex.split(command))
    ended.refused(2)
    assert ended.err.startswith(f"Error: {said}")


def test_a_wrong_variable_of_the_environment_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBCOLLECT_STATUS_BATCH_SIZE", "many")
    run("capacity").refused(2, "WEBCOLLECT_STATUS_BATCH_SIZE is")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"ACCESS_TOKEN": "wrong"}, "access token"),
        ({"USERNAME": "demo", "PASSWORD": "never-shown"}, "login and password were refused"),
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
    assert "never-shown" not in ended.err
    assert ("works once" in ended.err) is ("REFRESH_TOKEN" in wrong)
    assert ("Put the right login and password into the connection" in ended.err) is ("PASSWORD" in wrong)
    assert ended.err.splitlines()[-1] == (
        "Without Airflow, the connection is the environment: its host is the environment variable "
        "WEBCOLLECT_URL, login and password are WEBCOLLECT_USERNAME and WEBCOLLECT_PASSWORD, and an extra "
        "such as `refresh_token` is WEBCOLLECT_REFRESH_TOKEN."
    )


LOGIN, REFRESH = {"USERNAME": "demo", "PASSWORD": "wrong"}, {"REFRESH_TOKEN": "r"}


@pytest.mark.parametrize(
    ("command", "credential"),
    [
        ("capacity", {}),
        ("status", LOGIN),
        ("analytics", REFRESH),
        ("token refresh", REFRESH),
        ("read t", LOGIN),
        ("land t ./FOLDER", LOGIN),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_unreachable_service_is_named_within_seconds(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    no_pauses: list[float],
    caplog: pytest.LogCaptureFixture,
    command: str,
    credential: dict[str, str],
) -> None:
    address, is_long = f"http://127.0.0.1:{free_port()}", command.startswith(("read", "land"))
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    monkeypatch.setenv("WEBCOLLECT_URL", address)
    for name, value in credential.items():
        monkeypatch.delenv("WEBCOLLECT_ACCESS_TOKEN", raising=False)
        monkeypatch.setenv(f"WEBCOLLECT_{name}", value)
    origin = "--url" if is_long else "the environment variable WEBCOLLECT_URL"
    said = f"no connection to {address} ({origin}): "
    # code 4: the service may be reachable later
    run(*command.split(), *(["--url", address] if is_long else [])).refused(4, "Error: ", said)
    if is_long:
        # the attempts for the token and for the call that needs it are counted together
        [message] = caplog.messages
        assert re.match(r"Attempt \d of at most 7 follows", message)
        assert said in message
        assert len(no_pauses) == 6
    else:
        assert len(no_pauses) > 1
        assert sum(no_pauses) < 5
