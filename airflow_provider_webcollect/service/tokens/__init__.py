"""What the processes of a connection share: the token, the claim on its renewal, and the store of both.

The claim is a lock that at most one process holds, across all hosts. The store can be read and written, but
has no compare-and-set. That is enough if a write takes a bounded time (Fischer's algorithm):

1. Read the note. Stop if it has a claim that has not expired, or if reading took more than half of the
   store's ``write_bound``: the write would probably take too long as well.
2. Write a claim. If steps 1 and 2 together took longer than ``write_bound``, other processes may have claimed
   and checked meanwhile: treat the new claim like the claim of another process.
3. Wait longer than ``write_bound``. By then, each process that read the note before this claim was visible
   has written its own claim.
4. Read the note again. The process whose claim is still there may renew the token, unless so much time has
   passed that other processes may soon regard its claim as expired.

A claim ends when its owner writes the outcome, or ``CLAIM_LIFE`` seconds (and the time for claiming) after an
observer first saw it, by the observer's own clock. The owner may have been killed after it sent the refresh
token, so the state after an expired claim is doubtful.

A store that only one process uses has no ``write_bound``: its claims are written under a lock of the process.

Two cases are not covered: a process that is suspended for longer than ``CLAIM_LIFE`` between its last reading
of the clock and its next request or write, and a store whose write takes effect later than that.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import math
import os
import secrets
import threading
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from airflow_provider_webcollect.service.errors import Stopped, TokenStoreUnavailable
from airflow_provider_webcollect.service.models import TokenRecord
from airflow_provider_webcollect.service.settings import digest
from airflow_provider_webcollect.service.threads import ThrottledLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

#: Seconds between the attempts at a write that must not be lost: the service issues each token only once, and
#: other processes wait for the end of a claim.
WRITE_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
#: Seconds after which a claim expires, in addition to the time for claiming: longer than its owner takes to
#: send the refresh token (SEND_WITHIN, and ``client.TOKEN_LIMITS``) and to store the new one.
CLAIM_LIFE = 55.0
#: Seconds, in addition to the time for claiming, after which a claimant sends nothing any more.
SEND_WITHIN = 5.0
#: The wait between writing a claim and checking it, and the longest time for claiming, as multiples of the
#: store's ``write_bound``.
MARGIN, CLAIMING = 1.5, 4.0

S = TypeVar("S", bound=msgspec.Struct)

_in_this_process = threading.Lock()


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """An access token in the shared store. Its repr shows no token.

    :ivar generation: the previous token's generation + 1, so the order of tokens does not depend on the
        hosts' clocks; 0 for the connection's own token.
    :ivar obtained_at: Unix time, by the clock of the host that obtained the token.
    :ivar expires_at: Unix time at which the access token expires, by the same clock; None if not known.
    :ivar lineage: the digest of the credential that this token descends from (``Credentials.lineage_at``).
    :ivar spent: digests of the refresh tokens and of the lineages that were used up before under this
        connection, the oldest first. A refresh token among them is never sent.
    :ivar stored_by: the host and the process that obtained the token; None for the connection's own token.
    """

    access_token: str
    refresh_token: str | None = None
    generation: int = 0
    obtained_at: float = 0.0
    expires_at: float | None = None
    lineage: str
    spent: tuple[str, ...] = ()
    stored_by: str | None = None

    def __repr__(self) -> str:
        return (
            f"StoredToken(generation={self.generation}, expires_at={self.expires_at}, "
            f"lineage={self.lineage!r})"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("generation", self.generation), ("expires_at", self.expires_at)]

    def is_newer_than(self, other: StoredToken | None) -> bool:
        """Return whether this token is of a later generation than ``other``; True if that is None."""
        return other is None or self.generation > other.generation

    def descends_from(self, lineage: str) -> bool:
        """Return whether a connection with the credential ``lineage`` continues with this token.

        The connection may hold any refresh token of the token's lineage: a person may have copied a later
        one into it.
        """
        begun = self.spent.index(self.lineage) if self.lineage in self.spent else 0
        own = (digest(self.refresh_token),) if self.refresh_token else ()
        return lineage in {self.lineage, *own, *self.spent[begun:]}

    def age_share(self, now: float) -> float:
        """Return the share of the token's lifetime that has passed; 1.0 if that is not known."""
        if self.expires_at is None or self.expires_at <= self.obtained_at:
            return 1.0
        return (now - self.obtained_at) / (self.expires_at - self.obtained_at)

    def has_ended(self, now: float) -> bool:
        """Return whether the token is known to have expired."""
        return self.expires_at is not None and self.obtained_at < self.expires_at <= now

    def record(self, now: float) -> TokenRecord:
        """Return the token as a response of the service at the Unix time ``now`` would have it."""
        return TokenRecord(
            access_token=self.access_token,
            expires_in=None if self.expires_at is None or self.expires_at <= now else self.expires_at - now,
            token_type="Bearer",
            refresh_token=self.refresh_token,
        )


