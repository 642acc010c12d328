"""The end of a wait in any mode: poked, rescheduled, deferred, or without any worker slot."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Outcome(StrEnum):
    """How a wait has ended. The values are stored in trigger events, so an upgrade must not change them."""

    #: The condition is met.
    DONE = "done"
    #: The condition cannot be met any more: a failure state, or something has been missing for too long.
    FAILED = "failed"
    #: The wait has timed out.
    TIMEOUT = "timeout"
    #: The service refuses the queries, or the connection cannot be used.
    ERROR = "error"
    #: An argument is invalid after its templates are rendered.
    INVALID_ARGUMENT = "refused"
    #: The wait has not begun, since only a worker can begin it.
    NEEDS_WORKER = "left"


#: The last records seen, as plain JSON.
Records = list[dict[str, Any]]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a wait; as plain JSON, it is the payload of a trigger's event.

    :ivar reason: one line that explains the outcome.
    :ivar records: the last records seen; None if there were none.
    :ivar permanent: for :attr:`Outcome.ERROR`: a retry cannot help until a person acts.
    """

    outcome: Outcome
    reason: str
    records: Records | None = None
    permanent: bool = False

    def as_event(self) -> dict[str, Any]:
        """Return the payload of a trigger's event."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]
