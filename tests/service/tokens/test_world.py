"""Whatever the order, the clocks and the failures: no refresh token is spent twice, and none is lost.

Processes on two hosts share a token, and everything fails at random. Time, the store, the service and the
order of steps are simulated; the package makes all decisions. A history follows from its number alone,
so one that fails can be repeated.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pytest
from greenlet import GreenletExit, getcurrent, greenlet

from airflow_provider_webcollect.service import errors
from airflow_provider_webcollect.service.models import TokenRecord
from airflow_provider_webcollect.service.settings import Credentials
from airflow_provider_webcollect.service.tokens import Register, StoredToken, TokenStore, renewal
from airflow_provider_webcollect.service.tokens.renewal import Tokens
from tests.service.tokens.cases import SETTINGS
from tests.simulation.clock import Timeline
from tests.simulation.samples import histories


def test_no_history_loses_or_spends_twice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(renewal, "_unsaved", {})
    caplog.set_level("CRITICAL")
    for number in histories("tokens", 2080, by_day=40):
        world = World(number)
        try:
            world.run()
            was_alive = world.is_alive()
            world.settle()
            works = all("ok" in process.results for process in world.processes)
            assert works or not was_alive, "the fleet does not work within two calls"
        except AssertionError as error:
            pytest.fail(f"WEBCOLLECT_HISTORY={number}: {error}\n" + "\n".join(world.log[-60:]))
        finally:
            world.end()


T = TypeVar("T")

#: Seconds of a history, and of an access token's life.
LENGTH, LIFE = 9000.0, 3600.0
#: Maximum seconds by which a host's clock is wrong.
LONGEST_SKEW = 600.0
#: Maximum seconds for which the store seems empty.
LONGEST_HICCUP = 20.0
#: Maximum seconds of an exchange, of a slow access to the store, of an outage of the store, and of a process
#: that stands still.
LONGEST_EXCHANGE, SLOWEST_WRITE, LONGEST_OUTAGE, LONGEST_STALL = 20.0, 8.0, 12.0, 150.0


@dataclass
class Sent:
    """One sending of a refresh token: the sender, and the state of the response."""

    by: Process
    life: int
    state: str = "under way"
    #: The refresh token in the response.
    successor: str | None = None

    def may_be_answered(self) -> bool:
        """Return whether a process or the store has the successor, or may yet get it."""
        alive = self.by.life == self.life
        return self.state == "stored" or (alive and self.state in {"under way", "answered"})


class Service:
    """Hands out tokens; a refresh token works once."""

    def __init__(self, revokes: bool, odd_lives: bool, chance: random.Random) -> None:
        self.revokes, self.odd_lives, self.chance = revokes, odd_lives, chance
        self.numbers = itertools.count(1)
        self.living: dict[str, int] = {}
        self.spent: dict[str, int] = {}
        self.access: dict[str, tuple[int, float]] = {}

    def new_lineage(self) -> str:
        """Return a new refresh token, which a person puts into the connection."""
        number = next(self.numbers)
        self.living[f"r{number}"] = number
        return f"r{number}"

    def exchange(self, refresh_token: str, now: float) -> TokenRecord:
        lineage = self.living.pop(refresh_token, None)
        if lineage is None:
            if self.revokes and (lineage := self.spent.get(refresh_token)):
                self.living = {token: of for token, of in self.living.items() if of != lineage}
                self.access = {token: grant for token, grant in self.access.items() if grant[0] != lineage}
            raise errors.RequestRejected("spent", status=400, code="Invalid.Grant")
        self.spent[refresh_token] = lineage
        number = next(self.numbers)
        self.living[f"r{number}"] = lineage
        self.access[f"a{number}"] = (lineage, now + LIFE)
        life = None if self.odd_lives and self.chance.random() < 0.3 else LIFE
        return TokenRecord(access_token=f"a{number}", refresh_token=f"r{number}", expires_in=life)

    def accepts(self, access_token: str, now: float) -> bool:
        return access_token in self.access and now < self.access[access_token][1]


class Texts:
    """The registers that all processes share; their earlier texts are kept for stale reads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history: dict[Register, list[tuple[float, str]]] = {register: [] for register in Register}
        self.empty_until = 0.0
        self.fails_until = 0.0

    def read(self, register: Register, staleness: float) -> str | None:
        if register is Register.TOKEN and self.world.now < self.empty_until:
            return None
        seen = [text for at, text in self.history[register] if at <= self.world.now - staleness]
        return seen[-1] if seen else None

    def write(self, register: Register, text: str) -> None:
        if register is Register.TOKEN:
            self.world.check_order(msgspec.json.decode(text, type=StoredToken))
        self.history[register].append((self.world.now, text))

    def newest(self) -> StoredToken | None:
        texts = self.history[Register.TOKEN]
        return msgspec.json.decode(texts[-1][1], type=StoredToken) if texts else None


