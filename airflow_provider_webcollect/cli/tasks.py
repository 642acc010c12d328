"""The commands that show the states and rows of tasks, and the connection's token."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

from airflow_provider_webcollect.cli.connecting import (
    called,
    connect,
    connection_options,
    names_option,
    resolve_tasks,
    task_argument,
    task_names,
)
from airflow_provider_webcollect.cli.output import deferred_interrupt, output_option, show, tell, write
from airflow_provider_webcollect.landing.log.commits import counted
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE, get_running_counts
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.models import (
    AnalyticsRow,
    DataPage,
    RunningCounts,
    SubTask,
    TaskState,
    TaskStatus,
    active_subtask_ids,
)
from airflow_provider_webcollect.service.pages import PageReader, RowCount, all_analytics
from airflow_provider_webcollect.service.tokens import StoredToken
from airflow_provider_webcollect.waiting.conditions import (
    SUBTASKS,
    Ended,
    Outcome,
    TaskStates,
    Wait,
    all_task_statuses,
)
from airflow_provider_webcollect.waiting.runs import Baseline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


#: Days of analytics in which `status` looks for the account's tasks; `analytics` shows as many by default.
RECENT_DAYS = 30
#: The columns of `status`, the most important first: a table without room leaves out the last ones.
STATUS = ("task", "status", "name", "collected", "started", "ended", "sub_tasks", "runs", "next_run")
COUNTS = [name for name in RunningCounts.__struct_fields__ if name != "unknown_fields"]
METRICS = ("collected", "rows_without_duplicates", "runs", "succeeded", "seconds_per_run", "cost")


@click.command(no_args_is_help=False)
@task_argument("task_ids", metavar="[TASK]...", nargs=-1)
@connection_options
@output_option
def status(task_ids: list[str], output: str, **where: Any) -> int:
    """Show the state of tasks.

    Collected rows (duplicates count), start, end and sub-tasks are of the latest run. Without ids, the
    command shows the tasks in the account's analytics of the last 30 days; - reads ids from standard input.

    Exit code 1: the service does not know one of the tasks.
    """
    access = connect(**where)
    with access.client() as client:
        names = {} if task_ids else _recent_tasks(client)
        ids = task_ids or [*names]
        statuses = all_task_statuses(client, ids, access.connection.status_batch_size)
    rows = [status_row(task_id, statuses.get(task_id), names.get(task_id)) for task_id in ids]
    if statuses or not task_ids or output != "table":
        _show_tasks(rows, output, STATUS)
    if unknown := [task_id for task_id in task_ids if task_id not in statuses]:
        tell(f"The service does not know {', '.join(called(unknown))}.")
    return int(bool(unknown))


def _show_tasks(rows: Sequence[Mapping[str, Any]], output: str, columns: Sequence[str]) -> None:
    """Show rows of tasks with their names in the file; a task that it does not name has the service's name.

    If the file names all tasks, ids come later, so that a narrow table leaves them out: commands take names.
    """
    names = task_names(row["task"] for row in rows)
    if output == "table" and all(row["task"] in names for row in rows):
        others = [column for column in columns if column not in {"task", "name"}]
        columns = ["name", *others[:2], "task", *others[2:]]
    show([{**row, "name": names.get(row["task"], row["name"])} for row in rows], output, columns)


def status_row(task_id: str, status: TaskStatus | None, name: str | None = None) -> dict[str, Any]:
    """Return the row of a task for :data:`STATUS`; without a status, all values but id and name are None."""
    facts = _collected(status.overview()) if status else {}
    return dict.fromkeys(STATUS) | {"task": task_id, "name": name} | facts


def _collected(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with ``rows`` under the name ``collected``, since the number includes duplicates."""
    return {"collected" if name == "rows" else name: value for name, value in facts.items()}


def _recent_tasks(client: Any) -> dict[str, str | None]:
    """Return the names, by id, of the account's tasks in the latest analytics."""
    today = datetime.datetime.now(datetime.UTC).date()
    rows = all_analytics(client, start=today - datetime.timedelta(days=RECENT_DAYS), end=today)
    return AnalyticsRow.names(rows)


