"""One poll serves all waits."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from airflow_provider_webcollect.service.errors import PermissionDenied, ServiceFailure
from airflow_provider_webcollect.waiting.conditions import LONGEST_BACKOFF, REFUSALS
from airflow_provider_webcollect.waiting.poll import LONGEST_TURN, Poll
from tests.simulation.clock import Turns, simulated
from tests.waiting.services import Service


def states(seen: Mapping[str, Any]) -> dict[str, Any]:
    """End a wait with the states that it was shown first."""
    return dict(seen)


@pytest.fixture
def service() -> Service:
    """A service that answers about some keys; the event loop cancels queries that are open at its end."""
    return Service(None, a=1, b=2, c=3)


@pytest.fixture
def poll(service: Service) -> Iterator[Poll[Any]]:
    """The one poll of the service."""
    poll: Poll[Any] = Poll(service, 100)
    yield poll
    assert poll._watched == {}


@simulated
async def test_all_who_ask_at_once_share_full_batches(service: Service) -> None:
    service.states = {f"k{n}": n for n in range(25)}
    poll: Poll[Any] = Poll(service, 10)
    seen = await asyncio.gather(*(poll.until([key], 60, states) for key in service.states))
    assert seen == [{key: value} for key, value in service.states.items()]
    assert sorted(len(batch) for batch in service.asked) == [5, 10, 10]


@simulated
async def test_waits_that_begin_together_are_asked_about_together(service: Service, poll: Poll[Any]) -> None:
    waits = []
    for key in "abc":
        waits.append(asyncio.create_task(poll.until([key], 60, states)))
        await asyncio.sleep(0)
    await asyncio.gather(*waits)
    assert service.asked == [["a", "b", "c"]]


@simulated
async def test_those_who_keep_coming_do_not_delay_the_first_poll(poll: Poll[Any]) -> None:
    first = asyncio.create_task(poll.until(["a"], 60, states))
    others = []
    while not first.done():
        others.append(asyncio.create_task(poll.until(["a"], 60, states)))
        await asyncio.sleep(0.001)
    await asyncio.gather(*others)


@simulated
async def test_every_round_is_of_full_batches_though_some_came_earlier(
    service: Service, poll: Poll[Any]
) -> None:
    service.states = {f"k{n}": n for n in range(250)}
    polls: Counter[str] = Counter()

    def see(seen: Mapping[str, int | None]) -> bool | None:
        polls.update(seen.keys())
        return True if polls[next(iter(seen))] == 4 else None

    early, *late = service.states
    waits = [asyncio.create_task(poll.until([early], 0.5, see))]
    while not service.queries:
        await asyncio.sleep(0.001)
    await asyncio.gather(*waits, *(poll.until([key], 0.5, see) for key in late))
    # the first query, for the early wait, then three batches a round
    assert len(service.queries) <= 1 + 4 * 3
    assert set(polls.values()) == {4}


@simulated
async def test_a_wait_is_not_shown_the_response_to_an_older_question() -> None:
    """A wait sees everything that happened before it began, such as a start."""
    answering = asyncio.Event()
    asked: list[int] = []

    async def ask(keys: list[str]) -> dict[str, int]:
        asked.append(len(asked))
        answer = {"a": asked[-1]}
        await answering.wait()
        return answer

    poll: Poll[int] = Poll(ask, 100)
    before = asyncio.create_task(poll.until(["a"], 60, states))
    while not asked:
        await asyncio.sleep(0.001)
    after = asyncio.create_task(poll.until(["a"], 60, states))
    await asyncio.sleep(0)
    answering.set()
    assert await before == {"a": 0}
    assert await after == {"a": 1}


@simulated
async def test_the_shorter_of_two_intervals_decides_for_both(service: Service, poll: Poll[Any]) -> None:
    service.states = {"a": 0}
    polls = {"slow": 0, "quick": 0}

    def see(name: str, enough: int) -> Any:
        def count(seen: Mapping[str, int | None]) -> bool | None:
            polls[name] += 1
            return True if polls[name] == enough else None

        return count

    await asyncio.gather(poll.until(["a"], 60, see("slow", 3)), poll.until(["a"], 0.05, see("quick", 3)))
    assert len(service.queries) == 3


@simulated
async def test_a_wait_on_many_keys_judges_once_per_response(service: Service) -> None:
    judged: list[dict[str, int | None]] = []

    def see(polled: Mapping[str, int | None]) -> bool | None:
        judged.append(dict(polled))
        return True if len(judged) == 2 else None

    poll: Poll[Any] = Poll(service, 2)
    await poll.until(["a", "b", "c"], 60, see)
    assert judged == [{"a": 1, "b": 2}, {"c": 3}]


@simulated
async def test_a_key_that_is_named_twice_counts_once(poll: Poll[Any]) -> None:
    assert await poll.until(["a", "b", "a"], 60, states) == {"a": 1, "b": 2}


@simulated
async def test_nothing_to_wait_for_is_refused(poll: Poll[Any]) -> None:
    with pytest.raises(ValueError, match="`keys` is empty"):
        await poll.until([], 60, states)


@simulated
async def test_what_a_response_leaves_out_is_seen_as_none(poll: Poll[Any]) -> None:
    assert await poll.until(["gone", "b"], 60, states) == {"gone": None, "b": 2}


@simulated
async def test_pauses_have_a_bound_however_long_a_service_fails(service: Service, poll: Poll[Any]) -> None:
    service.fail(ServiceFailure("down"), times=1100)
    began = asyncio.get_running_loop().time()
    assert await poll.until(["a"], 60, states) == {"a": 1}
    assert asyncio.get_running_loop().time() - began < 1101 * LONGEST_BACKOFF


@simulated
async def test_a_wait_whose_own_judgement_fails_ends_alone(poll: Poll[Any]) -> None:
    broken, fine = await asyncio.gather(
        poll.until(["a"], 60, lambda seen: 1 // 0), poll.until(["a"], 60, states), return_exceptions=True
    )
    assert isinstance(broken, ZeroDivisionError)
    assert fine == {"a": 1}


@simulated
async def test_the_poll_ends_with_its_last_wait_and_begins_again(poll: Poll[Any]) -> None:
    await poll.until(["a"], 60, states)
    await asyncio.sleep(0.01)
    assert poll._runner is not None
    assert poll._runner.done()
    assert await poll.until(["a"], 60, states) == {"a": 1}


@simulated
async def test_a_wait_that_begins_while_the_poll_fails_is_served(
    poll: Poll[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(poll: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("a defect")

    monkeypatch.setattr(Poll, "_take_due", defect)
    with pytest.raises(RuntimeError, match="a defect"):
        await poll.until(["a"], 60, states)
    # this wait begins at once, before the poll has handled its defect
    assert await poll.until(["a"], 60, states) == {"a": 1}
    assert await poll.until(["b"], 60, states) == {"b": 2}


@simulated
async def test_what_a_waiter_does_runs_in_its_own_context(poll: Poll[Any]) -> None:
    """Airflow assigns log lines to triggers by context variables."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")

    async def wait(key: str) -> str:
        name.set(key)
        return await poll.until([key], 60, lambda seen: name.get())

    assert await asyncio.gather(*(asyncio.create_task(wait(key)) for key in "ab")) == ["a", "b"]


