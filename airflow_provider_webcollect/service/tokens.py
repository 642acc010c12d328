"""Access tokens: keeping one, sharing it with other processes and hosts, and renewing it exactly once.

Refresh tokens count as single-use (field notes, Tokens). Within a process the driver's lock lets one renewal
run at a time, within a host a file lock does, and across hosts whoever is told that the refresh token is spent
waits for the winner's record and adopts it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import filelock
import msgspec

from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.effects import Load, Save, Sleep, Steps
from airflow_provider_webcollect.service.errors import CredentialError, GrantRejected, TokenRejected
from airflow_provider_webcollect.service.records import TokenRecord

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.call import Call
    from airflow_provider_webcollect.service.settings import Credentials

log = logging.getLogger(__name__)

#: A token is renewed when so much of its life is left; each process draws its own share, so that a fleet does
#: not renew in the same second.
EARLY_SHARE = (0.02, 0.06)
#: Seconds that a process waits for another one's renewal: for the host's lock, for the winner's or keeper's record.
PATIENCE = 60.0
#: Seconds between two looks while waiting.
LOOK_INTERVAL = 0.2


#: Carries a token call out.
SendToken = Callable[["Call[TokenRecord]"], Steps[TokenRecord]]


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """An access token as it is shared. Its repr shows no token.

    :ivar expires_at: Unix time at which the access token ends; None if not known.
    :ivar fingerprint: of the connection's own credential, from which this token was obtained.
    :ivar refused_at: Unix time at which the service refused ``refresh_token``; nobody needs to try it again.
    """

    access_token: str
    refresh_token: str | None = None
    obtained_at: float = 0.0
    expires_at: float | None = None
    fingerprint: str
    refused_at: float | None = None

    def __repr__(self) -> str:
        return f"StoredToken(expires_at={self.expires_at}, fingerprint={self.fingerprint!r})"

    def record(self, now: float) -> TokenRecord:
        """Return the token as the service would hand it out at ``now``."""
        return TokenRecord(
            access_token=self.access_token,
            expires_in=None if self.expires_at is None else self.expires_at - now,
            token_type="Bearer",
            refresh_token=self.refresh_token,
        )

    def to_json(self) -> str:
        """Return the token as the text that a store keeps."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | None) -> StoredToken | None:
        """Read what :meth:`to_json` wrote; anything else counts as nothing stored."""
        try:
            return msgspec.json.decode(text, type=cls) if text else None
        except msgspec.DecodeError:
            log.warning("The stored token is not readable and is ignored; a new one will replace it.")
            return None


class TokenStore(Protocol):
    """Where the processes that use one connection share its token."""

    def load(self) -> StoredToken | None:
        """Return the shared token, or None if there is none."""

    def save(self, token: StoredToken) -> None:
        """Replace the shared token."""


class MemoryTokenStore:
    """Shares the token within this process only.

    :param name: stores of one name share one token.
    """

    _shared: ClassVar[dict[str, StoredToken]] = {}

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self) -> StoredToken | None:
        """Return this process's token, if there is one."""
        return self._shared.get(self._name)

    def save(self, token: StoredToken) -> None:
        """Replace this process's token."""
        self._shared[self._name] = token