@click.command()
@connection_options
@output_option
def capacity(output: str, **where: Any) -> None:
    """Count the account's running and waiting tasks and sub-tasks."""
    with connect(**where).client() as client:
        counts = client.send(get_running_counts())
    show([{name: getattr(counts, name) for name in COUNTS}], output, COUNTS)


@click.command()
@click.option("--from", "start", metavar="DATE", help="The first day; by default 30 days ago.")
@click.option("--to", "end", metavar="DATE", help="The last day; by default today.")
@click.option(
    "--by", type=click.Choice(["day", "week", "month"]), help="A line for each; by default one per task."
)
@click.option(
    "--task",
    "task_ids",
    metavar="TASK",
    multiple=True,
    callback=resolve_tasks,
    help="Only this task; may be repeated.",
)
@names_option
@click.option(
    "--member",
    "member_names",
    metavar="NAME",
    multiple=True,
    help="The tasks of this member of the team; may be repeated. By default your own.",
)
@click.option(
    "--method",
    "collection_method",
    type=click.Choice(["cloud", "local", "all"]),
    default="all",
    help="Only rows that were collected there.",
)
@connection_options
@output_option
def analytics(
    start: str | None,
    end: str | None,
    by: str | None,
    task_ids: list[str],
    member_names: tuple[str, ...],
    collection_method: str,
    output: str,
    **where: Any,
) -> None:
    """Show rows, runs, success and cost per task.

    `collected` counts duplicates; `succeeded` is a share of the runs. There is one line for each task; with
    --by, one for each task, user, collection method, and day, week or month.
    """
    today = datetime.datetime.now(datetime.UTC).date()
    first = start or today - datetime.timedelta(days=RECENT_DAYS)
    with connect(**where).client() as client:
        rows = all_analytics(
            client,
            start=first,
            end=end or today,
            task_ids=task_ids or None,
            member_names=member_names,
            collection_method=collection_method.capitalize(),
            time_granularity=by and by.capitalize(),
        )
    if by:
        parts = [
            {by: row.day_key, **_sum([row]), "user": row.user_id, "method": row.collection_method}
            for row in rows
        ]
        _show_tasks(parts, output, (by, "task", "name", "user", "method", *METRICS))
        return
    grouped = defaultdict(list)
    for row in rows:
        grouped[row.task_id].append(row)
    _show_tasks([_sum(group) for group in grouped.values()], output, ("task", "name", *METRICS))


def _sum(rows: Sequence[AnalyticsRow]) -> dict[str, Any]:
    """Return the metrics of a task's rows, summed up."""
    task_id = rows[0].task_id
    name = AnalyticsRow.names(rows)[task_id]
    return {"task": task_id, "name": name, **_collected(AnalyticsRow.total(rows))}


@click.command(no_args_is_help=False)
@click.option("--merge", "collection_tasks", metavar="FILE", help="Merge them into this file.")
@click.option("--dry-run", is_flag=True, help="Only show what --merge would change.")
@connection_options
def discover(collection_tasks: str | None, dry_run: bool, **where: Any) -> None:
    """Write a file of the collection tasks that ran lately.

    The tasks go to standard output, as YAML, each with its id and name, its name in the service, the last day
    with a run, rows and cost. --merge adds new tasks to a file, updates the others except for id and name,
    and changes nothing else in it. Standard error names the tasks that are new, gone (only in the file) or
    renamed by the service since the last merge.

    Tasks that did not run in the last three months cannot be seen, nor can tasks of other members of the
    team.
    """
    from airflow_provider_webcollect import discovery

    if dry_run and collection_tasks is None:
        raise click.UsageError("--dry-run shows what --merge would change: it needs --merge FILE.")
    with connect(**where).client() as client:
        if collection_tasks is not None:
            arguments.text("collection_tasks", collection_tasks)
            differences = discovery.update(collection_tasks, client, write=not dry_run)
        else:
            tasks, _ = discovery.discover(client)
            write(discovery.as_yaml(tasks).encode())
            tell(counted(len(tasks), "task"))
            return
    tell("\n".join(discovery.as_lines(differences)))


