"""The rate limit: within the limits when all goes well, slower after a 429, shared fairly by processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import endpoints, rate_limit
from airflow_provider_webcollect.service.endpoints import RateLimit
from airflow_provider_webcollect.service.rate_limit import (
    LEAST_SHARE,
    STATUS_INTERVALS,
    RateLimiter,
    shared_rate_limiters,
)
from benchmarks.rate_limits import SETTLING, WINDOW, Simulation
from tests.service.conftest import Clock, Connect, Crowd
from tests.simulation.samples import ALL_HISTORIES


def moments(limiter: RateLimiter, clock: Clock, count: int) -> list[float]:
    sent = []
    for _ in range(count):
        clock.time += limiter.reserve().wait
        sent.append(clock.time - 1000)
    return sent


def mean_gap(sent: list[float]) -> float:
    return (sent[-1] - sent[0]) / (len(sent) - 1)


class TestOneProcess:
    def test_requests_are_spread_evenly_also_after_a_pause(self, clock: Clock) -> None:
        limiter = RateLimiter(0.5, clock.now)
        limiter.reserve()
        clock.time += 100
        assert moments(limiter, clock, 3) == [100, 100.5, 101]

    def test_requests_from_before_a_429_cost_no_second_step(self, clock: Clock) -> None:
        one, other = (RateLimiter(1, clock.now) for _ in range(2))
        for limiter in (one, other):
            for _ in range(10):
                limiter.reserve()
        one.slow_down()
        for _ in range(5):
            other.slow_down()
        clock.time += 10
        gaps = [mean_gap(moments(limiter, clock, 40)) for limiter in (one, other)]
        assert gaps[0] == pytest.approx(gaps[1], rel=0.1)

    def test_a_rate_that_is_used_returns_to_the_full_one(self, clock: Clock) -> None:
        limiter = RateLimiter(0.05, clock.now)
        for _ in range(20):
            clock.time += limiter.reserve().wait
            limiter.slow_down()
        began = clock.time
        while mean_gap(moments(limiter, clock, 100)) > 0.05001:
            assert clock.time < began + 1200

    def test_a_rate_that_is_not_used_does_not_grow(self, clock: Clock) -> None:
        limiter = RateLimiter(0.05, clock.now)
        for _ in range(10):
            clock.time += limiter.reserve().wait
            limiter.slow_down()
        before = mean_gap(moments(limiter, clock, 40))
        for _ in range(3600):
            clock.time += 1
            assert limiter.reserve().wait == 0
        assert mean_gap(moments(limiter, clock, 40)) == pytest.approx(before, rel=0.1)

    def test_a_slow_process_repeats_moments_but_those_that_met_a_429(self, clock: Clock) -> None:
        limiter = RateLimiter(0.05, clock.now)
        for _ in range(60):
            clock.time += limiter.reserve().wait
            limiter.slow_down()
        moments(limiter, clock, 40)
        before = moments(limiter, clock, 5)
        refused = before[-1]
        limiter.slow_down(moment=1000 + refused)
        after = [sent - 30 for sent in moments(limiter, clock, 20)]
        assert [sent for sent in before if sent not in [pytest.approx(again) for again in after]] == [refused]
        assert any(0 < again - refused < 0.2 for again in after)

    def test_what_takes_the_place_of_a_late_request_is_as_late(self, clock: Clock) -> None:
        limiter = RateLimiter(0.5, clock.now)
        first, second = (limiter.reserve().moment for _ in range(2))
        clock.time += 0.1
        limiter.answered(first, "page")
        clock.time = second + 0.4
        limiter.answered(second, "page")
        third, fourth = (limiter.reserve().moment for _ in range(2))
        assert third - first == pytest.approx(1)
        assert fourth - second == pytest.approx(1 + 0.3)

    def test_requests_of_a_kind_that_takes_longer_are_not_late(self, clock: Clock) -> None:
        limiter = RateLimiter(0.5, clock.now)
        for _ in range(20):
            for kind, seconds in (("status", 0.02), ("page", 0.4)):
                moment, wait = limiter.reserve()
                clock.time += wait + seconds
                limiter.answered(moment, kind)
        sent = moments(limiter, clock, 20)
        assert mean_gap(sent) == pytest.approx(0.5)

    def test_it_does_not_get_slower_without_end(self, clock: Clock) -> None:
        limiter = RateLimiter(1, clock.now)
        for _ in range(1000):
            limiter.slow_down()
            clock.time += limiter.reserve().wait
        assert mean_gap(moments(limiter, clock, 40)) == pytest.approx(1 / LEAST_SHARE, rel=0.1)


class TestProcessesOnOneAddress:
    """Simulations in virtual time; there are more in benchmarks/rate_limits.py, which has the simulation."""

    @pytest.mark.parametrize("count", [2, 10])
    def test_each_has_its_share_and_hardly_any_429(self, count: int) -> None:
        settled = (SETTLING, SETTLING + WINDOW)
        answers = Simulation(count, seed=1).run(settled[1])
        assert answers.rate(*settled) > 0.8 * 20
        assert answers.refusals(*settled) < 0.01
        shares = answers.shares(range(count), *settled)
        assert min(shares) > 0.7
        assert max(shares) < 1.3

    def test_one_that_begins_at_the_full_rate_soon_shares_it(self) -> None:
        answers = Simulation(10, seed=1, lives=lambda process, now: process > 0 or now >= 600).run(960)
        assert answers.refusals(660, 960) < 0.02
        assert answers.shares(range(10), 660, 960)[0] < 3


#: Seconds that a request, or its response, is on its way.
on_the_way = strategies.floats(0, 3, allow_nan=False)


@settings(
    max_examples=100 if ALL_HISTORIES else 25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(strategies.lists(strategies.tuples(on_the_way, on_the_way), min_size=6, max_size=40))
def test_the_limit_holds_however_late_requests_arrive(delays: list[tuple[float, float]]) -> None:
    """Five status queries may arrive per second (contract.md, Limits)."""
    clock = Clock()
    limiter = RateLimiter(STATUS_INTERVALS[RateLimit.STATUS_V2], clock.now)
    arrived = []
    for there, back in delays:
        clock.time += limiter.reserve().wait + there
        arrived.append(clock.time)
        clock.time += back
    # a billionth of a second of tolerance for the rounding of floats
    assert all(sixth - first >= 1 - 1e-9 for first, sixth in zip(arrived, arrived[5:], strict=False))


class TestSharing:
    def test_clients_of_one_address_share_its_limits_in_any_spelling(self) -> None:
        addresses = ("https://share.example/api", "https://SHARE.example:443/other", "https://share.example.")
        one, *others = (shared_rate_limiters(url, 10) for url in addresses)
        assert others == [one] * 2
        elsewhere = shared_rate_limiters("https://elsewhere.example", 10)
        assert one[RateLimit.GENERAL] != elsewhere[RateLimit.GENERAL]

    def test_the_lowest_rate_of_all_open_clients_counts(self) -> None:
        for rate, gap in ((19, 1 / 19), (0, 1 / 20), (5, 1 / 5), (40, 1 / 20)):
            address = f"https://rate-{rate}.example"
            # the rate of a client that has ended does not count
            shared_rate_limiters(address, 0.1)
            both = shared_rate_limiters(address, 20), shared_rate_limiters(f"{address}.:443", rate)
            (limiter,) = both[0][RateLimit.GENERAL]
            first = limiter.reserve().moment
            assert limiter.reserve().moment - first == pytest.approx(gap)

    def test_two_clients_together_stay_within_the_limit(
        self, connect: Connect, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        crowd = Crowd(8)
        monkeypatch.setattr(rate_limit, "RateLimiter", lambda interval, *_: RateLimiter(interval, crowd.now))
        sandbox._state.limits._now = crowd.now
        clients = [connect(requests_per_second=20, stop=crowd, clock=crowd.now) for _ in range(2)]

        def send(number: int) -> None:
            try:
                for _ in range(5):
                    clients[number % 2].send(endpoints.get_running_counts())
            finally:
                crowd.leave()

        with ThreadPoolExecutor(8) as threads:
            assert len([*threads.map(send, range(8))]) == 8
        assert sandbox.control.counters() == {"/cloudextraction/task/stats": {200: 40}}
        assert crowd.time - 1000 == pytest.approx(39 / 20)


class TestLimits:
    def test_status_queries_keep_within_their_own_limit(self, on_clock: Connect, sandbox: Sandbox) -> None:
        client = on_clock()
        for _ in range(12):
            client.send(endpoints.get_task_statuses_v2([demo.TASK_ID]))
        assert sandbox.control.counters() == {"/cloudextraction/statuses/v2": {200: 12}}

    @pytest.mark.webcollect_sandbox(enforce_limits=False)
    def test_a_status_query_is_under_the_general_rate_too(self, on_clock: Connect, clock: Clock) -> None:
        client = on_clock(requests_per_second=1)
        client.send(endpoints.get_running_counts())
        client.send(endpoints.get_task_statuses_v2([demo.TASK_ID]))
        assert clock.slept == [1]

    @pytest.mark.webcollect_sandbox(enforce_limits=False)
    def test_a_429_slows_the_own_rate(self, on_clock: Connect, sandbox: Sandbox, clock: Clock) -> None:
        client = on_clock(requests_per_second=20)
        sandbox.control.fail("/cloudextraction/statuses/v2", status=429)
        for _ in range(3):
            client.send(endpoints.get_task_statuses_v2([demo.TASK_ID]))
        assert 0.26 < clock.slept[-1] < 0.34
        clock.slept.clear()
        for _ in range(2):
            client.send(endpoints.get_running_counts())
        assert clock.slept[-1] == pytest.approx(0.05)
