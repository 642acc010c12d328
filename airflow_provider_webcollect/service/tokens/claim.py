"""The claim on the renewal of a token: a lock that at most one process holds, over all hosts.

The token's store can be read and written, but has no compare-and-set. That is enough if a write takes a
bounded time (Fischer's algorithm):

1. Read the note. Stop if it has a claim that has not expired, or if reading took half of the store's
   ``write_bound``: the write would probably take too long as well.
2. Write a claim. If 1 and 2 together took longer than ``write_bound``, other processes may have claimed and
   checked meanwhile: treat the claim just written as another process's.
3. Wait longer than ``write_bound``. By then, each process that read the note before this claim was visible
   has written its own claim.
4. Read the note again. The process whose claim is still there may renew, unless 1 to 4 took so long that
   others may soon take its claim for expired.

A claim ends when its owner writes the outcome, or ``CLAIM_LIFE`` seconds after an observer first saw it, by
the observer's own clock. The owner may have been killed after it sent the refresh token, so the state after
an expired claim is doubtful.

A store that only one process uses has no ``write_bound``: its claims are made under a lock of the process.

Two cases are not covered: a process that is suspended for longer than ``CLAIM_LIFE`` between its last reading
of the clock and its next request or write, and a store whose write takes effect later than that.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import threading
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.service.errors import Stopped, TokenStoreUnavailable
from airflow_provider_webcollect.service.flow import Blocking, Flow, Sleep
from airflow_provider_webcollect.service.pauses import Notice
from airflow_provider_webcollect.service.tokens.state import RenewalNote, RenewalState

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.service.tokens.store import TokenStore

log = logging.getLogger(__name__)

#: Seconds after which a claim expires, in addition to the time for claiming: longer than its owner takes to
#: send (SEND_WITHIN, and the limits of the client's ``token_sender``) and to store.
CLAIM_LIFE = 55.0
#: Seconds after the check of its claim in which a process may send the refresh token.
SEND_WITHIN = 5.0
#: The wait between writing a claim and checking it, and the longest time for claiming, as multiples of the
#: store's ``write_bound``.
MARGIN, CLAIMING = 1.5, 4.0
#: Seconds after which a refused refresh token may be sent again: the refusal may have been a mistake.
REFUSAL_LIFE = 3600.0
#: Seconds between the attempts to write how a renewal has ended.
SETTLE_PAUSES = (0.5, 2.0)

_in_this_process = threading.Lock()


class RenewalClaim:
    """This process's claims on one connection's renewals.

    :param store: where the processes share the note.
    :param lineage: of the connection's own credential.
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
        self._seen: tuple[str, float] = ("", 0.0)
        self._life = CLAIM_LIFE + CLAIMING * (store.write_bound or 0.0)
        self._began = self._checked_at = 0.0
        self._note: RenewalNote | None = None
        self._found: RenewalNote | None = None
        self._before = RenewalState.RELEASED
        #: The claimant's name in the last claim that was made sure of.
        self._own = ""
        #: Whether a claim was written that cannot be read; no other is written then.
        self.is_unseen = False
        #: The newest generation that was certainly stored, as far as the note says.
        self.newest = 0
        #: The state to write if the renewal ends without a new token; at first the state before the claim.
        self.outcome = RenewalState.RELEASED

    def read(self, token: str) -> Flow[RenewalState]:
        """Return the state of the exchange of a refresh token; an expired claim is DOUBTFUL.

        :param token: digest of the refresh token.
        :raises TokenStoreUnavailable: if the store cannot be read.
        """
        self._found = yield Blocking(self._store.load_note)
        return self._state(self._found, token)

    def _state(self, note: RenewalNote | None, token: str) -> RenewalState:
        if note is None:
            return RenewalState.RELEASED
        self.newest = max(self.newest, note.newest)
        state = note.state
        if state is RenewalState.CLAIMED:
            if note.claimant == self._own:
                state = self.outcome  # left behind by this process, which renews once at a time
            elif self._is_alive(note):
                return state  # whatever is exchanged: a claim written late may have replaced a valid one
            else:
                state = RenewalState.DOUBTFUL
        if note.token != token:
            return RenewalState.RELEASED
        if state is RenewalState.REFUSED:
            if note.lineage != self._lineage:
                return RenewalState.RELEASED  # a person has put this token into the connection again
            if abs(self._now() - note.at) >= REFUSAL_LIFE:
                return RenewalState.DOUBTFUL
        return state

    def acquire(self, token: str) -> Flow[bool]:
        """Claim the renewal; return whether this process, and no other, may exchange a refresh token now.

        :param token: digest of the refresh token.
        :raises TokenStoreUnavailable: if the claim cannot be stored, nobody can read it, or the store is too
            slow; nothing must be sent then.
        """
        if self.is_unseen:
            raise _unseen()
        began, bound = self._clock(), self._store.write_bound
        claim = RenewalNote(
            claimant=secrets.token_hex(8),
            lineage=self._lineage,
            token=token,
            state=RenewalState.CLAIMED,
            at=self._now(),
        )
        if bound is None:
            before: RenewalState = yield Blocking(functools.partial(self._take, claim))
            if before is RenewalState.CLAIMED:
                return False
        else:
            before = yield from self.read(token)
            if before is RenewalState.CLAIMED:
                return False
            if (took := self._clock() - began) > bound / 2:
                raise _too_slow("a read of the token store took", took, bound / 2)
            claim = msgspec.structs.replace(claim, newest=self.newest)
            yield Blocking(functools.partial(self._store.save_note, claim))
            if (took := self._clock() - began) > bound:
                raise _too_slow("a read and a write of the token store took", took, bound)
            pause = bound * MARGIN
            Notice(log).give(pause, "Making sure for %.1f s that no other process renews the token.", pause)
            yield Sleep(pause)
            visible: RenewalNote | None = yield Blocking(self._store.load_note)
            if visible is None:
                self.is_unseen = True
                raise _unseen()
            if visible != claim:
                return False
            if (took := self._clock() - began) > bound * CLAIMING:
                raise _too_slow("claiming the renewal in the token store took", took, bound * CLAIMING)
        self._note, self._began, self._checked_at = claim, began, self._clock()
        self._before = self.outcome = before
        self._own = claim.claimant
        return True

    def _take(self, claim: RenewalNote) -> RenewalState:
        """Claim in a store that only this process uses; return the state before."""
        with _in_this_process:
            self._found = self._store.load_note()
            before = self._state(self._found, claim.token)
            if before is not RenewalState.CLAIMED:
                self._store.save_note(msgspec.structs.replace(claim, newest=self.newest))
            return before

    def may_send(self) -> bool:
        """Return whether the claim is recent enough to send the refresh token."""
        return self._clock() - self._checked_at < SEND_WITHIN

    def settle(self) -> Flow[None]:
        """End the claim, and write the outcome."""
        if self._note is None:
            return
        note = msgspec.structs.replace(self._note, state=self.outcome, newest=self.newest, at=self._now())
        if self._found and self._found.state is not RenewalState.CLAIMED and self.outcome is self._before:
            # nothing was sent; the note before, perhaps on another refresh token, is still valid
            note = msgspec.structs.replace(self._found, newest=self.newest)
        self._note = None
        for pause in (*SETTLE_PAUSES, None):
            if self._clock() - self._began >= self._life:
                return  # another process may have claimed meanwhile
            try:
                yield Blocking(functools.partial(self._store.save_note, note))
            except TokenStoreUnavailable as error:
                if pause is None:
                    log.warning("How the renewal of the token ended is not noted; others wait. %s", error)
                    return
                with contextlib.suppress(Stopped):
                    yield Sleep(pause)
            else:
                return

    def _is_alive(self, note: RenewalNote) -> bool:
        if self._seen[0] != note.claimant:
            self._seen = (note.claimant, self._clock())
        return self._clock() - self._seen[1] < self._life


def _too_slow(what: str, took: float, limit: float) -> TokenStoreUnavailable:
    return TokenStoreUnavailable(
        f"{what} {took:.1f} s, and for a safe renewal it may take {limit:.1f} s: make the store faster, or "
        "set a higher `[webcollect] token_store_timeout` for all processes"
    )


def _unseen() -> TokenStoreUnavailable:
    return TokenStoreUnavailable(
        "what was written to the token store cannot be read: with `[core] multi_team`, a Variable of one "
        "team is not visible to the triggerer and to other teams"
    )
