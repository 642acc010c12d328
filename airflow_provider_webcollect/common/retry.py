"""Retries that wait as long as the service requests, on Airflow versions with retry policies (3.3)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.landing.errors import SomeFailed
from airflow_provider_webcollect.service.errors import WebCollectError

if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
    from airflow.providers.common.compat.sdk import RetryDecision, RetryPolicy
if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

#: Maximum number of seconds; a longer request of the service is taken for a mistake.
LONGEST = 3600.0


if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:

    class RetryAfterPolicy(RetryPolicy):
        """Waits as long as the service's ``Retry-After`` if the task's own delay is shorter."""

        def evaluate(
            self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
        ) -> RetryDecision:
            """Return the delay that the service requests, or leave the delay to the task."""
            retry_after = _retry_after(exception)
            if not retry_after:
                return RetryDecision.default()
            delay = timedelta(seconds=min(retry_after, LONGEST))
            if context is not None and _own_delay(context["ti"].task, try_number) >= delay:
                return RetryDecision.default()
            return RetryDecision.retry(
                delay, f"The service asked to wait {retry_after:.0f} s before the next request."
            )

        def serialize(self) -> dict[str, Any]:
            """Return the policy as JSON, which is empty since it has no arguments."""
            return {}

        @classmethod
        def deserialize(cls, data: dict[str, Any]) -> RetryAfterPolicy:
            """Return the policy."""
            return cls()

    RETRY_AFTER = RetryAfterPolicy()


def _retry_after(exception: BaseException) -> float:
    """Return the seconds that the service requests to wait, or 0; of several sources, the maximum."""
    errors = exception.errors.values() if isinstance(exception, SomeFailed) else (exception,)
    delays = [error.retry_after for error in errors if isinstance(error, WebCollectError)]
    return max(filter(None, delays), default=0.0)


def _own_delay(task: Any, try_number: int) -> timedelta:
    """Return the minimum delay that the task would wait by itself."""
    delay: timedelta = task.retry_delay
    growth = float(task.retry_exponential_backoff or 1)
    try:
        delay *= growth ** (try_number - 1)
    except OverflowError:
        return timedelta.max
    return min(delay, task.max_retry_delay or timedelta.max)
