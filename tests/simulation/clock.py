"""An event loop whose time passes as soon as there is nothing else to do; and turns of one in real time."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class SimulatedTime(selectors.DefaultSelector):
    """Lets an event loop's time pass as soon as there is nothing else to do."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for something that never comes"
        self.now += timeout
        return super().select(0)


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in simulated time."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        time = SimulatedTime()
        loop = asyncio.SelectorEventLoop(time)
        loop.time = lambda: time.now  # type: ignore[method-assign]
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(test(*arguments, **named))

    return run


class Turns:
    """Counts the turns of the event loop, in real time: it is never idle meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._go_round())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1
