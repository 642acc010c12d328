"""Retries that wait as long as the service asks for, on Airflow versions that let an error say so (3.3)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.service.errors import WebCollectError

try:
    from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
except ImportError:
    _CAN = False
else:
    _CAN = True

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, Context

#: Seconds; what a service asks for beyond this is taken for a mistake.
LONGEST = 3600.0


def respect_retry_after(operator: BaseOperator) -> None:
    """Let the operator's retries wait at least as long as the service asks for.

    A retry policy of the user's own stays. Before Airflow 3.3, the task's own delay decides alone.
    """
    if _CAN and getattr(operator, "retry_policy", None) is None:
        operator.retry_policy = RetryAfterPolicy()


if _CAN:

    class RetryAfterPolicy(RetryPolicy):
        """Waits as long as the service's ``Retry-After`` says where the task's own delay is shorter."""

        def evaluate(
            self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
        ) -> RetryDecision:
            """Return the service's wish as the delay of the next retry, or leave it to the task."""
            asked = getattr(exception, "retry_after", None)
            if not isinstance(exception, WebCollectError) or not asked:
                return RetryDecision.default()
            delay = timedelta(seconds=min(asked, LONGEST))
            if context is not None and _own_delay(context["ti"].task, try_number) >= delay:
                return RetryDecision.default()
            return RetryDecision.retry(
                delay, f"The service asked to wait {asked:.0f} s before the next request."
            )

        def serialize(self) -> dict[str, Any]:
            """Return the policy as JSON: it has no arguments."""
            return {}

        @classmethod
        def deserialize(cls, data: dict[str, Any]) -> RetryAfterPolicy:
            """Return the policy."""
            return cls()


def _own_delay(task: Any, try_number: int) -> timedelta:
    """Return the least that the task would wait by itself."""
    delay: timedelta = task.retry_delay
    growth = float(task.retry_exponential_backoff or 1)
    try:
        delay *= growth ** (try_number - 1)
    except OverflowError:
        return timedelta.max
    return min(delay, task.max_retry_delay or timedelta.max)
