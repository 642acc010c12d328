"""Where the processes that use one connection share its token."""

from __future__ import annotations

from typing import ClassVar, Protocol

from airflow_provider_webcollect.service.auth.token import StoredToken


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
