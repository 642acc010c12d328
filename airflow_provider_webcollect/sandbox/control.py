"""Controlling a sandbox from a test, over HTTP, so that the sandbox may run in another process."""

from __future__ import annotations

import http.client
import os
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

R = TypeVar("R")


class SandboxError(ValueError):
    """The sandbox refused a command; the message gives the reason."""


class Control:
    """
    Controls a running sandbox. Its requests need no credentials, have no rate limit and are not logged.

    :param url: the sandbox's address, ``http://host:port``.
    """

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc

    def add_task(
        self,
        task_id: str | None = None,
        name: str | None = None,
        rows: int | Sequence[dict[str, Any]] | None = None,
        subtasks: int | None = None,
        group_id: int | None = None,
        state: str | None = None,
        lots: int | Sequence[int] | None = None,
        fields: Sequence[str] | None = None,
        loop_items: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """
        Create a task of the demo account.

        Without ``lots`` and ``state`` the task has never run and has no rows yet.

        :param task_id: by default generated from the seed.
        :param name: default: ``Task`` and a number.
        :param rows: how many rows each run collects, or the rows themselves; default: loop items times
            ``rows_per_item``.
        :param subtasks: number of sub-tasks; by default from the settings.
        :param group_id: created if it does not exist; default 1.
        :param state: ``Finished``: it has run (once, unless ``lots`` says otherwise); ``Waiting``,
            ``Extracting``, ``Stopped``: a run is in that state now; any other word is only shown.
        :param lots: number of rows of each finished batch, as a list; or the number of finished batches, with
            ``rows`` rows each.
        :param fields: names of the rows' fields; the first is unique, the second is the loop item.
        :param loop_items: values of its loop step.
        :return: the same as :meth:`task`.
        """
        return self._ask(
            dict[str, Any],
            "add_task",
            task_id=task_id,
            name=name,
            rows=rows,
            subtasks=subtasks,
            group_id=group_id,
            state=state,
            lots=lots,
            fields=fields,
            loop_items=loop_items,
        )

    def task(self, task_id: str) -> dict[str, Any]:
        """
        Return everything about a task.

        :param task_id: the task.
        :return: ``task_id``, ``name``, ``owner``, ``group_id``, ``state`` (true status, never delayed),
            ``executed_times``, ``exported``, ``rows``, ``urls``, ``fields``;
            ``runs``: ``lotno``, ``rows``, ``exported_rows``, ``exported``, ``status``, ``started_subtasks``,
            ``start``; ``subtasks``: ``subtask_id``, ``status``; ``actions``: ``action_id``, ``action_type``,
            ``name``, and ``loop_type`` and ``loop_items``, or ``properties``.
        """
        return self._ask(dict[str, Any], "task", task_id=task_id)

    def tasks(self) -> list[dict[str, Any]]:
        """Return all tasks, each as :meth:`task` does, including those of other users."""
        return self._ask(list[dict[str, Any]], "tasks")

    def groups(self) -> dict[int, str]:
        """Return the names of the task groups by id."""
        return self._ask(dict[int, str], "groups")

    def true_rows(self, task_id: str, lotno: str | None = None) -> list[dict[str, Any]]:
        """Return what a complete read of a task, or of one batch, returns now, in order.

        :param task_id: the task.
        :param lotno: the batch; None for all batches.
        """
        return self._ask(list[dict[str, Any]], "true_rows", task_id=task_id, lotno=lotno)

    def stop_task(self, task_id: str) -> None:
        """Stop a task's run, as a user can in the service's own client.

        :param task_id: the task.
        """
        self._send("stop_task", task_id=task_id)

    def start_task(self, task_id: str) -> None:
        """Start all sub-tasks of a task, as a user can in the service's own client.

        :param task_id: the task.
        """
        self._send("start_task", task_id=task_id)

    def grow(self, task_id: str, rows: int) -> None:
        """Add rows to a task's latest batch now.

        :param task_id: the task.
        :param rows: how many.
        """
        self._send("grow", task_id=task_id, rows=rows)

    def shrink(self, task_id: str, rows: int) -> None:
        """Remove the last rows of a task's latest batch now.

        :param task_id: the task.
        :param rows: how many.
        """
        self._send("grow", task_id=task_id, rows=-rows)

    def reset_data(self, task_id: str) -> None:
        """Remove all of a task's rows; its batches remain, empty.

        :param task_id: the task.
        """
        self._send("reset_data", task_id=task_id)

    def change_rows(
        self,
        task_id: str,
        column: str,
        to: str | None = None,
        *,
        renamed: str | None = None,
        from_row: int | None = None,
    ) -> None:
        """
        Change a column of a task's rows from one row on, as after a change of the web site.

        Several changes of one task add up, in the order in which they were made; rows without the column stay
        as they are. :meth:`true_rows` shows the changes; copies of the task do not have them. Fewer rows than
        before need no change: see ``lots`` of :meth:`add_task`, and :meth:`grow`.

        :param task_id: the task.
        :param column: one of its fields, or a name that an earlier change gave to one.
        :param to: what the column becomes: ``empty`` (an empty text), ``null``, ``number``, ``boolean``,
            ``list`` (made-up values, the same in all rows), or ``missing`` (rows do not have it).
        :param renamed: instead of ``to``: the column's new name, which no other column has.
        :param from_row: index in ``true_rows(task_id)`` of the first changed row; there may be no such row
            yet. Default: the number of rows that are there now, so that they stay as they are. After
            :meth:`shrink` and :meth:`reset_data`, new rows take the indexes of the removed ones.
        :raises SandboxError: an argument is invalid; the message names it.
        """
        self._send("change_rows", task_id=task_id, column=column, to=to, renamed=renamed, from_row=from_row)

    def mark_state(self, task_id: str, state: str) -> None:
        """Show any status word for a task until its next start, whatever its true state is.

        :param task_id: the task.
        :param state: the word, such as ``Extracting`` or one that is not in the contract.
        """
        self._send("mark_state", task_id=task_id, state=state)

    def fail(
        self,
        path: str,
        times: int | None = 1,
        kind: str = "status",
        after: int = 0,
        probability: float | None = None,
        **details: Any,
    ) -> None:
        """
        Make future responses fail. Failures of one path take effect in the order in which they were planned.

        :param path: the contract's path, such as ``/task/copy``, or ``*`` for all.
        :param times: number of responses; ``None``: all from then on.
        :param after: number of responses to let pass first.
        :param probability: probability that a response fails; by default every response fails.
        :param kind: one of these; the request has no effect, except where it says "done":

            - ``status``: error envelope; ``status`` (default 500), ``code``, ``message``, ``headers``
            - ``error_200``: the same under HTTP 200
            - ``html``: a gateway's page; ``status`` (default 502), ``headers``
            - ``redirect``: to the URL ``to``; ``status`` (default 307)
            - ``raw``: the bytes ``body`` (default: none); ``status`` (default 200), ``headers``: apart from
              the content length, no others are sent
            - ``drop``: the connection is closed without a response
            - ``no_answer``: the same, but done
            - ``broken_json``: done, but the response is an incomplete piece of JSON
            - ``cut_body``: done, but the connection is closed before all of the announced body is sent
            - ``slow``: done, with a response after ``seconds`` (default 1)
            - ``drip``: done, with a response that pauses ``seconds`` (default 1) after each byte of the body
        :param details: the arguments named above; with ``done=True``, the first five kinds respond after the
            operation was done.
        """
        planned = {"path": path, "times": times, "kind": kind, "after": after, "probability": probability}
        self._send("fail", fault=planned | details)

    def clear_faults(self) -> None:
        """Remove all planned failures."""
        self._send("clear_faults")

    def expire_tokens(self, refresh_tokens: bool = False) -> None:
        """Expire all access tokens now.

        :param refresh_tokens: expire the refresh tokens too.
        """
        self._send("expire_tokens", refresh_tokens=refresh_tokens)

    def advance(self, seconds: float) -> float:
        """Move the clock ahead (tasks, tokens, the calendar), and return :meth:`now`.

        :param seconds: number of seconds.
        """
        return self._ask(float, "advance", seconds=seconds)

    def now(self) -> float:
        """Return the sandbox time, seconds since 1970."""
        return self._ask(float, "now")

    def configure(self, **changes: Any) -> dict[str, Any]:
        """
        Change settings from now on, by the names of :class:`Settings`, and return all settings.

        Existing objects do not change: a run keeps the durations that it began with.
        """
        return self._ask(dict[str, Any], "configure", changes=changes)

    def reset(self) -> None:
        """Restore the state in which the sandbox started."""
        self._send("reset")

    def requests(self, path: str | None = None) -> list[dict[str, Any]]:
        """
        Return the logged requests, oldest first, without secrets.

        :param path: only this path: the contract's, or as sent.
        :return: ``time`` (sandbox time of arrival), ``method``, ``path`` as sent, ``endpoint`` (the
            contract's path), ``query``, ``query_string``, ``headers`` (lower-case names; credentials as
            ``Bearer ***``), ``credential`` (``bearer``, ``api_key``, ``bearer+api_key``, ``none``),
            ``body`` (its first 256 KB), ``body_encoding`` (``text``, or ``base64`` for multipart),
            ``body_cut`` (whether there was more), ``status`` (0: connection dropped without an answer),
            ``client_port``.
        """
        return self._ask(list[dict[str, Any]], "requests", path=path)

    def clear_requests(self) -> None:
        """Clear the request log and the counters."""
        self._send("clear_requests")

    def counters(self) -> dict[str, dict[int, int]]:
        """Return the number of requests of each contract path, by status; faster than :meth:`requests`."""
        return self._ask(dict[str, dict[int, int]], "counters")

    def _ask(self, kind: type[R], command: str, **arguments: Any) -> R:
        return msgspec.json.decode(self._send(command, **arguments), type=kind)

    def _send(self, command: str, **arguments: Any) -> bytes:
        # unlike urllib, http.client never reads a proxy from the environment
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            body = msgspec.json.encode(arguments, enc_hook=os.fspath)
            connection.request("POST", f"/_sandbox/{command}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise SandboxError(msgspec.json.decode(answer)["error"])
        return answer
