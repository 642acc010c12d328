"""A token that has ended or soon ends: renewed once, in time, and on demand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.errors import TokenUnavailable
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import Credentials, Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, StoredToken
from airflow_provider_webcollect.service.tokens.renewal import Tokens
from tests.interruption import PATIENCE
from tests.service.tokens.cases import CALL, changed, refreshes, with_refresh_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.client import Client


def test_a_token_rejected_in_the_middle_is_renewed_and_the_request_repeated_once(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    client = connect()
    client.send(CALL)
    sandbox.control.expire_tokens()
    client.send(CALL)
    assert refreshes(sandbox) == [200, 200]
    path = "/cloudextraction/task/stats"
    assert [request["status"] for request in sandbox.control.requests(path)] == [200, 401, 200]


def test_a_newer_stored_token_is_used_instead_of_renewing(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    one = connect()
    other = connect()
    one.send(CALL)
    other.send(CALL)
    sandbox.control.expire_tokens()
    one.send(CALL)
    other.send(CALL)
    assert refreshes(sandbox) == [200, 200]


def test_a_fresh_token_that_is_rejected_too_is_a_clear_error(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    client = connect()
    sandbox.control.fail(
        "/cloudextraction/task/stats", times=None, status=401, code="Invalid.Token", message="no"
    )
    with pytest.raises(TokenUnavailable, match="rejected again"):
        client.send(CALL)
    assert len(sandbox.control.requests("/cloudextraction/task/stats")) == 2


@pytest.mark.webcollect_sandbox(token_lifetime=1000)
def test_a_token_is_renewed_before_it_ends_and_each_process_draws_its_own_moment(sandbox: Sandbox) -> None:
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
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"early:{sandbox.url}")
    connect(store=store).send(CALL)
    due = changed(store.load(), obtained_at=time.time() - 1e6, expires_at=time.time() + 6000)
    store.save(due)
    sandbox.control.clear_requests()
    sandbox.control.fail("/token", times=None, status=500)
    client = connect(store=store)
    for _ in range(5):
        client.send(CALL)
    assert len(refreshes(sandbox)) == 1


def test_a_renewal_on_demand_replaces_a_token_that_is_still_good(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    client = connect()
    client.send(CALL)
    record = client.renew_token().record(time.time())
    assert record.expires_in == pytest.approx(86399, abs=PATIENCE)
    assert refreshes(sandbox) == [200, 200]
    assert client.context.tokens.current() == record.access_token


def test_a_renewal_from_a_share_of_the_life_on_leaves_a_young_token_alone(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    client = connect()
    young = client.renew_token(after_share=0.5)
    assert client.renew_token(after_share=0.5) == young
    client.context.tokens._now = lambda: time.time() + 50_000
    assert client.renew_token(after_share=0.5) != young
    assert refreshes(sandbox) == [200, 200]


def test_a_lost_answer_to_a_renewal_is_asked_for_again(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    sandbox.control.fail("/token", kind="drop")
    client = connect()
    assert client.send(CALL)


def test_every_token_that_is_learned_is_told_for_masking(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    learned: list[str] = []
    settings = Settings(base_url=sandbox.url, requests_per_second=0)
    store = MemoryTokenStore(f"learn:{sandbox.url}")
    context = make_context(settings, with_refresh_token(sandbox), "learn", store, learned.append)
    client = connect()
    client.context = context
    client.send(CALL)
    stored = store.load()
    assert stored is not None
    assert {stored.access_token, stored.refresh_token} <= set(learned)


def test_a_token_that_ends_in_the_middle_of_a_read_costs_no_page(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    sandbox.control.configure(enforce_limits=False)
    task_id = sandbox.control.add_task(rows=300, lots=1)["task_id"]
    client = connect()
    rows = []
    for number, page in enumerate(PageReader(client, task_id, size=10).pages()):
        rows += page.records()
        if number == 10:
            sandbox.control.expire_tokens()
    assert rows == sandbox.control.true_rows(task_id)
    assert refreshes(sandbox) == [200, 200]
