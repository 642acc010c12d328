"""One poll for all who wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.service import status_feed
from airflow_provider_webcollect.service.async_client import AsyncClient
from airflow_provider_webcollect.service.errors import NotFound, PermissionDenied
from airflow_provider_webcollect.service.status_feed import StatusFeed
from airflow_provider_webcollect.service.tokens import MemoryTokenStore

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.client import Client
    from airflow_provider_webcollect.service.records import TaskStatus

V2 = "/cloudextraction/statuses/v2"
SUBTASKS = "/cloudextraction/task/subtasks"
Feeds = Callable[..., Any]


@pytest.fixture
def feed_of(client: Client) -> Feeds:
    """Opens feeds on the sandbox."""

    @asynccontextmanager
    async def opened(batch_size: int = 100) -> AsyncIterator[StatusFeed]:
        feed = StatusFeed(AsyncClient(client.wire, MemoryTokenStore("feed")), batch_size)
        yield feed
        await feed.aclose()

    return opened


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_feed, "FIRST_BACKOFF", 0.02)


async def first(feed: StatusFeed, task_ids: Iterable[str], interval: float = 60) -> dict[str, TaskStatus]:
    async with aclosing(feed.watch(list(task_ids), interval)) as looks:
        return await anext(looks)


def asked(sandbox: Sandbox) -> list[list[str]]:
    """Return the ids of every status query."""
    return [json.loads(request["body"])["taskIds"] for request in sandbox.control.requests(V2)]


def tasks(sandbox: Sandbox, count: int, **settings: Any) -> list[str]:
    return [sandbox.control.add_task(**settings)["task_id"] for _ in range(count)]


async def test_all_who_ask_at_once_share_full_batches(sandbox: Sandbox, feed_of: Feeds) -> None:
    ids = tasks(sandbox, 25)
    async with feed_of(batch_size=10) as feed:
        answers = await asyncio.gather(*(first(feed, [task_id]) for task_id in ids))
    assert [list(answer) for answer in answers] == [[task_id] for task_id in ids]
    assert sorted(len(batch) for batch in asked(sandbox)) == [5, 10, 10]


async def test_two_who_wait_for_one_task_cost_one_query(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1)
    async with feed_of() as feed:
        await asyncio.gather(first(feed, [task_id]), first(feed, [task_id]))
    assert asked(sandbox) == [[task_id]]


async def test_the_shorter_of_two_intervals_decides_for_both(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1)
    async with (
        feed_of() as feed,
        aclosing(feed.watch([task_id], 60)) as slow,
        aclosing(feed.watch([task_id], 0.3)) as quick,
    ):
        await asyncio.gather(anext(slow), anext(quick))
        await asyncio.wait_for(asyncio.gather(anext(slow), anext(quick)), 5)
    assert len(asked(sandbox)) == 2


async def test_a_watch_looks_again_after_its_interval(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1)
    seen = []
    async with feed_of() as feed, aclosing(feed.watch([task_id], 0.1)) as looks:
        async for statuses in looks:
            seen.append(statuses[task_id].status)
            if len(seen) == 1:
                sandbox.control.mark_state(task_id, "Hibernating")
            if len(seen) == 2:
                break
    assert seen == ["Unexecuted", "Hibernating"]


@pytest.mark.webcollect_sandbox(hide_unexecuted=True)
async def test_a_task_that_the_service_leaves_out_is_absent(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1)
    async with feed_of() as feed:
        assert await first(feed, [task_id]) == {}


async def test_a_failing_service_is_survived(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1)
    # more failures than one call tries
    sandbox.control.fail(V2, times=9, status=503)
    async with feed_of() as feed:
        assert task_id in await first(feed, [task_id])


async def test_a_refusal_for_good_reaches_everybody(sandbox: Sandbox, feed_of: Feeds) -> None:
    ids = tasks(sandbox, 3)
    sandbox.control.configure(tier="Flagship")
    async with feed_of() as feed:
        failures = await asyncio.gather(*(first(feed, [task_id]) for task_id in ids), return_exceptions=True)
    assert [type(failure) for failure in failures] == [PermissionDenied] * 3


async def test_one_bad_id_does_not_end_the_waits_on_the_others(sandbox: Sandbox, feed_of: Feeds) -> None:
    ids = tasks(sandbox, 4)
    refusal = {"status": 400, "code": "InvalidTaskId", "message": "no such task"}
    # the whole batch, its first half, and the first of that
    sandbox.control.fail(V2, times=3, **refusal)
    async with feed_of() as feed:
        answers = await asyncio.gather(*(first(feed, [task_id]) for task_id in ids), return_exceptions=True)
    assert isinstance(answers[0], NotFound)
    assert [list(answer) for answer in answers[1:]] == [[task_id] for task_id in ids[1:]]


async def test_a_feed_that_breaks_down_fails_its_waits(feed_of: Feeds) -> None:
    async with feed_of() as feed:
        feed._batch_size = "broken"
        with pytest.raises(TypeError):
            await asyncio.wait_for(first(feed, ["a"]), 5)


async def test_a_wait_that_is_given_up_leaves_nothing_behind(sandbox: Sandbox, feed_of: Feeds) -> None:
    ids = tasks(sandbox, 2)
    async with feed_of() as feed:
        waits = [asyncio.create_task(first(feed, [task_id])) for task_id in ids]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert feed._watched == {}
        assert list(await waits[1]) == [ids[1]]
    assert feed._runner.done()


async def test_subtask_waits_on_one_task_share_their_pages(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1, subtasks=45)

    async def look(feed: StatusFeed) -> int:
        async with aclosing(feed.watch_subtasks(task_id, 60)) as looks:
            return len(await anext(looks))

    async with feed_of() as feed:
        assert await asyncio.gather(*(look(feed) for _ in range(10))) == [45] * 10
    assert len(sandbox.control.requests(SUBTASKS)) == 3


async def test_subtask_waits_survive_a_failing_service_and_end_on_a_refusal(
    sandbox: Sandbox, feed_of: Feeds
) -> None:
    (task_id,) = tasks(sandbox, 1)
    sandbox.control.fail(SUBTASKS, times=9, status=503)
    async with feed_of() as feed, aclosing(feed.watch_subtasks(task_id, 0.01)) as looks:
        assert await anext(looks)
        sandbox.control.configure(tier="Flagship")
        with pytest.raises(PermissionDenied):
            await anext(looks)
