"""The life of a run: everything follows from when its sub-tasks were started and what time it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_webcollect.sandbox.rows import Rows, Span

UNEXECUTED = "Unexecuted"
WAITING = "Waiting"
SENT = "Sent"
EXTRACTING = "Extracting"
STOPPED = "Stopped"
FINISHED = "Finished"


@dataclass(eq=False)
class Run:
    """
    One execution of a task; its rows are one batch. All times are sandbox time.

    :param number: 1 for the task's first run.
    :param lotno: batch number.
    :param rows: where its rows come from.
    :param planned: rows that it collects when all sub-tasks are started.
    :param subtasks: how many sub-tasks the task has.
    :param wait: seconds until the last sub-task collects.
    :param duration: seconds from then until the last sub-task has finished.
    :param started: when each sub-task, by number from 0, was started.
    :param shown_from: until then a status query still shows the run before.
    """

    number: int
    lotno: str
    rows: Rows
    planned: int
    subtasks: int
    wait: float
    duration: float
    started: dict[int, float] = field(default_factory=dict)
    shown_from: float = 0.0
    stopped_at: float | None = None
    more_rows: int = 0
    exported_rows: int = 0

    @property
    def began(self) -> float:
        """When the first sub-task was started."""
        return min(self.started.values())

    def collects_from(self) -> float:
        """When the first sub-task begins to collect, if the run is not stopped before."""
        return min(self._times(number)[1] for number in self.started)

    def ends(self) -> float:
        """When the run is over, if nothing is started or stopped any more."""
        end = max(self._times(number)[2] for number in self.started)
        return end if self.stopped_at is None else min(end, self.stopped_at)

    def active(self, now: float) -> bool:
        """Whether it waits or collects."""
        return now < self.ends()

    def subtask_status(self, number: int, now: float) -> str:
        """Status of a sub-task that was started in this run."""
        sent, begin, end = self._times(number)
        if self.stopped_at is not None and self.stopped_at < min(now, end):
            return STOPPED
        if now < sent:
            return WAITING
        if now < begin:
            return SENT
        return EXTRACTING if now < end else FINISHED

    def status(self, now: float) -> str:
        """Status of the task while this is its latest run."""
        found = {self.subtask_status(number, now) for number in self.started}
        if STOPPED in found:
            return STOPPED
        if found == {FINISHED}:
            return FINISHED
        return EXTRACTING if found & {EXTRACTING, FINISHED} else WAITING

    def row_count(self, now: float) -> int:
        """Rows collected so far."""
        return max(0, self._collected(now) + self.more_rows)

    def extract_count(self, now: float) -> int:
        """Rows collected so far before duplicates were removed: 1 in 40 more."""
        count = self.row_count(now)
        return count + count // 40

    def readable(self, now: float, delay: float) -> Span:
        """The rows that a data read gets; with a ``delay``, none before so long after the end."""
        hidden = delay > 0 and now < self.ends() + delay
        return Span(self.rows, 0 if hidden else self.row_count(now))

    def _collected(self, now: float) -> int:
        if self.stopped_at is not None:
            now = min(now, self.stopped_at)
        return sum(self._collected_by(number, now) for number in self.started)

    def _collected_by(self, number: int, now: float) -> int:
        share = self.planned // self.subtasks + (number < self.planned % self.subtasks)
        _, begin, end = self._times(number)
        if now >= end:
            return share
        return int(share * (now - begin) / (end - begin)) if now > begin else 0

    def _times(self, number: int) -> tuple[float, float, float]:
        """When a sub-task is sent, begins and ends; one after the other, the last at the very end."""
        start, lag = self.started[number], number / self.subtasks
        return (
            start + self.wait * (0.4 + 0.2 * lag),
            start + self.wait * (0.8 + 0.2 * lag),
            start + self.wait + self.duration * (0.6 + 0.4 * (number + 1) / self.subtasks),
        )
