"""The runs that statuses show: which run a final state belongs to, and the ended runs of a task, each once.

Runs are distinguished by their number (``executedTimes``), and by their start time if numbers are not enough:
a run may begin and end between two queries, a response may be older than the previous one, and the count may
restart at 0. The service may count a run when it starts, and a status may be late. So both a wait and an
event need evidence that a run has ended.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any

import msgspec

from airflow_provider_webcollect.service.models import ACTIVE_STATES, FINAL_STATES, TaskState, TaskStatus

#: Seconds for which a status may still be about the previous run.
STATUS_DELAY = 90.0
#: Seconds after which a status that contradicts itself is accepted as final.
LONGEST_CONTRADICTION = 600.0


class Evidence(Enum):
    """The evidence of a status in a final state that the run after a baseline has ended."""

    #: The end time is later than the baseline's.
    LATER_END = "later end"
    #: There is no end time, or none to compare it with.
    UNKNOWN_END = "no end to compare"
    #: The end time, or the start time if there is no end time, is not later than the baseline's.
    SAME_END = "same end"
    #: The end time is before the start time, or the number of runs has fallen: the state still belongs to the
    #: previous run.
    CONTRADICTION = "a contradiction"


def is_end(
    evidence: Evidence, *, active: bool, unchanged_for: float, status_delay: float = STATUS_DELAY
) -> bool:
    """Return whether a final state is the end of the run that began after the baseline.

    :param evidence: the evidence of the status.
    :param active: whether an active state was seen since the run was started.
    :param unchanged_for: seconds since the wait began, or since an active state was last seen.
    :param status_delay: seconds for which a status may still be about the previous run.
    """
    match evidence:
        case Evidence.LATER_END:
            return True
        case Evidence.UNKNOWN_END:
            return active or unchanged_for >= status_delay
        case Evidence.SAME_END:
            return unchanged_for >= status_delay
        case Evidence.CONTRADICTION:
            return unchanged_for >= max(status_delay, LONGEST_CONTRADICTION)


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A task's status before a start.

    :ivar executed_times: number of runs so far; None if it is not known.
    :ivar start_execute_time: the time at which the latest run began, ISO 8601; None if it is not known.
    :ivar end_execute_time: the time at which a run last ended, ISO 8601; while a run is active, this may be
        the end of the previous run; None if it is not known.
    :ivar running: whether a run was active. Sub-tasks that are started then join it, so its end counts.
    """

    executed_times: int | None = None
    start_execute_time: str | None = None
    end_execute_time: str | None = None
    running: bool = False

    def __post_init__(self) -> None:
        """Check the times, which may come from a user's argument.

        :raises ValueError: if a time cannot be parsed.
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
        """Return the evidence of ``status`` that the run after this baseline has ended."""
        began, ended = _clock(status.start_execute_time), _clock(status.end_execute_time)
        before_began, before_ended = _clock(self.start_execute_time), _clock(self.end_execute_time)
        if status.status not in FINAL_STATES:
            return Evidence.SAME_END
        began_later = None
        if began is not None and before_began is not None:
            began_later = began >= before_began if self.running else began > before_began
        if ended is None:
            return Evidence.SAME_END if began_later is False else Evidence.UNKNOWN_END
        if began is not None and ended < began:
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
        """Return whether ``status`` shows another run, by its count, start or end, or a first run."""
        return any(before != now for before, now in self._changes(status))

    def is_before(self, status: TaskStatus) -> bool:
        """Return whether ``status`` shows a later run; an outdated response does not."""
        return any(before < now for before, now in self._changes(status))

    def _changes(self, status: TaskStatus) -> Iterator[tuple[Any, Any]]:
        """Yield the count, the start and the end, each as a pair of the baseline's and ``status``'s value.

        A value that is missing from one of them is left out.
        """
        if self.executed_times == 0 and status.status in FINAL_STATES:
            yield 0, 1  # a first run, whatever the service counts
        for before, now in (
            (self.executed_times, status.executed_times),
            (_clock(self.start_execute_time), _clock(status.start_execute_time)),
            (_clock(self.end_execute_time), _clock(status.end_execute_time)),
        ):
            if before is not None and now is not None:
                yield before, now


class RunEnd:
    """Finds the end of the run after a baseline, in a sequence of statuses.

    :param since: Unix time at which the run was started; None if none was started. A status must then first
        show another run.
    """

    __slots__ = ("_active", "_baseline", "_latest", "_since", "_was_started")

    def __init__(self, baseline: Baseline, since: float | None) -> None:
        self._baseline = baseline
        self._since = since
        self._was_started = since is not None
        self._active = baseline.running
        self._latest = LastRun()

    def belongs(self, status: TaskStatus, now: float, status_delay: float) -> bool:
        """Return whether ``status`` is about the run after the baseline; must be called with every status.

        :param now: Unix time.
        :param status_delay: seconds for which a status may still be about the previous run.
        """
        reported_run = LastRun.of(status)
        is_outdated = self._latest.is_after(reported_run)
        if reported_run.run is not None and not is_outdated:
            self._latest = reported_run
        if status.status in ACTIVE_STATES and not is_outdated:
            self._active, self._since = True, now
            return True
        evidence = Evidence.CONTRADICTION if is_outdated else self._baseline.evidence(status)
        begun = self._was_started or self._active or evidence is Evidence.LATER_END
        if not begun and not self._baseline.differs_from(status):
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return is_end(
            evidence, active=self._active, unchanged_for=now - self._since, status_delay=status_delay
        )


def _clock(time: datetime.datetime | str | None) -> datetime.datetime | None:
    """Return a time without its zone, so that a change of the connection's `timezone` makes no difference."""
    moment = datetime.datetime.fromisoformat(time) if isinstance(time, str) else time
    return moment.replace(tzinfo=None) if moment else None


class LastRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last run of a task that was seen: the whole state to keep, even across restarts.

    Times are ISO 8601 without a zone, as the service sends them: a run must stay the same run if the
    connection's ``timezone`` changes.

    :ivar run: number of the latest run seen; 0 before the first.
    :ivar started: the time at which it began.
    :ivar ended: the state that it ended in, or Unexecuted; None while it is active.
    :ivar finished: the time at which it ended; while it is active, the time at which the previous run ended.
    :ivar reported: for an active run, its number, if the end of another run was already reported with that
        number; for an ended run, the number in the status with its end, if that may be the next run's number.
    :ivar is_first: whether it was active at the first query; its number may then be an earlier run's.
    """

    run: int | None = None
    started: str | None = None
    ended: str | None = None
    finished: str | None = None
    reported: int | None = None
    is_first: bool = False

    @classmethod
    def of(cls, status: TaskStatus | None) -> LastRun:
        """Return the run in ``status``; a task without a status never ran (assumptions.md, Status)."""
        if status is None:
            return cls(run=0, ended=TaskState.UNEXECUTED)
        started, finished = status.start_execute_time, status.end_execute_time
        return cls(
            run=status.executed_times,
            started=started.naive().isoformat() if started else None,
            ended=status.status if status.status in (*FINAL_STATES, TaskState.UNEXECUTED) else None,
            finished=finished.naive().isoformat() if finished else None,
        )

    @property
    def baseline(self) -> Baseline:
        """The baseline with which a later end is compared."""
        return Baseline(
            executed_times=self.run,
            start_execute_time=self.started,
            end_execute_time=self.finished,
            running=self.ended is None,
        )

    def continues_as(self, later: LastRun) -> bool:
        """Return whether this run is active and ``later`` has the same start."""
        is_same = self.started is not None and self.started == later.started
        # if the service counts runs when they end, an active run has the previous run's number
        return self.ended is None and is_same and self.run not in (self.reported, 0)

    def is_shown_again_by(self, later: LastRun) -> bool:
        """Return whether ``later`` shows the same end again, with the number in ``reported``."""
        as_reported = msgspec.structs.replace(self, run=self.reported, reported=None)
        return self.ended is not None and self.reported is not None and later == as_reported

    def is_after(self, other: LastRun) -> bool:
        """Return whether ``other`` is from an outdated response, since its number of runs is lower.

        This holds if the service counts starts and if it counts ends. The exception is a count that has begun
        again, with a later run.
        """
        if self.run is None or other.run is None:
            return False
        return other.run < self.run and not self.is_before(other)

    def is_before(self, later: LastRun) -> bool:
        """Return whether ``later`` is a later run."""
        if self.run is not None and later.run is not None and later.run > self.run:
            return True
        # An active run may get its start time late. Any other later start is a later run, with any number.
        began_later = bool(self.started and later.started and later.started > self.started)
        return began_later and (self.ended is not None or later.run != self.run)


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended, or several runs that ended between two queries.

    :ivar collection_task_id: the id of the task.
    :ivar run: number of the latest of these runs; None if the service sends no numbers.
    :ivar first_run: number of the first of these runs, which is ``run`` if there is only one.
    :ivar status: the state that ``run`` ended in; None if its end was not seen because the next run was
        already active.
    :ivar rows: number of rows that ``run`` collected, before the service removes duplicates.
    :ivar started_at: the time at which ``run`` began, ISO 8601.
    :ivar finished_at: the time at which ``run`` ended, ISO 8601.
    """

    collection_task_id: str
    run: int | None
    first_run: int | None
    status: str | None = None
    rows: int | None = None
    started_at: str | None = None
    finished_at: str | None = None


