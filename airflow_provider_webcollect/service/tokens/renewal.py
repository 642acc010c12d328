"""Access tokens: all processes share one token, and one process at a time renews it.

Refresh tokens count as single-use, and sending a used one may revoke all tokens (assumptions.md, Tokens). So
a process sends a refresh token only while it holds the claim
(:mod:`~airflow_provider_webcollect.service.tokens`), and after a successful write to the store. It sends the
same one again only if the first request certainly did not arrive, or if no valid access token is left to
lose. A refresh token whose digest is among the stored token's spent ones is never sent.

The state of the token decides what a process does:

| State | Known by | Without the claim | With the claim |
|---|---|---|---|
| fresh | the token's times | use it | use it |
| due | little of its lifetime is left | use it while another process has the claim | renew it |
| ended | no token is stored, or it expired or was rejected | wait for the claimant's token | renew it |
| late | the note names a newer generation | use it, or read again, for ``late_reads`` | send nothing |
| doubtful | the claim expired, or the note says: response lost | use it to its end | renew it after its end |
| refused | the note says so, for an hour | use it to its end | log in, or raise `GrantRejected` |
| superseded | the stored token is of another lineage, and ours is spent | `TokenUnavailable` | the same |

| Event, with the claim | Next state | The refresh token |
|---|---|---|
| a new token | fresh: the next generation is stored, and the claim released | is used up |
| certainly not sent, or an unknown refusal | as before | is kept |
| response lost, access token valid | doubtful | is sent again only after the access token's end |
| response lost, access token ended | as the second response says, or doubtful | is sent once more |
| refused with a known code | fresh if a newer token is stored, or refused | may be sent again after an hour |
| process killed | doubtful, by the expired claim | as for a lost response |

If the connection has login and password, the process logs in instead of sending a doubtful refresh token
again.

Stored tokens are ordered by generation; none replaces a token of a higher generation. A connection continues
with the stored token if that token descends from its credential (:meth:`.StoredToken.descends_from`). A
credential that the stored token does not know is new: it begins its own lineage, with the next generation.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import logging
import math
import os
import random
import socket
import time
from typing import TYPE_CHECKING, Protocol

from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    CredentialError,
    GrantRejected,
    LoginRejected,
    OutcomeUnknown,
    ServiceError,
    TokenRejected,
    TokenStoreUnavailable,
    TokenUnavailable,
    WebCollectError,
    spelling_of_code,
)
from airflow_provider_webcollect.service.settings import Credentials, Secret, Settings, digest
from airflow_provider_webcollect.service.spans import span
from airflow_provider_webcollect.service.threads import ThrottledLog, kept_alive
from airflow_provider_webcollect.service.tokens import (
    CLAIMING,
    RenewalClaim,
    RenewalState,
    StoredToken,
    TokenStep,
    TokenStore,
    next_step,
    write_again,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.service.endpoints import Call
    from airflow_provider_webcollect.service.models import TokenRecord

log = logging.getLogger(__name__)

#: A token is renewed when this share of its lifetime is left. Each process chooses a random value in this
#: range, so that many processes do not renew in the same second.
EARLY_SHARE = (0.02, 0.06)
#: Seconds between a failed early renewal and the next attempt.
POSTPONEMENT = 60.0
#: Share of a token's lifetime after which a keeper sends a refresh token again if the response was lost. If
#: the service then revokes the access token, little of its lifetime is lost.
LATE_SHARE = 0.9
#: The codes with which the service refuses a refresh token (assumptions.md, Tokens; ``spelling_of_code``).
#: Any other error of the token endpoint counts as temporary.
REFUSALS = frozenset({"invalidgrant", "invalidtoken"})
#: Seconds between two reads of the store while waiting: the first pause and the longest one. Pauses grow, so
#: that many waiting processes do not slow down Airflow's API server, and with it the process that renews.
READ_INTERVAL, LONGEST_READ_INTERVAL = 0.2, 2.0
#: Maximum number of digests that a stored token has of spent refresh tokens and lineages.
MOST_SPENT = 1000

#: New tokens that could not be stored yet, by the connection's name and credential.
_unsaved: dict[str, StoredToken] = {}


class TokenSender(Protocol):
    """The client that runs a renewal."""

    def send(self, call: Call[TokenRecord]) -> TokenRecord:
        """Send a token call; raises ``WebCollectError``."""

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds; raises ``Stopped`` if the client is stopped."""


