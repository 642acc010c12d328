"""Processes, threads and coroutines that need a token at once: one renews it, the others wait."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import client as client_module
from airflow_provider_webcollect.service.call import ClientContext
from airflow_provider_webcollect.service.client import THREADS, AsyncClient
from airflow_provider_webcollect.service.errors import GrantRejected, TokenStoreUnavailable, TokenUnavailable
from airflow_provider_webcollect.service.settings import ClientTiming, Credentials
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, RenewalNote, RenewalState
from airflow_provider_webcollect.service.tokens.renewal import Tokens
from tests.interruption import PATIENCE, Pauses, Signalled, signalled_when, until
from tests.service.conftest import Clock
from tests.service.tokens.cases import CALL, SETTINGS, Account, Unreachable, refreshes
from tests.service.tokens.fleet import SlowFileTokenStore, exit_code_of_one_that_dies, fleet, store_expired
from tests.simulation.samples import ALL_HISTORIES

WAITERS = 1000 if ALL_HISTORIES else 100
#: Number of processes of a fleet, and how often their token is dropped.
SIZE, ROUNDS = (32, 20) if ALL_HISTORIES else (8, 2)


class Alone:
    """A process that needs a token from a shared store; time passes only while it waits for anything."""

    def __init__(self, name: str) -> None:
        world = self
        self.now = self._until = self._stands_still = self._read_takes = self._write_takes = 0.0
        self.read_at: list[float] = []
        self.sent_at: list[float] = []

        class Shared(MemoryTokenStore):
            write_bound = 2.0
            shows, writes = True, 0
            #: Returns the note of another process, given the seconds since this process last wrote.
            rival: Callable[[float], RenewalNote | None] | None = None
            wrote_at = -math.inf

            def read(self, register: Register) -> str | None:
                world.read_at.append(world.now)
                world.now += world._read_takes
                if self.rival is not None and register is Register.RENEWAL:
                    note = self.rival(world.now - self.wrote_at)
                    return msgspec.json.encode(note).decode() if note else None
                return super().read(register) if self.shows else None

            def write(self, register: Register, text: str) -> None:
                self.writes += 1
                world.now += world._write_takes
                self.wrote_at = world.now
                super().write(register, text)

        self.store = Shared(name)
        self._tokens = Tokens(
            Credentials(refresh_token="x"), SETTINGS, name, self.store, clock=lambda: self.now
        )

    def run(
        self, until: float, stands_still: float = 0.0, read_takes: float = 0.0, write_takes: float = 0.0
    ) -> None:
        """Let it try to get a token.

        :param until: time, in seconds, from which on it is not followed any more.
        :param stands_still: seconds for which it is suspended after it has written its claim.
        :param read_takes: seconds that a read of the store takes.
        :param write_takes: seconds that a write takes.
        """
        self._until, self._stands_still = until, stands_still
        self._read_takes, self._write_takes = read_takes, write_takes
        with contextlib.suppress(TimeIsUp):
            self._tokens.obtain(self, None, self._tokens.failures)

    def sleep(self, seconds: float) -> None:
        if self.now >= self._until:
            raise TimeIsUp
        self.now += seconds
        if self.store.writes:
            self.now, self._stands_still = self.now + self._stands_still, 0.0

    def send(self, call: Any) -> Any:
        self.sent_at.append(self.now)
        raise TimeIsUp


class TimeIsUp(BaseException):
    """The process is not followed any more."""


def noted(state: RenewalState, claimant: str = "another", newest: int = 0) -> RenewalNote:
    return RenewalNote(claimant=claimant, lineage="", token="", state=state, newest=newest)


def test_the_store_is_read_less_often_as_a_renewal_takes_longer() -> None:
    world = Alone("slow renewal")
    world.store.save(noted(RenewalState.CLAIMED))
    world.run(until=60)
    # the token and the claim are read each time
    assert len([at for at in world.read_at if at < 1]) >= 2 * 3
    assert len([at for at in world.read_at if at >= 30]) <= 2 * 30


@pytest.mark.parametrize(
    ("delays", "said"),
    [
        ({"stands_still": 20}, "claiming the renewal"),
        ({"stands_still": 95}, "claiming the renewal"),
        ({"write_takes": 2.5}, r"took 2\.5 s.*token_store_timeout"),
    ],
)
def test_a_process_that_was_slow_to_claim_sends_nothing(delays: dict[str, float], said: str) -> None:
    world = Alone(f"slow claim: {delays}")
    with pytest.raises(TokenStoreUnavailable, match=said):
        world.run(until=155, **delays)
    assert world.sent_at == []


def test_a_process_with_a_slow_store_makes_no_claim() -> None:
    world = Alone("slow store")
    with pytest.raises(TokenStoreUnavailable, match=r"took 1\.5 s.*token_store_timeout"):
        world.run(until=60, read_takes=1.5)
    assert world.store.load_note() is None
    world.run(until=120)
    assert len(world.sent_at) == 1


@pytest.mark.parametrize(
    ("at_the_same_time", "said"),
    [(False, "another process to renew the token"), (True, "claimed the renewal at the same time")],
)
def test_a_wait_in_vain_says_what_the_others_do(at_the_same_time: bool, said: str) -> None:
    world, names = Alone(f"contended: {said}"), itertools.count()

    def claim(since_the_own_one: float) -> RenewalNote | None:
        if at_the_same_time and since_the_own_one > 3.1:
            return None
        return noted(RenewalState.CLAIMED, claimant=str(next(names)))

    world.store.rival = claim
    with pytest.raises(TokenUnavailable, match=f"waited for .*{said}"):
        world.run(until=300)
    assert world.sent_at == []


def test_a_store_that_loses_writes_is_named_at_once() -> None:
    world = Alone("of another team")
    world.store.shows = False
    for _ in range(3):
        with pytest.raises(TokenStoreUnavailable, match="multi_team"):
            world.run(until=60)
    assert (world.store.writes, world.sent_at) == (1, [])
    assert world.now < 5


@pytest.mark.parametrize(
    ("is_late", "stands_still", "runs"),
    [
        # if reads miss the newer token for longer than `late_reads`, 30 s, it counts as deleted
        (True, 0, [(0, 25, 0), (25, 80, 1)]),
        (True, 0, [(0, 5, 0), (1000, 1025, 0), (1025, 1080, 1)]),
        (True, 50, [(0, 70, 0)]),
        (False, 0, [(0, 10, 1)]),
    ],
    ids=["late", "late again", "stood still meanwhile", "not late"],
)
def test_a_replaced_token_is_not_spent_again_by_a_late_store(
    is_late: bool, stands_still: float, runs: list[tuple[float, float, int]]
) -> None:
    world = Alone(f"late: {runs}")
    if is_late:
        world.store.save(noted(RenewalState.RELEASED, newest=1))
    for begin, until_then, sent in runs:
        world.now = max(world.now, begin)
        world.run(until=until_then, stands_still=stands_still)
        assert len(world.sent_at) == sent


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_processes_of_two_hosts_renew_each_token_once(sandbox: Sandbox, tmp_path: Path) -> None:
    store_expired(sandbox, tmp_path / "token")
    with fleet(sandbox, tmp_path / "token", SIZE) as call:
        for number in range(1, ROUNDS + 1):
            assert call() == ["ok"] * SIZE
            assert refreshes(sandbox) == [200] * number
            sandbox.control.expire_tokens()


def test_a_process_that_dies_before_storing_is_explained(account: Account, tmp_path: Path) -> None:
    store_expired(account.sandbox, tmp_path / "token")
    assert exit_code_of_one_that_dies(account.sandbox, tmp_path / "token") == -signal.SIGKILL
    for _ in range(4):
        with pytest.raises(GrantRejected, match="before the new one was stored") as error:
            account.process(store=SlowFileTokenStore(tmp_path / "token")).send(CALL)
        assert "Put a new `refresh_token`" in str(error.value)
    assert account.refreshes == [200, 400]


def test_waiters_of_an_event_loop_renew_a_token_once(account: Account, clock: Clock, tmp_path: Path) -> None:
    store_expired(account.sandbox, tmp_path / "token")
    account.sandbox.control.configure(enforce_limits=False)
    context = account.process(store=SlowFileTokenStore(tmp_path / "token")).context
    assert not [came for came in sent_together(context, clock, WAITERS) if isinstance(came, Exception)]
    assert account.refreshes == [200]


@pytest.mark.parametrize("token_refresh", ["auto", "keeper"])
def test_calls_wait_for_a_token_side_by_side(account: Account, clock: Clock, token_refresh: str) -> None:
    store = Unreachable(account.name)
    timing = ClientTiming(patience=2.0, store_patience=2.0)
    context = account.process(store=store, token_refresh=token_refresh, timing=timing).context
    failures = sent_together(context.short_retries(1), clock, 20)
    assert {type(failure) for failure in failures} == {TokenStoreUnavailable}
    assert len(set(map(id, failures))) == 20  # each has a traceback of its own
    # one after the other, they would read 60 times or more
    assert store.reads <= 20
    assert account.refreshes == []


class SlowToStore(MemoryTokenStore):
    """Says when it begins to store a token, and does so once it may go on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.storing, self.goes_on = threading.Event(), threading.Event()

    def write(self, register: Register, text: str) -> None:
        if register is Register.TOKEN:
            self.storing.set()
            assert self.goes_on.wait(PATIENCE)
        super().write(register, text)


