"""The event trigger, run on an event loop as the triggerer does: it remembers events that were stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskFinishedTrigger
from tests.airflow.executions import Connect, on_sandbox
from tests.airflow.proxy import proxy
from tests.airflow.waits import other_tasks, until
from tests.interruption import PATIENCE

pytestmark = on_sandbox(stale_seconds=0, wait_seconds=10, run_seconds=90)
from_3_3 = pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow 3.3 has a state store")

STATUS = "/cloudextraction/statuses/v2"


class Store:
    """An asset's state store, as the triggerer hands it to a watcher."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def aget(self, key: str) -> Any:
        return json.loads(self.values.get(key, "null"))

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = json.dumps(value)

    async def holds(self, run: int) -> None:
        """Wait until a task's run is remembered."""
        await until(lambda: run in {json.loads(value)["run"] for value in self.values.values()})


class Triggerer:
    """Runs an event trigger as Airflow's triggerer does.

    :param stores: whether the events get stored in the database.
    """

    def __init__(self, trigger: WebCollectTaskFinishedTrigger, stores: bool = True) -> None:
        self.trigger = trigger
        self.stores = stores
        self.payloads: list[dict[str, Any]] = []
        self.over = asyncio.Event()

    def runs(self) -> list[int]:
        return [payload["run"] for payload in self.payloads]

    async def reported(self, count: int) -> list[dict[str, Any]]:
        """Wait until ``count`` events were reported, and return all."""
        await until(lambda: len(self.payloads) >= count)
        return self.payloads

    async def run(self) -> None:
        """Run the trigger as the latest Airflow does."""
        from airflow.triggers.shared_stream import SharedStreamManager

        # if an event is not stored within this time, Airflow ends the trigger, to start it again
        ack_timeout = 300.0 if self.stores else 0.5
        manager, key = SharedStreamManager(ack_timeout=ack_timeout), self.trigger.shared_stream_key()
        try:
            stream = manager.subscribe(trigger_id=1, trigger=self.trigger, key=key)
            async for event in self.trigger.filter_shared_stream(stream):
                seq = manager.bind_pending_event(trigger_id=1, key=key)
                self.payloads.append(event.payload)
                if self.stores and seq is not None:
                    # the confirmation comes later, with the next exchange between the triggerer's processes
                    asyncio.get_running_loop().call_later(0.05, manager.confirm_persisted, [seq])
        finally:
            await manager.unsubscribe(1, key)
            self.over.set()

    async def run_alone(self) -> None:
        """Run the trigger as Airflow before 3.3 does."""
        async for event in self.trigger.run():
            self.payloads.append(event.payload)


@asynccontextmanager
async def triggerer(
    trigger: WebCollectTaskFinishedTrigger, store: Store | None = None, **options: Any
) -> AsyncIterator[Triggerer]:
    """Run a trigger while the context lasts, and then end it as a triggerer that stops does."""
    if store is not None:
        trigger.asset_state_store = store  # type: ignore[assignment]
    running = Triggerer(trigger, **options)
    running_on = running.run() if store is not None else running.run_alone()
    task = asyncio.create_task(running_on)
    yield running
    assert not (running.stores and task.done()), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def watching(*task_ids: str, **arguments: Any) -> WebCollectTaskFinishedTrigger:
    return WebCollectTaskFinishedTrigger(collection_task_ids=task_ids, **{"poke_interval": 0.05, **arguments})


def run_to_the_end(sandbox: Sandbox, task_id: str) -> None:
    sandbox.control.start_task(task_id)
    sandbox.control.advance(100)


async def polls(sandbox: Sandbox, count: int) -> None:
    """Wait until the service has got ``count`` more requests."""

    def requests() -> int:
        return sum(sandbox.control.counters().get(STATUS, {}).values())

    enough = requests() + count
    await until(lambda: requests() >= enough)


async def tells_the_next_run(sandbox: Sandbox, task_id: str, running: Triggerer) -> None:
    """Let a task run a second time, and check that only this run is reported."""
    run_to_the_end(sandbox, task_id)
    await running.reported(1)
    assert running.runs() == [2]


@pytest.fixture
def task_id(sandbox: Sandbox) -> str:
    """A task that ran once and has ended."""
    return str(sandbox.control.add_task(rows=20, lots=1, subtasks=2)["task_id"])


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    """Check after every test that no poll is left."""
    before = asyncio.all_tasks()
    yield
    await until(lambda: not other_tasks(before))


@pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="Airflow 3 has event triggers")
def test_airflow_takes_all_that_means_the_same_for_one_trigger() -> None:
    from airflow.triggers.base import BaseEventTrigger

    one = WebCollectTaskFinishedTrigger(collection_task_ids=["b", "a", "a"], poke_interval=60)
    same = WebCollectTaskFinishedTrigger(collection_task_ids=("a", "b"), states=("Finished",))
    other = WebCollectTaskFinishedTrigger(collection_task_id="a")

    assert isinstance(one, BaseEventTrigger)
    assert BaseEventTrigger.hash(*one.serialize()) == BaseEventTrigger.hash(*same.serialize())
    assert BaseEventTrigger.hash(*one.serialize()) != BaseEventTrigger.hash(*other.serialize())


#: By day, only the behaviour of the installed Airflow is tested.
by_its_version = pytest.mark.at_night if AIRFLOW_V_3_3_PLUS else ()
forgetting = pytest.param("forgetting", id="before 3.3", marks=by_its_version)


@pytest.fixture(params=["remembering", forgetting])
def store(request: pytest.FixtureRequest) -> Store | None:
    """A state store, or none as in Airflow before 3.3."""
    if request.param == "forgetting":
        return None
    if not AIRFLOW_V_3_3_PLUS:
        pytest.skip("Airflow 3.3 has a state store")
    return Store()


