"""The account's objects: tasks with their steps and runs, groups and data apps; and the clock."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.data import (
    DEFAULT_FIELDS,
    PRODUCTS,
    Change,
    GivenRows,
    MadeUpRows,
    Products,
    Rows,
    Span,
    read_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_webcollect.sandbox.settings import Settings


class Clock:
    """Real time plus the seconds that :meth:`advance` has added."""

    def __init__(self) -> None:
        self._advanced = 0.0

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time() + self._advanced

    def advance(self, seconds: float) -> float:
        """Move the clock ahead, and return the new time, as :meth:`now`."""
        self._advanced += seconds
        return self.now()


UNEXECUTED = "Unexecuted"
WAITING = "Waiting"
SENT = "Sent"
EXTRACTING = "Extracting"
STOPPED = "Stopped"
FINISHED = "Finished"


@dataclass(eq=False)
class Execution:
    """One execution of a task; its rows are one batch.

    :param number: number of the run; 1 for the task's first one.
    :param lotno: batch number.
    :param rows: the source of its rows.
    :param planned: number of rows that the run collects if all sub-tasks are started.
    :param subtasks: number of the task's sub-tasks.
    :param wait: seconds after the start, by the end of which all sub-tasks collect.
    :param duration: seconds from then until the last sub-task has finished.
    :param started: start time of each started sub-task, by the sub-task's number from 0.
    :param shown_from: time until which status queries still show the previous run.
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
        """The time when the first sub-task was started."""
        return min(self.started.values())

    def ends(self) -> float:
        """Return the time when the run ends, unless something is started or stopped until then."""
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
        statuses = {self.subtask_status(number, now) for number in self.started}
        if STOPPED in statuses:
            return STOPPED
        if statuses == {FINISHED}:
            return FINISHED
        return EXTRACTING if statuses & {EXTRACTING, FINISHED} else WAITING

    def row_count(self, now: float) -> int:
        """Return the number of rows collected so far."""
        now = now if self.stopped_at is None else min(now, self.stopped_at)
        count = self.more_rows
        for number in self.started:
            share = self.planned // self.subtasks + (number < self.planned % self.subtasks)
            _, begin, end = self._times(number)
            count += share if now >= end else int(share * max(0.0, now - begin) / (end - begin))
        return max(0, count)

    def _times(self, number: int) -> tuple[float, float, float]:
        """Return the times when a sub-task is sent, begins and ends.

        Sub-tasks begin and end one after another; the last one ends when the run ends.
        """
        start, lag = self.started[number], number / self.subtasks
        return (
            start + self.wait * (0.4 + 0.2 * lag),
            start + self.wait * (0.8 + 0.2 * lag),
            start + self.wait + self.duration * (0.6 + 0.4 * (number + 1) / self.subtasks),
        )


LOOP_ACTION = "LoopAction"
NAVIGATE_ACTION = "NavigateAction"
ENTER_TEXT_ACTION = "EnterTextAction"


@dataclass
class Action:
    """A step of a task; LoopActions have ``loop_type`` and ``loop_items``, others ``properties``.

    :param is_from_file: whether the loop items were given as a file.
    """

    action_id: str
    action_type: str
    name: str
    loop_type: str = "TextList"
    loop_items: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    is_from_file: bool = False


@dataclass
class Task:
    """One collection task.

    :param rows_per_run: a fixed number of rows per run; ``None``: the table or the loop items determine it.
    :param given_rows: the rows that a run collects instead of generated ones.
    :param marked: a status word that is shown instead of the true one until the next start; ``None``: the
        true one is shown.
    :param changes: changes of the task's rows, which are numbered through all runs.
    :param silent: number of further runs in which a loop item yields no rows, by loop item.
    """

    task_id: str
    name: str
    owner: str
    group_id: int
    subtask_ids: list[str]
    actions: list[Action]
    fields: tuple[str, ...]
    rows_per_run: int | None = None
    given_rows: Sequence[bytes] = ()
    runs: list[Execution] = field(default_factory=list)
    marked: str | None = None
    changes: tuple[Change, ...] = ()
    silent: dict[str, int] = field(default_factory=dict)

    @property
    def loop(self) -> Action:
        """Return the task's loop step."""
        return next(action for action in self.actions if action.action_type == LOOP_ACTION)

    def running(self, now: float) -> bool:
        """Return whether a run is active."""
        return bool(self.runs) and self.runs[-1].active(now)

    def status(self, now: float) -> str:
        """Return the status word that was set; if none was, the true status."""
        return self.marked or (self.runs[-1].status(now) if self.runs else UNEXECUTED)

    def subtask_status(self, number: int, now: float) -> str:
        """Return the status of a sub-task in its latest run; Stopped before its first run.

        The contract has no word for never started, and Waiting would mean that it is about to run.
        """
        runs = (run for run in reversed(self.runs) if number in run.started)
        return next((run.subtask_status(number, now) for run in runs), STOPPED)

    def seen(self, now: float) -> tuple[str, Execution | None]:
        """Return the status word and the run that a status query shows.

        For a while after a start, the query still shows the previous run.
        """
        if self.marked or not self.runs or now >= self.runs[-1].shown_from:
            return self.status(now), self.runs[-1] if self.runs else None
        if len(self.runs) == 1:
            return UNEXECUTED, None
        return self.runs[-2].status(now), self.runs[-2]

    def readable(self, run: Execution, now: float, delay: float) -> Span:
        """Return the rows of a run that can be read now.

        :param delay: seconds after the end of the run during which no row can be read yet; with 0, rows can
            be read as soon as they are collected.
        """
        hidden = delay > 0 and now < run.ends() + delay
        count = 0 if hidden else run.row_count(now)
        if not self.changes:
            return Span(run.rows, count)
        before = sum(earlier.row_count(now) for earlier in self.runs[: run.number - 1])
        changes = tuple(replace(change, from_row=change.from_row - before) for change in self.changes)
        return Span(run.rows, count, changes)

    def stop(self, now: float) -> None:
        """Stop the active run, if there is one."""
        if self.running(now):
            self.runs[-1].stopped_at = now


