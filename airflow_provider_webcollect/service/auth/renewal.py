"""Access tokens: keeping one, sharing it with other processes and hosts, and renewing it exactly once.

Refresh tokens count as single-use (field notes, Tokens). Within a process the driver's lock lets one renewal
run at a time, within a host a file lock does, and across hosts whoever is told that the refresh token is
spent waits for the winner's record and adopts it.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.api.records import TokenRecord
from airflow_provider_webcollect.service.auth.host_lock import HostLock
from airflow_provider_webcollect.service.auth.token import StoredToken
from airflow_provider_webcollect.service.errors import (
    GrantRejected,
    OutcomeUnknown,
    ServiceError,
    TokenRejected,
    TokenUnavailable,
    WebCollectError,
)
from airflow_provider_webcollect.service.flow import Blocking, Flow, Sleep

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.api.call import Call
    from airflow_provider_webcollect.service.auth.store import TokenStore
    from airflow_provider_webcollect.service.settings import Credentials

log = logging.getLogger(__name__)

#: A token is renewed when so much of its life is left; each process draws its own share, so that a fleet does
#: not renew in the same second.
EARLY_SHARE = (0.02, 0.06)
#: Seconds that a process waits for the host's lock, or for the keeper's record.
PATIENCE = 60.0
#: Seconds that a process whose refresh token is refused waits for the record of another host that used it.
ADOPTION = 15.0
#: Seconds before an early renewal that failed is tried again.
POSTPONEMENT = 60.0
#: Share of a token's life after which a keeper sends a refresh token again whose answer was lost: should the
#: service revoke the access token for it, little is lost.
LATE_SHARE = 0.9
#: Looks at an empty store before the connection's own refresh token is taken for unspent: a store in trouble
#: may seem empty for a moment.
FIRST_LOOKS = 2
#: Seconds before a token is asked for again whose answer was lost.
LOST_ANSWER_PAUSE = 1.0
#: Seconds for which a token counts as just obtained; that one is rejected has another reason than its age.
YOUTH = 60.0
#: Answers of the token endpoint that say nothing of the refresh token.
_NO_REFUSAL = frozenset({403, 404, 408, 429})
#: Seconds between two looks while waiting.
LOOK_INTERVAL = 0.2


#: Carries a token call out.
SendToken = Callable[["Call[TokenRecord]"], Flow[TokenRecord]]
#: Finds out whether the service takes an access token.
AskService = Callable[[str], Flow[bool]]


class Tokens:
    """Gives the calls of one client their access token.

    :param credentials: what the connection holds.
    :param name: names the connection; processes of a host with one name renew one at a time.
    :param store: where the token is shared.
    :param base_url: where the credentials are good.
    :param keeper_only: never write the record here unless told to renew, wait for the keeper's.
    :param learned: told every token obtained, for masking it in logs.
    """

    def __init__(
        self,
        credentials: Credentials,
        name: str,
        store: TokenStore,
        *,
        base_url: str = "",
        keeper_only: bool = False,
        learned: Callable[[str], None] = lambda token: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._store = store
        self._fingerprint = credentials.fingerprint_at(base_url)
        self._lock = HostLock(f"{name}:{self._fingerprint}")
        self._keeper_only = keeper_only
        self._learned = learned
        self._now = now
        self._early = random.uniform(*EARLY_SHARE)  # it only spreads load
        self._held: StoredToken | None = None
        self._is_superseded = False
        self._postponed_until = 0.0
        self._replaced_young_at = -YOUTH

    def current(self, rejected: str | None = None) -> str | None:
        """Return the access token at hand, or None if one has to be obtained first."""
        return None if self._due() else self._usable(rejected)

    def obtain(self, rejected: str | None, send: SendToken) -> Flow[str]:
        """Return an access token other than ``rejected``, from the store or by renewing.

        The driver runs one of these at a time.

        :raises CredentialError: if no credential of the connection leads to a token.
        :raises TokenUnavailable: if another process was to provide it and did not, or has one of a newer
            credential than this one.
        """
        if token := self.current(rejected):
            return token
        yield from self._look()
        if token := self.current(rejected):
            return token
        if self._keeper_only:
            return self._usable(rejected) or (yield from self._wait_for_keeper(rejected))
        self._refuse_to_spin(rejected)
        return (yield from self._renew(rejected, send))

    def _refuse_to_spin(self, rejected: str | None) -> None:
        """Raise rather than renew again and again because of an operation that is refused with any token."""
        held, now = self._held, self._now()
        if held is None or held.access_token != rejected or now - held.obtained_at > YOUTH:
            return
        if now - self._replaced_young_at < YOUTH:
            raise TokenRejected("tokens that were just obtained are rejected: the refusal has another reason")
        self._replaced_young_at = now

    def renew(self, send: SendToken, after_share: float, is_accepted: AskService) -> Flow[StoredToken]:
        """Renew the token if at least this share of its life has passed or the service rejects it; return it.

        :param after_share: 0 for in any case, 0.5 for from half of its life on.
        :param is_accepted: asked about a token that is young enough.
        :raises CredentialError: if no credential of the connection leads to a token.
        """
        yield from self._locked(lambda: False)
        try:
            yield from self._look()
            rejected = None
            if after_share and (young := self._younger_than(after_share)):
                if (yield from is_accepted(young.access_token)):
                    return young
                rejected = young.access_token
            return (yield from self._fresh(send, rejected))
        finally:
            self._lock.release()

    def _younger_than(self, share: float) -> StoredToken | None:
        held = self._held
        if held is None or not self._usable(None):
            return None
        if self._age_share(held) >= (max(share, LATE_SHARE) if held.uncertain_at else share):
            return None
        if held.uncertain_at:
            log.warning("The answer to the last renewal was lost; the token is used on and renewed later.")
        return held

    def _age_share(self, token: StoredToken) -> float:
        """Return how much of a token's life has passed; all of it where that is not known."""
        if token.expires_at is None:
            return 1.0
        return (self._now() - token.obtained_at) / (token.expires_at - token.obtained_at)

    def _usable(self, rejected: str | None) -> str | None:
        """Return the access token at hand if it may still be used, due for renewal or not."""
        held = self._held
        if held is None or held.access_token in {"", rejected}:
            return None
        ended = held.expires_at is not None and self._now() >= held.expires_at
        return None if ended else held.access_token

    def _due(self) -> bool:
        """Whether the token at hand is so near its end that it should be renewed."""
        held = self._held
        if held is None or held.expires_at is None or held.refused_at or held.uncertain_at:
            return False
        return self._age_share(held) >= 1 - self._early and self._now() >= self._postponed_until

    def _look(self) -> Flow[None]:
        """Take over what the store holds, unless it is older or came of another credential."""
        stored: StoredToken | None = yield Blocking(self._store.load)
        self._is_superseded = (
            stored is not None
            and stored.fingerprint != self._fingerprint
            and self._held is not None
            # the connection's own access token has no time, and so cannot be older than anything
            and 0 < self._held.obtained_at < stored.obtained_at
        )
        if stored is not None and stored.fingerprint == self._fingerprint:
            if self._held is None or stored.obtained_at >= self._held.obtained_at:
                self._hold(stored)
            elif not self._keeper_only:
                # whoever wrote it did not know of ours, which must not be lost with this process
                yield Blocking(functools.partial(self._store.save, self._held))
        elif self._held is None and self._credentials.access_token:
            self._hold(
                StoredToken(
                    access_token=self._credentials.access_token,
                    refresh_token=self._credentials.refresh_token,
                    fingerprint=self._fingerprint,
                )
            )

    def _hold(self, token: StoredToken) -> None:
        for secret in (token.access_token, token.refresh_token):
            if secret:
                self._learned(secret)
        self._held = token

    def _renew(self, rejected: str | None, send: SendToken) -> Flow[str]:
        """Renew the token, unless another process of this host does it meanwhile."""
        locked = yield from self._locked(lambda: self._usable(rejected) is not None)
        if not locked:
            return self._usable(rejected) or ""
        try:
            yield from self._look()
            if token := self.current(rejected):
                return token
            try:
                return (yield from self._fresh(send, rejected)).access_token
            except WebCollectError as error:
                if not (still_good := self._usable(rejected)):
                    raise
                self._postponed_until = self._now() + POSTPONEMENT
                log.warning("The access token could not be renewed early and is used on: %s", error)
                return still_good
        finally:
            self._lock.release()

    def _locked(self, needless: Callable[[], bool]) -> Flow[bool]:
        """Return True with the host's lock held, or False once ``needless()`` while another holds it."""
        gives_up_at = self._now() + PATIENCE
        while not self._lock.try_acquire():
            if needless():
                return False
            if self._now() > gives_up_at:
                raise TokenUnavailable(
                    f"another process of this host has been renewing the token for {PATIENCE:.0f} s"
                )
            yield Sleep(LOOK_INTERVAL)
            yield from self._look()
        return True

    def _fresh(self, send: SendToken, rejected: str | None = None) -> Flow[StoredToken]:
        """Obtain a new token from what the connection has: refresh tokens first, then login and password."""
        if found := (yield from self._look_again()):
            return found
        login, password = self._credentials.login, self._credentials.password
        refused: list[str] = []
        refusal: GrantRejected | None = None
        wait_until = 0.0
        while spent := self._unspent(refused):
            try:
                return (yield from self._exchanged(spent, rejected, send))
            except TokenUnavailable:
                if newer := (yield from self._doubted(spent, rejected)):
                    return newer
                if not (login and password):
                    raise
                break
            except GrantRejected as error:
                refusal = error
                wait_until = wait_until or self._now() + ADOPTION
                refused.append(spent)
            if adopted := (yield from self._adopted(refused, rejected, wait_until)):
                return adopted
            if self._usable(rejected):
                break
        if login and password:
            record = yield from send(endpoints.first_token(login, password))
            return (yield from self._keep(record, None))
        yield from self._give_up(refused)
        raise self._explained(refusal) from refusal

    def _look_again(self) -> Flow[StoredToken | None]:
        """Make sure that an empty store is empty; return the token if it is not.

        :raises TokenUnavailable: if what is stored came of a newer credential. Its refresh token must not be
            overwritten: it may be the only one that still works.
        """
        if self._is_superseded:
            raise TokenUnavailable("the connection has a new credential, which is not used here yet")
        for _ in range(FIRST_LOOKS):
            if self._held is not None or not self._credentials.refresh_token:
                return None
            yield Sleep(LOOK_INTERVAL)
            yield from self._look()
        return self._held if self._usable(None) else None

    def _unspent(self, refused: list[str]) -> str | None:
        """Return what may still be exchanged: the stored refresh token, then the connection's own."""
        held, own = self._held, self._credentials.refresh_token
        if held is not None and held.refused_at:
            return None
        stored = None if held is None else held.refresh_token
        return next((token for token in (stored, own) if token and token not in refused), None)

    def _exchanged(self, spent: str, rejected: str | None, send: SendToken) -> Flow[StoredToken]:
        """Exchange a refresh token.

        :raises GrantRejected: if the service refuses it.
        :raises TokenUnavailable: if it is not known whether the service took it.
        """
        call = endpoints.refresh_token(spent)
        try:
            try:
                record = yield from send(call)
            except OutcomeUnknown:
                if self._usable(rejected):
                    raise
                # there is no other way to a token, and nothing left to lose
                yield Sleep(LOST_ANSWER_PAUSE)
                record = yield from send(call)
        except OutcomeUnknown as lost:
            raise TokenUnavailable(f"the answer to a renewal was lost: {lost.message}") from lost
        except ServiceError as refusal:
            if not _is_refusal(refusal):
                raise
            raise GrantRejected(
                refusal.message,
                status=refusal.status,
                code=refusal.code,
                request_id=refusal.request_id,
            ) from refusal
        return (yield from self._keep(record, spent))

    def _doubted(self, spent: str, rejected: str | None) -> Flow[StoredToken | None]:
        """Tell the others not to send ``spent`` again while its access token lives; or return a newer token.

        Its answer may have taken a minute to be lost, and another host may have renewed the token meanwhile.
        """
        yield from self._look()
        held = self._held
        if held is None or not self._usable(rejected):
            return None
        if held.refresh_token != spent:
            return held
        yield from self._share(msgspec.structs.replace(held, uncertain_at=self._now()))
        return None

    def _share(self, token: StoredToken) -> Flow[None]:
        """Hold a token and store it, unless what is stored came of a newer credential."""
        self._hold(token)
        if not self._is_superseded:
            yield Blocking(functools.partial(self._store.save, token))

    def _keep(self, record: TokenRecord, spent: str | None) -> Flow[StoredToken]:
        """Store a new token, before it is used; an answer without a new refresh token keeps the old one."""
        now = self._now()
        token = StoredToken(
            access_token=record.access_token,
            refresh_token=record.refresh_token or spent,
            obtained_at=now,
            expires_at=None if record.expires_in is None else now + record.expires_in,
            fingerprint=self._fingerprint,
        )
        yield from self._share(token)
        return token

    def _adopted(
        self, refused: list[str], rejected: str | None, wait_until: float
    ) -> Flow[StoredToken | None]:
        """Wait, bounded, for the record of whoever used a refused token before us; None if none comes."""
        while True:
            yield from self._look()
            held = self._held
            if held and held.refresh_token not in refused and self._usable(rejected):
                return held
            # known to be of no use, or there to be tried
            if held and (held.refused_at or (held.refresh_token and held.refresh_token not in refused)):
                return None
            if self._now() >= wait_until:
                return None
            yield Sleep(LOOK_INTERVAL)

    def _wait_for_keeper(self, rejected: str | None) -> Flow[str]:
        gives_up_at = self._now() + PATIENCE
        while self._now() < gives_up_at:
            yield Sleep(LOOK_INTERVAL * 5)
            yield from self._look()
            if token := self._usable(rejected):
                return token
        raise TokenUnavailable(f"the token keeper has stored none for {PATIENCE:.0f} s; is its DAG running?")

    def _give_up(self, refused: list[str]) -> Flow[None]:
        """Tell the other processes that the refresh token is of no use."""
        held = self._held or StoredToken(access_token="", fingerprint=self._fingerprint)
        if refused and not held.refused_at:
            yield from self._share(
                msgspec.structs.replace(
                    held, refresh_token=held.refresh_token or refused[-1], refused_at=self._now()
                )
            )

    def _explained(self, refusal: GrantRejected | None) -> WebCollectError:
        if not (self._held and self._held.refused_at):
            return TokenRejected(
                "the access token was rejected, and the connection has nothing to obtain a new one with"
            )
        return GrantRejected(
            "the refresh token was refused, and no other process has stored a newer one. Either it was "
            "revoked, or a process ended after the service had exchanged it, before the new one was stored",
            status=refusal.status if refusal else None,
            code=refusal.code if refusal else None,
            request_id=refusal.request_id if refusal else None,
        )


def _is_refusal(error: ServiceError) -> bool:
    """Return whether an answer of the token endpoint refuses the credential (field notes: HTTP 400)."""
    status = error.status or 0
    return error.enveloped and not error.retryable and 400 <= status < 500 and status not in _NO_REFUSAL