def test_a_signal_while_a_new_token_is_stored_does_not_lose_it(account: Account) -> None:
    store = SlowToStore(account.name)

    class Interruption(Signalled):
        def __init__(self) -> None:
            super().__init__()
            store.goes_on.set()

    with pytest.raises(Interruption), signalled_when(store.storing.is_set, Interruption):
        account.process(store=store).send(CALL)
    assert store.load() is not None
    assert account.process(store=store).send(CALL)
    assert account.refreshes == [200]


def test_a_signal_before_the_renewal_is_sent_leaves_it_unsent(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "INTERRUPTED_RENEWAL", 0.0)
    store = SlowFileTokenStore(tmp_path / "token")
    goes_on = threading.Event()
    client = account.process(store=store, stop=Pauses(lambda seconds: goes_on.wait(PATIENCE)))
    with pytest.raises(Signalled), signalled_when(store.load_note):
        client.send(CALL)
    goes_on.set()
    client.close()  # which waits for the thread of the renewal
    assert account.refreshes == []
    assert account.process(store=store).send(CALL)


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "left by its event loop"])
def test_a_call_that_ends_during_a_renewal_loses_no_token(account: Account, is_cancelled: bool) -> None:
    store = SlowToStore(account.name)
    context = account.process(store=store).context

    async def begin_and_end() -> None:
        call = asyncio.create_task(AsyncClient(context).send(CALL))
        while not store.storing.is_set():
            await asyncio.sleep(0.01)
        if is_cancelled:
            call.cancel()
            await asyncio.wait([call])
        assert call.done() is is_cancelled

    asyncio.run(begin_and_end())
    store.goes_on.set()
    until(store.load)  # the thread goes on without the event loop
    assert account.refreshes == [200]


def sent_together(context: ClientContext, clock: Clock, count: int) -> list[Any]:
    """Send ``count`` calls from one event loop at once; return the results and the errors."""
    begun: list[str] = []

    class WatchedTokens(Tokens):
        def __getattribute__(self, name: str) -> Any:
            if name == "failures":  # a call reads this number when it begins to wait for a token
                begun.append(name)
            return super().__getattribute__(name)

    def pause(seconds: float) -> None:
        clock.sleep(seconds)
        # meanwhile, all other calls begin to wait
        until(lambda: len(begun) >= min(count, THREADS))

    context.tokens.__class__ = WatchedTokens

    async def all_at_once() -> list[Any]:
        async with AsyncClient(context, stop=Pauses(pause)) as client:
            return await asyncio.gather(*(client.send(CALL) for _ in range(count)), return_exceptions=True)

    return asyncio.run(all_at_once())