#: Seconds after which a refused refresh token may be sent again: the refusal may have been a mistake.
REFUSAL_LIFE = 3600.0


class RenewalState(StrEnum):
    """The state of the exchange of one refresh token."""

    CLAIMED = "claimed"
    RELEASED = "released"
    DOUBTFUL = "doubtful"
    REFUSED = "refused"


class TokenStep(Enum):
    """The next step of a process to get a token. The value of a step that waits says what it waits for."""

    USE = "the token in memory"
    WAIT = "another process to renew the token"
    READ_AGAIN = "the token store to return what was stored last"
    EXCHANGE = "the refresh token"
    LOG_IN = "login and password"
    REFUSE = "nothing to obtain a token with"


def next_step(
    state: RenewalState,
    *,
    is_good: bool,
    is_usable: bool,
    is_late: bool,
    has_refresh_token: bool,
    has_login: bool,
) -> TokenStep:
    """Return the next step, by the first table of :mod:`.renewal`; EXCHANGE and LOG_IN need the claim.

    :param state: the state of the exchange of the next refresh token.
    :param is_good: whether the token in memory needs no renewal.
    :param is_usable: whether the token in memory may be used while a renewal has to wait.
    :param is_late: whether the store lacks a newer token that was certainly stored.
    :param has_refresh_token: whether there is a refresh token that is not spent.
    :param has_login: whether the connection has login and password.
    """
    if is_good:
        return TokenStep.USE
    if state is RenewalState.CLAIMED or is_late:
        if is_usable:
            return TokenStep.USE
        return TokenStep.WAIT if state is RenewalState.CLAIMED else TokenStep.READ_AGAIN
    may_send = state is RenewalState.RELEASED or (state is RenewalState.DOUBTFUL and not has_login)
    if has_refresh_token and may_send:
        return TokenStep.EXCHANGE
    return TokenStep.LOG_IN if has_login else TokenStep.REFUSE


class RenewalNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note that says which process renews the token, or how the renewal ended. It contains no secret.

    :ivar claimant: a random name for one attempt of one process.
    :ivar lineage: the lineage of the credential in the claimant's connection.
    :ivar token: digest of the refresh token to be exchanged; empty if there is none.
    :ivar state: the state of that exchange.
    :ivar newest: the newest generation of a token that was certainly stored.
    :ivar at: Unix time by the claimant's clock.
    """

    claimant: str
    lineage: str
    token: str
    state: RenewalState
    newest: int = 0
    at: float = 0.0

    def state_for(self, lineage: str, now: float) -> RenewalState:
        """Return the state of the exchange for a connection; a refusal counts for ``REFUSAL_LIFE`` seconds.

        :param lineage: the lineage of the connection's own credential.
        :param now: Unix time.
        """
        if self.state is RenewalState.REFUSED:
            if self.token == lineage != self.lineage:
                return RenewalState.RELEASED  # a person has put this token into the connection again
            if abs(now - self.at) >= REFUSAL_LIFE:
                return RenewalState.DOUBTFUL
        return self.state


class Register(StrEnum):
    """The names of the two texts that a store keeps for a connection."""

    TOKEN = "token"
    RENEWAL = "renewal"


class TokenStore(abc.ABC):
    """Two texts that all processes of a connection can read and replace; no compare-and-set is needed.

    The token and the note on its renewal are separate texts, so a late write of the note cannot replace a
    newer token.

    :ivar write_bound: maximum number of seconds that a write takes. Every reader must see the new text at
        most a quarter of this time after the write has returned. Claims on the renewal rely on both. None for
        a store that only one process uses.
    """

    write_bound: float | None = 2.0

    @abc.abstractmethod
    def read(self, register: Register) -> str | None:
        """Return a text, or None if there certainly is none; raise any exception if that is not known."""

    @abc.abstractmethod
    def write(self, register: Register, text: str) -> None:
        """Replace a text; raise any exception if it may not have been written."""

    def load(self) -> StoredToken | None:
        """Return the shared token, or None if there certainly is none.

        :raises TokenStoreUnavailable: if the store cannot be read, or its content is not a token.
        """
        return self._decoded(Register.TOKEN, StoredToken)

    def load_note(self) -> RenewalNote | None:
        """Return the note on the renewal; raises as :meth:`load` does."""
        return self._decoded(Register.RENEWAL, RenewalNote)

    def save(self, record: StoredToken | RenewalNote) -> None:
        """Replace the shared token, or the note on its renewal.

        :raises TokenStoreUnavailable: if it may not have been written.
        """
        register = Register.TOKEN if isinstance(record, StoredToken) else Register.RENEWAL
        try:
            self.write(register, msgspec.json.encode(record).decode())
        except Exception as error:
            unavailable = TokenStoreUnavailable(
                f"the connection's {register} cannot be stored: {type(error).__name__}"
            )
        else:
            return
        # raised outside the handler: it must not refer to the frames whose variables hold the token
        raise unavailable

    def _decoded(self, register: Register, kind: type[S]) -> S | None:
        try:
            text = self.read(register)
        except Exception as error:
            raise TokenStoreUnavailable(
                f"the connection's {register} cannot be read: {type(error).__name__}"
            ) from error
        try:
            return msgspec.json.decode(text, type=kind) if text and text.strip() else None
        except Exception:  # for example nested too deeply, or not a text
            text = ""  # it may hold a token, and some tracebacks show variables
        # this does not count as an empty store: the connection's own refresh token may be used up long since
        raise TokenStoreUnavailable(
            f"what is stored as the connection's {register} cannot be read; delete it to begin again"
        )


def write_again(write: Callable[[], None], sleep: Callable[[float], None]) -> TokenStoreUnavailable | None:
    """Write to a store; if that fails, repeat it after each of WRITE_PAUSES.

    :param sleep: waits for a number of seconds. Once it raises ``Stopped``, there are no more pauses.
    :return: the error of the last attempt; None if an attempt succeeded.
    """
    for pause in (*WRITE_PAUSES, None):
        try:
            write()
        except TokenStoreUnavailable as error:
            if pause is None:
                return error
            log.warning("The next attempt to write to the token store follows in %.1f s. %s", pause, error)
            with contextlib.suppress(Stopped):
                sleep(pause)
        else:
            break
    return None


class MemoryTokenStore(TokenStore):
    """Shares the token within this process only.

    :param name: stores with the same name share one token.
    """

    write_bound: float | None = None
    _shared: ClassVar[dict[tuple[str, Register], str]] = {}

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, register: Register) -> str | None:
        return self._shared.get((self._name, register))

    def write(self, register: Register, text: str) -> None:
        self._shared[self._name, register] = text


class FileTokenStore(TokenStore):
    """Shares the token between the processes of a user, in files that only that user can read.

    :param path: path of the token's file; the file of the note has the same path with another suffix. Missing
        folders are created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, register: Register) -> str | None:
        try:
            return self._file(register).read_text()
        except FileNotFoundError:
            return None

    def write(self, register: Register, text: str) -> None:
        """Replace the stored text; readers see either the old text or the new one, even after a crash."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = self._path.with_suffix(f".{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._file(register))
        finally:
            unfinished.unlink(missing_ok=True)

    def _file(self, register: Register) -> Path:
        return self._path if register is Register.TOKEN else self._path.with_suffix(f".{register}")


class RenewalClaim:
    """This process's claims on the renewals of one connection's token.

    :param store: the store in which the processes share the note.
    :param lineage: the lineage of the connection's own credential.
    :param clock: a monotonic clock, in seconds.
    :param now: the wall clock, in Unix time.
    """

    def __init__(
        self, store: TokenStore, lineage: str, clock: Callable[[], float], now: Callable[[], float]
    ) -> None:
        self._store = store
        self._lineage = lineage
        self._clock = clock
        self._now = now
        self._claiming = CLAIMING * (store.write_bound or 0.0)
        #: The claimant that was seen last, and the time at which it was first seen.
        self._seen: tuple[str, float] = ("", 0.0)
        #: The note that was read last, in which an expired claim is DOUBTFUL; None if there was none, or only
        #: this process's own claim.
        self._note: RenewalNote | None = None
        #: This process's last confirmed claim, and the time at which claiming began.
        self._claim: RenewalNote | None = None
        self._began = 0.0
        #: The last note on each refresh token: the current note may be on another credential's refresh token.
        self._known: dict[str, RenewalNote] = {}
        #: A claim that this process wrote too late to be safe, and the reason: like all processes, it waits
        #: for the end of that claim.
        self._late: tuple[RenewalNote | None, str] = (None, "")
        #: Whether this process wrote a claim that cannot be read; it then writes no other.
        self.is_unseen = False
        #: The newest generation of a token that was certainly stored, as far as the notes show.
        self.newest = 0
        #: The state of the refresh token that this process has sent; None if it has certainly sent none.
        self.outcome: RenewalState | None = None

    def read(self, token: str) -> RenewalState:
        """Return the state of the exchange of a refresh token; an expired claim is DOUBTFUL.

        :param token: digest of the refresh token.
        :raises TokenStoreUnavailable: if the store cannot be read, or has a claim that this process was too
            slow to write.
        """
        note = self._store.load_note()
        if note is not None:
            self.newest = max(self.newest, note.newest)
            if note == self._claim:
                note = None  # this process's own claim, whose outcome it could not write
            elif note.state is RenewalState.CLAIMED and not self._is_alive(note):
                note = msgspec.structs.replace(note, state=RenewalState.DOUBTFUL)
            elif note == self._late[0]:
                raise TokenStoreUnavailable(self._late[1])
        self._note = note
        if note is not None and note.state is RenewalState.CLAIMED:
            return note.state  # for any refresh token: a claim written late may have replaced a valid one
        if note is not None:
            self._known[note.token] = note
        latest = self._known.get(token)
        return latest.state_for(self._lineage, self._now()) if latest else RenewalState.RELEASED

    def acquire(self, token: str, sleep: Callable[[float], None]) -> RenewalState:
        """Claim the renewal, so that only this process may exchange a refresh token now.

        :param token: digest of the refresh token.
        :param sleep: waits for a number of seconds.
        :return: the state of the exchange before the claim; CLAIMED if another process has the claim.
        :raises TokenStoreUnavailable: if the claim cannot be stored, if it cannot be read afterwards, or if
            the store is too slow; nothing must be sent then.
        """
        if self.is_unseen:
            raise _unseen()
        alone = self._store.write_bound is None
        bound = self._store.write_bound or math.inf
        with _in_this_process if alone else contextlib.nullcontext():
            began = self._clock()
            state = self.read(token)
            if state is RenewalState.CLAIMED:
                return state
            self._check_pace("a read of the token store", began, bound / 2)
            claim = RenewalNote(
                claimant=secrets.token_hex(8),
                lineage=self._lineage,
                token=token,
                state=RenewalState.CLAIMED,
                newest=self.newest,
                at=self._now(),
            )
            self._store.save(claim)
        if not alone:
            try:
                self._check_pace("a read and a write of the token store", began, bound)
            except TokenStoreUnavailable as too_slow:
                # others may have claimed and checked meanwhile, so this claim cannot be withdrawn
                self._late = (claim, too_slow.message)
                raise
            pause = bound * MARGIN
            ThrottledLog(log).log(
                pause, "Waiting %.0f s in case another process is renewing the token.", pause
            )
            sleep(pause)
            visible = self._store.load_note()
            if visible is None:
                self.is_unseen = True
                raise _unseen()
            if visible != claim:
                return RenewalState.CLAIMED
        self._claim, self._began, self.outcome = claim, began, None
        return state

    def check_recent(self) -> None:
        """Check that the claim is recent enough to send a request.

        :raises TokenStoreUnavailable: if it is not.
        """
        self._check_pace("claiming the renewal", self._began, self._claiming + SEND_WITHIN)

    def is_valid(self) -> bool:
        """Return whether other processes wait for the end of this process's claim."""
        return self._clock() - self._began < self._claiming + CLAIM_LIFE

    def end(self, sleep: Callable[[float], None]) -> None:
        """End the claim: write the outcome or, if nothing was sent, the note as it was before.

        :param sleep: waits for a number of seconds.
        """
        assert self._claim is not None, "it was acquired"
        # the previous note may be on another refresh token
        before = self._note or self._known.get(self._claim.token)
        if self.outcome is None and before is not None:
            end = before
        else:
            state = self.outcome or RenewalState.RELEASED
            end = msgspec.structs.replace(self._claim, state=state, at=self._now())
        self._known[end.token] = end = msgspec.structs.replace(end, newest=self.newest)

        def write() -> None:
            if self.is_valid():  # otherwise another process may have claimed meanwhile
                self._store.save(end)

        if error := write_again(write, sleep):
            log.warning("The outcome of the renewal could not be stored; other processes wait. %s", error)

    def _is_alive(self, note: RenewalNote) -> bool:
        if self._seen[0] != note.claimant:
            self._seen = (note.claimant, self._clock())
        return self._clock() - self._seen[1] < self._claiming + CLAIM_LIFE

    def _check_pace(self, what: str, began: float, limit: float) -> None:
        if (took := self._clock() - began) > limit:
            raise TokenStoreUnavailable(
                f"{what} took {took:.1f} s, but a safe renewal allows only {limit:.1f} s: make the token "
                "store faster, or set a higher `[webcollect] token_store_timeout` for all processes"
            )


def _unseen() -> TokenStoreUnavailable:
    return TokenStoreUnavailable(
        "what was written to the token store cannot be read: with `[core] multi_team`, a Variable of one "
        "team is not visible to the triggerer and to other teams"
    )
