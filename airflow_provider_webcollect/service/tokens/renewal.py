"""Access tokens: one credential that all processes share, renewed by one of them at a time.

Refresh tokens count as single-use, and sending a used one may revoke all tokens (assumptions.md, Tokens). So
a process sends one only while it holds the claim (:mod:`.claim`), and after a successful write to the store.
It sends the same one again only if the first request certainly did not arrive, or if no valid access token is
left to lose. One whose digest the record has among the spent ones is never sent.

The state of the token decides what a process does:

| State | Known by | Without the claim | With it |
|---|---|---|---|
| fresh | the record's times | use it | use it |
| due | little of its lifetime is left | use it while another process has the claim | renew |
| ended | no record, expired, or rejected | wait for the claimant's record | renew |
| late | the note names a newer generation | use it; else read again, for ``late_reads`` | do not send |
| doubtful | the claim expired, or the note says: response lost | use it to its end | renew after its end |
| refused | the note says so, for an hour | use it to its end | login and password, else `GrantRejected` |
| superseded | the record is of another lineage, and ours is spent | `TokenUnavailable` | `TokenUnavailable` |

| Event, with the claim | Next state | The refresh token |
|---|---|---|
| a new token | fresh: the next generation is stored, and the claim released | is used up |
| certainly not sent, or an unknown refusal | as before | is kept |
| response lost, access token valid | doubtful | is sent again only after the access token's end |
| response lost, access token ended | as the second response says, else doubtful | is sent once more |
| refused by a known code | fresh if a newer record appears, else refused | may be sent again after an hour |
| killed | doubtful, by the expired claim | as for a lost response |

If the connection has login and password, they are used instead of sending a doubtful refresh token again.

Records are ordered by generation; a record never replaces one of a higher generation. A connection goes on
with the record if that descends from its credential (:meth:`.StoredToken.descends_from`). A credential that
the record knows nothing of is new: it begins a lineage of its own, with the next generation.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import os
import random
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    CredentialError,
    GrantRejected,
    LoginRejected,
    OutcomeUnknown,
    ServiceError,
    Stopped,
    TokenRejected,
    TokenStoreUnavailable,
    TokenUnavailable,
    WebCollectError,
)
from airflow_provider_webcollect.service.flow import Authorize, Blocking, Flow, Sleep
from airflow_provider_webcollect.service.pauses import Notice
from airflow_provider_webcollect.service.settings import TIMING, digest
from airflow_provider_webcollect.service.tokens.claim import CLAIMING, RenewalClaim
from airflow_provider_webcollect.service.tokens.state import RenewalState, StoredToken

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.endpoints import Call
    from airflow_provider_webcollect.service.models import TokenRecord
    from airflow_provider_webcollect.service.settings import Credentials, Timing
    from airflow_provider_webcollect.service.tokens.store import TokenStore

log = logging.getLogger(__name__)

#: A token is renewed when this share of its lifetime is left; each process chooses a random value in this
#: range, so many processes do not renew in the same second.
EARLY_SHARE = (0.02, 0.06)
#: Seconds between a failed early renewal and the next attempt.
POSTPONEMENT = 60.0
#: Share of a token's lifetime after which a keeper sends a refresh token again if the response was lost. If
#: the service then revokes the access token, little is lost.
LATE_SHARE = 0.9
#: Seconds before a token is requested again after the response was lost.
LOST_RESPONSE_PAUSE = 1.0
#: The codes by which the service refuses a refresh token (assumptions.md, Tokens), without dots and in lower
#: case. Whatever else the token endpoint says is temporary.
REFUSALS = frozenset({"invalidgrant", "invalidtoken"})
#: Seconds between two reads of the store while waiting. They grow to the longest, so that many processes that
#: wait do not slow down Airflow's API server, and with it the process that they wait for.
READ_INTERVAL, LONGEST_READ_INTERVAL = 0.2, 2.0
#: Seconds between the attempts to store a new token, which the service does not issue again.
SAVE_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
#: How many spent refresh tokens a record remembers.
MOST_SPENT = 1000

#: Sends a token call.
SendToken = Callable[["Call[TokenRecord]"], Flow["TokenRecord"]]
#: Finds out whether the service accepts an access token.
AskService = Callable[[str], Flow[bool]]

#: New tokens that could not be stored yet, by the connection's name and credential.
_unsaved: dict[str, StoredToken] = {}


class Tokens:
    """Provides the access token for the calls of one client.

    :param credentials: the connection's credentials.
    :param name: names the connection.
    :param store: where the processes share the token.
    :param base_url: the service that the credentials are for.
    :param keeper_only: never write to the store except in :meth:`renew`; wait for the keeper's record.
    :param reads_only: never write to the store, and wait for nothing.
    :param timing: how long to wait.
    :param learned: called with every token obtained, for masking it in logs.
    :param now: the wall clock, in Unix time; it is only used to tell how much of a token's lifetime is left.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        credentials: Credentials,
        name: str,
        store: TokenStore,
        *,
        base_url: str = "",
        keeper_only: bool = False,
        reads_only: bool = False,
        timing: Timing = TIMING,
        learned: Callable[[str], None] = lambda token: None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._store = store
        self._lineage = credentials.lineage_at(base_url)
        self._key = f"{name}:{self._lineage}"
        self._claim = RenewalClaim(store, self._lineage, clock, now)
        self._keeper_only = keeper_only
        self._reads_only = reads_only
        #: For the longest claim of another process, the time for claiming included.
        self._patience = timing.patience + CLAIMING * (store.write_bound or 0.0)
        self._timing = timing
        self._learned = learned
        self._now = now
        self._clock = clock
        self._early = random.uniform(*EARLY_SHARE)  # it only spreads load
        self._held: StoredToken | None = None
        #: The newest generation seen, of any lineage, and what was spent until then.
        self._generation = 0
        self._spent: tuple[str, ...] = ()
        #: Since when the store lacks the newest generation; and the newest that it will never show.
        self._late_since: float | None = None
        self._lost_generation = 0
        #: What a renewal waits for.
        self._obstacle = ""
        self._renewal = RenewalState.RELEASED
        self._postponed_until = 0.0
        self._obtained: tuple[str, float] = ("", 0.0)
        self._replaced_young_at = -math.inf
        #: The number of failed attempts to get a token, and the last error.
        self.failures = 0
        self._failure: WebCollectError | None = None

    def current(self, rejected: str | None = None) -> str | None:
        """Return the access token in memory, or None if one has to be obtained first."""
        return None if self._due() else self._usable(rejected)

    def obtain(self, authorize: Authorize, send: SendToken) -> Flow[str]:
        """Return an access token other than the rejected one, from the store or by renewing.

        The driver runs one of these at a time. If one fails, it fails for all callers that waited for it:
        an attempt may take long, and one attempt for each of them would take too long.

        :raises CredentialError: if no credential of the connection leads to a token.
        :raises TokenUnavailable: if another process should have provided the token and did not, or stored one
            of a newer credential than this one; if the store fails; or if the response to a renewal was lost.
        """
        if (
            self._failure is not None
            and self.failures > authorize.failures
            and not self._usable(authorize.rejected)
        ):
            raise copy.copy(self._failure)
        try:
            return (yield from self._token(authorize.rejected, send))
        except WebCollectError as error:
            self.failures += 1
            self._failure = copy.copy(error)  # without the traceback, which would keep its frames
            raise

    def _token(self, rejected: str | None, send: SendToken) -> Flow[str]:
        if self._keeper_only or self._reads_only:
            return (yield from self._from_keeper(rejected))
        try:
            token = yield from self._renewed(
                send,
                rejected,
                lambda contended: bool(self._usable(rejected)) and (contended or not self._due()),
            )
        except WebCollectError as error:
            if not (still_good := self._usable(rejected)):
                raise
            self._postponed_until = self._clock() + POSTPONEMENT
            log.warning("The access token could not be renewed early and is used on: %s", error)
            return still_good
        return token.access_token

    def renew(self, send: SendToken, after_share: float, is_accepted: AskService) -> Flow[StoredToken]:
        """Renew the token if it is old enough or the service rejects it; return the valid one.

        :param after_share: renew if at least this share of the lifetime has passed; 0 renews in any case, 0.5
            after half of it.
        :param is_accepted: finds out whether the service still accepts a token that is not old enough.
        :raises CredentialError: if no credential of the connection leads to a token.
        :raises TokenUnavailable: as :meth:`obtain` does.
        """
        rejected = None
        try:
            yield from self._read_store()
            self._renewal = yield from self._claim.read(self._next_digest)
        except TokenStoreUnavailable as error:
            log.warning("The token store is read again: %s", error)
        if after_share and (young := self._younger_than(after_share)):
            if (yield from is_accepted(young.access_token)):
                return young
            rejected = young.access_token
        return (
            yield from self._renewed(
                send,
                rejected,
                lambda contended: bool(
                    after_share and self._younger_than(after_share) and self._usable(rejected)
                ),
            )
        )

    def _younger_than(self, share: float) -> StoredToken | None:
        held = self._held
        if held is None or not self._usable(None):
            return None
        age = held.age_share(self._now())
        if self._renewal is not RenewalState.DOUBTFUL:
            return held if age < share else None
        if age < max(share, LATE_SHARE) or held.expires_at is None:
            log.warning("The response to the last renewal was lost; the token is used on and renewed later.")
            return held
        return None

    def _usable(self, rejected: str | None) -> str | None:
        """Return the access token in memory if it may still be used, due for renewal or not."""
        held = self._held
        if held is None or held.access_token in {"", rejected} or held.has_ended(self._now()):
            return None
        return held.access_token

    def _due(self) -> bool:
        """Whether the token in memory expires so soon that it should be renewed."""
        held = self._held
        if held is None or held.expires_at is None:
            return False
        if self._renewal in {RenewalState.DOUBTFUL, RenewalState.REFUSED}:
            return False
        return held.age_share(self._now()) >= 1 - self._early and self._clock() >= self._postponed_until

    def _read_store(self) -> Flow[None]:
        """Use the stored token, unless it is older or does not descend from the connection's credential.

        :raises TokenStoreUnavailable: if the store cannot be read.
        :raises TokenUnavailable: if the connection's credential was replaced by that of the stored token.
        """
        unsaved = _unsaved.get(self._key)
        try:
            stored: StoredToken | None = yield Blocking(self._store.load)
        except TokenStoreUnavailable:
            # the token in memory may be used, but not renewed
            if unsaved is not None and unsaved.is_newer_than(self._held):
                self._hold(unsaved)
            self._hold_own()
            raise
        if unsaved is not None and unsaved.is_newer_than(stored):
            yield from self._save(unsaved, ())
            stored = unsaved
        if stored is None:
            self._hold_own()
            return
        if not stored.descends_from(self._lineage):
            if stored.generation >= self._generation:
                self._generation, self._spent = stored.generation, (*stored.spent, stored.lineage)
            # a login can be used again, so it may also be that a person has returned to it
            is_fresh = not self._credentials.refresh_token and not (self._held and self._held.generation)
            if self._lineage in stored.spent and not is_fresh:
                # the stored token may be the only one that still works
                raise TokenUnavailable(
                    "the connection has a new credential, which is not used here yet; if it still has the "
                    "old one, that is used up, and a new one must be put into the connection"
                )
            self._hold_own()
        elif self._held is None or not self._held.is_newer_than(stored):
            self._hold(stored)
        elif self._renewal is RenewalState.REFUSED:
            # our token cannot be renewed, and another process has started over with a lower generation
            self._generation = stored.generation
            self._hold(stored)

    def _hold_own(self) -> None:
        """Use the connection's own access token, if there is no other."""
        if self._held is None and self._credentials.access_token:
            self._hold(
                StoredToken(
                    access_token=self._credentials.access_token,
                    refresh_token=self._credentials.refresh_token,
                    lineage=self._lineage,
                )
            )

    def _hold(self, token: StoredToken) -> None:
        for secret in (token.access_token, token.refresh_token):
            if secret:
                self._learned(secret)
        if self._held is not None and self._held.generation != token.generation:
            self._renewal = RenewalState.RELEASED
        self._held = token
        if token.generation >= self._generation:
            self._generation, self._spent = token.generation, token.spent

    def _from_keeper(self, rejected: str | None) -> Flow[str]:
        notice, gives_up_at = Notice(log, self._clock), self._clock() + self._patience
        while True:
            trouble: TokenStoreUnavailable | None = None
            try:
                yield from self._read_store()
            except TokenStoreUnavailable as error:
                trouble = error
            if token := self._usable(rejected):
                return token
            if self._reads_only:
                raise trouble or TokenUnavailable("no valid token is stored; the next task obtains one")
            if self._clock() >= gives_up_at:
                raise trouble or TokenUnavailable(
                    f"no new token was stored for {self._patience:.0f} s; does the DAG run that renews it?"
                )
            notice.give(
                notice.lasted,
                "Waiting for the DAG that renews the token to store one, for %.0f s more.",
                gives_up_at - self._clock(),
            )
            yield Sleep(READ_INTERVAL * 5)

    def _renewed(
        self, send: SendToken, rejected: str | None, is_enough: Callable[[bool], bool]
    ) -> Flow[StoredToken]:
        """Return a token that is good enough: renew it, or wait for the process that does.

        :param is_enough: whether the token in memory is good enough, given whether a renewal has to wait.
        """
        notice, gives_up_at = Notice(log, self._clock), self._clock() + self._patience
        store_works_at, pause = self._clock(), READ_INTERVAL
        while True:
            try:
                renewed = yield from self._try_to_renew(send, rejected, is_enough)
                if renewed is not None:
                    return renewed
                store_works_at, reason = self._clock(), self._obstacle
            except TokenStoreUnavailable:
                if (
                    self._usable(rejected)
                    or self._claim.is_unseen
                    or self._clock() - store_works_at >= self._timing.store_patience
                ):
                    raise
                reason = "the token store, which cannot be used now"
            if self._clock() >= gives_up_at:
                raise TokenUnavailable(f"no token for {self._patience:.0f} s: waited for {reason}")
            rest = gives_up_at - self._clock()
            notice.give(notice.lasted, "Waiting for %s, for at most %.0f s more.", reason, rest)
            yield Sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 1.3, LONGEST_READ_INTERVAL)

    def _try_to_renew(
        self, send: SendToken, rejected: str | None, is_enough: Callable[[bool], bool]
    ) -> Flow[StoredToken | None]:
        """Read the store, claim and renew; None, and ``_obstacle`` says why, if that has to wait."""
        yield from self._read_store()
        if self._held is not None and is_enough(False):
            return self._held
        generation, token = self._generation, self._next_digest
        self._renewal = yield from self._claim.read(token)
        self._obstacle = "another process to renew the token"
        must_wait = self._renewal is RenewalState.CLAIMED or self._is_late()
        if self._held is not None and is_enough(must_wait):
            return self._held
        if must_wait:
            return None
        self._check_means(rejected)
        self._obstacle = "another process, which has claimed the renewal at the same time"
        if not (yield from self._claim.acquire(token)):
            return None
        try:
            self._renewal = self._claim.outcome
            self._check_means(rejected)  # another process may have been refused just now
            yield from self._read_store()
            is_as_before = (self._generation, self._next_digest) == (generation, token)
            if is_as_before and not self._is_late() and not (self._held and is_enough(False)):
                return (yield from self._as_claimant(send, rejected))
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._claim.settle()
            raise
        yield from self._claim.settle()
        return None

    def _is_late(self) -> bool:
        """Return whether the store, as it was read, lacks a newer token that was certainly stored.

        After a while it counts as deleted.
        """
        newest = self._claim.newest
        if not self._next_digest or newest <= max(self._generation, self._lost_generation):
            self._late_since = None
            return False
        self._late_since = self._clock() if self._late_since is None else self._late_since
        self._obstacle = "the token store to return what was stored last"
        if self._clock() - self._late_since < self._timing.late_reads:
            return True
        self._lost_generation = newest
        return False

    @property
    def _has_login(self) -> bool:
        return bool(self._credentials.login and self._credentials.password)

    def _unspent(self, renewal: RenewalState) -> Call[TokenRecord] | None:
        """Return the call with a refresh token that may be sent: the record's, or else the connection's.

        The token itself is not kept in a variable, since some tracebacks show variables.
        """
        if renewal is RenewalState.REFUSED or (renewal is RenewalState.DOUBTFUL and self._has_login):
            return None
        source = self._next_source
        return endpoints.refresh_token(source.refresh_token) if source and source.refresh_token else None

    @property
    def _next_source(self) -> StoredToken | Credentials | None:
        """What has a refresh token that is not spent: the record, or else the connection."""
        for source in (self._held, self._credentials):
            if source and source.refresh_token and digest(source.refresh_token) not in self._spent:
                return source
        return None

    @property
    def _next_digest(self) -> str:
        """The digest of the refresh token that is sent next; empty without one."""
        source = self._next_source
        return digest(source.refresh_token) if source and source.refresh_token else ""

    def _check_means(self, rejected: str | None) -> None:
        """Raise if there is nothing to obtain a token with."""
        if self._has_login or self._unspent(self._renewal):
            return
        if self._renewal is RenewalState.REFUSED:
            raise _explained(None)
        if self._held is None and rejected is None:
            raise ConnectionIncomplete("the connection has nothing to obtain an access token with")
        raise TokenRejected(
            "the access token was rejected, and the connection has nothing to obtain a new one with"
        )

    def _refuse_to_spin(self, rejected: str | None) -> None:
        """Raise if new tokens are rejected again and again, as for an operation that rejects any token.

        :raises TokenUnavailable: with the seconds until the token may be renewed again.
        """
        obtained, since = self._obtained
        if not rejected or obtained != rejected or self._clock() - since > self._timing.youth:
            return
        rest = self._timing.youth - (self._clock() - self._replaced_young_at)
        if rest > 0:
            raise TokenUnavailable(
                "the token was renewed twice within a minute, and is rejected again; either the service "
                "drops its tokens, or it refuses this operation for another reason",
                retry_after=rest,
            )
        self._replaced_young_at = self._clock()

    def _as_claimant(self, send: SendToken, rejected: str | None) -> Flow[StoredToken | None]:
        """Obtain a new token with the connection's credentials: the refresh token, then login and password.

        :return: None if another process has stored a token instead.
        """
        generation = self._generation
        self._refuse_to_spin(rejected)
        try:
            if refresh := self._unspent(self._claim.outcome):
                record = yield from self._exchanged(refresh, rejected, send)
                return (yield from self._keep(record, refresh))
        except (GrantRejected, _ResponseLost) as error:
            if isinstance(error, GrantRejected) and (yield from self._has_successor(generation)):
                return None
            if not self._has_login:
                raise
        return (yield from self._keep((yield from self._logged_in(send)), None))

    def _logged_in(self, send: SendToken) -> Flow[TokenRecord]:
        login = endpoints.first_token(self._credentials.login or "", self._credentials.password or "")
        try:
            return (yield from send(login))
        except CredentialError as refusal:
            raise LoginRejected(
                f"login and password were refused: {refusal.message}",
                endpoint=refusal.endpoint,
                status=refusal.status,
                code=refusal.code,
                request_id=refusal.request_id,
            ) from refusal

    def _exchanged(
        self, refresh: Call[TokenRecord], rejected: str | None, send: SendToken
    ) -> Flow[TokenRecord]:
        """Exchange a refresh token, and record the outcome in the claim.

        :raises GrantRejected: if the service refuses it.
        :raises _ResponseLost: if it is not known whether the service accepted it.
        :raises WebCollectError: any other; the refresh token was not used up.
        """
        if not self._claim.may_send():
            raise TokenUnavailable("this process stood still while it was about to renew the token")
        before = self._claim.outcome
        # if the exchange is interrupted, its outcome is unknown
        self._claim.outcome = RenewalState.DOUBTFUL
        try:
            return (yield from self._sent(refresh, send))
        except OutcomeUnknown as error:
            lost: WebCollectError = error
        except GrantRejected:
            raise
        except WebCollectError:
            self._claim.outcome = before
            raise
        if not self._usable(rejected) and not self._has_login:
            yield Sleep(LOST_RESPONSE_PAUSE)
            if self._claim.may_send():
                # there is no other way to obtain a token, and no valid token left to lose
                try:
                    return (yield from self._sent(refresh, send))
                except GrantRejected:
                    raise
                except WebCollectError as error:
                    lost = error
        raise _ResponseLost(f"the response to a renewal was lost: {lost.message}") from lost

    def _sent(self, refresh: Call[TokenRecord], send: SendToken) -> Flow[TokenRecord]:
        try:
            return (yield from send(refresh))
        except ServiceError as refusal:
            if (refusal.code or "").replace(".", "").lower() in REFUSALS:
                self._renewal = self._claim.outcome = RenewalState.REFUSED
                raise _explained(refusal) from refusal
            if refusal.retryable or not refusal.permanent:
                raise
            # a gateway or a service in trouble, which says nothing of the credential
            raise TokenUnavailable(
                f"the service issues no token now: {refusal.message}",
                status=refusal.status,
                code=refusal.code,
                request_id=refusal.request_id,
            ) from refusal

    def _has_successor(self, generation: int) -> Flow[bool]:
        """Wait for the record of a process that used the refresh token before."""
        gives_up_at = self._clock() + self._timing.adoption
        log.warning(
            "The refresh token was refused; waiting %.0f s for the token of a process that may have used it.",
            self._timing.adoption,
        )
        while True:
            yield from self._read_store()
            if self._generation > generation:
                return True
            if self._clock() >= gives_up_at:
                return False
            yield Sleep(READ_INTERVAL)

    def _keep(self, record: TokenRecord, spent: Call[TokenRecord] | None) -> Flow[StoredToken]:
        """Store a new token before it is used; if the response has no new refresh token, keep the old one."""
        now = self._now()
        before = spent.body["refresh_token"] if spent and spent.body else None
        lineage = self._held.lineage if self._held else self._lineage
        token = StoredToken(
            access_token=record.access_token,
            refresh_token=record.refresh_token or before,
            generation=max(self._generation, self._claim.newest) + 1,
            obtained_at=now,
            expires_at=None if record.expires_in is None else now + record.expires_in,
            lineage=lineage,
            spent=self._spent_with(lineage, before, record.refresh_token or before),
            stored_by=f"{socket.gethostname()}, process {os.getpid()}",
        )
        self._obtained = (token.access_token, self._clock())
        self._hold(token)
        yield from self._save(token, SAVE_PAUSES)
        return token

    def _spent_with(self, lineage: str, before: str | None, kept: str | None) -> tuple[str, ...]:
        """Return the digests of what is spent once ``before`` is, the oldest first."""
        used = [] if self._held and lineage in self._spent else [lineage]
        used += [digest(before)] if before else []
        ordered = dict.fromkeys([*(each for each in self._spent if each not in used), *used])
        # it stays in use if the service has issued no other
        ordered.pop(digest(kept or ""), None)
        return tuple(ordered)[-MOST_SPENT:]

    def _save(self, token: StoredToken, pauses: tuple[float, ...]) -> Flow[None]:
        _unsaved[self._key] = token
        notice, is_first = Notice(log, self._clock), True
        for pause in (*pauses, None):
            try:
                # a write that seemed to fail may have succeeded, and a newer token may be stored by now
                if is_first or token.is_newer_than((yield Blocking(self._store.load))):
                    yield Blocking(functools.partial(self._store.save, token))
            except TokenStoreUnavailable as error:
                if pause is None:
                    log.error("The new token cannot be stored; only this process has it. %s", error)
                    return
                is_first = False
                notice.give(
                    pause,
                    "The new token cannot be stored; the next attempt follows in %.0f s. %s",
                    pause,
                    error,
                    level=logging.WARNING,
                )
                # once stopped, try again without a pause: the service does not issue this token again
                with contextlib.suppress(Stopped):
                    yield Sleep(pause)
            else:
                break
        _unsaved.pop(self._key, None)
        self._claim.newest = max(self._claim.newest, token.generation)
        self._claim.outcome = RenewalState.RELEASED
        yield from self._claim.settle()


class _ResponseLost(TokenUnavailable):
    """A refresh token was sent, but it is unknown whether the service accepted it."""


def _explained(refusal: ServiceError | None) -> GrantRejected:
    return GrantRejected(
        "the refresh token was refused, and no other process has stored a newer one. Either it was "
        "revoked, or a process ended after the service had exchanged it, before the new one was stored",
        status=refusal.status if refusal else None,
        code=refusal.code if refusal else None,
        request_id=refusal.request_id if refusal else None,
    )
