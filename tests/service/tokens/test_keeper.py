"""A keeper renews the token for all; workers wait for it and write nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.service.errors import TokenUnavailable
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, RenewalState, StoredToken
from tests.interruption import Pauses
from tests.service.tokens.cases import CALL, changed, note, refreshes

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.client import Client


def test_a_worker_waits_for_the_keepers_token_and_never_renews(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"keeper:{sandbox.url}")
    reads = 0

    def keeper_renews(seconds: float) -> None:
        nonlocal reads
        reads += 1
        if reads == 3:
            connect(store=store).renew_token()

    worker = connect(store=store, token_refresh="keeper", stop=Pauses(keeper_renews))
    assert worker.send(CALL)
    assert refreshes(sandbox) == [200]


def test_the_keeper_finds_out_by_itself_that_its_token_is_rejected(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"rejected:{sandbox.url}")
    keeper = connect(store=store, token_refresh="keeper")
    rejected = keeper.renew_token(0.5)
    sandbox.control.expire_tokens()
    worker = connect(store=store, token_refresh="keeper")
    with pytest.raises(TokenUnavailable):
        worker.send(CALL)
    assert store.load() == rejected
    keeper.renew_token(0.5)
    assert worker.send(CALL)
    assert refreshes(sandbox) == [200, 200]


def test_a_service_in_trouble_says_nothing_of_the_keepers_token(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    keeper = connect(token_refresh="keeper")
    young = keeper.renew_token(0.5)
    for trouble in ({"status": 500}, {"kind": "html", "status": 401}, {"kind": "drop"}):
        sandbox.control.fail("/cloudextraction/task/stats", **trouble)
        assert keeper.renew_token(0.5) == young
    assert refreshes(sandbox) == [200]


def test_workers_that_are_rejected_while_the_keeper_renews_write_nothing_over_its_token(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:

    class Recording(MemoryTokenStore):
        written = 0

        def write(self, register: Register, text: str) -> None:
            Recording.written += 1
            super().write(register, text)

    name = f"rejected-together:{sandbox.url}"
    keeper = connect(store=MemoryTokenStore(name))
    old = keeper.renew_token()
    worker = connect(store=Recording(name), token_refresh="keeper")
    worker.send(CALL)
    keeper.renew_token()
    worker.send(CALL)
    MemoryTokenStore(name).save(old)  # as if it had been read the moment before
    sandbox.control.expire_tokens()
    with pytest.raises(TokenUnavailable):
        worker.send(CALL)
    assert Recording.written == 0


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_lost_answer_to_the_keepers_renewal_does_not_end_the_token_that_all_use(
    connect: Callable[..., Client], sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryTokenStore(f"lost:{sandbox.url}")

    def keeper_runs() -> StoredToken:
        return connect(store=store).renew_token(0.5)

    first = keeper_runs()
    store.save(changed(first, obtained_at=time.time() - 50_000, expires_at=time.time() + 36_000))
    sandbox.control.fail("/token", kind="no_answer")
    with pytest.raises(TokenUnavailable):
        keeper_runs()
    assert keeper_runs().access_token == first.access_token
    assert "renewed later" in caplog.text
    assert connect(store=store).send(CALL)
    assert refreshes(sandbox) == [200, 0]


def test_a_renewal_whose_answer_was_lost_is_repeated_when_little_can_be_lost_by_it(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"late:{sandbox.url}")
    keeper = connect(store=store)
    first = keeper.renew_token()
    store.save(changed(first, obtained_at=time.time() - 91_000, expires_at=time.time() + 9_000))
    store.save_note(note(first, RenewalState.DOUBTFUL))
    keeper = connect(store=store)
    assert keeper.renew_token(0.5).access_token != first.access_token


def test_a_worker_without_a_keeper_says_so_after_a_while(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    worker = connect(token_refresh="keeper")
    with pytest.raises(TokenUnavailable, match="DAG") as error:
        worker.send(CALL)
    assert not error.value.permanent
    assert refreshes(sandbox) == []
