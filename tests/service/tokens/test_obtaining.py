"""A process that needs a token: with which credential it gets one, when it renews, and when a keeper does."""

from __future__ import annotations

import time

import pytest

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.service.endpoints import copy_task
from airflow_provider_webcollect.service.errors import TokenRejected, TokenUnavailable
from airflow_provider_webcollect.service.settings import Credentials
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, RenewalState, StoredToken
from airflow_provider_webcollect.service.tokens.renewal import Tokens
from tests.interruption import PATIENCE, Pauses
from tests.service.tokens.cases import CALL, SETTINGS, STATS, Account, note


def test_the_refresh_token_gives_a_token_and_a_stored_successor(account: Account) -> None:
    account.process().send(CALL)
    stored = account.stored
    assert stored.access_token not in {None, account.sandbox.access_token}
    assert stored.refresh_token not in {None, account.sandbox.refresh_token}
    assert stored.expires_at == pytest.approx(time.time() + 86399, abs=PATIENCE)


def test_login_and_password_give_the_first_token(account: Account) -> None:
    assert account.process(credentials=account.login()).send(CALL)
    assert account.grants == ["password"]


def test_a_rejected_access_token_alone_is_a_clear_error(account: Account) -> None:
    with pytest.raises(TokenRejected, match="no credential to obtain a new one"):
        account.process(credentials=Credentials(access_token="stale")).send(CALL)


def test_a_new_credential_in_the_connection_wins_over_the_store(account: Account) -> None:
    account.store.save(StoredToken(access_token="the old one's", lineage="another", obtained_at=1e12))
    account.process().send(CALL)
    assert account.refreshes == [200]


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


# A token that has ended or ends soon: it is renewed once, in time, and on demand.


def test_a_token_rejected_in_the_middle_is_renewed(account: Account) -> None:
    client, copy = account.process(), copy_task(demo.TASK_ID)
    client.send(copy)
    before = len(account.sandbox.control.tasks())
    account.expire()
    client.send(copy)
    assert len(account.sandbox.control.tasks()) == before + 1
    assert account.refreshes == [200, 200]
    sent = account.sandbox.control.requests("/task/copy")
    assert [request["status"] for request in sent] == [200, 401, 200]


def test_each_process_draws_its_own_moment_of_early_renewal() -> None:
    moments = set()
    for _ in range(20):
        held = Tokens(
            Credentials(refresh_token="x"), SETTINGS, "early", MemoryTokenStore("early"), now=lambda: 0.0
        )
        held._hold(StoredToken(access_token="a", lineage="f", obtained_at=0.0, expires_at=1000.0))
        held._now = lambda: 939.0
        assert held.current() == "a"
        held._now = lambda: 981.0
        assert held.current() is None
        moments.add(held._early)
    assert len(moments) == 20


def test_a_failed_early_renewal_leaves_the_token_in_use(account: Account) -> None:
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


def test_a_renewal_by_age_leaves_a_young_token_alone(account: Account) -> None:
    client = account.process()
    young = client.renew_token(after_share=0.5)
    assert client.renew_token(after_share=0.5) == young
    client.context.tokens._now = lambda: time.time() + 50_000
    assert client.renew_token(after_share=0.5) != young
    assert account.refreshes == [200, 200]


def test_a_lost_answer_to_a_renewal_is_asked_for_again(account: Account) -> None:
    account.fail("/token", kind="drop")
    assert account.process().send(CALL)


# A keeper renews the token for all; workers wait for it and write nothing.


def test_a_worker_waits_for_the_keepers_token_and_never_renews(account: Account) -> None:
    reads = 0

    def keeper_renews(seconds: float) -> None:
        nonlocal reads
        reads += 1
        if reads == 3:
            account.process().renew_token()

    worker = account.process(token_refresh="keeper", stop=Pauses(keeper_renews))
    assert worker.send(CALL)
    assert account.refreshes == [200]


def test_the_keeper_finds_out_that_its_token_is_rejected(account: Account) -> None:
    keeper = account.process(token_refresh="keeper")
    rejected = keeper.renew_token(0.5)
    account.expire()
    worker = account.process(token_refresh="keeper")
    with pytest.raises(TokenUnavailable):
        worker.send(CALL)
    assert account.stored == rejected
    keeper.renew_token(0.5)
    assert worker.send(CALL)
    assert account.refreshes == [200, 200]


def test_a_service_in_trouble_says_nothing_of_the_keepers_token(account: Account) -> None:
    keeper = account.process(token_refresh="keeper")
    young = keeper.renew_token(0.5)
    for trouble in ({"status": 500}, {"kind": "html", "status": 401}, {"kind": "drop"}):
        account.fail(STATS, **trouble)
        assert keeper.renew_token(0.5) == young
    assert account.refreshes == [200]


def test_rejected_workers_write_nothing_over_the_keepers_token(account: Account) -> None:
    class Recording(MemoryTokenStore):
        written = 0

        def write(self, register: Register, text: str) -> None:
            Recording.written += 1
            super().write(register, text)

    keeper = account.process()
    old = keeper.renew_token()
    worker = account.process(store=Recording(account.name), token_refresh="keeper")
    worker.send(CALL)
    keeper.renew_token()
    worker.send(CALL)
    account.store.save(old)  # as a stale read returns it
    account.expire()
    with pytest.raises(TokenUnavailable):
        worker.send(CALL)
    assert Recording.written == 0


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_lost_keeper_renewal_ends_no_token(account: Account, caplog: pytest.LogCaptureFixture) -> None:
    first = account.process().renew_token(0.5)
    account.store_with(age=50_000, rest=36_000)
    account.fail("/token", kind="drop", done=True)
    with pytest.raises(TokenUnavailable):
        account.process().renew_token(0.5)
    assert account.process().renew_token(0.5).access_token == first.access_token
    assert "stays in use for now" in caplog.text
    assert account.process().send(CALL)
    assert account.refreshes == [200, 0]


def test_a_lost_renewal_is_repeated_when_the_token_soon_ends(account: Account) -> None:
    first = account.process().renew_token()
    account.store_with(age=91_000, rest=9_000)
    account.store.save(note(first, RenewalState.DOUBTFUL))
    assert account.process().renew_token(0.5).access_token != first.access_token


def test_a_worker_without_a_keeper_says_so_after_a_while(account: Account) -> None:
    with pytest.raises(TokenUnavailable, match="DAG") as error:
        account.process(token_refresh="keeper").send(CALL)
    assert not error.value.permanent
    assert account.refreshes == []


def test_a_login_whose_token_no_header_can_have_is_repeated(account: Account) -> None:
    account.answer_token(access_token="two words", refresh_token="R")
    account.process(credentials=account.login()).send(CALL)
    assert account.refreshes == [200, 200]
    assert account.stored.refresh_token != "R"
