"""A wait that is going on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_webcollect.waiting.conditions import Condition
from airflow_provider_webcollect.waiting.history import History
from airflow_provider_webcollect.waiting.outcome import Ended


class Wait:
    """Judges what the polls of a wait show, one after the other. It logs changes only.

    :param began: Unix time at which the wait began.
    :param log: a logger.
    """

    __slots__ = ("_history", "_log", "_reason", "condition")

    def __init__(self, condition: Condition, began: float, log: Any) -> None:
        self.condition = condition
        self._history = History(began)
        self._log = log
        self._reason = ""

    def judge(self, seen: Mapping[str, Any], polled: Collection[str] | None = None) -> Ended | None:
        """Return the end of the wait, or None if it goes on.

        :param seen: the latest state of each of the condition's keys; None for one that was left out.
        :param polled: the keys that were polled just now; None for all of them.
        """
        # of a single key, everything was polled
        self._history.note(self.condition.absent(seen), polled if len(seen) > 1 else None)
        outcome, reason = self.condition.judge(seen, self._history)
        if reason != self._reason:
            self._reason = reason
            self._log.info("%s", reason)
        if outcome is None:
            return None
        records = [record.as_dict() for record in self.condition.records(seen)]
        return Ended(outcome=outcome, reason=reason, records=records)

    @property
    def is_in_doubt(self) -> bool:
        """Whether something is missing that another answer may have."""
        return self._history.absences.unconfirmed
