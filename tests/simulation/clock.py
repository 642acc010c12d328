"""Simulated time, of an event loop or of scheduled events: it passes as soon as there is nothing else to do.

No test waits, and the same events come in the same order each time. Only :class:`Turns` uses real time.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
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


class Timeline:
    """Runs events at their times; of events at the same time, the one scheduled first comes first."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def after(self, delay: float, event: Callable[[], object]) -> None:
        """Schedule an event in some seconds."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), event))

    def pass_time(self) -> None:
        """Run all scheduled events, also those that are scheduled meanwhile."""
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()


class Turns:
    """Counts the turns of the event loop in real time, and keeps it busy meanwhile."""

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
