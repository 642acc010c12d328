"""How a wait ends, whichever way it is run: poked, rescheduled, deferred, or without any worker slot."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Outcome(StrEnum):
    """How a wait has ended. The values stand in the events of triggers, which outlive an upgrade."""

    #: What was waited for has happened.
    DONE = "done"
    #: It cannot happen any more: a failure state, or something is missing for too long.
    FAILED = "failed"
    #: The time for it is over.
    TIMEOUT = "timeout"
    #: The service, or the connection to it, refuses to be queried.
    ERROR = "error"
    #: An argument is wrong, which shows once its templates are rendered.
    INVALID_ARGUMENT = "refused"
    #: It has not begun: only a worker can begin it.
    NEEDS_WORKER = "left"


#: The last records seen, as plain JSON.
Records = list[dict[str, Any]]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a wait; as plain JSON, it is the payload of a trigger's event.

    :ivar reason: a line that says why.
    :ivar records: the last records seen; None if there were none.
    :ivar permanent: of :attr:`Outcome.ERROR`: a retry cannot help until a person acts.
    """

    outcome: Outcome
    reason: str
    records: Records | None = None
    permanent: bool = False

    def as_event(self) -> dict[str, Any]:
        """Return the payload of a trigger's event."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]
