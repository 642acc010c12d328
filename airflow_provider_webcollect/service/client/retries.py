"""When a request is sent again: the one policy of all calls, by tenacity. This module does no I/O.

``docs/reference/errors.md`` has it as a table, with the longest time of a call and of a page.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import tenacity

from airflow_provider_webcollect.service.errors import (
    MalformedResponse,
    NoResponse,
    PageTooLarge,
    PagingError,
    ResponseTooLarge,
    ServiceFailure,
    ServiceUnreachable,
    WebCollectError,
)
from airflow_provider_webcollect.service.flow import Flow, Sleep
from airflow_provider_webcollect.service.pauses import Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.service.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Attempts at a page that may be too large, before half of it is requested.
TRIES_PER_SIZE = 3
#: Attempts at a page before a cursor that does not advance is an error.
STUCK_TRIES = 5


@dataclass(frozen=True, slots=True)
class Policy:
    """How often, and after which pauses, an attempt is repeated; its error decides.

    :ivar can_halve: whether the call is for a page of which half can be requested.
    :ivar is_part: whether this is a token call: attempts at it are not logged, since those at the call that
        waits for the token are.
    """

    settings: Settings
    can_halve: bool = False
    is_part: bool = False

    def limits(self, error: BaseException | None) -> tuple[int, float]:
        """Return the attempts in all, and the seconds after which none is made."""
        retries, timing = self.settings.retries, self.settings.timing
        match error:
            case PagingError():
                return STUCK_TRIES, retries.deadline
            case ServiceUnreachable():
                return retries.attempts, min(retries.deadline, retries.unreachable)
            case WebCollectError(retryable=True) if self.can_halve and may_be_size(error):
                return min(TRIES_PER_SIZE, retries.attempts), min(timing.long_failure, retries.deadline)
            case WebCollectError(retryable=True):
                return retries.attempts, retries.deadline
        return 1, 0.0

    def requested_pause(self, error: WebCollectError) -> float:
        """Return the seconds that the service asks to wait, up to the longest wait."""
        return min(error.retry_after or 0.0, self.settings.retries.longest_wait)

    def tenacity(self, sleep: Callable[[float], None]) -> tenacity.Retrying:
        """Return the policy as tenacity runs it.

        :param sleep: is given the seconds of each pause.
        """
        retries, notice = self.settings.retries, Notice(log)
        backoff = tenacity.wait_random_exponential(multiplier=retries.first_wait, max=retries.longest_wait)

        def wait(state: tenacity.RetryCallState) -> float:
            error = _error(state)
            if isinstance(error, PagingError):
                return self.settings.timing.stuck_wait
            return max(backoff(state), self.requested_pause(error))

        def stop(state: tenacity.RetryCallState) -> bool:
            attempts, seconds = self.limits(_error(state))
            return (tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(seconds))(state)

        def announce(state: tenacity.RetryCallState) -> None:
            pause, error = state.upcoming_sleep, _error(state)
            notice.give(
                max(pause, notice.lasted),
                "Attempt %d of at most %d follows in %.1f s. %s",
                state.attempt_number + 1,
                self.limits(error)[0],
                pause,
                error,
                level=logging.WARNING,
            )

        return tenacity.Retrying(
            sleep=sleep,
            before_sleep=None if self.is_part else announce,
            stop=stop,
            wait=wait,
            retry=tenacity.retry_if_exception(lambda error: self.limits(error)[0] > 1),
            reraise=True,
        )


def _error(state: tenacity.RetryCallState) -> WebCollectError:
    error = state.outcome and state.outcome.exception()
    assert isinstance(error, WebCollectError), "only such an error is repeated"
    return error


def repeated(
    attempt_once: Callable[[], Flow[T]],
    policy: Policy,
    check: Callable[[T], object] = lambda result: None,
) -> Flow[T]:
    """Make attempts until one succeeds or ``policy`` ends them; the driver does the waiting.

    :param check: is given the result of each attempt, and raises if it is not good enough.
    """
    pauses: list[float] = []
    for attempt in policy.tenacity(pauses.append):
        if pauses:
            yield Sleep(pauses.pop())
        with attempt:
            result = yield from attempt_once()
            check(result)
            return result
    raise AssertionError("tenacity ends with a result or an error")


def may_be_size(error: WebCollectError) -> bool:
    """Return whether fewer rows may help."""
    match error:
        case NoResponse() | ResponseTooLarge() | PageTooLarge():
            return True
        case ServiceFailure(code=str(code)) if code.lower() == "servererror":
            # the service's own failure mostly comes with HTTP 400 (assumptions.md, Errors)
            return True
        case MalformedResponse() | ServiceFailure() if error.status in {200, 500}:
            return True
    return error.status in {413, 504}
