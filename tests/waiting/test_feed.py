"""The states of tasks and sub-tasks for all who wait on one connection, against the sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.service.client import AsyncClient
from airflow_provider_webcollect.service.errors import PermissionDenied, WebCollectError
from airflow_provider_webcollect.service.settings import Retries
from airflow_provider_webcollect.waiting.conditions import SUBTASKS, TASK_STATUSES
from airflow_provider_webcollect.waiting.poll import StatusFeed
from tests.interruption import Pauses

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.service.client import Client
    from airflow_provider_webcollect.service.models import TaskStatus

# where pauses take no time, limits cannot be kept
pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

V2 = "/cloudextraction/statuses/v2"
SUBTASKS_PATH = "/cloudextraction/task/subtasks"
#: Seconds between two polls; pauses after failures are as short.
INTERVAL = 0.05
Feeds = Callable[..., Any]


@pytest.fixture
def feed_of(connect: Callable[..., Client]) -> Feeds:
    """Opens feeds on the sandbox that try each call twice and pause for no time."""
    context = connect(retries=Retries(attempts=2)).context

    @asynccontextmanager
    async def opened(batch_size: int = 100) -> AsyncIterator[StatusFeed]:
        feed = StatusFeed(AsyncClient(context, stop=Pauses()), batch_size)
        yield feed
        await feed.aclose()

    return opened


async def first(feed: StatusFeed, *task_ids: str) -> dict[str, TaskStatus | None]:
    return await feed.until(TASK_STATUSES, task_ids, INTERVAL, lambda seen: dict(seen))


async def first_subtasks(feed: StatusFeed, task_id: str) -> int:
    return await feed.until(SUBTASKS, [task_id], INTERVAL, lambda seen: len(seen[task_id] or []))


def queried(sandbox: Sandbox) -> list[list[str]]:
    """Return the ids of every status query."""
    return [json.loads(request["body"])["taskIds"] for request in sandbox.control.requests(V2)]


def tasks(sandbox: Sandbox, count: int, **settings: Any) -> list[str]:
    return [sandbox.control.add_task(**settings)["task_id"] for _ in range(count)]


async def test_all_who_ask_at_once_share_full_batches(sandbox: Sandbox, feed_of: Feeds) -> None:
    ids = tasks(sandbox, 25)
    async with feed_of(batch_size=10) as feed:
        answers = await asyncio.gather(*(first(feed, task_id) for task_id in ids))
    assert [list(answer) for answer in answers] == [[task_id] for task_id in ids]
    assert sorted(len(batch) for batch in queried(sandbox)) == [5, 10, 10]


async def test_a_wait_sees_a_task_change(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1)
    states = []

    def see(seen: dict[str, TaskStatus]) -> bool | None:
        states.append(seen[task_id].status)
        sandbox.control.mark_state(task_id, "Hibernating")
        return True if len(states) == 2 else None

    async with feed_of() as feed:
        await feed.until(TASK_STATUSES, [task_id], INTERVAL, see)
    assert states == ["Unexecuted", "Hibernating"]


@pytest.mark.webcollect_sandbox(hide_unexecuted=True)
async def test_a_task_that_the_service_leaves_out_is_seen_as_none(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1)
    async with feed_of() as feed:
        assert await first(feed, task_id) == {task_id: None}


REFUSALS = [
    {"status": 403},
    {"status": 400, "code": "InvalidTaskId"},
    {"status": 400, "code": "SomethingNew"},
    {"kind": "redirect", "to": "http://elsewhere.invalid/"},
]


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"status": 429}, {"kind": "html"}, {"kind": "drop"}, *REFUSALS]
)
async def test_a_failing_service_is_survived(sandbox: Sandbox, feed_of: Feeds, fault: dict[str, Any]) -> None:
    (task_id,) = tasks(sandbox, 1)
    # more failures than one call tries, and not enough to confirm a refusal
    sandbox.control.fail(V2, times=3 if fault not in REFUSALS else 2, **fault)
    async with feed_of() as feed:
        assert await first(feed, task_id)


@pytest.mark.parametrize("fault", REFUSALS)
async def test_a_refusal_that_comes_three_times_in_a_row_ends_a_wait(
    sandbox: Sandbox, feed_of: Feeds, fault: dict[str, Any]
) -> None:
    (task_id,) = tasks(sandbox, 1)
    sandbox.control.fail(V2, times=3, **fault)
    async with feed_of() as feed:
        with pytest.raises(WebCollectError) as refusal:
            await first(feed, task_id)
    assert refusal.value.permanent
    assert len(sandbox.control.requests(V2)) == 3


async def test_a_refusal_for_good_reaches_everybody(sandbox: Sandbox, feed_of: Feeds) -> None:
    ids = tasks(sandbox, 3)
    sandbox.control.configure(tier="Flagship")
    async with feed_of() as feed:
        failures = await asyncio.gather(*(first(feed, task_id) for task_id in ids), return_exceptions=True)
    assert [type(failure) for failure in failures] == [PermissionDenied] * 3


async def test_subtask_waits_on_one_task_share_their_pages(sandbox: Sandbox, feed_of: Feeds) -> None:
    (task_id,) = tasks(sandbox, 1, subtasks=45)
    async with feed_of() as feed:
        assert await asyncio.gather(*(first_subtasks(feed, task_id) for _ in range(10))) == [45] * 10
    assert len(sandbox.control.requests(SUBTASKS_PATH)) == 3


async def test_subtask_waits_survive_a_failing_service_and_end_on_a_refusal(
    sandbox: Sandbox, feed_of: Feeds
) -> None:
    ids = tasks(sandbox, 2)
    sandbox.control.fail(SUBTASKS_PATH, times=6, status=503)
    async with feed_of() as feed:
        assert await asyncio.gather(*(first_subtasks(feed, task_id) for task_id in ids)) == [4, 4]
        sandbox.control.configure(tier="Flagship")
        with pytest.raises(PermissionDenied):
            await first_subtasks(feed, ids[0])
