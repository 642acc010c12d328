"""Processes that share a token in a file: renewed once, and lost by a kill only."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import GrantRejected
from tests.conftest import ALL_HISTORIES
from tests.service.tokens.cases import CALL, Account, refreshes
from tests.service.tokens.fleet import SlowFileTokenStore, exit_code_of_one_that_dies, fleet, store_expired

#: Processes of a host and of two hosts, and how often a token is dropped.
SIZE, ROUNDS = (32, 20) if ALL_HISTORIES else (8, 2)


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_processes_of_two_hosts_renew_an_expired_token_once_and_each_that_is_dropped(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    store_expired(sandbox, tmp_path / "token")
    with fleet(sandbox, tmp_path / "token", SIZE) as call:
        for number in range(1, ROUNDS + 1):
            assert call() == ["ok"] * SIZE
            assert refreshes(sandbox) == [200] * number
            sandbox.control.expire_tokens()


def test_a_process_that_dies_before_storing_leaves_an_explanation_and_no_hammering(
    account: Account, tmp_path: Path
) -> None:
    store_expired(account.sandbox, tmp_path / "token")
    assert exit_code_of_one_that_dies(account.sandbox, tmp_path / "token") == 9
    for _ in range(4):
        with pytest.raises(GrantRejected, match="before the new one was stored") as error:
            account.process(store=SlowFileTokenStore(tmp_path / "token")).send(CALL)
        assert "Put a new `refresh_token`" in str(error.value)
    assert account.refreshes == [200, 400]
