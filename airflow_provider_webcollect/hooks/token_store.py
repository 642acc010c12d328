"""Where the processes of an Airflow installation share the service's token."""

from __future__ import annotations

import logging
import time

from airflow.providers.common.compat.sdk import Variable

from airflow_provider_webcollect.service.auth.store import MemoryTokenStore, TokenStore
from airflow_provider_webcollect.service.auth.token import StoredToken
from airflow_provider_webcollect.service.errors import InvalidArgument

log = logging.getLogger(__name__)

PREFIX = "webcollect_token__"
#: Seconds between the tries to write the Variable.
SAVE_PAUSES = (0.2, 0.5, 1.0)


class VariableTokenStore:
    """Keeps the token in the Airflow Variable ``webcollect_token__<conn_id>``.

    Airflow encrypts it and, by its name, masks it. Where no Variable can be written (the API server, a
    process outside Airflow), it says so once and keeps the token in memory. Deleting the Variable is a safe
    reset.
    """

    def __init__(self, conn_id: str) -> None:
        self._key = f"{PREFIX}{conn_id}"

    def load(self) -> StoredToken | None:
        """Return the shared token, or None if there is none."""
        try:
            text = Variable.get(self._key, None)
        except Exception as error:  # what Airflow raises here differs by version and place
            self._say_once(error)
            text = None
        stored, unsaved = StoredToken.from_json(text), _unsaved.get(self._key)
        if unsaved is None or (stored is not None and stored.obtained_at > unsaved.obtained_at):
            return stored
        # what made it impossible may have passed
        self._write(unsaved)
        return unsaved

    def save(self, token: StoredToken) -> None:
        """Replace the shared token; a few tries, since a lost refresh token cannot be had again."""
        for pause in SAVE_PAUSES:
            if self._write(token):
                return
            time.sleep(pause)
        self._write(token)

    def _write(self, token: StoredToken) -> bool:
        try:
            Variable.set(self._key, token.to_json())
        except ImportError as error:
            # Airflow 3 outside a task: trying again is in vain
            self._say_once(error)
            _unsaved[self._key] = token
            return True
        except Exception as error:  # as above
            self._say_once(error)
            _unsaved[self._key] = token
            return False
        # from now on deleting the Variable must leave nothing behind
        _unsaved.pop(self._key, None)
        return True

    def _say_once(self, error: Exception) -> None:
        if self._key not in _told:
            _told.add(self._key)
            log.warning(
                "The Variable %s cannot be used here (%s); the token is kept in the memory of this process.",
                self._key,
                type(error).__name__,
            )


_told: set[str] = set()
#: Tokens that could not be put into their Variable, by its key.
_unsaved: dict[str, StoredToken] = {}


def make_token_store(kind: str, conn_id: str) -> TokenStore:
    """Return the store that the connection's extra ``token_store`` names.

    :param kind: ``variable``, ``memory``, or the dotted path of a class that is called with ``conn_id``.
    :raises InvalidArgument: if the class cannot be imported.
    """
    match kind:
        case "variable":
            return VariableTokenStore(conn_id)
        case "memory":
            return MemoryTokenStore(conn_id)
    from airflow.providers.common.compat.module_loading import import_string

    try:
        store: TokenStore = import_string(kind)(conn_id)
    except ImportError as error:
        raise InvalidArgument("extra token_store", kind, f"it cannot be imported ({error})") from error
    return store
