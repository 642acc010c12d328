"""What the tests of tokens share: an account whose processes share a token, and stores that fail."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import TokenStoreUnavailable
from airflow_provider_webcollect.service.settings import Credentials, Settings, digest
from airflow_provider_webcollect.service.tokens import (
    MemoryTokenStore,
    Register,
    RenewalNote,
    RenewalState,
    StoredToken,
)

CALL = endpoints.get_running_counts()
STATS = CALL.endpoint.path
#: Settings of ``Tokens`` without a client.
SETTINGS = Settings(base_url="https://service.example")
#: The responses by which the service refuses a refresh token, and an access token.
GRANT_REFUSED: dict[str, Any] = {"status": 400, "code": "Invalid.Grant", "message": "no"}
TOKEN_REFUSED: dict[str, Any] = {"status": 401, "code": "Invalid.Token", "message": "no"}


def refreshes(sandbox: Sandbox) -> list[int]:
    """Return the statuses that the token endpoint answered."""
    return [request["status"] for request in sandbox.control.requests("/token")]


class Account:
    """An account of the service, whose processes share a store, and whose time passes only while they wait.

    :ivar process: makes a client with the sandbox's refresh token, as a process of its own.
    :ivar store: the store of each process for which no other is given; ``name`` is its name.
    """

    def __init__(self, sandbox: Sandbox, process: Callable[..., Client]) -> None:
        self.sandbox, self.process = sandbox, process
        self.name = f"test:{sandbox.url}"
        self.store = MemoryTokenStore(self.name)
        self.fail, self.expire = sandbox.control.fail, sandbox.control.expire_tokens

    @property
    def refreshes(self) -> list[int]:
        """The statuses that the token endpoint answered."""
        return refreshes(self.sandbox)

    @property
    def stored(self) -> StoredToken:
        """The token in the store."""
        return changed(self.store.load())

    @property
    def grants(self) -> list[str]:
        """The grant types with which tokens were requested."""
        bodies = [json.loads(request["body"]) for request in self.sandbox.control.requests("/token")]
        return [body["grant_type"] for body in bodies]

    def credentials(self, **changes: Any) -> Credentials:
        """Return credentials with the sandbox's refresh token and some changes."""
        return Credentials(**{"refresh_token": self.sandbox.refresh_token, **changes})

    def login(self, **more: Any) -> Credentials:
        return Credentials(**{"login": self.sandbox.username, "password": self.sandbox.password, **more})

    def answer_token(self, **record: Any) -> None:
        """Have the token endpoint answer once with this record."""
        body = json.dumps({"data": record, "requestId": "1"}).encode()
        self.fail("/token", kind="raw", body=body, headers={"Content-Type": "application/json"})

    def store_with(self, *, age: float, rest: float) -> StoredToken:
        """Store the token as one that was obtained ``age`` seconds ago and ends in ``rest`` seconds."""
        token = changed(self.stored, obtained_at=time.time() - age, expires_at=time.time() + rest)
        self.store.save(token)
        return token


class Full(MemoryTokenStore):
    """Refuses writes to some of its registers."""

    def __init__(self, name: str, of: frozenset[Register] = frozenset({Register.TOKEN})) -> None:
        super().__init__(name)
        self._of = of

    def write(self, register: Register, text: str) -> None:
        if register in self._of:
            raise TokenStoreUnavailable("full")
        super().write(register, text)


class Hiccup(MemoryTokenStore):
    """Seems to be empty until the token has been read a number of times."""

    def __init__(self, name: str, reads: int) -> None:
        super().__init__(name)
        self._reads = reads

    def read(self, register: Register) -> str | None:
        if register is Register.TOKEN:
            self._reads -= 1
        return super().read(register) if self._reads < 0 else None


class Unreachable(MemoryTokenStore):
    """Can be neither read nor written, and counts the attempts to read it."""

    reads = 0

    def read(self, register: Register) -> str | None:
        self.reads += 1
        raise TokenStoreUnavailable("down")


def changed(token: StoredToken | None, **changes: Any) -> StoredToken:
    assert token is not None
    return msgspec.structs.replace(token, **changes)


def note(token: StoredToken, state: RenewalState) -> RenewalNote:
    """Return the note of another process on the renewal of a token."""
    return RenewalNote(
        claimant="another", lineage=token.lineage, token=digest(str(token.refresh_token)), state=state
    )
