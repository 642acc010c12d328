"""The life of a run, determined by the start times of its sub-tasks and the current time."""

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
    :param rows: the source of its rows.
    :param planned: rows that it collects if all sub-tasks are started.
    :param subtasks: number of the task's sub-tasks.
    :param wait: seconds until the last sub-task collects.
    :param duration: seconds from then until the last sub-task has finished.
    :param started: start time of each started sub-task, by number from 0.
    :param shown_from: until then a status query still shows the previous run.
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
        """Return when the first sub-task begins to collect, if the run is not stopped before."""
        return min(self._times(number)[1] for number in self.started)

    def ends(self) -> float:
        """Return when the run ends, if nothing more is started or stopped."""
        end = max(self._times(number)[2] for number in self.started)
        return end if self.stopped_at is None else min(end, self.stopped_at)

    def active(self, now: float) -> bool:
        """Return whether the run is waiting or collecting."""
        return now < self.ends()

    def subtask_status(self, number: int, now: float) -> str:
        """Return the status of a sub-task that was started in this run."""
        sent, begin, end = self._times(number)
        if self.stopped_at is not None and self.stopped_at < min(now, end):
            return STOPPED
        if now < sent:
            return WAITING
        if now < begin:
            return SENT
        return EXTRACTING if now < end else FINISHED

    def status(self, now: float) -> str:
        """Return the status of the task while this is its latest run."""
        found = {self.subtask_status(number, now) for number in self.started}
        if STOPPED in found:
            return STOPPED
        if found == {FINISHED}:
            return FINISHED
        return EXTRACTING if found & {EXTRACTING, FINISHED} else WAITING

    def row_count(self, now: float) -> int:
        """Return the number of rows collected so far."""
        return max(0, self._collected(now) + self.more_rows)

    def extract_count(self, now: float) -> int:
        """Return the number of rows collected so far before removing duplicates, which is 1 in 40 more."""
        count = self.row_count(now)
        return count + count // 40

    def readable(self, now: float, delay: float) -> Span:
        """Return the rows that a data read sees; with a ``delay``, none until that long after the end."""
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
        """Return when a sub-task is sent, begins and ends; one after the other, the last at the very end."""
        start, lag = self.started[number], number / self.subtasks
        return (
            start + self.wait * (0.4 + 0.2 * lag),
            start + self.wait * (0.8 + 0.2 * lag),
            start + self.wait + self.duration * (0.6 + 0.4 * (number + 1) / self.subtasks),
        )