def follow(
    last: LastRun | None,
    task_id: str,
    status: TaskStatus | None,
    states: Collection[str],
    unchanged_for: float = 0.0,
) -> tuple[LastRun, EndedRun | None]:
    """Return the last run seen after a query, and the runs that have ended since the previous query, if any.

    :param last: the last run seen after the previous query; None for the first query, which reports no end.
    :param task_id: the id of the task.
    :param status: the task's status; None if the response leaves the task out.
    :param states: the final states whose ends are reported.
    :param unchanged_for: seconds for which the status has not changed.
    """
    now = LastRun.of(status)
    if last is None:
        return msgspec.structs.replace(now, is_first=now.ended is None), None
    if status is None:
        return last, None
    if last.is_shown_again_by(now):
        # a number that is shown for so long is not the next run's: the service counts runs when they end
        return (now if unchanged_for >= STATUS_DELAY else last), None
    if now.ended is not None and now.run != last.run and last.continues_as(now):
        # a higher number belongs to the next run, which the status does not show yet
        now = msgspec.structs.replace(now, run=last.run, reported=now.run if last.is_first else None)
    is_later = last.is_before(now)
    if last.is_after(now) or (now.run is None and last.run is not None and not is_later):
        return last, None
    if now.ended not in FINAL_STATES and is_later:
        reported = last.run if last.ended and last.run == now.run else None
        ended = _ended(task_id, status, now, _first_unseen(last, now), states)
        finished = _later(now.finished, last.finished)
        return msgspec.structs.replace(now, reported=reported, finished=finished), ended
    if not is_later and now.ended in (None, TaskState.UNEXECUTED, last.ended):
        # an end is reported only once, even if an outdated response shows the run as active
        finished = _later(now.finished, last.finished) if now.ended == last.ended else last.finished
        started = _later(now.started, last.started)
        return msgspec.structs.replace(last, run=now.run, started=started, finished=finished), None
    evidence = last.baseline.evidence(status)
    if not is_end(evidence, active=last.ended is None, unchanged_for=unchanged_for):
        return last, None
    first = _first_unseen(last, now) if is_later else now.run
    return now, _ended(task_id, status, now, first, states)


def _later(one: str | None, other: str | None) -> str | None:
    return max(filter(None, (one, other)), default=None)


def _first_unseen(last: LastRun, now: LastRun) -> int | None:
    if last.run is None or now.run is None:
        return now.run
    if now.run < last.run:
        return 1  # the count has restarted
    was_unfinished = last.ended is None and last.reported != last.run
    return max(1, last.run if was_unfinished else min(last.run + 1, now.run))


def _ended(
    task_id: str, status: TaskStatus, now: LastRun, first: int | None, states: Collection[str]
) -> EndedRun | None:
    if now.ended in FINAL_STATES and now.ended in states:
        started, finished = status.start_execute_time, status.end_execute_time
        return EndedRun(
            collection_task_id=task_id,
            run=now.run,
            first_run=first,
            status=now.ended,
            rows=status.current_total_extract_count,
            started_at=started.isoformat() if started else None,
            finished_at=finished.isoformat() if finished else None,
        )
    if first is None or now.run is None or first >= now.run:
        return None
    return EndedRun(collection_task_id=task_id, run=now.run - 1, first_run=first)
