"""Tokens: obtained, shared, renewed exactly once, and never locked out."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.auth import claim, renewal
from airflow_provider_webcollect.service.auth.renewal import Tokens
from airflow_provider_webcollect.service.auth.store import MemoryTokenStore, Register
from airflow_provider_webcollect.service.auth.token import RenewalNote, RenewalState, StoredToken
from airflow_provider_webcollect.service.client import page_reader
from airflow_provider_webcollect.service.client.aio import AsyncClient
from airflow_provider_webcollect.service.client.context import ClientContext, make_context
from airflow_provider_webcollect.service.client.sync import Client
from airflow_provider_webcollect.service.errors import (
    CredentialError,
    GrantRejected,
    TokenRejected,
    TokenStoreUnavailable,
    TokenUnavailable,
)
from airflow_provider_webcollect.service.flow import Authorize, Blocking, Sleep
from airflow_provider_webcollect.service.settings import Credentials, Retries, Settings
from tests.interruption import Pauses
from tests.service.token_worker import SlowFileTokenStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

#: WEBCOLLECT_TOKEN_ROUNDS=20 is a long test.
ROUNDS = int(os.environ.get("WEBCOLLECT_TOKEN_ROUNDS", "3"))
WORKER = Path(__file__).with_name("token_worker.py")


def refreshes(sandbox: Sandbox) -> list[int]:
    """Return the statuses that the token endpoint answered."""
    return [request["status"] for request in sandbox.control.requests("/token")]


def with_refresh_token(sandbox: Sandbox, **more: Any) -> Credentials:
    return Credentials(refresh_token=sandbox.refresh_token, **more)


class Fleet:
    """Processes on some hosts (lock folders) that call the service in rounds, all at once."""

    def __init__(self, sandbox: Sandbox, store: Path, tmp_path: Path, size: int, hosts: int) -> None:
        # each host would have an address, and so a rate, of its own
        sandbox.control.configure(enforce_limits=False)
        self._processes = []
        for number in range(size):
            host = tmp_path / f"host{number % hosts}"
            host.mkdir(exist_ok=True)
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, str(WORKER), sandbox.url, sandbox.refresh_token, str(store)],
                    env={**os.environ, "TMPDIR": str(host)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.communicate(timeout=100)

    def call(self) -> list[dict[str, Any]]:
        """Have every process make a call, and return what they say of it."""
        for process in self._processes:
            process.stdin.write("\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self._processes]


def store_expired(sandbox: Sandbox, path: Path) -> None:
    """Store a token whose day is over, as a fleet finds it in the morning."""
    expired = StoredToken(
        access_token="yesterday's",
        refresh_token=sandbox.refresh_token,
        obtained_at=time.time() - 86_400,
        expires_at=time.time() - 1,
        fingerprint=with_refresh_token(sandbox).fingerprint_at(sandbox.url),
    )
    SlowFileTokenStore(path).save(expired)


class Full(MemoryTokenStore):
    """Does not take what is written to some of its registers."""

    def __init__(self, name: str, of: frozenset[Register] = frozenset({Register.TOKEN})) -> None:
        super().__init__(name)
        self._of = of

    def write(self, register: Register, text: str) -> None:
        if register in self._of:
            raise TokenStoreUnavailable("full")
        super().write(register, text)


class Hiccup(MemoryTokenStore):
    """Seems to be empty for a number of reads."""

    def __init__(self, name: str, reads: int) -> None:
        super().__init__(name)
        self._reads = reads

    def read(self, register: Register) -> str | None:
        if register is Register.TOKEN:
            self._reads -= 1
        return super().read(register) if self._reads < 0 else None


class Unreachable(MemoryTokenStore):
    """Can be neither read nor written, and counts the attempts to read it."""

    is_reachable = False
    reads = 0

    def read(self, register: Register) -> str | None:
        self.reads += 1
        if not self.is_reachable:
            raise TokenStoreUnavailable("down")
        return super().read(register)


class Alone:
    """A process that needs a token from a store that others share; time passes only while it waits."""

    def __init__(self, name: str) -> None:
        world = self
        self.now = 0.0
        self.read_at: list[float] = []
        self.sent_at: list[float] = []

        class Shared(MemoryTokenStore):
            write_bound = 2.0

            def read(self, register: Register) -> str | None:
                world.read_at.append(world.now)
                return super().read(register)

        self.store = Shared(name)
        self._tokens = Tokens(Credentials(refresh_token="x"), name, self.store, clock=lambda: self.now)

    def run(self, until: float, stands_still: float = 0.0, read_takes: float = 0.0) -> None:
        """Let it try to get a token.

        :param stands_still: seconds that it is suspended for when it has written its claim.
        :param read_takes: seconds that a read of the store takes.
        """
        flow, outcome = self._tokens.obtain(Authorize(None, 0), self._send), None
        while self.now < until and not self.sent_at:
            effect, outcome = flow.send(outcome), None
            match effect:
                case Sleep(seconds):
                    self.now += seconds
                    if self.store.load_note() is not None:
                        self.now, stands_still = self.now + stands_still, 0.0
                case Blocking(function):
                    reads = len(self.read_at)
                    outcome = function()
                    self.now += read_takes * (len(self.read_at) - reads)
        flow.close()

    def _send(self, call: Any) -> Any:
        self.sent_at.append(self.now)
        yield Sleep(1)


class TestObtaining:
    def test_the_connections_refresh_token_gives_the_first_access_token_and_its_successor_is_kept(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"first:{sandbox.url}")
        connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        stored = store.load()
        assert stored is not None
        assert stored.access_token not in {None, sandbox.access_token}
        assert stored.refresh_token not in {None, sandbox.refresh_token}
        assert stored.expires_at == pytest.approx(time.time() + 86399, abs=30)

    def test_a_stored_token_is_used_without_asking_the_token_endpoint(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        for _ in range(3):
            connect(credentials=with_refresh_token(sandbox)).send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200]

    def test_login_and_password_give_the_first_token(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        login = Credentials(login=sandbox.username, password=sandbox.password)
        assert connect(credentials=login).send(endpoints.get_running_counts())
        bodies = [json.loads(request["body"]) for request in sandbox.control.requests("/token")]
        assert [body["grant_type"] for body in bodies] == ["password"]

    def test_a_wrong_password_is_a_clear_error(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        login = Credentials(login=sandbox.username, password="not it")
        with pytest.raises(GrantRejected) as refusal:
            connect(credentials=login).send(endpoints.get_running_counts())
        assert "not it" not in str(refusal.value)

    def test_a_ready_access_token_is_used_as_it_is(self, client: Client, sandbox: Sandbox) -> None:
        client.send(endpoints.get_running_counts())
        assert refreshes(sandbox) == []

    def test_an_access_token_that_is_rejected_with_nothing_behind_it_is_a_clear_error(
        self, connect: Callable[..., Client]
    ) -> None:
        with pytest.raises(TokenRejected, match="nothing to obtain a new one with"):
            connect(credentials=Credentials(access_token="stale")).send(endpoints.get_running_counts())

    def test_a_new_credential_in_the_connection_wins_over_what_is_stored(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"new:{sandbox.url}")
        store.save(StoredToken(access_token="of the old one", fingerprint="of the old one", obtained_at=1e12))
        connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200]

    def test_deleting_what_is_stored_is_a_reset(
        self, connect: Callable[..., Client], sandbox: Sandbox, tmp_path: Path
    ) -> None:
        path = tmp_path / "token"
        login = Credentials(login=sandbox.username, password=sandbox.password)
        connect(credentials=login, store=SlowFileTokenStore(path)).send(endpoints.get_running_counts())
        path.unlink()
        connect(credentials=login, store=SlowFileTokenStore(path)).send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200, 200]

    @pytest.mark.parametrize("text", ["not json", "{}", '{"access_token": 5}'])
    def test_a_store_that_holds_something_else_is_no_empty_store(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        monkeypatch.setattr(renewal, "STORE_PATIENCE", 0.1)
        store = MemoryTokenStore(f"unreadable:{sandbox.url}:{text}")
        store.write(Register.TOKEN, text)
        with pytest.raises(TokenUnavailable, match="cannot be read"):
            connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        assert refreshes(sandbox) == []

    def test_a_text_that_is_empty_counts_as_nothing_stored(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"blank:{sandbox.url}")
        store.write(Register.TOKEN, " ")
        connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200]


class TestRenewing:
    def test_a_token_rejected_in_the_middle_is_renewed_and_the_request_repeated_once(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        client = connect(credentials=with_refresh_token(sandbox))
        client.send(endpoints.get_running_counts())
        sandbox.control.expire_tokens()
        client.send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200, 200]
        path = "/cloudextraction/task/stats"
        assert [request["status"] for request in sandbox.control.requests(path)] == [200, 401, 200]

    def test_a_newer_stored_token_is_used_instead_of_renewing(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        one = connect(credentials=with_refresh_token(sandbox))
        other = connect(credentials=with_refresh_token(sandbox))
        one.send(endpoints.get_running_counts())
        other.send(endpoints.get_running_counts())
        sandbox.control.expire_tokens()
        one.send(endpoints.get_running_counts())
        other.send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200, 200]

    def test_a_fresh_token_that_is_rejected_too_is_a_clear_error(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        client = connect(credentials=with_refresh_token(sandbox))
        sandbox.control.fail(
            "/cloudextraction/task/stats", times=None, status=401, code="Invalid.Token", message="no"
        )
        with pytest.raises(TokenRejected):
            client.send(endpoints.get_running_counts())
        assert len(sandbox.control.requests("/cloudextraction/task/stats")) == 2

    @pytest.mark.webcollect_sandbox(token_lifetime=1000)
    def test_a_token_is_renewed_before_it_ends_and_each_process_draws_its_own_moment(
        self, sandbox: Sandbox
    ) -> None:
        moments = set()
        for _ in range(20):
            held = Tokens(Credentials(refresh_token="x"), "early", MemoryTokenStore("early"), now=lambda: 0.0)
            held._hold(StoredToken(access_token="a", fingerprint="f", obtained_at=0.0, expires_at=1000.0))
            held._now = lambda: 939.0
            assert held.current() == "a"
            held._now = lambda: 981.0
            assert held.current() is None
            moments.add(held._early)
        assert len(moments) == 20

    def test_an_early_renewal_that_fails_leaves_the_token_in_use_and_is_not_tried_at_every_call(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"early:{sandbox.url}")
        connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        due = changed(store.load(), obtained_at=time.time() - 1e6, expires_at=time.time() + 60)
        store.save(due)
        sandbox.control.clear_requests()
        sandbox.control.fail("/token", times=None, status=500)
        client = connect(credentials=with_refresh_token(sandbox), store=store)
        for _ in range(5):
            client.send(endpoints.get_running_counts())
        assert len(refreshes(sandbox)) == 1

    def test_a_renewal_on_demand_replaces_a_token_that_is_still_good(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        client = connect(credentials=with_refresh_token(sandbox))
        client.send(endpoints.get_running_counts())
        record = client.renew_token().record(time.time())
        assert record.expires_in == pytest.approx(86399, abs=30)
        assert refreshes(sandbox) == [200, 200]
        assert client.context.tokens.current() == record.access_token

    def test_a_renewal_from_a_share_of_the_life_on_leaves_a_young_token_alone(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        client = connect(credentials=with_refresh_token(sandbox))
        young = client.renew_token(after_share=0.5)
        assert client.renew_token(after_share=0.5) == young
        client.context.tokens._now = lambda: time.time() + 50_000
        assert client.renew_token(after_share=0.5) != young
        assert refreshes(sandbox) == [200, 200]

    def test_a_lost_answer_to_a_renewal_is_asked_for_again(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        sandbox.control.fail("/token", kind="drop")
        client = connect(credentials=with_refresh_token(sandbox))
        assert client.send(endpoints.get_running_counts())

    def test_every_token_that_is_learned_is_told_for_masking(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        learned: list[str] = []
        settings = Settings(base_url=sandbox.url, requests_per_second=0)
        store = MemoryTokenStore(f"learn:{sandbox.url}")
        context = make_context(settings, with_refresh_token(sandbox), "learn", store, learned.append)
        client = connect()
        client.context = context
        client.send(endpoints.get_running_counts())
        stored = store.load()
        assert stored is not None
        assert {stored.access_token, stored.refresh_token} <= set(learned)


class TestKeeper:
    def test_a_worker_waits_for_the_keepers_token_and_never_renews(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"keeper:{sandbox.url}")
        worker = connect(credentials=with_refresh_token(sandbox), store=store, token_refresh="keeper")
        reads = 0

        def keeper_renews(seconds: float) -> None:
            nonlocal reads
            reads += 1
            if reads == 3:
                connect(credentials=with_refresh_token(sandbox), store=store).renew_token()

        worker = Client(worker.context, stop=Pauses(keeper_renews))
        assert worker.send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200]

    def test_the_keeper_finds_out_by_itself_that_its_token_is_rejected(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "PATIENCE", 0.1)
        monkeypatch.setattr(renewal, "READ_INTERVAL", 0.01)
        store = MemoryTokenStore(f"rejected:{sandbox.url}")
        keeper = connect(credentials=with_refresh_token(sandbox), store=store, token_refresh="keeper")
        rejected = keeper.renew_token(0.5)
        sandbox.control.expire_tokens()
        worker = connect(credentials=with_refresh_token(sandbox), store=store, token_refresh="keeper")
        with pytest.raises(TokenUnavailable):
            worker.send(endpoints.get_running_counts())
        assert store.load() == rejected
        keeper.renew_token(0.5)
        assert worker.send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200, 200]

    def test_a_service_in_trouble_says_nothing_of_the_keepers_token(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        keeper = connect(credentials=with_refresh_token(sandbox), token_refresh="keeper")
        young = keeper.renew_token(0.5)
        for trouble in ({"status": 500}, {"kind": "html", "status": 401}, {"kind": "drop"}):
            sandbox.control.fail("/cloudextraction/task/stats", **trouble)
            assert keeper.renew_token(0.5) == young
        assert refreshes(sandbox) == [200]

    def test_workers_that_are_rejected_while_the_keeper_renews_write_nothing_over_its_token(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "PATIENCE", 0.1)
        monkeypatch.setattr(renewal, "READ_INTERVAL", 0.01)

        class Recording(MemoryTokenStore):
            written = 0

            def write(self, register: Register, text: str) -> None:
                Recording.written += 1
                super().write(register, text)

        name = f"rejected-together:{sandbox.url}"
        keeper = connect(credentials=with_refresh_token(sandbox), store=MemoryTokenStore(name))
        old = keeper.renew_token()
        worker = connect(
            credentials=with_refresh_token(sandbox), store=Recording(name), token_refresh="keeper"
        )
        worker.send(endpoints.get_running_counts())
        keeper.renew_token()
        worker.send(endpoints.get_running_counts())
        MemoryTokenStore(name).save(old)  # as if it had been read the moment before
        sandbox.control.expire_tokens()
        with pytest.raises(TokenUnavailable):
            worker.send(endpoints.get_running_counts())
        assert Recording.written == 0

    @pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
    def test_a_lost_answer_to_the_keepers_renewal_does_not_end_the_token_that_all_use(
        self, connect: Callable[..., Client], sandbox: Sandbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = MemoryTokenStore(f"lost:{sandbox.url}")

        def keeper_runs() -> StoredToken:
            return connect(credentials=with_refresh_token(sandbox), store=store).renew_token(0.5)

        first = keeper_runs()
        store.save(changed(first, obtained_at=time.time() - 50_000, expires_at=time.time() + 36_000))
        sandbox.control.fail("/token", kind="no_answer")
        with pytest.raises(TokenUnavailable):
            keeper_runs()
        assert keeper_runs().access_token == first.access_token
        assert "renewed later" in caplog.text
        assert connect(credentials=with_refresh_token(sandbox), store=store).send(
            endpoints.get_running_counts()
        )
        assert refreshes(sandbox) == [200, 0]

    def test_a_renewal_whose_answer_was_lost_is_repeated_when_little_can_be_lost_by_it(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"late:{sandbox.url}")
        keeper = connect(credentials=with_refresh_token(sandbox), store=store)
        first = keeper.renew_token()
        store.save(changed(first, obtained_at=time.time() - 91, expires_at=time.time() + 9))
        store.save_note(note(first, RenewalState.DOUBTFUL))
        keeper = connect(credentials=with_refresh_token(sandbox), store=store)
        assert keeper.renew_token(0.5).access_token != first.access_token

    def test_a_worker_without_a_keeper_says_so_after_a_while(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "PATIENCE", 0.3)
        monkeypatch.setattr(renewal, "READ_INTERVAL", 0.02)
        worker = connect(credentials=with_refresh_token(sandbox), token_refresh="keeper")
        with pytest.raises(TokenUnavailable, match="DAG") as error:
            worker.send(endpoints.get_running_counts())
        assert not error.value.permanent
        assert refreshes(sandbox) == []


class TestTogether:
    def test_the_longer_another_process_renews_the_less_often_the_store_is_read(self) -> None:
        claim = RenewalNote(claimant="another", generation=0, fingerprint="", state=RenewalState.CLAIMED)
        world = Alone("slow renewal")
        world.store.save_note(claim)
        world.run(until=60)
        # the token and the claim are read each time
        assert len([at for at in world.read_at if at < 1]) >= 2 * 3
        assert len([at for at in world.read_at if at >= 30]) <= 2 * 30

    @pytest.mark.parametrize("stands_still", [20, 95])
    def test_a_process_that_stood_still_while_it_claimed_sends_no_refresh_token(
        self, stands_still: float
    ) -> None:
        world = Alone("stands still")
        # less than it takes to claim again
        world.run(until=stands_still + 7, stands_still=stands_still)
        assert world.sent_at == []

    def test_a_process_whose_store_is_slow_makes_no_claim_that_others_would_wait_for(self) -> None:
        world = Alone("slow store")
        world.run(until=30, read_takes=1.5)
        assert world.store.load_note() is None
        world.run(until=60)
        assert len(world.sent_at) == 1

    def test_a_process_that_did_not_stand_still_sends_it(self) -> None:
        world = Alone("goes on")
        world.run(until=10)
        assert len(world.sent_at) == 1

    @pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
    def test_thirty_two_processes_of_a_host_renew_an_expired_token_once(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        store_expired(sandbox, tmp_path / "token")
        with Fleet(sandbox, tmp_path / "token", tmp_path, size=32, hosts=1) as fleet:
            assert fleet.call() == [{"ok": True}] * 32
        assert refreshes(sandbox) == [200]

    @pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
    @pytest.mark.timeout(ROUNDS * 60)
    def test_two_hosts_renew_a_token_that_the_service_has_dropped_once(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        store_expired(sandbox, tmp_path / "token")
        with Fleet(sandbox, tmp_path / "token", tmp_path, size=24, hosts=2) as fleet:
            for number in range(1, ROUNDS + 1):
                assert fleet.call() == [{"ok": True}] * 24
                assert refreshes(sandbox) == [200] * number
                sandbox.control.expire_tokens()

    def test_thirty_two_threads_renew_an_expired_token_once(
        self, connect: Callable[..., Client], sandbox: Sandbox, tmp_path: Path
    ) -> None:
        store_expired(sandbox, tmp_path / "token")
        sandbox.control.configure(enforce_limits=False)
        store = SlowFileTokenStore(tmp_path / "token")
        client = connect(credentials=with_refresh_token(sandbox), store=store)
        with ThreadPoolExecutor(32) as threads:
            calls = [threads.submit(client.send, endpoints.get_running_counts()) for _ in range(32)]
            assert all(call.result() for call in calls)
        assert refreshes(sandbox) == [200]

    def test_a_thousand_waiters_of_an_event_loop_renew_an_expired_token_once(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        store_expired(sandbox, tmp_path / "token")

        async def all_at_once() -> None:
            context: ClientContext = make_context(
                Settings(base_url=sandbox.url, requests_per_second=0, retries=Retries(first_wait=0.01)),
                with_refresh_token(sandbox),
                f"loop:{sandbox.url}",
                SlowFileTokenStore(tmp_path / "token"),
            )
            async with AsyncClient(context) as client:
                await asyncio.gather(*(client.send(endpoints.get_running_counts()) for _ in range(1000)))

        sandbox.control.configure(enforce_limits=False)
        asyncio.run(all_at_once())
        assert refreshes(sandbox) == [200]

    @pytest.mark.parametrize("keeper_only", [False, True])
    def test_calls_that_wait_for_a_token_in_vain_wait_side_by_side(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, keeper_only: bool
    ) -> None:
        for patience in ("STORE_PATIENCE", "PATIENCE"):
            monkeypatch.setattr(renewal, patience, 2.0)
        name = f"unreachable:{sandbox.url}"
        store = Unreachable(name)
        settings = Settings(base_url=sandbox.url, token_refresh="keeper" if keeper_only else "auto")

        async def all_at_once() -> list[object]:
            context = make_context(settings, with_refresh_token(sandbox), name, store)
            async with AsyncClient(context.short_retries(1)) as client:
                calls = [client.send(endpoints.get_running_counts()) for _ in range(20)]
                return await asyncio.gather(*calls, return_exceptions=True)

        failures = asyncio.run(all_at_once())
        assert {type(failure) for failure in failures} == {TokenStoreUnavailable}
        assert len(set(map(id, failures))) == 20  # each has a traceback of its own
        # one after the other, they read 60 times or more
        assert store.reads <= 20
        assert refreshes(sandbox) == []

    def test_a_call_that_begins_after_a_failure_tries_again(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "STORE_PATIENCE", 0.1)
        store = Unreachable(f"unreachable:{sandbox.url}")
        client = connect(credentials=with_refresh_token(sandbox), store=store)
        with pytest.raises(TokenStoreUnavailable):
            client.send(endpoints.get_running_counts())
        store.is_reachable = True
        assert client.send(endpoints.get_running_counts())

    def test_a_token_that_ends_in_the_middle_of_a_read_costs_no_page(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        sandbox.control.configure(enforce_limits=False)
        task_id = sandbox.control.add_task(rows=2000, lots=1)["task_id"]
        client = connect(credentials=with_refresh_token(sandbox))
        rows = []
        for number, page in enumerate(page_reader.PageReader(client, task_id, size=10).pages()):
            rows += page.records()
            if number == 100:
                sandbox.control.expire_tokens()
        assert rows == sandbox.control.true_rows(task_id)
        assert refreshes(sandbox) == [200, 200]


class TestLockedOut:
    def test_a_process_that_dies_before_storing_leaves_an_explanation_and_no_hammering(
        self,
        connect: Callable[..., Client],
        sandbox: Sandbox,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(renewal, "ADOPTION", 0.2)
        monkeypatch.setattr(claim, "CLAIM_LIFE", 3.0)
        path = tmp_path / "token"
        arguments = [sandbox.url, sandbox.refresh_token, str(path), "die"]
        died = subprocess.run([sys.executable, str(WORKER), *arguments], check=False, timeout=60, input=b"\n")
        assert died.returncode == 9
        for _ in range(4):
            with pytest.raises(GrantRejected, match="before the new one was stored") as error:
                connect(credentials=with_refresh_token(sandbox), store=SlowFileTokenStore(path)).send(
                    endpoints.get_running_counts()
                )
            assert "Put a new one" in str(error.value)
        assert refreshes(sandbox) == [200, 400]

    def test_login_and_password_heal_a_refused_refresh_token(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "ADOPTION", 0.1)
        credentials = Credentials(refresh_token="spent", login=sandbox.username, password=sandbox.password)
        assert connect(credentials=credentials).send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [400, 200]

    def test_a_newer_token_is_not_lost_to_an_older_record(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"older:{sandbox.url}")
        client = connect(credentials=with_refresh_token(sandbox), store=store)
        client.renew_token()
        newest = client.renew_token()
        store.save(changed(newest, access_token="old", generation=newest.generation - 1))
        sandbox.control.fail("/cloudextraction/task/stats", status=401, code="Invalid.Token", message="no")
        client.send(endpoints.get_running_counts())
        assert store.load().generation == newest.generation + 1
        assert refreshes(sandbox) == [200, 200, 200]

    def test_a_new_token_that_cannot_be_stored_serves_its_process_and_is_stored_later(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "SAVE_PAUSES", (0.01,))
        name = f"unsaved:{sandbox.url}"
        full = Full(name)
        connect(credentials=with_refresh_token(sandbox), store=full).send(endpoints.get_running_counts())
        assert full.load() is None
        store = MemoryTokenStore(name)
        connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        assert store.load() is not None
        assert refreshes(sandbox) == [200]

    def test_a_refresh_token_is_not_spent_where_its_successor_could_not_be_stored(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "STORE_PATIENCE", 0.1)
        broken = Full(f"broken:{sandbox.url}", of=frozenset(Register))
        with pytest.raises(TokenStoreUnavailable):
            connect(credentials=with_refresh_token(sandbox), store=broken).send(
                endpoints.get_running_counts()
            )
        assert refreshes(sandbox) == []

    @pytest.mark.parametrize("life", [0, -5, "2026-12-31T00:00:00Z", "soon", None])
    def test_a_life_that_the_service_states_oddly_is_unknown_and_costs_no_token(
        self, connect: Callable[..., Client], sandbox: Sandbox, life: Any
    ) -> None:
        odd = {"access_token": sandbox.access_token, "refresh_token": "next", "expires_in": life}
        body = json.dumps({"data": odd, "requestId": "1"}).encode()
        sandbox.control.fail("/token", kind="raw", body=body, headers={"Content-Type": "application/json"})
        store = MemoryTokenStore(f"odd:{sandbox.url}")
        for _ in range(2):
            connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        kept = store.load()
        assert kept is not None
        assert (kept.refresh_token, kept.expires_at) == ("next", None)
        assert len(refreshes(sandbox)) == 1

    def test_a_gateway_that_wants_a_token_is_no_refusal_of_the_refresh_token(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        challenge = {"WWW-Authenticate": "Bearer"}
        sandbox.control.fail("/token", kind="raw", status=401, body=b"", headers=challenge)
        client = connect(credentials=with_refresh_token(sandbox))
        with pytest.raises(TokenRejected):
            client.send(endpoints.get_running_counts())
        assert client.send(endpoints.get_running_counts())

    def test_a_reset_reaches_a_process_whose_token_is_refused(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "ADOPTION", 0.1)
        store = MemoryTokenStore(f"reset:{sandbox.url}")
        running = connect(credentials=with_refresh_token(sandbox), store=store)
        running.renew_token()
        running.renew_token()
        sandbox.control.expire_tokens(refresh_tokens=True)
        with pytest.raises(GrantRejected):
            running.send(endpoints.get_running_counts())
        login = Credentials(login=sandbox.username, password=sandbox.password)
        begun = StoredToken(
            access_token=connect(credentials=login, name="again").renew_token().access_token,
            generation=1,
            fingerprint=with_refresh_token(sandbox).fingerprint_at(sandbox.url),
        )
        store.save(begun)
        assert running.send(endpoints.get_running_counts())

    def test_a_host_lock_that_is_never_released_ends_in_an_error_that_a_retry_may_mend(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "PATIENCE", 0.3)
        holder = connect(credentials=with_refresh_token(sandbox))
        assert holder.context.tokens._lock.try_acquire()
        with pytest.raises(TokenUnavailable) as error:
            connect(credentials=with_refresh_token(sandbox)).send(endpoints.get_running_counts())
        assert not error.value.permanent

    @pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
    def test_a_store_that_seems_empty_for_a_moment_costs_no_refresh_token(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        name = f"hiccup:{sandbox.url}"
        connect(credentials=with_refresh_token(sandbox), store=MemoryTokenStore(name)).send(
            endpoints.get_running_counts()
        )
        later = connect(credentials=with_refresh_token(sandbox), store=Hiccup(name, 1))
        assert later.send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200]

    @pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
    def test_a_lost_answer_to_an_early_renewal_does_not_end_the_token_that_still_works(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"lost:{sandbox.url}")
        connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        store.save(changed(store.load(), obtained_at=time.time() - 1e6, expires_at=time.time() + 60))
        sandbox.control.fail("/token", kind="no_answer")
        for _ in range(3):
            client = connect(credentials=with_refresh_token(sandbox), store=store)
            assert client.send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200, 0]

    def test_a_token_endpoint_in_trouble_is_no_reason_to_give_up_for_good(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        sandbox.control.fail("/token", times=2, kind="html", status=503)
        client = connect(credentials=with_refresh_token(sandbox))
        with pytest.raises(TokenUnavailable) as error:
            client.send(endpoints.get_running_counts())
        assert not error.value.permanent
        assert client.send(endpoints.get_running_counts())

    @pytest.mark.parametrize(
        ("status", "code"),
        [(400, "InvalidParameter"), (400, "invalid_grant"), (401, "Invalid.Token"), (400, "Something.New")],
    )
    def test_any_refusal_of_the_token_endpoint_is_one_and_is_not_asked_for_again(
        self,
        connect: Callable[..., Client],
        sandbox: Sandbox,
        monkeypatch: pytest.MonkeyPatch,
        status: int,
        code: str,
    ) -> None:
        monkeypatch.setattr(renewal, "ADOPTION", 0.1)
        sandbox.control.fail("/token", times=None, status=status, code=code, message="no")
        client = connect(credentials=with_refresh_token(sandbox))
        for _ in range(3):
            with pytest.raises(GrantRejected):
                client.send(endpoints.get_running_counts())
        assert len(refreshes(sandbox)) == 1

    def test_an_operation_that_is_refused_with_any_token_does_not_renew_for_ever(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        client = connect(credentials=with_refresh_token(sandbox))
        path = "/cloudextraction/task/stats"
        sandbox.control.fail(path, times=None, status=401, code="Invalid.Token", message="no")
        for _ in range(4):
            with pytest.raises(TokenRejected):
                client.send(endpoints.get_running_counts())
        assert len(refreshes(sandbox)) == 2

    def test_a_refresh_token_that_was_not_sent_is_not_marked_as_refused(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claim, "CLAIM_LIFE", 3.0)
        name = f"unsent:{sandbox.url}"
        store = MemoryTokenStore(name)
        connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        store.save(changed(store.load(), obtained_at=time.time() - 86_400, expires_at=time.time() - 1))
        sandbox.control.expire_tokens()
        late = connect(credentials=with_refresh_token(sandbox), store=Hiccup(name, 4))
        assert late.send(endpoints.get_running_counts())
        assert refreshes(sandbox) == [200, 400, 200]

    def test_a_revoked_session_is_found_out_once_and_for_all_though_its_token_is_young(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "ADOPTION", 0.2)
        store = MemoryTokenStore(f"revoked:{sandbox.url}")
        connect(credentials=with_refresh_token(sandbox), store=store).send(endpoints.get_running_counts())
        sandbox.control.expire_tokens(refresh_tokens=True)
        sandbox.control.clear_requests()
        for _ in range(3):
            with pytest.raises(GrantRejected):
                connect(credentials=with_refresh_token(sandbox), store=store).send(
                    endpoints.get_running_counts()
                )
        assert refreshes(sandbox) == [400]

    def test_a_process_with_the_old_credential_does_not_overwrite_what_came_of_the_new_one(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"replaced:{sandbox.url}")
        old = connect(credentials=with_refresh_token(sandbox), store=store)
        old.send(endpoints.get_running_counts())
        new = Credentials(login=sandbox.username, password=sandbox.password)
        connect(credentials=new, store=store).send(endpoints.get_running_counts())
        kept = store.load()
        sandbox.control.fail("/cloudextraction/task/stats", status=401, code="Invalid.Token", message="no")
        with pytest.raises(TokenUnavailable, match="the connection has a new credential"):
            old.send(endpoints.get_running_counts())
        assert store.load() == kept

    def test_another_service_under_the_same_connection_gets_no_token_of_the_old_one(
        self, connect: Callable[..., Client], sandbox: Sandbox
    ) -> None:
        store = MemoryTokenStore(f"moved:{sandbox.url}")
        credentials = with_refresh_token(sandbox)
        elsewhere = credentials.fingerprint_at("http://127.0.0.1:9")
        store.save(StoredToken(access_token="elsewhere's", fingerprint=elsewhere, obtained_at=time.time()))
        connect(credentials=credentials, store=store).send(endpoints.get_running_counts())
        sent = sandbox.control.requests("/cloudextraction/task/stats")
        assert [request["status"] for request in sent] == [200]

    def test_a_host_without_a_place_for_locks_works_without(
        self, connect: Callable[..., Client], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
        assert connect(credentials=with_refresh_token(sandbox)).send(endpoints.get_running_counts())

    async def test_a_waiter_that_is_cancelled_loses_no_refresh_token(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        sandbox.control.fail("/token", kind="slow", seconds=1)
        settings = Settings(base_url=sandbox.url, requests_per_second=0)
        name = f"cancelled:{sandbox.url}"
        store = MemoryTokenStore(name)
        context = make_context(settings, with_refresh_token(sandbox), name, store)
        async with AsyncClient(context) as waiting:
            call = asyncio.create_task(waiting.send(endpoints.get_running_counts()))
            while store.load_note() is None:
                await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        assert refreshes(sandbox) == [200]
        assert store.load() is not None

    def test_credential_errors_are_permanent(self) -> None:
        assert CredentialError("x").permanent


def changed(token: StoredToken | None, **changes: Any) -> StoredToken:
    assert token is not None
    return msgspec.structs.replace(token, **changes)


def note(token: StoredToken, state: RenewalState) -> RenewalNote:
    """What another process has noted on the renewal of a token."""
    return RenewalNote(
        claimant="another", generation=token.generation, fingerprint=token.fingerprint, state=state
    )
