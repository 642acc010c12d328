"""The sandbox's own endpoints under ``/_sandbox/``, which :class:`Control` calls."""

# No postponed annotations: request bodies are checked against the commands' parameter types.
import inspect
import ipaddress
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.bodies import ServiceError
from airflow_provider_webcollect.sandbox.data import DEFAULT_FIELDS, segments
from airflow_provider_webcollect.sandbox.operations import OPERATIONS, time_text, visible_rows
from airflow_provider_webcollect.sandbox.settings import Count, NotNegativeInt, as_json
from airflow_provider_webcollect.sandbox.state import Fault, Request, State
from airflow_provider_webcollect.sandbox.world import LOOP_ACTION, Action, Task, set_state

PREFIX = "/_sandbox/"


def run_command(state: State, request: Request, port: int, any_host: bool) -> tuple[int, bytes]:
    """
    Run a command: its name is the path after :data:`PREFIX`, its arguments are a JSON object or nothing.

    :param port: the sandbox's port.
    :param any_host: whether the ``Host`` header may name a host other than this machine's loopback.
    :return: HTTP status and JSON (for ``true_rows``: one JSON object per line).
    """
    refused = _refuse_web_pages(request, port, any_host)
    if refused is not None:
        return refused
    command = request.raw_path[len(PREFIX) :]
    entry = _COMMANDS.get(command)
    if entry is None:
        return 404, _error(f"There is no command {command}.")
    run, arguments_type = entry
    try:
        arguments = msgspec.json.decode(request.body or b"{}", type=arguments_type)
        result = run(state, **{name: getattr(arguments, name) for name in arguments.__struct_fields__})
    except (ValueError, ServiceError, OSError) as error:
        return 400, _error(str(error))
    return 200, result if isinstance(result, bytes) else msgspec.json.encode(result)


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_web_pages(request: Request, port: int, any_host: bool) -> tuple[int, bytes] | None:
    """Refuse requests that a web page may have made its reader's browser send; ``None`` if acceptable."""
    # A page's images and links send requests without an Origin, but never with POST.
    if request.method != "POST":
        return 405, _error("Commands are taken by POST only.")
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin not in (None, f"http://{host}"):
        return 403, _error(f"The Origin {origin} may not control the sandbox.")
    # With DNS rebinding, a page's own host name leads here, and its Origin matches its Host.
    if not any_host and not _is_own_host(host, port):
        return 403, _error(f"The Host must be a loopback address or localhost, with the port {port}: {host}")
    return None


def _is_own_host(host: str, port: int) -> bool:
    try:
        address = urlsplit(f"//{host}")
        return is_loopback(address.hostname or "") and (address.port or 80) == port
    except ValueError:
        return False


def add_task(
    state: State,
    task_id: str | None = None,
    name: str | None = None,
    rows: NotNegativeInt | list[dict[str, Any]] | None = None,
    subtasks: Count | None = None,
    group_id: int | None = None,
    state_word: str | None = None,
    lots: list[NotNegativeInt] | None = None,
    fields: list[str] | None = None,
    loop_items: list[str] | None = None,
) -> dict[str, Any]:
    """Create a task, optionally with earlier runs and a state."""
    if task_id is not None and task_id.lower() in state.world.tasks:
        raise ValueError(f"there is a task {task_id} already")
    task = state.world.add_task(
        task_id,
        name,
        rows=rows,
        subtasks=subtasks,
        group_id=demo.DEFAULT_GROUP_ID if group_id is None else group_id,
        fields=fields or DEFAULT_FIELDS,
        loop_items=demo.LOOP_ITEMS if loop_items is None else loop_items,
    )
    for number, count in enumerate(lots or ()):
        state.world.add_finished_run(task, count, ago=3600.0 * (len(lots or ()) - number))
    if state_word is not None:
        set_state(state.world, task, state_word)
    return _task_record(state, task)


def task(state: State, task_id: str) -> dict[str, Any]:
    """Return everything about a task."""
    return _task_record(state, _task(state, task_id))


def tasks(state: State) -> list[dict[str, Any]]:
    """Return everything about all tasks."""
    return [_task_record(state, task) for task in state.world.tasks.values()]


def groups(state: State) -> dict[int, str]:
    """Return the task groups."""
    return state.world.groups


def true_rows(state: State, task_id: str, lotno: str | None = None) -> bytes:
    """Return what a complete read returns now."""
    spans = visible_rows(state, _task(state, task_id), lotno)
    found = segments(spans, 0, state.blocks)
    rows = (block.cut(i, i + 1) for block, first, end in found for i in range(first, end))
    return b"\n".join(rows)


def stop_task(state: State, task_id: str) -> None:
    """Stop the active run."""
    _task(state, task_id).stop(state.clock.now())