class Tokens:
    """Provides the access token for the calls of one client.

    :param credentials: the connection's credentials.
    :param settings: the service's address and the limits of waits. With ``token_refresh="keeper"``, only
        :meth:`renew` writes to the store; calls wait for the keeper's token.
    :param name: the name of the connection.
    :param store: the store in which the processes share the token.
    :param reads_only: whether calls never write to the store, and wait for nothing.
    :param learned: called with every token obtained, so that it can be masked in logs.
    :param now: the wall clock, in Unix time, for the times of tokens and notes.
    :param clock: a monotonic clock, in seconds, for waits.
    """

    def __init__(
        self,
        credentials: Credentials,
        settings: Settings,
        name: str,
        store: TokenStore,
        *,
        reads_only: bool = False,
        learned: Callable[[str], None] = lambda token: None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._store = store
        self._lineage = credentials.lineage_at(settings.base_url)
        self._key = f"{name}:{self._lineage}"
        self._claim = RenewalClaim(store, self._lineage, clock, now)
        self._keeper_only = settings.token_refresh == "keeper"
        self._reads_only = reads_only
        #: Seconds to wait for a token, enough for another process's longest claim with the time for claiming.
        self._patience = settings.timing.patience + CLAIMING * (store.write_bound or 0.0)
        self._timing = settings.timing
        self._learned = learned
        self._now = now
        self._clock = clock
        self._early = random.uniform(*EARLY_SHARE)  # it only spreads load
        self._held: StoredToken | None = None
        #: The newest generation seen, of any lineage, and the digests that were spent until then.
        self._generation = 0
        self._spent: tuple[str, ...] = ()
        #: For how many seconds the store has been seen to lack a newer token, and when it was read last.
        self._late_for, self._late_read_at = 0.0, math.inf
        #: The state of the exchange of the next refresh token, as it was read last.
        self._renewal = RenewalState.RELEASED
        self._postponed_until = -math.inf
        #: When this process obtained the last two tokens for calls.
        self._obtained_at = collections.deque([-math.inf] * 2, maxlen=2)
        #: The last refusal of a refresh token, and when this process received it.
        self._refusal, self._refused_at = _explained(None), -math.inf
        #: The number of failed attempts to get a token, and the last error.
        self.failures = 0
        self._failure: WebCollectError | None = None

    @property
    def age(self) -> float | None:
        """Seconds since the access token in memory was obtained; None if there is none, or if not known."""
        if self._held is None or not self._held.obtained_at:
            return None
        return max(0.0, self._now() - self._held.obtained_at)

    def current(self, rejected: str | None = None) -> str | None:
        """Return the access token in memory, or None if one has to be obtained first."""
        return None if self._is_due() else self._usable(rejected)

    def obtain(self, sender: TokenSender, rejected: str | None, failures: int) -> str:
        """Return an access token other than the rejected one, from the store or from a renewal.

        The client runs one such call at a time. If a call fails, all callers that waited for it get its
        error: an attempt may take long, so one attempt for each of them would take too long.

        :param rejected: the token that the service has rejected; None if there is none.
        :param failures: the value of :attr:`failures` when the caller began to wait.
        :raises CredentialError: if no credential of the connection leads to a token.
        :raises TokenUnavailable: if another process should have provided the token and did not, or stored the
            token of a newer credential; if the store fails; or if the response to a renewal was lost.
        """
        if self._failure is not None and self.failures > failures and not self._usable(rejected):
            raise copy.copy(self._failure)
        try:
            return Secret(self._renewed(sender, rejected, None).access_token)
        except WebCollectError as error:
            if still_good := self._usable(rejected):
                self._postponed_until = self._clock() + POSTPONEMENT
                log.warning("The access token could not be renewed early and stays in use: %s", error)
                return still_good
            self.failures += 1
            self._failure = copy.copy(error)  # without the traceback, which would keep its frames
            raise

    def renew(
        self, sender: TokenSender, after_share: float, is_accepted: Callable[[str], bool]
    ) -> StoredToken:
        """Renew the token if it is old enough or the service rejects it; return the token that is valid now.

        :param after_share: renew if at least this share of the lifetime has passed; 0 renews in any case, 0.5
            after half of it.
        :param is_accepted: returns whether the service still accepts a token that is not old enough.
        :raises CredentialError: if no credential of the connection leads to a token.
        :raises TokenUnavailable: as :meth:`obtain` does.
        """
        rejected: str | None = None
        with contextlib.suppress(TokenStoreUnavailable):  # the store is read again below
            self._read_store()
            self._renewal = self._claim.read(self._next_digest)
        if self._held and self._is_good(None, after_share):
            token = Secret(self._held.access_token)
            rejected = None if is_accepted(token) else token
        renewed = self._renewed(sender, rejected, after_share)
        if self._renewal is RenewalState.DOUBTFUL:
            log.warning("The response to the last renewal was lost; the token stays in use for now.")
        return renewed

    def _usable(self, rejected: str | None) -> str | None:
        """Return the access token in memory if it may still be used, even if it is due for renewal."""
        held = self._held
        if held is None or held.access_token in {"", rejected} or held.has_ended(self._now()):
            return None
        return Secret(held.access_token)

    def _is_due(self) -> bool:
        """Return whether the token in memory expires so soon that it should be renewed."""
        held = self._held
        if held is None or held.expires_at is None:
            return False
        if self._renewal in {RenewalState.DOUBTFUL, RenewalState.REFUSED}:
            return False
        return held.age_share(self._now()) >= 1 - self._early and self._clock() >= self._postponed_until

    def _is_good(self, rejected: str | None, after_share: float | None) -> bool:
        """Return whether the token in memory needs no renewal.

        :param after_share: as for :meth:`_renewed`.
        """
        if self._held is None or not self._usable(rejected):
            return False
        if after_share is None:
            return not self._is_due()
        age = self._held.age_share(self._now())
        if self._renewal is RenewalState.DOUBTFUL and after_share:
            return age < max(after_share, LATE_SHARE) or self._held.expires_at is None
        return age < after_share

    def _read_store(self) -> None:
        """Use the stored token, unless it is older or does not descend from the connection's credential.

        :raises TokenStoreUnavailable: if the store cannot be read, or a new token still cannot be stored.
        :raises TokenUnavailable: if another credential, which the stored token descends from, has replaced
            the credential of this process.
        """
        unsaved = _unsaved.get(self._key)
        try:
            stored = self._store.load()
            if unsaved is not None and unsaved.is_newer_than(stored):
                self._store.save(unsaved)
                stored = unsaved
        except TokenStoreUnavailable:
            # the token in memory may be used, but not renewed
            if unsaved is not None and unsaved.is_newer_than(self._held):
                self._hold(unsaved)
            self._hold_own()
            raise
        _unsaved.pop(self._key, None)
        if stored is None:
            self._hold_own()
        elif not stored.descends_from(self._lineage):
            if stored.generation >= self._generation:
                self._generation, self._spent = stored.generation, (*stored.spent, stored.lineage)
            # a login can be used repeatedly, so a person may also have put it into the connection again
            is_fresh = not self._credentials.refresh_token and not (self._held and self._held.generation)
            if self._lineage in stored.spent and not is_fresh:
                # the stored token may be the only one that still works
                raise TokenUnavailable(
                    "the connection has a new credential, which this process does not use yet. If the "
                    "connection still has the old credential, it is used up: enter a new one"
                )
            self._hold_own()
        elif self._held is None or not self._held.is_newer_than(stored):
            self._hold(stored)
        elif self._renewal is RenewalState.REFUSED:
            # our token cannot be renewed, and another process has started over with a lower generation
            self._generation = stored.generation
            self._hold(stored)

    def _hold_own(self) -> None:
        """Use the connection's own access token, if there is no other token."""
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
        if self._held is None or self._held.generation != token.generation:
            self._renewal = RenewalState.RELEASED
        self._held = token
        if token.generation >= self._generation:
            self._generation, self._spent = token.generation, token.spent

    def _renewed(self, sender: TokenSender, rejected: str | None, after_share: float | None) -> StoredToken:
        """Return a token that needs no renewal: renew it, or wait for the process that does.

        :param after_share: as for :meth:`renew`; None if a token needs no renewal until it is due.
        """
        wait_log, gives_up_at = ThrottledLog(log, self._clock), self._clock() + self._patience
        store_works_at, pause, is_lost = self._clock(), READ_INTERVAL, False
        self._late_for, self._late_read_at = 0.0, math.inf  # an old read says nothing about the store now
        while True:
            try:
                outcome = self._attempt(sender, rejected, after_share)
                if isinstance(outcome, StoredToken):
                    return outcome
                store_works_at, reason = self._clock(), outcome
            except TokenStoreUnavailable:
                fails_for = self._clock() - store_works_at
                is_hopeless = self._reads_only or self._claim.is_unseen
                if is_hopeless or self._usable(rejected) or fails_for >= self._timing.store_patience:
                    raise
                reason = "the token store, which cannot be used now"
            except _ResponseLost:
                # the refresh token is sent once more if no valid access token is left to lose
                if is_lost or self._usable(rejected):
                    raise
                is_lost, reason = True, "a response to the renewal, since the first was lost"
            rest = max(gives_up_at, self._refused_at + self._timing.adoption) - self._clock()
            if rest <= 0:
                raise TokenUnavailable(f"no token for {self._patience:.0f} s: waited for {reason}")
            wait_log.log(wait_log.lasted, "Waiting for %s, for at most %.0f s more.", reason, rest)
            sender.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 1.3, LONGEST_READ_INTERVAL)

    def _attempt(
        self, sender: TokenSender, rejected: str | None, after_share: float | None
    ) -> StoredToken | str:
        """Take the next step; return the token, or what to wait for, as text for messages."""
        self._read_store()
        if self._held and self._is_good(rejected, after_share):
            return self._held
        if (self._keeper_only or self._reads_only) and after_share is None:
            return self._keepers_token(rejected)
        before = self._generation, self._next_digest
        self._renewal = self._claim.read(self._next_digest)
        step = self._next_step(rejected, after_share)
        if step in {TokenStep.EXCHANGE, TokenStep.LOG_IN}:
            self._check_frequency(rejected)
            with kept_alive():
                obtained = self._claimed(sender, before, rejected, after_share)
            if not isinstance(obtained, TokenStep):
                return obtained
            step = obtained
        return self._without_renewal(step, rejected)

    @span("renewal", {})
    def _claimed(
        self, sender: TokenSender, before: tuple[int, str], rejected: str | None, after_share: float | None
    ) -> StoredToken | str | TokenStep:
        """Claim the renewal, and renew the token.

        :param before: the generation, and the digest of the next refresh token, before the claim.
        :return: the new token; what to wait for; or the step to take instead, if other processes were faster.
        """
        self._renewal = self._claim.acquire(self._next_digest, sender.sleep)
        if self._renewal is RenewalState.CLAIMED:
            return "another process, which has claimed the renewal at the same time"
        try:
            # other processes may have renewed, or been refused, before this process had the claim
            self._read_store()
            is_as_before = (self._generation, self._next_digest) == before
            step = self._next_step(rejected, after_share) if is_as_before else TokenStep.WAIT
            if step not in {TokenStep.EXCHANGE, TokenStep.LOG_IN}:
                return step
            self._claim.check_recent()
            obtained = self._log_in(sender) if step is TokenStep.LOG_IN else self._exchange(sender)
            if isinstance(obtained, StoredToken) and after_share is None:
                self._obtained_at.append(self._clock())
            return obtained
        finally:
            # while a new token is not stored, the claim keeps other processes from sending the used one again
            if self._key not in _unsaved:
                self._claim.end(sender.sleep)

    def _keepers_token(self, rejected: str | None) -> StoredToken | str:
        if self._held and self._usable(rejected):
            return self._held
        if self._reads_only:
            raise TokenUnavailable("no valid token is stored; the next task obtains one")
        return "a token from the token keeper's DAG, which must be running"

    def _next_step(self, rejected: str | None, after_share: float | None) -> TokenStep:
        is_good = self._is_good(rejected, after_share)
        return next_step(
            self._renewal,
            is_good=is_good,
            is_usable=is_good or (after_share is None and bool(self._usable(rejected))),
            is_late=self._is_late(),
            has_refresh_token=bool(self._next_digest),
            has_login=bool(self._credentials.login and self._credentials.password),
        )

    def _is_late(self) -> bool:
        """Return whether the store, as it was read, lacks a newer token that was certainly stored.

        After ``late_reads`` seconds, the newer token counts as deleted.
        """
        if not self._next_digest or self._claim.newest <= self._generation:
            self._late_for, self._late_read_at = 0.0, math.inf
            return False
        now = self._clock()
        # limited, since a process that was suspended has read nothing meanwhile
        self._late_for += min(max(now - self._late_read_at, 0.0), LONGEST_READ_INTERVAL)
        self._late_read_at = now
        return self._late_for < self._timing.late_reads

    def _without_renewal(self, step: TokenStep, rejected: str | None) -> StoredToken | str:
        if step is TokenStep.USE and self._held:
            return self._held
        if step is not TokenStep.REFUSE:
            return str(step.value)
        if self._renewal is RenewalState.REFUSED:
            if self._clock() - self._refused_at < self._timing.adoption:
                return "the token of a process that may have used the refresh token before"
            raise copy.copy(self._refusal)
        if self._held is None and rejected is None:
            raise ConnectionIncomplete("the connection has no credential to obtain an access token")
        raise TokenRejected(
            "the access token was rejected, and the connection has no credential to obtain a new one"
        )

    def _check_frequency(self, rejected: str | None) -> None:
        """Raise an error if new tokens are rejected repeatedly, as by an operation that rejects every token.

        :raises TokenUnavailable: with the number of seconds until the token may be renewed again.
        """
        rest = self._obtained_at[0] + self._timing.youth - self._clock()
        if rejected and rest > 0:
            raise TokenUnavailable(
                "the token was renewed twice within a minute, and is rejected again; either the service "
                "drops its tokens, or it refuses this operation for another reason",
                retry_after=rest,
            )

    @property
    def _next_source(self) -> StoredToken | Credentials | None:
        """The owner of the next refresh token: the token in memory or the credentials; None if all are spent.

        The refresh token itself is not kept in a variable, since some tracebacks show variables.
        """
        for source in (self._held, self._credentials):
            if source and source.refresh_token and digest(source.refresh_token) not in self._spent:
                return source
        return None

    @property
    def _next_digest(self) -> str:
        """The digest of the refresh token that is sent next; empty if there is none."""
        source = self._next_source
        return digest(source.refresh_token) if source and source.refresh_token else ""

    def _log_in(self, sender: TokenSender) -> StoredToken:
        """Obtain a new token with login and password, while holding the claim, and store it."""
        login = endpoints.first_token(self._credentials.login or "", self._credentials.password or "")
        try:
            record = sender.send(login)
        except CredentialError as refusal:
            password = self._credentials.password or ""
            hint = ". The password begins or ends with a blank" if password != password.strip() else ""
            del password
            raise LoginRejected(
                f"login and password were refused: {refusal.message.rstrip('.')}{hint}",
                endpoint=refusal.endpoint,
                **refusal.facts,
            ) from refusal
        except ServiceError as error:
            if not error.permanent:
                raise
            raise _issues_none(error) from error
        return self._keep(record, None, sender)

    def _exchange(self, sender: TokenSender) -> StoredToken | str:
        """Exchange the next refresh token, while holding the claim; store the new token and the outcome.

        :return: the new token, or what to wait for if the refresh token is refused.
        :raises _ResponseLost: if it is not known whether the service accepted the refresh token.
        :raises WebCollectError: for any other error; the refresh token was not used up.
        """
        source = self._next_source
        refresh = endpoints.refresh_token((source and source.refresh_token) or "")
        # if the exchange is interrupted, its outcome is unknown
        self._renewal, before = RenewalState.DOUBTFUL, self._renewal
        self._claim.outcome = RenewalState.DOUBTFUL
        try:
            record = sender.send(refresh)
        except OutcomeUnknown as lost:
            raise _ResponseLost(f"the response to a renewal was lost: {lost.message}") from lost
        except WebCollectError as error:
            if isinstance(error, ServiceError) and spelling_of_code(error.code) in REFUSALS:
                log.warning(
                    "The refresh token was refused; waiting %.0f s for the token of a process that may have "
                    "used it.",
                    self._timing.adoption,
                )
                self._renewal = self._claim.outcome = RenewalState.REFUSED
                self._refusal, self._refused_at = _explained(error), self._clock()
                return "a newer token from another process"
            self._renewal, self._claim.outcome = before, None
            if not (isinstance(error, ServiceError) and error.permanent):
                raise
            raise _issues_none(error) from error
        return self._keep(record, source, sender)

    def _keep(
        self, record: TokenRecord, source: StoredToken | Credentials | None, sender: TokenSender
    ) -> StoredToken:
        """Store a new token before it is used.

        :param source: the owner of the refresh token that was exchanged, which stays in use if the response
            has no other; None after a login.
        """
        now, before = self._now(), self._next_digest if source else ""
        lineage = self._held.lineage if self._held else self._lineage
        successor = digest(record.refresh_token) if record.refresh_token else before
        # a lineage that begins again comes after the lineages that it replaces
        earlier = [digest for digest in self._spent if self._held or digest != lineage]
        spent = [
            digest for digest in dict.fromkeys((*earlier, lineage, before)) if digest not in {"", successor}
        ]
        token = StoredToken(
            access_token=record.access_token,
            refresh_token=record.refresh_token or (source.refresh_token if source else None),
            generation=max(self._generation, self._claim.newest) + 1,
            obtained_at=now,
            expires_at=None if record.expires_in is None else now + record.expires_in,
            lineage=lineage,
            spent=tuple(spent)[-MOST_SPENT:],
            stored_by=f"{socket.gethostname()}, process {os.getpid()}",
        )
        self._hold(token)
        _unsaved[self._key] = token

        def write() -> None:
            # after the end of the claim, another process may have stored a newer token
            if self._claim.is_valid() or token.is_newer_than(self._store.load()):
                self._store.save(token)

        if error := write_again(write, sender.sleep):
            log.error("The new token cannot be stored; only this process has it. %s", error)
            return token
        del _unsaved[self._key]
        self._claim.newest = max(self._claim.newest, token.generation)
        self._claim.outcome = RenewalState.RELEASED
        return token


class _ResponseLost(TokenUnavailable):
    """A refresh token was sent, but it is unknown whether the service accepted it."""


def _issues_none(error: ServiceError) -> TokenUnavailable:
    """Return the error for a failing gateway or service, whose response says nothing about the credential."""
    return TokenUnavailable(f"the service issues no token now: {error.message}", **error.facts)


def _explained(refusal: WebCollectError | None) -> GrantRejected:
    return GrantRejected(
        "the refresh token was refused, and no other process has stored a newer one. Either it was "
        "revoked, or a process ended after the service had exchanged it, before the new one was stored",
        **(refusal.facts if refusal else {}),
    )
