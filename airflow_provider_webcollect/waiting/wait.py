"""A wait: its condition, the results of its polls so far, and its verdict."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from airflow_provider_webcollect.service.models import Record, TaskStatus
from airflow_provider_webcollect.waiting.baseline import Baseline, RunEnd
from airflow_provider_webcollect.waiting.outcome import Ended, Outcome
from airflow_provider_webcollect.waiting.queries import Query

C = TypeVar("C", bound="Condition")


class Verdict(NamedTuple):
    """The outcome of a wait, None while it continues; and one line that explains it."""

    outcome: Outcome | None
    reason: str


class Condition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a wait is for.

    ``gc=False``: there may be tens of thousands of conditions, and none is part of a reference cycle.

    :cvar query: the query that shows the state of the :attr:`keys`.
    """

    query: ClassVar[Query]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the query, such as the ids of tasks."""
        raise NotImplementedError

    def absent(self, key: str, state: Any) -> Collection[str]:
        """Return what is missing from the service's response about ``key``."""
        raise NotImplementedError

    def judge(self, key: str, state: Any, polls: Polls) -> Verdict:
        """Return the verdict for ``key``.

        :param state: the key's state in the latest poll; None if the response left it out.
        """
        raise NotImplementedError

    def combine(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        """Return the verdict on the wait.

        :param verdicts: of the keys polled so far; this default requires exactly one.
        """
        (verdict,) = verdicts.values()
        return verdict

    def records(self, seen: Mapping[str, Any]) -> Iterable[Record]:
        """Return the records of the wait's result."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        """Return the condition as plain JSON, for a trigger's arguments; defaults are left out."""
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
        """Return the condition that :meth:`as_json` gave."""
        return msgspec.convert(plain, cls)


class _Absence(NamedTuple):
    since: float
    answers: int


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Polls:
    """The history of the polls of one key.

    Something counts as absent only if two responses in a row leave it out. If the first response leaves it
    out, it counts as absent since the wait began, since another process may have made earlier polls.

    :param began: Unix time at which the wait began.
    """

    __slots__ = ("_absent", "_began", "_end", "_now")

    def __init__(self, began: float) -> None:
        self._began = began
        self._now: float | None = None
        self._absent: Mapping[str, _Absence] = _NOTHING
        self._end: RunEnd | None = None

    def note(self, absent: Collection[str]) -> None:
        """Record a response.

        :param absent: what is missing from it.
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
        """Whether something is absent from only one response so far."""
        return any(absence.answers < 2 for absence in self._absent.values())

    def seconds_absent(self, name: str) -> float | None:
        """Return for how long ``name`` has been absent; None if it is not, or only from one response."""
        absence = self._absent.get(name)
        if absence is None or absence.answers < 2 or self._now is None:
            return None
        return self._now - absence.since

    def is_new_run(self, status: TaskStatus, baseline: Baseline, *, settle: float, was_started: bool) -> bool:
        """Return whether ``status`` is of the run after ``baseline``; must be called with every status.

        :param settle: seconds for which a status may still be that of the previous run.
        :param was_started: whether a run was started right before the wait; otherwise the next run counts.
        """
        if self._end is None:
            self._end = RunEnd(baseline, self._began if was_started else None)
        return self._end.belongs(status, self._now or self._began, settle)


class Wait:
    """Judges the results of a wait's polls, in their order. It logs only changes.

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
        """Return the end of the wait, or None if it continues.

        A key is judged only after a poll of that key; polls of other keys do not count as time for it.

        :param polled: the states of the condition's keys that were just polled; None for a key that the
            response left out.
        """
        seen, verdicts = self._known or ({}, {})
        if len(self.condition.keys) > 1:  # with one key, every poll is complete
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
        """Whether something is missing that another response may have."""
        return any(polls.unconfirmed for polls in self._polls.values())
