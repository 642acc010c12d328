"""Tokens in a running Airflow: shared through a Variable, masked in logs, never stored in plain text."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.models import Variable
from airflow.providers.common.compat.sdk import redact
from airflow.utils.session import create_session
from cryptography.fernet import Fernet
from sqlalchemy import delete, select

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectMarkExportedOperator,
    WebCollectStartSubTasksOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import TokenStoreUnavailable
from airflow_provider_webcollect.service.settings import ClientTiming
from airflow_provider_webcollect.service.tokens import StoredToken
from tests.airflow.dag_runs import run_tasks
from tests.airflow.executions import Connect, Task, execute
from tests.interruption import PATIENCE

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "token_in_variable"),
    pytest.mark.webcollect_sandbox(stale_seconds=0, enforce_limits=False),
]

VARIABLE = "webcollect_token__webcollect_default"
RENEWAL = "webcollect_renewal__webcollect_default"


@pytest.fixture
def token_in_variable(no_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share tokens as an Airflow installation does by default."""
    monkeypatch.delenv("AIRFLOW__WEBCOLLECT__TOKEN_STORE")
    with create_session() as session:
        # from another test's sandbox, which began with the same refresh token
        session.execute(delete(Variable).where(Variable.key.in_([VARIABLE, RENEWAL])))
    # for slow machines; a renewal waits for 1.5 times as long, which takes no time here (`no_pauses`)
    monkeypatch.setenv("AIRFLOW__WEBCOLLECT__TOKEN_STORE_TIMEOUT", "60")
    monkeypatch.setattr(connection, "TIMING", ClientTiming(store_patience=0))


def execute_sql(statement: str, *values: Any) -> list[Any]:
    """Execute a statement in Airflow's database, and return its rows."""
    path = Path(os.environ["AIRFLOW_HOME"]) / "airflow.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement, values).fetchall()


@pytest.fixture
def without_variables() -> Iterator[None]:
    """A database without the table of Variables, like one that nobody has initialized."""
    execute_sql("alter table variable rename to away")
    yield
    execute_sql("alter table away rename to variable")


def stored(key: str) -> str:
    """Return what a Variable holds, decrypted."""
    with create_session() as session:
        return str(session.scalars(select(Variable).where(Variable.key == key)).one().val)


def stored_token() -> StoredToken:
    return msgspec.json.decode(stored(VARIABLE), type=StoredToken)


def test_a_dag_run_needs_one_token_and_leaves_none_readable(
    connected: None, sandbox: Sandbox, task: Task, airflow_home: str
) -> None:
    which = {"collection_task_id": task["task_id"]}
    waits: dict[str, Any] = {"deferrable": True, "poke_interval": 0.1}
    states = ("Waiting", "Finished")
    run = run_tasks(
        lambda: WebCollectStartSubTasksOperator(task_id="start", **which),
        lambda: WebCollectTaskStatusSensor(task_id="wait", target_states=states, **waits, **which),
        lambda: WebCollectMarkExportedOperator(task_id="confirm", **which),
    )

    assert run.states == {"start": "success", "wait": "success", "confirm": "success"}
    assert len(sandbox.control.requests("/token")) == 1
    token = stored_token()
    with sqlite3.connect(Path(airflow_home) / "airflow.db") as database:
        everything = "\n".join(database.iterdump())
    for secret in (token.access_token, token.refresh_token, sandbox.refresh_token, sandbox.datahub_api_key):
        assert secret
        assert secret not in everything


def test_the_variable_is_encrypted_and_its_note_has_no_secret(connected: None, sandbox: Sandbox) -> None:
    WebCollectHook().get_running_counts()
    columns = "select val, is_encrypted from variable where key = ?"
    ((value, is_encrypted),) = execute_sql(columns, VARIABLE)
    assert is_encrypted
    assert "refresh_token" not in value
    sandbox.control.expire_tokens()
    WebCollectHook().get_running_counts()

    token = stored_token()
    state = stored(RENEWAL)
    for secret in (token.access_token, token.refresh_token, sandbox.refresh_token, sandbox.access_token):
        assert secret
        assert secret not in state


def test_the_connections_secrets_are_masked(set_connection: Connect, sandbox: Sandbox) -> None:
    names = ("refresh_token", "access_token", "api_key", "datahub_api_key")
    secrets = {name: f"secret-of-{name}" for name in names}
    set_connection(password="secret-of-password", extra=secrets)
    _ = WebCollectHook().client

    for secret in ("secret-of-password", *secrets.values()):
        assert secret not in str(redact(f"a line with {secret} in it"))


def test_tokens_learned_from_the_service_are_masked(hook: WebCollectHook) -> None:
    token = hook.refresh_token()
    assert token.refresh_token
    assert redact(f"{token.access_token} {token.refresh_token}") == "*** ***"


async def test_tokens_learned_on_an_event_loop_are_masked(hook: WebCollectHook, sandbox: Sandbox) -> None:
    await hook.aload()
    async with hook.async_client() as client:
        await client.send(endpoints.get_running_counts())
        token = await client.run(lambda sender: sender.context.tokens.current())
    assert token
    async with asyncio.timeout(PATIENCE):
        while redact(token) != "***":  # a thread does it
            await asyncio.sleep(0.01)


def test_deleting_it_uses_the_credential(set_connection: Connect, sandbox: Sandbox, task: Task) -> None:
    set_connection(login=sandbox.username, password=sandbox.password, extra={})

    def confirm() -> None:
        execute(WebCollectMarkExportedOperator(task_id="confirm", collection_task_id=task["task_id"]))

    confirm()
    confirm()
    assert len(sandbox.control.requests("/token")) == 1
    execute_sql("delete from variable where key = ?", VARIABLE)
    confirm()
    assert ['"password"' in request["body"] for request in sandbox.control.requests("/token")] == [True, True]


def test_without_variables_none_is_spent(connected: None, sandbox: Sandbox, without_variables: None) -> None:
    with pytest.raises(TokenStoreUnavailable, match="the connection's token cannot be read"):
        WebCollectHook().get_running_counts()
    assert sandbox.control.requests("/token") == []


def test_an_unreadable_variable_is_not_taken_for_none(connected: None, sandbox: Sandbox) -> None:
    WebCollectHook().get_running_counts()
    # a value that was encrypted with another key
    value = Fernet(Fernet.generate_key()).encrypt(b"a token").decode()
    execute_sql("update variable set val = ? where key = ?", value, VARIABLE)
    with pytest.raises(TokenStoreUnavailable, match="cannot be read"):
        WebCollectHook().get_running_counts()

    assert len(sandbox.control.requests("/token")) == 1
