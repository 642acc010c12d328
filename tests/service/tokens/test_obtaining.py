"""A process without a token: what it obtains one with, and what of the store counts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.service.errors import GrantRejected, TokenRejected, TokenUnavailable
from airflow_provider_webcollect.service.settings import Credentials
from airflow_provider_webcollect.service.tokens import Register, StoredToken
from tests.interruption import PATIENCE
from tests.service.tokens.cases import CALL, Account
from tests.service.tokens.fleet import SlowFileTokenStore

if TYPE_CHECKING:
    from pathlib import Path


def test_the_connections_refresh_token_gives_the_first_access_token_and_its_successor_is_kept(
    account: Account,
) -> None:
    account.process().send(CALL)
    stored = account.stored
    assert stored.access_token not in {None, account.sandbox.access_token}
    assert stored.refresh_token not in {None, account.sandbox.refresh_token}
    assert stored.expires_at == pytest.approx(time.time() + 86399, abs=PATIENCE)


def test_a_stored_token_is_used_without_asking_the_token_endpoint(account: Account) -> None:
    for _ in range(3):
        account.process().send(CALL)
    assert account.refreshes == [200]


def test_login_and_password_give_the_first_token(account: Account) -> None:
    assert account.process(credentials=account.login()).send(CALL)
    assert account.grants == ["password"]


def test_a_wrong_password_is_a_clear_error(account: Account) -> None:
    with pytest.raises(GrantRejected) as refusal:
        account.process(credentials=account.login(password="not it")).send(CALL)
    assert "not it" not in str(refusal.value)


def test_a_ready_access_token_is_used_as_it_is(account: Account) -> None:
    account.process(credentials=Credentials(access_token=account.sandbox.access_token)).send(CALL)
    assert account.refreshes == []


def test_an_access_token_that_is_rejected_with_nothing_behind_it_is_a_clear_error(account: Account) -> None:
    with pytest.raises(TokenRejected, match="nothing to obtain a new one with"):
        account.process(credentials=Credentials(access_token="stale")).send(CALL)


def test_a_new_credential_in_the_connection_wins_over_what_is_stored(account: Account) -> None:
    account.store.save(StoredToken(access_token="the old one's", lineage="another", obtained_at=1e12))
    account.process().send(CALL)
    assert account.refreshes == [200]


def test_deleting_what_is_stored_is_a_reset(account: Account, tmp_path: Path) -> None:
    path = tmp_path / "token"
    account.process(credentials=account.login(), store=SlowFileTokenStore(path)).send(CALL)
    path.unlink()
    account.process(credentials=account.login(), store=SlowFileTokenStore(path)).send(CALL)
    assert account.refreshes == [200, 200]


@pytest.mark.parametrize("text", ["not json", "{}", '{"access_token": 5}'])
def test_a_store_that_holds_something_else_is_no_empty_store(account: Account, text: str) -> None:
    account.store.write(Register.TOKEN, text)
    with pytest.raises(TokenUnavailable, match="cannot be read"):
        account.process().send(CALL)
    assert account.refreshes == []


def test_a_text_that_is_empty_counts_as_nothing_stored(account: Account) -> None:
    account.store.write(Register.TOKEN, " ")
    account.process().send(CALL)
    assert account.refreshes == [200]