class SharedStore(TokenStore):
    """The texts, as one process reads and writes them; other processes go on meanwhile."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def read(self, register: Register) -> str | None:
        world = self.process.world
        # a read may miss texts that were written within the last half second
        return world.access_store(
            self.process,
            lambda: world.texts.read(
                register, world.chance.uniform(0, 0.5) if world.chance.random() < 0.3 else 0.0
            ),
        )

    def write(self, register: Register, text: str) -> None:
        world = self.process.world

        def take_effect() -> None:
            world.texts.write(register, text)
            if register is Register.TOKEN:
                world.note_stored(msgspec.json.decode(text, type=StoredToken))

        world.access_store(self.process, take_effect, is_write=True)


@dataclass(eq=False)
class Process:
    """A process that calls the service now and then, and itself sends its renewals."""

    world: World
    name: str
    skew: float
    #: Whether it renews the token at half of its life, as a keeper does.
    renews: bool = False
    life: int = 0
    unsaved: dict[str, StoredToken] = field(default_factory=dict)
    #: The access token that the service rejected in the current call.
    rejected: str | None = None
    running: greenlet | None = None
    results: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Begin with the credential that the connection has now."""
        self.tokens = Tokens(
            Credentials(refresh_token=self.world.credential),
            SETTINGS,
            "connection",
            SharedStore(self),
            now=lambda: self.world.now + self.skew,
            clock=lambda: self.world.now,
        )

    def kill(self) -> None:
        self.life += 1
        if self.running is not None:
            self.world.killed.append(self.running)
            self.running = None
        self.unsaved = {}

    def call(self) -> None:
        """Do what a client does: get a token, use it, replace it if it is rejected."""
        self.rejected = None
        if self.renews:
            self.tokens.renew(self, 0.5, self._is_accepted)
        for _ in range(4):
            token = self.tokens.current(self.rejected)
            if token is None:
                token = self.tokens.obtain(self, self.rejected, self.tokens.failures)
            if self._use(token):
                return
            self.rejected = token
        raise errors.TokenRejected("one token after the other")

    def send(self, call: Any) -> TokenRecord:
        return self.world.exchange(self, call.body["refresh_token"])

    def sleep(self, seconds: float) -> None:
        self.world.wait(self, seconds + self.world.stall(self))

    def _use(self, token: str) -> bool:
        self.world.wait(self, 0.05)
        return self.world.service.accepts(token, self.world.now)

    def _is_accepted(self, token: str) -> bool:
        accepted = self._use(token)
        self.rejected = None if accepted else token
        return accepted


