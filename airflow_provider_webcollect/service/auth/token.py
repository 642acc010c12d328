"""The record of an access token, as the processes that use one connection share it."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from airflow_provider_webcollect.service.api.records import TokenRecord

log = logging.getLogger(__name__)


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """An access token as it is shared. Its repr shows no token.

    :ivar expires_at: Unix time at which the access token ends; None if not known.
    :ivar fingerprint: of the connection's own credential, from which this token was obtained.
    :ivar refused_at: Unix time at which the service refused ``refresh_token``; nobody needs to try it again.
    :ivar uncertain_at: Unix time at which ``refresh_token`` was sent and the answer was lost; it is not sent
        again while the access token lives, which the service might revoke for it.
    """

    access_token: str
    refresh_token: str | None = None
    obtained_at: float = 0.0
    expires_at: float | None = None
    fingerprint: str
    refused_at: float | None = None
    uncertain_at: float | None = None

    def __repr__(self) -> str:
        return f"StoredToken(expires_at={self.expires_at}, fingerprint={self.fingerprint!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("expires_at", self.expires_at), ("fingerprint", self.fingerprint)]

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