class Tokens:
    """Gives the calls of one client their access token.

    :param credentials: what the connection holds.
    :param name: names the connection; processes of a host with one name renew one at a time.
    :param keeper_only: never renew here, wait for the keeper's record.
    :param learned: told every token obtained, for masking it in logs.
    """

    def __init__(
        self,
        credentials: Credentials,
        name: str,
        *,
        keeper_only: bool = False,
        learned: Callable[[str], None] = lambda token: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._fingerprint = credentials.fingerprint
        self._lock = _host_lock(f"{name}:{self._fingerprint}")
        self._keeper_only = keeper_only
        self._learned = learned
        self._now = now
        self._early = random.uniform(*EARLY_SHARE)
        self._held: StoredToken | None = None

    def current(self, rejected: str | None = None) -> str | None:
        """Return the access token at hand, or None if one has to be obtained first."""
        held = self._held
        return held.access_token if held and self._usable(held, rejected) and not self._due(held) else None

    def obtain(self, rejected: str | None, send: SendToken) -> Steps[str]:
        """Return an access token other than ``rejected``, from the store or by renewing. One at a time per process.

        :raises CredentialError: if no credential of the connection leads to one.
        """
        if token := self.current(rejected):
            return token
        yield from self._look()
        if token := self.current(rejected):
            return token
        return (yield from self._renew(rejected, send, forced=False))

    def renew(self, send: SendToken) -> Steps[TokenRecord]:
        """Renew the token now, due or not, and return it."""
        yield from self._look()
        yield from self._renew(None, send, forced=True)
        assert self._held is not None
        return self._held.record(self._now())

    def _look(self) -> Steps[None]:
        """Take over what the store holds; what came of another credential is left aside."""
        stored: StoredToken | None = yield Load()
        if stored is not None and stored.fingerprint == self._fingerprint:
            self._hold(stored)
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

    def _usable(self, token: StoredToken, rejected: str | None) -> bool:
        ended = token.expires_at is not None and self._now() >= token.expires_at
        return bool(token.access_token) and token.access_token != rejected and not ended

    def _due(self, token: StoredToken) -> bool:
        if token.expires_at is None or token.refused_at is not None:
            return False
        return self._now() >= token.expires_at - self._early * (token.expires_at - token.obtained_at)

    def _renew(self, rejected: str | None, send: SendToken, *, forced: bool) -> Steps[str]:
        before = self._held
        still_good = before.access_token if before and self._usable(before, rejected) else None
        if self._keeper_only and not forced:
            return still_good or (yield from self._wait_for_another(rejected, "the token keeper"))
        if not (yield from self._lock_or_adopt(rejected, still_good, forced)):
            assert self._held is not None
            return self._held.access_token
        try:
            yield from self._look()
            if self._held is not before and not forced and (token := self.current(rejected)):
                return token
            return (yield from self._refresh(rejected, send, still_good))
        finally:
            self._lock.release()

    def _lock_or_adopt(self, rejected: str | None, still_good: str | None, forced: bool) -> Steps[bool]:
        """Return True with the host's lock held, or False if there is no need to renew any more."""
        gives_up_at = self._now() + PATIENCE
        while not _try_lock(self._lock):
            if still_good and not forced:
                return False
            yield Sleep(LOOK_INTERVAL)
            yield from self._look()
            if not forced and self.current(rejected):
                return False
            if self._now() > gives_up_at:
                raise CredentialError(
                    f"another process of this host has been renewing the token for {PATIENCE:.0f} s without an end"
                )
        return True

    def _refresh(
        self,
        rejected: str | None,
        send: SendToken,
        still_good: str | None,
    ) -> Steps[str]:
        """Exchange the refresh token; if it is refused, adopt a winner's record, or begin anew with the login."""
        held, credentials = self._held, self._credentials
        spent = (held and held.refresh_token) or credentials.refresh_token
        if spent and not (held and held.refused_at):
            try:
                record = yield from send(endpoints.refresh_token(spent))
            except GrantRejected as refusal:
                adopted = yield from self._adopt(rejected, spent)
                if adopted or still_good:
                    return adopted or still_good  # type: ignore[return-value]
                yield Save(self._refused(held, spent))
                if not (credentials.login and credentials.password):
                    raise self._explained(refusal) from refusal
            else:
                return (yield from self._keep(record, spent))
        elif still_good:
            return still_good
        if credentials.login and credentials.password:
            record = yield from send(endpoints.first_token(credentials.login, credentials.password))
            return (yield from self._keep(record, None))
        if held and held.refused_at:
            raise self._explained(None)
        raise TokenRejected(
            "the access token was rejected, and the connection has nothing to obtain a new one with"
        )

    def _keep(self, record: TokenRecord, spent: str | None) -> Steps[str]:
        """Store a new token, before it is used; an answer without a new refresh token keeps the old one."""
        now = self._now()
        token = StoredToken(
            access_token=record.access_token,
            refresh_token=record.refresh_token or spent,
            obtained_at=now,
            expires_at=None if record.expires_in is None else now + record.expires_in,
            fingerprint=self._fingerprint,
        )
        self._hold(token)
        yield Save(token)
        return token.access_token

    def _adopt(self, rejected: str | None, spent: str) -> Steps[str | None]:
        """Wait, bounded, for the record of whoever used ``spent`` before us; None if none comes."""
        gives_up_at = self._now() + PATIENCE / 4
        while self._now() < gives_up_at:
            yield from self._look()
            held = self._held
            if held and held.refresh_token != spent and self._usable(held, rejected):
                return held.access_token
            if held and held.refused_at:
                return None
            yield Sleep(LOOK_INTERVAL)
        return None

    def _wait_for_another(self, rejected: str | None, who: str) -> Steps[str]:
        gives_up_at = self._now() + PATIENCE
        while self._now() < gives_up_at:
            yield from self._look()
            if self._held and self._usable(self._held, rejected):
                return self._held.access_token
            yield Sleep(LOOK_INTERVAL * 5)
        raise CredentialError(f"{who} has stored no usable token for {PATIENCE:.0f} s; is it running?")

    def _refused(self, held: StoredToken | None, spent: str) -> StoredToken:
        return StoredToken(
            access_token=held.access_token if held else "",
            refresh_token=spent,
            obtained_at=held.obtained_at if held else 0.0,
            expires_at=held.expires_at if held else None,
            fingerprint=self._fingerprint,
            refused_at=self._now(),
        )

    def _explained(self, refusal: GrantRejected | None) -> GrantRejected:
        return GrantRejected(
            "the refresh token was refused and no other process has stored a newer one. Either it was revoked, or "
            "a process ended after the service had exchanged it and before the new one was stored",
            status=refusal.status if refusal else None,
            code=refusal.code if refusal else None,
            request_id=refusal.request_id if refusal else None,
        )


def _host_lock(name: str) -> filelock.BaseFileLock:
    folder = Path(tempfile.gettempdir()) / f"webcollect-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return filelock.FileLock(folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock")


def _try_lock(lock: filelock.BaseFileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    return True
