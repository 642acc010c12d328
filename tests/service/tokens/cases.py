"""What the tests of tokens share: a call, stores that fail, and what the token endpoint has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import TokenStoreUnavailable
from airflow_provider_webcollect.service.settings import Credentials, digest
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, RenewalNote

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.tokens import RenewalState, StoredToken

CALL = endpoints.get_running_counts()


def refreshes(sandbox: Sandbox) -> list[int]:
    """Return the statuses that the token endpoint answered."""
    return [request["status"] for request in sandbox.control.requests("/token")]


def with_refresh_token(sandbox: Sandbox, **more: Any) -> Credentials:
    return Credentials(refresh_token=sandbox.refresh_token, **more)


class Full(MemoryTokenStore):
    """Does not take what is written to some of its registers."""

    def __init__(self, name: str, of: frozenset[Register] = frozenset({Register.TOKEN})) -> None:
        super().__init__(name)
        self._of = of

    def write(self, register: Register, text: str) -> None:
        if register in self._of:
            raise TokenStoreUnavailable("full")
        super().write(register, text)


class Hiccup(MemoryTokenStore):
    """Seems to be empty for a number of reads."""

    def __init__(self, name: str, reads: int) -> None:
        super().__init__(name)
        self._reads = reads

    def read(self, register: Register) -> str | None:
        if register is Register.TOKEN:
            self._reads -= 1
        return super().read(register) if self._reads < 0 else None


class Unreachable(MemoryTokenStore):
    """Can be neither read nor written, and counts the attempts to read it."""

    is_reachable = False
    reads = 0

    def read(self, register: Register) -> str | None:
        self.reads += 1
        if not self.is_reachable:
            raise TokenStoreUnavailable("down")
        return super().read(register)


def changed(token: StoredToken | None, **changes: Any) -> StoredToken:
    assert token is not None
    return msgspec.structs.replace(token, **changes)


def note(token: StoredToken, state: RenewalState) -> RenewalNote:
    """What another process has noted on the renewal of a token."""
    return RenewalNote(
        claimant="another", lineage=token.lineage, token=digest(str(token.refresh_token)), state=state
    )