def start_task(state: State, task_id: str) -> None:
    """Start all sub-tasks."""
    task = _task(state, task_id)
    state.world.start(task, task.subtask_ids)


def grow(state: State, task_id: str, rows: int) -> None:
    """Add rows to the latest batch, or remove some."""
    task = _task(state, task_id)
    if not task.runs:
        raise ValueError("the task never ran")
    task.runs[-1].more_rows += rows


def reset_data(state: State, task_id: str) -> None:
    """Remove all rows that exist now."""
    now = state.clock.now()
    for run in _task(state, task_id).runs:
        run.more_rows -= run.row_count(now)
        run.exported_rows = 0


def mark_state(state: State, task_id: str, word: str) -> None:
    """Show a status word until the next start."""
    _task(state, task_id).marked = word


def fail(state: State, fault: Fault) -> None:
    """Plan a failure."""
    paths = {"*", *(operation.path for operation in OPERATIONS)}
    if fault.path not in paths:
        raise ValueError(f"{fault.path} is not a path of the contract, nor *")
    state.faults.add(fault)


def clear_faults(state: State) -> None:
    """Remove all planned failures."""
    state.faults.clear()


def expire_tokens(state: State, refresh_tokens: bool = False) -> None:
    """Expire all access tokens."""
    state.tokens.expire(refresh_tokens)


def advance(state: State, seconds: float) -> float:
    """Move the time ahead."""
    state.clock.advance(seconds)
    return state.clock.now()


def now(state: State) -> float:
    """Return the sandbox time."""
    return state.clock.now()


def configure(state: State, changes: dict[str, Any]) -> dict[str, Any]:
    """Change settings."""
    state.configure(changes)
    return as_json(state.settings)


def reset(state: State) -> None:
    """Restore the state at the start."""
    state.reset()


def requests(state: State, path: str | None = None) -> list[dict[str, Any]]:
    """Return the request log."""
    return state.log.entries(path)


def clear_requests(state: State) -> None:
    """Clear the request log."""
    state.log.clear()


def counters(state: State) -> dict[str, dict[str, int]]:
    """Return the number of requests of each path, by status."""
    return state.log.counters()


def _arguments_type(command: Callable[..., object]) -> Any:
    """Return a Struct of a command's parameters after ``state``, to check its request body."""
    fields: list[Any] = []
    for name, parameter in list(inspect.signature(command).parameters.items())[1:]:
        required = parameter.default is inspect.Parameter.empty
        field = (name, parameter.annotation)
        fields.append(field if required else (*field, parameter.default))
    return msgspec.defstruct(command.__name__, fields, forbid_unknown_fields=True)


_COMMANDS: dict[str, tuple[Callable[..., Any], Any]] = {
    command.__name__: (command, _arguments_type(command))
    for command in (
        add_task,
        task,
        tasks,
        groups,
        true_rows,
        stop_task,
        start_task,
        grow,
        reset_data,
        mark_state,
        fail,
        clear_faults,
        expire_tokens,
        advance,
        now,
        configure,
        reset,
        requests,
        clear_requests,
        counters,
    )
}


def _error(message: str) -> bytes:
    return msgspec.json.encode({"error": message})


def _task(state: State, task_id: str) -> Task:
    task = state.world.find(task_id)
    if task is None:
        raise ValueError(f"there is no task {task_id}")
    return task


def _task_record(state: State, task: Task) -> dict[str, Any]:
    now = state.clock.now()
    runs = [
        {
            "lotno": run.lotno,
            "rows": run.row_count(now),
            "exported_rows": run.exported_rows,
            "exported": run.exported_rows >= run.row_count(now) > 0,
            "status": run.status(now),
            "started_subtasks": len(run.started),
            "start": time_text(run.began),
        }
        for run in task.runs
    ]
    loop = task.loop
    return {
        "task_id": task.task_id,
        "name": task.name,
        "owner": task.owner,
        "group_id": task.group_id,
        "state": task.status(now),
        "executed_times": len(task.runs),
        "exported": bool(runs) and all(run["exported"] for run in runs),
        "rows": sum(run.row_count(now) for run in task.runs),
        "runs": runs,
        "subtasks": [
            {"subtask_id": subtask_id, "status": task.subtask_status(i, now)}
            for i, subtask_id in enumerate(task.subtask_ids)
        ],
        "actions": [_action_record(action) for action in task.actions],
        "urls": loop.loop_items if loop.loop_type == "UrlList" else [],
        "fields": task.fields,
    }


def _action_record(action: Action) -> dict[str, Any]:
    record = {"action_id": action.action_id, "action_type": action.action_type, "name": action.name}
    if action.action_type == LOOP_ACTION:
        return {**record, "loop_type": action.loop_type, "loop_items": action.loop_items}
    return {**record, "properties": action.properties}
