"""A plain client of the service, written from the contract with ``requests``."""

from __future__ import annotations

from typing import Any

import requests

from airflow_provider_webcollect.sandbox import Control, Sandbox
from tests.interruption import PATIENCE


class Client:
    """Calls a sandbox as the demo account; ``get`` and ``post`` return the response."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.control: Control = sandbox.control
        self.session = requests.Session()
        self.bearer = {"Authorization": f"Bearer {sandbox.access_token}"}
        self.key = {"x-api-key": sandbox.api_key}

    def call(
        self, method: str, path: str, headers: dict[str, str] | None = None, **request: Any
    ) -> requests.Response:
        headers = self.bearer if headers is None else headers
        return self.session.request(
            method, self.sandbox.url + path, headers=headers, timeout=PATIENCE, **request
        )

    def get(self, path: str, headers: dict[str, str] | None = None, **params: Any) -> requests.Response:
        return self.call("GET", path, headers, params=params)

    def post(
        self, path: str, json: Any = None, headers: dict[str, str] | None = None, **more: Any
    ) -> requests.Response:
        return self.call("POST", path, headers, json=json, **more)

    def token(self, **body: Any) -> requests.Response:
        return self.post("/token", body, headers={})

    def renew(self, refresh_token: str | None = None) -> requests.Response:
        """Exchange a refresh token; by default the sandbox's own."""
        return self.token(
            grant_type="refresh_token", refresh_token=refresh_token or self.sandbox.refresh_token
        )

    def copy(self, task_id: str, **more: Any) -> str:
        return str(data(self.post("/task/copy", params={"taskId": task_id, **more}))["taskId"])

    def status(self, task_id: str) -> dict[str, Any]:
        record: dict[str, Any]
        [record] = data(self.post("/cloudextraction/statuses/v2", {"taskIds": [task_id]}))
        return record

    def subtasks(self, task_id: str, page: int = 1, size: int = 20) -> list[dict[str, str]]:
        found: list[dict[str, str]] = data(
            self.get("/cloudextraction/task/subtasks", taskId=task_id, page=page, size=size)
        )
        return found

    def start(self, task_id: str, *subtask_ids: str) -> None:
        ids = subtask_ids or [subtask["subTaskId"] for subtask in self.subtasks(task_id)]
        data(self.post("/cloudextraction/subtasks:start", {"taskId": task_id, "subTaskIds": ids}))

    def run(self, task_id: str) -> None:
        """Start all sub-tasks of a task, and let the run end."""
        self.start(task_id)
        self.control.advance(300)

    def page(self, task_id: str, offset: int = 0, size: int = 1000, **batch: str) -> dict[str, Any]:
        path = "/data/lotno/all" if batch else "/data/all"
        params: dict[str, Any] = {"taskId": task_id, "offset": offset, "size": size, **batch}
        found: dict[str, Any] = data(self.get(path, **params))
        return found

    def rows(self, task_id: str, size: int = 1000, **batch: str) -> list[dict[str, Any]]:
        """Return all rows, read by the contract's paging rule."""
        page = self.page(task_id, 0, size, **batch)
        rows: list[dict[str, Any]] = page["data"]
        while page["restTotal"]:
            page = self.page(task_id, page["offset"], size, **batch)
            rows += page["data"]
        return rows


def data(response: requests.Response) -> Any:
    """Return the payload of a response that must be a success."""
    assert response.status_code == 200, response.text
    return response.json()["data"]


def refusal(response: requests.Response) -> tuple[int, str]:
    """Return the status and the error code of a response that must be an error envelope."""
    body = response.json()
    assert body.keys() == {"error", "requestId"}
    assert body["error"].keys() == {"code", "message"}
    return response.status_code, body["error"]["code"]
