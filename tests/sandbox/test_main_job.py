"""The whole job by a client that knows nothing but the contract: change, start, wait, read, confirm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_webcollect.sandbox import demo
from tests.sandbox.plain_client import Client, data

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sandbox.conftest import RealTime


def test_rows_are_collected_read_and_confirmed(
    start_sandbox: Callable[..., Client], real_time: RealTime
) -> None:
    client = start_sandbox(speed=300)
    token = data(client.renew(demo.REFRESH_TOKEN))["access_token"]
    client.bearer = {"Authorization": f"Bearer {token}"}
    task_id = client.copy(demo.TASK_ID)

    [steps] = data(client.post("/task/getActions", {"taskIds": [task_id], "actionTypes": ["LoopAction"]}))
    loop = {
        "taskId": task_id,
        "actionId": steps["actions"][0]["actionId"],
        "loopType": "TextList",
        "loopItems": ["tea", "chai", "чай"],
        "isAppend": False,
    }
    data(client.post("/task/updateLoopItems", loop))
    client.start(task_id)

    seen: list[str] = []
    while "Finished" not in seen:
        real_time.sleep(0.21)  # status version 2 is let in five times a second
        seen.append(client.status(task_id)["status"])

    rows = client.rows(task_id, 50)
    data(client.post("/data/markexported", {"taskId": task_id}))

    assert "Extracting" in seen
    assert {row["keyword"] for row in rows} == {"tea", "chai", "чай"}
    assert len(rows) == 120
    assert rows == client.control.true_rows(task_id)
    assert client.control.task(task_id)["exported"] is True
