"""Control a sandbox from a test, over HTTP, so that the sandbox may run in another process.

Each command is a method of :class:`Control`. A call sends the arguments to a path below ``/_sandbox/``, and
:func:`run_command` runs the method's body in the sandbox.
"""

from __future__ import annotations

import http.client
import inspect
import ipaddress
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.data import CHANGES, Change, segments
from airflow_provider_webcollect.sandbox.operations import OPERATIONS, Parameters, time_text, visible_rows
from airflow_provider_webcollect.sandbox.settings import Count, NotNegativeInt
from airflow_provider_webcollect.sandbox.state import Fault, ServiceError, State
from airflow_provider_webcollect.sandbox.world import Task

if TYPE_CHECKING:
    from starlette.requests import Request

PREFIX = "/_sandbox/"

P = ParamSpec("P")
R = TypeVar("R")

#: The function that the sandbox runs for each command, by the command's name.
_COMMANDS: dict[str, Callable[..., object]] = {}
_parameters = lru_cache(Parameters)


class SandboxError(ValueError):
    """The sandbox refused a command; the message gives the reason."""


def _command(method: Callable[Concatenate[Control, P], R]) -> Callable[Concatenate[Control, P], R]:
    """Turn a method into a command: a call sends the arguments, and the sandbox runs the method with them."""
    name = method.__name__
    signature = inspect.signature(method, eval_str=True)
    _COMMANDS[name] = method

    @wraps(method)
    def send(control: Control, /, *args: P.args, **kwargs: P.kwargs) -> R:
        arguments = signature.bind(control, *args, **kwargs).arguments
        answer = control._send(name, {key: value for key, value in arguments.items() if key != "self"})
        result: R = msgspec.json.decode(answer, type=signature.return_annotation)
        return result

    return send


