"""The feed that all triggers on a connection share."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_webcollect.triggers.feeds import SharedFeed

pytestmark = pytest.mark.usefixtures("airflow_database", "connected")


async def test_thousands_who_waited_for_it_to_open_do_not_all_go_on_in_one_turn_of_the_event_loop() -> None:
    turn = 0
    entered_in: list[int] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def use() -> None:
        async with SharedFeed("webcollect_default"):
            entered_in.append(turn)
            while len(entered_in) < 100:
                await asyncio.sleep(0)

    turns = asyncio.create_task(count_turns())
    await asyncio.gather(*(use() for _ in range(100)))
    turns.cancel()
    assert len(set(entered_in)) == 100


async def test_a_user_that_is_cancelled_leaves_the_opening_to_the_others() -> None:
    async def use() -> str:
        async with SharedFeed("webcollect_default"):
            return "used"

    users = [asyncio.create_task(use()) for _ in range(3)]
    await asyncio.sleep(0)
    users[0].cancel()
    ended = await asyncio.gather(*users, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    assert ended[1:] == ["used", "used"]
