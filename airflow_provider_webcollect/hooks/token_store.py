"""Where the processes of an Airflow installation share the service's token."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Variable, conf

from airflow_provider_webcollect.service.auth.store import MemoryTokenStore, Register, TokenStore
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

SECTION, OPTION = "webcollect", "token_store"

_lock = threading.Lock()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Give the context in which a thread asks Airflow's supervisor.

    That of a `dag.test()` mixes up the answers if two threads ask at once, as those of an event loop may. A
    coroutine waits for no other: whoever has the lock may need the event loop for its answer.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _lock:
            yield
    else:
        yield


class VariableTokenStore(TokenStore):
    """Keeps the token in the Airflow Variable ``webcollect_token__<conn_id>``; Airflow encrypts and masks it.

    How its renewal stands is in ``webcollect_renewal__<conn_id>``. Deleting the first is a reset: what comes
    next is obtained with the credential in the connection.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    def read(self, register: Register) -> str | None:
        """Return a text, or None if there surely is none."""
        key = self._key(register)
        with one_at_a_time():
            return _read_in_task(key) if _task_runner() else _read_in_database(key)

    def write(self, register: Register, text: str) -> None:
        """Replace a text."""
        with one_at_a_time():
            _variable().set(self._key(register), text)

    def _key(self, register: Register) -> str:
        return f"webcollect_{register}__{self._conn_id}"


def _task_runner() -> ModuleType | None:
    """Return the module that leads to Airflow 3's supervisor, in tasks and triggers; None elsewhere."""
    module = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return module if hasattr(module, "SUPERVISOR_COMMS") else None


def _variable() -> Any:
    """Return the class to write Variables with: that of the SDK works in tasks and triggers only."""
    if _task_runner():
        return Variable
    from airflow.models import Variable as VariableInDatabase

    return VariableInDatabase


def _read_in_task(key: str) -> str | None:
    text: str | None = Variable.get(key, None)
    if text is not None:
        return text
    # None may also mean that the API server did not answer
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable

    try:
        answer = _task_runner().SUPERVISOR_COMMS.send(GetVariable(key=key))  # type: ignore[union-attr]
    except AirflowRuntimeError as error:
        answer = error.error
    if not isinstance(answer, ErrorResponse):
        return str(answer.value)
    if answer.error is not ErrorType.VARIABLE_NOT_FOUND:
        raise AirflowRuntimeError(answer)
    return None


def _read_in_database(key: str) -> str | None:
    from airflow.utils.session import create_session
    from sqlalchemy import select

    text: str | None = _variable().get(key, default_var=None)
    if text is None:
        # None may also mean that the database did not answer
        with create_session() as session:
            if session.scalar(select(_variable().id).where(_variable().key == key)) is not None:
                raise RuntimeError("its value cannot be read")
    return text


def make_token_store(conn_id: str) -> TokenStore:
    """Return the store that the Airflow configuration names in ``[webcollect] token_store``.

    ``variable`` is the default; ``memory`` shares the token within a process only; anything else is the
    dotted path of a :class:`TokenStore` that is called with the connection's id.

    :raises InvalidArgument: if it names no token store.
    """
    kind = conf.get(SECTION, OPTION, fallback="variable")
    match kind:
        case "variable":
            return VariableTokenStore(conn_id)
        case "memory":
            return MemoryTokenStore(conn_id)
    from airflow.providers.common.compat.module_loading import import_string

    option = f"[{SECTION}] {OPTION}"
    try:
        store = import_string(kind)
    except ImportError as error:
        raise InvalidArgument(option, kind, f"it cannot be imported ({error})") from error
    if not (isinstance(store, type) and issubclass(store, TokenStore)):
        raise InvalidArgument(option, kind, f"it must be a subclass of {TokenStore.__module__}.TokenStore")
    return store(conn_id)  # type: ignore[call-arg]
