"""A proxy in front of the sandbox, for odd answers that the sandbox itself does not give."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import requests

from tests.interruption import PATIENCE
from tests.service.servers import answer, serving

STATUS = "/cloudextraction/statuses/v2"


def without_status(task_id: str) -> Callable[[str, int, Any], tuple[int, Any]]:
    """Return an edit for :func:`proxy` that removes the status of a task."""

    def edit(path: str, status: int, body: Any) -> tuple[int, Any]:
        for record in body["data"] if path.startswith(STATUS) else ():
            if record["taskId"] == task_id:
                record["status"] = None
        return status, body

    return edit


@contextlib.contextmanager
def proxy(target: str, edit: Callable[[str, int, Any], tuple[int, Any]]) -> Iterator[str]:
    """Forward requests to ``target``, pass the answers through ``edit``, and yield the proxy's URL.

    :param edit: takes the request's path, and the answer's status and JSON; returns the new status and JSON.
    """

    def respond(request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, path, _ = first.split()
        headers = dict(line.split(": ", 1) for line in lines if not line.lower().startswith("host:"))
        said = requests.request(method, target + path, data=body, headers=headers, timeout=PATIENCE)
        status, changed = edit(path, said.status_code, said.json())
        return answer(json.dumps(changed).encode(), status)

    with serving(respond) as server:
        yield server.url
