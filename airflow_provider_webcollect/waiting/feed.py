"""The polls that all waits on one connection share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow_provider_webcollect.waiting.poller import TIMING, Judge, Poll, Timing
from airflow_provider_webcollect.waiting.queries import RUNNING_COUNTS, SUBTASKS, TASK_STATUSES, Query

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.sync import Interruptible

T = TypeVar("T")

#: Attempts of a call: one retry, for example after a lost connection.
TRIES = 2


class FeedClient(Protocol):
    """The part of ``AsyncClient`` that a feed uses."""

    async def run(self, work: Callable[[Interruptible], T]) -> T:
        """Run ``work``, which sends calls, and return its result."""

    async def aclose(self) -> None:
        """Close the connections to the service."""


class StatusFeed:
    """The polls on one client, one for each query. Only task statuses are queried for many keys at once.

    :param client: the client that sends the queries; the feed closes it.
    :param batch_size: tasks per status query.
    :param timing: the pauses of the polls.
    """

    def __init__(self, client: FeedClient, batch_size: int, timing: Timing = TIMING) -> None:
        self._client = client
        self._polls: dict[Query, Poll[Any]] = {
            query: Poll(functools.partial(self._ask, query), query.batch_size(batch_size), timing)
            for query in (TASK_STATUSES, SUBTASKS, RUNNING_COUNTS)
        }

    def until(
        self, query: Query, keys: Sequence[str], interval: float, judge: Judge[Any, T]
    ) -> Coroutine[Any, Any, T]:
        """Poll shortly and then every ``interval`` seconds, until ``judge`` returns a result; return it.

        See :meth:`Poll.until`.
        """
        return self._polls[query].until(keys, interval, judge)

    async def aclose(self) -> None:
        """Stop polling and close the connections."""
        for poll in self._polls.values():
            await poll.aclose()
        await self._client.aclose()

    async def _ask(self, query: Query, keys: Sequence[str]) -> Mapping[str, Any]:
        # few attempts, since a poll repeats a failed query later
        return await self._client.run(
            lambda sender: query.ask(sender.with_context(sender.context.short_retries(TRIES)), keys)
        )
