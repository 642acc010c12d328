"""A token that has ended or soon ends: renewed once, in time, and on demand."""

from __future__ import annotations

import time

import pytest

from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.settings import Credentials, Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, StoredToken
from airflow_provider_webcollect.service.tokens.renewal import Tokens
from tests.interruption import PATIENCE
from tests.service.tokens.cases import CALL, STATS, Account


def test_a_token_rejected_in_the_middle_is_renewed_and_the_request_repeated_once(account: Account) -> None:
    client = account.process()
    client.send(CALL)
    account.expire()
    client.send(CALL)
    assert account.refreshes == [200, 200]
    assert [request["status"] for request in account.sandbox.control.requests(STATS)] == [200, 401, 200]


def test_a_newer_stored_token_is_used_instead_of_renewing(account: Account) -> None:
    processes = [account.process() for _ in range(2)]
    for client in processes:
        client.send(CALL)
    account.expire()
    for client in processes:
        client.send(CALL)
    assert account.refreshes == [200, 200]


@pytest.mark.webcollect_sandbox(token_lifetime=1000)
def test_a_token_is_renewed_before_it_ends_and_each_process_draws_its_own_moment() -> None:
    moments = set()
    for _ in range(20):
        held = Tokens(Credentials(refresh_token="x"), "early", MemoryTokenStore("early"), now=lambda: 0.0)
        held._hold(StoredToken(access_token="a", lineage="f", obtained_at=0.0, expires_at=1000.0))
        held._now = lambda: 939.0
        assert held.current() == "a"
        held._now = lambda: 981.0
        assert held.current() is None
        moments.add(held._early)
    assert len(moments) == 20


def test_an_early_renewal_that_fails_leaves_the_token_in_use_and_is_not_tried_at_every_call(
    account: Account,
) -> None:
    account.process().send(CALL)
    account.store_with(age=1e6, rest=6000)
    account.sandbox.control.clear_requests()
    account.fail("/token", times=None, status=500)
    client = account.process()
    for _ in range(5):
        client.send(CALL)
    assert len(account.refreshes) == 1


def test_a_renewal_on_demand_replaces_a_token_that_is_still_good(account: Account) -> None:
    client = account.process()
    client.send(CALL)
    record = client.renew_token().record(time.time())
    assert record.expires_in == pytest.approx(86399, abs=PATIENCE)
    assert account.refreshes == [200, 200]
    assert client.context.tokens.current() == record.access_token


def test_a_renewal_from_a_share_of_the_life_on_leaves_a_young_token_alone(account: Account) -> None:
    client = account.process()
    young = client.renew_token(after_share=0.5)
    assert client.renew_token(after_share=0.5) == young
    client.context.tokens._now = lambda: time.time() + 50_000
    assert client.renew_token(after_share=0.5) != young
    assert account.refreshes == [200, 200]


def test_a_lost_answer_to_a_renewal_is_asked_for_again(account: Account) -> None:
    account.fail("/token", kind="drop")
    assert account.process().send(CALL)


def test_every_token_that_is_learned_is_told_for_masking(account: Account) -> None:
    learned: list[str] = []
    settings = Settings(base_url=account.sandbox.url, requests_per_second=0)
    client = account.process()
    client.context = make_context(settings, account.credentials(), "learn", account.store, learned.append)
    client.send(CALL)
    assert {account.stored.access_token, account.stored.refresh_token} <= set(learned)
