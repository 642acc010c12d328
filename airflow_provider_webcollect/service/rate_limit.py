"""Rate limiting: sending as many requests as the service accepts, together with other processes."""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_webcollect.service.endpoints import RateLimit
from airflow_provider_webcollect.service.settings import GENERAL_RATE, address_of
from airflow_provider_webcollect.service.threads import ThrottledLog

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

#: Seconds between two requests (contract.md, Limits: v1 1 per 5 s, v2 5 per s), with a margin for bunching:
#: at the interval of v2, four queries are sent in any second, and a delayed one may arrive as the fifth.
STATUS_INTERVALS = {RateLimit.STATUS_V1: 5.25, RateLimit.STATUS_V2: 0.25}
# The following values were chosen with the simulations of benchmarks/rate_limits.py, for 1 to 50 processes.
#: Maximum delay of a request's arrival that is taken into account, in intervals. With a lower value, late
#: requests cause 429s. With a higher value, more of the rate is lost if the service's own response times
#: vary; with this value, up to a tenth is lost.
LATEST = 2.0
#: Each of several 429s in a row lowers a share s by STEP * s * s, but by at most LARGEST_STEP * s. With lower
#: values, processes that begin together take longer to reach their shares; with higher ones, their shares
#: differ more.
STEP, LARGEST_STEP = 0.8, 0.2
#: A 429 after more requests than this counts less: half as much after twice as many. With a lower value,
#: there are more 429s; with a higher one, the rate varies more.
QUIET = 8
#: The initial number of requests since the last 429. After a 429, requests count up to this number even if
#: they do not use up the rate.
FIRST = 20
#: After this many requests without a 429, a rate has grown by a factor of e, nearly all of it in the last
#: third. With a lower value, there are more 429s; with a higher one, it takes longer until other processes
#: use the share of a process that has ended.
GROWTH = 1400
#: The longest pause after a 429, in intervals. Each of several pauses in a row is twice as long as the
#: previous one.
LONGEST_PAUSE = 16
#: The lowest share of the full rate.
LEAST_SHARE = 1 / 200
#: Below the full rate, intervals vary at random by up to this part, so that processes do not stay in step.
JITTER = 0.03
#: A process whose requests are further apart than this number of windows of the limit keeps a timetable. For
#: the other processes, even intervals suffice.
FEW = 1.2
#: The length of the timetable, a round, in windows. With a higher value, it takes longer until all processes
#: have moments without a 429; with a lower one, shares are coarser. With this value, a fiftieth of the
#: general rate is twelve requests.
ROUND = 30
#: Maximum number of intervals by which a refused request's moment is later in the next round.
SHIFT = 4.0


class Reservation(NamedTuple):
    """A moment at which one request may be sent.

    :ivar moment: the time by the limiter's clock, in seconds.
    :ivar wait: the number of seconds until that moment.
    """

    moment: float
    wait: float


