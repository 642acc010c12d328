"""What the earlier polls of a wait have shown."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from airflow_provider_webcollect.service.api.records import TaskStatus
from airflow_provider_webcollect.waiting.baseline import Baseline, RunEnd


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


class History:
    """What a condition has to know of the polls before this one.

    :param began: Unix time at which the wait began.
    :ivar now: Unix time of this poll.
    """

    __slots__ = ("_ends", "absences", "began", "now")

    def __init__(self, began: float) -> None:
        self.began = began
        self.now = began
        self.absences = Absences(began)
        self._ends: dict[str, RunEnd] | None = None  # most waits need none

    def note(self, absent: Collection[str], polled: Collection[str] | None) -> None:
        """Begin another poll; see :meth:`Absences.note`."""
        self.now = time.time()
        self.absences.note(absent, self.now, polled)

    def seconds_absent(self, key: str) -> float | None:
        """Return for how long ``key`` has been absent; None if it is not, or from a single answer only."""
        return self.absences.seconds(key, self.now)

    def belongs(
        self, task_id: str, status: TaskStatus, baseline: Baseline, *, settle: float, was_started: bool
    ) -> bool:
        """Return whether ``status`` is of the run after ``baseline``; to be called with each that is seen.

        :param was_started: a run was started right before the wait; else the next one counts, whenever it is.
        """
        ends = self._ends = self._ends or {}
        end = ends.get(task_id)
        if end is None:
            end = ends[task_id] = RunEnd(baseline, self.began if was_started else None)
        return end.belongs(status, self.now, settle)