class World(Timeline):
    """Runs one history.

    :ivar faults: the probability that a step goes wrong.
    """

    def __init__(self, number: int) -> None:
        super().__init__(now=1_000_000.0)
        self.chance = random.Random(number)
        random.seed(number)  # decides when each process renews
        self.faults = 0.04
        self.log: list[str] = []
        self.service = Service(self.chance.random() < 0.7, self.chance.random() < 0.3, self.chance)
        self.texts = Texts(self)
        self.killed: list[greenlet] = []
        self.sent: dict[str, list[Sent]] = {}
        self.credential, self.is_changed = self.service.new_lineage(), False
        skews = [self.chance.uniform(-LONGEST_SKEW, LONGEST_SKEW) for _ in range(2)]
        self.processes = [Process(self, f"p{number}", skews[number % 2]) for number in range(4)]
        self.processes[0].renews = self.chance.random() < 0.5
        for process in self.processes:
            process.start()

    def run(self) -> None:
        """Let things go wrong for a while."""
        end = self.now + LENGTH
        for process in self.processes:
            self.after(self.chance.uniform(0, 5), functools.partial(self.call_now_and_then, process, end))
        for trouble in (
            self.drop,
            self.drop_twice,
            self.kill,
            self.change_credential,
            self.enter_again,
            self.hiccup,
            self.outage,
        ):
            for _ in range(self.chance.choice((0, 0, 1, 3))):
                self.after(self.chance.uniform(0, LENGTH), trouble)
        self.pass_time()

    def settle(self) -> None:
        """Let nothing go wrong any more, and have every process make two calls, or three."""
        self.faults = 0.0
        self.now += 120.0
        for process in self.processes:
            process.results.clear()
        # a process with an old credential finds that out by its first call
        for _ in range(3 if self.is_changed else 2):
            for process in self.processes:
                self.after(self.chance.uniform(0, 3), functools.partial(self.call, process))
            self.pass_time()

    def is_alive(self) -> bool:
        """Return whether a refresh token that still works has survived where the processes could find it."""
        candidates = [self.credential]
        lineage = Credentials(refresh_token=self.credential).lineage_at("")
        held = [process.tokens._held for process in self.processes]
        for token in (self.texts.newest(), *held):
            if token is not None and token.lineage == lineage:
                candidates.append(str(token.refresh_token))
        newest = self.texts.newest()
        if newest is not None and newest.lineage != lineage and lineage in newest.spent:
            return False  # a spent credential was entered again after it was replaced: a person has to act
        if newest is not None and newest.lineage == lineage:
            candidates.remove(self.credential)
        return any(token in self.service.living for token in candidates)

    def end(self) -> None:
        """End all processes, wherever they wait; otherwise the threads that they have begun would not end."""
        for process in self.processes:
            process.kill()
        for running in self.killed:
            running.throw()

    def goes_wrong(self) -> bool:
        return self.chance.random() < self.faults

    # troubles

    def drop(self) -> None:
        self.log.append(f"{self.now:.2f} the service drops its access tokens")
        self.service.access.clear()
        for process in self.processes:
            self.after(self.chance.uniform(0, 0.5), functools.partial(self.call, process))

    def drop_twice(self) -> None:
        self.drop()
        self.after(self.chance.uniform(0, 8), self.drop)

    def kill(self) -> None:
        self.kill_one(self.chance.choice(self.processes))

    def kill_one(self, process: Process) -> None:
        self.log.append(f"{self.now:.2f} {process.name} is killed")
        process.kill()
        process.start()

    def change_credential(self) -> None:
        self.credential = self.service.new_lineage()
        self.is_changed = True
        self.log.append(f"{self.now:.2f} a person sets {self.credential}")

    def enter_again(self) -> None:
        # no refused one, since it is rightly sent again when a person enters it again
        spent = [token for token, sendings in self.sent.items() if any(s.state == "stored" for s in sendings)]
        if spent:
            self.credential = self.chance.choice(spent)
            self.is_changed = True
            self.log.append(f"{self.now:.2f} a person sets {self.credential} again, which is spent")

    def hiccup(self) -> None:
        self.log.append(f"{self.now:.2f} the store seems empty")
        self.texts.empty_until = self.now + self.chance.uniform(0.1, LONGEST_HICCUP)

    def outage(self) -> None:
        self.log.append(f"{self.now:.2f} the store is out of order")
        self.texts.fails_until = self.now + self.chance.uniform(0.1, LONGEST_OUTAGE)

    # processes

    def call_now_and_then(self, process: Process, end: float) -> None:
        if self.now > end:
            return
        if process.running is None:
            self.call(process)
        together = self.chance.random() < 0.5
        gap = 60 - self.now % 60 if together else self.chance.uniform(1, 400)
        self.after(gap + self.chance.uniform(0, 0.3), functools.partial(self.call_now_and_then, process, end))

    def call(self, process: Process) -> None:
        if process.running is None:
            if process.tokens._held is None:
                process.start()  # it reads the connection when it first needs it
            process.running = greenlet(functools.partial(self.run_call, process))
            self.go_on_with(process, process.running)

    def run_call(self, process: Process) -> None:
        """Run a call, in the process's own greenlet."""
        try:
            process.call()
        except errors.WebCollectError as failure:
            self.ended(process, f"{type(failure).__name__}: {failure}")
            # go on with the connection as it is now, or as it was a while ago
            if not self.faults or self.chance.random() < 0.7:
                process.start()
        else:
            self.ended(process, "ok")

    def go_on_with(self, process: Process, running: greenlet) -> None:
        """Let a process run until it waits, unless it was killed meanwhile."""
        if process.running == running:
            renewal._unsaved = process.unsaved
            running.switch()

    def wait(self, process: Process, seconds: float) -> None:
        """Let other processes go on for some seconds; a process that was killed does not come back."""
        running = getcurrent()
        if process.running != running:
            # the world has ended, and Python cleans up: nothing done now has an effect
            raise GreenletExit
        self.after(seconds, functools.partial(self.go_on_with, process, running))
        running.parent.switch()

    def stall(self, process: Process) -> float:
        """Return for how many seconds a process stands still: 0 while it alone has a new token."""
        sent = [sending for sendings in self.sent.values() for sending in sendings if sending.by is process]
        if any(sending.state == "answered" and sending.life == process.life for sending in sent):
            return 0.0
        if not self.goes_wrong():
            return 0.0
        return self.chance.uniform(1, LONGEST_STALL)

    def ended(self, process: Process, result: str) -> None:
        process.running = None
        process.results.append(result)
        if result != "ok":
            self.log.append(f"{self.now:.2f} {process.name} {result[:60]}")

    def access_store(self, process: Process, access: Callable[[], T], *, is_write: bool = False) -> T:
        duration = (
            self.chance.uniform(0.005, 0.1) if self.chance.random() < 0.9 else self.chance.uniform(0, 1)
        )
        fails, is_slow = self.goes_wrong(), self.goes_wrong()
        if is_slow:
            duration = self.chance.uniform(1, SLOWEST_WRITE)
        if fails and is_write and duration > 1:
            fails = False  # no process can notice that a failed write takes effect much later
        is_out_of_order = self.now < self.texts.fails_until
        outcome: list[T] = []
        # an access that fails may have taken effect
        if not is_out_of_order and (not fails or self.chance.random() < 0.5):
            # it takes effect even if the process is killed meanwhile
            self.after(duration * self.chance.random(), lambda: outcome.append(access()))
        self.wait(process, duration)
        if fails or is_out_of_order:
            raise OSError("out of order")
        return outcome[0]

    def exchange(self, process: Process, token: str) -> TokenRecord:
        sent = Sent(process, process.life)
        before = self.sent.setdefault(token, [])
        earlier = [(sending.by.name, sending.state) for sending in before]
        self.log.append(f"{self.now:.2f} {process.name} sends {token}; before: {earlier}")
        if any(sending.may_be_answered() for sending in before):
            self.fail(f"{token} is sent twice")
        if any(sending.state != "unsent" for sending in before) and self.has_use_for(process):
            self.fail(f"{token} is sent again without need")
        before.append(sent)
        if self.goes_wrong():
            # while the token is sent, or soon after
            self.after(self.chance.uniform(0, 2), functools.partial(self.kill_one, process))
        fate = self.chance.choice(("unsent", "lost", "unanswered", "slow")) if self.goes_wrong() else "well"
        duration = (
            self.chance.uniform(0.1, 1) if fate == "well" else self.chance.uniform(0.1, LONGEST_EXCHANGE)
        )
        outcome: list[TokenRecord | errors.RequestRejected] = []

        def arrive() -> None:
            try:
                outcome.append(self.service.exchange(token, self.now))
            except errors.RequestRejected as refusal:
                outcome.append(refusal)

        if fate not in {"unsent", "lost"}:
            self.after(duration * self.chance.random(), arrive)
        self.wait(process, duration)
        if fate == "unsent":
            sent.state = "unsent"
            raise errors.ServiceUnreachable("no route")
        if fate in {"lost", "unanswered"}:
            sent.state = "lost"
            raise errors.OutcomeUnknown("no answer")
        if isinstance(outcome[0], errors.RequestRejected):
            sent.state = "refused"
            raise outcome[0]
        sent.state, sent.successor = "answered", outcome[0].refresh_token
        return outcome[0]

    # what must hold

    def fail(self, message: str) -> None:
        """End the history from the greenlet of a process, whose own error handlers must not run."""
        getcurrent().parent.throw(AssertionError(message))

    def has_use_for(self, process: Process) -> bool:
        """Return whether a process could go on with the access token that it holds."""
        held, now = process.tokens._held, self.now + process.skew
        if held is None or held.access_token == process.rejected or held.has_ended(now):
            return False
        # a keeper may send it again when little of the access token's life is left
        return not process.renews or held.expires_at is None or held.age_share(now) < renewal.LATE_SHARE

    def check_order(self, token: StoredToken) -> None:
        newest = self.texts.newest()
        self.log.append(f"{self.now:.2f} stored: generation {token.generation}, {token.refresh_token}")
        assert newest is None or token.generation >= newest.generation, "a newer record is replaced"

    def note_stored(self, token: StoredToken) -> None:
        for sendings in self.sent.values():
            for sent in sendings:
                if sent.state == "answered" and sent.successor == token.refresh_token:
                    sent.state = "stored"