log = logging.getLogger(__name__)
#: Seconds after which `follow` gives up on a task that the service does not show, or that is not started.
MISSING_TIMEOUT = 60.0


@click.command()
@task_argument("task_ids", metavar="TASK...", nargs=-1, required=True)
@click.option("--next", "is_next", is_flag=True, help="Follow the run after the current one.")
@click.option("--every", type=click.FloatRange(min=1), default=5.0, help="Seconds between two queries.")
@connection_options
@output_option
def follow(task_ids: list[str], is_next: bool, every: float, output: str, **where: Any) -> int:
    """Follow runs until they end, and show their last state.

    Each change is a line on standard error: the state, the sub-tasks that have ended, and the rows
    (duplicates count). All tasks share one status query. Temporary errors of the service are reported and do
    not end the command. The service may not show a run that was started in the last minute yet: --next waits
    for it.

    Exit code 1: a run was stopped, or a task was unknown or not started for a minute; standard error says
    which.
    """
    access = connect(**where)
    names = {task_id: task_id for task_id in task_ids} | task_names(task_ids)
    seen: dict[str, TaskStatus] = {}
    ends: dict[str, Ended] = {}
    lines: dict[str, str] = {}
    with Client(access.context) as client:
        waits: dict[str, Wait] = {}
        while left := [task_id for task_id in task_ids if task_id not in ends]:
            with _errors_that_may_pass():
                client.reach()
                statuses = all_task_statuses(client, left, access.connection.status_batch_size)
                seen |= statuses
                waits = waits or _waits(task_ids, statuses, is_next)
                for task_id in left:
                    status = statuses.get(task_id)
                    if ended := waits[task_id].judge({task_id: status}):
                        ends[task_id] = ended
                    name = names[task_id]
                    line = _no_run_yet(name, status, is_next) or _line(client, name, seen[task_id])
                    if lines.get(task_id) != line:
                        lines[task_id] = line
                        tell(line)
            if len(ends) < len(task_ids):
                time.sleep(every)
    if seen or output != "table":
        _show_tasks([status_row(task_id, seen.get(task_id)) for task_id in task_ids], output, STATUS)
    failed = {task_id: ended for task_id, ended in ends.items() if ended.outcome is not Outcome.DONE}
    for task_id, ended in failed.items():
        why = f"no run within {MISSING_TIMEOUT:.0f} s; check its id"
        if any(record["status"] == TaskState.STOPPED for record in ended.records or ()):
            why = "its run was stopped"
        tell(f"Task {names[task_id]}: {why}")
    return int(bool(failed))


def _no_run_yet(name: str, status: TaskStatus | None, is_next: bool) -> str | None:
    """Return the message about a task without a run; None if it has one."""
    until = "--next waits until it does" if is_next else f"waiting up to {MISSING_TIMEOUT:.0f} s"
    if status is None:
        return f"The service does not show task {name} yet; {until}."
    if status.status == TaskState.UNEXECUTED:
        return f"Task {name} has never run yet; {until}."
    return None


def _waits(ids: Sequence[str], statuses: dict[str, TaskStatus], is_next: bool) -> dict[str, Wait]:
    return {
        task_id: Wait(
            TaskStates(
                task_ids=(task_id,),
                after={task_id: Baseline.of(statuses.get(task_id))} if is_next else {},
                was_started=False,
                missing_timeout=math.inf if is_next else MISSING_TIMEOUT,
            ),
            time.time(),
            log,
        )
        for task_id in ids
    }


@contextlib.contextmanager
def _errors_that_may_pass() -> Iterator[None]:
    try:
        yield
    except WebCollectError as error:
        if error.permanent:
            raise
        tell(f"Trying again: {error}")


