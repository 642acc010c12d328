"""The right to renew a token: of one process at a time, over all hosts.

The token's store can be read and written, but not compared and set. That is enough where a write takes a
bounded time (Fischer's algorithm):

1. Read the note. Go on if nobody's claim is alive.
2. Write a claim. If 1 and 2 together took longer than the store's ``write_bound``, others may have claimed
   and checked meanwhile: go on as if the claim just written were somebody else's.
3. Wait longer than ``write_bound``. Whoever has read before our claim could be seen has written by then.
4. Read the note again. The one whose claim stands may renew.

A claim ends when its owner notes what became of it, or ``CLAIM_LIFE`` seconds after an observer saw it first,
by the observer's own clock. Its owner may have been killed after it had sent the refresh token, so what
follows an expired claim is doubt.

What remains: a process that stands still for longer than ``CLAIM_LIFE`` between its last reading of the clock
and its next request or write, and a store whose write takes effect later than that.
"""

from __future__ import annotations

import functools
import logging
import secrets
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.service.auth.token import RenewalNote, RenewalState
from airflow_provider_webcollect.service.errors import TokenStoreUnavailable
from airflow_provider_webcollect.service.flow import Blocking, Flow, Sleep
from airflow_provider_webcollect.service.pauses import Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.service.auth.store import TokenStore

log = logging.getLogger(__name__)

#: Seconds after which a claim is nobody's any more, beside what the claiming itself takes: longer than its
#: owner takes to send (SEND_WITHIN, and what ``token_sender`` of the client allows) and to store.
CLAIM_LIFE = 90.0
#: Seconds after its claim was checked until which a process may send the refresh token.
SEND_WITHIN = 10.0
#: The wait between writing a claim and checking it, as a multiple of the store's ``write_bound``; and what
#: the claiming takes at most.
MARGIN, CLAIMING = 1.5, 3.0


class RenewalClaim:
    """This process's claims on one connection's renewals.

    :param store: where the note is shared.
    :param fingerprint: of the connection's own credential.
    :param clock: a clock that only moves forward, in seconds.
    """

    def __init__(self, store: TokenStore, fingerprint: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._clock = clock
        self._seen: tuple[str, float] = ("", 0.0)
        self._life = CLAIM_LIFE + CLAIMING * (store.write_bound or 0.0)
        self._began = self._checked_at = 0.0
        self._note: RenewalNote | None = None
        self._found: RenewalNote | None = None
        #: What to note when the renewal ends without a new token; at first what was known before the claim.
        self.outcome = RenewalState.RELEASED

    def read(self, generation: int) -> Flow[RenewalState]:
        """Return how the renewal of ``generation`` stands; an expired claim is DOUBTFUL.

        :raises TokenStoreUnavailable: if the store cannot tell.
        """
        note: RenewalNote | None = yield Blocking(self._store.load_note)
        return self._state(note, generation)

    def _state(self, note: RenewalNote | None, generation: int) -> RenewalState:
        if note is None:
            return RenewalState.RELEASED
        # of whatever generation: one that was written late may have replaced a claim that still counts
        if note.state is RenewalState.CLAIMED and self._is_alive(note):
            return RenewalState.CLAIMED
        if (note.fingerprint, note.generation) != (self._fingerprint, generation):
            return RenewalState.RELEASED
        return RenewalState.DOUBTFUL if note.state is RenewalState.CLAIMED else note.state

    def acquire(self, generation: int) -> Flow[bool]:
        """Return whether this process, and no other, may renew ``generation`` now.

        :raises TokenStoreUnavailable: if the store does not take the claim; nothing must be sent then.
        """
        began = self._clock()
        found: RenewalNote | None = yield Blocking(self._store.load_note)
        before = self._state(found, generation)
        if before is RenewalState.CLAIMED:
            return False
        claim = RenewalNote(
            claimant=secrets.token_hex(8),
            generation=generation,
            fingerprint=self._fingerprint,
            state=RenewalState.CLAIMED,
        )
        yield Blocking(functools.partial(self._store.save_note, claim))
        if self._store.write_bound is not None:
            if self._clock() - began > self._store.write_bound:
                return False
            pause = self._store.write_bound * MARGIN
            Notice(log).give(pause, "Making sure for %.1f s that no other process renews the token.", pause)
            yield Sleep(pause)
            if (yield Blocking(self._store.load_note)) != claim:
                return False
        self._note, self._began, self._checked_at, self.outcome = claim, began, self._clock(), before
        self._found = found if found and found.state is not RenewalState.CLAIMED else None
        return True

    def may_send(self) -> bool:
        """Return whether the claim is young enough for the refresh token to be sent."""
        return self._clock() - self._checked_at < SEND_WITHIN

    def settle(self) -> Flow[None]:
        """End the claim, and note the outcome."""
        if self._note is None or self._clock() - self._began >= self._life:
            return  # somebody else may have claimed meanwhile
        note = msgspec.structs.replace(self._note, state=self.outcome)
        if self._found is not None and self.outcome is RenewalState.RELEASED:
            note = self._found  # what was noted before, of another generation say, still holds
        self._note = None
        try:
            yield Blocking(functools.partial(self._store.save_note, note))
        except TokenStoreUnavailable as error:
            log.warning("How the renewal of the token ended is not noted; others will wait. %s", error)

    def _is_alive(self, note: RenewalNote) -> bool:
        if self._seen[0] != note.claimant:
            self._seen = (note.claimant, self._clock())
        return self._clock() - self._seen[1] < self._life