class RateLimiter:
    """Assigns the moments at which requests may be sent: as many as the service accepts, and hardly more.

    The service counts requests per client address, so all clients of a process that use one address share
    its limiters, across threads and event loops. Requests are spread evenly. The duration of a response shows
    how late its request may have been counted; the request that takes its place one window later is delayed
    by the same time. Bursts are not used: only 429s would show whether the service allows them.

    Other processes behind the same address use up the same limit, and only responses with the status 429 show
    that they exist. So each process finds its share of the limit on its own:

    - A 429 lowers the share. Several 429s in a row lower it as if another process shared the limit; a 429
      after many accepted requests hardly lowers it. The faster of two processes takes larger steps, so their
      rates approach each other.
    - Without 429s, the share grows with the fifth power of the number of requests since the last 429: hardly
      at first, so that settled shares stay, and quickly once other processes are unlikely to need theirs.
    - The requests of many processes, each with less than about one per second, would collide by chance, and
      the processes could use only two thirds of the limit. So each process repeats its moments every 30
      windows, but moves a moment with a 429 to a little later. Together, the processes thus find a timetable
      that uses nine tenths of the limit.

    :param interval: seconds between two requests at the full rate; 0 for no limit.
    :param now: a monotonic clock, in seconds.
    """

    def __init__(self, interval: float, now: Callable[[], float] = time.monotonic) -> None:
        #: The requested rates, by the ``id()`` of the objects that have requested them.
        self._rates: dict[int, float] = {}
        self._set_interval(interval)
        self._now = now
        # an asker may be garbage-collected at any moment, even while this thread holds the lock
        self._lock = threading.RLock()
        self._next = 0.0
        #: The latest time at which each of the last requests can have been counted, by its moment: the moment
        #: plus the time by which the response took longer than the shortest response of its kind. And the
        #: durations of these shortest responses, by kind.
        self._counted: dict[float, float] = {}
        self._shortest: dict[str, float] = {}
        #: The moments of the next round, in order.
        self._timetable: deque[float] = deque()
        #: The share of the full rate.
        self._share = 1.0
        #: The number of requests since the last 429; beyond ``FIRST``, only requests that use up the rate.
        self._quiet = FIRST
        #: The length of the last pause in intervals.
        self._pause = 1
        #: The first moment that could be assigned after the share was last lowered.
        self._stepped = 0.0
        #: Logs that requests have to wait.
        self.wait_log = ThrottledLog(log)

    @property
    def share(self) -> float:
        """The current share of the full rate: above 0, at most 1."""
        return self._share

    def ask_for(self, rate: float, asker: object) -> None:
        """Request a rate; the lowest requested rate applies.

        :param rate: requests per second; 0 for no limit.
        :param asker: the object that needs the rate; when it is garbage-collected, its request is forgotten.
        """
        with self._lock:
            self._rates[id(asker)] = rate
            self._use_lowest()
        weakref.finalize(asker, self._forget, id(asker)).atexit = False

    def _forget(self, asker: int) -> None:
        with self._lock:
            del self._rates[asker]
            if self._rates:
                self._use_lowest()

    def _use_lowest(self) -> None:
        lowest = min(filter(None, self._rates.values()), default=0.0)
        interval = 1 / lowest if lowest else 0.0
        if interval != self._interval:
            self._set_interval(interval)

    def _set_interval(self, interval: float) -> None:
        self._interval = interval
        #: The number of requests in a window of the limit, and the window's length: a second, or an interval
        #: if that is longer.
        self._allowed = max(1, round(1 / interval)) if interval else 1
        self._window = self._allowed * interval

    def reserve(self) -> Reservation:
        """Reserve the next moment."""
        with self._lock:
            now = self._now()
            # requests below the current rate show nothing about the limit
            if self._next > now or self._quiet < FIRST:
                self._quiet += 1
                self._share = min(1.0, self._share * (1 + 5 * self._quiet**4 / GROWTH**5))
            moment, gap = self._moment(now), self._gap()
            if self._repeats():
                if self._timetable and self._timetable[0] == moment:
                    self._timetable.popleft()
                self._timetable.append(moment + ROUND * self._window)
            elif self._share < 1.0:
                gap *= random.uniform(1 - JITTER, 1 + JITTER)
            # a request that had to wait for the window delays the next ones only a little
            self._next = max(max(now, self._next) + gap, moment + gap / 4)
            self._counted[moment] = moment
            while len(self._counted) > self._allowed + 4:
                del self._counted[next(iter(self._counted))]
            return Reservation(moment, moment - now)

    def is_free(self) -> bool:
        """Return whether a request may be sent now."""
        with self._lock:
            now = self._now()
            return self._moment(now) <= now

    def answered(self, moment: float, kind: str) -> None:
        """Note that the response to a request begins to arrive.

        :param moment: the moment that was reserved for the request.
        :param kind: the kind of the request, such as its path: the service takes about as long for all
            requests of one kind.
        """
        with self._lock:
            seconds = self._now() - moment
            shortest = self._shortest[kind] = min(self._shortest.get(kind, seconds), seconds)
            if moment in self._counted:
                self._counted[moment] = moment + min(seconds - shortest, LATEST * self._interval)

    def slow_down(self, seconds: float | None = None, moment: float | None = None) -> None:
        """React to a 429: pause, and send more slowly from then on.

        :param seconds: minimum length of the pause, which is at least one interval; None for no minimum.
        :param moment: the moment of the refused request; None if it is not known.
        """
        with self._lock:
            now = self._now()
            gap = self._gap()
            if moment is not None:
                # refused requests are not counted
                self._counted.pop(moment, None)
                self._shift(moment + ROUND * self._window)
            # a request whose moment was assigned before the last step shows nothing about the new rate
            counts = bool(gap) and now >= self._stepped
            if counts:
                in_a_row = now < self._stepped + 2 * gap
                self._pause = min(LONGEST_PAUSE, 2 * self._pause) if in_a_row else 1
                weight = QUIET / max(QUIET, self._quiet)
                step = min(STEP * self._share, LARGEST_STEP) * weight
                self._share = max(LEAST_SHARE, self._share * (1 - step))
            self._next = max(self._next, now + max(seconds or 0.0, self._pause * gap))
            if counts:
                self._stepped = self._next
            self._quiet = 0

    def _gap(self) -> float:
        """Return the seconds between two requests; a round of a timetable has a whole number of requests."""
        gap = self._interval / self._share
        requests = round(ROUND * self._window / gap) if self._repeats() else 0
        return ROUND * self._window / requests if requests else gap

    def _repeats(self) -> bool:
        return self._interval / self._share > FEW * self._window > 0

    def _moment(self, now: float) -> float:
        """Return the next moment at which a request may be sent, ``now`` at the earliest."""
        moment = self._next
        if moment > now and self._repeats():
            moment = self._repeated(moment, now)
        if len(self._counted) >= self._allowed:
            moment = max(moment, sorted(self._counted.values())[-self._allowed] + self._window)
        return max(moment, now)

    def _repeated(self, due: float, now: float) -> float:
        """Return the moment of the timetable that is nearest to ``due``, or ``due`` if none is near."""
        gap = self._gap()
        while self._timetable and self._timetable[0] < max(now, due - gap / 2):
            unused = self._timetable.popleft()
            if (len(self._timetable) + 1) * gap <= ROUND * self._window:
                self._timetable.append(unused + ROUND * self._window)
        if self._timetable and self._timetable[0] <= due + gap / 2:
            return self._timetable[0]
        return due

    def _shift(self, moment: float) -> None:
        """Move a moment of the timetable to a little later."""
        if moment in self._timetable:
            shift = random.uniform(0, SHIFT * self._interval)
            self._timetable[self._timetable.index(moment)] = moment + shift


class RateLimiters(dict["RateLimit", tuple[RateLimiter, ...]]):
    """The limiters that apply to one address, by the rate limit of an endpoint.

    For a status endpoint, its own limiter comes before the general one, since its wait is longer.
    """


_shared: dict[tuple[str, int | None, RateLimit], RateLimiter] = {}
_lock = threading.Lock()


def shared_rate_limiters(base_url: str, requests_per_second: float = GENERAL_RATE) -> RateLimiters:
    """Return the limiters that all clients of this process share for the address in ``base_url``.

    :param requests_per_second: the general limit; 0 for none. If clients with several limits use one address,
        the lowest applies. The limits of the status endpoints always apply.
    """
    host, port = address_of(base_url)
    with _lock:
        general = _shared.setdefault((host, port, RateLimit.GENERAL), RateLimiter(0.0))
        limiters = RateLimiters({RateLimit.GENERAL: (general,)})
        general.ask_for(requests_per_second, limiters)
        for limit, seconds in STATUS_INTERVALS.items():
            limiters[limit] = (_shared.setdefault((host, port, limit), RateLimiter(seconds)), general)
        return limiters
