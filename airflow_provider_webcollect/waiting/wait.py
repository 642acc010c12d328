"""A wait: what is waited for, what its polls have shown so far, and how it stands."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from airflow_provider_webcollect.service.api.records import Record, TaskStatus
from airflow_provider_webcollect.waiting.baseline import Baseline, RunEnd
from airflow_provider_webcollect.waiting.outcome import Ended, Outcome
from airflow_provider_webcollect.waiting.queries import Query

C = TypeVar("C", bound="Condition")


class Verdict(NamedTuple):
    """How a wait has ended, None if it goes on; and a line that says why."""

    outcome: Outcome | None
    reason: str


class Condition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is waited for.

    ``gc=False``: there may be tens of thousands, and none is part of a cycle.

    :cvar query: the query that shows the state of the :attr:`keys`.
    """

    query: ClassVar[Query]

    @property
    def keys(self) -> tuple[str, ...]:
        """What the query is about, such as the ids of tasks."""
        raise NotImplementedError

    def absent(self, key: str, state: Any) -> Collection[str]:
        """Return what the service's answer about ``key`` lacks."""
        raise NotImplementedError

    def judge(self, key: str, state: Any, polls: Polls) -> Verdict:
        """Return how the wait stands as far as ``key`` is concerned.

        :param state: what the latest poll of it has shown; None if the answer left it out.
        """
        raise NotImplementedError

    def combine(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        """Return how the wait stands.

        :param verdicts: of each key that was polled by now; of the only one, unless this is overridden.
        """
        (verdict,) = verdicts.values()
        return verdict

    def records(self, seen: Mapping[str, Any]) -> Iterable[Record]:
        """Return what the wait's result consists of."""
        raise NotImplementedError

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


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Polls:
    """What the polls of a key have shown, one after the other.

    What a single answer lacks does not count yet. What the first answer lacks has been absent since the wait
    began: another process may have made the polls before it.

    :param began: Unix time at which the wait began.
    """

    __slots__ = ("_absent", "_began", "_end", "_now")

    def __init__(self, began: float) -> None:
        self._began = began
        self._now: float | None = None
        self._absent: Mapping[str, _Absence] = _NOTHING
        self._end: RunEnd | None = None

    def note(self, absent: Collection[str]) -> None:
        """Take an answer into account.

        :param absent: what it lacks.
        """
        now = time.time()
        new = _Absence(self._began if self._now is None else now, 0)
        self._now = now
        before = {name: self._absent.get(name, new) for name in absent}
        self._absent = {
            name: _Absence(since, count + 1) for name, (since, count) in before.items()
        } or _NOTHING

    @property
    def unconfirmed(self) -> bool:
        """Whether something is absent from a single answer only."""
        return any(absence.answers < 2 for absence in self._absent.values())

    def seconds_absent(self, name: str) -> float | None:
        """Return for how long ``name`` has been absent; None if it is not, or from a single answer only."""
        absence = self._absent.get(name)
        if absence is None or absence.answers < 2 or self._now is None:
            return None
        return self._now - absence.since

    def is_new_run(self, status: TaskStatus, baseline: Baseline, *, settle: float, was_started: bool) -> bool:
        """Return whether ``status`` is of the run after ``baseline``; to be called with each that is seen.

        :param settle: seconds for which a status may still be that of the run before.
        :param was_started: a run was started right before the wait; else the next one counts, whenever it is.
        """
        if self._end is None:
            self._end = RunEnd(baseline, self._began if was_started else None)
        return self._end.belongs(status, self._now or self._began, settle)


class Wait:
    """Judges what the polls of a wait show, one after the other. It logs changes only.

    :param began: Unix time at which the wait began.
    :param log: a logger.
    """

    __slots__ = ("_began", "_known", "_log", "_polls", "_reason", "condition")

    def __init__(self, condition: Condition, began: float, log: Any) -> None:
        self.condition = condition
        self._began = began
        self._polls: dict[str, Polls] = {}
        self._known: tuple[dict[str, Any], dict[str, Verdict]] | None = None
        self._log = log
        self._reason = ""

    def judge(self, polled: Mapping[str, Any]) -> Ended | None:
        """Return the end of the wait, or None if it goes on.

        A key is judged when it was polled: while others are, no time passes for it.

        :param polled: the states of those of the condition's keys that were polled just now; None for one
            that the answer left out.
        """
        seen, verdicts = self._known or ({}, {})
        if len(self.condition.keys) > 1:  # else every poll shows all there is to know
            self._known = seen, verdicts
        for key, state in polled.items():
            if (polls := self._polls.get(key)) is None:
                polls = self._polls[key] = Polls(self._began)
            polls.note(self.condition.absent(key, state))
            seen[key], verdicts[key] = state, self.condition.judge(key, state, polls)
        outcome, reason = self.condition.combine(verdicts)
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
        return any(polls.unconfirmed for polls in self._polls.values())
