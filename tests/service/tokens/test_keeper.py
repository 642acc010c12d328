"""A keeper renews the token for all; workers wait for it and write nothing."""

from __future__ import annotations

import pytest

from airflow_provider_webcollect.service.errors import TokenUnavailable
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, RenewalState
from tests.interruption import Pauses
from tests.service.tokens.cases import CALL, STATS, Account, note


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


def test_the_keeper_finds_out_by_itself_that_its_token_is_rejected(account: Account) -> None:
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


def test_workers_that_are_rejected_while_the_keeper_renews_write_nothing_over_its_token(
    account: Account,
) -> None:
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
    account.store.save(old)  # as if it had been read the moment before
    account.expire()
    with pytest.raises(TokenUnavailable):
        worker.send(CALL)
    assert Recording.written == 0


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_lost_answer_to_the_keepers_renewal_does_not_end_the_token_that_all_use(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    first = account.process().renew_token(0.5)
    account.store_with(age=50_000, rest=36_000)
    account.fail("/token", kind="no_answer")
    with pytest.raises(TokenUnavailable):
        account.process().renew_token(0.5)
    assert account.process().renew_token(0.5).access_token == first.access_token
    assert "renewed later" in caplog.text
    assert account.process().send(CALL)
    assert account.refreshes == [200, 0]


def test_a_renewal_whose_answer_was_lost_is_repeated_when_little_can_be_lost_by_it(account: Account) -> None:
    first = account.process().renew_token()
    account.store_with(age=91_000, rest=9_000)
    account.store.save_note(note(first, RenewalState.DOUBTFUL))
    assert account.process().renew_token(0.5).access_token != first.access_token


def test_a_worker_without_a_keeper_says_so_after_a_while(account: Account) -> None:
    with pytest.raises(TokenUnavailable, match="DAG") as error:
        account.process(token_refresh="keeper").send(CALL)
    assert not error.value.permanent
    assert account.refreshes == []
