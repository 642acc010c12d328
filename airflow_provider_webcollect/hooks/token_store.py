"""The token stores in which the processes of an Airflow installation share the service's token."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Variable, conf

from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.threads import one_at_a_time
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, TokenStore

if TYPE_CHECKING:
    from types import ModuleType

SECTION, OPTION, TIMEOUT = "webcollect", "token_store", "token_store_timeout"
#: The bounds of ``token_store_timeout``, in seconds; waits for a renewal last a multiple of the timeout.
SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 0.1, 60.0


class VariableTokenStore(TokenStore):
    """Keeps the token in the Airflow Variable ``webcollect_token__<conn_id>``; Airflow encrypts and masks it.

    The state of the token's renewal is in ``webcollect_renewal__<conn_id>``. Deleting the token's Variable
    resets the store: the next token is obtained with the credentials in the connection.

    :param conn_id: id of the connection.
    :param write_bound: maximum number of seconds to read or write a Variable; 2 by default.
    """

    def __init__(self, conn_id: str, write_bound: float = 2.0) -> None:
        self._conn_id = conn_id
        self.write_bound = write_bound

    def read(self, register: Register) -> str | None:
        key = self._key(register)
        with one_at_a_time():
            return _read_in_task(key) if _task_runner() else _read_in_database(key)

    def write(self, register: Register, text: str) -> None:
        with one_at_a_time():
            _variable().set(self._key(register), text)

    def _key(self, register: Register) -> str:
        return f"webcollect_{register}__{self._conn_id}"


def _task_runner() -> ModuleType | None:
    """Return the module that holds Airflow 3's supervisor channel, in tasks and triggers; None elsewhere."""
    module = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return module if hasattr(module, "SUPERVISOR_COMMS") else None


def _variable() -> Any:
    """Return the class for Variables; the SDK's class works only in tasks and triggers."""
    if _task_runner():
        return Variable
    from airflow.models import Variable as VariableInDatabase

    return VariableInDatabase


def _read_in_task(key: str) -> str | None:
    text: str | None = Variable.get(key, None)
    if text is not None:
        return text
    # None may also mean that the API server did not respond
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
        # None may also mean that the database did not respond
        with create_session() as session:
            if session.scalar(select(_variable().id).where(_variable().key == key)) is not None:
                raise RuntimeError("its value cannot be read")
    return text


def make_token_store(conn_id: str) -> TokenStore:
    """Return the token store that the Airflow configuration names in ``[webcollect] token_store``.

    ``variable`` is the default; ``memory`` shares the token only within a process; any other value is the
    dotted path of a :class:`TokenStore` subclass, which is called with the connection's id.

    :raises InvalidArgument: if the setting names no token store, or if ``token_store_timeout`` is invalid.
    """
    kind = conf.get(SECTION, OPTION, fallback="variable")
    match kind:
        case "variable":
            return VariableTokenStore(conn_id, _timeout())
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


def _timeout() -> float:
    text = conf.get(SECTION, TIMEOUT, fallback="2.0")
    rule = f"it must be a number of seconds, from {SHORTEST_TIMEOUT} to {LONGEST_TIMEOUT:.0f}"
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidArgument(f"[{SECTION}] {TIMEOUT}", text, rule) from None
    if not SHORTEST_TIMEOUT <= seconds <= LONGEST_TIMEOUT:
        raise InvalidArgument(f"[{SECTION}] {TIMEOUT}", text, rule)
    return seconds
