"""Odd responses end no wait, hold up no other collection task, and put no NUL into the database."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.operators.webcollect import WebCollectGetActionsOperator
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from tests.airflow.dag_runs import run_tasks
from tests.airflow.executions import Connect, Task, execute, on_sandbox
from tests.airflow.landings import make_transfer
from tests.airflow.proxy import proxy, without_status
from tests.airflow.waits import SENSORS, STATUS_PATHS, for_task, outcome
from tests.interruption import PATIENCE

pytestmark = on_sandbox(stale_seconds=0, run_seconds=10_000)


def test_an_unreadable_status_holds_up_no_other(sandbox: Sandbox, set_connection: Connect) -> None:
    unreadable = sandbox.control.add_task(lots=[1])["task_id"]

    def wait(other: str, wait_for: Any) -> Any:
        usual: dict[str, Any] = {"task_id": "wait", "poke_interval": 0.1, "timeout": PATIENCE}
        ids = [unreadable, other]
        return execute(WebCollectTaskStatusSensor(collection_task_ids=ids, wait_for=wait_for, **usual))

    finished = sandbox.control.add_task(lots=[1])["task_id"]
    with proxy(sandbox.url, without_status(unreadable)) as url:
        set_connection(host=url)
        assert [record["task_id"] for record in wait(finished, "any")] == [finished]
        with pytest.raises(AirflowFailException, match="is Stopped"):
            wait(sandbox.control.add_task(state="Stopped")["task_id"], "all")


@pytest.mark.parametrize("kind", ["task", pytest.param("subtask", marks=pytest.mark.at_night)])
def test_what_a_response_leaves_out_fails_no_sensor(
    sandbox: Sandbox, set_connection: Connect, kind: str
) -> None:
    task_id = sandbox.control.add_task(state="Extracting", subtasks=2)["task_id"]
    responses = itertools.count(1)

    def leave_out(target: str, status: int, body: Any) -> tuple[int, Any]:
        if not target.startswith(STATUS_PATHS[kind]):
            return status, body
        number = next(responses)
        if number == 5:
            sandbox.control.advance(100_000)
        return status, {**body, "data": []} if number in (1, 3) else body

    # with this `missing_timeout`, a missing record ends the wait from the first poll on
    options = {"mode": "reschedule", "poke_interval": 0.1, "missing_timeout": 0, "task_id": "wait"}
    options |= {"retries": 1, "retry_delay": datetime.timedelta(0)}
    with proxy(sandbox.url, leave_out) as url:
        set_connection(host=url)
        run = run_tasks(lambda: SENSORS[kind](collection_task_id=task_id, **options))

    assert (run.states, run.tries) == ({"wait": "success"}, {"wait": 1})


class TestTexts:
    """Texts that Airflow's database may refuse: PostgreSQL stores no NUL."""

    BAD, GOOD = "a\0b", "a\N{REPLACEMENT CHARACTER}b"

    def test_no_result_has_them(
        self, sandbox: Sandbox, source: Task, set_connection: Connect, tmp_path: Path
    ) -> None:
        def edit(target: str, status: int, body: Any) -> tuple[int, Any]:
            if isinstance(actions := body["data"], list):
                body["data"] = [{**action, "name": self.BAD} for action in actions]
            elif "data" in actions:
                body["data"] = {**actions, "data": [{self.BAD: "x", **row} for row in actions["data"]]}
            return status, body

        with proxy(sandbox.url, edit) as url:
            set_connection(host=url)
            (task_actions,) = execute(
                WebCollectGetActionsOperator(task_id="get", collection_task_ids=[source["task_id"]])
            )
            landed = execute(make_transfer(str(tmp_path / "prices"), source))
        assert task_actions["unknown_fields"]["name"] == self.GOOD
        assert landed["filled"][self.GOOD] == 1
        # the rows themselves are as they were sent
        assert {row[self.BAD] for row in read_landing(landed["destination"]).iter_rows()} == {"x"}

    async def test_no_event_has_them(self, sandbox: Sandbox, set_connection: Connect) -> None:
        def edit(target: str, status: int, body: Any) -> tuple[int, Any]:
            is_status = target.startswith(STATUS_PATHS["task"])
            return (403, {"error": {"code": "x", "message": self.BAD}}) if is_status else (status, body)

        with proxy(sandbox.url, edit) as url:
            set_connection(host=url)
            ended = await outcome(for_task({"task_id": "t"}))
        assert r"x: a\u0000b." in ended["reason"]
