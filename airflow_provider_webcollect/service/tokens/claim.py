"""The claim on the renewal of a token: a lock that at most one process holds, over all hosts.

The token's store can be read and written, but has no compare-and-set. That is enough if a write takes a
bounded time (Fischer's algorithm):

1. Read the note. Stop if it has a claim that has not expired, or if reading took half of the store's
   ``write_bound``: the write would probably take too long as well.
2. Write a claim. If 1 and 2 together took longer than ``write_bound``, other processes may have claimed and
   checked meanwhile: treat the claim just written as another process's.
3. Wait longer than ``write_bound``. By then, each process that read the note before this claim was visible
   has written its own claim.
4. Read the note again. The process whose claim is still there may renew, unless it comes to send so late that
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
import logging
import math
import secrets
import threading
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.service.errors import TokenStoreUnavailable
from airflow_provider_webcollect.service.threads import Notice
from airflow_provider_webcollect.service.tokens import RenewalNote, RenewalState, TokenStore, write_again

if TYPE_CHECKING:
    from collections.abc import Callable


log = logging.getLogger(__name__)

#: Seconds after which a claim expires, in addition to the time for claiming: longer than its owner takes to
#: send (SEND_WITHIN, and ``client.TOKEN_LIMITS``) and to store.
CLAIM_LIFE = 55.0
#: Seconds, in addition to the time for claiming, after which a claimant sends nothing any more.
SEND_WITHIN = 5.0
#: The wait between writing a claim and checking it, and the longest time for claiming, as multiples of the
#: store's ``write_bound``.
MARGIN, CLAIMING = 1.5, 4.0

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
        self._claiming = CLAIMING * (store.write_bound or 0.0)
        #: The claimant seen last, and when it was seen first.
        self._seen: tuple[str, float] = ("", 0.0)
        #: The note as it was read, with what its claim means to this process.
        self._note: RenewalNote | None = None
        #: The last claim that was confirmed, and when it began.
        self._claim: RenewalNote | None = None
        self._began = 0.0
        #: The last note on each refresh token: a later one may be on that of another credential.
        self._known: dict[str, RenewalNote] = {}
        #: A claim that was written too late to be safe, and why: this process waits for its end, as all do.
        self._late: tuple[RenewalNote | None, str] = (None, "")
        #: Whether a claim was written that cannot be read; no other is written then.
        self.is_unseen = False
        #: The newest generation that was certainly stored, as far as the note says.
        self.newest = 0
        #: The state of the refresh token that the claimant has sent; None if it has certainly sent none.
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
                note = None  # left behind by this process, which could not write how it ended
            elif note.state is RenewalState.CLAIMED and not self._is_alive(note):
                note = msgspec.structs.replace(note, state=RenewalState.DOUBTFUL)
            elif note == self._late[0]:
                raise TokenStoreUnavailable(self._late[1])
        self._note = note
        if note is not None and note.state is RenewalState.CLAIMED:
            return note.state  # whatever is exchanged: a claim written late may have replaced a valid one
        if note is not None:
            self._known[note.token] = note
        latest = self._known.get(token)
        return latest.state_for(self._lineage, self._now()) if latest else RenewalState.RELEASED

    def acquire(self, token: str, sleep: Callable[[float], None]) -> RenewalState:
        """Claim the renewal, so that this process, and no other, may exchange a refresh token now.

        :param token: digest of the refresh token.
        :param sleep: waits for a number of seconds.
        :return: the state of its exchange until now; CLAIMED if another process has the claim.
        :raises TokenStoreUnavailable: if the claim cannot be stored, nobody can read it, or the store is too
            slow; nothing must be sent then.
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
                # others may have claimed and checked meanwhile, so it cannot be taken back
                self._late = (claim, too_slow.message)
                raise
            pause = bound * MARGIN
            Notice(log).give(pause, "Waiting %.0f s in case another process is renewing the token.", pause)
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
        """Check that the claim is recent enough to send something.

        :raises TokenStoreUnavailable: otherwise.
        """
        self._check_pace("claiming the renewal", self._began, self._claiming + SEND_WITHIN)

    def lives(self) -> bool:
        """Return whether other processes wait for the end of this process's claim."""
        return self._clock() - self._began < self._claiming + CLAIM_LIFE

    def end(self, sleep: Callable[[float], None]) -> None:
        """End the claim: write the outcome, or the note as it was before, if nothing was sent.

        :param sleep: waits for a number of seconds.
        """
        assert self._claim is not None, "it was acquired"
        # the note as it was may be on another refresh token
        before = self._note or self._known.get(self._claim.token)
        if self.outcome is None and before is not None:
            end = before
        else:
            state = self.outcome or RenewalState.RELEASED
            end = msgspec.structs.replace(self._claim, state=state, at=self._now())
        self._known[end.token] = end = msgspec.structs.replace(end, newest=self.newest)

        def write() -> None:
            if self.lives():  # otherwise another process may have claimed meanwhile
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
                f"{what} took {took:.1f} s, and for a safe renewal it may take {limit:.1f} s: make the token "
                "store faster, or set a higher `[webcollect] token_store_timeout` for all processes"
            )


def _unseen() -> TokenStoreUnavailable:
    return TokenStoreUnavailable(
        "what was written to the token store cannot be read: with `[core] multi_team`, a Variable of one "
        "team is not visible to the triggerer and to other teams"
    )
