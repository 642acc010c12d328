"""Tokens without Airflow: what commands store for later ones, and ``token status`` and ``refresh``."""

from __future__ import annotations

import datetime
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import time_machine

from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Run, Show

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False, refresh_reuse="revoke"),
    pytest.mark.usefixtures("no_pauses"),
]


@pytest.fixture(autouse=True)
def refresh_token(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The credential is a refresh token; if it is sent twice, the service revokes all its successors."""
    monkeypatch.setenv("WEBCOLLECT_URL", sandbox.url)
    monkeypatch.setenv("WEBCOLLECT_REFRESH_TOKEN", sandbox.refresh_token)
    monkeypatch.setenv("WEBCOLLECT_REQUESTS_PER_SECOND", "0")


@pytest.fixture
def state() -> Path:
    return Path(os.environ["XDG_STATE_HOME"]) / "webcollect"


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A user whose new files everybody may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def renewals(sandbox: Sandbox) -> int:
    return len(sandbox.control.requests("/token"))


def stored(state: Path) -> dict[str, str]:
    [token] = [json.loads(path.read_text()) for path in state.iterdir() if not path.suffix]
    assert isinstance(token, dict)
    return token


def test_commands_use_one_refresh_token_after_another(run: Run, sandbox: Sandbox) -> None:
    task = sandbox.control.add_task(lots=[30])["task_id"]
    assert run("capacity").code == 0
    assert run("read", task).lines == sandbox.control.true_rows(task)
    assert renewals(sandbox) == 1
    sandbox.control.expire_tokens()
    assert run("capacity").code == 0
    assert run("read", task).code == 0
    assert renewals(sandbox) == 2


@pytest.mark.usefixtures("open_umask")
def test_only_the_user_can_read_what_is_remembered(run: Run, state: Path) -> None:
    assert run("capacity").code == 0
    assert state.stat().st_mode & 0o777 == 0o700
    assert len(list(state.iterdir())) == 2
    assert {path.stat().st_mode & 0o777 for path in state.iterdir()} == {0o600}
    assert stored(state)["refresh_token"]


def test_without_the_variable_the_state_is_in_the_usual_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run("capacity").code == 0
    assert run("token", "status").code == 0
    assert stored(tmp_path / "home" / ".local" / "state" / "webcollect")["access_token"]


def test_no_token_is_shown(run: Run, sandbox: Sandbox, state: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    commands = [run("--verbose", "token", "refresh")]
    before = stored(state)
    sandbox.control.expire_tokens()
    commands += [
        run("--verbose", *command)
        for command in (["capacity"], ["token", "status", "-o", "json"], ["read", "unknown"])
    ]
    after = stored(state)
    tokens = {token[name] for token in (before, after) for name in ("access_token", "refresh_token")}
    secrets = {sandbox.refresh_token} | tokens
    assert len(secrets) == 5
    said = "".join([caplog.text, *(ended.out + ended.err for ended in commands)])
    assert "another process is renewing the token" in said
    assert not [secret for secret in secrets if secret in said]


def test_the_token_status_has_its_begin_and_its_end(show: Show, run: Run, sandbox: Sandbox) -> None:
    began = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    assert run("capacity").code == 0
    sent = len(sandbox.control.requests())
    [row] = show("token", "status")
    assert len(sandbox.control.requests()) == sent
    assert row["connection"] == sandbox.url
    since, until = (datetime.datetime.fromisoformat(row[name]) for name in ("stored", "expires"))
    lifetime = sandbox.control.configure()["token_lifetime"]
    assert began <= since <= datetime.datetime.now(datetime.UTC)
    assert abs((until - since).total_seconds() - lifetime) <= 2
    assert abs(float(row["age_seconds"]) + float(row["seconds_left"]) - lifetime) <= 2
    assert f"process {os.getpid()}" in row["stored_by"]


def test_the_status_is_1_without_a_usable_token(run: Run, sandbox: Sandbox) -> None:
    run("token", "status").refused(1, "none is stored")
    assert renewals(sandbox) == 0
    assert run("token", "refresh").code == 0
    assert run("token", "status").code == 0
    with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)):
        assert run("token", "status").code == 1


def test_no_token_without_a_place_for_it(run: Run, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    run("capacity").refused(3, "cannot be kept in /dev/null/webcollect", "set XDG_STATE_HOME to a folder")
    assert renewals(sandbox) == 0