class Control:
    """A client that controls a running sandbox.

    Its requests need no credentials, have no rate limit and are not logged.

    :param url: the sandbox's address, ``http://host:port``.
    """

    #: The sandbox's state, which only the sandbox itself sets: the commands run there.
    _state: State

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc

    @_command
    def add_task(
        self,
        task_id: str | None = None,
        name: str | None = None,
        rows: NotNegativeInt | Sequence[dict[str, Any]] | None = None,
        subtasks: Count | None = None,
        group_id: int | None = None,
        state: str | None = None,
        lots: NotNegativeInt | Sequence[NotNegativeInt] | None = None,
        fields: Sequence[str] | None = None,
        loop_items: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Create a task of the demo account.

        Without ``lots`` and ``state`` the task has never run and has no rows yet.

        :param task_id: id of the task; by default generated from the seed.
        :param name: name of the task; by default ``Task`` and a number.
        :param rows: the number of rows that each run collects, or the rows themselves. By default all rows of
            the table in the setting ``data``; without a table, loop items times ``rows_per_item``.
        :param subtasks: number of sub-tasks; by default from the settings.
        :param group_id: id of the task's group, which is created if it does not exist; by default 1.
        :param state: ``Finished``: the task has run (once, unless ``lots`` is given); ``Waiting``,
            ``Extracting``, ``Stopped``: a run is in that state now; any other word: as :meth:`mark_state`.
        :param lots: number of rows of each finished batch, as a list; or the number of finished batches, with
            ``rows`` rows each.
        :param fields: names of the fields of made-up rows; the first is unique, the second is the loop item.
        :param loop_items: values of the task's loop step; by default five demo values.
        :return: the task's record, as :meth:`task` returns it.
        """
        world = self._state.world
        task = world.add_task(
            demo.USERNAME, task_id, name, rows, subtasks, group_id, state, lots, fields, loop_items
        )
        return _task_record(task, world.clock.now())

    @_command
    def task(self, task_id: str) -> dict[str, Any]:
        """Return everything about a task.

        :param task_id: id of the task.
        :return: ``task_id``, ``name``, ``owner``, ``group_id``, ``state`` (true status, never delayed, unless
            :meth:`mark_state` has set a word), ``executed_times``, ``exported``, ``rows``, ``urls``,
            ``fields``;
            ``runs``: ``lotno``, ``rows``, ``exported_rows``, ``exported``, ``status``, ``started_subtasks``,
            ``start``; ``subtasks``: ``subtask_id``, ``status``; ``actions``: ``action_id``, ``action_type``,
            ``name``, ``loop_type``, ``loop_items``, ``properties``.
        """
        return _task_record(self._state.world.task(task_id), self._state.clock.now())

    @_command
    def tasks(self) -> list[dict[str, Any]]:
        """Return the records of all tasks, including other users' tasks, as :meth:`task` returns them."""
        now = self._state.clock.now()
        return [_task_record(task, now) for task in self._state.world.tasks.values()]

    @_command
    def groups(self) -> dict[int, str]:
        """Return the names of the task groups by id."""
        return self._state.world.groups

    @_command
    def true_rows(self, task_id: str, lotno: str | None = None) -> list[dict[str, Any]]:
        """Return the rows that a complete read of a task, or of one batch, would return now, in order.

        :param task_id: id of the task.
        :param lotno: number of the batch; None for all batches.
        """
        task = self._state.world.task(task_id)
        rows = segments(visible_rows(self._state, task, lotno), 0, self._state.blocks)
        text = b"[%b]" % b",".join(block.cut(first, end) for block, first, end in rows)
        # already JSON: the response has the text unchanged
        return cast("list[dict[str, Any]]", msgspec.Raw(text))

    @_command
    def stop_task(self, task_id: str) -> None:
        """Stop a task's run, as a user can in the service's own client.

        :param task_id: id of the task.
        """
        self._state.world.task(task_id).stop(self._state.clock.now())

    @_command
    def start_task(self, task_id: str) -> None:
        """Start all sub-tasks of a task, as a user can in the service's own client.

        :param task_id: id of the task.
        """
        task = self._state.world.task(task_id)
        self._state.world.start(task, task.subtask_ids)

    @_command
    def grow(self, task_id: str, rows: int) -> None:
        """Add rows to a task's latest batch now, or remove the last rows of the batch.

        :param task_id: id of the task.
        :param rows: the number of rows to add; a negative number removes rows.
        """
        task = self._state.world.task(task_id)
        if not task.runs:
            raise ValueError("the task never ran")
        run = task.runs[-1]
        run.more_rows += max(rows, -run.row_count(self._state.clock.now()))

    @_command
    def silence(self, task_id: str, loop_items: Sequence[str], runs: NotNegativeInt = 1) -> None:
        """Make loop items of a task yield no rows, as if their pages had moved or showed a captcha.

        This does not apply to copies of the task, or to tasks with rows of their own.

        :param task_id: id of the task.
        :param loop_items: values of the task's loop step; the other values still yield rows.
        :param runs: number of future runs in which the loop items yield no rows; a run whose loop step does
            not have the item is not counted. 0: they yield rows again.
        """
        self._state.world.task(task_id).silent.update(dict.fromkeys(loop_items, runs))

    @_command
    def rename_task(self, task_id: str, name: str) -> None:
        """Give a task another name, as a user can in the service's own client.

        :param task_id: id of the task.
        :param name: any text, even the name of another task.
        """
        self._state.world.task(task_id).name = name

    @_command
    def reset_data(self, task_id: str) -> None:
        """Remove all of a task's rows; its batches remain, but are empty.

        :param task_id: id of the task.
        """
        for run in self._state.world.task(task_id).runs:
            run.more_rows -= run.row_count(self._state.clock.now())
            run.exported_rows = 0

    @_command
    def change_rows(
        self,
        task_id: str,
        column: str,
        to: str | None = None,
        *,
        renamed: str | None = None,
        from_row: NotNegativeInt | None = None,
    ) -> None:
        """Change a column of a task's rows from one row on, as a change of the web site would.

        The changes of a task apply in the order in which they were made; rows without the column stay as they
        are. :meth:`true_rows` shows the changes; copies of the task do not have them. To have fewer rows than
        before, use ``lots`` of :meth:`add_task`, or :meth:`grow`.

        :param task_id: id of the task.
        :param column: one of the task's fields, or the name that an earlier change gave to a field.
        :param to: the new values of the column: ``empty`` (an empty text), ``null``, ``number``, ``boolean``,
            ``list`` (made-up values, the same in all rows), or ``missing`` (rows do not have the column).
        :param renamed: the column's new name, which no other column may have; it replaces ``to``.
        :param from_row: index in ``true_rows(task_id)`` of the first changed row; there may be no such row
            yet. Default: the current number of rows, so that existing rows stay as they are. New rows take
            the indexes of rows that :meth:`grow` or :meth:`reset_data` removed.
        :raises SandboxError: an argument is invalid; the message names it.
        """
        task = self._state.world.task(task_id)
        if (to is None) == (renamed is None):
            raise ValueError(f"give one of to and renamed, not to={to!r} and renamed={renamed!r}")
        if to is not None and to not in CHANGES:
            raise ValueError(f"to must be one of {', '.join(CHANGES)}, not {to!r}")
        columns = self._state.world.columns(task)
        if column not in columns:
            raise ValueError(f"column must be one of {', '.join(sorted(columns))}, not {column!r}")
        if renamed in columns:
            raise ValueError(f"renamed must be a new name: there is a column {renamed!r} already")
        if from_row is None:
            from_row = sum(run.row_count(self._state.clock.now()) for run in task.runs)
        task.changes += (Change(column, from_row, to, renamed),)

    @_command
    def mark_state(self, task_id: str, state: str) -> None:
        """Show any status word for a task until its next start, whatever its true state is.

        :param task_id: id of the task.
        :param state: the word, such as ``Extracting``; it need not be in the contract.
        """
        self._state.world.task(task_id).marked = state

    def fail(
        self,
        path: str,
        times: int | None = 1,
        kind: str = "status",
        after: int = 0,
        probability: float | None = None,
        **details: Any,
    ) -> None:
        """Make future responses fail; failures of one path take effect in the order of the calls.

        :param path: the contract's path, such as ``/task/copy``, or ``*`` for all.
        :param times: number of responses that fail; ``None``: all from then on.
        :param after: number of responses to let pass first.
        :param probability: probability that a response fails; by default every response fails.
        :param kind: one of these kinds; the operation is not carried out, except where the kind says "done":

            - ``status``: an error envelope; ``status`` (default 500), ``code``, ``message``, ``headers``
            - ``html``: a gateway's error page; ``status`` (default 502), ``headers``
            - ``raw``: the bytes ``body`` (default: none); ``status`` (default 200), ``headers``: apart from
              the content length, no others are sent
            - ``drop``: the connection is closed without a response
            - ``broken_json``: done, but the response is an incomplete piece of JSON
            - ``cut_body``: done, but the connection is closed before all of the announced body is sent
            - ``slow``: done, with a response after ``seconds`` (default 1)
            - ``drip``: done, with a response that pauses ``seconds`` (default 1) after each byte of the body
        :param details: the arguments named above; with ``done=True``, the operation is carried out before
            one of the first four kinds too.
        """
        if not isinstance(details.get("body", b""), bytes):
            raise SandboxError("body must be bytes")
        planned = {"path": path, "times": times, "kind": kind, "after": after, "probability": probability}
        self._fail(planned | details)

    @_command
    def _fail(self, fault: dict[str, Any]) -> None:
        planned = msgspec.convert(fault, Fault)
        if planned.path not in {"*", *(operation.path for operation in OPERATIONS)}:
            raise ValueError(f"{planned.path} is not a path of the contract, nor *")
        self._state.faults.append(planned)

    @_command
    def clear_faults(self) -> None:
        """Remove all planned failures."""
        self._state.faults.clear()

    @_command
    def expire_tokens(self, refresh_tokens: bool = False) -> None:
        """Expire all access tokens now.

        :param refresh_tokens: whether the refresh tokens expire too.
        """
        self._state.tokens.expire(refresh_tokens)

    @_command
    def advance(self, seconds: float) -> float:
        """Move the clock of tasks, tokens and the calendar ahead, and return the new time, as :meth:`now`.

        :param seconds: number of seconds to add.
        """
        return self._state.clock.advance(seconds)

    @_command
    def now(self) -> float:
        """Return the sandbox's time in seconds since 1970: real time plus what :meth:`advance` has added."""
        return self._state.clock.now()

    def configure(self, **changes: Any) -> dict[str, Any]:
        """Change settings from now on, and return all settings.

        Existing objects do not change: a run keeps the durations with which it began.

        :param changes: the new values, by the names of :class:`Settings`.
        """
        return self._configure(changes)

    @_command
    def _configure(self, changes: dict[str, Any]) -> dict[str, Any]:
        return self._state.configure(changes)

    @_command
    def reset(self) -> None:
        """Restore the state in which the sandbox started."""
        self._state.reset()

    @_command
    def requests(self, path: str | None = None) -> list[dict[str, Any]]:
        """Return the logged requests, oldest first, without secrets.

        :param path: only requests to this path: the contract's path, or the path as sent; None for all.
        :return: ``time`` (of arrival, as :meth:`now`), ``method``, ``path`` as sent, ``endpoint`` (the
            contract's path, or the path as sent if the contract does not have it), ``query``,
            ``query_string``, ``headers`` (lower-case names; credentials masked, such as ``Bearer ***``),
            ``credential`` (``bearer``, ``api_key``, ``bearer+api_key``, ``none``), ``body`` (its first
            256 KB), ``body_encoding`` (``text``, or ``base64`` for multipart), ``body_cut`` (whether there
            was more), ``status`` (0: connection closed without a response), ``client_port``.
        """
        return self._state.log.entries(path)

    @_command
    def clear_requests(self) -> None:
        """Clear the request log and the counters."""
        self._state.log.clear()

    @_command
    def counters(self) -> dict[str, dict[int, int]]:
        """Return the number of requests by ``endpoint`` and ``status``; faster than :meth:`requests`."""
        return {path: dict(counts) for path, counts in self._state.log.counters().items()}

    def _send(self, command: str, arguments: dict[str, object]) -> bytes:
        # unlike urllib, http.client never reads a proxy from the environment
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            body = msgspec.json.encode(arguments, enc_hook=os.fspath)
            connection.request("POST", PREFIX + command, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise SandboxError(msgspec.json.decode(answer)["error"])
        return answer


class _Commands(Control):
    """The commands as the sandbox runs them, on its own state."""

    def __init__(self, state: State) -> None:
        self._state = state


def run_command(state: State, name: str, request: Request, body: bytes, any_host: bool) -> tuple[int, bytes]:
    """Run a command in the sandbox.

    :param name: name of the command: the path after :data:`PREFIX`.
    :param body: the command's arguments as a JSON object; may be empty.
    :param any_host: whether the ``Host`` header may name a host other than this machine's loopback.
    :return: the HTTP status, and the response body as JSON.
    """
    try:
        _refuse_web_pages(request, any_host)
        if name not in _COMMANDS:
            raise ServiceError("NotFound", f"There is no command {name}.", 404)
        arguments = msgspec.json.decode(body or b"{}", type=_parameters(_COMMANDS[name]).struct)
        result = _COMMANDS[name](_Commands(state), **msgspec.structs.asdict(arguments))
    except ServiceError as error:
        return error.status, msgspec.json.encode({"error": error.message})
    except (ValueError, OSError) as error:
        return 400, msgspec.json.encode({"error": str(error)})
    return 200, msgspec.json.encode(result)


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost`` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_web_pages(request: Request, any_host: bool) -> None:
    """Refuse requests that a web page may have caused a browser to send."""
    # The browser sends no Origin for a page's images and links, but these never use POST.
    if request.method != "POST":
        raise ServiceError("MethodNotAllowed", "Commands are taken by POST only.", 405)
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin not in (None, f"http://{host}"):
        raise ServiceError("Forbidden", f"The Origin {origin} may not control the sandbox.", 403)
    # With DNS rebinding, a page's own host name resolves to this machine, so that Origin and Host match.
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
        # a batch without rows has nothing to export
        "exported": any(run["exported"] for run in runs)
        and all(run["exported"] or not run["rows"] for run in runs),
        "rows": sum(run.row_count(now) for run in task.runs),
        "runs": runs,
        "subtasks": [
            {"subtask_id": subtask_id, "status": task.subtask_status(i, now)}
            for i, subtask_id in enumerate(task.subtask_ids)
        ],
        "actions": [asdict(action) for action in task.actions],
        "urls": loop.loop_items if loop.loop_type == "UrlList" else [],
        "fields": task.fields,
    }