class DataApp(msgspec.Struct, omit_defaults=True):
    """A published data app, as in the contract; an app without releases has no version."""

    app_name: str
    namespace: str
    status: str
    missing_secrets: list[str]
    version: str | None = None


class World:
    """The account's objects, and how they are created."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.tasks: dict[str, Task] = {}  # by id in lower case
        self.groups = dict(demo.GROUPS)
        self.apps = {
            demo.APP_ID: DataApp("Price watch", demo.USERNAME, "active", ["SHOP_TOKEN"], "1.2.0"),
            demo.UNRELEASED_APP_ID: DataApp("Unreleased", demo.USERNAME, "active", []),
            demo.OTHERS_APP_ID: DataApp("Somebody's app", demo.STRANGER, "active", [], "0.1.0"),
        }
        self._made = 0
        self.table = read_table(settings.data)
        self._add_demo_tasks()

    def find(self, task_id: str) -> Task | None:
        """Return a task by its id; letter case matters only if ``echo_ids`` is ``as_sent``."""
        task = self.tasks.get(task_id.lower())
        exact = self.settings.echo_ids == "as_sent"
        return None if task and exact and task.task_id != task_id else task

    def task(self, task_id: str) -> Task:
        """Return a task of any user.

        :raises ValueError: there is no such task.
        """
        task = self.find(task_id)
        if task is None:
            raise ValueError(f"there is no task {task_id}")
        return task

    def add_task(
        self,
        owner: str = demo.USERNAME,
        task_id: str | None = None,
        name: str | None = None,
        rows: int | Sequence[dict[str, Any]] | None = None,
        subtasks: int | None = None,
        group_id: int | None = None,
        state: str | None = None,
        lots: int | Sequence[int] | None = None,
        fields: Sequence[str] | None = None,
        loop_items: Sequence[str] | None = None,
    ) -> Task:
        """Create a task; see :meth:`Control.add_task` for the parameters.

        :param owner: the user whose task it is.
        :raises ValueError: a task has the id already, or ``lots`` is a number and ``rows`` is not.
        """
        if task_id is not None and task_id.lower() in self.tasks:
            raise ValueError(f"there is a task {task_id} already")
        if isinstance(lots, int):
            if not isinstance(rows, int):
                raise ValueError("lots as a number needs rows as a number")
            lots = [rows] * lots
        new_id = self._new_id()
        task_id = task_id or new_id
        group_id = demo.DEFAULT_GROUP_ID if group_id is None else group_id
        self.groups.setdefault(group_id, f"Group {group_id}")
        task = Task(
            task_id=task_id,
            name=name or f"Task {self._made}",
            owner=owner,
            group_id=group_id,
            subtask_ids=_ids(task_id, "sub-task", subtasks or self.settings.subtasks),
            actions=_actions(task_id, demo.LOOP_ITEMS if loop_items is None else loop_items),
            fields=tuple(fields or DEFAULT_FIELDS),
            rows_per_run=rows if isinstance(rows, int | None) else len(rows),
            given_rows=() if isinstance(rows, int | None) else [msgspec.json.encode(row) for row in rows],
        )
        self.tasks[task_id.lower()] = task
        for number, count in enumerate(lots or ()):
            self._add_finished_run(task, count, ago=3600.0 * (len(lots or ()) - number))
        if state is not None:
            self._set_state(task, state)
        return task

    def copy_task(self, source: Task, group_id: int) -> Task:
        """Copy a task without its runs, changes and silent loop items; steps and sub-tasks get new ids."""
        task_id = self._new_id()
        action_ids = _ids(task_id, "action", len(source.actions))
        copy = replace(
            source,
            task_id=task_id,
            name=f"{source.name} (copy)",
            group_id=group_id,
            subtask_ids=_ids(task_id, "sub-task", len(source.subtask_ids)),
            actions=[
                replace(old, action_id=new) for old, new in zip(source.actions, action_ids, strict=True)
            ],
            runs=[],
            marked=None,
            changes=(),
            silent={},
        )
        self.tasks[task_id] = copy
        return copy

    def start(self, task: Task, subtask_ids: Iterable[str]) -> None:
        """Start sub-tasks: they join the active run; if there is none, a new run begins."""
        now = self.clock.now()
        if not task.running(now):
            run = self._new_run(task)
            task.silent = {item: runs - (item in task.loop.loop_items) for item, runs in task.silent.items()}
            run.shown_from = now + self.settings.stale_seconds / self.settings.speed
            task.runs.append(run)
        task.marked = None
        for subtask_id in subtask_ids:
            task.runs[-1].started.setdefault(task.subtask_ids.index(subtask_id), now)

    def _add_finished_run(self, task: Task, rows: int | None, ago: float) -> None:
        """Add a run that has ended to a task.

        :param rows: number of rows that it collected; ``None``: as many as a run would collect now.
        :param ago: seconds since the run ended.
        """
        run = self._new_run(task)
        if rows is not None:
            run.planned = rows
        start = self.clock.now() - ago - run.wait - run.duration
        run.started = dict.fromkeys(range(run.subtasks), start)
        task.runs.append(run)

    def _new_id(self) -> str:
        self._made += 1
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.settings.seed}/{self._made}"))

    def _new_run(self, task: Task) -> Execution:
        settings, number = self.settings, len(task.runs) + 1
        own_rows = task.given_rows or self.table
        items = tuple(item for item in task.loop.loop_items if task.silent.get(item, 0) <= 0)
        planned = task.rows_per_run
        if planned is None:
            planned = len(own_rows) or len(items) * settings.rows_per_item
        lotno = f"{number:06d}"
        seed = f"{settings.seed}/{task.task_id}"
        rows: Rows
        if own_rows:
            rows = GivenRows(own_rows)
        elif settings.data == PRODUCTS:
            rows = Products(seed, number, task.fields, items, settings.row_bytes)
        else:
            per_item = max(1, -(-planned // max(1, len(items))))
            seed = f"{seed}/{lotno}"
            rows = MadeUpRows(seed, lotno, task.fields, items, per_item, settings.row_bytes)
        wait, duration = settings.wait_seconds / settings.speed, settings.run_seconds / settings.speed
        return Execution(number, lotno, rows, planned, len(task.subtask_ids), wait, duration)

    def columns(self, task: Task) -> set[str]:
        """Return the names of a task's columns, and the names that changes gave to them."""
        rows = (msgspec.json.decode(row, type=dict[str, object]) for row in task.given_rows or self.table)
        renamed = {change.renamed for change in task.changes if change.renamed is not None}
        return ({name for row in rows for name in row} or set(task.fields)) | renamed

    def _set_state(self, task: Task, state: str) -> None:
        """Put a task into a state by a run, if there can be such a run; otherwise only show the word."""
        now = self.clock.now()
        if state in (WAITING, EXTRACTING, STOPPED):
            self.start(task, task.subtask_ids)
            run = task.runs[-1]
            back = 0.0 if state == WAITING else run.wait + run.duration / 2
            run.started = {number: start - back for number, start in run.started.items()}
            run.shown_from = 0.0
            if state == STOPPED:
                task.stop(now)
        elif state == FINISHED and not task.runs:
            self._add_finished_run(task, None, ago=60)
        elif state != task.status(now):
            task.marked = state

    def _add_demo_tasks(self) -> None:
        self.add_task(task_id=demo.TASK_ID, name="Shop search")
        finished = self.add_task(task_id=demo.FINISHED_TASK_ID, name="Price list")
        for days in (2, 1):
            self._add_finished_run(finished, 120, ago=days * 86400)
        self.add_task(task_id=demo.GROUPED_TASK_ID, name="News archive", group_id=2)
        for task_id, owner in (
            (demo.COLLEAGUES_TASK_ID, demo.COLLEAGUE),
            (demo.STRANGERS_TASK_ID, demo.STRANGER),
        ):
            task = self.add_task(owner, task_id=task_id, name="Not yours")
            self._add_finished_run(task, 50, ago=86400)


def _ids(task_id: str, kind: str, count: int) -> list[str]:
    return [str(uuid.uuid5(uuid.NAMESPACE_OID, f"{task_id}/{kind}/{number}")) for number in range(count)]


def _actions(task_id: str, loop_items: Iterable[str]) -> list[Action]:
    loop, page, text = _ids(task_id, "action", 3)
    return [
        Action(loop, LOOP_ACTION, "Loop", loop_items=list(loop_items)),
        Action(page, NAVIGATE_ACTION, "Open page", properties={"Url": "https://shop.example/search"}),
        Action(text, ENTER_TEXT_ACTION, "Enter text", properties={"TextToSet": ""}),
    ]
