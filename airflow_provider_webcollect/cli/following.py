"""The command that follows runs of tasks until they end."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import time
from typing import TYPE_CHECKING

import click

from airflow_provider_webcollect.cli.connecting import connect, connection_options
from airflow_provider_webcollect.cli.output import console, output_option, printable, show
from airflow_provider_webcollect.cli.tasks import STATUS, status_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from airflow_provider_webcollect.service.models import SubTask, TaskStatus
    from airflow_provider_webcollect.service.sync import Client
    from airflow_provider_webcollect.waiting.wait import Wait

log = logging.getLogger(__name__)
#: Seconds after which a task that the service leaves out, or that is not started, is not followed any more.
MISSING_TIMEOUT = 60.0


@click.command()
@click.argument("tasks", metavar="TASK...", nargs=-1, required=True)
@click.option("--next", "is_next", is_flag=True, help="Follow the run after the one that is shown now.")
@click.option(
    "--every",
    type=click.FloatRange(min=1),
    default=5.0,
    help="Seconds between two queries.",
)
@connection_options
@output_option
def follow(
    tasks: tuple[str, ...], is_next: bool, every: float, conn_id: str | None, url: str | None, output: str
) -> int:
    """Follow runs until they end, and show their last state.

    On a terminal each task has a bar of its sub-tasks, with its rows; elsewhere each change is a line. One
    status query is for all tasks. Errors of the service that may pass are said, and do not end it. A run that
    was started in the last minute may not be shown yet: --next waits for it.

    Exit code 1: a run was stopped, or a task is not known, or not started, for a minute.
    """
    from airflow_provider_webcollect.service.sync import Client
    from airflow_provider_webcollect.waiting.outcome import Outcome
    from airflow_provider_webcollect.waiting.queries import all_task_statuses

    access = connect(conn_id, url)
    ids = list(dict.fromkeys(tasks))
    seen: dict[str, TaskStatus] = {}
    outcomes: dict[str, Outcome] = {}
    with Client(access.context) as client, _Display(ids) as display:
        waits: dict[str, Wait] = {}
        while left := [task_id for task_id in ids if task_id not in outcomes]:
            with _errors_that_may_pass(display):
                client.reach()
                found = all_task_statuses(client, left, access.connection.status_batch_size)
                seen |= found
                waits = waits or _waits(ids, found, is_next)
                for task_id in left:
                    ended = waits[task_id].judge({task_id: found.get(task_id)})
                    if ended:
                        outcomes[task_id] = ended.outcome
                    display.show(task_id, found.get(task_id), _subtasks(client, task_id, found.get(task_id)))
            if len(outcomes) < len(ids):
                time.sleep(every)
    show([status_row(task_id, seen.get(task_id)) for task_id in ids], output, STATUS)
    return int(any(outcome is not Outcome.DONE for outcome in outcomes.values()))


def _waits(ids: Sequence[str], found: dict[str, TaskStatus], is_next: bool) -> dict[str, Wait]:
    from airflow_provider_webcollect.waiting.baseline import Baseline
    from airflow_provider_webcollect.waiting.conditions import TaskStates
    from airflow_provider_webcollect.waiting.wait import Wait

    return {
        task_id: Wait(
            TaskStates(
                task_ids=(task_id,),
                after={task_id: Baseline.of(found.get(task_id))} if is_next else {},
                was_started=False,
                missing_timeout=math.inf if is_next else MISSING_TIMEOUT,
            ),
            time.time(),
            log,
        )
        for task_id in ids
    }


@contextlib.contextmanager
def _errors_that_may_pass(display: _Display) -> Iterator[None]:
    from airflow_provider_webcollect.service.errors import WebCollectError

    try:
        yield
    except WebCollectError as error:
        if error.permanent:
            raise
        display.say(f"Trying again: {error}")


def _subtasks(client: Client, task_id: str, status: TaskStatus | None) -> list[SubTask]:
    """Return the sub-tasks of a run that has some."""
    from airflow_provider_webcollect.service.models import TaskState
    from airflow_provider_webcollect.waiting.queries import SUBTASKS

    if status is None or status.status == TaskState.UNEXECUTED:
        return []
    found: list[SubTask] = SUBTASKS.ask(client, [task_id]).get(task_id, [])
    return found


class _Display:
    """Shows the states of tasks on standard error: on a terminal as bars, elsewhere as a line per change."""

    def __init__(self, ids: Sequence[str]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        texts = [TextColumn("{task.description}"), TextColumn("{task.fields[status]}")]
        counts = [BarColumn(), TextColumn("{task.fields[counts]}")]
        to = console(stderr=True)
        self._is_live = to.is_terminal
        self._progress = Progress(*texts, *counts, console=to, transient=True)
        self._bars = {
            task_id: self._progress.add_task(printable(task_id), total=None, status="", counts="")
            for task_id in ids
        }
        self._lines: dict[str, str] = {}
        self._began = time.monotonic()

    def __enter__(self) -> _Display:
        if self._is_live:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_live:
            self._progress.stop()

    def show(self, task_id: str, status: TaskStatus | None, subtasks: Sequence[SubTask]) -> None:
        """Show the state of a task; None if the service left it out."""
        from airflow_provider_webcollect.service.models import ACTIVE_SUBTASK_STATES

        done = sum(subtask.status not in ACTIVE_SUBTASK_STATES for subtask in subtasks)
        rows = (status and status.current_total_extract_count) or 0
        counts = f"{done}/{len(subtasks)} sub-tasks, {rows:,} rows"
        shown = printable(status.status) if status else "unknown"
        # not rich's own clock, which stops at a full bar: the run before the next one has one
        elapsed = datetime.timedelta(seconds=round(time.monotonic() - self._began))
        self._progress.update(
            self._bars[task_id],
            completed=done,
            total=len(subtasks) or None,
            status=shown,
            counts=f"{counts} {elapsed}",
        )
        line = f"{printable(task_id)} {shown}, {counts}"
        if not self._is_live and self._lines.get(task_id) != line:
            self._lines[task_id] = line
            self.say(line)

    def say(self, text: str) -> None:
        """Write a line, above the bars if there are some."""
        self._progress.console.print(text, soft_wrap=True)