def _line(client: Client, name: str, status: TaskStatus) -> str:
    """Return a line about a run: its state, the sub-tasks that have ended, and its rows."""
    subtasks: list[SubTask] = SUBTASKS.ask(client, [status.task_id]).get(status.task_id, [])
    done = len(subtasks) - len(active_subtask_ids(subtasks))
    rows = status.current_total_extract_count or 0
    counts = f"{done}/{counted(len(subtasks), 'sub-task')}, {rows:,} collected (duplicates count)"
    return f"{name} {status.status}, {counts}"


@click.command()
@task_argument("task_id", metavar="TASK")
@click.option("--lotno", metavar="BATCH", help="Only this batch; by default the whole history.")
@click.option("-n", "--rows", type=click.IntRange(min=1), help="Write at most this many; by default all.")
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    default=0,
    help="Where to begin: the cursor of an earlier command.",
)
@connection_options
def read(task_id: str, lotno: str | None, rows: int | None, offset: int, **where: Any) -> None:
    """Write a task's rows as JSON lines.

    The rows go to standard output as they come. At the end, standard error has the cursor from which to
    continue. Nothing is marked as exported.
    """
    count, left, cursor = 0, 0, offset
    try:
        with connect(**where, patient=True).client() as client:
            for page in _pages(client, task_id, lotno, offset, rows):
                # an interrupt waits until the whole page is written, so that the cursor is right
                with deferred_interrupt():
                    write(b"".join(bytes(row) + b"\n" for row in page.rows))
                    sys.stdout.buffer.flush()
                    count, left, cursor = count + len(page.rows), page.rest_total, page.offset
    except KeyboardInterrupt:
        tell(f"{counted(count, 'row')}; continue with --offset {cursor}")
        raise
    tell(f"{counted(count, 'row')}, {left:,} are left; continue with --offset {cursor}")


def _pages(
    client: Client, task_id: str, lotno: str | None, offset: int, rows: int | None
) -> Iterator[DataPage]:
    if rows is None:
        yield from PageReader(client, task_id, lotno).pages(offset)
        return
    count, is_from_start = RowCount(), offset <= 0
    while rows > 0:
        page = PageReader(client, task_id, lotno, size=min(rows, MAX_DATA_SIZE)).read(offset)
        if is_from_start:
            count.add(len(page.rows), page.total, more=page.rest_total > 0)
        yield page
        if page.rest_total <= 0:
            if is_from_start:
                count.check_end()
            return
        offset, rows = page.offset, rows - len(page.rows)


@click.group()
def token() -> None:
    """Show or renew a connection's access token.

    All processes that use the connection share the token. Its text is not shown.
    """


@token.command("status")
@connection_options
@output_option
def token_status(output: str, **where: Any) -> int:
    """Show the age and expiry of the stored token, and who stored it.

    Nothing is sent.

    Exit code 1: no token is stored, or it has expired, or it belongs to a credential that was replaced since.
    """
    access = connect(**where)
    stored = access.store.load()
    current = access.connection.credentials.lineage_at(access.connection.settings.base_url)
    if stored is None or not stored.descends_from(current):
        why = "none is stored" if stored is None else "the stored one was obtained with another credential"
        tell(f"No token of this connection: {why}.")
        return 1
    _show_token(access.connection.conn_id, stored, output)
    return int(stored.has_ended(time.time()))


@token.command("refresh")
@connection_options
@output_option
def token_refresh(output: str, **where: Any) -> None:
    """Renew the token now, for all processes."""
    access = connect(**where)
    with access.client() as client:
        _show_token(access.connection.conn_id, client.renew_token(), output)


def _show_token(connection: str, token: StoredToken, output: str) -> None:
    now = time.time()
    row = {
        "connection": connection,
        "stored": _instant(token.obtained_at),
        "age_seconds": round(now - token.obtained_at),
        "expires": token.expires_at and _instant(token.expires_at),
        "seconds_left": token.expires_at and round(token.expires_at - now),
        "stored_by": token.stored_by,
    }
    show([row], output)


def _instant(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
