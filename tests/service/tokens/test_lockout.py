"""Whatever is refused or lost, nobody is locked out for good, and nobody sends renewals without end."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import pytest

from airflow_provider_webcollect.service.errors import (
    CredentialError,
    GrantRejected,
    TokenStoreUnavailable,
    TokenUnavailable,
    WebCollectError,
)
from airflow_provider_webcollect.service.settings import Credentials
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, RenewalState, StoredToken
from tests.service.tokens.cases import CALL, Full, Hiccup, changed, note, refreshes, with_refresh_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.client import Client
    from tests.service.conftest import Clock


def test_login_and_password_heal_a_refused_refresh_token(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    credentials = Credentials(refresh_token="spent", login=sandbox.username, password=sandbox.password)
    assert connect(credentials=credentials).send(CALL)
    assert refreshes(sandbox) == [400, 200]


def test_a_newer_token_is_not_lost_to_an_older_record(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"older:{sandbox.url}")
    client = connect(store=store)
    client.renew_token()
    newest = client.renew_token()
    store.save(changed(newest, access_token="old", generation=newest.generation - 1))
    sandbox.control.fail("/cloudextraction/task/stats", status=401, code="Invalid.Token", message="no")
    client.send(CALL)
    assert store.load().generation == newest.generation + 1
    assert refreshes(sandbox) == [200, 200, 200]


def test_a_new_token_that_cannot_be_stored_serves_its_process_and_is_stored_later(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    name = f"unsaved:{sandbox.url}"
    full = Full(name)
    connect(store=full).send(CALL)
    assert full.load() is None
    store = MemoryTokenStore(name)
    connect(store=store).send(CALL)
    assert store.load() is not None
    assert refreshes(sandbox) == [200]


def test_a_refresh_token_is_not_spent_where_its_successor_could_not_be_stored(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    broken = Full(f"broken:{sandbox.url}", of=frozenset(Register))
    with pytest.raises(TokenStoreUnavailable):
        connect(store=broken).send(CALL)
    assert refreshes(sandbox) == []


@pytest.mark.parametrize("life", [0, -5, "2026-12-31T00:00:00Z", "soon", None])
def test_a_life_that_the_service_states_oddly_is_unknown_and_costs_no_token(
    connect: Callable[..., Client], sandbox: Sandbox, life: Any
) -> None:
    odd = {"access_token": sandbox.access_token, "refresh_token": "next", "expires_in": life}
    body = json.dumps({"data": odd, "requestId": "1"}).encode()
    sandbox.control.fail("/token", kind="raw", body=body, headers={"Content-Type": "application/json"})
    store = MemoryTokenStore(f"odd:{sandbox.url}")
    for _ in range(2):
        connect(store=store).send(CALL)
    kept = store.load()
    assert kept is not None
    assert (kept.refresh_token, kept.expires_at) == ("next", None)
    assert len(refreshes(sandbox)) == 1


def test_a_gateway_that_wants_a_token_is_no_refusal_of_the_refresh_token(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    challenge = {"WWW-Authenticate": "Bearer"}
    sandbox.control.fail("/token", kind="raw", status=401, body=b"", headers=challenge)
    client = connect()
    with pytest.raises(TokenUnavailable):
        client.send(CALL)
    assert client.send(CALL)


def test_a_reset_reaches_a_process_whose_token_is_refused(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"reset:{sandbox.url}")
    running = connect(store=store)
    running.renew_token()
    running.renew_token()
    sandbox.control.expire_tokens(refresh_tokens=True)
    with pytest.raises(GrantRejected):
        running.send(CALL)
    login = Credentials(login=sandbox.username, password=sandbox.password)
    begun = StoredToken(
        access_token=connect(credentials=login, name="again").renew_token().access_token,
        generation=1,
        lineage=with_refresh_token(sandbox).lineage_at(sandbox.url),
    )
    store.save(begun)
    assert running.send(CALL)


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_store_that_seems_empty_for_a_moment_costs_no_refresh_token(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    name = f"hiccup:{sandbox.url}"
    connect(store=MemoryTokenStore(name)).send(CALL)
    later = connect(store=Hiccup(name, 1))
    assert later.send(CALL)
    assert refreshes(sandbox) == [200]


class Late(MemoryTokenStore):
    """Shows a token that was replaced since, for a number of reads."""

    def __init__(self, name: str, text: str, reads: int) -> None:
        super().__init__(name)
        self._text, self._reads = text, reads

    def read(self, register: Register) -> str | None:
        if register is Register.TOKEN and self._reads:
            self._reads -= 1
            return self._text
        return super().read(register)


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_token_that_is_shown_late_costs_no_refresh_token(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    name = f"late:{sandbox.url}"
    store = MemoryTokenStore(name)
    connect(store=store).send(CALL)
    replaced = str(store.read(Register.TOKEN))
    sandbox.control.expire_tokens()
    connect(store=store).send(CALL)
    assert connect(store=Late(name, replaced, 10)).send(CALL)
    assert refreshes(sandbox) == [200, 200]


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_login_that_gives_no_refresh_token_does_not_lead_back_to_a_spent_one(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"led back:{sandbox.url}")
    credentials = with_refresh_token(sandbox, login=sandbox.username, password=sandbox.password)
    connect(credentials=credentials, store=store).send(CALL)
    sandbox.control.expire_tokens()
    sandbox.control.fail("/token", status=400, code="Invalid.Grant", message="no")
    body = json.dumps({"data": {"access_token": "rejected"}, "requestId": "1"}).encode()
    sandbox.control.fail("/token", kind="raw", body=body, headers={"Content-Type": "application/json"})
    assert connect(credentials=credentials, store=store).send(CALL)
    bodies = [json.loads(request["body"]) for request in sandbox.control.requests("/token")]
    assert [each["grant_type"] for each in bodies] == ["refresh_token"] * 2 + ["password"] * 2


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_lost_answer_to_an_early_renewal_does_not_end_the_token_that_still_works(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"lost:{sandbox.url}")
    connect(store=store).send(CALL)
    store.save(changed(store.load(), obtained_at=time.time() - 1e6, expires_at=time.time() + 6000))
    sandbox.control.fail("/token", kind="no_answer")
    for _ in range(3):
        client = connect(store=store)
        assert client.send(CALL)
    assert refreshes(sandbox) == [200, 0]


def test_a_token_whose_renewal_another_process_began_and_never_ended_is_used_to_its_end(
    connect: Callable[..., Client], sandbox: Sandbox, clock: Clock
) -> None:
    store = MemoryTokenStore(f"begun:{sandbox.url}")
    connect(store=store).send(CALL)
    due = changed(store.load(), obtained_at=time.time() - 1e6, expires_at=time.time() + 6000)
    store.save(due)
    store.save_note(note(due, RenewalState.CLAIMED))
    client = connect(store=store)
    assert client.send(CALL)
    clock.sleep(100)  # the claim expires
    assert client.send(CALL)
    assert refreshes(sandbox) == [200]


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_that_may_be_a_gateways_is_none_of_the_refresh_token(
    connect: Callable[..., Client], sandbox: Sandbox, status: int
) -> None:
    sandbox.control.fail("/token", status=status, code="Blocked", message="no")
    client = connect()
    with pytest.raises(WebCollectError) as failure:
        client.send(CALL)
    assert not isinstance(failure.value, GrantRejected)
    assert client.send(CALL)
    assert refreshes(sandbox) == [status, 200]


def test_a_token_endpoint_in_trouble_is_no_reason_to_give_up_for_good(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    sandbox.control.fail("/token", times=2, kind="html", status=503)
    client = connect()
    with pytest.raises(TokenUnavailable) as error:
        client.send(CALL)
    assert not error.value.permanent
    assert client.send(CALL)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "Invalid.Grant"), (400, "InvalidGrant"), (401, "Invalid.Token"), (400, "invalid.grant")],
)
def test_a_refusal_by_a_known_code_is_one_and_is_not_asked_for_again(
    connect: Callable[..., Client],
    sandbox: Sandbox,
    status: int,
    code: str,
) -> None:
    sandbox.control.fail("/token", times=None, status=status, code=code, message="no")
    client = connect()
    for _ in range(3):
        with pytest.raises(GrantRejected):
            client.send(CALL)
    assert len(refreshes(sandbox)) == 1


@pytest.mark.parametrize("code", ["SystemBusy", "InvalidParameter", "Unauthorized", "PermissionDenied"])
@pytest.mark.parametrize("status", [400, 401])
def test_any_other_refusal_of_the_token_endpoint_says_nothing_of_the_credential(
    connect: Callable[..., Client], sandbox: Sandbox, status: int, code: str
) -> None:
    sandbox.control.fail("/token", status=status, code=code, message="no")
    client = connect()
    with pytest.raises(WebCollectError) as failure:
        client.send(CALL)
    assert not failure.value.permanent
    assert client.send(CALL)
    assert refreshes(sandbox) == [status, 200]


@pytest.mark.parametrize("status", [400, 403, 404])
def test_any_other_refusal_of_the_token_endpoint_says_nothing_of_a_login_either(
    connect: Callable[..., Client], sandbox: Sandbox, status: int
) -> None:
    sandbox.control.fail("/token", status=status, code="SystemBusy", message="no")
    client = connect(credentials=Credentials(login=sandbox.username, password=sandbox.password))
    with pytest.raises(TokenUnavailable, match="the service issues no token now"):
        client.send(CALL)
    assert client.send(CALL)


def test_a_refusal_is_tested_again_after_an_hour(
    connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.control.fail("/token", status=400, code="Invalid.Grant", message="no")
    store = MemoryTokenStore(f"an hour:{sandbox.url}")
    with pytest.raises(GrantRejected):
        connect(store=store).send(CALL)
    hour_old = store.load_note()
    assert hour_old is not None
    store.save_note(msgspec.structs.replace(hour_old, at=time.time() - 3601))
    assert connect(store=store).send(CALL)
    assert refreshes(sandbox) == [400, 200]


def test_entering_a_refused_token_again_begins_anew(connect: Callable[..., Client], sandbox: Sandbox) -> None:
    store = MemoryTokenStore(f"entered again:{sandbox.url}")
    connect(store=store).send(CALL)
    successor = Credentials(refresh_token=changed(store.load()).refresh_token)
    sandbox.control.expire_tokens()
    sandbox.control.fail("/token", status=400, code="Invalid.Grant", message="no")
    for _ in range(2):
        with pytest.raises(GrantRejected):
            connect(store=store).send(CALL)
    assert connect(credentials=successor, store=store).send(CALL)
    assert refreshes(sandbox) == [200, 400, 200]
    sandbox.control.expire_tokens()
    # whoever has the connection as it was before goes on with the same tokens
    assert connect(store=store).send(CALL)


def test_a_refusal_also_counts_where_the_connection_holds_an_earlier_refresh_token(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"earlier:{sandbox.url}")
    connect(store=store).send(CALL)
    earlier = Credentials(refresh_token=changed(store.load()).refresh_token)
    connect(store=store).renew_token()
    sandbox.control.expire_tokens()
    sandbox.control.fail("/token", times=None, status=400, code="Invalid.Grant", message="no")
    for credentials in (None, earlier, None, earlier):
        with pytest.raises(GrantRejected):
            connect(store=store, credentials=credentials or with_refresh_token(sandbox)).send(CALL)
    assert refreshes(sandbox) == [200, 200, 400]


def test_a_process_remembers_a_refusal_when_the_note_is_on_another_refresh_token(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    sandbox.control.fail("/token", times=None, status=400, code="Invalid.Grant", message="no")
    store = MemoryTokenStore(f"remembered:{sandbox.url}")
    client = connect(store=store)
    for _ in range(2):
        with pytest.raises(GrantRejected):
            client.send(CALL)
        store.save_note(note(StoredToken(access_token="a", lineage="another"), RenewalState.RELEASED))
    assert refreshes(sandbox) == [400]


def test_a_renewal_that_sent_nothing_leaves_the_note_on_another_refresh_token_as_it_was(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"left:{sandbox.url}")
    doubtful = note(
        StoredToken(access_token="a", refresh_token="r", lineage="another"), RenewalState.DOUBTFUL
    )
    store.save_note(doubtful)
    sandbox.control.fail("/token", times=None, status=429, code="TooManyRequests", message="later")
    with pytest.raises(WebCollectError):
        connect(store=store).send(CALL)
    assert set(refreshes(sandbox)) == {429}
    assert store.load_note() == doubtful


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
@pytest.mark.parametrize(
    "edit",
    [
        {"base_url": "HTTP://LOCALHOST:{port}/"},
        {"login": "someone", "password": "secret"},
        {"access_token": "rejected"},
    ],
)
def test_a_connection_that_is_edited_goes_on_with_the_stored_successor(
    connect: Callable[..., Client], sandbox: Sandbox, edit: dict[str, str]
) -> None:
    store = MemoryTokenStore(f"edited:{sandbox.url}")
    connect(store=store).send(CALL)
    sandbox.control.expire_tokens()
    edited = {name: text.format(port=urlsplit(sandbox.url).port) for name, text in edit.items()}
    settings = {"base_url": edited.pop("base_url")} if "base_url" in edited else {}
    client = connect(credentials=with_refresh_token(sandbox, **edited), store=store, **settings)
    assert client.send(CALL)
    assert refreshes(sandbox) == [200, 200]


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_spent_refresh_token_that_is_entered_again_is_not_sent(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"spent:{sandbox.url}")
    connect(store=store).send(CALL)
    login = Credentials(login=sandbox.username, password=sandbox.password)
    connect(credentials=login, store=store).send(CALL)
    with pytest.raises(TokenUnavailable, match="a new one must be put into the connection"):
        connect(store=store).send(CALL)
    assert refreshes(sandbox) == [200, 200]


def test_a_person_may_return_to_login_and_password(connect: Callable[..., Client], sandbox: Sandbox) -> None:
    store = MemoryTokenStore(f"returned:{sandbox.url}")
    login = Credentials(login=sandbox.username, password=sandbox.password)
    for credentials in (login, with_refresh_token(sandbox), login):
        assert connect(credentials=credentials, store=store).send(CALL)
    assert refreshes(sandbox) == [200, 200, 200]


@pytest.mark.parametrize("other", ["HTTP://LocalHost/", "http://localhost:80", "http://localhost.:80/"])
def test_a_service_that_is_spelled_differently_is_the_same_to_a_login(other: str) -> None:
    login = Credentials(login="someone", password="secret")
    assert login.lineage_at(other) == login.lineage_at("http://localhost")
    assert login.lineage_at("http://localhost/api") != login.lineage_at("http://localhost")
    assert login.lineage_at("https://localhost") != login.lineage_at("http://localhost")


def test_a_service_that_issues_no_new_refresh_token_leaves_the_old_one_in_use(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    kept = {"access_token": sandbox.access_token, "expires_in": 1}
    body = json.dumps({"data": kept, "requestId": "1"}).encode()
    sandbox.control.fail("/token", kind="raw", body=body, headers={"Content-Type": "application/json"})
    store = MemoryTokenStore(f"kept:{sandbox.url}")
    connect(store=store).send(CALL)
    store.save(changed(store.load(), expires_at=time.time() - 1, obtained_at=time.time() - 2))
    assert connect(store=store).send(CALL)
    assert len(refreshes(sandbox)) == 2


def test_an_operation_that_is_refused_with_any_token_does_not_renew_for_ever(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    client = connect()
    path = "/cloudextraction/task/stats"
    sandbox.control.fail(path, times=None, status=401, code="Invalid.Token", message="no")
    for _ in range(4):
        with pytest.raises(TokenUnavailable) as failure:
            client.send(CALL)
        assert failure.value.retry_after == pytest.approx(60, abs=1)
    assert len(refreshes(sandbox)) == 2


def test_a_token_that_is_dropped_twice_within_a_minute_is_renewed_after_it(
    connect: Callable[..., Client], sandbox: Sandbox, clock: Clock
) -> None:
    client = connect()
    for _ in range(2):
        client.send(CALL)
        sandbox.control.expire_tokens()
    with pytest.raises(TokenUnavailable) as failure:
        client.send(CALL)
    assert not failure.value.permanent
    clock.sleep(failure.value.retry_after or 0)
    assert client.send(CALL)


def test_a_refresh_token_that_was_not_sent_is_not_marked_as_refused(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    name = f"unsent:{sandbox.url}"
    store = MemoryTokenStore(name)
    connect(store=store).send(CALL)
    store.save(changed(store.load(), obtained_at=time.time() - 86_400, expires_at=time.time() - 1))
    sandbox.control.expire_tokens()
    late = connect(store=Hiccup(name, 4))
    assert late.send(CALL)
    assert refreshes(sandbox) == [200, 400, 200]


def test_a_revoked_session_is_found_out_once_and_for_all_though_its_token_is_young(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"revoked:{sandbox.url}")
    connect(store=store).send(CALL)
    sandbox.control.expire_tokens(refresh_tokens=True)
    sandbox.control.clear_requests()
    for _ in range(3):
        with pytest.raises(GrantRejected):
            connect(store=store).send(CALL)
    assert refreshes(sandbox) == [400]


def test_a_process_with_the_old_credential_does_not_overwrite_what_came_of_the_new_one(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"replaced:{sandbox.url}")
    old = connect(store=store)
    old.send(CALL)
    new = Credentials(login=sandbox.username, password=sandbox.password)
    connect(credentials=new, store=store).send(CALL)
    kept = store.load()
    sandbox.control.fail("/cloudextraction/task/stats", status=401, code="Invalid.Token", message="no")
    with pytest.raises(TokenUnavailable, match="the connection has a new credential"):
        old.send(CALL)
    assert store.load() == kept


def test_another_service_under_the_same_connection_gets_no_token_of_the_old_one(
    connect: Callable[..., Client], sandbox: Sandbox
) -> None:
    store = MemoryTokenStore(f"moved:{sandbox.url}")
    credentials = Credentials(login=sandbox.username, password=sandbox.password)
    elsewhere = credentials.lineage_at("http://127.0.0.1:9")
    store.save(StoredToken(access_token="elsewhere's", lineage=elsewhere, obtained_at=time.time()))
    connect(credentials=credentials, store=store).send(CALL)
    sent = sandbox.control.requests("/cloudextraction/task/stats")
    assert [request["status"] for request in sent] == [200]


def test_credential_errors_are_permanent() -> None:
    assert CredentialError("x").permanent
