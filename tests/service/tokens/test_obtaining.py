"""A process without a token: what it obtains one with, and what of the store counts."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.service.errors import GrantRejected, TokenRejected, TokenUnavailable
from airflow_provider_webcollect.service.settings import Credentials
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, StoredToken
from tests.interruption import PATIENCE
from tests.service.tokens.cases import CALL, refreshes
from tests.service.tokens.fleet import SlowFileTokenStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.client import Client


def test_the_connections_refresh_token_gives_the_first_access_token_and_its_successor_is_kept(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"first:{sandbox.url}")
    connect(store=store).send(CALL)
    stored = store.load()
    assert stored is not None
    assert stored.access_token not in {None, sandbox.access_token}
    assert stored.refresh_token not in {None, sandbox.refresh_token}
    assert stored.expires_at == pytest.approx(time.time() + 86399, abs=PATIENCE)


def test_a_stored_token_is_used_without_asking_the_token_endpoint(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    for _ in range(3):
        connect().send(CALL)
    assert refreshes(sandbox) == [200]


def test_login_and_password_give_the_first_token(connect: Callable[..., Client], sandbox: Sandbox) -> None:
    login = Credentials(login=sandbox.username, password=sandbox.password)
    assert connect(credentials=login).send(CALL)
    bodies = [json.loads(request["body"]) for request in sandbox.control.requests("/token")]
    assert [body["grant_type"] for body in bodies] == ["password"]


def test_a_wrong_password_is_a_clear_error(connect: Callable[..., Client], sandbox: Sandbox) -> None:
    login = Credentials(login=sandbox.username, password="not it")
    with pytest.raises(GrantRejected) as refusal:
        connect(credentials=login).send(CALL)
    assert "not it" not in str(refusal.value)


def test_a_ready_access_token_is_used_as_it_is(connect: Callable[..., Client], sandbox: Sandbox) -> None:
    connect(credentials=Credentials(access_token=sandbox.access_token)).send(CALL)
    assert refreshes(sandbox) == []


def test_an_access_token_that_is_rejected_with_nothing_behind_it_is_a_clear_error(
    connect: Callable[..., Client],
) -> None:
    with pytest.raises(TokenRejected, match="nothing to obtain a new one with"):
        connect(credentials=Credentials(access_token="stale")).send(CALL)


def test_a_new_credential_in_the_connection_wins_over_what_is_stored(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"new:{sandbox.url}")
    store.save(StoredToken(access_token="of the old one", lineage="of the old one", obtained_at=1e12))
    connect(store=store).send(CALL)
    assert refreshes(sandbox) == [200]


def test_deleting_what_is_stored_is_a_reset(
    connect: Callable[..., Client], sandbox: Sandbox, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    login = Credentials(login=sandbox.username, password=sandbox.password)
    connect(credentials=login, store=SlowFileTokenStore(path)).send(CALL)
    path.unlink()
    connect(credentials=login, store=SlowFileTokenStore(path)).send(CALL)
    assert refreshes(sandbox) == [200, 200]


@pytest.mark.parametrize("text", ["not json", "{}", '{"access_token": 5}'])
def test_a_store_that_holds_something_else_is_no_empty_store(
    connect: Callable[..., Client], sandbox: Sandbox, text: str
) -> None:
    store = MemoryTokenStore(f"unreadable:{sandbox.url}:{text}")
    store.write(Register.TOKEN, text)
    with pytest.raises(TokenUnavailable, match="cannot be read"):
        connect(store=store).send(CALL)
    assert refreshes(sandbox) == []


def test_a_text_that_is_empty_counts_as_nothing_stored(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"blank:{sandbox.url}")
    store.write(Register.TOKEN, " ")
    connect(store=store).send(CALL)
    assert refreshes(sandbox) == [200]
