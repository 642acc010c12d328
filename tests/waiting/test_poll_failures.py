"""How a poll handles queries that fail, and when it sends queries, in simulated time."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.service import errors
from airflow_provider_webcollect.waiting.conditions import LONGEST_BACKOFF
from airflow_provider_webcollect.waiting.poll import QUERIES_AT_ONCE, Poll
from tests.simulation.clock import simulated
from tests.simulation.samples import ALL_HISTORIES
from tests.waiting.services import Service, now

CONNECTION_REFUSALS = [
    errors.TokenRejected,
    errors.GrantRejected,
    errors.PermissionDenied,
    errors.RedirectRefused,
    errors.ProxyUnusable,
]
KEY_REFUSALS = [errors.NotFound, errors.RequestRejected]
PASSING = [
    errors.ServiceFailure,
    errors.MalformedResponse,
    errors.TooManyRequests,
    errors.ServiceUnreachable,
    RuntimeError,
    # of something that the query itself awaits
    asyncio.CancelledError,
]


class Waits:
    """Waits for one key each, which end only by an error."""

    def __init__(self, service: Service, batch_size: int = 100) -> None:
        self.service = service
        self._poll: Poll[Any] = Poll(service, batch_size)
        self.began: dict[str, float] = {}
        self.seen: defaultdict[str, list[float]] = defaultdict(list)
        self.tasks: dict[str, asyncio.Task[Any]] = {}

    def begin(self, keys: Iterable[str], interval: float = 60.0) -> None:
        for key in keys:
            see = functools.partial(self._see, key)
            self.began.setdefault(key, now())
            self.tasks[f"{key} {len(self.tasks)}"] = asyncio.create_task(
                self._poll.until([key], interval, see)
            )

    def _see(self, key: str, seen: Mapping[str, Any]) -> None:
        self.seen[key].append(now())

    def longest_gap(self, keys: Iterable[str]) -> float:
        """Return the longest time without a response about a key, in seconds, since its wait began."""
        return max(
            later - earlier
            for key in keys
            for earlier, later in itertools.pairwise([self.began[key], *self.seen[key], now()])
        )

    @property
    def ended(self) -> dict[str, BaseException | None]:
        """The error of each wait that has ended, by its key."""
        return {name.split()[0]: task.exception() for name, task in self.tasks.items() if task.done()}


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def waits(service: Service) -> Waits:
    """Waits that share a poll of the service; the event loop cancels those that are open at its end."""
    return Waits(service)


def keys(count: int) -> list[str]:
    return [f"k{number:05}" for number in range(count)]


class TestOthersGoOn:
    """A query that fails or takes long delays no other."""

    @simulated
    async def test_beside_a_response_that_takes_long(self, service: Service) -> None:
        slow, *others = keys(20)
        service.takes = lambda keys: 120.0 if slow in keys else 0.05
        waits = Waits(service, 5)
        waits.begin([slow, *others], 10.0)
        await asyncio.sleep(100)
        assert waits.longest_gap(others[4:]) < 11.5

    @simulated
    async def test_only_so_many_responses_are_awaited_at_once(self, service: Service) -> None:
        service.takes = lambda keys: 120.0
        waits = Waits(service, 1)
        waits.begin(keys(20))
        await asyncio.sleep(100)
        assert len(service.queries) == QUERIES_AT_ONCE

    @pytest.mark.parametrize(
        "error", [errors.ServiceFailure("down"), RuntimeError("a bug"), errors.PermissionDenied("not yours")]
    )
    @simulated
    async def test_beside_a_key_that_always_fails(self, waits: Waits, error: Exception) -> None:
        bad, *others = keys(300)
        waits.service.fail(error, about=[bad])
        waits.begin([bad, *others], 20.0)
        await asyncio.sleep(300)
        assert waits.longest_gap(others[99:]) < 24
        # the keys of its batch wait until the batch has been halved often enough
        assert waits.longest_gap(others[:99]) < 20 + 7 * 5
        assert bad not in waits.seen
        assert set(waits.ended) <= {bad}

    @simulated
    async def test_an_older_response_does_not_lift_a_rate_limits_pause(self, waits: Waits) -> None:
        waits.service.takes = lambda keys: 5.0 if "slow" in keys else 0.05
        limited = errors.TooManyRequests("429", retry_after=60.0)
        limited.unsent = True
        waits.begin(["slow"])
        await asyncio.sleep(1)
        waits.service.fail(limited, times=1)
        waits.begin(["limited"])
        await asyncio.sleep(1)
        waits.begin(["other"])
        await asyncio.sleep(30)
        assert waits.seen.keys() == {"slow"}
        assert waits.service.asked == [["slow"], ["limited"]]

    @simulated
    async def test_a_probe_that_succeeds_beside_a_failure_stops_no_poll(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("random.uniform", lambda shortest, longest: longest)
        # a fails, b fails late, a fails again even later, and the probe that began before that succeeds
        seconds, fail = [1.0, 30.0, 30.0, 6.5], [True, True, True, False]
        service.takes = lambda keys: seconds.pop(0) if seconds else 0.05
        service.trouble = lambda keys: errors.ServiceFailure("internal") if fail and fail.pop(0) else None
        waits = Waits(service, 1)
        waits.begin(["a", "b"], 10.0)
        await asyncio.sleep(3600)
        assert not seconds
        assert service.queries[-1][0] > now() - 60

    @simulated
    async def test_a_failing_key_is_asked_about_alone_ever_less_often(self, waits: Waits) -> None:
        bad, *others = keys(100)
        waits.service.fail(errors.ServiceFailure("internal"), about=[bad])
        waits.begin([bad, *others])
        await asyncio.sleep(3600)
        with_others = [keys for _, keys in waits.service.queries if bad in keys and len(keys) > 1]
        alone = [moment for moment, keys in waits.service.queries if keys == [bad]]
        assert [len(keys) for keys in with_others] == [100, 50, 25, 12, 6, 3]
        assert len(alone) < 8 + 3600 / (LONGEST_BACKOFF / 2)
        assert alone[-1] - alone[-2] > LONGEST_BACKOFF / 2
        waits.service.recover()
        await asyncio.sleep(LONGEST_BACKOFF + 60)
        assert len(waits.seen[bad]) >= 1

    @simulated
    async def test_a_failure_of_a_short_wait_does_not_delay_a_long_one(self, waits: Waits) -> None:
        waits.service.fail(errors.ServiceFailure("internal"), about=["bad"])
        waits.begin(["good"], 60.0)
        await asyncio.sleep(1)
        waits.begin(["bad"], 60.0)
        await asyncio.sleep(3600)
        assert waits.longest_gap(["good"]) < 60 + 10

    @simulated
    async def test_an_error_in_place_of_a_state_is_its_keys_alone(self, waits: Waits) -> None:
        waits.service.states["bad"] = errors.MalformedResponse("unreadable")
        waits.begin(["good", "bad"], 10.0)
        await asyncio.sleep(300)
        assert waits.longest_gap(["good"]) < 11
        assert "bad" not in waits.seen
        assert len([keys for _, keys in waits.service.queries if "bad" in keys]) < 12


class TestServiceDown:
    @pytest.mark.parametrize("kind", PASSING)
    @simulated
    async def test_it_is_asked_once_a_pause_and_the_pauses_double(
        self, waits: Waits, kind: type[Exception]
    ) -> None:
        waits.service.fail(kind("down"))
        waits.begin(keys(1000))
        await asyncio.sleep(3600)
        first = next(number for number, (_, keys) in enumerate(waits.service.queries) if len(keys) == 1)
        assert first <= 2
        assert {len(keys) for _, keys in waits.service.queries[first:]} == {1}
        pauses = waits.service.gaps()[first:]
        assert all(pause >= min(LONGEST_BACKOFF / 2, 2.0 * 2**number) for number, pause in enumerate(pauses))
        # each query is about another key
        assert (
            len({keys[0] for _, keys in waits.service.queries[first:]}) == len(waits.service.queries) - first
        )
        assert waits.ended == {}

        waits.service.recover()
        sent_before = len(waits.service.queries)
        await asyncio.sleep(LONGEST_BACKOFF + 60)
        assert waits.seen.keys() == set(keys(1000))
        # one query that finds that the service answers, and the halves of batches that had failed at first
        assert len([keys for _, keys in waits.service.queries[sent_before:] if len(keys) < 100]) <= 1 + 2 * 3

    @simulated
    async def test_an_unforeseen_failure_is_logged_with_its_traceback(
        self, waits: Waits, caplog: pytest.LogCaptureFixture
    ) -> None:
        waits.service.fail(RuntimeError("a bug"), times=1)
        waits.begin(["a"])
        await asyncio.sleep(60)
        assert waits.seen["a"]
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.exc_info
        assert "a bug" in str(record.exc_info[1])

    @simulated
    async def test_retry_after_is_respected(self, waits: Waits) -> None:
        waits.service.fail(errors.TooManyRequests("slowly", retry_after=40.0), times=1)
        waits.begin(keys(200))
        await asyncio.sleep(120)
        assert waits.service.gaps()[0] >= 40


class TestRefusals:
    """A permanent refusal ends waits once it is confirmed."""

    @pytest.mark.parametrize("kind", [*CONNECTION_REFUSALS, *KEY_REFUSALS])
    @simulated
    async def test_two_in_a_row_end_nothing(self, waits: Waits, kind: type[Exception]) -> None:
        waits.begin(["a", "b"], 10.0)
        for _ in range(20):
            waits.service.fail(kind("no"), times=2)
            await asyncio.sleep(60)
        assert waits.ended == {}
        assert waits.longest_gap("ab") < 30

    @pytest.mark.parametrize("kind", [*CONNECTION_REFUSALS, *KEY_REFUSALS])
    @simulated
    async def test_another_failure_between_them_ends_the_row(
        self, waits: Waits, kind: type[Exception]
    ) -> None:
        fails = [kind("no"), kind("no"), errors.ServiceFailure("down"), kind("no"), kind("no")]
        waits.service.trouble = lambda keys: fails.pop(0) if fails else None
        waits.begin(["a"], 10.0)
        await asyncio.sleep(900)
        assert not fails
        assert waits.ended == {}
        assert waits.seen["a"]

    @pytest.mark.parametrize("kind", [*CONNECTION_REFUSALS, *KEY_REFUSALS])
    @simulated
    async def test_the_third_in_a_row_ends_the_wait(self, waits: Waits, kind: type[Exception]) -> None:
        waits.service.fail(kind("no"))
        waits.begin(["a"])
        await asyncio.sleep(60)
        assert [type(error) for error in waits.ended.values()] == [kind]
        assert len(waits.service.queries) == 3
        first, second = waits.service.gaps()
        assert first >= 2
        assert second >= 4

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("kind", CONNECTION_REFUSALS)
    @simulated
    async def test_one_of_the_connection_ends_all_waits(self, waits: Waits, kind: type[Exception]) -> None:
        waits.begin(keys(1000))
        await asyncio.sleep(90)
        waits.service.fail(kind("no"))
        sent_before = len(waits.service.queries)
        await asyncio.sleep(180)
        assert waits.ended.keys() == set(keys(1000))
        assert {type(error) for error in waits.ended.values()} == {kind}
        assert len(waits.service.queries) - sent_before <= 6

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("kind", CONNECTION_REFUSALS)
    @simulated
    async def test_many_at_the_same_time_are_one(self, waits: Waits, kind: type[Exception]) -> None:
        waits.service.takes = lambda keys: 5.0
        waits.service.fail(kind("no"), times=QUERIES_AT_ONCE)
        waits.begin(keys(1000))
        await asyncio.sleep(180)
        assert waits.ended == {}
        assert waits.seen.keys() == set(keys(1000))

    @simulated
    async def test_refusals_of_waits_in_sequence_do_not_confirm_each_other(self, waits: Waits) -> None:
        waits.service.fail(errors.NotFound("no"))
        for _ in range(5):
            waits.begin(["a"])
            await asyncio.sleep(0.4)
        waits.service.recover()
        await asyncio.sleep(60)
        assert waits.ended == {}
        assert waits.seen["a"]

    @pytest.mark.parametrize("kind", [errors.PermissionDenied, *KEY_REFUSALS])
    @pytest.mark.parametrize("seconds", [0, 40], ids=["with the others", "later"])
    @pytest.mark.parametrize(
        ("count", "places"),
        [(2, [1]), (10, [9]), (300, [299]), (3, [0, 1]), (10, [0, 7]), (10, range(8)), (300, range(8))],
    )
    @simulated
    async def test_those_of_keys_end_their_waits_alone(
        self, waits: Waits, kind: type[Exception], count: int, places: Iterable[int], seconds: float
    ) -> None:
        everybody = keys(count)
        bad = [everybody[place] for place in places]
        others = [key for key in everybody if key not in bad]
        waits.service.fail(kind("not yours"), about=bad)
        if seconds:
            # these begin while the others are not due
            waits.begin(others)
            await asyncio.sleep(seconds)
            waits.begin(bad)
        else:
            waits.begin(everybody)
        await asyncio.sleep(300)
        assert waits.ended.keys() == set(bad)
        assert {type(error) for error in waits.ended.values()} == {kind}
        assert waits.longest_gap(others) < 100

    @simulated
    async def test_a_plan_that_was_never_enough_ends_all_waits(self, waits: Waits) -> None:
        waits.service.fail(errors.PermissionDenied("plan"))
        waits.begin(keys(100))
        await asyncio.sleep(300)
        assert waits.ended.keys() == set(keys(100))

    @simulated
    async def test_a_foreign_key_ends_no_wait_that_has_no_response_yet(self, waits: Waits) -> None:
        waits.service.takes = lambda keys: 100.0 if "slow" in keys else 0.05
        waits.service.fail(errors.PermissionDenied("not yours"), about=["foreign"])
        waits.begin(["slow"])
        await asyncio.sleep(1)
        waits.begin(["foreign"])
        await asyncio.sleep(60)
        assert waits.ended.keys() == {"foreign"}

    @simulated
    async def test_an_incomplete_connection_ends_all_waits_at_once(self, waits: Waits) -> None:
        waits.service.fail(errors.ConnectionIncomplete("no credential"))
        waits.begin(keys(200))
        await asyncio.sleep(2)
        assert waits.ended.keys() == set(keys(200))
        assert len(waits.service.queries) == 1

    @simulated
    async def test_an_argument_that_cannot_be_sent_ends_its_wait_alone(self, waits: Waits) -> None:
        bad, *others = keys(100)
        waits.service.fail(errors.InvalidArgument("task_ids", "", "it must not be empty"), about=[bad])
        waits.begin([bad, *others])
        await asyncio.sleep(12)
        assert waits.ended.keys() == {bad}
        assert waits.service.asked.count([bad]) == 1
        assert waits.seen.keys() == set(others)


class TestSpacing:
    """A round of queries is spread over its interval."""

    @simulated
    async def test_two_polls_of_5_000_keys_ask_at_most_5_times_a_second(self, service: Service) -> None:
        one, other = Waits(service), Waits(service)
        one.begin(keys(5000))
        await asyncio.sleep(0.2)
        other.begin(keys(5000))
        await asyncio.sleep(120)
        moments = [moment for moment, _ in service.queries]
        assert all(later - earlier > 1 for earlier, later in zip(moments, moments[4:], strict=False))
        assert len(moments) == 2 * 50 * 2
        assert max(one.longest_gap(keys(5000)), other.longest_gap(keys(5000))) < 61

    @simulated
    async def test_10_000_keys_have_their_turn_within_the_interval(self, waits: Waits) -> None:
        waits.begin(keys(10_000))
        await asyncio.sleep(120)
        assert waits.longest_gap(keys(10_000)) < 61
        assert len(waits.service.queries) == 2 * 100

    @simulated
    async def test_a_short_interval_is_kept(self, service: Service) -> None:
        waits = Waits(service, 1)
        waits.begin(keys(2), 0.2)
        await asyncio.sleep(10)
        assert waits.longest_gap(keys(2)) < 0.4


@simulated
async def test_a_key_is_in_one_question_at_a_time(waits: Waits) -> None:
    """Otherwise a later response could arrive before an earlier one."""
    waits.service.takes = lambda keys: 10.0
    waits.begin(["a"])
    await asyncio.sleep(5)
    waits.begin(["a"])
    await asyncio.sleep(20)
    assert len(waits.service.queries) == 2
    assert waits.service.gaps()[0] >= 10
    # the second wait does not see the first response
    assert len(waits.seen["a"]) == 1 + 2


@settings(
    max_examples=100 if ALL_HISTORIES else 3,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_after_any_trouble_every_wait_goes_on(seed: int) -> None:
    """Waits come and go while queries fail or take long."""
    chance = random.Random(seed)
    everybody = keys(chance.choice([2, 10, 250]))

    @simulated
    async def run() -> None:
        service = Service()
        service.takes = lambda keys: chance.choice([0.0, 0.05, 5.0, 40.0])
        share = chance.choice([0.05, 0.3, 0.8])

        def trouble(keys: list[str]) -> BaseException | None:
            return chance.choice(PASSING)("down") if chance.random() < share else None

        service.trouble = trouble
        waits = Waits(service, chance.choice([1, 3, 100]))
        for _ in range(20):
            new = chance.sample(everybody, chance.choice([0, 1, 2]))
            waits.begin(new, chance.choice([0.5, 10.0, 300.0]))
            for task in waits.tasks.values():
                if chance.random() < 0.1:
                    task.cancel()
            await asyncio.sleep(chance.choice([0, 0.3, 10, 60]))
        service.recover()
        recovered, service.takes = now(), lambda keys: 0.05
        await asyncio.sleep(40 + LONGEST_BACKOFF + 300)
        live = {name.split()[0] for name, task in waits.tasks.items() if not task.done()}
        assert all(task.cancelled() for task in waits.tasks.values() if task.done())
        assert all(waits.seen[key] and waits.seen[key][-1] > recovered for key in live)

    logging.disable()
    try:
        run()
    finally:
        logging.disable(logging.NOTSET)