@simulated
async def test_thousands_who_end_together_go_on_in_several_turns(poll: Poll[Any]) -> None:
    done: list[str] = []

    def see(seen: Mapping[str, int | None]) -> bool:
        done.append("judged")
        return True

    async def wait() -> None:
        await poll.until(["a"], 60, see)
        done.append("went on")

    await asyncio.gather(*(wait() for _ in range(100)))
    assert done == ["judged", "went on"] * 100


async def test_others_have_their_turns_while_many_are_judged(poll: Poll[Any]) -> None:
    judged_in: list[int] = []

    def judge(seen: Mapping[str, int | None]) -> None:
        time.sleep(LONGEST_TURN)
        judged_in.append(turns.count)

    async with Turns() as turns:
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(poll.until(["a"], 60, judge)) for _ in range(20)
        ]
        while len(judged_in) < len(waits):
            await asyncio.sleep(0.001)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    assert len(set(judged_in)) == 20


async def test_thousands_who_are_refused_together_go_on_in_turns(service: Service, poll: Poll[Any]) -> None:
    service.fail(PermissionDenied("plan"), times=REFUSALS)
    refused_in: list[int] = []

    async def wait() -> None:
        with pytest.raises(PermissionDenied):
            await poll.until(["a"], 0.01, states)
        refused_in.append(turns.count)

    async with Turns() as turns:
        await asyncio.gather(*(wait() for _ in range(100)))
    assert len(set(refused_in)) == 100
