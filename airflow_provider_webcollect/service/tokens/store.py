"""Where the processes that use one connection share its token."""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import secrets
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from airflow_provider_webcollect.service.errors import Stopped, TokenStoreUnavailable
from airflow_provider_webcollect.service.tokens import RenewalNote, StoredToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

#: Seconds between the attempts at a write that is not to be lost: the service does not issue a token again,
#: and other processes wait for the end of a claim.
WRITE_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)

S = TypeVar("S", bound=msgspec.Struct)


class Register(StrEnum):
    """The two texts that a store keeps for a connection."""

    TOKEN = "token"
    RENEWAL = "renewal"


class TokenStore(abc.ABC):
    """Two texts that all processes of a connection can read and replace; no compare-and-set is needed.

    The token and the note on its renewal are separate, so a late write of the note cannot replace a newer
    token.

    :ivar write_bound: seconds that a write takes at most; a quarter of that after it has returned, at the
        latest, every reader sees it. Claims on the renewal rely on it. None for a store that only one process
        uses.
    """

    write_bound: float | None = 2.0

    @abc.abstractmethod
    def read(self, register: Register) -> str | None:
        """Return a text, or None if there certainly is none; raise any exception if that is unknown."""

    @abc.abstractmethod
    def write(self, register: Register, text: str) -> None:
        """Replace a text; raise any exception if it may not have been written."""

    def load(self) -> StoredToken | None:
        """Return the shared token, or None if there certainly is none.

        :raises TokenStoreUnavailable: if the store cannot be read, or its content is not a token.
        """
        return self._decoded(Register.TOKEN, StoredToken)

    def save(self, token: StoredToken) -> None:
        """Replace the shared token.

        :raises TokenStoreUnavailable: if it may not have been written.
        """
        self._write(Register.TOKEN, msgspec.json.encode(token))

    def load_note(self) -> RenewalNote | None:
        """Return the note on the renewal; raises as :meth:`load` does."""
        return self._decoded(Register.RENEWAL, RenewalNote)

    def save_note(self, note: RenewalNote) -> None:
        """Replace the note on the renewal; raises as :meth:`save` does."""
        self._write(Register.RENEWAL, msgspec.json.encode(note))

    def _write(self, register: Register, content: bytes) -> None:
        try:
            self.write(register, content.decode())
        except Exception as error:
            unavailable = TokenStoreUnavailable(
                f"the connection's {register} cannot be stored: {type(error).__name__}"
            )
        else:
            return
        # outside the handler, so the error has no link to the frames whose variables hold the token
        content = b""
        raise unavailable

    def _decoded(self, register: Register, kind: type[S]) -> S | None:
        try:
            text = self.read(register)
        except Exception as error:
            raise TokenStoreUnavailable(
                f"the connection's {register} cannot be read: {type(error).__name__}"
            ) from error
        try:
            return msgspec.json.decode(text, type=kind) if text and text.strip() else None
        except Exception:  # for example nested too deeply, or not a text
            text = ""  # it may hold a token, and some tracebacks show variables
        # does not count as an empty store: the connection's own refresh token may have been used long ago
        raise TokenStoreUnavailable(
            f"what is stored as the connection's {register} cannot be read; delete it to begin again"
        )


def write_again(write: Callable[[], None], sleep: Callable[[float], None]) -> TokenStoreUnavailable | None:
    """Write to a store, and again after each of WRITE_PAUSES; return the last error, or None.

    :param sleep: waits for a number of seconds. Once it raises ``Stopped``, nothing is waited for.
    """
    for pause in (*WRITE_PAUSES, None):
        try:
            write()
        except TokenStoreUnavailable as error:
            if pause is None:
                return error
            log.warning("The next attempt to write to the token store follows in %.1f s. %s", pause, error)
            with contextlib.suppress(Stopped):
                sleep(pause)
        else:
            break
    return None


class MemoryTokenStore(TokenStore):
    """Shares the token within this process only.

    :param name: stores with the same name share one token.
    """

    write_bound = None
    _shared: ClassVar[dict[tuple[str, Register], str]] = {}

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, register: Register) -> str | None:
        return self._shared.get((self._name, register))

    def write(self, register: Register, text: str) -> None:
        self._shared[self._name, register] = text


class FileTokenStore(TokenStore):
    """Shares the token between the processes of a user, in files that only that user can read.

    :param path: of the token's file; the note is beside it, with a suffix. Missing folders are created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, register: Register) -> str | None:
        try:
            return self._file(register).read_text()
        except FileNotFoundError:
            return None

    def write(self, register: Register, text: str) -> None:
        """Replace the stored text; readers see the old one or the new one, also after a crash."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = self._path.with_suffix(f".{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._file(register))
        finally:
            unfinished.unlink(missing_ok=True)

    def _file(self, register: Register) -> Path:
        return self._path if register is Register.TOKEN else self._path.with_suffix(f".{register}")
