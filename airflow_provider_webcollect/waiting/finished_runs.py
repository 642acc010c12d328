"""Telling from what is seen of a task which of its runs have ended, each once.

Runs are told apart by their number (``executedTimes``), and by their start where numbers do not help: some
begin and end between two looks, an answer may be older than the one before, and a count may begin anew.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from airflow_provider_webcollect.service.api.records import TaskStatus
from airflow_provider_webcollect.service.api.states import TaskState

#: States in which a run is over.
FINAL_STATES = (TaskState.FINISHED, TaskState.STOPPED)


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a task's runs have been followed. All that has to be remembered, also over a restart.

    :ivar run: number of the latest run seen; 0 before the first.
    :ivar started: when it began, ISO 8601 without a zone, as the service tells it.
    :ivar ended: the state that it ended in, or Unexecuted; None while it goes on.
    """

    run: int | None = None
    started: str | None = None
    ended: str | None = None

    @classmethod
    def of(cls, status: TaskStatus | None) -> Mark:
        """Return where a task stands; one missing from the answers never ran (assumptions.md, Status)."""
        if status is None:
            return cls(run=0, ended=TaskState.UNEXECUTED)
        started = status.start_execute_time
        over = (*FINAL_STATES, TaskState.UNEXECUTED)
        return cls(
            run=status.executed_times,
            # a change of the connection's `timezone` must not make a run another one
            started=started.naive().isoformat() if started else None,
            ended=status.status if status.status in over else None,
        )

    def is_before(self, later: Mark) -> bool:
        """Return whether ``later`` is of a later run."""
        if self.run is not None and later.run is not None and later.run > self.run:
            return True
        # A run that goes on may get its start late; else a later start is a later run, whatever the number.
        began_later = bool(self.started and later.started and later.started > self.started)
        return began_later and (self.ended is not None or later.run != self.run)


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended, or several that did between two looks.

    :ivar collection_task_id: the task.
    :ivar run: number of the latest of them; None if the service does not tell numbers.
    :ivar first_run: number of the first of them: ``run``, unless there are several.
    :ivar status: the state that ``run`` ended in; None if its end was not seen, since the next one was
        already going on.
    :ivar rows: what ``run`` collected, before the service removes duplicates.
    :ivar started_at: when ``run`` began, ISO 8601.
    :ivar finished_at: when ``run`` ended, ISO 8601.
    """

    collection_task_id: str
    run: int | None
    first_run: int | None
    status: str | None = None
    rows: int | None = None
    started_at: str | None = None
    finished_at: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return msgspec.structs.asdict(self)


def follow(
    mark: Mark | None, task_id: str, status: TaskStatus | None, states: Collection[str]
) -> tuple[Mark, EndedRun | None]:
    """Return the mark after a look, and what has ended since ``mark``.

    :param mark: the mark after the look before; None for the first look, which finds nothing ended.
    :param status: what was seen; None if the task was missing from the answer.
    :param states: final states that count as an end.
    """
    now = Mark.of(status)
    if mark is None:
        return now, None
    if status is None:
        return mark, None
    if mark.is_before(now):
        return now, _ended(task_id, status, now, _first_unseen(mark, now), states)
    if now.run != mark.run and mark.run is not None:
        return mark, None  # an answer from before
    if now.ended not in FINAL_STATES or now.ended == mark.ended:
        return _same_run(mark, now, mark.ended), None
    return _same_run(mark, now, now.ended), _ended(task_id, status, now, now.run, states)


def _same_run(mark: Mark, now: Mark, ended: str | None) -> Mark:
    # a run that was told to have ended is not told again, though an old answer shows it going on
    return Mark(run=now.run, started=now.started or mark.started, ended=ended)


def _first_unseen(mark: Mark, now: Mark) -> int | None:
    if mark.run is None or now.run is None:
        return now.run
    if now.run < mark.run:
        return 1  # the count began anew
    return max(1, mark.run if mark.ended is None else min(mark.run + 1, now.run))


def _ended(
    task_id: str, status: TaskStatus, now: Mark, first: int | None, states: Collection[str]
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
