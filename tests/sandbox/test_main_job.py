"""The whole job by a client that knows nothing but the contract: change, start, wait, read, confirm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import requests

from airflow_provider_webcollect.sandbox import demo
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sandbox.conftest import RealTime
    from tests.sandbox.plain_client import Client


class Service:
    """A client as anybody would write it who has the contract and ``requests``."""

    def __init__(self, base_url: str, refresh_token: str) -> None:
        self.base_url = base_url
        answer = requests.post(
            f"{base_url}/token",
            json={"refresh_token": refresh_token, "grant_type": "refresh_token"},
            timeout=PATIENCE,
        )
        self.headers = {"Authorization": f"Bearer {answer.json()['data']['access_token']}"}

    def call(self, method: str, path: str, **request: Any) -> Any:
        answer = requests.request(
            method, self.base_url + path, headers=self.headers, timeout=PATIENCE, **request
        )
        answer.raise_for_status()
        return answer.json()["data"]


def test_rows_are_collected_read_and_confirmed(
    start_sandbox: Callable[..., Client], real_time: RealTime
) -> None:
    sandbox = start_sandbox(speed=300).sandbox
    service = Service(sandbox.url, demo.REFRESH_TOKEN)
    task_id = service.call("POST", "/task/copy", params={"taskId": demo.TASK_ID})["taskId"]

    [steps] = service.call(
        "POST", "/task/getActions", json={"taskIds": [task_id], "actionTypes": ["LoopAction"]}
    )
    loop = {
        "taskId": task_id,
        "actionId": steps["actions"][0]["actionId"],
        "loopType": "TextList",
        "loopItems": ["tea", "chai", "чай"],
        "isAppend": False,
    }
    service.call("POST", "/task/updateLoopItems", json=loop)
    subtasks = service.call(
        "GET", "/cloudextraction/task/subtasks", params={"taskId": task_id, "page": 1, "size": 20}
    )
    start = {"taskId": task_id, "subTaskIds": [subtask["subTaskId"] for subtask in subtasks]}
    service.call("POST", "/cloudextraction/subtasks:start", json=start)

    seen = []
    while "Finished" not in seen:
        real_time.sleep(0.21)  # status version 2 is let in five times a second
        [status] = service.call("POST", "/cloudextraction/statuses/v2", json={"taskIds": [task_id]})
        seen.append(status["status"])

    rows: list[dict[str, Any]] = []
    offset, rest = 0, 1
    while rest:
        page = service.call("GET", "/data/all", params={"taskId": task_id, "offset": offset, "size": 50})
        rows, offset, rest = rows + page["data"], page["offset"], page["restTotal"]
    service.call("POST", "/data/markexported", json={"taskId": task_id})

    assert "Extracting" in seen
    assert {row["keyword"] for row in rows} == {"tea", "chai", "чай"}
    assert len(rows) == 120
    assert rows == sandbox.control.true_rows(task_id)
    assert sandbox.control.task(task_id)["exported"] is True
