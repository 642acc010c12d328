"""The command that writes a first DAG and its file of collection tasks."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from airflow_provider_webcollect.cli.connecting import DEFAULT_CONN_ID, PREFIX, connect, connection_options
from airflow_provider_webcollect.cli.output import tell
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.landing.log.commits import counted
from airflow_provider_webcollect.service.errors import InvalidArgument, PermissionDenied
from airflow_provider_webcollect.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

TASKS, DAG = "collection_tasks.yaml", "collect.py"
_COLLECT_DAG = re.compile(r"""\b(?i:dag)\(\s*(dag_id\s*=\s*)?["']collect["']""")
_TEXT = """\
import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_provider_webcollect import WebCollectTaskGroup

start = pendulum.datetime({today.year}, {today.month}, {today.day})
with DAG("collect", schedule="@daily", start_date=start, catchup=False, max_active_runs=1) as dag:
    WebCollectTaskGroup("collect", {arguments})
"""
_GIVE_IDS = "Without discovery, give the ids of tasks: webcollect init --id ID"


@click.command(no_args_is_help=False)
@click.argument("folder", metavar="[FOLDER]", default=".", type=click.Path(file_okay=False))
@click.option(
    "--id",
    "task_ids",
    metavar="ID",
    multiple=True,
    help="Write this task instead of the tasks that ran; may be repeated. Nothing is sent.",
)
@click.option(
    "--destination",
    metavar="URL",
    help="Where rows land, with {name} or {id} in it; by default landed/{name} in the current folder.",
)
@connection_options
def init(
    folder: str, task_ids: tuple[str, ...], destination: str | None, conn_id: str | None, url: str | None
) -> int:
    """Write a first DAG and its file of tasks.

    FOLDER, by default the current one, gets two files: collection_tasks.yaml has the tasks that ran in the
    last three months, as `discover` writes them; and collect.py has a DAG that collects and lands them every
    day. Standard output has the commands to run next. Nothing is written if one of the files exists, or a DAG
    `collect`. On a terminal, the command asks for the connection if none is given.

    Exit code 1: no task ran in the last three months.
    """
    from airflow_provider_webcollect import discovery
    from airflow_provider_webcollect.collection_tasks import CollectionTask, folded, id_or_name

    place = Path(folder).expanduser().resolve()
    _refuse_existing(place)
    arguments = {"collection_tasks": TASKS, "destination": _checked(destination)}
    ids = {folded(task_id): id_or_name("task_ids", task_id) for task_id in task_ids}
    _refuse_equal_names(ids.values())
    tasks = [CollectionTask(id=task_id, name=task_id) for task_id in ids.values()]
    if tasks and url is not None:
        _refuse_wrong(url)
    if not tasks:
        if conn_id is None and url is None and sys.stdin.isatty():
            conn_id, url = _asked()
        try:
            with connect(conn_id, url).client() as client:
                tasks, _ = discovery.discover(client)
        except PermissionDenied:
            tell(_GIVE_IDS)
            raise
    if not tasks:
        tell(f"No task ran in the last three months. {_GIVE_IDS}")
        return 1
    if conn_id not in (None, DEFAULT_CONN_ID):
        arguments["webcollect_conn_id"] = conn_id
    shown = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    dag = _TEXT.format(today=datetime.date.today(), arguments=shown)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument("folder", str(place), f"it cannot be created: {error.strerror}") from error
    discovery.write_new({place / TASKS: discovery.as_yaml(tasks), place / DAG: dag})
    tell(f"Wrote {place / TASKS} with {counted(len(tasks), 'task')}, and {place / DAG}. Next:")
    if url is not None and conn_id is None:
        click.echo(_airflow_connection(url))
    click.echo(f"AIRFLOW__CORE__DAGS_FOLDER={shlex.quote(str(place))} airflow dags test collect")
    return 0


def _refuse_existing(place: Path) -> None:
    """Raise :class:`.InvalidArgument` if a folder already has one of the files, or a DAG with the same id."""
    taken = [name for name in (TASKS, DAG) if (place / name).exists()]
    for path in sorted(place.glob("*.py")):
        # not every match is a file that can be read: an editor's lock is a dangling link
        with contextlib.suppress(OSError):
            if _COLLECT_DAG.search(path.read_text("utf-8", errors="replace")):
                taken.append(f"a DAG `collect` in {path.name}")
    if taken:
        raise InvalidArgument("folder", str(place), f"{taken[0]} is there already, so nothing was written")


def _refuse_equal_names(task_ids: Iterable[str]) -> None:
    """Raise :class:`.InvalidArgument` if two tasks would have the same id, or the same table, in the DAG."""
    from airflow_provider_webcollect.collection_tasks import table_name

    named: dict[str, str] = {}
    for task_id in task_ids:
        if (other := named.setdefault(table_name(task_id), task_id)) != task_id:
            rule = (
                f"its Airflow id would be the same as that of {other!r}: leave one out, and add it to the "
                "file with another name"
            )
            raise InvalidArgument("task_ids", task_id, rule)


def _refuse_wrong(url: str) -> None:
    """Raise :class:`.InvalidArgument` if a URL cannot be the service's; its secrets are not shown."""
    try:
        Settings(base_url=url)
    except InvalidArgument as error:
        raise InvalidArgument("url", None, error.rule, as_text=error.value) from None


def _checked(destination: str | None) -> str:
    """Return the destination of all tasks; raise :class:`.InvalidArgument` if they would share a folder."""
    from airflow_provider_webcollect.collection_tasks import CollectionTask, filled

    text = destination or f"file://{Path.cwd()}/landed/{{name}}"
    of_one = filled("destination", text, CollectionTask(id="-", name="-"))
    if of_one == text:
        raise InvalidArgument("destination", text, "it must have {name} or {id} in it")
    Location.parse("destination", of_one)
    return text


def _asked() -> tuple[str | None, str | None]:
    """Ask for the connection, and return its id and None, or None and the service's URL."""
    answer = click.prompt("Airflow connection, or the service's URL", default=DEFAULT_CONN_ID, err=True)
    if "://" not in answer:
        return answer, None
    click.get_current_context().set_parameter_source("url", ParameterSource.COMMANDLINE)
    return None, answer


def _airflow_connection(url: str) -> str:
    """Return the command that stores the connection in Airflow, without its secrets."""
    credentials = """--conn-extra '{"refresh_token": "…"}'"""
    if os.environ.get(f"{PREFIX}USERNAME"):
        credentials = f'--conn-login "${PREFIX}USERNAME" --conn-password "${PREFIX}PASSWORD"'
    where = f"--conn-type webcollect --conn-host {shlex.quote(url)}"
    return f"airflow connections add {DEFAULT_CONN_ID} {where} {credentials}"
