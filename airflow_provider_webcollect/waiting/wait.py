"""A wait: what is waited for, what its polls have shown so far, and how it stands."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from airflow_provider_webcollect.service.api.records import Record, TaskStatus
from airflow_provider_webcollect.waiting.baseline import Baseline, RunEnd
from airflow_provider_webcollect.waiting.outcome import Ended, Outcome, Records
from airflow_provider_webcollect.waiting.queries import Query

C = TypeVar("C", bound="Condition")


class Verdict(NamedTuple):
    """How a wait has ended, None if it goes on; and a line that says why."""

    outcome: Outcome | None
    reason: str


# the garbage collector need not look at them: there may be tens of thousands, without a cycle
class Condition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is waited for.

    :cvar query: the query that shows the state of the :attr:`keys`.
    """

    query: ClassVar[Query]

    @property
    def keys(self) -> tuple[str, ...]:
        """What the query is about, such as the ids of tasks."""
        raise NotImplementedError

    def absent(self, seen: Mapping[str, Any]) -> Collection[str]:
        """Return what the service's answers lack."""
        raise NotImplementedError

    def judge(self, seen: Mapping[str, Any], wait: Wait) -> Verdict:
        """Return how the wait stands.

        :param seen: the latest state of each key; None for one that the answer left out.
        :param wait: knows what the polls before have shown.
        """
        raise NotImplementedError

    def records(self, seen: Mapping[str, Any]) -> Iterable[Record]:
        """Return what the wait's result consists of."""
        raise NotImplementedError

    def result(self, records: Records) -> Any:
        """Return the result of the Airflow task from the last :meth:`records`; by default all of them."""
        return records

    def as_json(self) -> dict[str, Any]:
        """Return the condition as plain JSON, for a trigger's arguments; what has its default is left out."""
        defaults = {
            field.name: field.default
            if field.default_factory is msgspec.NODEFAULT
            else field.default_factory()
            for field in msgspec.structs.fields(self)
        }
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in plain.items() if getattr(self, name) != defaults[name]}

    @classmethod
    def from_json(cls: type[C], plain: Mapping[str, Any]) -> C:
        """Return the condition that :meth:`as_json` gave, in this version or an earlier one."""
        return msgspec.convert(plain, cls)


class _Absence(NamedTuple):
    since: float
    answers: int


_NOTHING: Mapping[str, _Absence] = MappingProxyType({})


class Absences:
    """What the answers lack, and since when. What a single answer lacks does not count yet.

    What the first answer lacks has been absent since the wait began: another process may have made the polls
    before it.

    :param began: Unix time at which the wait began.
    """

    __slots__ = ("_absent", "_began")

    def __init__(self, began: float) -> None:
        self._began: float | None = began
        self._absent = _NOTHING

    def note(self, absent: Collection[str], now: float, polled: Collection[str] | None = None) -> None:
        """Take an answer into account.

        :param absent: all that is absent by now.
        :param now: Unix time.
        :param polled: what the answer is about; None for everything.
        """
        since = now if self._began is None else self._began
        self._began = None
        if not absent:
            self._absent = _NOTHING
            return
        known = self._absent
        self._absent = {
            key: _Absence(since, 1)
            if (before := known.get(key)) is None
            else _Absence(before.since, before.answers + (polled is None or key in polled))
            for key in absent
        }

    def seconds(self, key: str, now: float) -> float | None:
        """Return for how long ``key`` has been absent; None if it is not, or from a single answer only."""
        absence = self._absent.get(key)
        return None if absence is None or absence.answers < 2 else now - absence.since

    @property
    def unconfirmed(self) -> bool:
        """Whether something is absent from a single answer only."""
        return any(absence.answers < 2 for absence in self._absent.values())


class Wait:
    """Judges what the polls of a wait show, one after the other. It logs changes only.

    :param began: Unix time at which the wait began.
    :param log: a logger.
    """

    __slots__ = ("_absences", "_began", "_ends", "_log", "_now", "_reason", "condition")

    def __init__(self, condition: Condition, began: float, log: Any) -> None:
        self.condition = condition
        self._began = self._now = began
        self._absences = Absences(began)
        self._ends: dict[str, RunEnd] | None = None  # most waits need none
        self._log = log
        self._reason = ""

    def judge(self, seen: Mapping[str, Any], polled: Collection[str] | None = None) -> Ended | None:
        """Return the end of the wait, or None if it goes on.

        :param seen: the latest state of each of the condition's keys; None for one that was left out.
        :param polled: the keys that were polled just now; None for all of them.
        """
        self._now = time.time()
        # of a single key, everything was polled
        self._absences.note(self.condition.absent(seen), self._now, polled if len(seen) > 1 else None)
        outcome, reason = self.condition.judge(seen, self)
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
        return self._absences.unconfirmed

    def seconds_absent(self, key: str) -> float | None:
        """Return for how long ``key`` has been absent; None if it is not, or from a single answer only."""
        return self._absences.seconds(key, self._now)

    def is_new_run(
        self, task_id: str, status: TaskStatus, baseline: Baseline, *, settle: float, was_started: bool
    ) -> bool:
        """Return whether ``status`` is of the run after ``baseline``; to be called with each that is seen.

        :param settle: seconds for which a status may still be that of the run before.
        :param was_started: a run was started right before the wait; else the next one counts, whenever it is.
        """
        ends = self._ends = self._ends or {}
        end = ends.get(task_id)
        if end is None:
            end = ends[task_id] = RunEnd(baseline, self._began if was_started else None)
        return end.belongs(status, self._now, settle)
