"""The sandbox's own endpoints under ``/_sandbox/``: the commands, which :class:`Control` describes."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from airflow_provider_webcollect.sandbox.bodies import Parameters, ServiceError, raw_path
from airflow_provider_webcollect.sandbox.data import segments
from airflow_provider_webcollect.sandbox.operations import OPERATIONS, time_text, visible_rows
from airflow_provider_webcollect.sandbox.state import Fault, Faults, RequestLog, State, Tokens
from airflow_provider_webcollect.sandbox.world import LOOP_ACTION, Action, Clock, Task, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

PREFIX = "/_sandbox/"


def run_command(state: State, request: Request, body: bytes, any_host: bool) -> tuple[int, bytes]:
    """
    Run a command: its name is the path after :data:`PREFIX`, its arguments are a JSON object or nothing.

    :param any_host: whether the ``Host`` header may name a host other than this machine's loopback.
    :return: HTTP status and JSON.
    """
    try:
        _refuse_web_pages(request, any_host)
        function, part = _command(state, raw_path(request).removeprefix(PREFIX))
        arguments = msgspec.json.decode(body or b"{}", type=_parameters(function).struct)
        result = function(part, **msgspec.structs.asdict(arguments))
    except ServiceError as error:
        return error.status, msgspec.json.encode({"error": error.message})
    except (ValueError, OSError) as error:
        return 400, msgspec.json.encode({"error": str(error)})
    return 200, msgspec.json.encode(_plain(result, state.clock.now()))


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_web_pages(request: Request, any_host: bool) -> None:
    """Refuse requests that a web page may have made its reader's browser send."""
    # A page's images and links send requests without an Origin, but never with POST.
    if request.method != "POST":
        raise ServiceError("MethodNotAllowed", "Commands are taken by POST only.", 405)
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin not in (None, f"http://{host}"):
        raise ServiceError("Forbidden", f"The Origin {origin} may not control the sandbox.", 403)
    # With DNS rebinding, a page's own host name leads here, and its Origin matches its Host.
    port = request.scope["server"][1]
    if not any_host and not _is_own_host(host, port):
        rule = f"The Host must be a loopback address or localhost, with the port {port}: {host}"
        raise ServiceError("Forbidden", rule, 403)


def _is_own_host(host: str, port: int) -> bool:
    try:
        address = urlsplit(f"//{host}")
        return is_loopback(address.hostname or "") and (address.port or 80) == port
    except ValueError:
        return False


_parameters = lru_cache(Parameters)


def _command(state: State, name: str) -> tuple[Callable[..., object], object]:
    """
    Return what carries out a command: a function whose keyword-only parameters are the command's.

    With it comes the part of the state that it takes first.

    :raises ServiceError: there is no such command, HTTP 404.
    """
    world = state.world
    commands: dict[str, tuple[Callable[..., object], object]] = {
        "add_task": (World.add_task, world),
        "advance": (Clock.advance, state.clock),
        "change_rows": (World.change_rows, world),
        "clear_faults": (Faults.clear, state.faults),
        "clear_requests": (RequestLog.clear, state.log),
        "configure": (State.configure, state),
        "counters": (RequestLog.counters, state.log),
        "expire_tokens": (Tokens.expire, state.tokens),
        "fail": (_fail, state.faults),
        "groups": (_groups, world),
        "grow": (_grow, world),
        "mark_state": (_mark_state, world),
        "now": (Clock.now, state.clock),
        "requests": (RequestLog.entries, state.log),
        "reset": (State.reset, state),
        "reset_data": (_reset_data, world),
        "start_task": (_start_task, world),
        "stop_task": (_stop_task, world),
        "task": (World.task, world),
        "tasks": (_tasks, world),
        "true_rows": (_true_rows, state),
    }
    if name not in commands:
        raise ServiceError("NotFound", f"There is no command {name}.", 404)
    return commands[name]


def _fail(faults: Faults, *, fault: Fault) -> None:
    if fault.path not in {"*", *(operation.path for operation in OPERATIONS)}:
        raise ValueError(f"{fault.path} is not a path of the contract, nor *")
    faults.add(fault)


def _groups(world: World) -> dict[int, str]:
    return world.groups


def _tasks(world: World) -> list[Task]:
    return list(world.tasks.values())


def _true_rows(state: State, *, task_id: str, lotno: str | None = None) -> msgspec.Raw:
    rows = segments(visible_rows(state, state.world.task(task_id=task_id), lotno), 0, state.blocks)
    return msgspec.Raw(b"[" + b",".join(block.cut(first, end) for block, first, end in rows) + b"]")


def _start_task(world: World, *, task_id: str) -> None:
    task = world.task(task_id=task_id)
    world.start(task, task.subtask_ids)


def _stop_task(world: World, *, task_id: str) -> None:
    world.task(task_id=task_id).stop(world.clock.now())


def _grow(world: World, *, task_id: str, rows: int) -> None:
    task = world.task(task_id=task_id)
    if not task.runs:
        raise ValueError("the task never ran")
    task.runs[-1].more_rows += rows


def _reset_data(world: World, *, task_id: str) -> None:
    for run in world.task(task_id=task_id).runs:
        run.more_rows -= run.row_count(world.clock.now())
        run.exported_rows = 0


def _mark_state(world: World, *, task_id: str, state: str) -> None:
    world.task(task_id=task_id).marked = state


def _plain(result: object, now: float) -> object:
    """Replace tasks by what :meth:`Control.task` tells of them."""
    match result:
        case Task():
            return _task_record(result, now)
        case list():
            return [_plain(item, now) for item in result]
    return result


def _task_record(task: Task, now: float) -> dict[str, Any]:
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
