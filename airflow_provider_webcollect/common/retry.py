"""What all operators and sensors share: names of mapped tasks, and retries that heed ``Retry-After``.

The latter on Airflow versions that let an error say how long to wait (3.3).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.landing.errors import SomeFailed
from airflow_provider_webcollect.service.errors import WebCollectError

if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
    from airflow.providers.common.compat.sdk import RetryDecision, RetryPolicy
if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

#: Seconds; a service that asks for more is assumed to be mistaken.
LONGEST = 3600.0
#: The arguments that say what a task works on, and the most characters of them that are shown.
NAMING = (
    "collection_task_id",
    "collection_task_ids",
    "lotno",
    "sources",
    "task_group_id",
    "task_group_ids",
    "app_id",
)
LONGEST_NAME = 100


if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:

    class RetryAfterPolicy(RetryPolicy):
        """Waits as long as the service's ``Retry-After`` says where the task's own delay is shorter."""

        def evaluate(
            self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
        ) -> RetryDecision:
            """Return the delay that the service asks for, or leave the delay to the task."""
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
            """Return the policy as JSON: it has no arguments."""
            return {}

        @classmethod
        def deserialize(cls, data: dict[str, Any]) -> RetryAfterPolicy:
            """Return the policy."""
            return cls()

    RETRY_AFTER = RetryAfterPolicy()


class RetryAfterOperator(BaseOperator):
    """Base of what calls the service: its retries wait at least as long as the service asks for.

    A mapped task is shown by what it works on (id of the task, batch, ...) from its end on, unless
    ``map_index_template`` is given, or none of that is mapped.

    :param retry_policy: Airflow's argument, on Airflow 3.3 and later alone. By default a retry waits as long
        as the service asks for (``Retry-After``) where that is longer than the task's own delay; None for
        the task's own delay alone. Before Airflow 3.3.2, mapped tasks get None unless it is given.
    """

    if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
        # where Airflow finds the default for mapped tasks, and that `default_args` may set it
        def __init__(self, *, retry_policy: RetryPolicy | None = RETRY_AFTER, **kwargs: Any) -> None:
            super().__init__(retry_policy=retry_policy, **kwargs)

    else:
        # without it, Airflow puts the one of BaseOperator here, and sensors skip that of BaseSensorOperator
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    def pre_execute(self, context: Any) -> None:
        """Have Airflow show a mapped task by what it works on, if ``map_index_template`` says nothing."""
        super().pre_execute(context)
        # not in the constructor: Airflow takes the template from the mapped operator, not from this one
        if context["ti"].map_index < 0 or context.get("map_index_template") is not None:
            return
        if name := self._name(context["dag"]):
            # a template that gives native objects makes numbers of digits, and Airflow stores texts alone
            is_native = context["dag"].render_template_as_native_obj
            context["webcollect_map_index"] = repr(name) if is_native else name
            context["map_index_template"] = "{{ webcollect_map_index }}"

    def _name(self, dag: Any) -> str:
        """Return what a mapped task works on; nothing if all of its siblings work on the same."""
        shown = {name: text for name in NAMING if (text := _shown(getattr(self, name, None)))}
        shared = getattr(dag.task_dict[self.task_id], "partial_kwargs", {})
        return "" if shown.keys() <= shared.keys() else ", ".join(shown.values())[:LONGEST_NAME]


def _shown(value: Any) -> str:
    """Return an argument as people read it: what is in lists and dicts, without their brackets and keys."""
    match value:
        case str() | int():
            return str(value)
        case dict():
            return " ".join(filter(None, map(_shown, value.values())))
        case list() | tuple():
            return ", ".join(filter(None, map(_shown, value)))
    # None, or what would first have to be read, such as the results of a mapped task
    return ""


def _retry_after(exception: BaseException) -> float:
    """Return the seconds that the service has asked to wait, 0 if it has not; of many sources, the most."""
    errors = exception.errors.values() if isinstance(exception, SomeFailed) else (exception,)
    delays = [error.retry_after for error in errors if isinstance(error, WebCollectError)]
    return max(filter(None, delays), default=0.0)


def _own_delay(task: Any, try_number: int) -> timedelta:
    """Return the least that the task would wait by itself."""
    delay: timedelta = task.retry_delay
    growth = float(task.retry_exponential_backoff or 1)
    try:
        delay *= growth ** (try_number - 1)
    except OverflowError:
        return timedelta.max
    return min(delay, task.max_retry_delay or timedelta.max)
