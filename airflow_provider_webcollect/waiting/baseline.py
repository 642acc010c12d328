"""Which run a status belongs to: the one that is waited for, or the previous one.

For about a minute after a start, the status may still show the previous run, in part or as a whole, and
``executedTimes`` may count starts or ends (assumptions.md, Status). So a final state counts as the end of
this run only with evidence. :func:`is_end` is the table in docs/reference/waiting.md, "This run, not the one
before".
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec

from airflow_provider_webcollect.service.models import ACTIVE_STATES, FINAL_STATES, TaskState, TaskStatus

#: Seconds for which a status may still be that of the previous run.
SETTLE = 90.0
#: Seconds after which a status that contradicts itself is accepted as final.
LONGEST_CONTRADICTION = 600.0


class Evidence(Enum):
    """What a status in a final state proves about the run that has ended."""

    #: The end time is later than the baseline's.
    LATER_END = "later end"
    #: There is no end time, or none to compare it with.
    UNKNOWN_END = "no end to compare"
    #: The end time, or the start time if there is no end time, is not later than the baseline's.
    SAME_END = "same end"
    #: The end time is before the start time: the state is still that of the previous run.
    CONTRADICTION = "end before its start"


def is_end(evidence: Evidence, *, active: bool, unchanged_for: float, settle: float = SETTLE) -> bool:
    """Return whether a final state is the end of the run that began after the baseline.

    :param active: whether an active state was seen since the run was started.
    :param unchanged_for: seconds since the wait began, or since an active state was last seen.
    :param settle: seconds for which a status may still be that of the previous run.
    """
    match evidence:
        case Evidence.LATER_END:
            return True
        case Evidence.UNKNOWN_END:
            return active or unchanged_for >= settle
        case Evidence.SAME_END:
            return unchanged_for >= settle
        case Evidence.CONTRADICTION:
            return unchanged_for >= max(settle, LONGEST_CONTRADICTION)


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A task's status before a start.

    :ivar start_execute_time: ISO 8601, as are all times here.
    :ivar end_execute_time: when the last ended run ended; while a run is active, the status may show the end
        of the previous run.
    :ivar running: whether a run was active. The sub-tasks that are started then join it, so its end counts.
    """

    executed_times: int | None = None
    start_execute_time: str | None = None
    end_execute_time: str | None = None
    running: bool = False

    def __post_init__(self) -> None:
        """Check the times, which may come from a user's argument.

        :raises ValueError: if one cannot be parsed.
        """
        _clock(self.start_execute_time)
        _clock(self.end_execute_time)

    @classmethod
    def of(cls, status: TaskStatus | None) -> Baseline:
        """Return the baseline from ``status``; a task without a status has never run."""
        if status is None:
            return cls(executed_times=0)
        started, ended = status.start_execute_time, status.end_execute_time
        never_ran = status.status == TaskState.UNEXECUTED and status.executed_times is None
        return cls(
            executed_times=0 if never_ran else status.executed_times,
            start_execute_time=started.isoformat() if started else None,
            end_execute_time=ended.isoformat() if ended else None,
            running=status.status in ACTIVE_STATES,
        )

    def evidence(self, status: TaskStatus) -> Evidence:
        """Return what ``status`` proves about the run that has ended."""
        began, ended = _clock(status.start_execute_time), _clock(status.end_execute_time)
        before_began, before_ended = _clock(self.start_execute_time), _clock(self.end_execute_time)
        if status.status not in FINAL_STATES:
            return Evidence.SAME_END
        began_later = None
        if began is not None and before_began is not None:
            began_later = began >= before_began if self.running else began > before_began
        if ended is None:
            return Evidence.SAME_END if began_later is False else Evidence.UNKNOWN_END
        if _contradicts(status):
            return Evidence.CONTRADICTION
        if before_ended is not None and ended <= before_ended:
            return Evidence.SAME_END
        if before_began is None and (before_ended is not None or self.executed_times == 0):
            return Evidence.LATER_END
        if before_began is not None and before_ended is not None and before_began <= before_ended:
            return Evidence.LATER_END
        # the previous run had begun, and its end is not known
        if began_later is None:
            return Evidence.UNKNOWN_END
        return Evidence.LATER_END if began_later else Evidence.SAME_END

    def differs_from(self, status: TaskStatus) -> bool:
        """Return whether ``status`` shows another run: another count, start or end, or a first run."""
        return self._is_first(status) or any(before != now for before, now in self._changes(status))

    def is_before(self, status: TaskStatus) -> bool:
        """Return whether ``status`` shows a later run; an outdated response does not."""
        return self._is_first(status) or any(before < now for before, now in self._changes(status))

    def _is_first(self, status: TaskStatus) -> bool:
        return self.executed_times == 0 and status.status in FINAL_STATES

    def _changes(self, status: TaskStatus) -> Iterator[tuple[Any, Any]]:
        """Yield the count, the start and the end, from here and from ``status``, if both have them."""
        for before, now in (
            (self.executed_times, status.executed_times),
            (_clock(self.start_execute_time), _clock(status.start_execute_time)),
            (_clock(self.end_execute_time), _clock(status.end_execute_time)),
        ):
            if before is not None and now is not None:
                yield before, now


class RunEnd:
    """Finds the end of the run after a baseline, in a sequence of statuses.

    :param since: Unix time of the start; None if nothing was started: then a status must first show another
        run.
    """

    __slots__ = ("_active", "_baseline", "_since", "_was_started")

    def __init__(self, baseline: Baseline, since: float | None) -> None:
        self._baseline = baseline
        self._since = since
        self._was_started = since is not None
        self._active = baseline.running

    def belongs(self, status: TaskStatus, now: float, settle: float) -> bool:
        """Return whether ``status`` is of the run after the baseline; must be called with every status.

        :param now: Unix time.
        :param settle: seconds for which a status may still be that of the previous run.
        """
        if status.status in ACTIVE_STATES:
            self._active, self._since = True, now
            return True
        evidence = self._baseline.evidence(status)
        begun = self._was_started or self._active or evidence is Evidence.LATER_END
        if not begun and not self._baseline.differs_from(status):
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return is_end(evidence, active=self._active, unchanged_for=now - self._since, settle=settle)


def _contradicts(status: TaskStatus) -> bool:
    began, ended = _clock(status.start_execute_time), _clock(status.end_execute_time)
    return began is not None and ended is not None and ended < began


def _clock(time: datetime.datetime | str | None) -> datetime.datetime | None:
    """Return a time without its zone, so that a new `timezone` of the connection makes no difference."""
    moment = datetime.datetime.fromisoformat(time) if isinstance(time, str) else time
    return moment.replace(tzinfo=None) if moment else None
