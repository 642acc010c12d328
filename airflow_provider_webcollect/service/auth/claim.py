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

Two cases are not covered: a process that is suspended for longer than ``CLAIM_LIFE`` between its last reading
of the clock and its next request or write, and a store whose write takes effect later than that.
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

#: Seconds after which a claim expires, in addition to the time for claiming: longer than its owner takes to
#: send (SEND_WITHIN, and the limits of the client's ``token_sender``) and to store.
CLAIM_LIFE = 90.0
#: Seconds after the check of its claim in which a process may send the refresh token.
SEND_WITHIN = 10.0
#: The wait between writing a claim and checking it, and the longest time for claiming, as multiples of the
#: store's ``write_bound``.
MARGIN, CLAIMING = 1.5, 4.0


class RenewalClaim:
    """This process's claims on one connection's renewals.

    :param store: where the processes share the note.
    :param fingerprint: of the connection's own credential.
    :param clock: a monotonic clock, in seconds.
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
        #: The state to write if the renewal ends without a new token; at first the state before the claim.
        self.outcome = RenewalState.RELEASED

    def read(self, generation: int) -> Flow[RenewalState]:
        """Return the state of the renewal of ``generation``; an expired claim is DOUBTFUL.

        :raises TokenStoreUnavailable: if the store cannot be read.
        """
        note: RenewalNote | None = yield Blocking(self._store.load_note)
        return self._state(note, generation)

    def _state(self, note: RenewalNote | None, generation: int) -> RenewalState:
        if note is None:
            return RenewalState.RELEASED
        # of any generation: a claim that was written late may have replaced one that is still valid
        if note.state is RenewalState.CLAIMED and self._is_alive(note):
            return RenewalState.CLAIMED
        if (note.fingerprint, note.generation) != (self._fingerprint, generation):
            return RenewalState.RELEASED
        return RenewalState.DOUBTFUL if note.state is RenewalState.CLAIMED else note.state

    def acquire(self, generation: int) -> Flow[bool]:
        """Claim the renewal; return whether this process, and no other, may renew ``generation`` now.

        :raises TokenStoreUnavailable: if the claim cannot be stored; nothing must be sent then.
        """
        began = self._clock()
        found: RenewalNote | None = yield Blocking(self._store.load_note)
        before = self._state(found, generation)
        if before is RenewalState.CLAIMED:
            return False
        bound = self._store.write_bound
        if bound is not None and self._clock() - began > bound / 2:
            return False  # others would wait for a claim that is in vain
        claim = RenewalNote(
            claimant=secrets.token_hex(8),
            generation=generation,
            fingerprint=self._fingerprint,
            state=RenewalState.CLAIMED,
        )
        yield Blocking(functools.partial(self._store.save_note, claim))
        if bound is not None:
            if self._clock() - began > bound:
                return False
            pause = bound * MARGIN
            Notice(log).give(pause, "Making sure for %.1f s that no other process renews the token.", pause)
            yield Sleep(pause)
            is_replaced = (yield Blocking(self._store.load_note)) != claim
            if is_replaced or self._clock() - began > bound * CLAIMING:
                return False
        self._note, self._began, self._checked_at, self.outcome = claim, began, self._clock(), before
        self._found = found if found and found.state is not RenewalState.CLAIMED else None
        return True

    def may_send(self) -> bool:
        """Return whether the claim is recent enough to send the refresh token."""
        return self._clock() - self._checked_at < SEND_WITHIN

    def settle(self) -> Flow[None]:
        """End the claim, and write the outcome."""
        if self._note is None or self._clock() - self._began >= self._life:
            return  # another process may have claimed meanwhile
        note = msgspec.structs.replace(self._note, state=self.outcome)
        if self._found is not None and self.outcome is RenewalState.RELEASED:
            note = self._found  # the note before, which may be of another generation, is still valid
        self._note = None
        try:
            yield Blocking(functools.partial(self._store.save_note, note))
        except TokenStoreUnavailable as error:
            log.warning("How the renewal of the token ended is not noted; others will wait. %s", error)

    def _is_alive(self, note: RenewalNote) -> bool:
        if self._seen[0] != note.claimant:
            self._seen = (note.claimant, self._clock())
        return self._clock() - self._seen[1] < self._life
