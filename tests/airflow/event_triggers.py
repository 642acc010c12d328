"""Running an event trigger as the triggerer runs it: events stored, and then remembered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskFinishedTrigger
from tests.airflow.waits import until


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
    """What Airflow's triggerer does with an event trigger.

    :param stores: whether it gets to store the events in the database.
    """

    def __init__(self, trigger: WebCollectTaskFinishedTrigger, stores: bool = True) -> None:
        self.trigger = trigger
        self.stores = stores
        self.payloads: list[dict[str, Any]] = []
        self.over = asyncio.Event()

    def runs(self) -> list[int]:
        """Return the numbers of the runs that were reported."""
        return [payload["run"] for payload in self.payloads]

    async def reported(self, count: int) -> list[dict[str, Any]]:
        """Wait until ``count`` events were reported, and return all."""
        await until(lambda: len(self.payloads) >= count)
        return self.payloads

    async def run(self) -> None:
        """Run the trigger as the latest Airflow does."""
        from airflow.triggers.shared_stream import SharedStreamManager

        # so long after an event that was not stored, Airflow ends the trigger, to start it again
        ack_timeout = 300.0 if self.stores else 0.5
        manager, key = SharedStreamManager(ack_timeout=ack_timeout), self.trigger.shared_stream_key()
        try:
            stream = manager.subscribe(trigger_id=1, trigger=self.trigger, key=key)
            async for event in self.trigger.filter_shared_stream(stream):
                seq = manager.bind_pending_event(trigger_id=1, key=key)
                self.payloads.append(event.payload)
                if self.stores and seq is not None:
                    # the word comes back later, with the next exchange between the triggerer's processes
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
    """Run a trigger while the context lasts, and end it as a triggerer that is stopped."""
    if store is not None:
        trigger.asset_state_store = store  # type: ignore[assignment]
    running = Triggerer(trigger, **options)
    running_on = running.run() if store is not None else running.run_alone()
    task = asyncio.create_task(running_on)
    yield running
    assert not (running.stores and task.done()), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
