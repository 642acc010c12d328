"""The commands that show what the service says of its tasks."""

from __future__ import annotations

import datetime
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

from airflow_provider_webcollect.cli.connecting import connect, connection_options
from airflow_provider_webcollect.cli.output import output_option, printable, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_webcollect.cli.connecting import ServiceAccess
    from airflow_provider_webcollect.service.models import AnalyticsRow, TaskStatus

#: The days of analytics in which `status` looks for the account's tasks.
RECENT_DAYS = 30
STATUS = ("task", "name", "status", "rows", "sub_tasks", "runs", "started", "ended", "next_run")
COUNTS = (
    "extracting_count",
    "waiting_count",
    "finished_count",
    "waiting_sub_task_count",
    "executing_sub_task_count",
)
METRICS = ("rows", "rows_without_duplicates", "runs", "succeeded", "seconds_per_run", "cost")
BARS = "▁▂▃▄▅▆▇█"


@click.command(no_args_is_help=False)
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@connection_options
@output_option
def status(tasks: tuple[str, ...], conn_id: str | None, url: str | None, output: str) -> int:
    """Show the state of tasks.

    Rows, sub-tasks, start and end are those of the latest run. Without ids: the tasks that the account's
    analytics name for the last 30 days, and, through Airflow, those of its webcollect assets of the
    connection.

    Exit code 1: the service does not know one of the tasks.
    """
    from airflow_provider_webcollect.waiting.queries import all_task_statuses

    access = connect(conn_id, url)
    with access.client() as client:
        names = {} if tasks else _recent_tasks(client)
        ids = list(dict.fromkeys([*(tasks or names), *(() if tasks else _tasks_of_assets(access))]))
        found = all_task_statuses(client, ids, access.connection.status_batch_size)
    show([status_row(task_id, found.get(task_id), names.get(task_id)) for task_id in ids], output, STATUS)
    if unknown := [printable(task_id) for task_id in dict.fromkeys(tasks) if task_id not in found]:
        click.echo(f"The service does not know {', '.join(unknown)}.", err=True)
    return int(bool(unknown))


def status_row(task_id: str, status: TaskStatus | None, name: str | None = None) -> dict[str, Any]:
    """Return the row of a task for :data:`STATUS`; without a status all but the id and the name is None."""
    known = status.overview() if status else {}
    return dict.fromkeys(STATUS) | {"task": task_id, "name": name} | known


def _recent_tasks(client: Any) -> dict[str, str | None]:
    """Return the names of the account's tasks by id."""
    today = datetime.datetime.now(datetime.UTC).date()
    rows = _analytics(client, today - datetime.timedelta(days=RECENT_DAYS), today)
    return {row.task_id: row.task_name for row in rows}


def _tasks_of_assets(access: ServiceAccess) -> list[str]:
    """Return the tasks of Airflow's webcollect assets that name this connection."""
    if access.hook is None:
        return []
    from airflow.utils.session import create_session
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_provider_webcollect.assets import stored_tasks

    try:
        with create_session() as session:
            return stored_tasks(session).get(access.hook.webcollect_conn_id, [])
    except SQLAlchemyError as error:  # for example of a database that is not set up
        click.echo(f"Without Airflow's assets: {error}", err=True)
        return []


@click.command()
@connection_options
@output_option
def capacity(conn_id: str | None, url: str | None, output: str) -> None:
    """Count the running and waiting tasks and sub-tasks of the account."""
    from airflow_provider_webcollect.service.endpoints import get_running_counts

    with connect(conn_id, url).client() as client:
        counts = client.send(get_running_counts())
    show([counts.as_dict()], output, COUNTS)


@click.command()
@click.option("--from", "start", metavar="DATE", help="The first day; by default 30 days ago.")
@click.option("--to", "end", metavar="DATE", help="The last day; by default today.")
@click.option("--by", type=click.Choice(["day", "week", "month"]), help="A row for each; else one per task.")
@click.option("--task", "tasks", metavar="TASK", multiple=True, help="Only this task; may be repeated.")
@connection_options
@output_option
def analytics(
    start: str | None,
    end: str | None,
    by: str | None,
    tasks: tuple[str, ...],
    conn_id: str | None,
    url: str | None,
    output: str,
) -> None:
    """Show rows, runs, success and cost per task.

    `succeeded` is a share of the runs. A table has a row for each task, with bars of the rows per day, week
    or month; JSON and CSV have a row for each task and day, week or month.
    """

    today = datetime.datetime.now(datetime.UTC).date()
    first = start or today - datetime.timedelta(days=RECENT_DAYS)
    with connect(conn_id, url).client() as client:
        rows = _analytics(
            client,
            first,
            end or today,
            task_ids=list(tasks) or None,
            time_granularity=by and by.capitalize(),
        )
    if by and output != "table":
        show([{by: row.day_key} | _sum([row]) for row in rows], output, (by, "task", "name", *METRICS))
        return
    grouped = defaultdict(list)
    for row in rows:
        grouped[row.task_id].append(row)
    chart = (f"rows per {by}",) if by else ()
    days = sorted({row.day_key for row in rows})
    sums = [_sum(group) | {each: _bars(group, days) for each in chart} for group in grouped.values()]
    show(sums, output, ("task", "name", *METRICS, *chart))


def _analytics(client: Any, start: Any, end: Any, **query: Any) -> list[AnalyticsRow]:
    from airflow_provider_webcollect.service.pages import all_analytics

    rows: list[AnalyticsRow] = all_analytics(client, start=start, end=end, **query)
    return rows


def _sum(rows: Sequence[AnalyticsRow]) -> dict[str, Any]:
    """Return the metrics of a task's rows together."""
    return {"task": rows[0].task_id, "name": rows[0].task_name, **rows[0].total(rows)}


def _bars(rows: Iterable[AnalyticsRow], days: Sequence[str]) -> str:
    """Return a bar for the rows of each day, week or month; the highest is the most, a blank is no row."""
    counts = {row.day_key: row.data_volume_metrics.total_collected or 0 for row in rows}
    most = max(counts.values()) or 1
    bars = {day: BARS[round(count / most * (len(BARS) - 1))] for day, count in counts.items()}
    return "".join(bars.get(day, " ") for day in days)
