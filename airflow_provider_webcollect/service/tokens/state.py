"""What the processes of a connection share: the token, and the state of its renewal."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from airflow_provider_webcollect.service.models import TokenRecord
from airflow_provider_webcollect.service.settings import digest


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """An access token in the shared store. Its repr shows no token.

    :ivar generation: that of the token before + 1, so the order of records does not depend on the hosts'
        clocks; 0 for the connection's own token.
    :ivar obtained_at: Unix time by the clock of the host that obtained it.
    :ivar expires_at: Unix time at which the access token expires, by the same clock; None if not known.
    :ivar lineage: names the credential that this token descends from (``Credentials.lineage_at``).
    :ivar spent: digests of what was used up before, under this connection, the oldest first: refresh tokens,
        and the lineages themselves. A refresh token among them is never sent.
    :ivar stored_by: the host and the process that obtained it; None for the connection's own token.
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
        """Return whether this record comes after ``other``."""
        return other is None or self.generation > other.generation

    def descends_from(self, lineage: str) -> bool:
        """Return whether a connection with the credential ``lineage`` goes on with this token.

        The connection may hold any refresh token of the lineage: a person may have copied a later one.
        """
        begun = self.spent.index(self.lineage) if self.lineage in self.spent else 0
        return lineage in {self.lineage, digest(self.refresh_token or ""), *self.spent[begun:]}

    def age_share(self, now: float) -> float:
        """Return the share of the token's lifetime that has passed; 1.0 if that is not known."""
        if self.expires_at is None or self.expires_at <= self.obtained_at:
            return 1.0
        return (now - self.obtained_at) / (self.expires_at - self.obtained_at)

    def has_ended(self, now: float) -> bool:
        """Return whether the token is known to have expired."""
        return self.expires_at is not None and self.obtained_at < self.expires_at <= now

    def record(self, now: float) -> TokenRecord:
        """Return the token as the service's response would have it at ``now``."""
        return TokenRecord(
            access_token=self.access_token,
            expires_in=None if self.expires_at is None else self.expires_at - now,
            token_type="Bearer",
            refresh_token=self.refresh_token,
        )


class RenewalState(StrEnum):
    """The state of the exchange of one refresh token."""

    CLAIMED = "claimed"
    RELEASED = "released"
    DOUBTFUL = "doubtful"
    REFUSED = "refused"


class RenewalNote(msgspec.Struct, frozen=True, kw_only=True):
    """Which process renews the token, or how that ended. It contains no secret.

    :ivar claimant: a random name for one attempt of one process.
    :ivar lineage: of the credential in the claimant's connection.
    :ivar token: digest of the refresh token to be exchanged; empty if there is none.
    :ivar newest: the newest generation that was certainly stored.
    :ivar at: Unix time by the claimant's clock.
    """

    claimant: str
    lineage: str
    token: str
    state: RenewalState
    newest: int = 0
    at: float = 0.0
