"""Whatever is refused or lost, nobody is locked out for good, and nobody sends renewals without end."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from airflow_provider_webcollect.service import errors
from airflow_provider_webcollect.service.settings import Credentials
from airflow_provider_webcollect.service.tokens import Register, RenewalState, StoredToken
from tests.service.conftest import Clock
from tests.service.tokens.cases import (
    CALL,
    GRANT_REFUSED,
    STATS,
    TOKEN_REFUSED,
    Account,
    Full,
    Hiccup,
    changed,
    note,
)

REVOKES = pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
OF_ANOTHER = StoredToken(access_token="a", refresh_token="r", lineage="another")


def test_login_and_password_heal_a_refused_refresh_token(account: Account) -> None:
    assert account.process(credentials=account.login(refresh_token="spent")).send(CALL)
    assert account.refreshes == [400, 200]


def test_a_newer_token_is_not_lost_to_an_older_record(account: Account) -> None:
    client = account.process()
    client.renew_token()
    newest = client.renew_token()
    account.store.save(changed(newest, access_token="old", generation=newest.generation - 1))
    account.fail(STATS, **TOKEN_REFUSED)
    client.send(CALL)
    assert account.stored.generation == newest.generation + 1
    assert account.refreshes == [200, 200, 200]


def test_a_new_token_that_cannot_be_stored_is_stored_later(account: Account) -> None:
    full = Full(account.name)
    account.process(store=full).send(CALL)
    assert full.load() is None
    account.process().send(CALL)
    assert account.stored
    assert account.refreshes == [200]


def test_no_refresh_token_is_spent_if_the_store_is_full(account: Account) -> None:
    with pytest.raises(errors.TokenStoreUnavailable):
        account.process(store=Full(account.name, of=frozenset(Register))).send(CALL)
    assert account.refreshes == []


def test_a_reset_reaches_a_process_whose_token_is_refused(account: Account) -> None:
    running = account.process()
    running.renew_token()
    running.renew_token()
    account.expire(refresh_tokens=True)
    with pytest.raises(errors.GrantRejected):
        running.send(CALL)
    begun = StoredToken(
        access_token=account.process(credentials=account.login(), name="again").renew_token().access_token,
        generation=1,
        lineage=account.credentials().lineage_at(account.sandbox.url),
    )
    account.store.save(begun)
    assert running.send(CALL)


@REVOKES
def test_a_store_that_seems_empty_costs_no_refresh_token(account: Account) -> None:
    account.process().send(CALL)
    assert account.process(store=Hiccup(account.name, 1)).send(CALL)
    assert account.refreshes == [200]


@REVOKES
def test_a_login_without_a_refresh_token_reuses_no_spent_one(account: Account) -> None:
    credentials = account.login(refresh_token=account.sandbox.refresh_token)
    account.process(credentials=credentials).send(CALL)
    account.expire()
    account.fail("/token", **GRANT_REFUSED)
    account.answer_token(access_token="rejected")
    assert account.process(credentials=credentials).send(CALL)
    assert account.grants == ["refresh_token"] * 2 + ["password"] * 2


def test_a_token_is_used_to_its_end_despite_a_lost_claim(account: Account, clock: Clock) -> None:
    account.process().send(CALL)
    account.store.save(note(account.store_with(age=1e6, rest=6000), RenewalState.CLAIMED))
    client = account.process()
    assert client.send(CALL)
    clock.sleep(100)  # the claim expires
    assert client.send(CALL)
    assert account.refreshes == [200]


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "Invalid.Grant"), (400, "InvalidGrant"), (401, "Invalid.Token"), (400, "invalid-grant")],
)
def test_a_refusal_by_a_known_code_is_not_asked_for_again(account: Account, status: int, code: str) -> None:
    account.fail("/token", times=None, status=status, code=code, message="no")
    client = account.process()
    for _ in range(3):
        with pytest.raises(errors.GrantRejected):
            client.send(CALL)
    assert len(account.refreshes) == 1


@pytest.mark.parametrize(
    "fault",
    [
        *(
            {"status": status, "code": code}
            for status in (400, 401)
            for code in ("SystemBusy", "InvalidParameter", "Unauthorized", "PermissionDenied")
        ),
        {"status": 403, "code": "Blocked"},
        {"status": 404, "code": "Blocked"},
        {"kind": "raw", "status": 401, "body": b"", "headers": {"WWW-Authenticate": "Bearer"}},
        {"kind": "html", "status": 503, "times": 2},
    ],
    ids=lambda fault: " ".join(str(value) for value in fault.values()),
)
def test_other_token_errors_do_not_refuse_the_credential(account: Account, fault: dict[str, Any]) -> None:
    account.fail("/token", **fault)
    client = account.process()
    with pytest.raises(errors.TokenUnavailable) as failure:
        client.send(CALL)
    assert not failure.value.permanent
    assert client.send(CALL)
    assert account.refreshes == [fault["status"]] * fault.get("times", 1) + [200]


@pytest.mark.parametrize("status", [400, 403, 404])
def test_other_token_errors_do_not_refuse_a_login(account: Account, status: int) -> None:
    account.fail("/token", status=status, code="SystemBusy", message="no")
    client = account.process(credentials=account.login())
    with pytest.raises(errors.TokenUnavailable, match="the service issues no token now"):
        client.send(CALL)
    assert client.send(CALL)


def test_a_refusal_is_tested_again_after_an_hour(account: Account) -> None:
    account.fail("/token", **GRANT_REFUSED)
    with pytest.raises(errors.GrantRejected):
        account.process().send(CALL)
    hour_old = account.store.load_note()
    assert hour_old is not None
    account.store.save(msgspec.structs.replace(hour_old, at=time.time() - 3601))
    assert account.process().send(CALL)
    assert account.refreshes == [400, 200]


def test_a_refused_token_works_once_entered_again(account: Account) -> None:
    account.process().send(CALL)
    successor = Credentials(refresh_token=account.stored.refresh_token)
    account.expire()
    account.fail("/token", **GRANT_REFUSED)
    for _ in range(2):
        with pytest.raises(errors.GrantRejected):
            account.process().send(CALL)
    assert account.process(credentials=successor).send(CALL)
    assert account.refreshes == [200, 400, 200]
    account.expire()
    # a process with the earlier credential goes on with the same tokens
    assert account.process().send(CALL)


def test_a_refusal_counts_for_an_earlier_refresh_token_too(account: Account) -> None:
    account.process().send(CALL)
    earlier = Credentials(refresh_token=account.stored.refresh_token)
    account.process().renew_token()
    account.expire()
    account.fail("/token", times=None, **GRANT_REFUSED)
    for credentials in (account.credentials(), earlier) * 2:
        with pytest.raises(errors.GrantRejected):
            account.process(credentials=credentials).send(CALL)
    assert account.refreshes == [200, 200, 400]


def test_a_process_remembers_a_refusal_without_its_note(account: Account) -> None:
    account.fail("/token", times=None, **GRANT_REFUSED)
    client = account.process()
    for _ in range(2):
        with pytest.raises(errors.GrantRejected):
            client.send(CALL)
        account.store.save(note(changed(OF_ANOTHER, refresh_token=None), RenewalState.RELEASED))
    assert account.refreshes == [400]


def test_an_unsent_renewal_leaves_the_note_of_another_token(account: Account) -> None:
    doubtful = note(OF_ANOTHER, RenewalState.DOUBTFUL)
    account.store.save(doubtful)
    account.fail("/token", times=None, status=429, code="TooManyRequests", message="later")
    with pytest.raises(errors.WebCollectError):
        account.process().send(CALL)
    assert set(account.refreshes) == {429}
    assert account.store.load_note() == doubtful


@REVOKES
@pytest.mark.parametrize(
    "edit",
    [
        {"base_url": "HTTP://LOCALHOST:{port}/"},
        {"login": "someone", "password": "secret"},
        {"access_token": "rejected"},
    ],
)
def test_an_edited_connection_uses_the_stored_successor(account: Account, edit: dict[str, str]) -> None:
    account.process().send(CALL)
    account.expire()
    edited = {name: text.format(port=urlsplit(account.sandbox.url).port) for name, text in edit.items()}
    settings = {"base_url": edited.pop("base_url")} if "base_url" in edited else {}
    client = account.process(credentials=account.credentials(**edited), store=account.store, **settings)
    assert client.send(CALL)
    assert account.refreshes == [200, 200]


@REVOKES
def test_a_spent_refresh_token_that_is_entered_again_is_not_sent(account: Account) -> None:
    account.process().send(CALL)
    account.process(credentials=account.login()).send(CALL)
    with pytest.raises(errors.TokenUnavailable, match="it is used up: enter a new one"):
        account.process().send(CALL)
    assert account.refreshes == [200, 200]


def test_a_person_may_return_to_login_and_password(account: Account) -> None:
    for credentials in (account.login(), account.credentials(), account.login()):
        assert account.process(credentials=credentials).send(CALL)
    assert account.refreshes == [200, 200, 200]


@pytest.mark.parametrize("other", ["HTTP://LocalHost/", "http://localhost:80", "http://localhost.:80/"])
def test_a_login_knows_a_service_in_any_spelling(other: str) -> None:
    login = Credentials(login="someone", password="secret")
    assert login.lineage_at(other) == login.lineage_at("http://localhost")
    assert login.lineage_at("http://localhost/api") != login.lineage_at("http://localhost")
    assert login.lineage_at("https://localhost") != login.lineage_at("http://localhost")


def test_without_a_new_refresh_token_the_old_one_stays_in_use(account: Account) -> None:
    account.answer_token(access_token=account.sandbox.access_token, expires_in=1)
    account.process().send(CALL)
    account.store_with(age=2, rest=-1)
    assert account.process().send(CALL)
    assert len(account.refreshes) == 2


def test_an_operation_refused_with_any_token_renews_only_once(account: Account) -> None:
    client = account.process()
    account.fail(STATS, times=None, **TOKEN_REFUSED)
    for number in range(4):
        with pytest.raises(errors.TokenUnavailable, match="rejected again") as failure:
            client.send(CALL)
        assert failure.value.retry_after == pytest.approx(60, abs=1)
        assert number or len(account.sandbox.control.requests(STATS)) == 2
    assert len(account.refreshes) == 2


def test_a_token_dropped_twice_in_a_minute_is_renewed_after_it(account: Account, clock: Clock) -> None:
    client = account.process()
    for _ in range(2):
        client.send(CALL)
        account.expire()
    with pytest.raises(errors.TokenUnavailable) as failure:
        client.send(CALL)
    assert not failure.value.permanent
    clock.sleep(failure.value.retry_after or 0)
    assert client.send(CALL)


def test_an_unsent_refresh_token_is_not_marked_as_refused(account: Account) -> None:
    account.process().send(CALL)
    account.store_with(age=86_400, rest=-1)
    account.expire()
    assert account.process(store=Hiccup(account.name, 4)).send(CALL)
    assert account.refreshes == [200, 400, 200]


def test_a_revoked_session_is_found_out_once_for_all(account: Account) -> None:
    account.process().send(CALL)
    account.expire(refresh_tokens=True)
    account.sandbox.control.clear_requests()
    for _ in range(3):
        with pytest.raises(errors.GrantRejected):
            account.process().send(CALL)
    assert account.refreshes == [400]


def test_an_old_credential_does_not_overwrite_a_newer_token(account: Account) -> None:
    old = account.process()
    old.send(CALL)
    account.process(credentials=account.login()).send(CALL)
    kept = account.stored
    account.fail(STATS, **TOKEN_REFUSED)
    with pytest.raises(errors.TokenUnavailable, match="the connection has a new credential"):
        old.send(CALL)
    assert account.stored == kept
