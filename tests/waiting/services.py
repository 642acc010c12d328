"""A service to which polls send queries about keys, in simulated time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def now() -> float:
    return asyncio.get_running_loop().time()


class Service:
    """Answers queries, and records the time and the keys of each.

    :ivar trouble: returns the error with which a query about some keys fails; None if it does not.
    :ivar states: the states of some keys, by key.
    :ivar others: the state of all other keys; if None, responses leave them out.
    :ivar takes: returns the seconds that the response to a query about some keys takes.
    """

    def __init__(self, others: str | None = "Extracting", **states: Any) -> None:
        self.queries: list[tuple[float, list[str]]] = []
        self.states, self.others = states, others
        self.trouble: Callable[[list[str]], BaseException | None] = lambda keys: None
        self.takes: Callable[[list[str]], float] = lambda keys: 0.05

    async def __call__(self, keys: list[str]) -> Mapping[str, Any]:
        self.queries.append((now(), keys))
        # whether it fails is decided when the query arrives, not when the response is due
        error = self.trouble(keys)
        await asyncio.sleep(self.takes(keys))
        if error:
            raise error.with_traceback(None)
        states = {key: self.states.get(key, self.others) for key in keys}
        return {key: state for key, state in states.items() if state is not None}

    def fail(self, error: BaseException, times: float = float("inf"), about: Iterable[str] = ()) -> None:
        """Have the next queries fail: those about certain keys, or all."""
        keys_in_trouble, left = set(about), times

        def trouble(keys: list[str]) -> BaseException | None:
            nonlocal left
            if left <= 0 or (keys_in_trouble and not keys_in_trouble & set(keys)):
                return None
            left -= 1
            return error

        self.trouble = trouble

    def recover(self) -> None:
        self.trouble = lambda keys: None

    def gaps(self) -> list[float]:
        return [later - earlier for (earlier, _), (later, _) in itertools.pairwise(self.queries)]

    @property
    def asked(self) -> list[list[str]]:
        return [keys for _, keys in self.queries]
