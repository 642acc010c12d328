"""The commands that change tasks, task groups and data apps, or read facts for such changes."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from airflow_provider_webcollect.cli.connecting import (
    called,
    connect,
    connection_options,
    ids_of,
    lines_of,
    task_argument,
)
from airflow_provider_webcollect.cli.output import as_json, ask, declared_option, output_option, show, tell
from airflow_provider_webcollect.landing.log.commits import counted
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    NotFound,
    RequestRejected,
    TaskBusy,
    only_a_key,
)
from airflow_provider_webcollect.service.models import (
    Action,
    ActionType,
    CopiedTask,
    CopyResult,
    FailedCopy,
    LoopType,
    active_subtask_ids,
)
from airflow_provider_webcollect.service.pages import all_subtasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider_webcollect.service.client import Client
    from airflow_provider_webcollect.service.endpoints import Call

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

COPIES = ("task", "group", "copy", "name", "failure")
ACTIONS = ("action_id", "action_type", "name", "loop_type", "values", "properties", "task")
#: Maximum number of ids that a question names.
NAMED = 5
APP = ("app_name", "status", "namespace", "version", "missing_secrets")


def _values(context: click.Context, parameter: click.Parameter, file: BinaryIO | None) -> list[str]:
    """Return the lines of a file; none if there is no file."""
    if file is None:
        return []
    data = file.read()
    if file is sys.stdin.buffer:  # stays open: the command still asks whether it is a terminal
        return lines_of(data, parameter, "-")
    file.close()
    return lines_of(data, parameter, file.name)


def _properties(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> list[dict[str, str]]:
    pairs = []
    for value in values:
        name, separator, text = value.partition("=")
        if not (name and separator):
            raise InvalidArgument(str(parameter.name), value, "it must be of the form NAME=VALUE")
        pairs.append({"name": name, "value": text})
    return pairs


_tasks_argument = task_argument("task_ids", metavar="TASK...", nargs=-1, required=True)
_task_argument = task_argument("task_id", metavar="TASK")
_action_argument = click.argument("action_id", metavar="ACTION")
_yes_option = click.option("--yes", is_flag=True, help="Do not ask on the terminal.")


def _sending_options(command: F) -> F:
    """Add the options of a command that changes something; :func:`_send` takes their values."""
    dry_run = click.option("--dry-run", is_flag=True, help="Show what would be sent, and change nothing.")
    return dry_run(connection_options(output_option(command)))


def _send(call: Call[T], output: str, question: str = "", **sending: Any) -> T:
    """Send a call and return its result; for the arguments see :func:`_client_for`."""
    with _client_for([call], output, question, **sending) as client:
        return client.send(call)


def _client_for(
    calls: Sequence[Call[Any]],
    output: str,
    question: str = "",
    *,
    conn_id: str | None,
    url: str | None,
    dry_run: bool,
    yes: bool = False,
) -> Client:
    """Return a client that sends the calls.

    :param question: the question to ask on the terminal first, unless ``yes`` is set; empty for none.
    :raises Exit: if nothing is sent, since the calls of a dry run were shown, or the answer is no.
    :raises UsageError: if there is no terminal for the question.
    """
    if dry_run:
        _show_calls(calls, output)
        raise click.exceptions.Exit
    if question and not yes:
        ask(question)
    return connect(conn_id, url).client()


def _show_calls(calls: Sequence[Call[Any]], output: str) -> None:
    rows = []
    for call in calls:
        file = {"file": f"{call.file.name}, {call.file.count:,} URLs"} if call.file else {}
        body = call.body or {**call.form, **file} or None
        text = body if output == "json" or body is None else as_json(body)
        endpoint = call.endpoint
        rows.append({"endpoint": endpoint.name, "method": endpoint.method, "path": call.target, "body": text})
    show(rows, output)
    tell("Nothing was changed.")


def _deletion(ids: Sequence[object], what: str) -> str:
    """Return the question before a deletion, which names the first ids."""
    some = ", ".join(map(str, ids[:NAMED])) + (", …" if len(ids) > NAMED else "")
    return f"Delete {counted(len(ids), what)} ({some})?"


@click.command()
@_tasks_argument
@connection_options
@output_option
def subtasks(task_ids: list[str], output: str, **where: Any) -> None:
    """Show the sub-tasks of tasks and their states.

    The sub-tasks are of each task's latest batch. `-` as TASK: the ids on standard input, one per line.
    """
    with connect(**where).client() as client:
        batches = {task_id: all_subtasks(client, task_id) for task_id in task_ids}
    rows = [
        {"task": task_id, "sub_task": subtask.sub_task_id, "status": subtask.status}
        for task_id, batch in batches.items()
        for subtask in batch
    ]
    show(rows, output, ("sub_task", "status", "task"))


@click.group()
def task() -> None:
    """Copy, move, set up, start and delete tasks.

    `-` as TASK, where several are allowed: the ids on standard input, one per line.

    `copy`, `start` and `set-loop --append` may have been carried out although no response came; the error
    then says what to check. The other commands can be repeated: the result is the same.
    """


@task.command()
@_tasks_argument
@declared_option(endpoints.copy_task, "group_id", "--group", metavar="ID", multiple=True)
@_sending_options
def copy(task_ids: list[str], group_id: tuple[int, ...], output: str, **sending: Any) -> int:
    """Copy tasks.

    Each task is copied to each group, one after another; the column `copy` has the new ids. If no response
    comes, copies may have been made nevertheless: check before you repeat the command.

    Exit code 1: some copies were not made; the column `failure` and standard error say which, and why.
    """
    calls = {
        (task_id, to_group): endpoints.copy_task(task_id, to_group)
        for task_id in task_ids
        for to_group in group_id or (None,)
    }
    with _client_for([*calls.values()], output, **sending) as client:
        result = _copy_each(client, calls, output)
    if result.shortfall:
        tell(result.shortfall)
    return int(bool(result.shortfall))


def _copy_each(
    client: Client, calls: Mapping[tuple[str, int | None], Call[CopiedTask]], output: str
) -> CopyResult:
    """Copy tasks one after another and show the copies; an error of a single task does not stop the others.

    :param calls: the calls by the id of the task and the id of the group; None for the task's own group.
    """
    rows: list[dict[str, Any]] = []
    failed: list[FailedCopy] = []
    try:
        for (task_id, group_id), call in calls.items():
            group = None if group_id is None else str(group_id)
            row: dict[str, Any] = dict.fromkeys(COPIES) | {"task": task_id, "group": group}
            try:
                copied = client.send(call)
                row |= {"copy": copied.task_id, "name": copied.task_name}
            except (NotFound, RequestRejected, TaskBusy) as error:
                failed.append(FailedCopy(task_id=called([task_id])[0], reason=error.message))
                row["failure"] = error.message
            rows.append(row)
    finally:
        # even if an error or an interrupt has ended the copying
        if rows:
            show(rows, output, COPIES, whole=True)
        if len(calls) > 1 and (left := [*calls][len(rows) :]):
            tell(f"Stopped at task {called([left[0][0]])[0]}; not tried: {len(left) - 1}")
    made = len(rows) - len(failed)
    return CopyResult(request_count=len(rows), success_count=made, failed_tasks=tuple(failed))


@task.command()
@_task_argument
@declared_option(endpoints.move_task, "group_id", "--group", metavar="ID")
@_sending_options
def move(task_id: str, group_id: int, output: str, **sending: Any) -> int:
    """Move a task to a group.

    Exit code 1: the service did not move the task.
    """
    if not _send(endpoints.move_task(task_id, group_id), output, **sending).moved:
        tell("The service did not move the task: it may be in that group already.")
        return 1
    show([{"task": task_id, "group": str(group_id)}], output)
    return 0


@task.command()
@_tasks_argument
@_yes_option
@_sending_options
def delete(task_ids: list[str], output: str, **sending: Any) -> None:
    """Delete tasks, after a question."""
    _send(endpoints.delete_tasks(task_ids), output, _deletion(called(task_ids), "task"), **sending)
    show([{"task": task_id} for task_id in task_ids], output, whole=True)


@task.command()
@_tasks_argument
@declared_option(endpoints.get_actions, "action_types", "--type")
@connection_options
@output_option
def actions(task_ids: list[str], action_types: tuple[str, ...], output: str, **where: Any) -> int:
    """Show the steps of tasks and their settings.

    A table and CSV have the number of a loop's values; JSON has the values.

    Exit code 1: the service does not know one of the tasks.
    """
    call = endpoints.get_actions(task_ids, action_types or tuple(ActionType))
    with connect(**where).client() as client:
        steps_by_task = {task.task_id: task.actions for task in client.send(call)}
    is_json = output == "json"
    rows = [
        {"task": task_id, **_row(action), **(action.as_dict() if is_json else {})}
        for task_id, steps in steps_by_task.items()
        for action in steps
    ]
    if steps_by_task or output != "table":
        show(rows, output, ACTIONS)
    answered = {task_id.lower() for task_id in steps_by_task}
    unknown = [task_id for task_id in task_ids if task_id.lower() not in answered]
    if unknown:
        tell(f"The service does not know {', '.join(called(unknown))}.")
    return int(bool(unknown))


def _row(action: Action) -> dict[str, Any]:
    pairs = [f"{pair.name}={pair.value or ''}" for pair in action.properties or ()]
    return {
        "action_id": action.action_id,
        "action_type": action.action_type,
        "name": action.name,
        "loop_type": action.loop_type,
        "values": None if action.loop_items is None else len(action.loop_items),
        "properties": ", ".join(pairs) or None,
    }


@task.command("set-loop")
@_task_argument
@_action_argument
@declared_option(
    endpoints.update_loop_items,
    "loop_type",
    "--type",
    type=click.Choice([*map(str, LoopType)], case_sensitive=False),
    metavar=f"[{'|'.join(LoopType)}]",
)
@declared_option(endpoints.update_loop_items, "loop_items", "--item", metavar="VALUE", required=False)
@click.option(
    "--file",
    type=click.File("rb"),
    callback=_values,
    metavar="FILE",
    help="A text file with a value on each line, or - for standard input.",
)
@declared_option(endpoints.update_loop_items, "is_append", "--append")
@_yes_option
@_sending_options
def set_loop(
    task_id: str,
    action_id: str,
    loop_type: str,
    loop_items: tuple[str, ...],
    file: list[str],
    is_append: bool,
    output: str,
    **sending: Any,
) -> None:
    """Set the values of a loop step.

    The values replace the present ones, after a question; with --append they are added. `webcollect task
    actions` shows the steps.

    If no response to --append comes, the values may have been added nevertheless: check before you repeat the
    command.
    """
    values = [*loop_items, *file]
    call = endpoints.update_loop_items(task_id, action_id, loop_type, values, is_append)
    question = f"Overwrite all values of step {action_id} with {counted(len(values), 'value')}?"
    message = _send(call, output, "" if is_append else question, **sending).message
    row = {"task": task_id, "action_id": action_id, "values": len(values), "message": message}
    show([row], output)


@task.command("set-params")
@_task_argument
@_action_argument
@click.argument("properties", metavar="NAME=VALUE...", nargs=-1, required=True, callback=_properties)
@declared_option(
    endpoints.StepParameters, "action_type", "--type", default=str(ActionType.ENTER_TEXT), required=False
)
@_sending_options
def set_params(
    task_id: str,
    action_id: str,
    properties: list[dict[str, str]],
    action_type: str,
    output: str,
    **sending: Any,
) -> None:
    """Set parameters of a step.

    For example, TextToSet=shoes sets the text of a step that enters text. `webcollect task actions` shows the
    steps and their parameters.
    """
    step = {"action_type": action_type, "action_id": action_id, "properties": properties}
    _send(endpoints.update_task_parameters(task_id, actions=[step]), output, **sending)
    rows = [{"task": task_id, "action_id": action_id, "property": pair["name"]} for pair in properties]
    show(rows, output, whole=True)


@task.command("replace-urls")
@_task_argument
@click.argument("file")
@_yes_option
@_sending_options
def replace_urls(task_id: str, file: str, output: str, **sending: Any) -> None:
    """Replace a task's URLs with the URLs of a file.

    FILE has one http(s) URL on each line, and is checked before anything is sent; - is standard input.
    """
    from airflow_provider_webcollect.service.url_file import url_file

    urls = url_file(io.BytesIO(sys.stdin.buffer.read()) if file == "-" else file)
    question = f"Overwrite all URLs of task {called([task_id])[0]} with {urls.count:,}?"
    _send(endpoints.replace_urls(task_id, urls), output, question, **sending)
    show([{"task": task_id, "urls": urls.count}], output)


@task.command()
@_task_argument
@click.option(
    "--subtask",
    "subtask_ids",
    metavar="ID",
    multiple=True,
    callback=ids_of,
    help="Only this sub-task; may be repeated. By default all of the latest batch.",
)
@_sending_options
def start(task_id: str, subtask_ids: list[str], dry_run: bool, output: str, **where: Any) -> int:
    """Start the sub-tasks of a task, and show which were started.

    Sub-tasks that are waiting or running are not started again. An API key alone cannot read their states:
    then all sub-tasks named by --subtask are started.

    If no response comes, the sub-tasks may have been started nevertheless: check with `webcollect status`.

    Exit code 1: there are no sub-tasks.
    """
    access = connect(**where)
    is_blind = access.connection.credentials.key_only
    if is_blind and not subtask_ids:
        raise only_a_key("finding the sub-tasks", "start_subtasks", "name them with --subtask")
    with access.client() as client:
        batch = [] if is_blind else all_subtasks(client, task_id)
        wanted = subtask_ids or [subtask.sub_task_id for subtask in batch]
        active = active_subtask_ids(batch)
        idle = [subtask_id for subtask_id in wanted if subtask_id.lower() not in active]
        if idle:
            call = endpoints.start_subtasks(task_id, idle)
            if dry_run:
                _show_calls([call], output)
                return 0
            client.send(call)
    started = [{"task": task_id, "sub_task": subtask_id} for subtask_id in idle]
    show(started, output, ("sub_task", "task"), whole=True)
    tell(f"Started: {len(idle)}; {len(wanted) - len(idle)} already active")
    return int(not wanted)


@task.command("mark-exported")
@_task_argument
@_yes_option
@_sending_options
def mark_exported(task_id: str, output: str, **sending: Any) -> None:
    """Confirm a task's export, after a question.

    All rows that the task has collected then count as exported, whether they were read or not.
    """
    question = f"Confirm that all rows of task {called([task_id])[0]} are exported?"
    _send(endpoints.mark_exported(task_id), output, question, **sending)
    show([{"task": task_id}], output)


@click.group()
def group() -> None:
    """Delete task groups."""


@group.command("delete")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True, callback=ids_of)
@_yes_option
@_sending_options
def delete_groups(group_ids: list[Any], output: str, **sending: Any) -> None:
    """Delete task groups, after a question.

    `-` as GROUP: the ids on standard input, one per line.
    """
    question = _deletion(group_ids, "task group")
    _send(endpoints.delete_task_groups(group_ids), output, question, **sending)
    show([{"group": group_id} for group_id in group_ids], output, whole=True)


@click.group()
def app() -> None:
    """Deprecate a data app."""


@app.command()
@click.argument("app_id", metavar="APP")
@_yes_option
@_sending_options
def deprecate(app_id: str, output: str, **sending: Any) -> None:
    """Deprecate a data app, after a question.

    The app disappears from the marketplace's search, and accepts no new releases. Only its author can do
    that, with the connection's data-app API key.
    """
    call = endpoints.deprecate_data_app(app_id)
    deprecated = _send(call, output, f"Deprecate the data app {app_id}?", **sending)
    missing = ", ".join(deprecated.missing_secrets or ()) or None
    show([{**dict.fromkeys(APP), **deprecated.as_dict(), "missing_secrets": missing}], output, APP)
