"""Single responses that are odd, and tasks that always fail, do not end waits nor hold up others."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, BaseSensorOperator

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.operators.webcollect import WebCollectGetActionsOperator
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectSubTaskStatusSensor,
    WebCollectTaskStatusSensor,
)
from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskFinishedTrigger
from tests.airflow.dag_runs import run_tasks
from tests.airflow.event_triggers import triggerer
from tests.airflow.executions import Connect, Task, execute, on_sandbox
from tests.airflow.landings import make_transfer
from tests.airflow.proxy import proxy
from tests.airflow.waits import STATUS_PATHS, for_task, outcome, until
from tests.interruption import PATIENCE

pytestmark = on_sandbox(stale_seconds=0, run_seconds=10_000)


class Oddities:
    """What becomes of the responses to status queries; they count from 1."""

    def __init__(self) -> None:
        self.responses = 0
        self.edit: Callable[[str, int, Any], tuple[int, Any]] = lambda target, status, body: (status, body)

    def __call__(self, target: str, status: int, body: Any) -> tuple[int, Any]:
        if not target.startswith(tuple(STATUS_PATHS.values())):
            return status, body
        self.responses += 1
        return self.edit(target, status, body)


@pytest.fixture
def odd(sandbox: Sandbox, set_connection: Connect) -> Iterator[Oddities]:
    """Makes responses of the service odd on their way."""
    oddities = Oddities()
    with proxy(sandbox.url, oddities) as url:
        set_connection(host=url)
        yield oddities


def test_of_several_tasks_one_that_has_ended_is_enough_though_another_cannot_be_read(
    sandbox: Sandbox, odd: Oddities
) -> None:
    unreadable = sandbox.control.add_task(lots=[1])["task_id"]

    def edit(target: str, status: int, body: Any) -> tuple[int, Any]:
        for record in body["data"]:
            if record["taskId"] == unreadable:
                record["status"] = None
        return status, body

    def wait(other: str, wait_for: Any) -> Any:
        usual: dict[str, Any] = {"task_id": "wait", "poke_interval": 0.1, "timeout": PATIENCE}
        ids = [unreadable, other]
        return execute(WebCollectTaskStatusSensor(collection_task_ids=ids, wait_for=wait_for, **usual))

    odd.edit = edit
    finished = sandbox.control.add_task(lots=[1])["task_id"]
    assert [record["task_id"] for record in wait(finished, "any")] == [finished]
    with pytest.raises(AirflowFailException, match="is Stopped"):
        wait(sandbox.control.add_task(state="Stopped")["task_id"], "all")


class TestMissing:
    @pytest.mark.parametrize(
        "sensor",
        [WebCollectTaskStatusSensor, pytest.param(WebCollectSubTaskStatusSensor, marks=pytest.mark.at_night)],
    )
    def test_what_one_response_leaves_out_does_not_fail_a_rescheduled_sensor(
        self, sandbox: Sandbox, odd: Oddities, sensor: type[BaseSensorOperator]
    ) -> None:
        running = sandbox.control.add_task(state="Extracting", subtasks=2)

        def end_later(target: str, status: int, body: Any) -> tuple[int, Any]:
            if odd.responses == 5:
                sandbox.control.advance(100_000)
            return status, {**body, "data": []} if odd.responses in (1, 3) else body

        odd.edit = end_later
        # the time is over from the first poll on
        options = {"mode": "reschedule", "poke_interval": 0.1, "missing_timeout": 0}
        retries = {"retries": 1, "retry_delay": datetime.timedelta(0)}
        task_id = running["task_id"]
        run = run_tasks(lambda: sensor(task_id="wait", collection_task_id=task_id, **options, **retries))

        assert (run.states, run.tries) == ({"wait": "success"}, {"wait": 1})

    async def test_a_task_that_the_first_response_leaves_out_has_not_thereby_never_run(
        self, sandbox: Sandbox, odd: Oddities
    ) -> None:
        task = sandbox.control.add_task(lots=[1, 1])
        odd.edit = lambda target, status, body: (status, {**body, "data": []} if odd.responses == 1 else body)
        trigger = WebCollectTaskFinishedTrigger(collection_task_id=task["task_id"], poke_interval=0.1)
        async with triggerer(trigger) as running:
            await until(lambda: odd.responses >= 4)
            assert running.payloads == []
            sandbox.control.start_task(task["task_id"])
            sandbox.control.advance(100_000)
            await running.reported(1)

        assert running.runs() == [3]


class TestTexts:
    """Texts that a database of Airflow may not hold: PostgreSQL refuses NUL."""

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