class TestTheWatch:
    async def test_each_run_is_reported(self, sandbox: Sandbox, task_id: str, store: Store | None) -> None:
        async with triggerer(watching(task_id), store) as running:
            await polls(sandbox, 2)
            for run in (2, 3):
                run_to_the_end(sandbox, task_id)
                event = (await running.reported(run - 1))[-1]

                assert (event["collection_task_id"], event["status"]) == (task_id, "Finished")
                assert (event["first_run"], event["run"]) == (run, run)
                assert event["rows"] >= 20
                assert event["started_at"] < event["finished_at"]
            await polls(sandbox, 3)
            assert running.runs() == [2, 3]

    async def test_faults_and_an_unknown_task_do_not_end_the_watch(
        self, sandbox: Sandbox, task_id: str, store: Store | None
    ) -> None:
        async with triggerer(watching(task_id, "no such task"), store) as running:
            await polls(sandbox, 4)
            sandbox.control.fail(STATUS, times=2, kind="status", status=503)
            await polls(sandbox, 1)
            await tells_the_next_run(sandbox, task_id, running)

    async def test_after_a_refusal_the_connection_is_read_again(
        self, sandbox: Sandbox, task_id: str, store: Store | None, set_connection: Any, caplog: Any
    ) -> None:
        set_connection(extra={"access_token": "a-wrong-token"})
        async with triggerer(watching(task_id), store) as running:
            await until(lambda: "cannot be watched" in caplog.text)
            assert "a-wrong-token" not in caplog.text
            set_connection()
            sandbox.control.clear_requests()
            await until(lambda: sandbox.control.counters().get(STATUS, {}).get(200))
            await tells_the_next_run(sandbox, task_id, running)


async def test_the_first_response_may_lack_a_task(
    sandbox: Sandbox, task_id: str, set_connection: Connect
) -> None:
    responses = []

    def leave_out_the_first(target: str, status: int, body: Any) -> tuple[int, Any]:
        if target.startswith(STATUS):
            responses.append(body)
            body = {**body, "data": body["data"] if len(responses) > 1 else []}
        return status, body

    with proxy(sandbox.url, leave_out_the_first) as url:
        set_connection(host=url)
        async with triggerer(watching(task_id)) as running:
            await until(lambda: len(responses) >= 4)
            assert running.payloads == []
            await tells_the_next_run(sandbox, task_id, running)


@from_3_3
class TestOverARestart:
    async def test_a_run_that_ended_meanwhile_is_reported_once(self, sandbox: Sandbox, task_id: str) -> None:
        store, reported = Store(), []
        other = sandbox.control.add_task(lots=[1])["task_id"]
        for run, watched in ((1, [task_id]), (2, [task_id]), (3, [task_id, other])):
            async with triggerer(watching(*watched), store) as running:
                await store.holds(run)
                await polls(sandbox, 3)
            reported += running.runs()
            run_to_the_end(sandbox, task_id)

        assert reported == [2, 3]

    async def test_an_event_that_was_not_stored_is_repeated(self, sandbox: Sandbox, task_id: str) -> None:
        store = Store()
        async with triggerer(watching(task_id), store):
            await store.holds(1)
        run_to_the_end(sandbox, task_id)
        async with triggerer(watching(task_id), store, stores=False) as killed:
            await killed.reported(1)
            await asyncio.wait_for(killed.over.wait(), PATIENCE)
        async with triggerer(watching(task_id), store) as running:
            await running.reported(1)

        assert running.payloads == killed.payloads

    @pytest.mark.parametrize("value", ["not a mark", {"run": "two"}], ids=repr)
    async def test_what_is_remembered_but_makes_no_sense_is_not_built_upon(
        self, sandbox: Sandbox, task_id: str, value: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = Store()
        store.values = {f"webcollect_default {task_id} Finished": json.dumps(value)}
        async with triggerer(watching(task_id), store) as running:
            await polls(sandbox, 3)
            await tells_the_next_run(sandbox, task_id, running)
        assert "begins again" in caplog.text

    async def test_on_several_assets_nothing_is_remembered(
        self, sandbox: Sandbox, task_id: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        from airflow.sdk import Asset
        from airflow.sdk.execution_time.context import AssetStateStoreAccessors

        several: Any = AssetStateStoreAccessors(inlets=[Asset("one"), Asset("two")])
        async with triggerer(watching(task_id), several) as running:
            await polls(sandbox, 3)
            await tells_the_next_run(sandbox, task_id, running)
        assert caplog.text.count("not remembered") == 1

    async def test_a_store_that_is_away_is_waited_for(self, sandbox: Sandbox, task_id: str) -> None:
        class Away(Store):
            left = 3

            async def aget(self, key: str) -> Any:
                if self.left:
                    self.left -= 1
                    raise RuntimeError("the database is away")
                return await super().aget(key)

        store = Away()
        async with triggerer(watching(task_id), store) as running:
            await store.holds(1)
            await tells_the_next_run(sandbox, task_id, running)

    async def test_a_store_that_fails_does_not_end_the_watch(
        self, sandbox: Sandbox, task_id: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Failing(Store):
            async def aset(self, key: str, value: Any) -> None:
                raise RuntimeError("the database is away")

        async with triggerer(watching(task_id), Failing()) as running:
            await polls(sandbox, 3)
            await tells_the_next_run(sandbox, task_id, running)
            await polls(sandbox, 3)

        assert running.runs() == [2]
        assert "the database is away" in caplog.text
